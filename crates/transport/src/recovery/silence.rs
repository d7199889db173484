//! Rails that fall silent: work is on its way over them and nothing comes back, although the peer is alive. An adapter
//! or a kernel sends such work again for many seconds before it reports a failure, or forever.
//!
//! A rail is judged by its oldest work: while that stays the same, nothing that was posted later has come back either.
//! Silence alone is no failure, because the peer may stand still, or its host be gone. It counts once something else of
//! the peer was heard since it began: its session, or another rail. A false alarm costs new lanes, never data, and
//! makes the rail's time longer: it shows in that work ends over the rail again at once. That it is back shows little:
//! new lanes carry their first packets, and perhaps nothing else.

use std::time::Duration;

use railweave_fabric::{MAX_RAILS, RailId};

/// The times by which a look at an end judges silences, in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct Hearing {
    /// The present.
    pub now_ns: u64,
    /// The time at which anything last came from the peer's process over its session.
    pub heard_ns: u64,
}

/// The result of a look at an end's rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hush {
    /// Nothing is on its way: no other look is needed until the application has posted something.
    Idle,
    /// Something is on its way.
    Busy,
    /// A rail has been silent for a part of its time, and nothing was heard of the peer since. Ask its session if it is
    /// alive: otherwise nobody knows.
    Doubtful,
}

/// The time of a rail is at most 2^`MOST_DOUBLINGS` times as long as the first: a rail that loses only what is long, or
/// only for moments, must not hold work up ever longer.
const MOST_DOUBLINGS: u32 = 4;

/// A rail over which work ends again within this many times of its first time was silent for a moment only: a false
/// alarm.
const AT_ONCE: u64 = 4;

/// A rail has its first time again once it has not fallen silent for this many of its present times.
const TIMES_OF_PEACE: u64 = 64;

/// A rail whose speed nobody knows counts as one of this many Mbit/s.
const UNKNOWN_MBPS: u64 = 1000;

/// A piece of work may have a hundredth of its rail's speed: others use the rail too.
const SHARE: u64 = 100;

/// The silences of an end's rails.
#[derive(Debug)]
pub(crate) struct Silences {
    /// The time for which a rail may be silent; 0 for any.
    timeout_ns: u64,
    rails: [Silence; MAX_RAILS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// The mark of the oldest work on its way.
    mark: Option<u64>,
    /// The time since when nothing has come back.
    since_ns: Option<u64>,
    /// The time of the last look that found that something had come back.
    moved_ns: Option<u64>,
    doublings: u32,
    /// The time at which it fell silent, for the first time since something had come over it.
    fell_ns: u64,
    /// True from then on until something comes over it again.
    has_fallen: bool,
    /// True if it has fallen silent again before that.
    has_fallen_again: bool,
}

/// Work on its way over a rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oldest {
    /// Any number, as long as other work has another one.
    pub(crate) mark: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
}

