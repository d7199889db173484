//! The receiver's slots and the buffers of its receives.

use crate::config::{Config, leader};
use crate::cts;
use crate::mutation::Mutation;
use crate::property::Property;
use crate::state::State;

/// The newest message that uses the slot of `message`.
pub(crate) fn newest_use(c: &Config, s: &State, message: usize) -> usize {
    message + (usize::from(s.receiver.next) - 1 - message) / c.slots * c.slots
}

/// Returns true if a later receive has taken the buffer of `message`, as far as the receiver notices.
pub(crate) fn is_buffer_taken(c: &Config, s: &State, message: usize) -> bool {
    c.newest_in_buffer_of(message, s.receiver.next.into()) != message
}

/// Returns true if the application may post a receive in the buffer of `message`, and the receiver lets it.
pub(crate) fn is_free(c: &Config, s: &State, message: usize) -> bool {
    let r = &s.receiver;
    if r.complete.has(message) {
        return !c.messages[message].is_gpu || r.flushed.has(message);
    }
    // The application sees the data of an early receive in memory. A part that was called unseen will be written again.
    let is_hindered = !r.slots[message].unseen.is_empty();
    let is_hindered = is_hindered && !c.breaks_rule(Mutation::ReuseUnhindered);
    c.messages[message].is_early && s.has_all_bytes(c, message) && !is_hindered
}

/// Completes the slot if each active rail's part was seen.
pub(crate) fn complete(c: &Config, s: &mut State, message: usize) -> Result<(), Property> {
    let slot = s.receiver.slots[message];
    if s.receiver.complete.has(message) || slot.mask.is_empty() || slot.seen != slot.mask {
        return Ok(());
    }
    // A device that died has taken bytes from GPU memory. The flush finds out.
    let is_lost = c.messages[message].is_gpu && s.has_dead_device();
    if !is_lost && !s.has_all_bytes(c, message) {
        return Err(Property::Placed);
    }
    let has_size = if c.messages[message].has_record {
        let record = &mut s.memory.records[message % c.slots];
        usize::from(std::mem::take(record)) == message + 1
    } else {
        let is_told = slot.is_told_size && !c.breaks_rule(Mutation::RepairsSummed);
        is_told || usize::from(slot.sum) == slot.mask.iter().count() * usize::from(c.lanes)
    };
    if !has_size {
        return Err(Property::ExactSize);
    }
    s.receiver.complete.add(message);
    cts::forget_complete(c, s);
    Ok(())
}

/// Returns true if the write of this part carries the record.
pub(crate) fn carries_record(c: &Config, s: &State, carried: &crate::state::Arrival) -> bool {
    let message = usize::from(carried.message);
    let is_leader = leader(s.sender.masks[message]) == usize::from(carried.part);
    let is_left_out = carried.is_repair && c.breaks_rule(Mutation::RepairWithoutRecord);
    c.messages[message].has_record && is_leader && carried.lane == 0 && !is_left_out
}
