//! The session between the ends: its frames, its breaks, and the closes that it carries.

use crate::config::{Config, part};
use crate::mutation::Mutation;
use crate::property::Property;
use crate::receiver;
use crate::sender;
use crate::set::Set;
use crate::state::{Frame, Inbox, Question, Stage, State, is_older};

/// Gives a frame to the sender.
pub(crate) fn deliver_to_sender(c: &Config, s: &mut State, frame: Frame) -> Result<(), Property> {
    match frame {
        Frame::Bye { seen } if s.sender.close.is_over() => {
            let _ = seen;
            answer_late_bye(c, &mut s.to_receiver);
        }
        Frame::Bye { seen } => return sender_hears_bye(c, s, seen),
        Frame::None if s.sender.close.is_over() => answer_none(c, &mut s.to_receiver),
        Frame::None if c.breaks_rule(Mutation::NoneIsIgnored) => {}
        Frame::None => s.sender.close.has_heard = true,
        _ if s.sender.close.has_begun() => {}
        Frame::Suspect { rail, e } => sender::take_suspect(c, s, rail.into(), e),
        Frame::State { rail, e, seen } => sender::take_state(c, s, rail.into(), e, seen),
        Frame::Lanes { rail, e } => sender::take_lanes(c, s, rail.into(), e),
        Frame::Down { .. } | Frame::Offer { .. } | Frame::Up { .. } => unreachable!("a frame of the sender's"),
    }
    Ok(())
}

/// Gives a frame to the receiver.
pub(crate) fn deliver_to_receiver(c: &Config, s: &mut State, frame: Frame) -> Result<(), Property> {
    match frame {
        Frame::Bye { .. } if s.receiver.close.is_over() => answer_late_bye(c, &mut s.to_sender),
        Frame::None if s.receiver.close.is_over() => answer_none(c, &mut s.to_sender),
        Frame::None if c.breaks_rule(Mutation::NoneIsIgnored) => {}
        Frame::Bye { .. } | Frame::None => s.receiver.close.has_heard = true,
        _ if s.receiver.close.has_begun() => {}
        Frame::Down { rail, e, unsure, acknowledged } => {
            return receiver::take_down(c, s, rail.into(), e, Question { unsure, acknowledged });
        }
        Frame::Offer { rail, e } => receiver::take_offer(c, s, rail.into(), e),
        Frame::Up { rail, e } => receiver::take_up(c, s, rail.into(), e),
        Frame::Suspect { .. } | Frame::State { .. } | Frame::Lanes { .. } => unreachable!("a frame of the receiver's"),
    }
    Ok(())
}

/// Returns true if the frame is of an incarnation before the one that its rail has at the end that gets it.
pub(crate) fn is_stale(s: &State, frame: Frame) -> bool {
    match frame {
        Frame::Suspect { rail, e } | Frame::State { rail, e, .. } | Frame::Lanes { rail, e } => {
            is_older(e, s.sender.rails[usize::from(rail)].e)
        }
        Frame::Down { rail, e, .. } | Frame::Offer { rail, e } | Frame::Up { rail, e } => {
            is_older(e, s.receiver.rails[usize::from(rail)].e)
        }
        Frame::Bye { .. } | Frame::None => false,
    }
}

/// Breaks the session. Each end notices in its own time.
pub(crate) fn break_off(c: &Config, s: &mut State) {
    s.to_sender.cut(c);
    s.to_receiver.cut(c);
}

/// The sender notices that the session has ended, and says again on the next one what has no answer.
pub(crate) fn renew_sender(c: &Config, s: &mut State) {
    s.to_receiver.is_cut = false;
    if c.breaks_rule(Mutation::FramesNotRepeated) {
        return;
    }
    if s.sender.close.has_said && !s.sender.close.has_heard && c.breaks_rule(Mutation::ByeSaidOnce) {
        return;
    }
    if s.sender.close.has_said && !s.sender.close.has_heard {
        s.to_receiver.push(c, Frame::Bye { seen: Set::default() });
    } else if !s.sender.close.has_begun() {
        sender::repeat(c, s);
    }
}

