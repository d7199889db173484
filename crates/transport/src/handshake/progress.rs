//! The progress of a set-up on the thread that drives it, while a handshake that may block is on another thread for
//! each of its steps.
//!
//! [`Progress`] decides when a step is taken, what becomes of a message or of the end of the session meanwhile, and how
//! long each end waits for the other. Its caller keeps the handshake and carries the decisions out.

use std::collections::VecDeque;
use std::time::Duration;

use super::Handshake;
use crate::session::Side;
use crate::{Error, Message};

/// The most messages of a peer that are kept while another thread has its handshake; a correct peer sends fewer: those
/// of the handshake, and once its end is up one for each rail that fails.
const MOST_KEPT: usize = 4 + railweave_fabric::MAX_RAILS;

/// A peer that says WAIT may keep a connection in set-up for this many handshake timeouts.
const MOST_WAITS: u64 = 20;

/// A busy end says WAIT each time this fraction (1/4) of the handshake timeout has passed.
const WAIT_PART: u64 = 4;

/// Returns the time of the next WAIT from an end that is busy now. A handshake has `timeout_ns` for each step.
fn next_wait_ns(now_ns: u64, timeout_ns: u64) -> u64 {
    now_ns.saturating_add((timeout_ns / WAIT_PART).max(1))
}

/// Returns the time until which WAIT can prolong a set-up that began at this time.
fn last_wait_ns(began_ns: u64, timeout_ns: u64) -> u64 {
    began_ns.saturating_add(timeout_ns.saturating_mul(MOST_WAITS))
}

/// The next step of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Handle this message of the peer.
    Message(Message),
    /// Retry what this host could not do before.
    GoOn,
    /// The deadline has passed.
    Timeout,
}

impl Step {
    /// Takes the step on the thread that drives the set-up.
    pub fn take(self, handshake: &mut (impl Handshake + ?Sized), now_ns: u64) {
        match self {
            Self::Message(message) => handshake.handle_message(message),
            Self::GoOn => handshake.go_on(now_ns),
            Self::Timeout => handshake.handle_timeout(now_ns),
        }
    }

    /// Takes the step on another thread, which was given the handshake at `given_ns`. The time in its queue does not
    /// count against the handshake, which has `timeout_ns` for each step.
    pub fn take_away(self, handshake: &mut (impl Handshake + ?Sized), given_ns: u64, now_ns: u64, timeout_ns: u64) {
        match &self {
            Self::Message(_) => handshake.set_deadline(now_ns.saturating_add(timeout_ns)),
            Self::GoOn => {
                if let Some(deadline_ns) = handshake.timeout_ns() {
                    handshake.set_deadline(deadline_ns.saturating_add(now_ns.saturating_sub(given_ns)));
                }
            }
            Self::Timeout => {}
        }
        self.take(handshake, now_ns);
    }
}

/// The decision about a message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Take this step.
    Step(Step),
    /// The message is kept until the handshake is back.
    Kept,
    /// The peer has sent more than a correct one does: end the session with [`crate::Ended::TooManyMessages`].
    TooMany,
}

/// Everything that is due in a set-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// True if the peer must be told WAIT, before the step.
    pub says_wait: bool,
    /// The step to take.
    pub step: Option<Step>,
}

/// The progress of the set-up of one end.
#[derive(Debug)]
pub struct Progress {
    side: Side,
    may_block: bool,
    timeout_ns: u64,
    began_ns: u64,
    /// True while another thread has the handshake.
    is_away: bool,
    /// True if the last step on the other thread was for READY: the peer's end is up.
    is_ready: bool,
    /// The peer's messages that came while the handshake was away.
    kept: VecDeque<Message>,
    orphaned: Option<Error>,
    /// The time to retry a step that this host could not do.
    go_on_ns: Option<u64>,
    /// The time to tell the peer that this end is busy.
    wait_ns: Option<u64>,
}

