//! Deaths in the middle of a game: of a process, a session, a port or a rail.

use super::game::Game;
use super::stage::Stage;
use crate::Seen;
use crate::faults::DeathKind;
use crate::history::{Kind, Who};
use crate::watch::Strike;
use crate::witness::{Note, who};

impl<const O: bool> Game<O> {
    /// Tells the checkers that something struck these ends of a connection (true for the sender).
    pub(super) fn strike(&self, connection: usize, ends: &[bool], strike: Strike) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        for sender in ends {
            state.observer.watch.strike(now_ns, connection, *sender, strike);
        }
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
            let living: &[bool] = match (from == process, to == process) {
                (true, true) => &[],
                (true, false) => &[false],
                _ => &[true],
            };
            self.strike(connection, living, Strike::PeerDied);
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

    /// Breaks the session of a connection.
    pub(super) fn handle_break(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        self.break_session(plan.from, plan.to);
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
            let is_at = |process: usize, index: u8| {
                let domain = self.processes[process].domains.get(usize::from(index));
                domain.is_some_and(|domain| domain.port() == port)
            };
            for (rail, (ours, theirs)) in plan.pairs.iter().enumerate() {
                if is_at(plan.from, *ours) || is_at(plan.to, *theirs) {
                    self.strike(connection, &[true, false], Strike::RailSilent(rail as u8));
                }
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
            let strike = if loud { Strike::RailFailed(place.rail) } else { Strike::RailSilent(place.rail) };
            state.observer.watch.strike(now_ns, place.connection, place.sender, strike);
            if loud {
                state.fail(one);
            }
        }
    }
}
