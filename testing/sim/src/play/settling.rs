//! Applications that make no call for a long time, and the control thread, which then sends what their connections owe.

use super::game::{Game, Side, Stage};
use crate::faults::LOOK_NS;
use crate::history::Kind;
use crate::task::Task;
use crate::witness::Note;
use crate::{Checker, Seen};

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

    /// May silence an end's application for a while; over a two-sided fabric, only until its peer has left.
    pub(super) fn fall_silent(&mut self, side: Side) {
        let (permille, silence_ns) = (self.faults.silence_permille, self.faults.silence_ns);
        // More often if something is owed, because it matters then.
        let owes = match &mut self.connections[side.connection].receiver.stage {
            Stage::Up(made, _) if !side.sender => made.owes(),
            _ => false,
        };
        let permille = if owes { 300 } else { permille };
        if silence_ns == 0 || !self.chance.permille(permille) {
            return;
        }
        let until_ns = self.now_ns() + self.chance.between(silence_ns / 2, silence_ns);
        let pair = &mut self.connections[side.connection];
        let (peer_left, silences, silent_until_ns) = if side.sender {
            (pair.sender.peer_left, &mut pair.sender.silences, &mut pair.sender.silent_until_ns)
        } else {
            (pair.receiver.peer_left, &mut pair.receiver.silences, &mut pair.receiver.silent_until_ns)
        };
        if *silences > 0 && (O || !peer_left) {
            *silences -= 1;
            *silent_until_ns = until_ns;
            let mut state = self.world.lock();
            state.saw(Seen::Silence);
            state.record(Kind::Silent, side.who(), [until_ns, 0, 0, 0]);
        }
    }

    /// Handles the end of a turn on a receiving end: if it owes something, schedules a check of the control thread.
    pub(super) fn leave(&mut self, connection: usize) {
        let pair = &mut self.connections[connection];
        pair.receiver.seen_owing = false;
        let Stage::Up(made, _) = &mut pair.receiver.stage else { return };
        let owes = made.owes() || self.world.lock().owes_since_ns(connection).is_some();
        let process = pair.plan.to;
        if owes && !std::mem::replace(&mut self.processes[process].looks, true) {
            self.world.lock().later(LOOK_NS, Task::Look(process));
        }
    }

    /// Lets the control thread of a process send what was already owed at its last check, and checks that no debt is
    /// older than promised.
    pub(super) fn handle_look(&mut self, process: usize) {
        self.processes[process].looks = false;
        if self.processes[process].dead {
            return;
        }
        let mut looks_again = false;
        for connection in 0..self.connections.len() {
            let pair = &mut self.connections[connection];
            let Stage::Up(made, _) = &mut pair.receiver.stage else { continue };
            if pair.plan.to != process {
                continue;
            }
            if !made.owes() {
                pair.receiver.seen_owing = false;
            } else if std::mem::replace(&mut pair.receiver.seen_owing, true) {
                let all = made.acknowledge();
                let who = Side { connection, sender: false }.who();
                let mut state = self.world.lock();
                state.saw(Seen::Settled);
                state.record(Kind::Settle, who, [u64::from(all), 0, 0, 0]);
            }
            let mut state = self.world.lock();
            let Some(since_ns) = state.owes_since_ns(connection) else { continue };
            looks_again = true;
            let (now_ns, promise_ns) = (state.now_ns, self.faults.promise_ns());
            if now_ns - since_ns > promise_ns && state.observer.watch.harmed(connection).is_none() {
                let text = format!("c{connection}r: its debt dates from {since_ns} ns and may last {promise_ns} ns");
                state.observer.watch.violate(now_ns, Checker::Promise, text);
            }
        }
        if looks_again {
            self.processes[process].looks = true;
            self.world.lock().later(LOOK_NS, Task::Look(process));
        }
    }
}
