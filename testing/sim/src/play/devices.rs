//! Devices that fail, of which only an event of the host tells, and loop-backs that fail.

use railweave_fabric::{Part, Piece};
use railweave_transport::{Error, Message, Session};

use super::game::{Game, Side};
use super::stage::Stage;
use crate::history::{Kind, Who};
use crate::task::Task;
use crate::watch::Strike;
use crate::witness::Note;
use crate::{Blow, Seen};

impl<const O: bool> Game<O> {
    /// Fails the device of a port, by the port's number in the world. Sockets have no device: there it falls silent.
    pub(super) fn fail_device(&mut self, port: usize) {
        let Some(process) = self.owner_of(port).filter(|_| O) else { return self.silence_port(port) };
        for (connection, rail, _) in self.rails_through(port) {
            self.count_blow(Blow::DeviceFails, connection, &[true, false], Some(rail));
        }
        let mut state = self.world.lock();
        state.fail_device(port);
        state.saw(Seen::DeviceFailed);
        state.record(Kind::Death, Who::Process(process), [5, port as u64, 0, 0]);
        let after_ns = state.chance.below(self.faults.detect_ns + 1);
        state.later(after_ns, Task::DeviceEvent(port));
        drop(state);
        for (connection, rail, ends) in self.rails_through(port) {
            for sender in [true, false] {
                let is_own = ends.contains(&sender);
                let strike = if is_own { Strike::DeviceFailed } else { Strike::RailSilent(rail) };
                self.strike(connection, &[sender], strike);
            }
        }
    }

    /// Fails the loop-back of a port, by the port's number in the world: the receiving ends there cannot flush.
    pub(super) fn fail_loop_back(&mut self, port: usize) {
        let Some(process) = self.owner_of(port) else { return };
        let mut state = self.world.lock();
        state.set_loop_back(port, false);
        state.saw(Seen::LoopBackFailed);
        state.record(Kind::Death, Who::Process(process), [6, port as u64, 0, 0]);
        drop(state);
        for (connection, rail, ends) in self.rails_through(port) {
            if ends.contains(&false) {
                self.strike(connection, &[false], Strike::LoopBackFailed(rail));
            }
        }
    }

    /// Handles the host's event that the device of a port has failed, as the plugin's control thread does: open
    /// connections that use it learn of it, and set-ups are refused.
    pub(super) fn handle_device_event(&mut self, port: usize) {
        let Some(process) = self.owner_of(port).filter(|process| !self.processes[*process].dead) else { return };
        self.processes[process].failed_ports.push(port);
        for connection in 0..self.connections.len() {
            for sender in [true, false] {
                let side = Side { connection, sender };
                if self.process_of(side) == process {
                    self.apply_failures(side);
                    self.refuse_if_failed(side);
                }
            }
        }
    }

    /// Tells an open end of the failed device that it uses, if there is one.
    pub(super) fn apply_failures(&mut self, side: Side) {
        let pair = &self.connections[side.connection];
        let found = match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => (comm.parts(), comm.fate()),
            (false, _, Stage::Up(comm, _)) => (comm.parts(), comm.fate()),
            _ => return,
        };
        let (parts, Some(fate)) = found else { return };
        if self.faults.recovers {
            // The end does without the device if it has another.
            if parts.iter().all(|part| self.failure_of(side, std::slice::from_ref(part)).is_some()) {
                self.note_device_event(side);
            }
            return self.give_up_failed(side);
        }
        let Some(error) = self.failure_of(side, &parts) else { return };
        self.note_device_event(side);
        fate.set_failed(error);
    }

    fn note_device_event(&self, side: Side) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.connections[side.connection].blame.device_event(now_ns, side.sender);
    }

    /// Refuses the set-up of an end that uses a failed device. The set-up thread must give its handshake back first.
    pub(super) fn refuse_if_failed(&mut self, side: Side) {
        if self.is_away(side) {
            return;
        }
        let Some(parts) = self.set_up(side).map(|(handshake, _)| handshake.parts()) else { return };
        let Some(error) = self.failure_of(side, &parts) else { return };
        let mut state = self.world.lock();
        state.record(Kind::Over, side.who(), [0; 4]);
        state.observer.history.remark(&error.to_string());
        state.saw(Seen::Refused);
        drop(state);
        self.strike(side.connection, &[!side.sender], Strike::PeerFailed);
        self.over(side);
        let refuse = Message::Refuse { fault: error.fault(), of_rails: false, reason: error.to_string() };
        self.tell(side, |session, number, _| session.send(number, refuse));
        self.tell(side, Session::failed);
    }

    /// Returns the error of an end that uses these parts, if the device of one of them is known to have failed.
    fn failure_of(&self, side: Side, parts: &[Part]) -> Option<Error> {
        let failed_ports = &self.processes[self.process_of(side)].failed_ports;
        failed_ports.iter().find_map(|port| {
            let failed = Part { device: format!("port {port}").into(), piece: Piece::Device };
            let is_hit = parts.iter().any(|part| part.fails_with(&failed));
            is_hit.then(|| Error::local(format!("port {port}: its device has failed, and is used here")))
        })
    }

    /// Returns the process of a port, by the port's number in the world.
    fn owner_of(&self, port: usize) -> Option<usize> {
        self.processes.iter().position(|process| process.domains.iter().any(|domain| domain.port() == port))
    }
}
