//! Applications that make no call for a long time, and the checks of what their connections owe meanwhile.

use super::game::{Game, Side};
use super::sessions::LINGER_LIMIT_NS;
use super::stage::Stage;
use crate::faults::Faults;
use crate::history::Kind;
use crate::task::Task;
use crate::witness::Note;
use crate::{Checker, Seen};

/// The time until something that is owed although its time has passed is looked at again.
const AGAIN_NS: u64 = 10_000;

impl<const O: bool> Game<O> {
    /// Returns true if an end's application is silent at present.
    pub(super) fn is_silent(&self, side: Side) -> bool {
        let pair = &self.connections[side.connection];
        let (until_ns, up) = if side.sender {
            (pair.sender.silent_until_ns, matches!(pair.sender.stage, Stage::Up(..)))
        } else {
            (pair.receiver.silent_until_ns, matches!(pair.receiver.stage, Stage::Up(..)))
        };
        up && self.now_ns() < until_ns
    }

    /// May silence an end's application for a while.
    pub(super) fn fall_silent(&mut self, side: Side) {
        let (permille, silence_ns) = (self.faults.silence_permille, self.faults.silence_ns);
        // More often if something is owed, because it matters then.
        let owes = match &self.connections[side.connection].receiver.stage {
            Stage::Up(comm, _) if !side.sender => comm.owes(),
            _ => false,
        };
        let permille = if owes { 300 } else { permille };
        if silence_ns == 0 || !self.chance.permille(permille) {
            return;
        }
        let until_ns = self.now_ns() + self.chance.between(silence_ns / 2, silence_ns);
        let pair = &mut self.connections[side.connection];
        let (silences, silent_until_ns) = if side.sender {
            (&mut pair.sender.silences, &mut pair.sender.silent_until_ns)
        } else {
            (&mut pair.receiver.silences, &mut pair.receiver.silent_until_ns)
        };
        if *silences > 0 {
            *silences -= 1;
            *silent_until_ns = until_ns;
            let mut state = self.world.lock();
            state.saw(Seen::Silence);
            if until_ns - state.now_ns > self.faults.grace_ns.max(LINGER_LIMIT_NS) {
                state.saw(Seen::LongPause);
            }
            state.record(Kind::Silent, side.who(), [until_ns, 0, 0, 0]);
        }
    }

    /// Handles the end of a turn on a receiving end: if something is put off, schedules a check that it leaves in time.
    /// The check does not depend on the threads that should send it.
    pub(super) fn watch_debt(&mut self, connection: usize) {
        let receiver = &mut self.connections[connection].receiver;
        if O || receiver.is_debt_watched || !matches!(receiver.stage, Stage::Up(..)) {
            return;
        }
        let mut state = self.world.lock();
        if let Some(since_ns) = state.owes_since_ns(connection) {
            receiver.is_debt_watched = true;
            let promise_ns =
                self.faults.promise_ns(state.refused_ns(connection, since_ns.saturating_sub(Faults::PAUSE_NS)));
            // The time may have passed, if a dead rail excuses it.
            let at_ns = (since_ns + promise_ns + 1).max(state.now_ns + AGAIN_NS);
            state.at(at_ns, Task::DebtDue(connection));
        }
    }

    /// Checks that nothing is put off for longer than promised, while the receiving end is up.
    pub(super) fn handle_debt_due(&mut self, connection: usize) {
        let receiver = &mut self.connections[connection].receiver;
        receiver.is_debt_watched = false;
        // An application that gives up makes no more calls on this end.
        let has_failed = receiver.failed;
        if !matches!(receiver.stage, Stage::Up(..)) {
            return;
        }
        let mut state = self.world.lock();
        if let Some(since_ns) = state.owes_since_ns(connection) {
            let promise_ns =
                self.faults.promise_ns(state.refused_ns(connection, since_ns.saturating_sub(Faults::PAUSE_NS)));
            let now_ns = state.now_ns;
            let has_dead_rail = state.observer.watch.connections[connection].blame.has_dead_rail(now_ns);
            if now_ns - since_ns > promise_ns && !has_dead_rail && !has_failed {
                let text = format!("c{connection}r: its debt dates from {since_ns} ns and may last {promise_ns} ns");
                state.observer.watch.violate(now_ns, Checker::Promise, text);
            }
        }
        drop(state);
        self.watch_debt(connection);
    }
}