/// The receiver notices that the session has ended, and says again on the next one what has no answer.
pub(crate) fn renew_receiver(c: &Config, s: &mut State) {
    s.to_sender.is_cut = false;
    if c.breaks_rule(Mutation::FramesNotRepeated) {
        return;
    }
    if s.receiver.close.has_said && !s.receiver.close.has_heard && c.breaks_rule(Mutation::ByeSaidOnce) {
        return;
    }
    if s.receiver.close.has_said && !s.receiver.close.has_heard {
        let frame = bye(c, s);
        s.to_sender.push(c, frame);
    } else if !s.receiver.close.has_begun() {
        receiver::repeat(c, s);
    }
}

/// Returns true if the application closes the sending end sooner or later: its sends are done, or have failed.
pub(crate) fn is_sender_ready(c: &Config, s: &State) -> bool {
    s.sender.done == Set::below(c.messages.len()) || s.sender.close.has_heard
}

/// Returns true if the application may close the sending end now.
pub(crate) fn may_close_sender(c: &Config, s: &State) -> bool {
    let sender = &s.sender;
    c.closes && !sender.close.has_said && (c.gives_up || is_sender_ready(c, s))
}

/// Closes the sending end.
pub(crate) fn close_sender(c: &Config, s: &mut State) {
    s.sender.close.has_said = true;
    s.to_receiver.push(c, Frame::Bye { seen: Set::default() });
}

/// Returns true if the application may close the receiving end now.
pub(crate) fn may_close_receiver(c: &Config, s: &State) -> bool {
    c.closes && !s.receiver.close.has_said && (c.gives_up || is_receiver_ready(c, s))
}

/// Returns true if the application closes the receiving end sooner or later: it has all of its data, or gets no more.
pub(crate) fn is_receiver_ready(c: &Config, s: &State) -> bool {
    let r = &s.receiver;
    let has_data = |message: usize| {
        let is_there = r.complete.has(message) && (!c.messages[message].is_gpu || r.flushed.has(message));
        is_there || c.messages[message].is_early && s.has_all_bytes(c, message)
    };
    let is_posted = usize::from(r.next) == c.messages.len();
    let has_failed = c.gives_up && r.close.has_heard;
    has_failed || is_posted && (0..c.messages.len()).all(has_data)
}

/// Closes the receiving end.
pub(crate) fn close_receiver(c: &Config, s: &mut State) {
    s.receiver.close.has_said = true;
    let frame = bye(c, s);
    s.to_sender.push(c, frame);
}

/// The receiver's BYE says which parts it has, so that a lost acknowledgement harms nobody.
fn bye(c: &Config, s: &State) -> Frame {
    let r = &s.receiver;
    let has_seen = |message: usize, p: usize| {
        // An application that closes has the data of its early receives, or wants it no more.
        let is_early = c.messages[message].is_early && !c.breaks_rule(Mutation::ByeForgetsEarly);
        r.complete.has(message) || r.slots[message].seen.has(p) || is_early
    };
    let all = (0..c.messages.len()).flat_map(|message| (0..c.rails).map(move |p| (message, p)));
    let seen = all.filter(|&(m, p)| has_seen(m, p)).map(|(m, p)| part(m, p)).collect();
    Frame::Bye { seen: if c.breaks_rule(Mutation::ByeWithoutState) { Set::default() } else { seen } }
}

fn sender_hears_bye(c: &Config, s: &mut State, seen: Set) -> Result<(), Property> {
    s.sender.close.has_heard = true;
    for message in 0..usize::from(s.sender.next) {
        for p in (0..c.rails).filter(|p| seen.has(part(message, *p))) {
            s.sender.parts[message][p].stage = Stage::Told;
        }
        sender::finish(s, message);
        // A send that is not done has failed.
        let is_received = s.receiver.complete.has(message) || c.messages[message].is_early;
        if is_received && !s.sender.done.has(message) {
            return Err(Property::CloseIsClean);
        }
    }
    Ok(())
}

/// A BYE that comes again: the first answer was lost with its session.
fn answer_late_bye(c: &Config, back: &mut Inbox) {
    if !c.breaks_rule(Mutation::LateByeUnanswered) {
        back.push(c, Frame::None);
    }
}

fn answer_none(c: &Config, back: &mut Inbox) {
    if c.breaks_rule(Mutation::NoneIsAnswered) {
        back.push(c, Frame::None);
    }
}
