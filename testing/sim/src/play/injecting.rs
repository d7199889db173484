//! The fault of an exhaustive run, which strikes one thing at one event.

use railweave_fabric_sim::Outage;

use super::game::{Game, Side};
use super::injection::Injection;
use super::stage::Stage;
use crate::Seen;
use crate::history::Kind;
use crate::witness::Note;

/// The rate of a rail that nearly stands still, in Mbit/s.
const SLOW_MBPS: u64 = 20;

impl<const O: bool> Game<O> {
    /// Lets the planned fault strike. Returns false if the thing that it would strike does not exist at this event.
    pub(super) fn inject(&mut self) -> bool {
        let Some((_, injection)) = self.injection else { return false };
        let text = format!("INJECTED before event {}: {injection:?}", self.steps);
        let has_struck = self.inject_this(injection);
        if has_struck {
            self.injection = self.follow_up(injection);
            self.injection_again = Some(injection);
            self.has_struck = true;
            self.world.lock().observer.history.remark(&text);
        }
        has_struck
    }

    fn inject_this(&mut self, injection: Injection) -> bool {
        match injection {
            Injection::RailSilent { connection, rail } => self.inject_rail_death(connection, rail, false),
            Injection::RailError { connection, rail } => self.inject_rail_death(connection, rail, true),
            Injection::AllRails { connection } => {
                let rails = 0..self.connections[connection].plan.pairs.len() as u8;
                rails.filter(|rail| self.inject_rail_death(connection, *rail, false)).count() > 0
            }
            Injection::RailAndSession { connection, rail } => {
                let plan = &self.connections[connection].plan;
                let (from, to) = (plan.from, plan.to);
                let state = self.world.lock();
                let is_up = [true, false].iter().all(|sender| state.connected_end(connection, *sender, rail).is_some());
                drop(state);
                is_up && self.break_session(from, to) && self.inject_rail_death(connection, rail, false)
            }
            Injection::RailOneEnd { connection, sender, rail } => {
                let state = self.world.lock();
                let ends = [sender, !sender].map(|sender| state.connected_end(connection, sender, rail));
                drop(state);
                let [Some(end), Some(peer)] = ends else { return false };
                self.fail_end([end, peer]);
                true
            }
            Injection::PortSilent(port) => {
                self.silence_port(port);
                true
            }
            Injection::Device(port) => {
                self.fail_device(port);
                true
            }
            Injection::LoopBack(port) => {
                self.fail_loop_back(port);
                true
            }
            Injection::Process(process) => {
                self.world.lock().saw(Seen::ProcessDied);
                self.kill(process);
                true
            }
            // The seed's own death kills the process.
            Injection::Killed => false,
            Injection::Session { from, to } => self.break_session(from, to),
            Injection::Close { connection, sender } => {
                let side = Side { connection, sender };
                let is_open = !self.is_closed(side);
                self.handle_close(side, true);
                is_open
            }
            Injection::Abort(process) => {
                self.handle_abort(process);
                true
            }
            Injection::Silence { connection, sender } => self.inject_silence(Side { connection, sender }),
            Injection::Slow { connection, sender, rail } => {
                let mut state = self.world.lock();
                let end = state.connected_end(connection, sender, rail);
                if let Some(end) = end {
                    state.set_rate(end, SLOW_MBPS);
                }
                end.is_some()
            }
            Injection::Outage { connection, sender, rail, writes, forever } => {
                let mut state = self.world.lock();
                let Some(end) = state.connected_end(connection, sender, rail) else { return false };
                let (from_ns, retry_ns) = (state.now_ns, state.faults.retry_ns);
                let until_ns = if forever { u64::MAX } else { from_ns + retry_ns * 3 / 4 };
                let outage = Outage { writes, acknowledgements: !writes, from_ns, until_ns, is_long: forever };
                state.begin_outage(end, outage);
                true
            }
            Injection::Suspicion { connection, sender, rail } => self.suspect(Side { connection, sender }, rail),
            Injection::BothRails { connection, first, .. } => self.inject_rail_death(connection, first, true),
            Injection::RailAgain { connection, rail } => self.inject_rail_death(connection, rail, true),
        }
    }

    /// Returns what is still to strike after this fault, and the number of the event before which it does.
    fn follow_up(&self, injection: Injection) -> Option<(u64, Injection)> {
        match injection {
            Injection::BothRails { connection, first, after } => {
                Some((self.steps + after, Injection::RailError { connection, rail: 1 - first }))
            }
            _ => None,
        }
    }

    /// Fails a rail that has just come back, if the fault of this run is that.
    pub(super) fn strike_again(&mut self, side: Side, rail: u8) {
        let (connection, sender) = (side.connection, side.sender);
        if sender && self.injection_again == Some(Injection::RailAgain { connection, rail }) {
            self.injection_again = None;
            self.inject_rail_death(connection, rail, true);
        }
    }

    fn inject_rail_death(&mut self, connection: usize, rail: u8, loud: bool) -> bool {
        let state = self.world.lock();
        let ends = [true, false].map(|sender| state.connected_end(connection, sender, rail));
        drop(state);
        let [Some(sender), Some(receiver)] = ends else { return false };
        self.kill_rail([sender, receiver], loud);
        true
    }

    fn inject_silence(&mut self, side: Side) -> bool {
        let until_ns = self.now_ns() + self.faults.pause_ns;
        let pair = &mut self.connections[side.connection];
        match (side.sender, &mut pair.sender, &mut pair.receiver) {
            (true, end, _) if matches!(end.stage, Stage::Up(..)) => end.silent_until_ns = until_ns,
            (false, _, end) if matches!(end.stage, Stage::Up(..)) => end.silent_until_ns = until_ns,
            _ => return false,
        }
        let mut state = self.world.lock();
        state.saw(Seen::Silence);
        state.record(Kind::Silent, side.who(), [until_ns, 0, 0, 0]);
        true
    }
}
