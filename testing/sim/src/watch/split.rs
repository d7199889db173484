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
    /// The weight of each rail that may carry data, otherwise 0.
    weights: [u64; 8],
    /// Messages below this size go over one rail.
    split_min: u64,
    carried: [u64; 8],
}

impl Split {
    /// Returns the rules for rails of these weights, of which those in the mask `usable` came up. If none of those has
    /// a weight, the first carries everything.
    pub(crate) fn new(mut weights: [u64; 8], usable: u8, split_min: u64) -> Self {
        weights.iter_mut().enumerate().filter(|(rail, _)| usable & 1 << rail == 0).for_each(|(_, weight)| *weight = 0);
        let first = usable.trailing_zeros() as usize;
        if weights == [0; 8] && first < 8 {
            weights[first] = 1;
        }
        Self { weights, split_min, carried: [0; 8] }
    }

    /// Returns the rails over which CTS go, as a mask: all rails with a weight if their weights are equal, otherwise the
    /// first of those with the largest.
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
