//! The receiver's answer to `RAIL_DOWN`: which parts it has seen.

use crate::config::{Config, RAILS, part};
use crate::mutation::Mutation;
use crate::property::Property;
use crate::set::Set;
use crate::slots;
use crate::state::{Frame, Question, State};

/// Answers with `RAIL_STATE`. The sets do not change any more: the lanes are destroyed and the queue is empty.
pub(crate) fn say(c: &Config, s: &mut State, rail: usize, question: Question) -> Result<(), Property> {
    let mut seen = Set::default();
    for message in 0..c.messages.len() {
        for p in (0..c.rails).filter(|p| question.unsure.has(part(message, *p))) {
            if message >= usize::from(s.receiver.next) {
                s.has_ended = true;
            } else if judge(c, s, message, p)? {
                seen.add(part(message, p));
            }
        }
        for p in (0..c.rails).filter(|p| question.acknowledged.has(part(message, *p))) {
            let is_seen = s.receiver.complete.has(message) || is_usable(c, s, message, p);
            // The sender has ended this send and will not repeat it.
            s.has_ended |= !is_seen && !c.breaks_rule(Mutation::AcknowledgedUnlisted);
        }
    }
    send(c, s, rail, seen);
    Ok(())
}

/// Says the same answer again. Only what was called unseen and has not been repaired is unseen.
pub(crate) fn repeat(c: &Config, s: &mut State, rail: usize, question: Question) {
    let is_unseen = |message: usize, p: usize| {
        let r = &s.receiver;
        !r.complete.has(message) && r.slots[message].unseen.has(p)
    };
    let seen = question.unsure.iter().filter(|number| !is_unseen(number / RAILS, number % RAILS)).collect();
    send(c, s, rail, seen);
}

fn send(c: &Config, s: &mut State, rail: usize, seen: Set) {
    let e = s.receiver.rails[rail].e;
    s.to_sender.push(c, Frame::State { rail: rail.try_into().expect("a rail"), e, seen });
}

/// Returns true if the part was seen. From here on a part that was not is awaited as a repair.
fn judge(c: &Config, s: &mut State, message: usize, p: usize) -> Result<bool, Property> {
    if s.receiver.complete.has(message) {
        return Ok(true);
    }
    if !c.breaks_rule(Mutation::EntryWithoutMask) {
        s.receiver.slots[message].mask = s.sender.masks[message];
    }
    if is_usable(c, s, message, p) {
        return Ok(true);
    }
    let is_early = c.messages[message].is_early && !c.breaks_rule(Mutation::ReuseUnnoticed);
    let is_there = is_early && (slots::is_buffer_taken(c, s, message) || c.breaks_rule(Mutation::EarlyAlwaysSeen));
    let slot = &mut s.receiver.slots[message];
    slot.is_told_size = true;
    if is_there {
        // The application takes a buffer again only when it has all of its data.
        slot.seen.add(p);
        slots::complete(c, s, message)?;
    } else {
        slot.seen.remove(p);
        slot.unseen.add(p);
        slot.lanes[p] = Set::default();
        slot.through[p] = Set::default();
    }
    Ok(is_there)
}

/// Returns true if the part was seen and, in GPU memory, can still be flushed.
fn is_usable(c: &Config, s: &State, message: usize, p: usize) -> bool {
    let slot = &s.receiver.slots[message];
    let is_dead = s.memory.through[message][p].iter().any(|rail| s.receiver.rails[rail].is_dead);
    let is_lost = c.messages[message].is_gpu && is_dead && !c.breaks_rule(Mutation::UnflushableIsSeen);
    slot.seen.has(p) && !is_lost
}
