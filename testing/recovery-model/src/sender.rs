//! The steps of the data's sender.

use crate::config::{Config, Split, part};
use crate::mutation::Mutation;
use crate::property::Property;
use crate::set::Set;
use crate::state::{Arrival, Frame, Part, Reach, Sending, Stage, State, Write};

/// Returns the sets of rails over which the next message may be sent now.
pub(crate) fn masks(c: &Config, s: &State) -> Vec<Set> {
    let sender = &s.sender;
    let message = usize::from(sender.next);
    if message == c.messages.len() || sender.close.has_begun() {
        return Vec::new();
    }
    let is_slot_free = message < c.slots || sender.done.has(message - c.slots);
    let is_clear = c.entries(message).all(|entry| usize::from(s.memory.ring[entry % c.places]) == entry + 1);
    if !is_slot_free || !is_clear {
        return Vec::new();
    }
    let up: Set = (0..c.rails).filter(|rail| sender.rails[*rail].stage == Sending::Up).collect();
    let is_allowed = |mask: &Set| match c.split {
        Split::Any => true,
        Split::Usable => *mask == up,
        Split::All => mask.iter().count() == c.rails,
        Split::One => mask.iter().count() == 1,
    };
    (1..1 << c.rails).map(Set).filter(|mask| up.has_all(*mask) && is_allowed(mask)).collect()
}

/// Posts the next message: one write per active rail and lane, each with an immediate.
pub(crate) fn isend(c: &Config, s: &mut State, mask: Set) -> Result<(), Property> {
    let message = usize::from(s.sender.next);
    s.sender.next += 1;
    s.sender.masks[message] = mask;
    for rail in mask.iter() {
        let carrier = byte(rail);
        s.sender.parts[message][rail] = Part { stage: Stage::Out, carrier, left: c.lanes };
        for lane in c.lanes().iter() {
            let carried = Arrival { message: byte(message), part: carrier, lane: byte(lane), is_repair: false };
            post(s, rail, carried)?;
        }
    }
    Ok(())
}

/// Returns true if the sender may repair this part over `rail` now.
pub(crate) fn may_repair(c: &Config, s: &State, message: usize, lost: usize, rail: usize) -> bool {
    let on_rail = &s.sender.rails[rail];
    let has_credit = !c.breaks_rule(Mutation::CreditByAcknowledgement)
        || !s.writes[rail].items().iter().any(|w| w.carried.is_repair && w.e == on_rail.e && !w.is_flushed);
    s.sender.parts[message][lost].stage == Stage::Lost
        && on_rail.stage == Sending::Up
        && !s.sender.close.has_begun()
        && has_credit
}

/// Posts a repair: the whole part over `rail`, with one immediate that names the original rail.
pub(crate) fn repair(s: &mut State, message: usize, lost: usize, rail: usize) -> Result<(), Property> {
    s.sender.parts[message][lost] = Part { stage: Stage::Out, carrier: byte(rail), left: 1 };
    post(s, rail, Arrival { message: byte(message), part: byte(lost), lane: 0, is_repair: true })
}

fn post(s: &mut State, rail: usize, carried: Arrival) -> Result<(), Property> {
    let e = s.sender.rails[rail].e;
    if s.receiver.rails[rail].e != e {
        return Err(Property::PeerReady);
    }
    s.writes[rail].push(Write { carried, e, at: Reach::Posted, is_flushed: false });
    Ok(())
}

/// Returns the place of the write that the adapter may report next as sent on this lane.
pub(crate) fn acknowledged(s: &State, rail: usize, lane: usize) -> Option<usize> {
    let on_rail = &s.sender.rails[rail];
    let is_next = |w: &Write| w.e == on_rail.e && usize::from(w.carried.lane) == lane && !w.is_flushed;
    let index = s.writes[rail].items().iter().position(is_next)?;
    (on_rail.stage == Sending::Up && s.writes[rail].items()[index].at == Reach::Arrived).then_some(index)
}

/// Polls the completion of a write.
pub(crate) fn acknowledge(s: &mut State, rail: usize, index: usize) {
    let Arrival { message, part, .. } = s.writes[rail].remove(index).carried;
    let entry = &mut s.sender.parts[usize::from(message)][usize::from(part)];
    // A BYE may have told of the part before.
    if entry.stage != Stage::Out {
        return;
    }
    entry.left -= 1;
    if entry.left == 0 {
        entry.stage = Stage::Acknowledged;
        finish(s, message.into());
    }
}

/// Reports a send as done once each of its parts is acknowledged or seen.
pub(crate) fn finish(s: &mut State, message: usize) {
    let parts = &s.sender.parts[message];
    let mask = s.sender.masks[message];
    if !mask.is_empty() && mask.iter().all(|p| matches!(parts[p].stage, Stage::Acknowledged | Stage::Told)) {
        s.sender.done.add(message);
    }
}

/// Returns true if the rail can fail at the sender.
pub(crate) fn may_fail(s: &State, rail: usize) -> bool {
    matches!(s.sender.rails[rail].stage, Sending::Up | Sending::Offered)
}

/// Begins the fence: the lanes go into the error state, and all work comes back.
pub(crate) fn fail(c: &Config, s: &mut State, rail: usize) {
    if s.sender.rails[rail].stage == Sending::Offered {
        // No lane of this incarnation was ever connected here.
        return say_down(c, s, rail);
    }
    let e = s.sender.rails[rail].e;
    for write in s.writes[rail].items_mut().iter_mut().filter(|w| w.e == e && !w.is_flushed) {
        write.is_flushed = true;
        let Arrival { message, part, .. } = write.carried;
        let is_wrong = c.breaks_rule(Mutation::RepairBeforeAnswer);
        s.sender.parts[usize::from(message)][usize::from(part)].stage =
            if is_wrong { Stage::Lost } else { Stage::Unsure };
    }
    s.sender.rails[rail].stage = Sending::Erring;
    if c.breaks_rule(Mutation::DownBeforeDestroy) {
        say_down(c, s, rail);
    }
}