impl Progress {
    /// Returns the progress of a set-up that begins now. `side` is this end's side of the session: the opener's end
    /// connects, the acceptor's accepts. The handshake [may block](Handshake::may_block) or not, and has `timeout_ns`
    /// for each step.
    pub fn new(side: Side, may_block: bool, timeout_ns: u64, now_ns: u64) -> Self {
        Self {
            side,
            may_block,
            timeout_ns,
            began_ns: now_ns,
            is_away: false,
            is_ready: false,
            kept: VecDeque::new(),
            orphaned: None,
            go_on_ns: None,
            wait_ns: None,
        }
    }

    /// Returns true while another thread has the handshake.
    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Handles a message of the peer.
    pub fn handle_message(&mut self, message: Message) -> Received {
        if !self.is_away {
            return Received::Step(Step::Message(message));
        }
        if self.kept.len() >= MOST_KEPT {
            return Received::TooMany;
        }
        self.kept.push_back(message);
        Received::Kept
    }

    /// Begins a step. Returns true if it may block: then another thread must be given the handshake, for
    /// [`Step::take_away`], and [`Self::come_back`] must be called when it is back. Otherwise [`Step::take`] it here.
    pub fn begin(&mut self, step: &Step, now_ns: u64) -> bool {
        self.go_on_ns = None;
        if self.may_block {
            self.is_away = true;
            self.is_ready = matches!(step, Step::Message(Message::Ready { .. }));
            self.wait_ns.get_or_insert(next_wait_ns(now_ns, self.timeout_ns));
        }
        self.may_block
    }

    /// Notes that the handshake is back, with this [pause](Handshake::pause). Returns its new deadline, if it gets one.
    #[must_use = "the handshake must get the deadline"]
    pub fn come_back(&mut self, pause: Option<Duration>, now_ns: u64) -> Option<u64> {
        self.is_away = false;
        if let Some(pause) = pause {
            let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
            self.go_on_ns = Some(now_ns.saturating_add(pause_ns));
            return None;
        }
        self.wait_ns = None;
        // The peer's time begins now.
        Some(now_ns.saturating_add(self.timeout_ns))
    }

    /// Returns the next message that was kept, for [`Self::handle_message`], once the handshake is back and its actions
    /// are carried out.
    pub fn next_kept(&mut self) -> Option<Message> {
        if self.is_away { None } else { self.kept.pop_front() }
    }

    /// Returns the messages that are still kept. If the set-up has ended with a connection, pass them to
    /// [`crate::Session::handle_message`] once the connection is open and was given to its recipient.
    pub fn into_kept(self) -> impl Iterator<Item = Message> {
        self.kept.into_iter()
    }

    /// Handles WAIT: the peer still works on the set-up. Returns the handshake's new deadline, if WAIT has an effect.
    #[must_use = "the handshake must get the deadline"]
    pub fn handle_wait(&self, now_ns: u64) -> Option<u64> {
        let prolongs = self.may_block
            && !self.is_away
            && self.go_on_ns.is_none()
            && now_ns < last_wait_ns(self.began_ns, self.timeout_ns);
        prolongs.then(|| now_ns.saturating_add(self.timeout_ns))
    }

    /// Handles the end of the session. Only an acceptor's end whose last step is away with the peer's READY goes on:
    /// for the peer the connection is up, and the peer has left it.
    ///
    /// # Errors
    /// If the set-up fails: the error that was handed in.
    pub fn interrupt(&mut self, error: Error) -> Result<(), Error> {
        if !(self.is_away && self.is_ready && self.side == Side::Acceptor) {
            return Err(error);
        }
        self.orphaned = Some(error);
        // No peer is left to be told WAIT.
        self.wait_ns = None;
        Ok(())
    }

    /// Returns the error that says why the session has ended, if it has. If the set-up has not ended once the handshake
    /// is back and all kept messages are handled, it fails with this error: no message will follow.
    pub fn orphaned(&self) -> Option<&Error> {
        self.orphaned.as_ref()
    }

    /// Returns the time of the next [`Self::due`], if the handshake has this [deadline](Handshake::timeout_ns).
    pub fn next_ns(&self, deadline_ns: Option<u64>) -> Option<u64> {
        self.deadline_ns(deadline_ns).into_iter().chain(self.go_on_ns).chain(self.wait_ns).min()
    }

