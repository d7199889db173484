//! The numbers that collectives carry in tests. They follow from rank, round and index alone. They are small integers,
//! so that sums of float32 are exact, and they vary from place to place, so that data in the wrong place is noticed.

use std::fmt;
use std::ops::Range;

/// Values are below this, so a sum over up to [`MAX_RANKS`] ranks stays below 2^24, where float32 holds every integer.
pub const VALUE_LIMIT: u32 = 1 << 16;

/// The largest number of ranks whose sum is exact.
pub const MAX_RANKS: usize = 256;

/// Returns the value of element `index` in the buffer of `rank` in `round`.
#[must_use]
pub fn value(rank: usize, round: u64, index: usize) -> u32 {
    // Multiplication by odd constants spreads the input to the high bits, which are used.
    let seed = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mixed = (index as u64 ^ seed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 48) as u32
}

/// Fills `data` with the values of `rank` in `round` for the indices from `first` on.
pub fn fill(data: &mut [f32], rank: usize, round: u64, first: usize) {
    for (element, index) in data.iter_mut().zip(first..) {
        *element = value(rank, round, index) as f32;
    }
}

/// Checks that `data` holds, from index `first` on, the sum of the values of `ranks`; for one rank, its values.
///
/// Every bit of `data` counts. A bit flipped on the way into a sum may be too small for the sum's float32; then it is
/// not in the result and cannot be noticed here. Collectives that only move data reveal each bit.
///
/// # Errors
/// If an element differs: the first one, and the number of those that differ.
pub fn check(data: &[f32], ranks: Range<usize>, round: u64, first: usize) -> Result<(), Mismatch> {
    let mut mismatch: Option<Mismatch> = None;
    for (place, (element, index)) in data.iter().zip(first..).enumerate() {
        let sum: u64 = ranks.clone().map(|rank| u64::from(value(rank, round, index))).sum();
        let expected = sum as f32;
        // Bits are compared, not values: a negative zero or a not-a-number must be noticed too.
        if element.to_bits() != expected.to_bits() {
            mismatch
                .get_or_insert(Mismatch { place, found: *element, expected, count: 0, length: data.len() })
                .count += 1;
        }
    }
    mismatch.map_or(Ok(()), Err)
}

/// A difference between data and the expected values.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The index of the first wrong element in the buffer.
    pub place: usize,
    /// Its value.
    pub found: f32,
    /// The expected value.
    pub expected: f32,
    /// The number of wrong elements.
    pub count: usize,
    /// The number of elements that were checked.
    pub length: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, found, expected, count, length } = self;
        write!(f, "{count} of {length} elements are wrong, first element {place}: found {found}, expected {expected}")
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_shift_is_noticed() {
        let mut data = vec![0.0; 1000];
        fill(&mut data, 3, 7, 500);
        check(&data, 3..4, 7, 500).unwrap();
        for bit in 0..32 {
            let mut wrong = data.clone();
            wrong[123] = f32::from_bits(wrong[123].to_bits() ^ (1 << bit));
            let mismatch = check(&wrong, 3..4, 7, 500).unwrap_err();
            assert_eq!((mismatch.place, mismatch.count), (123, 1));
        }
        let shifted = check(&data, 3..4, 7, 501).unwrap_err();
        assert!(shifted.count > 900, "{shifted}");
        assert!(check(&data, 2..3, 7, 500).unwrap_err().count > 900);
        assert!(check(&data, 3..4, 8, 500).unwrap_err().count > 900);
    }

    #[test]
    fn values_stay_below_the_limit_and_use_its_whole_range() {
        let all: Vec<u32> = (0..100_000).map(|index| value(1, 1, index)).collect();
        assert!(all.iter().all(|value| *value < VALUE_LIMIT));
        assert!(all.iter().any(|value| *value < 32) && all.iter().any(|value| *value >= VALUE_LIMIT - 32));
        assert!(VALUE_LIMIT as usize * MAX_RANKS <= 1 << 24);
    }
}
