//! The looks of a control thread at the open ends of its process, for rails that fall silent.

use railweave_fabric::{RailId, RailSet};
use railweave_transport::{Hearing, Hush, RailInfo};

use super::game::{Game, Side};
use super::stage::Stage;
use crate::sabotage::Sabotage;
use crate::task::Task;
use crate::watch::Strike;

impl<const O: bool> Game<O> {
    /// Schedules a look at an end after this time, in nanoseconds; none after 0.
    pub(super) fn listen_again(&self, side: Side, after_ns: u64) {
        let Side { connection, sender } = side;
        if after_ns > 0 && !self.plot.is(Sabotage::SilenceUnnoticed) {
            self.world.lock().later(after_ns, Task::Listen { connection, sender });
        }
    }

    /// Lets the control thread look at an end.
    pub(super) fn handle_listen(&mut self, side: Side) {
        let pair = &self.connections[side.connection];
        let route = if side.sender { pair.sender.route } else { pair.receiver.route };
        let Some((session, _)) = route else { return };
        let now_ns = self.now_ns();
        let heard_ns = self.plot.heard_ns(self.sessions.ends[session].protocol.heard_ns());
        let before = self.down(side);
        let hush = self.with_recovering(side, |end| end.look_for_silence(Hearing { now_ns, heard_ns }));
        let Some(hush) = hush else { return };
        // They may have worked.
        for rail in self.note_given_up(side, before) {
            self.strike(side.connection, &[true, false], Strike::RailFailed(rail.index() as u8));
        }
        self.carry_recovery(side);
        let timeout_ns = self.faults.rail_timeout_ns;
        if hush == Hush::Doubtful {
            self.tell(side, |session, _, now_ns| session.doubt(timeout_ns, now_ns));
        }
        self.listen_again(side, if hush == Hush::Idle { timeout_ns } else { timeout_ns / 2 });
    }

    /// Notes the rails that an end has just given up, before which these were down. Returns them.
    pub(super) fn note_given_up(&self, side: Side, before: RailSet) -> RailSet {
        let rails = self.down(side).except(before);
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let watched = &mut state.observer.watch.connections[side.connection];
        if side.sender && !rails.is_empty() {
            watched.will_give_up();
        }
        if !side.sender {
            rails.iter().for_each(|rail| watched.went_down(now_ns, false, rail.index() as u8));
        }
        rails
    }

    /// Returns the rails of an end that are down.
    pub(super) fn down(&self, side: Side) -> RailSet {
        let pair = &self.connections[side.connection];
        let rails: Vec<RailInfo> = match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.rails(),
            (false, _, Stage::Up(comm, _)) => comm.rails(),
            _ => Vec::new(),
        };
        rails.iter().filter(|rail| rail.counters.is_down()).filter_map(|rail| RailId::new(rail.index)).collect()
    }
}
