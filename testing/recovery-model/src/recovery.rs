//! The model: all steps that both ends and the network can take.

use crate::config::{Config, RAILS};
use crate::cts;
use crate::network;
use crate::property::Property;
use crate::receiver;
use crate::reduce;
use crate::search::Model;
use crate::sender::{self, byte};
use crate::session;
use crate::set::Set;
use crate::state::{Frame, Inbox, Receiving, Sending, State};
use crate::step::Step;
use crate::turn;
use foldhash::quality::FixedState;
use std::hash::BuildHasher;

/// Two ends with a connection between them, as `config` says.
#[derive(Debug)]
pub struct Recovery {
    /// The configuration.
    pub config: Config,
}

impl Model for Recovery {
    type State = State;
    type Step = Step;
    type Violation = Property;

    fn first(&self) -> State {
        State::first(&self.config)
    }

    fn steps(&self, s: &State, steps: &mut Vec<Step>) {
        if s.has_ended {
            return;
        }
        for rail in 0..self.config.rails {
            sender_steps(&self.config, s, rail, steps);
            receiver_steps(&self.config, s, rail, steps);
            network_steps(&self.config, s, rail, steps);
        }
        steps.extend(sender::masks(&self.config, s).into_iter().map(Step::Isend));
        session_steps(&self.config, s, steps);
    }

    fn is_certain(&self, s: &State, step: Step) -> bool {
        let is_open = |rail: u8| {
            let (sending, receiving) = (&s.sender.rails[usize::from(rail)], &s.receiver.rails[usize::from(rail)]);
            sending.stage == Sending::Up && receiving.stage == Receiving::Live && sending.e == receiving.e
        };
        match step {
            Step::Land(rail, index) => network::is_certain(s, rail.into(), index.into()),
            Step::LandCts(rail, _) => is_open(rail),
            Step::CloseSender => session::is_sender_ready(&self.config, s),
            Step::CloseReceiver => session::is_receiver_ready(&self.config, s),
            _ => !step.is_fault(),
        }
    }

    fn take(&self, before: &State, step: Step) -> Result<State, Property> {
        let mut s = before.clone();
        take(&self.config, &mut s, step)?;
        network::sweep(&self.config, &mut s);
        if self.config.is_reduced {
            reduce::forget(&self.config, &mut s);
        }
        if knows_less_than_sender(&self.config, &s) { Err(Property::SenderKnows) } else { judge_end(s) }
    }

    fn rest(&self, s: &State) -> Result<(), Property> {
        let all = Set::below(self.config.messages.len());
        let gpu = (0..self.config.messages.len()).filter(|message| self.config.messages[*message].is_gpu).collect();
        let is_received = s.receiver.complete == all && s.receiver.flushed.has_all(gpu);
        let is_closed = s.sender.close.is_over() && s.receiver.close.is_over();
        // The application of an early receive may close before the receiver has seen all of it.
        let is_sent = s.sender.done == all || self.config.gives_up;
        let is_done = is_sent && if self.config.closes { is_closed } else { is_received };
        let is_back = |rail: usize| {
            let (sending, receiving) = (&s.sender.rails[rail], &s.receiver.rails[rail]);
            receiving.is_dead || sending.stage == Sending::Up && receiving.is_up && sending.e == receiving.e
        };
        let is_whole = !self.config.comes_back || self.config.closes || (0..self.config.rails).all(is_back);
        if is_done && is_whole || s.has_ended { Ok(()) } else { Err(Property::Done) }
    }

    fn fingerprint(&self, s: &State, hasher: &FixedState) -> u64 {
        // The record of a message makes its leader differ from its other rails.
        let are_rails_alike = self.config.messages.iter().all(|message| !message.has_record);
        if self.config.is_reduced && are_rails_alike {
            turn::one_of_alike(&self.config, s, |s| hasher.hash_one(s))
        } else {
            hasher.hash_one(s)
        }
    }

    fn endless(&self) -> Property {
        Property::RunEnds
    }
}

fn judge_end(s: State) -> Result<State, Property> {
    if s.has_ended && !s.has_dead_device() { Err(Property::Survives) } else { Ok(s) }
}

