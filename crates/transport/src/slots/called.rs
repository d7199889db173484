//! The receives that have notes on their parts, because a rail has lost one, or has ended since it brought one: the
//! judgement on what has come, and the parts that come again.

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

use super::lost::{Called, Judged};
use super::{Slots, Source, State};
use crate::message::Listed;
use crate::violation::{ImmediateFault, RailFault};
use crate::{Immediate, Slot};

impl Slots {
    pub(super) fn called(&mut self, slot: Slot) -> Option<&mut Called> {
        self.called.iter_mut().find(|called| called.slot == slot)
    }

    /// Handles the immediate of a part that another rail has lost: its mask is empty, and size_q names the part.
    pub(super) fn handle_repair(&mut self, from: Source, immediate: Immediate) -> Result<bool, Box<ImmediateFault>> {
        let slot = immediate.slot;
        let part = RailId::new(immediate.size_q as usize);
        let called = self.called.iter_mut().find(|called| called.slot == slot);
        let Some((called, part)) = called.zip(part).filter(|(called, part)| called.missing.contains(*part)) else {
            return Err(Box::new(ImmediateFault::NotMissing));
        };
        called.missing.remove(part);
        called.through[part] = Some(from.rail);
        let receive = &mut self.slots[slot];
        receive.seen.insert(part);
        if receive.seen == receive.expected { self.complete(slot) } else { Ok(false) }
    }

    /// Forgets the parts of open receives that a rail has brought into GPU memory, because they can no longer be made
    /// visible there: the sender may send them again. Those stay that its earlier lanes had brought. Nobody sends a
    /// complete receive again, so a flush of it has to fail.
    pub(crate) fn hide(&mut self, rail: RailId) {
        for number in 0..=u8::MAX {
            let slot = Slot::new(number);
            let hidden = self.brought_by(rail, slot);
            if !hidden.is_empty() {
                let called = self.call(slot);
                called.lose(hidden);
                called.hidden |= hidden;
                let receive = &mut self.slots[slot];
                receive.seen = receive.seen.except(hidden);
            }
            let receive = &mut self.slots[slot];
            if receive.state == State::Complete && receive.flushable && receive.expected.contains(rail) {
                receive.expected.remove(rail);
                self.note_hidden(slot, rail);
            }
        }
    }

    /// Notes that nobody can make visible what a rail has brought of a receive.
    fn note_hidden(&mut self, slot: Slot, rail: RailId) {
        let Self { slots, hidden, .. } = self;
        let exists = |first_entry: u64| slots.iter().any(|receive| receive.first_entry == first_entry);
        hidden.note(slots[slot].first_entry, rail, exists);
    }

    /// Takes the rails that have brought a part of a complete receive which can never be made visible to the GPU.
    #[inline]
    pub(crate) fn take_hidden(&mut self, slot: Slot) -> RailSet {
        self.hidden.take(self.slots[slot].first_entry)
    }

    /// Notes that everything is visible that a rail has brought into GPU memory: its lanes have ended.
    pub(crate) fn show(&mut self, rail: RailId) {
        for number in 0..=u8::MAX {
            let slot = Slot::new(number);
            let shown = self.brought_by(rail, slot);
            if !shown.is_empty() {
                self.call(slot).shown |= shown;
            }
            let receive = &mut self.slots[slot];
            if receive.state == State::Complete && receive.flushable {
                receive.expected.remove(rail);
            }
        }
    }

    /// Returns the parts of an open receive into GPU memory that a rail has brought, without those that are known to be
    /// visible.
    fn brought_by(&self, rail: RailId, slot: Slot) -> RailSet {
        let receive = &self.slots[slot];
        if receive.state != State::Open || !receive.flushable || receive.expected.is_empty() {
            return RailSet::EMPTY;
        }
        match self.called.iter().find(|called| called.slot == slot) {
            Some(called) => {
                let unshown = receive.seen.except(called.shown);
                unshown.iter().filter(|part| called.carrier(*part) == Some(rail)).collect()
            }
            None => receive.seen & RailSet::only(rail),
        }
    }

