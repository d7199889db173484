//! The rules for the bytes that each rail carries (docs/wire.md, Data, and the option `weights`), with bounds that hold
//! for every history of messages.

use super::checker::{Checked, Checker};

/// The size of a piece is a multiple of this many bytes; a message that is no longer goes over one rail.
const GRANULE: u64 = 128;

/// The bytes by which messages that go over one rail may put it ahead of its weight before another rail takes them.
const AHEAD: u64 = 256 << 10;

/// The bytes of such messages after which their rail is chosen again.
const CHOSEN_FOR: u64 = 16 << 10;

/// The least that a message may pay back of what earlier messages have put a rail ahead or behind. It counts twice,
/// because the last rail may have fewer bytes than that, and the others get what it cannot pay.
const PAID_BACK: u64 = 2 * 256;

/// The weights of a connection's rails, and the bytes that the rails have carried.
#[derive(Debug, Default)]
pub(crate) struct Split {
    /// The weights that the rails were given.
    given: [u64; 8],
    /// The weight of each rail that may carry data, otherwise 0.
    weights: [u64; 8],
    /// The rails that an order allows, as a mask; if none of them is usable, all are allowed.
    allowed: u8,
    /// True if it begins with an order, otherwise with a rail that fails or comes back.
    pub(super) is_ordered: bool,
    /// True if a message may be split in any way between the rails that have a weight.
    pub(super) is_free: bool,
    /// True if no rail that came up has a weight of its own.
    pub(crate) is_void: bool,
    /// Messages below this size go over one rail.
    split_min: u64,
    carried: [u64; 8],
}

impl Split {
    /// Returns the rules for rails of these weights, of which those in the mask `usable` came up. If none of those has
    /// a weight, the first carries everything.
    pub(crate) fn new(given: [u64; 8], usable: u8, split_min: u64) -> Self {
        let mut weights = given;
        weights.iter_mut().enumerate().filter(|(rail, _)| usable & 1 << rail == 0).for_each(|(_, weight)| *weight = 0);
        let first = usable.trailing_zeros() as usize;
        let is_void = weights == [0; 8];
        if is_void && first < 8 {
            weights[first] = 1;
        }
        Self { given, weights, allowed: u8::MAX, is_ordered: true, is_free: false, is_void, split_min, carried: [0; 8] }
    }

    /// Returns the same rules for an order that allows the rails in this mask.
    pub(crate) fn allowing(self, allowed: u8) -> Self {
        Self { allowed, ..self }
    }

    /// Returns the same rules for the time in which only the rails in the mask `usable` carry data.
    pub(super) fn over(&self, usable: u8) -> Self {
        let allowed = usable & self.allowed;
        let rules = Self::new(self.given, if allowed == 0 { usable } else { allowed }, self.split_min);
        Self { allowed: self.allowed, is_ordered: false, is_free: self.is_free, ..rules }
    }

    /// Returns the rules for rails that the adaptive policy uses as it likes, of which those in the mask `usable` came
    /// up.
    pub(crate) fn free(usable: u8, split_min: u64) -> Self {
        Self { is_free: true, ..Self::new([1; 8], usable, split_min) }
    }

    /// Returns the rails over which CTS go, as a mask: all rails with a weight if their weights are equal, otherwise
    /// the first of those with the largest.
    pub(crate) fn cts_rails(&self) -> u8 {
        let most = self.weights.iter().max().copied().unwrap_or(0);
        let heaviest = (0..8).filter(|rail| self.weights[*rail] == most).fold(0, |mask, rail| mask | 1 << rail);
        let are_equal = self.weights.iter().all(|weight| *weight == most || *weight == 0);
        if are_equal { heaviest } else { 1 << heaviest.trailing_zeros() }
    }