fn sender_steps(c: &Config, s: &State, rail: usize, steps: &mut Vec<Step>) {
    let r = byte(rail);
    let messages = 0..usize::from(s.sender.next);
    let parts = messages.flat_map(|message| (0..c.rails).map(move |part| (message, part)));
    let repairs = parts.filter(|&(message, part)| sender::may_repair(c, s, message, part, rail));
    steps.extend(repairs.map(|(message, part)| Step::Repair(byte(message), byte(part), r)));
    let sent = c.lanes().iter().filter_map(|lane| sender::acknowledged(s, rail, lane));
    steps.extend(sent.map(|index| Step::Sent(r, byte(index))));
    if s.sender.close.has_begun() {
        return;
    }
    if s.faults.sender > 0 && sender::may_fail(s, rail) {
        steps.push(Step::SenderFails(r));
    }
    if s.sender.rails[rail].stage == Sending::Erring {
        steps.push(Step::SenderDestroys(r));
    }
    if sender::may_offer(c, s, rail) {
        steps.push(Step::Offer(r));
    }
}

fn receiver_steps(c: &Config, s: &State, rail: usize, steps: &mut Vec<Step>) {
    let r = byte(rail);
    let on_rail = &s.receiver.rails[rail];
    if cts::is_usable(c, s, rail) {
        if receiver::may_receive(c, s) {
            steps.push(Step::Irecv(r));
        }
        if !s.receiver.due.is_empty() && !s.receiver.close.has_begun() {
            steps.push(Step::Rewrite(r));
        }
    }
    if let Some(index) = cts::completing(s, rail) {
        steps.push(Step::CtsSent(r, byte(index)));
    }
    if s.receiver.close.has_said {
        return;
    }
    if !on_rail.queue.is_empty() {
        steps.push(Step::Poll(r));
    }
    if s.faults.receiver > 0 && on_rail.stage == Receiving::Live {
        steps.push(Step::ReceiverFails(r));
    }
    if s.faults.devices > 0 && !on_rail.is_dead {
        steps.push(Step::DeviceDies(r));
    }
    if on_rail.stage == Receiving::Erring {
        steps.push(Step::Quiet(r));
    }
    if receiver::may_destroy(c, s, rail) {
        steps.push(Step::ReceiverDestroys(r));
    }
    if receiver::may_answer(c, s, rail) {
        steps.push(Step::Answer(r));
    }
}

fn network_steps(c: &Config, s: &State, rail: usize, steps: &mut Vec<Step>) {
    let r = byte(rail);
    steps.extend(network::landing(c, s, rail).into_iter().map(|index| Step::Land(r, byte(index))));
    steps.extend(cts::landing(s, rail).map(|index| Step::LandCts(r, byte(index))));
}

fn session_steps(c: &Config, s: &State, steps: &mut Vec<Step>) {
    let gpu = (0..usize::from(s.receiver.next)).filter(|message| c.messages[*message].is_gpu);
    let flushable = gpu.filter(|m| s.receiver.complete.has(*m) && !s.receiver.flushed.has(*m));
    steps.extend(flushable.map(|message| Step::Flush(byte(message))));
    if session::may_close_sender(c, s) {
        steps.push(Step::CloseSender);
    }
    if session::may_close_receiver(c, s) {
        steps.push(Step::CloseReceiver);
    }
    if s.to_receiver.is_cut {
        steps.push(Step::SenderNotices);
    } else {
        let ready = (0..=RAILS).filter(|channel| !s.to_sender.channels[*channel].is_empty());
        steps.extend(ready.map(|channel| Step::ToSender(byte(channel))));
    }
    if s.to_sender.is_cut {
        steps.push(Step::ReceiverNotices);
    } else {
        let ready = (0..=RAILS).filter(|channel| !s.to_receiver.channels[*channel].is_empty());
        steps.extend(ready.map(|channel| Step::ToReceiver(byte(channel))));
    }
    steps.extend((0..s.to_sender.late.len()).map(|index| Step::LateToSender(byte(index))));
    steps.extend((0..s.to_receiver.late.len()).map(|index| Step::LateToReceiver(byte(index))));
    if s.faults.breaks > 0 {
        steps.push(Step::Break);
    }
}

