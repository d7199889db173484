//! The pauses between two attempts to bring a rail up again. All times are multiples of the first pause, which is 100
//! ms.

use std::time::Duration;

/// The longest pause while the rail has been down for less than [`EARLY`], and later: a second in the first minute, ten
/// later.
const MOST_EARLY: u64 = 10;
const MOST: u64 = 100;
const EARLY: u64 = 600;

/// A rail that fails within this time of coming up flaps. One that stays up for [`STEADY`] has flapped enough.
const FLAP: u32 = 100;
const STEADY: u64 = 600;

/// Returns the time for which a rail must stay up so that its next failure is no flap, with this first pause.
pub(crate) fn flap_time(first: Duration) -> Duration {
    first.saturating_mul(FLAP)
}

/// The time after which a rail that does not come back is worth a word. Most cables are away for less.
const LATE: u64 = 100;

/// The time that an attempt has at each end until its lanes are connected.
const ATTEMPT: u64 = 30;

/// After this time an attempt takes long: over a path that works its sockets have come by then, even if the kernel had
/// to ask for the peer's hardware address a second time, which it does after 1 s, or the lane to be dialled again. So
/// events without end leave each attempt enough time.
const LONG: u64 = 15;

/// The least and the most time that connected lanes have for their first packets. The time is as long as the pause
/// before the next attempt, because the peer's adapter asks only once for a packet that it misses. If that request is
/// lost too, which happens where one direction of a path comes back before the other, the packet comes again when the
/// sending adapter's own timer is up (RAILWEAVE_ACK_TIMEOUT); new lanes are faster. Where the next attempt is far, slow
/// paths get their time.
const LEAST_PROOF: u64 = MOST_EARLY;
const MOST_PROOF: u64 = ATTEMPT;

/// An attempt begins no earlier than this part of the first pause after the one before it.
const LEAST_PART: u64 = 2;

/// The most offers of a peer in [`WINDOW`]: twice as many as link events without end cause.
const MOST_OFFERS: u32 = 256;
const WINDOW: u64 = 64;

/// The flaps that count, and those that count while no other rail carries anything: one that fails as soon as it is
/// back must not keep both hosts busy, and nothing moves until one is back.
const MOST_FLAPS: u32 = 7;
const FLAPS_ALONE: u32 = 2;

/// The pauses of one rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    first_ns: u64,
    up_since_ns: Option<u64>,
    down_since_ns: u64,
    flaps: u32,
    attempts: u32,
    /// The time at which the last attempt began, if there was one.
    began_ns: Option<u64>,
    /// The offers of the peer since this time.
    offers: (u64, u32),
    /// True once somebody was told why the rail does not come back.
    is_told: bool,
}

impl Pauses {
    /// Returns the pauses of a rail that is up, with this first one.
    pub(crate) fn new(first: Duration) -> Self {
        let first_ns = u64::try_from(first.as_nanos()).unwrap_or(u64::MAX).clamp(1, 1 << 40);
        Self {
            first_ns,
            up_since_ns: None,
            down_since_ns: 0,
            flaps: 0,
            attempts: 0,
            began_ns: None,
            offers: (0, 0),
            is_told: false,
        }
    }

    /// Returns the time that an attempt has at each end until its lanes are connected.
    pub(crate) fn attempt_ns(&self) -> u64 {
        self.first_ns * ATTEMPT
    }

    /// Returns the time that lanes have for their first packets if they are connected now. `is_alone`: no other rail
    /// carries anything.
    pub(crate) fn proof_ns(&self, is_alone: bool, now_ns: u64) -> u64 {
        self.coming_ns(is_alone, now_ns).clamp(self.first_ns * LEAST_PROOF, self.first_ns * MOST_PROOF)
    }

