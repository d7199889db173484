//! Values by key, each with a number by which it is found without its key.

use std::collections::HashMap;
use std::hash::Hash;

/// Values with keys and numbers. The number of a value that is removed goes to another one later.
#[derive(Debug)]
pub(crate) struct Arena<K, T> {
    slots: Vec<Option<(K, T)>>,
    numbers: HashMap<K, usize>,
    free: Vec<usize>,
}

impl<K, T> Default for Arena<K, T> {
    fn default() -> Self {
        Self { slots: Vec::new(), numbers: HashMap::new(), free: Vec::new() }
    }
}

impl<K: Clone + Eq + Hash, T> Arena<K, T> {
    /// Returns the number of a key.
    pub(crate) fn find(&self, key: &K) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// Adds a value whose key is new. Returns its number.
    pub(crate) fn add(&mut self, key: K, value: T) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[number] = Some((key.clone(), value));
        self.numbers.insert(key, number);
        number
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number)?.as_mut().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, number: usize) -> Option<(&K, &T)> {
        self.slots.get(number)?.as_ref().map(|(key, value)| (key, value))
    }

    /// Returns the keys and values, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.slots.iter().flatten().map(|(key, value)| (key, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Removes the values that `keep` refuses.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Some((key, _)) = slot.take_if(|(_, value)| !keep(value)) {
                self.numbers.remove(&key);
                self.free.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_until_its_value_goes() {
        let mut arena = Arena::default();
        let numbers = ["a", "b", "c"].map(|key| arena.add(key, key.to_uppercase()));
        assert_eq!(arena.find(&"b"), Some(numbers[1]));
        arena.retain(|value| value != "B");
        assert_eq!((arena.find(&"b"), arena.len(), arena.get(numbers[1])), (None, 2, None));
        assert_eq!(arena.add("d", "D".into()), numbers[1], "its place is used again");
        assert_eq!(arena.iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["a", "d", "c"]);
    }
}
