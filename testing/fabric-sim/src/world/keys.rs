//! Registered memory and its keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use railweave_fabric::{Access, MemoryKind, Region};

/// Registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// Its bytes; `None` if it is hollow.
    pub(crate) region: Option<Arc<Region>>,
    pub(crate) length: u64,
    /// Address of its first byte, as work requests name it.
    pub(crate) address: u64,
    pub(crate) kind: MemoryKind,
    pub(crate) access: Access,
    pub(crate) process: usize,
    pub(crate) port: usize,
}

impl Registered {
    /// Returns some of its bytes; `None` if it is hollow.
    pub(crate) fn bytes(&self, offset: usize, length: u64) -> Option<Box<[u8]>> {
        let region = self.region.as_ref()?;
        let mut bytes = vec![0; length as usize];
        region.read(offset, &mut bytes);
        Some(bytes.into_boxed_slice())
    }
}

/// All registrations of the world. A deregistered key stays invalid unless a later registration gets it.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    by_number: BTreeMap<u32, Registered>,
    made: u32,
    /// The last numbers that were given back, each with its port.
    given_back: VecDeque<(usize, u32)>,
}

/// The most numbers that are remembered to be given to a later registration.
const REMEMBERED: usize = 64;

/// The two keys of a registration: one for this side's work, and one for the peer's. Neither is valid in place of the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPair {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// The odd factor that scatters consecutive numbers over all keys, one to one, so that a slightly wrong key is invalid.
const SCATTER: u32 = 0x9e37_79b1;
/// The inverse of [`SCATTER`] modulo 2^32.
const GATHER: u32 = 0x0e8b_2f51;

impl Keys {
    pub(crate) fn add(&mut self, registered: Registered) -> KeyPair {
        self.made += 2;
        self.insert(self.made, registered)
    }

    /// Adds a registration under the keys that this port gave back last. Returns the registration if there are none.
    pub(crate) fn add_again(&mut self, registered: Registered) -> Result<KeyPair, Registered> {
        match self.given_back.iter().rposition(|(port, _)| *port == registered.port) {
            None => Err(registered),
            Some(found) => {
                let (_, number) = self.given_back.remove(found).expect("it was found");
                Ok(self.insert(number, registered))
            }
        }
    }

    fn insert(&mut self, number: u32, registered: Registered) -> KeyPair {
        self.by_number.insert(number, registered);
        KeyPair { local: number.wrapping_mul(SCATTER), remote: (number + 1).wrapping_mul(SCATTER) }
    }

    pub(crate) fn remove(&mut self, keys: KeyPair) -> Option<Registered> {
        let number = keys.local.wrapping_mul(GATHER);
        let removed = self.by_number.remove(&number)?;
        if self.given_back.len() == REMEMBERED {
            self.given_back.pop_front();
        }
        self.given_back.push_back((removed.port, number));
        Some(removed)
    }

    pub(crate) fn remove_process(&mut self, process: usize) {
        self.by_number.retain(|_, registered| registered.process != process);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    fn find(&self, number: u32, port: usize, address: u64, length: u64) -> Result<(&Registered, usize), &'static str> {
        let registered = self
            .by_number
            .get(&number)
            .filter(|found| found.port == port)
            .ok_or("the key is not registered on this port")?;
        let offset = address.checked_sub(registered.address).ok_or("the range begins before the registration")?;
        match offset.checked_add(length) {
            Some(end) if end <= registered.length => Ok((registered, offset as usize)),
            _ => Err("the range ends beyond the registration"),
        }
    }

    /// Finds the memory that this side's work names as its source, and the offset of the range in it.
    pub(crate) fn source(
        &self,
        port: usize,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<(&Registered, usize), &'static str> {
        self.find(key.wrapping_mul(GATHER), port, address, length)
    }

    /// Finds the memory that the peer's work names, and the offset of the range in it.
    pub(crate) fn target(
        &self,
        port: usize,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<(&Registered, usize), &'static str> {
        self.find(key.wrapping_mul(GATHER).wrapping_sub(1), port, address, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(address: u64) -> Registered {
        let region = Some(Arc::new(Region::new(64)));
        Registered { region, length: 64, address, kind: MemoryKind::Host, access: Access::DATA, process: 0, port: 3 }
    }

    #[test]
    fn keys_fit_only_their_purpose_their_port_and_their_range() {
        let mut keys = Keys::default();
        let pair = keys.add(registered(4096));
        assert!(keys.source(3, pair.local, 4096, 64).is_ok() && keys.target(3, pair.remote, 4100, 60).is_ok());
        assert!(keys.source(3, pair.remote, 4096, 1).is_err() && keys.target(3, pair.local, 4096, 1).is_err());
        assert!(keys.source(2, pair.local, 4096, 1).is_err());
        for (address, length) in [(4095, 1), (4096, 65), (4160, 1), (u64::MAX, 2)] {
            assert!(keys.target(3, pair.remote, address, length).is_err(), "{length} bytes at {address}");
        }
        assert!(keys.remove(pair).is_some() && keys.remove(pair).is_none());
        assert!(keys.target(3, pair.remote, 4096, 1).is_err());
        assert_eq!(keys.len(), 0);
    }

    #[test]
    fn a_key_comes_again_only_for_a_later_registration_of_its_port_that_asks_for_it() {
        let mut keys = Keys::default();
        let first = keys.add(registered(4096));
        assert!(keys.add_again(registered(0)).is_err(), "it is still in use");
        keys.remove(first);
        let other_port = Registered { port: 2, ..registered(0) };
        assert!(keys.add_again(other_port).is_err());
        assert_eq!(keys.add_again(registered(8192)).ok(), Some(first));
        assert!(keys.target(3, first.remote, 4096, 1).is_err() && keys.target(3, first.remote, 8192, 1).is_ok());
        assert!(keys.add_again(registered(0)).is_err(), "it was given away once");
    }

    #[test]
    fn a_new_key_never_comes_twice() {
        let mut keys = Keys::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let pair = keys.add(registered(0));
            assert!(seen.insert(pair.local) && seen.insert(pair.remote));
            keys.remove(pair);
        }
    }
}
