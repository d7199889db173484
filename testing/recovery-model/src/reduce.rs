//! Reductions: states of which the same can come count as one.
//!
//! * What no later step looks at is forgotten (`forget`): what an end knew of a message that has come, or of a
//!   connection that it has closed; copies of CTS that nobody asks about; the number of an incarnation when nothing
//!   older is left.
//! * A frame that changes nothing, now and whatever happens, is taken at once.
//! * Rails are alike, so states that differ only in the names of rails are one (`turn.rs`). The record of a message
//!   makes its leader, the first of its rails, differ from the others: then this reduction is left out.
//!
//! A test compares the states of a search with these reductions to those of a search without.

use crate::config::{Config, RAILS};
use crate::set::Set;
use crate::state::{Frame, Part, Receiving, Sending, Slot, Stage, State, is_before};

/// Forgets what no later step looks at.
pub(crate) fn forget(c: &Config, s: &mut State) {
    forget_messages(c, s);
    if c.device_deaths > 0 {
        forget_acknowledged(c, s);
    }
    forget_sender(s);
    forget_receiver(s);
    forget_copies(c, s);
    forget_frames(c, s);
    (0..c.rails).for_each(|rail| forget_incarnations(c, s, rail));
}

/// Forgets how messages came that have come, and were flushed if they had to be.
fn forget_messages(c: &Config, s: &mut State) {
    for message in 0..c.messages.len() {
        let is_done = s.sender.done.has(message);
        let is_here = s.receiver.complete.has(message);
        for entry in &mut s.sender.parts[message] {
            // Only the death of a device asks for parts that were acknowledged, and for the rail that carried each.
            match entry.stage {
                Stage::Acknowledged if c.device_deaths > 0 => entry.left = 0,
                Stage::Acknowledged | Stage::Told => *entry = Part { stage: Stage::Told, ..Part::default() },
                Stage::Lost => *entry = Part { stage: Stage::Lost, ..Part::default() },
                Stage::Unsure => entry.left = 0,
                Stage::Unsent | Stage::Out => {}
            }
        }
        if is_done && (is_here || c.device_deaths == 0) {
            s.sender.parts[message] = Default::default();
        }
        if is_here && (!c.messages[message].is_gpu || s.receiver.flushed.has(message)) {
            s.receiver.slots[message] = Slot::default();
            s.memory.placed[message] = Default::default();
            s.memory.through[message] = Default::default();
            if is_done {
                s.sender.masks[message] = Set::default();
            }
        }
    }
}

/// Forgets that parts were acknowledged of messages that have come.
fn forget_acknowledged(c: &Config, s: &mut State) {
    let complete = s.receiver.complete;
    let open: Set = (0..c.messages.len() * RAILS).filter(|number| !complete.has(number / RAILS)).collect();
    for question in s.receiver.rails.iter_mut().filter_map(|rail| rail.question.as_mut()) {
        question.acknowledged = question.acknowledged & open;
    }
    let inbox = &mut s.to_receiver;
    for frame in inbox.frames_mut() {
        if let Frame::Down { acknowledged, .. } = frame {
            *acknowledged = *acknowledged & open;
        }
    }
    inbox.late.items_mut().sort_unstable();
}

/// Forgets the rails of a sender that has begun to close: it repairs nothing and sends nothing.
fn forget_sender(s: &mut State) {
    if !s.sender.close.has_begun() {
        return;
    }
    s.memory.ring = Default::default();
    s.sender.rails.iter_mut().for_each(|rail| rail.takes_cts = false);
    if s.sender.close.is_over() {
        for rail in &mut s.sender.rails {
            // The network may still take the writes that are on their way, but need not.
            rail.stage = Sending::Idle;
        }
    }
}

