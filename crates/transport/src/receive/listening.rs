//! The receiving end's checks of its rails, by which their silence shows.
//!
//! A receiver posts little that completes: most CTS are unsignalled. So while its oldest receive stays the same from
//! one look to the next, or places of its ring are held back, it posts an empty signalled write on each rail, at most
//! one at a time.

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, Rail, RailId, RailSet, Write};

use super::RecvConnection;
use crate::SLOTS;
use crate::recovery::{Hearing, Hush, Oldest};
use crate::sequence::Sequence;
use crate::slots::State;
use crate::work::WorkKind;

/// The bit that tells the mark of a full queue, the number of its rail's CTS writes, from that of a check.
const FULL: u64 = 1 << 63;

impl<F: Fabric> RecvConnection<F> {
    /// Judges the silences of the rails.
    pub(super) fn listen(&mut self, hearing: Hearing) -> Hush {
        // The application may not have looked for long. The connection keeps an error.
        let _ = self.core.poll(&mut self.inbox);
        // Nor may it make a call soon, and this poll may have put acknowledgements off. What is left is a debt.
        let _ = self.acknowledge();
        let open = self.oldest_open();
        let is_held = self.inbox.holds.oldest().is_some();
        let is_stuck = is_held || open.is_some() && open == self.recovery.stuck;
        self.recovery.stuck = open;
        let full = if F::ONE_SIDED { self.full() } else { RailSet::EMPTY };
        if F::ONE_SIDED && is_stuck {
            self.post_checks(full);
        }
        let mut marks = [None; MAX_RAILS];
        for rail in self.core.rails.usable() {
            let counters = &self.core.rails.get(rail).side.info.counters;
            marks[rail] = match () {
                () if !F::ONE_SIDED => open.map(|open| open.number().into()),
                () if self.inbox.checked.contains(rail) => Some(self.recovery.checks[rail]),
                () => full.contains(rail).then(|| FULL | counters.cts_writes()),
            };
            let received = counters.received_bytes();
            if std::mem::replace(&mut self.recovery.received[rail], received) != received {
                self.core.silences.note_moved(rail, hearing.now_ns);
            }
        }
        let oldest = |rail: RailId| marks[rail].map(|mark| Oldest { mark, bytes: 0 });
        let hush = self.core.judge_silences(hearing, oldest);
        hush.max(if open.is_some() || is_held { Hush::Busy } else { Hush::Idle })
    }

    /// Returns the oldest receive that is not complete.
    fn oldest_open(&self) -> Option<Sequence> {
        let slots = &self.inbox.slots;
        let open = |sequence: &Sequence| matches!(slots.get(sequence.slot()).state, State::Open | State::Early);
        (1..=SLOTS as u32).rev().map(|count| self.head.before(count)).find(open)
    }

    /// Returns the rails without room for a check. Their queues show as much: nothing more is posted to them before
    /// something of theirs is over.
    fn full(&self) -> RailSet {
        let room = |rail: RailId| self.core.rails.get(rail).rail.send_room(LaneId::FIRST);
        self.core.postable().iter().filter(|rail| room(*rail) < 2).collect()
    }

    /// Posts an empty write on each rail that has room for it and none on its way.
    fn post_checks(&mut self, full: RailSet) {
        for rail in self.core.postable().except(self.inbox.checked).except(full) {
            // An earlier one may have failed.
            if self.core.check_open().is_err() || !self.core.postable().contains(rail) {
                continue;
            }
            self.recovery.checks[rail] += 1;
            self.inbox.checked.insert(rail);
            let write = Write { signalled: true, host: true, id: WorkKind::Check.id(), ..Write::default() };
            if let Err(error) = self.core.rails.get_mut(rail).rail.post_fitting(LaneId::FIRST, &[write]) {
                // The connection keeps an error.
                let _ = self.core.post_failed(rail, error, &mut self.inbox);
            }
        }
    }
}
