//! Sessions with more input than is read at once. The kernel reports unread input only once, so this list keeps these
//! sessions until they are read on, in turns, for a slice of time.

/// The time for which such sessions are read before deadlines, newcomers and commands get their turn.
const SLICE_NS: u64 = 5_000_000;

/// The shortest rest of such a session. All of them rest for as long as reading from them took, so that this never
/// takes more than half of the thread's time.
const REST_NS: u64 = 1_000_000;

/// The list keeps room for this many sessions when it shrinks.
const FEW: usize = 32;

/// The resting sessions, in the order of their turns.
#[derive(Default)]
pub(super) struct RestingSessions {
    sessions: Vec<usize>,
    /// The time of the next round; `None` if no session rests.
    pub(super) again_ns: Option<u64>,
}

/// A round of reading.
pub(super) struct Round {
    begin_ns: u64,
    /// The number of sessions at its start, and the number of those that have had their turn.
    waiting: usize,
    read: usize,
}

impl RestingSessions {
    /// Lets a session rest.
    pub(super) fn add(&mut self, session: usize, now_ns: u64) {
        self.sessions.push(session);
        self.again_ns.get_or_insert(now_ns + REST_NS);
    }

    /// Begins a round, if one is due.
    pub(super) fn begin(&mut self, now_ns: u64) -> Option<Round> {
        let is_due = self.again_ns.is_some_and(|at| at <= now_ns);
        is_due.then_some(Round { begin_ns: now_ns, waiting: self.sessions.len(), read: 0 })
    }

    /// Returns the session whose turn it is; `None` once all have had theirs or the slice is used up. At least one
    /// session gets a turn.
    pub(super) fn next(&mut self, round: &mut Round, now_ns: u64) -> Option<usize> {
        let is_over = round.read > 0 && now_ns >= round.begin_ns + SLICE_NS;
        if round.read == round.waiting || is_over {
            return None;
        }
        round.read += 1;
        Some(self.sessions[round.read - 1])
    }

    /// Ends a round.
    pub(super) fn end(&mut self, round: &Round, now_ns: u64) {
        // Sessions that had no turn come before those that were read and still have input.
        self.sessions.drain(..round.read);
        self.sessions.shrink_to(FEW.max(self.sessions.len()));
        let rest_ns = REST_NS.max(now_ns - round.begin_ns);
        self.again_ns = (!self.sessions.is_empty()).then(|| now_ns + rest_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a round in which each turn takes `turn_ns` and leaves input. Returns the sessions that had a turn, and the
    /// time afterwards.
    fn play(resting: &mut RestingSessions, mut now_ns: u64, turn_ns: u64) -> (Vec<usize>, u64) {
        let mut round = resting.begin(now_ns).expect("it is time");
        let mut turns = Vec::new();
        while let Some(session) = resting.next(&mut round, now_ns) {
            now_ns += turn_ns;
            turns.push(session);
            resting.add(session, now_ns);
        }
        resting.end(&round, now_ns);
        (turns, now_ns)
    }

    #[test]
    fn a_round_takes_no_longer_than_its_slice_and_the_next_goes_on_where_it_ended() {
        let mut resting = RestingSessions::default();
        (0..8).for_each(|session| resting.add(session, 0));
        assert!(resting.begin(REST_NS - 1).is_none(), "they rest first");
        let (turns, over_ns) = play(&mut resting, REST_NS, 2_000_000);
        // The third began within the slice.
        assert_eq!((turns, over_ns), (vec![0, 1, 2], REST_NS + 6_000_000));
        assert_eq!(resting.again_ns, Some(over_ns + 6_000_000), "they rest for as long as they were read from");
        let mut turns = Vec::new();
        while turns.len() < 8 {
            let again_ns = resting.again_ns.expect("they have more to say");
            turns.extend(play(&mut resting, again_ns, 2_000_000).0);
        }
        assert_eq!(turns[..8], [3, 4, 5, 6, 7, 0, 1, 2], "each has its turn before any has another");
    }

    #[test]
    fn one_that_takes_longer_than_the_slice_has_its_turn_and_quick_ones_have_one_each_and_rest() {
        let mut resting = RestingSessions::default();
        (0..2).for_each(|session| resting.add(session, 0));
        assert_eq!(play(&mut resting, REST_NS, 9_000_000).0, [0]);
        let again_ns = resting.again_ns.expect("they have more to say");
        let (turns, over_ns) = play(&mut resting, again_ns, 1000);
        assert_eq!(turns, [1, 0], "not one after the other forever");
        assert_eq!(resting.again_ns, Some(over_ns + REST_NS));
        let round = resting.begin(over_ns + REST_NS).expect("it is time");
        resting.end(&Round { read: 2, ..round }, over_ns + REST_NS);
        assert_eq!(resting.again_ns, None, "nobody has more to say");
    }
}