impl Silences {
    /// Returns the silences of an end whose rails may be silent for this time; zero for any.
    pub(crate) fn new(timeout: Duration) -> Self {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX >> MOST_DOUBLINGS);
        Self { timeout_ns, rails: [Silence::default(); MAX_RAILS] }
    }

    /// Returns true if silence is never a failure.
    pub(crate) fn are_ignored(&self) -> bool {
        self.timeout_ns == 0
    }

    /// Notes the oldest work that a rail has on its way.
    pub(crate) fn note_oldest(&mut self, rail: RailId, mark: Option<u64>, now_ns: u64) {
        let one = &mut self.rails[rail];
        if one.mark != mark {
            let has_moved = one.mark.is_some();
            one.since_ns = mark.map(|_| now_ns);
            one.mark = mark;
            if has_moved {
                self.note_moved(rail, now_ns);
            }
        }
    }

    /// Notes that something has come over a rail.
    pub(crate) fn note_moved(&mut self, rail: RailId, now_ns: u64) {
        let one = &mut self.rails[rail];
        one.moved_ns = Some(now_ns);
        if std::mem::take(&mut one.has_fallen) {
            let was_away_ns = now_ns.saturating_sub(one.fell_ns);
            let is_false = was_away_ns < self.timeout_ns.saturating_mul(AT_ONCE);
            one.doublings = if is_false { (one.doublings + 1).min(MOST_DOUBLINGS) } else { 0 };
            one.has_fallen_again = false;
        }
    }

    /// Returns true if a rail has fallen silent at least twice since something last came over it.
    pub(crate) fn has_fallen_again(&self, rail: RailId) -> bool {
        self.rails[rail].has_fallen_again
    }

    /// Notes for how long a rail's peer has acknowledged nothing that is on its way to it. A fabric that knows this
    /// knows more than the oldest work tells.
    pub(crate) fn note_silent_for(&mut self, rail: RailId, silent: Duration, now_ns: u64) {
        let silent_ns = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
        self.rails[rail].since_ns = (silent_ns > 0).then(|| now_ns.saturating_sub(silent_ns));
    }

    /// Forgets the work of a rail: it has new lanes, or none.
    pub(crate) fn forget(&mut self, rail: RailId) {
        (self.rails[rail].mark, self.rails[rail].since_ns) = (None, None);
    }

    /// Judges a rail whose oldest work has this many bytes, and whose reported speed is `mbps`. Returns the time for
    /// which it has been silent once that is too long; otherwise the result of the look.
    pub(crate) fn judge(
        &mut self,
        rail: RailId,
        bytes: u64,
        mbps: Option<u32>,
        Hearing { now_ns, heard_ns }: Hearing,
    ) -> Result<Hush, Duration> {
        let one = &mut self.rails[rail];
        let limit_ns = self.timeout_ns << one.doublings;
        if one.doublings > 0 && now_ns.saturating_sub(one.fell_ns) >= limit_ns.saturating_mul(TIMES_OF_PEACE) {
            one.doublings = 0;
        }
        let Some(since_ns) = one.since_ns else {
            return Ok(if one.mark.is_some() { Hush::Busy } else { Hush::Idle });
        };
        let silent_ns = now_ns.saturating_sub(since_ns);
        let slowest_mbps = mbps.map_or(UNKNOWN_MBPS, u64::from).max(SHARE) / SHARE;
        let limit_ns = limit_ns.saturating_add(bytes.saturating_mul(8000) / slowest_mbps);
        let is_alive = heard_ns > since_ns || self.others_moved_after(rail, since_ns);
        match () {
            () if is_alive && silent_ns >= limit_ns => {
                let one = &mut self.rails[rail];
                if std::mem::replace(&mut one.has_fallen, true) {
                    one.has_fallen_again = true;
                } else {
                    one.fell_ns = now_ns;
                }
                self.forget(rail);
                Err(Duration::from_nanos(silent_ns))
            }
            () if !is_alive && silent_ns >= limit_ns / 2 => Ok(Hush::Doubtful),
            () => Ok(Hush::Busy),
        }
    }

    fn others_moved_after(&self, rail: RailId, since_ns: u64) -> bool {
        let moved_ns = |other: RailId| self.rails[other].moved_ns.is_some_and(|moved_ns| moved_ns > since_ns);
        RailId::all().filter(|other| *other != rail).any(moved_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rail(number: usize) -> RailId {
        RailId::new(number).unwrap()
    }

    fn silences() -> Silences {
        Silences::new(Duration::from_millis(500))
    }

    /// Looks at rail 0, whose oldest work has this mark, at this time in milliseconds.
    fn look(silences: &mut Silences, mark: Option<u64>, now: u64, heard: u64) -> Result<Hush, u64> {
        silences.note_oldest(rail(0), mark, now * MS);
        let hearing = Hearing { now_ns: now * MS, heard_ns: heard * MS };
        silences.judge(rail(0), 0, Some(100_000), hearing).map_err(|silent| silent.as_millis() as u64)
    }

    #[test]
    fn a_rail_is_silent_once_its_oldest_work_has_been_out_for_its_time_and_the_peer_was_heard() {
        let mut one = silences();
        assert_eq!(look(&mut one, Some(1), 100, 50), Ok(Hush::Busy));
        assert_eq!(look(&mut one, Some(1), 349, 50), Ok(Hush::Busy));
        assert_eq!(look(&mut one, Some(1), 350, 50), Ok(Hush::Doubtful));
        assert_eq!(look(&mut one, Some(1), 700, 100), Ok(Hush::Doubtful), "it was heard before");
        assert_eq!(look(&mut one, Some(1), 701, 101), Err(601));
        let mut early = silences();
        assert_eq!(look(&mut early, Some(1), 100, 50), Ok(Hush::Busy));
        assert_eq!(look(&mut early, Some(1), 599, 598), Ok(Hush::Busy));
        assert_eq!(look(&mut early, Some(1), 600, 598), Err(500));
    }

    #[test]
    fn a_rail_that_moves_or_is_idle_is_not_silent() {
        let mut one = silences();
        for now in 0..40 {
            assert_eq!(look(&mut one, Some(now), now * 400, now * 400), Ok(Hush::Busy));
        }
        assert_eq!(look(&mut one, None, 16_000, 16_000), Ok(Hush::Idle));
        assert_eq!(look(&mut one, Some(39), 50_000, 50_000), Ok(Hush::Busy), "it is other work by now");
        one.forget(rail(0));
        assert_eq!(one.judge(rail(0), 0, None, Hearing { now_ns: u64::MAX, heard_ns: u64::MAX }), Ok(Hush::Idle));
    }

    #[test]
    fn another_rail_shows_that_the_peer_is_alive() {
        let mut two = silences();
        assert_eq!(look(&mut two, Some(1), 100, 0), Ok(Hush::Busy));
        two.note_oldest(rail(1), Some(7), 100 * MS);
        two.note_oldest(rail(1), Some(7), 300 * MS);
        assert_eq!(look(&mut two, Some(1), 600, 0), Ok(Hush::Doubtful), "nothing has come back over it");
        two.note_oldest(rail(1), Some(8), 600 * MS);
        assert_eq!(look(&mut two, Some(1), 601, 0), Err(501));
        let mut moved = silences();
        assert_eq!(look(&mut moved, Some(1), 100, 0), Ok(Hush::Busy));
        moved.note_moved(rail(0), 200 * MS);
        assert_eq!(look(&mut moved, Some(1), 600, 0), Ok(Hush::Doubtful), "no other rail");
        moved.note_moved(rail(1), 200 * MS);
        assert_eq!(look(&mut moved, Some(1), 600, 0), Err(500));
    }

    #[test]
    fn a_long_piece_has_its_time_at_a_hundredth_of_the_speed() {
        for (mbps, bytes, more) in [(Some(100_000), 1 << 20, 8), (None, 1 << 20, 838), (Some(10), 1000, 8)] {
            let mut one = silences();
            one.note_oldest(rail(0), Some(1), 0);
            let mut judge = |now| one.judge(rail(0), bytes, mbps, Hearing { now_ns: now * MS, heard_ns: MS });
            assert_eq!(judge(499 + more), Ok(Hush::Busy), "{mbps:?}");
            assert_eq!(judge(501 + more), Err(Duration::from_millis(501 + more)), "{mbps:?}");
        }
    }

    #[test]
    fn each_alarm_doubles_the_time_until_there_is_peace() {
        let mut one = silences();
        let mut now = 0;
        for time in [500, 1000, 2000, 4000, 8000, 8000] {
            assert_eq!(look(&mut one, Some(now), now, now), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(now + 1), now, now), Ok(Hush::Busy), "something has come over it");
            assert_eq!(look(&mut one, Some(now + 1), now + time - 1, now + 1), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(now + 1), now + time, now + time - 1), Err(time));
            now += time;
        }
        assert_eq!(look(&mut one, None, now, now), Ok(Hush::Idle));
        now += 64 * 8000;
        assert_eq!(look(&mut one, None, now, now), Ok(Hush::Idle));
        assert_eq!(look(&mut one, Some(2), now, now), Ok(Hush::Busy));
        assert_eq!(look(&mut one, Some(2), now + 500, now + 1), Err(500));
    }

    #[test]
    fn a_rail_that_stayed_away_was_silent_indeed_and_has_its_first_time() {
        for (away, time) in [(1999, 1000), (2000, 500)] {
            let mut one = silences();
            assert_eq!(look(&mut one, Some(1), 0, 0), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(1), 500, 1), Err(500));
            let back = 500 + away;
            assert_eq!(look(&mut one, Some(2), back, back), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(3), back, back), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(3), back + time - 1, back + 1), Ok(Hush::Busy), "{away}");
            assert_eq!(look(&mut one, Some(3), back + time, back + 1), Err(time), "{away}");
        }
    }

    #[test]
    fn a_rail_that_is_back_but_carries_nothing_gives_no_false_alarm() {
        let mut one = silences();
        let mut now = 0;
        for fall in 0..5 {
            assert_eq!(look(&mut one, Some(1), now, now), Ok(Hush::Busy));
            assert_eq!(look(&mut one, Some(1), now + 500, now + 1), Err(500));
            assert_eq!(one.has_fallen_again(rail(0)), fall > 0);
            now += 600;
        }
        assert_eq!(look(&mut one, Some(1), now, now), Ok(Hush::Busy));
        assert_eq!(look(&mut one, Some(2), now, now), Ok(Hush::Busy));
        assert!(!one.has_fallen_again(rail(0)));
        assert_eq!(look(&mut one, Some(2), now + 500, now + 1), Err(500), "the alarms were true");
    }

    #[test]
    fn a_fabric_that_knows_its_silence_is_believed() {
        let mut one = silences();
        let mut judge = |silent, heard| {
            one.note_silent_for(rail(0), Duration::from_millis(silent), 10_000 * MS);
            one.judge(rail(0), 0, None, Hearing { now_ns: 10_000 * MS, heard_ns: heard * MS })
        };
        assert_eq!(judge(0, 10_000), Ok(Hush::Idle));
        assert_eq!(judge(499, 10_000), Ok(Hush::Busy));
        assert_eq!(judge(500, 9_500), Ok(Hush::Doubtful));
        assert_eq!(judge(500, 9_501), Err(Duration::from_millis(500)));
    }
}