/// Ends the fence: the lanes are destroyed, and the receiver hears of it.
pub(crate) fn destroy(c: &Config, s: &mut State, rail: usize) {
    s.sender.rails[rail].takes_cts = false;
    say_down(c, s, rail);
}

fn say_down(c: &Config, s: &mut State, rail: usize) {
    s.sender.rails[rail].stage = Sending::Waiting;
    let frame = down(c, s, rail);
    s.to_receiver.push(c, frame);
}

fn down(c: &Config, s: &State, rail: usize) -> Frame {
    let of_stage = |stage: Stage| -> Set {
        let all = (0..c.messages.len()).flat_map(|message| (0..c.rails).map(move |p| (message, p)));
        let is_unlisted = |p: usize| p != rail && c.breaks_rule(Mutation::RepairsUnlisted);
        let is_here = |part: Part| part.stage == stage && usize::from(part.carrier) == rail;
        all.filter(|&(m, p)| is_here(s.sender.parts[m][p]) && !is_unlisted(p)).map(|(m, p)| part(m, p)).collect()
    };
    // Only the death of a device makes a difference to the parts that are acknowledged.
    let acknowledged = if c.device_deaths > 0 { of_stage(Stage::Acknowledged) } else { Set::default() };
    Frame::Down { rail: byte(rail), e: s.sender.rails[rail].e, unsure: of_stage(Stage::Unsure), acknowledged }
}

/// Returns true if the sender may offer the rail's next incarnation.
pub(crate) fn may_offer(c: &Config, s: &State, rail: usize) -> bool {
    let stage = s.sender.rails[rail].stage;
    let is_answered = stage == Sending::Idle || stage == Sending::Waiting && c.breaks_rule(Mutation::OfferBeforeAnswer);
    c.comes_back && is_answered && !s.sender.close.has_begun()
}

/// Offers the next incarnation.
pub(crate) fn offer(c: &Config, s: &mut State, rail: usize) {
    let on_rail = &mut s.sender.rails[rail];
    on_rail.e = on_rail.e.wrapping_add(1);
    on_rail.stage = Sending::Offered;
    s.to_receiver.push(c, Frame::Offer { rail: byte(rail), e: on_rail.e });
}

/// The receiver suspects the rail.
pub(crate) fn take_suspect(c: &Config, s: &mut State, rail: usize, e: u8) {
    let on_rail = &s.sender.rails[rail];
    let is_ignored = on_rail.stage == Sending::Offered && c.breaks_rule(Mutation::SuspectIgnoredInOffer);
    let is_current = e == on_rail.e || c.breaks_rule(Mutation::StaleSuspectTaken);
    if is_current && may_fail(s, rail) && !is_ignored {
        fail(c, s, rail);
    }
}

/// The receiver has said which parts it has seen.
pub(crate) fn take_state(c: &Config, s: &mut State, rail: usize, e: u8, seen: Set) {
    let on_rail = &mut s.sender.rails[rail];
    let is_current = e == on_rail.e || c.breaks_rule(Mutation::StaleStateTaken);
    if on_rail.stage != Sending::Waiting || !is_current {
        return;
    }
    on_rail.stage = Sending::Idle;
    on_rail.takes_cts = false;
    for message in 0..c.messages.len() {
        for p in 0..c.rails {
            let entry = &mut s.sender.parts[message][p];
            if entry.stage == Stage::Unsure && usize::from(entry.carrier) == rail {
                let is_seen = seen.has(part(message, p)) && !c.breaks_rule(Mutation::SeenIsRepaired);
                entry.stage = if is_seen { Stage::Told } else { Stage::Lost };
            }
        }
        finish(s, message);
    }
}

/// The receiver has opened the incarnation that was offered.
pub(crate) fn take_lanes(c: &Config, s: &mut State, rail: usize, e: u8) {
    let on_rail = &mut s.sender.rails[rail];
    let is_current = e == on_rail.e || c.breaks_rule(Mutation::StaleLanesTaken);
    if on_rail.stage == Sending::Offered && is_current {
        on_rail.stage = Sending::Up;
        on_rail.takes_cts = true;
        s.to_receiver.push(c, Frame::Up { rail: byte(rail), e });
    }
}

/// Says again what has no answer, on a new session.
pub(crate) fn repeat(c: &Config, s: &mut State) {
    for rail in 0..c.rails {
        let e = s.sender.rails[rail].e;
        let frame = match s.sender.rails[rail].stage {
            Sending::Waiting if c.breaks_rule(Mutation::DownSaidOnce) => continue,
            Sending::Waiting => down(c, s, rail),
            Sending::Offered if c.breaks_rule(Mutation::OfferSaidOnce) => continue,
            Sending::Up if c.breaks_rule(Mutation::UpSaidOnce) => continue,
            Sending::Offered => Frame::Offer { rail: byte(rail), e },
            Sending::Up if e != c.first_e => Frame::Up { rail: byte(rail), e },
            Sending::Up | Sending::Erring | Sending::Idle => continue,
        };
        s.to_receiver.push(c, frame);
    }
}

/// Numbers of a configuration are small.
pub(crate) fn byte(number: usize) -> u8 {
    u8::try_from(number).expect("below 256")
}
