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
                self.world.lock().saw(Seen::SessionBroke);
                let which = self.chance.index(self.connections.len());
                let pair = (self.connections[which].plan.from, self.connections[which].plan.to);
                for connection in 0..self.connections.len() {
                    let plan = &self.connections[connection].plan;
                    if (plan.from, plan.to) == pair {
                        self.harm(connection, "the session broke");
                        self.world.lock().record(Kind::Death, Who::End { connection, sender: true }, [1, 0, 0, 0]);
                    }
                }
                self.break_sessions(pair.0, pair.1);
            }
            DeathKind::PortSilent => {
                let mut state = self.world.lock();
                let port = self.chance.index(state.ports());
                state.silence_port(port);
                state.saw(Seen::PortDied);
                drop(state);
                for process in 0..self.processes.len() {
                    if self.processes[process].domains.iter().any(|domain| domain.port() == port) {
                        self.world.lock().record(Kind::Death, Who::Process(process), [4, port as u64, 0, 0]);
                    }
                }
                for connection in 0..self.connections.len() {
                    let plan = &self.connections[connection].plan;
                    let has =
                        |process: usize| self.processes[process].domains.iter().any(|domain| domain.port() == port);
                    if has(plan.from) || has(plan.to) {
                        self.harm(connection, "a port died");
                    }
                }
            }
            DeathKind::RailSilent | DeathKind::RailError => self.kill_rail(death.kind == DeathKind::RailError),
        }
    }

    /// Kills a random rail at both of its ends; `loud` makes its lanes fail at once.
    fn kill_rail(&mut self, loud: bool) {
        let mut state = self.world.lock();
        let rails = state.connected_ends();
        if rails.is_empty() {
            return;
        }
        let (end, peer) = self.chance.pick(&rails);
        state.saw(if loud { Seen::RailDiedLoud } else { Seen::RailDiedSilent });
        for one in [end, peer] {
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
