//! Deaths in the middle of a game: of a process, a session, a port or a rail.

use super::game::Game;
use super::stage::Stage;
use crate::Seen;
use crate::faults::DeathKind;
use crate::history::{Kind, Who};
use crate::witness::{Note, who};

impl<const O: bool> Game<O> {
    /// Tells the checkers that errors are allowed on a connection from now on, and why.
    fn harm(&self, connection: usize, why: &str) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.harm(now_ns, connection, why);
    }

    /// Kills a process, with everything that it has.
    pub(super) fn kill(&mut self, process: usize) {
        if std::mem::replace(&mut self.processes[process].dead, true) {
            return;
        }
        self.world.lock().record(Kind::Death, Who::Process(process), [0; 4]);
        self.world.lock().kill_process(process);
        self.processes[process].threads.end();
        for connection in 0..self.connections.len() {
            let (from, to) = (self.connections[connection].plan.from, self.connections[connection].plan.to);
            if from != process && to != process {
                continue;
            }
            self.harm(connection, "a process died");
            let pair = &mut self.connections[connection];
            let dead_sender = (from == process).then(|| std::mem::replace(&mut pair.sender.stage, Stage::Over));
            let dead_receiver = (to == process).then(|| std::mem::replace(&mut pair.receiver.stage, Stage::Over));
            drop((dead_sender, dead_receiver));
        }
        self.kill_sessions(process);
    }

    /// Carries out the death that the seed has planned.
    pub(super) fn handle_death(&mut self) {
        let Some(death) = self.faults.death else { return };
        match death.kind {
            DeathKind::Process => {
                self.world.lock().saw(Seen::ProcessDied);
                let process = self.chance.index(self.processes.len());
                self.kill(process);
            }
            DeathKind::Killed => {}
            DeathKind::Session => {
                let which = self.chance.index(self.connections.len());
                let plan = &self.connections[which].plan;
                self.break_session(plan.from, plan.to);
            }
            DeathKind::PortSilent => {
                let ports = self.world.lock().ports();
                let port = self.chance.index(ports);
                self.silence_port(port);
            }
            DeathKind::RailSilent | DeathKind::RailError => {
                let rails = self.world.lock().connected_ends();
                if !rails.is_empty() {
                    let (end, peer) = self.chance.pick(&rails);
                    self.kill_rail([end, peer], death.kind == DeathKind::RailError);
                }
            }
        }
    }

    /// Breaks the session that one process has opened to another.
    pub(super) fn break_session(&mut self, from: usize, to: usize) {
        self.world.lock().saw(Seen::SessionBroke);
        for connection in 0..self.connections.len() {
            let plan = &self.connections[connection].plan;
            if (plan.from, plan.to) == (from, to) {
                self.harm(connection, "the session broke");
                self.world.lock().record(Kind::Death, Who::End { connection, sender: true }, [1, 0, 0, 0]);
            }
        }
        self.break_sessions(from, to);
    }

    /// Silences a port, by its number in the world.
    pub(super) fn silence_port(&mut self, port: usize) {
        let mut state = self.world.lock();
        state.silence_port(port);
        state.saw(Seen::PortDied);
        for process in 0..self.processes.len() {
            if self.processes[process].domains.iter().any(|domain| domain.port() == port) {
                state.record(Kind::Death, Who::Process(process), [4, port as u64, 0, 0]);
            }
        }
        drop(state);
        for connection in 0..self.connections.len() {
            let plan = &self.connections[connection].plan;
            let has = |process: usize| self.processes[process].domains.iter().any(|domain| domain.port() == port);
            if has(plan.from) || has(plan.to) {
                self.harm(connection, "a port died");
            }
        }
    }

    /// Kills a rail, whose two ends have these numbers in the world; `loud` makes its lanes fail at once.
    pub(super) fn kill_rail(&mut self, ends: [usize; 2], loud: bool) {
        let mut state = self.world.lock();
        state.saw(if loud { Seen::RailDiedLoud } else { Seen::RailDiedSilent });
        for one in ends {
            let Some(place) = state.cut(one) else { continue };
            let now_ns = state.now_ns;
            state.record(Kind::Death, who(place), [2 + u64::from(loud), 0, 0, 0]);
            state.observer.watch.harm(now_ns, place.connection, "a rail died");
            if loud {
                state.fail(one);
            }
        }
    }
}
