//! The reports of a receiving connection's rails, and the state that they change.

use std::sync::Arc;

use railweave_fabric::{Fabric, LaneId, RailError, RailId, RailSet, Reports, WorkId};

use super::holds::Holds;
use crate::Fate;
use crate::connection::{Fatal, Outstanding};
use crate::flush::Flushes;
use crate::rails::RailSide;
use crate::receive_credits::ReceiveCredits;
use crate::slots::{Slots, Source};
use crate::violation::Violation;
use crate::work::WorkKind;

/// The state that the rails' reports change.
pub(super) struct Inbox {
    pub(super) slots: Slots,
    pub(super) credits: ReceiveCredits,
    pub(super) flushes: Flushes,
    pub(super) holds: Holds,
    /// The rails with a check on its way.
    pub(super) checked: RailSet,
    /// The rails that may still owe the peer an acknowledgement or a CTS; empty unless both ends must poll for anything
    /// to move.
    pub(super) owing: RailSet,
    /// See [`Outstanding::fatal`].
    pub(super) fatal: Option<Box<Fatal>>,
    pub(super) fate: Arc<Fate>,
}

impl Inbox {
    /// Notes that the rail in `alone` may owe the peer something: it was polled, which may have placed data, or a CTS
    /// was posted over it, which leaves later if there is no room. [`Rail::owes`](railweave_fabric::Rail::owes) tells
    /// if it does.
    #[inline(always)]
    pub(super) fn may_owe<F: Fabric>(&mut self, alone: RailSet) {
        if !F::ONE_SIDED {
            self.owing |= alone;
        }
    }
}

impl Inbox {
    /// Handles the completion of work that is no CTS.
    #[cold]
    #[inline(never)]
    fn handle_other_sent(&mut self, rail: RailId, id: WorkId) {
        match WorkKind::from_id(id) {
            Some(WorkKind::Flush { request, generation }) => {
                self.flushes.handle_sent(usize::from(request), generation, rail);
            }
            Some(WorkKind::Probe(probe)) => self.fate.set_probe_carried(probe),
            Some(WorkKind::Check) => self.checked.remove(rail),
            Some(WorkKind::Hold(number)) => drop(self.holds.handle_sent(number, rail)),
            _ => panic!("a receiver got a completion of work that it never posts: {:#x}", id.0),
        }
    }
}

impl Outstanding for Inbox {
    #[inline(always)]
    fn reports<'a, F: Fabric>(&'a mut self, side: &'a mut RailSide) -> impl Reports {
        self.may_owe::<F>(side.alone);
        Arrivals { inbox: self, side }
    }

    #[inline(always)]
    fn fatal(&mut self) -> &mut Option<Box<Fatal>> {
        &mut self.fatal
    }
}

/// Handles the reports of one rail. No receive completes after a report that the peer broke the protocol.
struct Arrivals<'a> {
    inbox: &'a mut Inbox,
    side: &'a mut RailSide,
}

impl Reports for Arrivals<'_> {
    #[inline(always)]
    fn handle_sent(&mut self, id: WorkId) {
        if id != WorkKind::Cts.id() {
            self.inbox.handle_other_sent(self.side.id, id);
        }
    }

    #[inline(always)]
    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32) {
        let Inbox { slots, credits, fatal, .. } = &mut *self.inbox;
        let RailSide { alone, info, receives, .. } = &mut *self.side;
        receives.handle_taken();
        info.counters.count_received(u64::from(bytes));
        if receives.stripes == 1 {
            if slots.handle_whole(*alone, immediate, bytes) {
                // One receive fewer is posted, and one slot fewer needs one, so the credits stay the same.
                return;
            }
            if let Some(is_last) = slots.handle_share(*alone, immediate, bytes) {
                credits.handle_taken();
                if is_last {
                    credits.handle_completed();
                }
                return;
            }
        }
        credits.handle_taken();
        let rail = alone.first().unwrap_or_default();
        match slots.handle_part(Source { rail, lane: lane.0, stripes: receives.stripes }, immediate, bytes) {
            Ok(true) => credits.handle_completed(),
            Ok(false) => {}
            Err(fault) => {
                slots.close();
                let said = slots.layout().decode(immediate);
                Fatal::keep(fatal, || Fatal::Broke(Violation::Immediate { bits: immediate, said, fault: *fault }));
            }
        }
    }

    #[inline(always)]
    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>) {
        Fatal::keep(&mut self.inbox.fatal, || Fatal::Failed { lane, id, error });
    }
}