    /// Notes that an attempt begins.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.began_ns = Some(now_ns);
    }

    /// Returns the time from which the last attempt takes long.
    pub(crate) fn long_ns(&self) -> u64 {
        self.began_ns.unwrap_or(0).saturating_add(self.first_ns * LONG)
    }

    /// Notes that the peer offers new lanes. Returns false if it does so too often: each offer makes work here.
    pub(crate) fn may_be_offered(&mut self, now_ns: u64) -> bool {
        let (since_ns, count) = &mut self.offers;
        if now_ns.saturating_sub(*since_ns) >= self.first_ns * WINDOW {
            (*since_ns, *count) = (now_ns, 0);
        }
        *count += 1;
        *count <= MOST_OFFERS
    }

    /// Notes that the rail has failed. `was_useless` is true if it has carried nothing since it came up, although it
    /// should have: then it flaps, for however long it was up.
    pub(crate) fn went_down(&mut self, was_useless: bool, now_ns: u64) {
        if let Some(up_since_ns) = self.up_since_ns {
            let was_up_ns = now_ns.saturating_sub(up_since_ns);
            if was_useless || was_up_ns < self.first_ns * u64::from(FLAP) {
                self.flaps = (self.flaps + 1).min(MOST_FLAPS);
            } else if was_up_ns >= self.first_ns * STEADY {
                self.flaps = 0;
            }
        }
        (self.down_since_ns, self.attempts, self.is_told) = (now_ns, 0, false);
    }

    /// Notes that the rail has come up again. Returns the time for which it was down, in nanoseconds.
    pub(crate) fn came_up(&mut self, now_ns: u64) -> u64 {
        self.up_since_ns = Some(now_ns);
        now_ns.saturating_sub(self.down_since_ns)
    }

    /// Returns the time since which the rail is down.
    pub(crate) fn down_since_ns(&self) -> u64 {
        self.down_since_ns
    }

    /// Notes that an attempt has failed. Returns the time for which the rail has been down, in nanoseconds, if somebody
    /// is to be told why it does not come back: once, by the first attempt after [`LATE`].
    pub(crate) fn failed(&mut self, now_ns: u64) -> Option<u64> {
        let down_ns = now_ns.saturating_sub(self.down_since_ns);
        let is_due = down_ns >= self.first_ns * LATE && !self.is_told;
        self.is_told |= is_due;
        is_due.then_some(down_ns)
    }

    /// Returns the time of the next attempt, if the last one ended now: a pause after that began, or now if it took
    /// longer. `is_alone`: no other rail carries anything.
    pub(crate) fn next_ns(&mut self, is_alone: bool, now_ns: u64) -> u64 {
        let pause_ns = self.coming_ns(is_alone, now_ns);
        self.attempts += 1;
        let since_ns = self.began_ns.unwrap_or(0).max(self.down_since_ns);
        now_ns.max(since_ns.saturating_add(pause_ns))
    }

    /// Returns the pause before the next attempt.
    fn coming_ns(&self, is_alone: bool, now_ns: u64) -> u64 {
        let flaps = if is_alone { self.flaps.min(FLAPS_ALONE) } else { self.flaps };
        let is_early = now_ns.saturating_sub(self.down_since_ns) < self.first_ns * EARLY;
        let most = if is_early && (is_alone || flaps == 0) { MOST_EARLY } else { MOST };
        self.pause_ns(self.attempts + flaps, most)
    }

    /// Returns the latest time of the next attempt, now that no other rail carries anything.
    pub(crate) fn latest_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.pause_ns(self.attempts, MOST_EARLY))
    }

    /// Returns the earliest time of an attempt after an event that says that the rail may be back: a short time after
    /// the last one began, because a port may have such events without end. A rail that flaps waits all the same,
    /// unless no other carries anything.
    pub(crate) fn soonest_ns(&self, is_alone: bool, now_ns: u64) -> u64 {
        let least_ns = self.began_ns.map_or(0, |began_ns| began_ns.saturating_add(self.first_ns / LEAST_PART));
        let least_ns = now_ns.max(least_ns);
        if self.flaps == 0 || is_alone {
            return least_ns;
        }
        least_ns.max(self.down_since_ns.saturating_add(self.pause_ns(self.flaps, MOST)))
    }

    /// Returns the first pause, doubled this many times, up to `most` times the first.
    fn pause_ns(&self, doublings: u32, most: u64) -> u64 {
        (self.first_ns << doublings.min(16)).min(self.first_ns * most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const FIRST_NS: u64 = 100_000_000;
    const MINUTE_NS: u64 = 60_000_000_000;

    /// Returns the pauses, in milliseconds, of attempts that fail at once.
    fn pauses(pauses: &mut Pauses, mut now_ns: u64, count: usize) -> Vec<u64> {
        let next = |_| {
            pauses.begin(now_ns);
            let next_ns = pauses.next_ns(false, now_ns);
            let pause_ns = next_ns - now_ns;
            now_ns = next_ns;
            pause_ns / 1_000_000
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn attempts_are_a_second_apart_in_the_first_minute_and_ten_later() {
        let mut rail = Pauses::new(FIRST);
        rail.went_down(false, MINUTE_NS);
        assert_eq!(pauses(&mut rail, MINUTE_NS, 6), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pauses(&mut rail, 2 * MINUTE_NS, 2), [6400, 10_000]);
        assert_eq!(rail.attempt_ns(), 3_000_000_000);
    }

    #[test]
    fn first_packets_have_as_long_as_the_next_attempt_is_away_and_one_to_three_seconds() {
        let mut rail = Pauses::new(FIRST);
        rail.went_down(false, MINUTE_NS);
        let proofs = |rail: &Pauses, now_ns| [false, true].map(|is_alone| rail.proof_ns(is_alone, now_ns) / 1_000_000);
        assert_eq!(proofs(&rail, MINUTE_NS), [1000, 1000]);
        pauses(&mut rail, MINUTE_NS, 6);
        assert_eq!(proofs(&rail, 2 * MINUTE_NS - 1), [1000, 1000]);
        assert_eq!(proofs(&rail, 2 * MINUTE_NS), [3000, 3000], "the pause is 10 s");
        for _ in 0..5 {
            rail.came_up(2 * MINUTE_NS);
            rail.went_down(false, 2 * MINUTE_NS);
        }
        pauses(&mut rail, 2 * MINUTE_NS, 1);
        assert_eq!(proofs(&rail, 2 * MINUTE_NS), [3000, 1000], "it flaps");
    }

    #[test]
    fn a_pause_begins_with_the_attempt_before_it() {
        let mut rail = Pauses::new(FIRST);
        rail.went_down(false, MINUTE_NS);
        rail.begin(MINUTE_NS + FIRST_NS);
        assert_eq!(rail.next_ns(false, MINUTE_NS + FIRST_NS + 1), MINUTE_NS + 2 * FIRST_NS);
        let second_ns = MINUTE_NS + 2 * FIRST_NS;
        rail.begin(second_ns);
        let late_ns = second_ns + 2 * FIRST_NS + 1;
        assert_eq!(rail.next_ns(false, late_ns), late_ns, "it took longer than its pause");
        rail.went_down(false, 2 * MINUTE_NS);
        assert_eq!(rail.next_ns(false, 2 * MINUTE_NS), 2 * MINUTE_NS + FIRST_NS, "it is the first one");
    }

    #[test]
    fn the_first_failure_after_ten_seconds_is_told_once_for_each_time_that_the_rail_is_down() {
        let mut rail = Pauses::new(FIRST);
        for down_ns in [0, MINUTE_NS] {
            rail.went_down(false, down_ns);
            assert_eq!(rail.failed(down_ns + 100 * FIRST_NS - 1), None);
            assert_eq!(rail.failed(down_ns + 100 * FIRST_NS), Some(100 * FIRST_NS));
            assert_eq!(rail.failed(down_ns + 200 * FIRST_NS), None);
        }
    }

    #[test]
    fn offers_without_pauses_are_too_many_and_those_of_an_honest_peer_are_not() {
        let mut honest = Pauses::new(FIRST);
        assert!((0..1000).all(|offer| honest.may_be_offered(offer * FIRST_NS / 3)));
        let mut hasty = Pauses::new(FIRST);
        assert_eq!((0..1000).take_while(|offer| hasty.may_be_offered(offer * FIRST_NS / 5)).count(), 256);
    }

    #[test]
    fn link_events_without_end_make_no_more_offers_than_a_peer_takes() {
        let (mut rail, mut peer) = (Pauses::new(FIRST), Pauses::new(FIRST));
        let mut now_ns = MINUTE_NS;
        rail.went_down(false, now_ns);
        assert_eq!(rail.soonest_ns(false, now_ns), now_ns, "it is the first attempt");
        for _ in 0..1000 {
            // Each attempt fails at once, and an event comes at once.
            now_ns = rail.soonest_ns(false, now_ns);
            rail.begin(now_ns);
            assert!(peer.may_be_offered(now_ns));
        }
    }

    #[test]
    fn a_rail_that_flaps_waits_longer_each_time_and_one_that_is_steady_does_not() {
        let mut rail = Pauses::new(FIRST);
        let mut now_ns = MINUTE_NS;
        rail.went_down(false, now_ns);
        for first in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert_eq!(pauses(&mut rail, now_ns, 1), [first]);
            let soonest = if first == 100 { 50 } else { first };
            assert_eq!((rail.soonest_ns(false, now_ns) - now_ns) / 1_000_000, soonest);
            assert_eq!(rail.soonest_ns(true, now_ns), now_ns + FIRST_NS / 2);
            assert_eq!(rail.came_up(now_ns + 7), 7);
            now_ns += 100 * FIRST_NS - 1;
            rail.went_down(false, now_ns);
        }
        rail.came_up(now_ns);
        now_ns += MINUTE_NS - 1;
        rail.went_down(false, now_ns);
        assert_eq!(pauses(&mut rail, now_ns, 1), [10_000], "it was not steady for long enough");
        for (latest, next) in [(200, 800), (400, 1000), (800, 1000), (1000, 1000)] {
            assert_eq!((rail.latest_ns(now_ns) - now_ns) / 1_000_000, latest, "there is no other rail");
            assert_eq!((rail.next_ns(true, now_ns) - now_ns) / 1_000_000, next);
        }
        rail.came_up(now_ns);
        rail.went_down(false, now_ns + MINUTE_NS);
        assert_eq!(pauses(&mut rail, now_ns + MINUTE_NS, 1), [100]);
        rail.came_up(now_ns + MINUTE_NS);
        rail.went_down(true, now_ns + 3 * MINUTE_NS);
        assert_eq!(pauses(&mut rail, now_ns + 3 * MINUTE_NS, 1), [200], "it has carried nothing");
    }
}
