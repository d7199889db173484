//! The number of slots that may still be opened: a receive is posted for every immediate of a slot before the slot's
//! CTS goes out.

use railweave_fabric::{Fabric, Rail, Role};

use crate::config::ConnectionConfig;
use crate::depths::{Depths, immediates_of_slot};
use crate::posted_receives::PostedReceives;
use crate::rails::Rails;

/// The most receives that are posted on one rail at once, so that no call takes long.
const REFILL_MOST: u32 = 64;

/// The number of slots that may still be opened: the receives that they need are posted on every rail, in addition to
/// those of the open slots. Each receive that is taken lowers the number, whatever its rail, so at worst it is too
/// small; [`Self::refill`] counts again.
pub(crate) struct ReceiveCredits {
    slots: i32,
}

impl ReceiveCredits {
    /// Returns the credits before any receive is posted, and sets up the rails' counts of receives.
    pub(crate) fn new<F: Fabric>(rails: &mut Rails<F>, config: &ConnectionConfig) -> Self {
        let count = rails.count();
        for connected in rails.iter_mut() {
            let (lanes, striped) = (connected.lanes, config.striped);
            let depth = Depths::new(Role::Receiver, lanes, count, striped, connected.rail.max_write()).receive;
            let (per_slot, stripes) = (immediates_of_slot(lanes, count, striped), if striped { lanes } else { 1 });
            connected.side.receives = PostedReceives { depth, posted: 0, per_slot, stripes };
        }
        Self { slots: 0 }
    }

    /// Returns true if receives are posted for one more slot. Otherwise [`Self::refill`] may help.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.slots > 0
    }

    /// Notes that a slot was opened, which reserves receives.
    #[inline]
    pub(crate) fn handle_opened(&mut self) {
        self.slots -= 1;
    }

    /// Notes that an immediate has taken a receive of some rail.
    #[inline]
    pub(crate) fn handle_taken(&mut self) {
        self.slots -= 1;
    }

    /// Notes that a slot is owed no more immediates, which ends its reservation.
    #[inline]
    pub(crate) fn handle_completed(&mut self) {
        self.slots += 1;
    }

    /// Posts missing receives, and counts the slots that may be opened in addition to the `open` ones. A broken rail
    /// reports the reason in a completion.
    pub(crate) fn refill<F: Fabric>(&mut self, rails: &mut Rails<F>, open: u32) {
        let mut covered = u32::MAX;
        for rail in rails.usable() {
            let connected = rails.get_mut(rail);
            let missing = connected.side.receives.depth.saturating_sub(connected.side.receives.posted);
            // If none could be posted, a lane may have run out of receives although the rail has not.
            covered = match connected.rail.post_receives(missing.min(REFILL_MOST)) {
                Ok(posted) => {
                    connected.side.receives.posted += posted;
                    covered.min(connected.side.receives.posted / u32::from(connected.side.receives.per_slot))
                }
                Err(_) => 0,
            };
        }
        self.slots = covered as i32 - open as i32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_costs_the_receives_that_its_immediates_take() {
        for immediates in 0..8 {
            let mut credits = ReceiveCredits { slots: 100 };
            credits.handle_opened();
            assert_eq!(credits.slots, 99, "it reserves one");
            (0..immediates).for_each(|_| credits.handle_taken());
            credits.handle_completed();
            assert_eq!(credits.slots, 100 - immediates);
        }
    }

    #[test]
    fn the_last_credit_can_be_used_and_no_more() {
        let mut credits = ReceiveCredits { slots: 1 };
        assert!(credits.is_any());
        credits.handle_opened();
        assert!(!credits.is_any());
        credits.handle_taken();
        assert!(!credits.is_any());
    }
}