    /// Returns the share of a rail in this many bytes, rounded down.
    fn ideal(&self, rail: usize, bytes: u64) -> u64 {
        let sum: u128 = self.weights.iter().map(|weight| u128::from(*weight)).sum();
        (u128::from(bytes) * u128::from(self.weights[rail])).checked_div(sum).unwrap_or(0) as u64
    }

    /// Checks the bytes by which each rail carried a message that has landed whole.
    pub(super) fn message_landed(&mut self, carried: [u64; 8]) -> Checked {
        self.carried.iter_mut().zip(carried).for_each(|(sum, bytes)| *sum += bytes);
        self.check_message(carried)
    }

    fn check_message(&self, carried: [u64; 8]) -> Checked {
        let size: u64 = carried.iter().sum();
        let wrong = |rule: &str| {
            let text = format!("the rails carried {carried:?} bytes of a message: {rule} (weights {:?})", self.weights);
            Err((Checker::Split, text))
        };
        if carried.iter().zip(self.weights).any(|(bytes, weight)| *bytes > 0 && weight == 0) {
            return wrong("a rail without weight carried some");
        }
        if size < self.split_min || size <= GRANULE {
            let carriers = carried.iter().filter(|bytes| **bytes > 0).count();
            return if carriers > 1 { wrong("it is too short for more than one rail") } else { Ok(()) };
        }
        if self.is_free {
            return Ok(());
        }
        let active = self.weights.iter().filter(|weight| **weight > 0).count() as u64;
        let least = (0..8).filter(|rail| self.weights[*rail] > 0).map(|rail| self.ideal(rail, size)).min();
        let bound = (least.unwrap_or(0) / 4).max(PAID_BACK) + GRANULE * (active + 2);
        match (0..8).find(|rail| carried[*rail].abs_diff(self.ideal(*rail, size)) > bound) {
            Some(rail) => wrong(&format!("rail {rail} is more than {bound} bytes from its share of one message")),
            None => Ok(()),
        }
    }

