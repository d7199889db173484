//! The steps of the data's receiver.

use crate::answer;
use crate::config::{Config, Habit};
use crate::cts;
use crate::mutation::Mutation;
use crate::property::Property;
use crate::set::Set;
use crate::slots;
use crate::state::{Frame, Question, Receiving, State, is_before};

/// Returns true if the application may post its next receive.
pub(crate) fn may_receive(c: &Config, s: &State) -> bool {
    let r = &s.receiver;
    let message = usize::from(r.next);
    message < c.messages.len()
        && !r.close.has_begun()
        && (message < c.slots || r.complete.has(message - c.slots))
        && (message < c.buffers || slots::is_free(c, s, message - c.buffers))
        && c.entries(message).all(|entry| cts::is_place_free(c, s, entry))
}

/// Posts the next receive, and its CTS on `rail`.
pub(crate) fn irecv(c: &Config, s: &mut State, rail: usize) -> Result<(), Property> {
    let message = usize::from(s.receiver.next);
    s.receiver.next += 1;
    c.entries(message).for_each(|entry| s.receiver.due.add(entry));
    cts::write(c, s, rail)?;
    if c.breaks_rule(Mutation::EarlySlotFreed) && message >= c.buffers && c.messages[message].is_early {
        s.receiver.complete.add(message - c.buffers);
    }
    Ok(())
}

/// Takes the oldest immediate from the rail's queue.
pub(crate) fn poll(c: &Config, s: &mut State, rail: usize) -> Result<(), Property> {
    let arrival = s.receiver.rails[rail].queue.remove(0);
    let message = usize::from(arrival.message);
    let newest = slots::newest_use(c, s, message);
    if newest != message || s.receiver.complete.has(message) {
        return Err(Property::OwnSlot);
    }
    let mask = s.sender.masks[message];
    let is_live = |rail: usize| s.receiver.rails[rail].stage == Receiving::Live;
    if c.breaks_rule(Mutation::MaskOfUsableRails) && !mask.iter().all(|other| other == rail || is_live(other)) {
        s.has_ended = true;
        return Ok(());
    }
    let p = usize::from(arrival.part);
    let slot = &mut s.receiver.slots[message];
    if !arrival.is_repair {
        slot.mask = mask;
    }
    if slot.seen.has(p) || !arrival.is_repair && slot.lanes[p].has(arrival.lane.into()) {
        return Err(Property::CountedOnce);
    }
    if slot.unseen.has(p) != arrival.is_repair {
        return Err(Property::AnsweredFirst);
    }
    slot.through[p].add(rail);
    if arrival.is_repair {
        slot.unseen.remove(p);
        slot.seen.add(p);
        slot.sum += c.lanes;
    } else {
        slot.lanes[p].add(arrival.lane.into());
        slot.sum += 1;
        if slot.lanes[p] == c.lanes() || c.breaks_rule(Mutation::LaneSpeaksForPart) {
            slot.seen.add(p);
        }
    }
    slots::complete(c, s, message)
}

/// Flushes a receive of GPU memory.
pub(crate) fn flush(c: &Config, s: &mut State, message: usize) -> Result<(), Property> {
    let slot = s.receiver.slots[message];
    let spoke = slot.through.iter().fold(Set::default(), |all, rails| all | *rails);
    let through = if c.breaks_rule(Mutation::FlushByMask) {
        slot.mask
    } else if c.breaks_rule(Mutation::FlushWholeMask) {
        slot.mask | spoke
    } else {
        spoke
    };
    if through.iter().any(|rail| s.receiver.rails[rail].is_dead) && !c.breaks_rule(Mutation::UnflushableIsSeen) {
        s.has_ended = true;
        // Without a loss the end was not needed.
        return if s.has_all_bytes(c, message) { Err(Property::Survives) } else { Ok(()) };
    }
    let memory = &s.memory;
    let is_visible = |p: usize| {
        let by = memory.through[message][p];
        let is_alive = !by.iter().any(|rail| s.receiver.rails[rail].is_dead);
        memory.placed[message][p] == c.lanes() && through.has_all(by) && is_alive
    };
    if !s.sender.masks[message].iter().all(is_visible) {
        return Err(Property::Visible);
    }
    s.receiver.flushed.add(message);
    Ok(())
}

/// The receiver suspects a rail, or its lanes fail.
pub(crate) fn fail(c: &Config, s: &mut State, rail: usize) {
    fence(c, s, rail);
    suspect(c, s, rail);
}

fn suspect(c: &Config, s: &mut State, rail: usize) {
    let e = s.receiver.rails[rail].e;
    s.to_sender.push(c, Frame::Suspect { rail: rail.try_into().expect("a rail"), e });
}

/// A device dies with the completions of its rail and the bytes that it had not yet put into GPU memory.
pub(crate) fn lose_device(c: &Config, s: &mut State, rail: usize) {
    let has_lanes = s.receiver.rails[rail].stage == Receiving::Live;
    if has_lanes {
        fence(c, s, rail);
    }
    let on_rail = &mut s.receiver.rails[rail];
    on_rail.is_dead = true;
    on_rail.stage = Receiving::Gone;
    on_rail.queue.clear();
    for message in (0..usize::from(s.receiver.next)).filter(|m| c.messages[*m].is_gpu) {
        for p in s.sender.masks[message].iter() {
            if s.memory.through[message][p].has(rail) && !s.receiver.flushed.has(message) {
                s.memory.placed[message][p] = Set::default();
            }
        }
    }
    if has_lanes {
        suspect(c, s, rail);
    }
}