fn take(c: &Config, s: &mut State, step: Step) -> Result<(), Property> {
    match step {
        Step::Irecv(rail) => return receiver::irecv(c, s, rail.into()),
        Step::Rewrite(rail) => return cts::write(c, s, rail.into()),
        Step::LandCts(rail, index) => return cts::land(c, s, rail.into(), index.into()),
        Step::CtsSent(rail, index) => cts::complete(c, s, rail.into(), index.into()),
        Step::Isend(mask) => return sender::isend(c, s, mask),
        Step::Repair(message, part, rail) => return sender::repair(s, message.into(), part.into(), rail.into()),
        Step::Land(rail, index) => return network::land(c, s, rail.into(), index.into()),
        Step::Sent(rail, index) => sender::acknowledge(s, rail.into(), index.into()),
        Step::Poll(rail) => return receiver::poll(c, s, rail.into()),
        Step::Flush(message) => return receiver::flush(c, s, message.into()),
        Step::SenderFails(rail) => {
            s.faults.sender -= 1;
            sender::fail(c, s, rail.into());
        }
        Step::SenderDestroys(rail) => sender::destroy(c, s, rail.into()),
        Step::Offer(rail) => sender::offer(c, s, rail.into()),
        Step::ReceiverFails(rail) => {
            s.faults.receiver -= 1;
            receiver::fail(c, s, rail.into());
        }
        Step::DeviceDies(rail) => {
            s.faults.devices -= 1;
            receiver::lose_device(c, s, rail.into());
        }
        Step::Quiet(rail) => s.receiver.rails[usize::from(rail)].stage = Receiving::Quiet,
        Step::ReceiverDestroys(rail) => receiver::destroy(c, s, rail.into()),
        Step::Answer(rail) => return receiver::give_answer(c, s, rail.into()),
        Step::CloseSender => session::close_sender(c, s),
        Step::CloseReceiver => session::close_receiver(c, s),
        Step::ToSender(channel) => {
            let frame = s.to_sender.channels[usize::from(channel)].remove(0);
            return deliver(c, s, frame, session::deliver_to_sender);
        }
        Step::ToReceiver(channel) => {
            let frame = s.to_receiver.channels[usize::from(channel)].remove(0);
            return deliver(c, s, frame, session::deliver_to_receiver);
        }
        Step::LateToSender(index) => {
            let frame = late(&mut s.to_sender, index);
            return deliver(c, s, frame, session::deliver_to_sender);
        }
        Step::LateToReceiver(index) => {
            let frame = late(&mut s.to_receiver, index);
            return deliver(c, s, frame, session::deliver_to_receiver);
        }
        Step::Break => {
            s.faults.breaks -= 1;
            session::break_off(c, s);
        }
        Step::SenderNotices => session::renew_sender(c, s),
        Step::ReceiverNotices => session::renew_receiver(c, s),
    }
    Ok(())
}

fn late(inbox: &mut Inbox, index: u8) -> Frame {
    inbox.late.remove(index.into())
}

/// A function that gives a frame to an end.
type Deliver = fn(&Config, &mut State, Frame) -> Result<(), Property>;

/// Gives a frame to its end. A stale one must change nothing.
fn deliver(c: &Config, s: &mut State, frame: Frame, to: Deliver) -> Result<(), Property> {
    if !session::is_stale(s, frame) {
        return to(c, s, frame);
    }
    let before = s.clone();
    to(c, s, frame)?;
    if *s == before { Ok(()) } else { Err(Property::StaleIgnored) }
}

/// Returns true if a send is done with a part that the receiver has not seen and that does not wait in its queues.
fn knows_less_than_sender(c: &Config, s: &State) -> bool {
    let r = &s.receiver;
    if r.close.has_said || s.has_dead_device() {
        return false;
    }
    let is_known = |message: usize, part: usize| {
        let mut lanes = r.slots[message].lanes[part];
        let queued = r.rails.iter().flat_map(|rail| rail.queue.items());
        for arrival in queued.filter(|a| usize::from(a.message) == message && usize::from(a.part) == part) {
            lanes =
                if arrival.is_repair { c.lanes() } else { lanes | [usize::from(arrival.lane)].into_iter().collect() };
        }
        r.slots[message].seen.has(part) || lanes == c.lanes()
    };
    let sent = s.sender.done.iter().filter(|message| !r.complete.has(*message));
    sent.into_iter().any(|message| s.sender.masks[message].iter().any(|part| !is_known(message, part)))
}

/// Tells a run, a line per step; a line says which frame an end takes.
///
/// # Panics
/// If a step other than the last breaks a rule.
#[must_use]
pub fn tell(model: &Recovery, steps: &[Step]) -> Vec<String> {
    let mut s = model.first();
    let mut lines = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let frame = match *step {
            Step::ToSender(channel) => s.to_sender.channels[usize::from(channel)].items().first(),
            Step::ToReceiver(channel) => s.to_receiver.channels[usize::from(channel)].items().first(),
            Step::LateToSender(index) => s.to_sender.late.items().get(usize::from(index)),
            Step::LateToReceiver(index) => s.to_receiver.late.items().get(usize::from(index)),
            _ => None,
        };
        lines.push(frame.map_or_else(|| step.to_string(), |frame| format!("{step}: {frame}")));
        match model.take(&s, *step) {
            Ok(after) => s = after,
            Err(_) => assert_eq!(number + 1, steps.len(), "only the last step breaks a rule"),
        }
    }
    lines
}
