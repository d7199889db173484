//! The rates of rails, which drift and jump.

use super::link::Pace;
use super::state::State;
use crate::observer::{Mishap, Observer};

impl<O: Observer> State<O> {
    /// Returns the time at which the last of `bytes` bytes is on the wire of an end, if the first is at `start_ns`.
    pub(super) fn wire_time(&mut self, id: usize, start_ns: u64, bytes: u64) -> u64 {
        let Some(end) = self.ends[id].as_ref() else { return start_ns };
        if self.faults.rate_change_ns == 0 {
            return start_ns + bytes * 8_000 / end.pace.base_mbps;
        }
        let (mut pace, mut at_ns, mut left) = (end.pace, start_ns, bytes * 8_000);
        loop {
            if at_ns >= pace.until_ns {
                self.change(&mut pace, at_ns);
            }
            let (mbps, room_ns) = (pace.now_mbps(), pace.until_ns - at_ns);
            if left / mbps <= room_ns {
                at_ns += left / mbps;
                break;
            }
            left -= room_ns * mbps;
            at_ns = pace.until_ns;
        }
        if let Some(end) = self.ends[id].as_mut() {
            end.pace = pace;
        }
        at_ns
    }

    /// Changes a pace. Times at which the rail carries nothing count as one step, however long they are.
    fn change(&mut self, pace: &mut Pace, at_ns: u64) {
        let faults = &self.faults;
        let (base, most_ns) = (pace.base_mbps, faults.rate_change_ns);
        let steps_ns = 1 + most_ns / 4;
        let mishap = if !pace.stands_still && self.weather.permille(faults.standstill_permille) {
            pace.stands_still = true;
            pace.until_ns = at_ns + 1 + self.weather.below(faults.standstill_ns);
            return self.suffer(Mishap::Standstill);
        } else if self.weather.permille(faults.rate_jump_permille) {
            pace.mbps = self.weather.between((base / 10).max(1), base.max(2));
            if self.weather.permille(500) {
                pace.mbps = self.weather.between(base, base * 10);
            }
            Mishap::RateJump
        } else {
            let drifted = pace.mbps * self.weather.between(900, 1100) / 1000;
            pace.mbps = drifted.clamp((base / 10).max(1), base * 10);
            Mishap::RateDrift
        };
        pace.stands_still = false;
        pace.until_ns = at_ns + self.weather.between(steps_ns, most_ns.max(steps_ns));
        self.suffer(mishap);
    }
}