/// Begins the fence: the lanes go into the error state, and the rail carries no CTS any more.
fn fence(c: &Config, s: &mut State, rail: usize) {
    s.receiver.rails[rail].stage = Receiving::Erring;
    s.receiver.rails[rail].is_up = false;
    cts::repeat_all(c, s);
}

/// Returns true if the receiver may destroy the lanes of the rail.
pub(crate) fn may_destroy(c: &Config, s: &State, rail: usize) -> bool {
    let r = &s.receiver.rails[rail];
    // An adapter that tells nothing may bring one more immediate after the last look.
    let is_polled = r.queue.is_empty() || c.habit == Habit::Keeps;
    r.stage == Receiving::Quiet && (is_polled || c.breaks_rule(Mutation::DestroyBeforePoll))
}

/// Destroys the lanes of the rail: nothing lands after that.
pub(crate) fn destroy(c: &Config, s: &mut State, rail: usize) {
    s.receiver.rails[rail].stage = Receiving::Gone;
    if c.habit == Habit::Purges {
        s.receiver.rails[rail].queue.clear();
    }
}

/// Returns true if the receiver may answer `RAIL_DOWN`.
pub(crate) fn may_answer(c: &Config, s: &State, rail: usize) -> bool {
    let r = &s.receiver.rails[rail];
    let is_fenced = r.stage == Receiving::Gone && (r.queue.is_empty() || c.breaks_rule(Mutation::NoPollAfterDestroy));
    let is_early = r.stage != Receiving::Live && r.queue.is_empty() && c.breaks_rule(Mutation::AnswerBeforeDestroy);
    let is_wrong = c.breaks_rule(Mutation::NoReceiverFence) || is_early;
    r.question.is_some() && !s.receiver.close.has_begun() && (is_fenced || is_wrong)
}

/// Answers the question of the rail's sender.
pub(crate) fn give_answer(c: &Config, s: &mut State, rail: usize) -> Result<(), Property> {
    let question = s.receiver.rails[rail].question.take().expect("a question");
    s.receiver.rails[rail].has_answered = true;
    if c.breaks_rule(Mutation::CreditByAcknowledgement) {
        for other in &mut s.receiver.rails {
            other.credit = 1;
        }
    }
    answer::say(c, s, rail, question)
}

/// The sender's lanes of the rail are destroyed.
pub(crate) fn take_down(c: &Config, s: &mut State, rail: usize, e: u8, question: Question) -> Result<(), Property> {
    let r = &mut s.receiver.rails[rail];
    if is_before(c, e, r.e) && !c.breaks_rule(Mutation::StaleDownTaken) {
        return Ok(());
    }
    if e != r.e {
        if c.breaks_rule(Mutation::UnopenedDownIgnored) {
            return Ok(());
        }
        // Its offer never came, so there is nothing to fence.
        r.e = e;
        r.stage = Receiving::Gone;
        r.has_answered = false;
    }
    for copy in r.copies.items_mut().iter_mut().filter(|copy| copy.e == e) {
        copy.is_settled = true;
    }
    if r.has_answered {
        if c.breaks_rule(Mutation::RepeatJudgesAgain) {
            return answer::say(c, s, rail, question);
        }
        if !c.breaks_rule(Mutation::AnswerOnlyOnce) {
            answer::repeat(c, s, rail, question);
        }
        return Ok(());
    }
    r.question = Some(question);
    if r.stage == Receiving::Live {
        fence(c, s, rail);
    }
    if c.breaks_rule(Mutation::NoReceiverFence) {
        s.receiver.rails[rail].stage = Receiving::Live;
    }
    Ok(())
}

/// The sender offers an incarnation.
pub(crate) fn take_offer(c: &Config, s: &mut State, rail: usize, e: u8) {
    let r = &mut s.receiver.rails[rail];
    let is_next = e == r.e.wrapping_add(1);
    let is_wrong = e == r.e && r.stage == Receiving::Gone && c.breaks_rule(Mutation::OfferOpensTwice);
    if r.is_dead {
        return;
    }
    if is_next || is_wrong {
        r.e = e;
        r.stage = Receiving::Live;
        r.is_up = false;
        r.has_answered &= is_wrong;
        r.credit = 0;
        r.queue.clear();
    }
    let is_again = !is_next && c.breaks_rule(Mutation::OfferAnsweredOnce);
    if r.stage == Receiving::Live && r.e == e && !is_again {
        s.to_sender.push(c, Frame::Lanes { rail: rail.try_into().expect("a rail"), e });
    }
}

/// The sender has connected the incarnation.
pub(crate) fn take_up(c: &Config, s: &mut State, rail: usize, e: u8) {
    let r = &mut s.receiver.rails[rail];
    let is_current = r.e == e || c.breaks_rule(Mutation::StaleUpTaken);
    if is_current && r.stage == Receiving::Live {
        r.is_up = true;
    }
}

/// Says again what has no answer, on a new session.
pub(crate) fn repeat(c: &Config, s: &mut State) {
    if c.breaks_rule(Mutation::SuspectSaidOnce) {
        return;
    }
    for rail in 0..c.rails {
        let r = &s.receiver.rails[rail];
        if r.stage != Receiving::Live && !r.has_answered && r.question.is_none() {
            suspect(c, s, rail);
        }
    }
}
