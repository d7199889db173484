//! The CTS ring: entries that the receiver writes, and the places that it may use again.

use crate::config::Config;
use crate::mutation::Mutation;
use crate::property::Property;
use crate::state::{Copied, Receiving, Sending, State};

/// Returns true if the receiver may write `entry` over the older entry at its place.
pub(crate) fn is_place_free(c: &Config, s: &State, entry: usize) -> bool {
    let Some(old) = entry.checked_sub(c.places) else { return true };
    let r = &s.receiver;
    if !r.complete.has(c.message_of(old)) {
        return false;
    }
    // An entry that was written once has landed: otherwise its slot would not be complete.
    if c.breaks_rule(Mutation::PlaceReusedAtOnce) || !r.written_again.has(old) {
        return true;
    }
    let is_in_flight = |rail: usize, copy: &Copied| {
        let on_rail = &r.rails[rail];
        let is_given_up = on_rail.stage != Receiving::Live || copy.e != on_rail.e;
        usize::from(copy.entry) == old
            && !copy.is_settled
            && !(is_given_up && c.breaks_rule(Mutation::GivenUpIsSettled))
            && (is_given_up || !c.breaks_rule(Mutation::PlaceIgnoresSlowRail))
    };
    !(0..c.rails).any(|rail| r.rails[rail].copies.items().iter().any(|copy| is_in_flight(rail, copy)))
}

/// Returns true if CTS may use the rail.
pub(crate) fn is_usable(c: &Config, s: &State, rail: usize) -> bool {
    let r = &s.receiver.rails[rail];
    r.stage == Receiving::Live && (r.is_up || c.breaks_rule(Mutation::CtsBeforeUp))
}

/// Writes all entries that are due, on `rail`. Those that are written again are signalled.
pub(crate) fn write(c: &Config, s: &mut State, rail: usize) -> Result<(), Property> {
    let sending = &s.sender.rails[rail];
    if sending.stage == Sending::Offered && sending.e == s.receiver.rails[rail].e {
        return Err(Property::PeerReady);
    }
    let r = &mut s.receiver;
    let due = std::mem::take(&mut r.due);
    let mut is_again = false;
    for entry in due.iter() {
        let is_written = r.written.has(entry);
        if is_written {
            r.written_again.add(entry);
        }
        r.written.add(entry);
        is_again |= is_written;
        let is_signalled = is_written && !c.breaks_rule(Mutation::RewritesUnsignalled);
        let entry = entry.try_into().expect("an entry");
        let e = r.rails[rail].e;
        r.rails[rail].copies.push(Copied { entry, e, has_landed: false, is_signalled, is_settled: false });
    }
    if is_again && !c.breaks_rule(Mutation::CtsNotProbed) {
        // An empty signalled write behind the newest entry on each other rail tells when the copies there have landed.
        let others = r.rails.iter_mut().enumerate().filter(|(other, _)| *other != rail);
        for (_, other) in others.filter(|(_, other)| other.stage == Receiving::Live) {
            let e = other.e;
            if let Some(copy) = other.copies.items_mut().iter_mut().rfind(|copy| copy.e == e) {
                copy.is_signalled = true;
            }
        }
    }
    Ok(())
}

/// All entries from the oldest open slot on are due again.
pub(crate) fn repeat_all(c: &Config, s: &mut State) {
    if c.breaks_rule(Mutation::CtsNotRepeated) {
        return;
    }
    let r = &mut s.receiver;
    let next = usize::from(r.next);
    let oldest = (0..next).find(|message| !r.complete.has(*message)).unwrap_or(next);
    for message in oldest..next {
        c.entries(message).for_each(|entry| r.due.add(entry));
    }
}

/// Entries before the oldest open slot are not due any more: their places may be used again.
pub(crate) fn forget_complete(c: &Config, s: &mut State) {
    if c.breaks_rule(Mutation::DueSinceFailure) {
        return;
    }
    let r = &mut s.receiver;
    let oldest = (0..usize::from(r.next)).find(|message| !r.complete.has(*message)).unwrap_or(r.next.into());
    (0..oldest).flat_map(|message| c.entries(message)).for_each(|entry| r.due.remove(entry));
}

/// Returns the place of the copy that may land next on `rail`.
pub(crate) fn landing(s: &State, rail: usize) -> Option<usize> {
    let on_rail = &s.sender.rails[rail];
    let is_next = |copy: &Copied| copy.e == on_rail.e && !copy.has_landed;
    let copies = s.receiver.rails[rail].copies.items();
    if on_rail.takes_cts { copies.iter().position(is_next) } else { None }
}

/// Lands a copy in the ring.
pub(crate) fn land(c: &Config, s: &mut State, rail: usize, index: usize) -> Result<(), Property> {
    let copy = &mut s.receiver.rails[rail].copies.items_mut()[index];
    copy.has_landed = true;
    let place = &mut s.memory.ring[usize::from(copy.entry) % c.places];
    if *place > copy.entry + 1 {
        return Err(Property::RingMovesOn);
    }
    *place = copy.entry + 1;
    Ok(())
}

/// Returns the place of the signalled copy that may complete next on `rail`.
pub(crate) fn completing(s: &State, rail: usize) -> Option<usize> {
    let r = &s.receiver.rails[rail];
    let is_next = |copy: &Copied| copy.e == r.e && copy.is_signalled && copy.has_landed;
    if r.stage == Receiving::Live { r.copies.items().iter().position(is_next) } else { None }
}

/// Polls the completion of a signalled copy: it and those before it have landed.
pub(crate) fn complete(c: &Config, s: &mut State, rail: usize, index: usize) {
    let r = &mut s.receiver.rails[rail];
    let e = r.e;
    for before in (0..=index).rev() {
        if r.copies.items()[before].e == e && (before == index || !c.breaks_rule(Mutation::CompletionSpeaksForItself)) {
            r.copies.remove(before);
        }
    }
}
