//! The pauses between two attempts to bring a rail up again.

const MILLISECOND_NS: u64 = 1_000_000;

/// The first pause, which each attempt doubles.
const FIRST_NS: u64 = 100 * MILLISECOND_NS;

/// The longest pause while the rail has been down for less than [`EARLY_NS`], and later.
const MOST_EARLY_NS: u64 = 1_000 * MILLISECOND_NS;
const MOST_NS: u64 = 10_000 * MILLISECOND_NS;
const EARLY_NS: u64 = 60_000 * MILLISECOND_NS;

/// A rail that fails within this time of coming up flaps. One that stays up for [`STEADY_NS`] has flapped enough.
const FLAP_NS: u64 = 10_000 * MILLISECOND_NS;
const STEADY_NS: u64 = 60_000 * MILLISECOND_NS;

/// The flaps that count.
const MOST_FLAPS: u32 = 7;

/// The pauses of one rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    up_since_ns: u64,
    down_since_ns: u64,
    flaps: u32,
    attempts: u32,
}

impl Pauses {
    /// Notes that the rail has failed.
    pub(crate) fn went_down(&mut self, now_ns: u64) {
        let was_up_ns = now_ns.saturating_sub(self.up_since_ns);
        let has_come_back = self.up_since_ns > 0;
        if has_come_back && was_up_ns < FLAP_NS {
            self.flaps = (self.flaps + 1).min(MOST_FLAPS);
        } else if was_up_ns >= STEADY_NS {
            self.flaps = 0;
        }
        (self.down_since_ns, self.attempts) = (now_ns, 0);
    }

    /// Notes that the rail has come up again. Returns the time for which it was down, in nanoseconds.
    pub(crate) fn came_up(&mut self, now_ns: u64) -> u64 {
        self.up_since_ns = now_ns.max(1);
        now_ns.saturating_sub(self.down_since_ns)
    }

    /// Returns the time of the next attempt, if the last one ended now.
    pub(crate) fn next_ns(&mut self, now_ns: u64) -> u64 {
        let is_early = now_ns.saturating_sub(self.down_since_ns) < EARLY_NS;
        let most_ns = if is_early && self.flaps == 0 { MOST_EARLY_NS } else { MOST_NS };
        let doublings = (self.attempts + self.flaps).min(16);
        self.attempts += 1;
        now_ns.saturating_add((FIRST_NS << doublings).min(most_ns))
    }

    /// Returns the earliest time of an attempt after an event that says that the rail may be back. A rail that flaps
    /// waits all the same.
    pub(crate) fn soonest_ns(&self, now_ns: u64) -> u64 {
        if self.flaps == 0 {
            return now_ns;
        }
        now_ns.max(self.down_since_ns.saturating_add((FIRST_NS << self.flaps).min(MOST_NS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses, in milliseconds, of attempts that fail at once.
    fn pauses(pauses: &mut Pauses, mut now_ns: u64, count: usize) -> Vec<u64> {
        let next = |_| {
            let next_ns = pauses.next_ns(now_ns);
            let pause_ns = next_ns - now_ns;
            now_ns = next_ns;
            pause_ns / MILLISECOND_NS
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn attempts_are_a_second_apart_in_the_first_minute_and_ten_later() {
        let mut rail = Pauses::default();
        rail.went_down(EARLY_NS);
        assert_eq!(pauses(&mut rail, EARLY_NS, 6), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pauses(&mut rail, 2 * EARLY_NS, 2), [6400, 10_000]);
    }

    #[test]
    fn a_rail_that_flaps_waits_longer_each_time_and_one_that_is_steady_does_not() {
        let mut rail = Pauses::default();
        let mut now_ns = EARLY_NS;
        rail.went_down(now_ns);
        for first in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert_eq!(pauses(&mut rail, now_ns, 1), [first]);
            let soonest = if first == 100 { 0 } else { first };
            assert_eq!((rail.soonest_ns(now_ns) - now_ns) / MILLISECOND_NS, soonest);
            assert_eq!(rail.came_up(now_ns + 7), 7);
            now_ns += FLAP_NS - 1;
            rail.went_down(now_ns);
        }
        rail.came_up(now_ns);
        now_ns += STEADY_NS - 1;
        rail.went_down(now_ns);
        assert_eq!(pauses(&mut rail, now_ns, 1), [10_000], "it was not steady for long enough");
        rail.came_up(now_ns);
        rail.went_down(now_ns + STEADY_NS);
        assert_eq!(pauses(&mut rail, now_ns + STEADY_NS, 1), [100]);
    }
}
