//! The work on the rails of an end, and the time of the next look at them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railweave_fabric::RailSet;
use railweave_transport::{Fate, RailWork};

/// The recovery of one end.
#[derive(Default)]
pub(super) struct Recovery {
    /// True once the end has asked for the control thread.
    pub(super) is_called: Arc<AtomicBool>,
    /// The work that threads do, by its numbers.
    pub(super) works: BTreeMap<u32, Box<dyn RailWork>>,
    pub(super) last_work: u32,
    /// The rails that are down.
    pub(super) down: RailSet,
    /// The time for which the next look is scheduled.
    pub(super) timer_ns: Option<u64>,
}

impl Recovery {
    /// Lets an end call the control thread.
    pub(super) fn listen(&self, fate: &Fate) {
        let is_called = Arc::clone(&self.is_called);
        fate.on_recovery(move || is_called.store(true, Ordering::Relaxed));
    }

    /// Forgets all work: the process has ended.
    pub(super) fn end(&mut self) {
        self.works.clear();
    }
}
