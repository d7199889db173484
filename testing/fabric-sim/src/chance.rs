//! The source of chance: one generator per seed, and a few ways to draw from it.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Seeded random numbers. The same seed gives the same numbers on every machine and in every build.
#[derive(Clone, Debug)]
pub struct Chance(Pcg64Mcg);

impl Chance {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a number; each of the 2^64 is equally likely.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of a product: no division, and a bias far below what matters here.
        ((u128::from(self.any()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included. `low` must not be above `high`, and the two must not span
    /// all 2^64 numbers.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns an index below `count`, or 0 if `count` is 0.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Returns true in `permille` of 1000 cases, always from 1000 on. Draws nothing if `permille` is 0.
    pub fn permille(&mut self, permille: u32) -> bool {
        permille > 0 && self.below(1000) < u64::from(permille)
    }

    /// Returns a number of an exponential distribution with this mean, roughly: it is even between two halvings. Draws
    /// nothing if the mean is 0.
    pub fn around(&mut self, mean: u64) -> u64 {
        if mean == 0 {
            return 0;
        }
        // The number of halvings is 1 on average, and the place between two of them a half.
        let halvings = u64::from(self.any().trailing_ones());
        let step = mean * 2 / 3;
        halvings * step + self.below(step + 1)
    }

    /// Returns one of these items.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_forever() {
        let mut chance = Chance::new(42);
        assert_eq!([chance.any(), chance.any()], [10_580_897_095_847_554_459, 2_459_073_333_136_617_071]);
    }

    #[test]
    fn draws_stay_in_their_bounds() {
        let mut chance = Chance::new(1);
        for limit in [1, 2, 7, 1 << 40] {
            assert!((0..1000).all(|_| chance.below(limit) < limit));
        }
        assert_eq!(chance.below(0), 0);
        let drawn: Vec<u64> = (0..100).map(|_| chance.between(3, 5)).collect();
        assert!((3..=5).all(|wanted| drawn.contains(&wanted)) && drawn.iter().all(|one| (3..=5).contains(one)));
        let sum: u64 = (0..10_000).map(|_| chance.around(300)).sum();
        assert!((290..310).contains(&(sum / 10_000)) && chance.around(0) == 0);
        assert!((0..100).all(|_| chance.permille(1000) && !chance.permille(0)));
    }
}
