//! Closed ends, which the freeing thread of their process destroys: their lanes are put into error, then the lanes are
//! destroyed, then everything else.

use super::game::{Game, Side};
use super::stage::Stage;
use crate::Seen;
use crate::history::Kind;
use crate::task::Task;
use crate::watch::Strike;
use crate::witness::Note;

/// The longest time that the freeing thread takes to destroy the lanes of an end, once they are in error.
const FREEING_NS: u64 = 50_000;

impl<const O: bool> Game<O> {
    /// Drops an end, with everything that it has.
    pub(super) fn over(&mut self, side: Side) {
        let pair = &mut self.connections[side.connection];
        let failed = if side.sender { pair.sender.failed } else { pair.receiver.failed };
        if side.sender {
            let stage = std::mem::replace(&mut pair.sender.stage, Stage::Over);
            self.destroy(side, stage);
        } else {
            let stage = std::mem::replace(&mut pair.receiver.stage, Stage::Over);
            self.destroy(side, stage);
        }
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.record(Kind::Gone, side.who(), [0; 4]);
        let blame = &mut state.observer.watch.connections[side.connection].blame;
        if blame.may_interrupt(side.sender) {
            blame.strike(now_ns, !side.sender, Strike::PeerGone);
        }
        if !failed && !blame.is_struck() {
            state.saw(Seen::Clean);
        }
    }

    /// Destroys an end at the last stage that it has reached. Over a one-sided fabric the freeing thread destroys one
    /// that has lingered; sockets are closed at once.
    pub(super) fn destroy<H: 'static, C: 'static, A>(&mut self, side: Side, stage: Stage<H, C, A, O>) {
        let made = match stage {
            Stage::Lingering(made) if O => made,
            // It is destroyed once the set-up thread has finished with it.
            Stage::Handshake(handshake, progress) if progress.is_away() => {
                self.abandoned.insert((side.connection, side.sender), Box::new(handshake));
                return;
            }
            _ => return,
        };
        let wait_ns = self.chance.below(FREEING_NS);
        let mut state = self.world.lock();
        for end in state.ends_of(side.connection, side.sender) {
            state.put_into_error(end);
        }
        state.later(wait_ns, Task::Free { connection: side.connection, sender: side.sender });
        drop(state);
        self.freeing.insert((side.connection, side.sender), Box::new(made));
    }

    /// Lets the freeing thread destroy an end, unless its process is dead.
    pub(super) fn handle_free(&mut self, side: Side) {
        let Some(over) = self.freeing.remove(&(side.connection, side.sender)) else { return };
        let mut state = self.world.lock();
        for end in state.ends_of(side.connection, side.sender) {
            state.destroy_lanes(end);
        }
        drop(state);
        drop(over);
    }

    /// Forgets the ends that a process's threads had to destroy.
    pub(super) fn end_freeing(&mut self, process: usize) {
        let connections = &self.connections;
        for destroyed in [&mut self.freeing, &mut self.abandoned] {
            destroyed.retain(|(connection, sender), _| {
                let plan = &connections[*connection].plan;
                (if *sender { plan.from } else { plan.to }) != process
            });
        }
    }
}