    /// Returns the notes on a receive, to change them. They begin now if there are none.
    fn call(&mut self, slot: Slot) -> &mut Called {
        // These are the bits of another slot: none of this receive takes the short way from now on.
        self.slots[slot].bits = u32::from(!slot.number());
        let place = self.called.iter().position(|called| called.slot == slot).unwrap_or_else(|| {
            self.called.push(Called::new(slot));
            self.called.len() - 1
        });
        &mut self.called[place]
    }

    /// Judges the parts of an open receive that a rail was to bring, now that it can bring nothing more. Those that
    /// have not come will be sent again, unless the receive `is_taken` again: then the application has its data. Those
    /// that have come, cannot be made visible and will not be sent again count as come: a flush fails, if there is one.
    ///
    /// # Errors
    /// If the sender contradicts what the immediates have said, or says what cannot be.
    pub(crate) fn judge(
        &mut self,
        slot: Slot,
        rail: RailId,
        listed: &Listed,
        is_taken: bool,
    ) -> Result<Judged, RailFault> {
        let size_q = listed.size.map_or(self.layout.all_ones(), |size| self.layout.size_q(size.into()));
        let hidden = self.called(slot).map_or(RailSet::EMPTY, |called| called.hidden);
        let receive = &mut self.slots[slot];
        let is_new = receive.expected.is_empty();
        // The sender knows no size any more of a message that is done for it.
        let fits_size = listed.unsure.is_empty() || receive.size_q == size_q;
        let fits = is_new || receive.expected == listed.mask && fits_size;
        let Listed { sequence, mask, size, .. } = *listed;
        let contradiction = RailFault::Contradiction { sequence, mask: mask.bits(), size };
        if !fits || !mask.is_within(self.came_up) {
            return Err(contradiction);
        }
        let mut seen = if is_new { RailSet::EMPTY } else { receive.seen };
        if !listed.placed.is_within(seen | hidden) {
            return Ok(Judged::Lost);
        }
        let (missing, kept) = (listed.unsure.except(seen), listed.placed & hidden);
        if missing.is_empty() && kept.is_empty() {
            return Ok(Judged::Seen { parts: seen, is_last: false });
        }
        seen |= kept;
        if is_new {
            (receive.expected, receive.size_q) = (listed.mask, size_q);
            (receive.bytes, receive.lanes_seen) = (0, [0; MAX_RAILS]);
        }
        if is_taken {
            seen |= missing;
        }
        receive.seen = seen;
        let is_complete = seen == receive.expected;
        let (size, missing) = (listed.size, if is_taken { RailSet::EMPTY } else { missing });
        let is_sure = listed.unsure.is_empty();
        let called = self.call(slot);
        called.lose(missing);
        called.missing = called.missing.except(kept);
        called.hidden = called.hidden.except(kept | missing);
        if !is_sure {
            called.size = size;
        }
        called.is_taken |= is_taken;
        if !kept.is_empty() {
            self.note_hidden(slot, rail);
        }
        if is_complete {
            self.complete(slot).map_err(|_| contradiction)?;
        }
        Ok(Judged::Seen { parts: seen, is_last: is_complete })
    }

    /// Returns the slots of receives that were reported early, and of which a part has to come again.
    pub(crate) fn called_early(&self) -> impl Iterator<Item = Slot> {
        let missing = self.called.iter().filter(|called| !called.missing.is_empty()).map(|called| called.slot);
        missing.filter(|slot| self.get(*slot).state == State::Early)
    }

    /// Forgets what was lost of a receive that is complete. Returns it.
    pub(super) fn forget(&mut self, slot: Slot) -> Option<Called> {
        let place = self.called.iter().position(|called| called.slot == slot)?;
        Some(self.called.swap_remove(place))
    }

    /// Frees a slot whose application has its data already.
    pub(super) fn free_taken(&mut self, slot: Slot) {
        // The slot's next use must not find a record of this one.
        self.records.take(slot, 0);
        self.slots[slot].state = State::Free;
        self.completed = self.completed.wrapping_add(1);
    }
}
