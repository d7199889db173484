//! Deaths that wait for a situation: each kind strikes in each, however rare that is.

use super::game::{Game, Side};
use super::stage::Stage;
use crate::Situation;
use crate::task::Task;

/// The number of looks for a situation, and what each adds to the pause before the next, in nanoseconds.
const LOOKS: u32 = 120;
const PAUSE_NS: u64 = 2_000;

/// The most rails that a look judges.
const MOST_RAILS: usize = 4;

impl<const O: bool> Game<O> {
    /// Lets an aimed death of the plan strike something that is in its situation, or looks for that again soon.
    pub(super) fn handle_aim(&mut self, number: usize, looks: u32) {
        let aimed = self.faults.aimed[number];
        let mut rails = self.world.lock().connected_ends();
        self.chance.shuffle(&mut rails);
        let target = rails.into_iter().take(MOST_RAILS).find(|(end, _)| self.is_in(*end, aimed.situation));
        match target {
            Some(target) => self.strike_rail(aimed.kind, target),
            None if looks < LOOKS => {
                let pause_ns = 1 + self.chance.below(u64::from(looks + 1) * PAUSE_NS);
                self.world.lock().later(pause_ns, Task::Aim { number, looks: looks + 1 });
            }
            None => {}
        }
    }

    /// Returns true if an end of a rail, by its number in the world, is in a situation, and its application goes on.
    fn is_in(&self, end: usize, situation: Situation) -> bool {
        let Some(place) = self.world.lock().place_of(end) else { return false };
        let side = Side { connection: place.connection, sender: place.sender };
        let pair = &self.connections[side.connection];
        let is_over = if side.sender {
            matches!(pair.sender.stage, Stage::Over)
        } else {
            matches!(pair.receiver.stage, Stage::Over)
        };
        !is_over && self.situations(side, Some(place.rail)).contains(&situation)
    }
}