    /// Returns everything that is due by now, if the handshake has this [deadline](Handshake::timeout_ns).
    pub fn due(&mut self, deadline_ns: Option<u64>, now_ns: u64) -> Due {
        let is_due = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let says_wait = is_due(self.wait_ns);
        if says_wait {
            self.wait_ns = Some(next_wait_ns(now_ns, self.timeout_ns));
        }
        let step = if is_due(self.deadline_ns(deadline_ns)) {
            Some(Step::Timeout)
        } else {
            is_due(self.go_on_ns).then_some(Step::GoOn)
        };
        Due { says_wait, step }
    }

    /// Returns the deadline, unless the handshake is away: it gets a new one when it is back.
    fn deadline_ns(&self, deadline_ns: Option<u64>) -> Option<u64> {
        deadline_ns.filter(|_| !self.is_away)
    }
}

/// The time that an offer has while it waits for its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferWait {
    timeout_ns: u64,
    deadline_ns: u64,
    last_wait_ns: u64,
}

impl OfferWait {
    /// Returns the time of an offer that has just come. A handshake has `timeout_ns` for each step.
    pub fn new(timeout_ns: u64, now_ns: u64) -> Self {
        Self {
            timeout_ns,
            deadline_ns: now_ns.saturating_add(timeout_ns),
            last_wait_ns: last_wait_ns(now_ns, timeout_ns),
        }
    }

    /// Returns the time at which the peer must first be told WAIT, if the set-ups of its fabric may block.
    pub fn first_wait_ns(&self) -> u64 {
        next_wait_ns(self.deadline_ns.saturating_sub(self.timeout_ns), self.timeout_ns)
    }

    /// Handles the time to tell the peer WAIT. Returns the next such time if it must be told now; its time then begins
    /// again. Returns `None` if it must not be told any more.
    pub fn wait(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns >= self.last_wait_ns || now_ns >= self.deadline_ns {
            return None;
        }
        self.deadline_ns = now_ns.saturating_add(self.timeout_ns);
        Some(next_wait_ns(now_ns, self.timeout_ns))
    }