    /// Checks the bytes by which each rail carried all messages of a connection.
    pub(super) fn check_all(&self) -> Checked {
        if self.is_free {
            return Ok(());
        }
        let total: u64 = self.carried.iter().sum();
        let active = self.weights.iter().filter(|weight| **weight > 0).count() as u64;
        let bound = AHEAD + active * (CHOSEN_FOR + self.split_min.max(GRANULE) + 2 * GRANULE);
        let is_far = |rail: &usize| self.carried[*rail].abs_diff(self.ideal(*rail, total)) > bound;
        match (0..8).find(is_far) {
            Some(rail) => Err((
                Checker::Split,
                format!(
                    "rail {rail} is more than {bound} bytes from its share of all messages: the rails carried {:?} \
                     bytes (weights {:?})",
                    self.carried, self.weights
                ),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of the finding for messages of two rails, given by the bytes of each rail, and of all of them.
    fn found(weights: [u64; 2], split_min: u64, messages: &[[u64; 2]]) -> String {
        let mut all = [0; 8];
        all[..2].copy_from_slice(&weights);
        let mut split = Split::new(all, 0b11, split_min);
        let landed =
            messages.iter().try_for_each(|[first, second]| split.message_landed([*first, *second, 0, 0, 0, 0, 0, 0]));
        landed.and_then(|()| split.check_all()).err().map_or_else(String::new, |(_, text)| text)
    }

    #[test]
    fn a_large_message_may_pay_back_a_quarter_of_the_smallest_share() {
        assert_eq!(found([3, 1], 0, &[[786_432, 262_144]]), "");
        assert_eq!(found([3, 1], 0, &[[720_896, 327_680]]), "");
        assert!(found([3, 1], 0, &[[655_360, 393_216]]).contains("from its share of one message"));
        assert!(found([1, 1], 0, &[[1 << 20, 0]]).contains("from its share of one message"));
    }

    #[test]
    fn a_message_below_the_limit_goes_over_one_rail() {
        assert_eq!(found([1, 1], 8192, &[[8191, 0], [0, 1], [4096, 4096]]), "");
        assert!(found([1, 1], 8193, &[[4096, 4096]]).contains("too short for more than one rail"));
        assert!(found([1, 1], 0, &[[64, 64]]).contains("too short for more than one rail"));
    }

    #[test]
    fn the_adaptive_policy_uses_the_rails_that_came_up_as_it_likes() {
        let landed = |usable, carried| Split::free(usable, 8192).message_landed(carried).is_ok();
        assert!(landed(0b11, [1 << 20, 0, 0, 0, 0, 0, 0, 0]) && landed(0b11, [512, 1 << 20, 0, 0, 0, 0, 0, 0]));
        assert!(!landed(0b01, [512, 1 << 20, 0, 0, 0, 0, 0, 0]), "one did not come up");
        assert!(!landed(0b11, [4096, 2048, 0, 0, 0, 0, 0, 0]), "too short for two rails");
        assert_eq!(Split::free(0b101, 0).cts_rails(), 0b101);
    }

    #[test]
    fn a_rail_that_is_down_carries_nothing_and_then_its_share_again() {
        let weights = [1, 1, 2, 0, 0, 0, 0, 0];
        let landed = |split: &mut Split, carried: [u64; 3]| {
            let mut all = [0; 8];
            all[..3].copy_from_slice(&carried);
            split.message_landed(all).is_ok()
        };
        let mut split = Split::new(weights, 0b111, 0);
        assert!(landed(&mut split, [1 << 20, 1 << 20, 2 << 20]));
        let mut without = split.over(0b011);
        assert!(landed(&mut without, [1 << 20, 1 << 20, 0]) && !landed(&mut without, [1 << 20, 1 << 20, 128]));
        let mut again = without.over(0b111);
        assert!(landed(&mut again, [1 << 20, 1 << 20, 2 << 20]) && !landed(&mut again, [1 << 20, 1 << 20, 0]));
        let mut allowed = Split::new(weights, 0b100, 0).allowing(0b100).over(0b011);
        assert!(landed(&mut allowed, [1 << 20, 1 << 20, 0]), "no rail that the order allows is left");
        allowed = allowed.over(0b111);
        assert!(landed(&mut allowed, [0, 0, 1 << 20]) && !landed(&mut allowed, [1 << 20, 0, 1 << 20]));
    }

    #[test]
    fn a_rail_without_weight_carries_something_only_if_no_other_has_one() {
        assert!(found([1, 0], 8192, &[[0, 1]]).contains("a rail without weight"));
        assert_eq!(found([0, 0], 8192, &[[1, 0]]), "");
        assert!(found([0, 0], 8192, &[[0, 1]]).contains("a rail without weight"));
    }

    #[test]
    fn messages_on_one_rail_even_out_in_the_long_run() {
        let one_rail = vec![[8000, 0]; 1000];
        assert!(found([1, 1], 8192, &one_rail).contains("from its share of all messages"));
        assert_eq!(found([1, 1], 8192, &one_rail[..50]), "");
        let turns = [vec![[8000, 0]; 30], vec![[0, 8000]; 30]].concat().repeat(20);
        assert_eq!(found([1, 1], 8192, &turns), "");
    }

    #[test]
    fn cts_go_over_rails_of_equal_weight_or_over_the_heaviest() {
        let rails = |weights: [u64; 3], usable| {
            let mut all = [0; 8];
            all[..3].copy_from_slice(&weights);
            Split::new(all, usable, 0).cts_rails()
        };
        assert_eq!(rails([3, 3, 3], 0b111), 0b111);
        assert_eq!(rails([3, 0, 3], 0b111), 0b101);
        assert_eq!(rails([1, 4, 4], 0b111), 0b010);
        assert_eq!(rails([1, 4, 4], 0b101), 0b100);
        assert_eq!(rails([0, 0, 0], 0b110), 0b010);
    }
}
