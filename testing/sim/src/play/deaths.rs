//! Deaths in the middle of a game: of a process, a session, a port or a rail.

use railweave_fabric_sim::Place;
use railweave_transport::LostCause;

use super::game::{Game, Pair, Side};
use super::stage::Stage;
use crate::faults::DeathKind;
use crate::history::{Kind, Who};
use crate::task::Task;
use crate::watch::Strike;
use crate::witness::{Note, who};
use crate::{Blow, Seen, Situation};

impl<const O: bool> Game<O> {
    /// Tells the checkers that something struck these ends of a connection (true for the sender).
    pub(super) fn strike(&self, connection: usize, ends: &[bool], strike: Strike) {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        for sender in ends {
            state.observer.watch.strike(now_ns, connection, *sender, strike);
        }
    }

    /// Counts a blow at these ends of a connection (true for the sender) that is about to fall, and the situations of
    /// these: with this rail, if it is a rail's.
    pub(super) fn count_blow(&self, blow: Blow, connection: usize, ends: &[bool], rail: Option<u8>) {
        for sender in ends.iter().copied() {
            let situations = self.situations(Side { connection, sender }, rail);
            self.world.lock().observer.counts.fell(blow, &situations);
        }
    }

    /// Tells an end of a session that a connection of it is lost for this reason, as the control thread does.
    pub(super) fn note_gone(&mut self, end: usize, cause: &LostCause) {
        let now_ns = self.now_ns();
        if matches!(cause, LostCause::Gone(_)) {
            self.sessions.ends[end].protocol.peer_is_gone(now_ns);
        }
    }

    /// Returns the situations of an end, with regard to a rail if that is `Some`.
    pub(super) fn situations(&self, side: Side, rail: Option<u8>) -> Vec<Situation> {
        let pair = &self.connections[side.connection];
        let route = if side.sender { pair.sender.route } else { pair.receiver.route };
        let is_away = route.is_some_and(|(session, _)| self.sessions.ends[session].protocol.is_away());
        let mut situations =
            self.world.lock().observer.watch.connections[side.connection].situations(side.sender, rail);
        situations.extend(is_away.then_some(Situation::Away));
        situations
    }

