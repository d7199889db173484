//! How many slots more may be opened: every immediate that an open slot may bring has its receive posted before the
//! slot's CTS goes out.

use railweave_fabric::{Fabric, Rail, Role};

use crate::config::ConnectionConfig;
use crate::depths::Depths;
use crate::pool::Pool;
use crate::rails::Rails;

/// The most receives that are posted on one rail at once, so that no call takes long.
const REFILL_MOST: u32 = 64;

/// How many slots more may be opened: for them, as for all open ones, receives are posted on every rail. It is counted
/// down with each receive that is taken, whatever its rail, so at worst it is too small; [`Self::refill`] counts anew.
pub(crate) struct Spare {
    slots: i32,
}

impl Spare {
    /// Gives the rails their pools, which are still empty.
    pub(crate) fn new<F: Fabric>(rails: &mut Rails<F>, config: &ConnectionConfig) -> Self {
        for connected in rails.iter_mut() {
            let depth =
                Depths::new(Role::Receiver, connected.lanes, config.striped, connected.rail.max_write()).receive;
            connected.side.pool = Pool { depth, posted: 0, per_slot: if config.striped { connected.lanes } else { 1 } };
        }
        Self { slots: 0 }
    }

    /// Returns true if receives are posted for one more slot. Otherwise [`Self::refill`] may change it.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.slots > 0
    }

    /// A slot was opened.
    #[inline]
    pub(crate) fn handle_opened(&mut self) {
        self.slots -= 1;
    }

    /// An immediate has taken a receive of some pool.
    #[inline]
    pub(crate) fn handle_taken(&mut self) {
        self.slots -= 1;
    }

    /// No immediate is owed for a slot any more: what it did not take is spare again.
    #[inline]
    pub(crate) fn handle_completed(&mut self) {
        self.slots += 1;
    }

    /// Posts receives that are missing, and counts for how many slots there are besides the `open` ones. A rail that is
    /// broken says why in a completion.
    pub(crate) fn refill<F: Fabric>(&mut self, rails: &mut Rails<F>, open: u32) {
        let mut covered = u32::MAX;
        for rail in rails.usable() {
            let connected = rails.get_mut(rail);
            let missing = connected.side.pool.depth.saturating_sub(connected.side.pool.posted);
            // Where none could be posted, a lane may have run out of its own though the pool has not.
            covered = match connected.rail.post_receives(missing.min(REFILL_MOST)) {
                Ok(posted) => {
                    connected.side.pool.posted += posted;
                    covered.min(connected.side.pool.posted / u32::from(connected.side.pool.per_slot))
                }
                Err(_) => 0,
            };
        }
        self.slots = covered as i32 - open as i32;
    }
}
