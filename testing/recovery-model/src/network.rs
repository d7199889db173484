//! The way of a write from the sender's post to the receiver's memory and queue.

use crate::config::{Config, Habit};
use crate::mutation::Mutation;
use crate::property::Property;
use crate::sender;
use crate::slots;
use crate::state::{Copied, Reach, Receiving, Sending, State, Write, is_before};

/// Returns the places of the writes that may take a step on `rail`: the oldest of each incarnation and lane.
pub(crate) fn landing(c: &Config, s: &State, rail: usize) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    let writes = s.writes[rail].items();
    for (index, write) in writes.iter().enumerate().filter(|(_, write)| write.at != Reach::Arrived) {
        let is_same_lane = |before: &usize| {
            let before = &writes[*before];
            before.e == write.e && before.carried.lane == write.carried.lane
        };
        if !found.iter().any(is_same_lane) {
            found.push(index);
        }
    }
    found.retain(|index| can_place(s, rail, &writes[*index]) && can_progress(c, s, rail, &writes[*index]));
    found
}

/// Returns true if the receiver's lanes take writes of this incarnation.
fn can_place(s: &State, rail: usize, write: &Write) -> bool {
    let r = &s.receiver.rails[rail];
    r.e == write.e && r.stage != Receiving::Gone && !s.receiver.close.is_over()
}

/// Returns true unless only the immediate is left and the lanes take none.
fn can_progress(c: &Config, s: &State, rail: usize, write: &Write) -> bool {
    write.at == Reach::Posted || takes_immediates(c, s, rail)
}

fn takes_immediates(c: &Config, s: &State, rail: usize) -> bool {
    c.habit == Habit::Keeps || s.receiver.rails[rail].stage != Receiving::Quiet
}

/// Returns true if the write lands sooner or later: both ends keep its lane open.
pub(crate) fn is_certain(s: &State, rail: usize, index: usize) -> bool {
    s.sender.rails[rail].stage == Sending::Up
        && s.writes[rail].items()[index].e == s.sender.rails[rail].e
        && s.receiver.rails[rail].stage == Receiving::Live
}

/// Takes the next step of a write: its bytes land, or its immediate, or both.
pub(crate) fn land(c: &Config, s: &mut State, rail: usize, index: usize) -> Result<(), Property> {
    let write = s.writes[rail].items()[index];
    let message = usize::from(write.carried.message);
    if s.receiver.close.has_said && write.at == Reach::Posted && !s.receiver.complete.has(message) {
        return refuse(c, s, rail, index);
    }
    let r = &s.receiver.rails[rail];
    if r.has_answered {
        return Err(Property::Fenced);
    }
    if write.at == Reach::Posted {
        place(c, s, rail, &write)?;
        s.writes[rail].items_mut()[index].at = Reach::Placed;
        if c.is_torn || !takes_immediates(c, s, rail) {
            return Ok(());
        }
    }
    let r = &mut s.receiver.rails[rail];
    if r.queue.len() >= receives(c, r.credit) {
        return Err(Property::ReceivePosted);
    }
    r.queue.push(write.carried);
    s.writes[rail].items_mut()[index].at = Reach::Arrived;
    Ok(())
}

/// Returns the receives of an incarnation.
fn receives(c: &Config, credit: u8) -> usize {
    let lanes = usize::from(c.lanes);
    if c.breaks_rule(Mutation::NoReceivesForRepairs) {
        c.slots * lanes
    } else if c.breaks_rule(Mutation::OneReceiveForRepairs) {
        c.slots * (lanes + 1)
    } else if c.breaks_rule(Mutation::CreditByAcknowledgement) {
        c.slots * lanes + usize::from(credit)
    } else {
        c.slots * (lanes + c.rails - 1)
    }
}

/// Places the bytes of a write, and the record if it carries one.
fn place(c: &Config, s: &mut State, rail: usize, write: &Write) -> Result<(), Property> {
    let (message, part) = (usize::from(write.carried.message), usize::from(write.carried.part));
    let newest = c.newest_in_buffer_of(message, s.receiver.next.into());
    if s.receiver.complete.has(message) || newest != message {
        return Err(Property::OpenBuffer);
    }
    if write.carried.is_repair {
        s.memory.placed[message][part] = c.lanes();
    } else {
        s.memory.placed[message][part].add(write.carried.lane.into());
    }
    s.memory.through[message][part] = [rail].into_iter().collect();
    if slots::carries_record(c, s, &write.carried) {
        s.memory.records[message % c.slots] = write.carried.message + 1;
    }
    Ok(())
}

/// The application has closed its end and taken its memory back, so the keys of its buffers are gone.
fn refuse(c: &Config, s: &mut State, rail: usize, index: usize) -> Result<(), Property> {
    let is_current = s.writes[rail].items()[index].e == s.sender.rails[rail].e;
    if !is_current || s.sender.rails[rail].stage != Sending::Up || s.sender.close.has_begun() {
        s.writes[rail].remove(index);
    } else if c.breaks_rule(Mutation::RefusalEnds) {
        s.has_ended = true;
    } else {
        sender::fail(c, s, rail);
    }
    Ok(())
}

/// Removes the writes, of both ends, of which nothing can come any more.
pub(crate) fn sweep(c: &Config, s: &mut State) {
    for rail in 0..c.rails {
        let r = &s.receiver.rails[rail];
        let is_fenced = |e: u8| {
            let is_gone = r.stage == Receiving::Gone && !c.breaks_rule(Mutation::OfferOpensTwice);
            is_before(c, e, r.e) || e == r.e && is_gone || s.receiver.close.is_over()
        };
        let sending = &s.sender.rails[rail];
        let can_land = |copy: &Copied| !copy.has_landed && sending.takes_cts && sending.e == copy.e;
        s.writes[rail].retain(|w| !w.is_flushed || w.at != Reach::Arrived && !is_fenced(w.e));
        s.receiver.rails[rail].copies.retain(|copy| !copy.is_settled || can_land(copy));
    }
}