    /// Returns the deadline of the handshake that begins now that the offer has its place; `None` if its peer has given
    /// up: then the offer fails without a word.
    pub fn begin(self, now_ns: u64) -> Option<u64> {
        (now_ns < self.deadline_ns).then_some(self.deadline_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use railweave_fabric::{Fault, LaneId, Part, RailId};

    use super::*;
    use crate::Event;
    use crate::handshake::LaneRefused;

    const TIMEOUT_NS: u64 = 1000;

    fn progress(side: Side) -> Progress {
        Progress::new(side, true, TIMEOUT_NS, 0)
    }

    /// Returns the progress of an end whose handshake is on another thread since 0, with this message.
    fn away(side: Side, message: Message) -> Progress {
        let mut progress = progress(side);
        assert!(progress.begin(&Step::Message(message), 0));
        progress
    }

    fn ready() -> Message {
        Message::Ready { usable: 1 }
    }

    fn answer() -> Message {
        Message::Answer { step: railweave_fabric::Step::Subnet, token: crate::Token([7; 16]), rails: Vec::new() }
    }

    /// A handshake with a deadline.
    #[derive(Default)]
    struct Deadline {
        at_ns: Option<u64>,
        taken: Vec<Step>,
    }

    impl Handshake for Deadline {
        fn handle_message(&mut self, message: Message) {
            self.taken.push(Step::Message(message));
        }
        fn handle_timeout(&mut self, _now_ns: u64) {
            self.taken.push(Step::Timeout);
        }
        fn go_on(&mut self, _now_ns: u64) {
            self.taken.push(Step::GoOn);
        }
        fn timeout_ns(&self) -> Option<u64> {
            self.at_ns
        }
        fn set_deadline(&mut self, deadline_ns: u64) {
            self.at_ns = Some(deadline_ns);
        }
        fn handle_dialled(&mut self, _rail: RailId, _lane: LaneId, _socket: Result<OwnedFd, String>) {}
        fn awaits_lane(&self, rail: u8, _lane: u8) -> Result<(), LaneRefused> {
            Err(LaneRefused::DialledHere(rail))
        }
        fn handle_lane(&mut self, rail: u8, lane: u8, _socket: OwnedFd) -> Result<(), LaneRefused> {
            self.awaits_lane(rail, lane)
        }
        fn pause(&self) -> Option<Duration> {
            None
        }
        fn parts(&self) -> Vec<Part> {
            Vec::new()
        }
        fn handle_part_failed(&mut self, _failed: &Part, _reason: &str) -> bool {
            true
        }
        fn may_block(&self) -> bool {
            true
        }
        fn poll_event(&mut self) -> Option<Event> {
            None
        }
    }

    #[test]
    fn the_time_in_the_other_threads_queue_does_not_count() {
        let (given_ns, now_ns) = (100, 400);
        for (step, before, after) in [
            (Step::Message(answer()), Some(500), Some(now_ns + TIMEOUT_NS)),
            (Step::GoOn, Some(500), Some(800)),
            (Step::GoOn, None, None),
            (Step::Timeout, Some(500), Some(500)),
        ] {
            let mut away = Deadline { at_ns: before, taken: Vec::new() };
            step.clone().take_away(&mut away, given_ns, now_ns, TIMEOUT_NS);
            assert_eq!((away.at_ns, away.taken), (after, vec![step.clone()]), "{step:?}");
            let mut here = Deadline { at_ns: before, taken: Vec::new() };
            step.clone().take(&mut here, now_ns);
            assert_eq!((here.at_ns, here.taken), (before, vec![step]));
        }
    }

    fn ended() -> Error {
        Error::peer("the session has ended")
    }

    #[test]
    fn only_an_acceptor_that_has_the_peers_ready_outlives_the_session() {
        for (side, message) in [
            (Side::Acceptor, answer()),
            (Side::Acceptor, Message::Refuse { fault: Fault::Peer, of_rails: false, reason: String::new() }),
            (Side::Opener, ready()),
            (Side::Opener, answer()),
        ] {
            let mut progress = away(side, message.clone());
            assert_eq!(progress.interrupt(ended()), Err(ended()), "{side:?} {message:?}");
            assert_eq!(progress.orphaned(), None);
        }
        let mut progress = away(Side::Acceptor, ready());
        assert_eq!(progress.interrupt(ended()), Ok(()));
        assert_eq!(progress.orphaned(), Some(&ended()));
        // Nobody is left to be told WAIT, and nothing is due until the handshake is back.
        assert_eq!((progress.next_ns(Some(1)), progress.due(Some(1), u64::MAX)), (None, Due::default()));
    }

    #[test]
    fn an_acceptor_whose_ready_step_is_over_does_not_outlive_the_session() {
        let mut progress = away(Side::Acceptor, ready());
        assert_eq!(progress.come_back(None, 5), Some(5 + TIMEOUT_NS));
        assert_eq!(progress.interrupt(ended()), Err(ended()));
        let mut other_step = away(Side::Acceptor, ready());
        let _ = other_step.come_back(None, 5);
        other_step.begin(&Step::Timeout, 6);
        assert_eq!(other_step.interrupt(ended()), Err(ended()), "another step is away");
    }

    #[test]
    fn wait_prolongs_only_an_end_that_waits_for_its_peer_and_for_20_timeouts_at_most() {
        let last_ns = 20 * TIMEOUT_NS;
        let progress = progress(Side::Opener);
        assert_eq!(progress.handle_wait(7), Some(7 + TIMEOUT_NS));
        assert_eq!(progress.handle_wait(last_ns - 1), Some(last_ns - 1 + TIMEOUT_NS));
        assert_eq!(progress.handle_wait(last_ns), None);
        let mut progress = away(Side::Opener, answer());
        assert_eq!(progress.handle_wait(7), None, "its step is away");
        assert_eq!(progress.come_back(Some(Duration::from_nanos(50)), 8), None);
        assert_eq!(progress.handle_wait(9), None, "it does not wait for its peer");
        assert!(progress.begin(&Step::GoOn, 58));
        let _ = progress.come_back(None, 60);
        assert_eq!(progress.handle_wait(61), Some(61 + TIMEOUT_NS));
        let sockets = Progress::new(Side::Opener, false, TIMEOUT_NS, 0);
        assert_eq!(sockets.handle_wait(7), None, "nothing blocks there");
    }

    #[test]
    fn a_handshake_that_is_back_gets_its_whole_time_unless_it_must_retry() {
        let mut progress = away(Side::Opener, answer());
        assert_eq!(progress.due(Some(1), 249), Due::default(), "its deadline does not count while it is away");
        let wait = Due { says_wait: true, step: None };
        assert_eq!((progress.next_ns(Some(1)), progress.due(Some(1), 250)), (Some(250), wait.clone()));
        assert_eq!(progress.come_back(Some(Duration::from_nanos(90)), 260), None);
        // A retry is due after its pause, and WAIT is still said.
        assert_eq!(progress.next_ns(Some(900)), Some(350));
        assert_eq!(progress.due(Some(900), 349), Due::default());
        assert_eq!(progress.due(Some(900), 350), Due { says_wait: false, step: Some(Step::GoOn) });
        assert_eq!(progress.due(Some(900), 500), Due { says_wait: true, step: Some(Step::GoOn) });
        assert_eq!(progress.due(Some(900), 900), Due { says_wait: true, step: Some(Step::Timeout) });
        progress.begin(&Step::Timeout, 900);
        assert_eq!(progress.come_back(None, 950), Some(950 + TIMEOUT_NS));
        assert_eq!(progress.next_ns(Some(1950)), Some(1950), "neither a retry nor WAIT is due");
    }

    #[test]
    fn messages_are_kept_up_to_a_limit_and_come_back_in_their_order() {
        let mut progress = away(Side::Acceptor, answer());
        let others = || (2..MOST_KEPT).map(|number| if number % 2 == 0 { Message::Bye(None) } else { ready() });
        for message in [answer(), ready()].into_iter().chain(others()) {
            assert_eq!(progress.handle_message(message), Received::Kept);
        }
        assert_eq!(progress.handle_message(Message::Bye(None)), Received::TooMany);
        assert_eq!(progress.next_kept(), None, "the step is away");
        let _ = progress.come_back(None, 5);
        let first = progress.next_kept().expect("some are kept");
        assert_eq!(progress.handle_message(first), Received::Step(Step::Message(answer())));
        assert_eq!(progress.next_kept(), Some(ready()));
        assert!(progress.into_kept().eq(others()));
    }

    #[test]
    fn a_step_that_cannot_block_is_taken_at_once() {
        let mut progress = Progress::new(Side::Acceptor, false, TIMEOUT_NS, 0);
        assert!(!progress.begin(&Step::Message(ready()), 0));
        assert!(!progress.is_away());
        assert_eq!(progress.handle_message(Message::Bye(None)), Received::Step(Step::Message(Message::Bye(None))));
        assert_eq!(progress.interrupt(ended()), Err(ended()));
        // The deadline is that of the whole set-up, and nobody is told WAIT.
        assert_eq!(progress.due(Some(1000), 999), Due::default());
        assert_eq!(progress.due(Some(1000), 1000), Due { says_wait: false, step: Some(Step::Timeout) });
    }

    #[test]
    fn an_offer_waits_as_long_as_its_peer_is_told_so_and_for_20_timeouts_at_most() {
        let mut offer = OfferWait::new(TIMEOUT_NS, 100);
        assert_eq!((offer.first_wait_ns(), offer.begin(1099), offer.begin(1100)), (350, Some(1100), None));
        assert_eq!(offer.wait(350), Some(600));
        assert_eq!((offer.begin(1349), offer.begin(1350)), (Some(1350), None));
        assert_eq!(offer.wait(1350), None, "its peer has given up");
        let last_ns = 100 + 20 * TIMEOUT_NS;
        let mut at_ns = Some(offer.first_wait_ns());
        let mut last = 0;
        while let Some(now_ns) = at_ns {
            last = now_ns;
            at_ns = offer.wait(now_ns);
        }
        assert_eq!((last, offer.begin(last_ns)), (last_ns, Some(last_ns + 750)));
    }
}
