//! Work that may fail over every rail: the receiver's adapter refuses it because its memory is gone, or an adapter
//! cannot carry it out.
//!
//! An application that closes may deregister its memory before its BYE is here, and then nothing is lost. One that
//! still waits for the data, and has deregistered its buffers all the same, would be sent the refused parts over one
//! rail after the other. So they wait longer each time, and after a few times the connection ends.

use railweave_fabric::{LaneId, RailError};

use crate::recovery::GivenUp;
use crate::sequence::Sequence;

/// The times that a message may fail whose parts the receiver then calls unseen.
const MOST: u32 = 5;

/// The refusals of a connection.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The oldest message that had unseen parts after the last one.
    of: Option<Sequence>,
    /// The times that it has failed.
    count: u32,
    /// The time before which nothing is sent again.
    until_ns: u64,
}

/// The decision about parts that a receiver calls unseen after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// They go again, at the earliest at [`Refusals::until_ns`].
    Later,
    /// The connection ends.
    TooOften,
}

impl Refusals {
    /// Returns the failure for which a rail was given up, if its work may have been the reason.
    pub(super) fn of(why: &GivenUp) -> Option<(LaneId, RailError)> {
        match why {
            GivenUp::Lane { lane, error } if error.may_be_of_work() => Some((*lane, error.clone())),
            _ => None,
        }
    }

    /// Counts a failure after which the receiver calls parts unseen, those of `oldest` and later messages. The first
    /// pause is `pause_ns`, and each is twice as long as the one before.
    pub(super) fn count(&mut self, oldest: Sequence, pause_ns: u64, now_ns: u64) -> Refused {
        if self.of.replace(oldest) != Some(oldest) {
            self.count = 0;
        }
        self.count += 1;
        if self.count > MOST {
            return Refused::TooOften;
        }
        self.until_ns = now_ns.saturating_add(pause_ns << self.count);
        Refused::Later
    }

    /// Returns the time before which nothing is sent again.
    pub(super) fn until_ns(&self) -> u64 {
        self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_parts_wait_longer_each_time_and_not_more_than_five_times() {
        let mut refusals = Refusals::default();
        for message in [1, 2].map(Sequence::new) {
            for pause in [200, 400, 800, 1600, 3200] {
                assert_eq!((refusals.count(message, 100, 7), refusals.until_ns()), (Refused::Later, 7 + pause));
            }
        }
        assert_eq!(refusals.count(Sequence::new(2), 100, 7), Refused::TooOften);
    }
}