/// Forgets the rails of a receiver that has begun to close: it answers nothing and writes no CTS.
fn forget_receiver(s: &mut State) {
    let close = s.receiver.close;
    if !close.has_begun() {
        return;
    }
    let r = &mut s.receiver;
    (r.due, r.written, r.written_again) = Default::default();
    for rail in &mut r.rails {
        rail.copies.clear();
        rail.question = None;
        if close.has_said {
            rail.queue.clear();
        }
        if close.is_over() {
            rail.stage = Receiving::Gone;
            (rail.is_up, rail.has_answered) = Default::default();
        }
    }
    if close.is_over() {
        r.slots = Default::default();
    }
}

/// Forgets copies of CTS that have landed and stand in nobody's way, from the oldest on.
fn forget_copies(c: &Config, s: &mut State) {
    let r = &mut s.receiver;
    let next = usize::from(r.next);
    let oldest = (0..next).find(|message| !r.complete.has(*message)).unwrap_or(next);
    let entries = c.entries(c.messages.len() - 1).end;
    let (written, again) = (r.written, r.written_again);
    // It is not written again, and its place waits for no copy of it.
    let is_retired = |entry: usize| {
        let later = entry + c.places;
        let is_waited_for = later < entries && !written.has(later) && again.has(entry);
        c.message_of(entry) < oldest && !is_waited_for
    };
    for rail in &mut r.rails {
        let mut index = 0;
        while index < rail.copies.len() {
            let copy = rail.copies.items()[index];
            let is_first = rail.copies.items()[..index].iter().all(|before| before.e != copy.e);
            if is_first && copy.has_landed && is_retired(copy.entry.into()) {
                rail.copies.remove(index);
            } else {
                index += 1;
            }
        }
    }
    for entry in (0..entries).filter(|entry| written.has(*entry) && is_retired(*entry)) {
        r.written.remove(entry);
        r.written_again.remove(entry);
    }
}

/// Takes the frames that change nothing, now and whatever happens.
fn forget_frames(c: &Config, s: &mut State) {
    let keep_at_sender = |frame: &Frame| !is_spent_at_sender(s, *frame);
    let keep_at_receiver = |frame: &Frame| !is_spent_at_receiver(c, s, *frame);
    let (mut to_sender, mut to_receiver) = (s.to_sender.clone(), s.to_receiver.clone());
    let channels = (0..c.rails).chain([RAILS]);
    channels.clone().for_each(|channel| to_sender.channels[channel].retain(keep_at_sender));
    channels.for_each(|channel| to_receiver.channels[channel].retain(keep_at_receiver));
    to_sender.late.retain(keep_at_sender);
    to_receiver.late.retain(keep_at_receiver);
    (s.to_sender, s.to_receiver) = (to_sender, to_receiver);
}

fn is_spent_at_sender(s: &State, frame: Frame) -> bool {
    let stage = |rail: u8, e: u8| {
        let on_rail = &s.sender.rails[usize::from(rail)];
        (on_rail.e == e).then_some(on_rail.stage)
    };
    match frame {
        Frame::Bye { .. } | Frame::None => false,
        _ if s.sender.close.has_begun() => true,
        Frame::Suspect { rail, e } => !matches!(stage(rail, e), Some(Sending::Up | Sending::Offered)),
        Frame::State { rail, e, .. } => matches!(stage(rail, e), None | Some(Sending::Idle)),
        Frame::Lanes { rail, e } => stage(rail, e) != Some(Sending::Offered),
        Frame::Down { .. } | Frame::Offer { .. } | Frame::Up { .. } => unreachable!("a frame of the sender's"),
    }
}