    /// Kills a process, with everything that it has.
    pub(super) fn kill(&mut self, process: usize) {
        if std::mem::replace(&mut self.processes[process].dead, true) {
            return;
        }
        self.world.lock().record(Kind::Death, Who::Process(process), [0; 4]);
        self.world.lock().kill_process(process);
        self.processes[process].threads.end();
        self.end_freeing(process);
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
            self.count_blow(Blow::PeerDies, connection, living, None);
            self.strike(connection, living, Strike::PeerDied);
            let pair = &mut self.connections[connection];
            if from == process {
                pair.sender.recovery.end();
            }
            if to == process {
                pair.receiver.recovery.end();
            }
            let dead_sender = (from == process).then(|| std::mem::replace(&mut pair.sender.stage, Stage::Over));
            let dead_receiver = (to == process).then(|| std::mem::replace(&mut pair.receiver.stage, Stage::Over));
            drop((dead_sender, dead_receiver));
        }
        self.kill_sessions(process);
    }

    /// Carries out a death of the seed's plan.
    pub(super) fn handle_death(&mut self, kind: DeathKind) {
        match kind {
            DeathKind::Killed => {}
            DeathKind::Process => {
                let process = self.chance.index(self.processes.len());
                self.kill_at_once(process);
            }
            DeathKind::Session => {
                let which = self.chance.index(self.connections.len());
                self.handle_break(which);
            }
            DeathKind::PortSilent | DeathKind::Device | DeathKind::LoopBack => {
                let ports = self.world.lock().ports();
                let port = self.chance.index(ports);
                self.strike_port(kind, port);
            }
            DeathKind::RailSilent | DeathKind::RailError | DeathKind::RailOneEnd | DeathKind::Suspicion => {
                let rails = self.world.lock().connected_ends();
                if !rails.is_empty() {
                    let target = self.chance.pick(&rails);
                    self.strike_rail(kind, target);
                }
            }
        }
    }

    /// Lets a death strike a rail, whose two ends have these numbers in the world, or what its first end is part of.
    pub(super) fn strike_rail(&mut self, kind: DeathKind, (end, peer): (usize, usize)) {
        let Some(Place { connection, sender, rail, .. }) = self.world.lock().place_of(end) else { return };
        let side = Side { connection, sender };
        match kind {
            DeathKind::Killed => {}
            DeathKind::Process => self.kill_at_once(self.process_of(side)),
            DeathKind::Session => self.handle_break(connection),
            DeathKind::PortSilent | DeathKind::Device | DeathKind::LoopBack => {
                self.strike_port(kind, self.port_of(side, rail));
            }
            DeathKind::Suspicion => {
                self.count_blow(Blow::Suspicion, connection, &[sender], Some(rail));
                if self.suspect(side, rail) {
                    // If the session is away, nothing is left that tells of the peer.
                    self.strike(connection, &[true, false], Strike::RailFailed(rail));
                }
            }
            DeathKind::RailOneEnd => self.fail_end([end, peer]),
            DeathKind::RailSilent | DeathKind::RailError => self.kill_rail([end, peer], kind == DeathKind::RailError),
        }
    }

    fn strike_port(&mut self, kind: DeathKind, port: usize) {
        match kind {
            DeathKind::PortSilent => self.silence_port(port),
            DeathKind::Device => self.fail_device(port),
            _ => self.fail_loop_back(port),
        }
    }

    fn kill_at_once(&mut self, process: usize) {
        self.world.lock().saw(Seen::ProcessDied);
        self.kill(process);
    }

    /// Breaks the session of a connection.
    pub(super) fn handle_break(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        self.break_session(plan.from, plan.to);
    }

    /// Silences a port, by its number in the world.
    pub(super) fn silence_port(&mut self, port: usize) {
        for (connection, rail, _) in self.rails_through(port) {
            self.count_blow(Blow::PortSilent, connection, &[true, false], Some(rail));
        }
        let mut state = self.world.lock();
        state.silence_port(port);
        if self.faults.recovers {
            let heal_ns = state.chance.below(self.faults.heal_ns + 1);
            state.later(heal_ns, Task::Heal(port));
        }
        state.saw(Seen::PortDied);
        for process in 0..self.processes.len() {
            if self.processes[process].domains.iter().any(|domain| domain.port() == port) {
                state.record(Kind::Death, Who::Process(process), [4, port as u64, 0, 0]);
            }
        }
        drop(state);
        for (connection, rail, _) in self.rails_through(port) {
            self.strike(connection, &[true, false], Strike::RailSilent(rail));
        }
    }

    /// Lets a port carry packets again. Its host may tell the connections there.
    pub(super) fn handle_heal(&mut self, port: usize) {
        self.world.lock().heal_port(port);
        let has_event = self.chance.below(2) == 0;
        for (connection, _, ends) in self.rails_through(port).into_iter().filter(|_| has_event) {
            for sender in ends {
                let (side, now_ns) = (Side { connection, sender }, self.now_ns());
                self.with_recovering(side, |end| end.hurry_recovery(now_ns));
                self.carry_recovery(side);
            }
        }
    }

    /// Returns the rails through a port, by its number in the world: the connection and the rail's number in it, and
    /// the ends that are at the port (true for the sender).
    pub(super) fn rails_through(&self, port: usize) -> Vec<(usize, u8, Vec<bool>)> {
        let is_at = |process: usize, index: u8| {
            let domain = self.processes[process].domains.get(usize::from(index));
            domain.is_some_and(|domain| domain.port() == port)
        };
        let mut found = Vec::new();
        for (connection, Pair { plan, .. }) in self.connections.iter().enumerate() {
            for (rail, (ours, theirs)) in plan.pairs.iter().enumerate() {
                let ends = [(true, is_at(plan.from, *ours)), (false, is_at(plan.to, *theirs))];
                let ends: Vec<bool> = ends.into_iter().filter(|(_, is_there)| *is_there).map(|(end, _)| end).collect();
                if !ends.is_empty() {
                    found.push((connection, rail as u8, ends));
                }
            }
        }
        found
    }

    /// Kills a rail, whose two ends have these numbers in the world; `loud` makes its lanes fail at once.
    pub(super) fn kill_rail(&mut self, ends: [usize; 2], loud: bool) {
        let blow = if loud { Blow::RailError } else { Blow::RailSilent };
        self.count_blow_at(blow, ends[0], &[true, false]);
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

    /// Counts a blow at a rail, at which this end is by its number in the world.
    fn count_blow_at(&self, blow: Blow, end: usize, ends: &[bool]) {
        let place = self.world.lock().place_of(end);
        if let Some(place) = place {
            self.count_blow(blow, place.connection, ends, Some(place.rail));
        }
    }

    /// Fails the lanes of the first of these two ends of a rail, by their numbers in the world. The other end hears
    /// nothing of it.
    pub(super) fn fail_end(&mut self, [end, peer]: [usize; 2]) {
        self.count_blow_at(Blow::RailOneEnd, end, &[true, false]);
        let mut state = self.world.lock();
        let (Some(place), Some(other)) = (state.place_of(end), state.place_of(peer)) else { return };
        state.saw(Seen::RailDiedOneEnd);
        let now_ns = state.now_ns;
        state.record(Kind::Death, who(place), [3, 0, 0, 0]);
        let watch = &mut state.observer.watch;
        watch.strike(now_ns, place.connection, place.sender, Strike::RailFailed(place.rail));
        watch.strike(now_ns, other.connection, other.sender, Strike::RailSilent(other.rail));
        state.fail(end);
    }
}
