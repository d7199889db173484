//! Calls that fail: their errors are judged, and the process gives up. Sessions that lose their sockets.

use railweave_transport::{Cause, Ended, Error};

use super::game::{Game, Side};
use super::setup::OUTAGE;
use super::stage::Stage;
use crate::faults::Faults;
use crate::history::Kind;
use crate::task::Task;
use crate::watch::{Call, Strike};
use crate::witness::Note;
use crate::{Checker, Seen};

impl<const O: bool> Game<O> {
    /// Handles a call that returned an error: judges it, and lets its application give up.
    pub(super) fn fail(&mut self, side: Side, error: &Error) {
        let is_flush = match &self.connections[side.connection].receiver.stage {
            Stage::Up(_, app) => !side.sender && app.has_failed_to_flush(),
            _ => false,
        };
        let needs_peer = self.needs_peer(side);
        let (grace_ns, settling_ns) = (self.faults.grace_ns, self.faults.settling_ns(side.sender));
        let recovers = self.faults.recovers;
        let may_not_open = self.faults.fabric.open_fails_permille > 0;
        let outage_ns = OUTAGE.as_nanos() as u64;
        let sender = side.sender;
        let is_recovering = self.is_recovering(side);
        let call = Call {
            sender,
            grace_ns,
            needs_peer,
            is_flush,
            settling_ns,
            recovers,
            may_not_open,
            outage_ns,
            is_recovering,
        };
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let watched = &mut state.observer.watch.connections[side.connection];
        watched.sender_failed |= side.sender;
        // A call that is done all the same leaves the error to the next one.
        let broke_ns = watched.broke_ns[usize::from(side.sender)].unwrap_or(now_ns);
        let judged = watched.blame.judge(now_ns, call, error);
        if let Err((checker, text)) = judged {
            state.observer.watch.violate(now_ns, checker, format!("{}: {text}", side.who()));
        }
        if matches!(**error, Cause::Unanswered { .. }) {
            state.saw(Seen::Unanswered);
        }
        // A peer that breaks the protocol is not listened to any more.
        let is_heard = !matches!(**error, Cause::Violation { .. } | Cause::Cts(_));
        // The queues of rails that are ended or made are read by other threads, or by nobody yet.
        if is_heard && !is_recovering && state.has_unreported(side.connection, side.sender, broke_ns) {
            let text = format!("{}: it fails although its rails have more to report: {error}", side.who());
            state.observer.watch.violate(now_ns, Checker::Errors, text);
        }
        drop(state);
        self.give_up(side, &error.to_string());
    }

    /// Returns the process of an end.
    pub(super) fn process_of(&self, side: Side) -> usize {
        let plan = &self.connections[side.connection].plan;
        if side.sender { plan.from } else { plan.to }
    }

    /// Returns true if an end's application has work that its peer must still take part in.
    fn needs_peer(&self, side: Side) -> bool {
        let pair = &self.connections[side.connection];
        let state = self.world.lock();
        let watched = &state.observer.watch.connections[side.connection];
        match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(_, app), _) => app.needs_peer(watched),
            (false, _, Stage::Up(_, app)) => app.needs_peer(watched),
            _ => true,
        }
    }

    /// Lets an application give up an end, and soon its whole process.
    pub(super) fn give_up(&mut self, side: Side, why: &str) {
        let mut state = self.world.lock();
        state.record(Kind::Error, side.who(), [0; 4]);
        state.observer.history.remark(why);
        state.saw(Seen::Failed);
        let delay_ns = state.chance.below(100_000);
        let process = self.process_of(side);
        state.later(delay_ns, Task::Abort(process));
        drop(state);
        let pair = &mut self.connections[side.connection];
        if side.sender { pair.sender.failed = true } else { pair.receiver.failed = true }
    }

    /// Closes all ends of a process: NCCL gives up the whole communicator when one of its connections fails.
    pub(super) fn handle_abort(&mut self, process: usize) {
        if self.processes[process].dead || std::mem::replace(&mut self.processes[process].aborted, true) {
            return;
        }
        let mut sides: Vec<Side> = (0..self.connections.len())
            .flat_map(|connection| [true, false].map(|sender| Side { connection, sender }))
            .filter(|side| self.process_of(*side) == process)
            .collect();
        self.chance.shuffle(&mut sides);
        for side in sides {
            self.handle_close(side, false);
        }
    }

    /// Handles the loss of a session's socket. A PONG that is slower than the time for it is like a break.
    pub(super) fn handle_away(&self, end: usize, why: &Ended) {
        self.world.lock().saw(Seen::SessionAway);
        let Faults { session_delay_ns, session_jitter_ns, peer_timeouts_ns, .. } = &self.faults;
        let shortest_ns = peer_timeouts_ns[0].min(peer_timeouts_ns[1]);
        if matches!(why, Ended::Silent { .. }) && 8 * (session_delay_ns + session_jitter_ns) > shortest_ns {
            for connection in self.sessions.ends[end].connections.values() {
                self.strike(*connection, &[true, false], Strike::SessionBroke);
            }
        }
    }
}