fn is_spent_at_receiver(c: &Config, s: &State, frame: Frame) -> bool {
    let at = |rail: u8| (&s.sender.rails[usize::from(rail)], &s.receiver.rails[usize::from(rail)]);
    match frame {
        Frame::Bye { .. } | Frame::None => false,
        _ if s.receiver.close.has_begun() => true,
        Frame::Down { rail, e, .. } => {
            let (sending, receiving) = at(rail);
            // The answer would come too late.
            let is_settled = sending.e != e || matches!(sending.stage, Sending::Idle);
            is_before(c, e, receiving.e) || receiving.e == e && receiving.has_answered && is_settled
        }
        Frame::Offer { rail, e } => {
            let (sending, receiving) = at(rail);
            let is_open = sending.e == e && sending.stage == Sending::Offered;
            let has_answer = receiving.e == e && receiving.stage == Receiving::Live && is_open;
            is_before(c, e, receiving.e) || receiving.e == e && !has_answer
        }
        Frame::Up { rail, e } => {
            let receiving = at(rail).1;
            let is_news = receiving.stage == Receiving::Live && !receiving.is_up;
            is_before(c, e, receiving.e) || receiving.e == e && !is_news
        }
        Frame::Suspect { .. } | Frame::State { .. } | Frame::Lanes { .. } => unreachable!("a frame of the receiver's"),
    }
}

/// Counts the rail's incarnations from the oldest that is left.
fn forget_incarnations(c: &Config, s: &mut State, rail: usize) {
    let mut oldest = s.receiver.rails[rail].e;
    let mut count = 0;
    for_each_incarnation(s, rail, |e| {
        count += usize::from(*e != oldest);
        oldest = if is_before(c, *e, oldest) { *e } else { oldest };
    });
    // Only the first incarnation is up without RAIL_UP.
    let r = &s.receiver.rails[rail];
    let is_waited_for = count == 0 && r.stage == Receiving::Live && !r.is_up;
    let first = c.first_e.wrapping_add(is_waited_for.into());
    if oldest != first {
        for_each_incarnation(s, rail, |e| *e = e.wrapping_sub(oldest).wrapping_add(first));
        s.to_sender.late.items_mut().sort_unstable();
        s.to_receiver.late.items_mut().sort_unstable();
    }
}

fn for_each_incarnation(s: &mut State, rail: usize, mut visit: impl FnMut(&mut u8)) {
    visit(&mut s.sender.rails[rail].e);
    visit(&mut s.receiver.rails[rail].e);
    s.receiver.rails[rail].copies.items_mut().iter_mut().for_each(|copy| visit(&mut copy.e));
    s.writes[rail].items_mut().iter_mut().for_each(|write| visit(&mut write.e));
    for inbox in [&mut s.to_sender, &mut s.to_receiver] {
        let frames = inbox.frames_mut().filter(|frame| frame.channel() == rail);
        frames.filter_map(Frame::incarnation_mut).for_each(&mut visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configurations;
    use crate::recovery::Recovery;
    use crate::search::Model;
    use foldhash::quality::FixedState;
    use std::collections::HashSet;

    /// Returns the fingerprints of all states of `model`, as `fingerprint` sees them.
    fn states(model: &Recovery, fingerprint: impl Fn(State) -> u64) -> HashSet<u64> {
        let hasher = FixedState::default();
        let mut known = HashSet::new();
        let mut found = HashSet::new();
        let mut open = vec![model.first()];
        let mut steps = Vec::new();
        while let Some(state) = open.pop() {
            if !known.insert(model.fingerprint(&state, &hasher)) {
                continue;
            }
            model.steps(&state, &mut steps);
            open.extend(steps.drain(..).map(|step| model.take(&state, step).expect("every rule holds")));
            found.insert(fingerprint(state));
        }
        found
    }

    #[test]
    fn reductions_lose_no_state_and_add_none() {
        for config in configurations::small() {
            let name = config.name;
            let reduced = Recovery { config: Config { is_reduced: true, ..config.clone() } };
            let whole = Recovery { config: Config { is_reduced: false, ..config } };
            let hasher = FixedState::default();
            let expected = states(&whole, |mut state| {
                forget(&reduced.config, &mut state);
                reduced.fingerprint(&state, &hasher)
            });
            let found = states(&reduced, |state| reduced.fingerprint(&state, &hasher));
            assert!(found == expected, "{name}: {} states, but {} without", found.len(), expected.len());
        }
    }
}
