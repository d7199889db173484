//! Set-ups that have to wait: offers for which there is no place yet, and handshakes that the set-up thread has for a
//! step.
//!
//! The rules are the protocol's own (`railweave_transport::progress`), as in the plugin; this file has the threads.

use railweave_transport::progress::{Due, OfferWait, Progress, Received, Step};
use railweave_transport::{Ended, Handshake, Message, Offer, Session};

use super::game::{Game, Side};
use super::setup::SHORT_DEADLINE_NS;
use super::stage::Stage;
use crate::task::Task;
use crate::witness::Note;
use crate::{Checker, Seen};

impl<const O: bool> Game<O> {
    /// Handles a peer's offer on one end of a session: takes it, or lets it wait for its place.
    pub(super) fn offer_arrived(&mut self, end: usize, number: u32, offer: Offer) {
        let connection = offer.nonce as usize;
        let (now_ns, timeout_ns) = (self.now_ns(), self.connections[connection].plan.deadline_ns);
        let permille = self.faults.offer_waits_permille;
        let has_listener = matches!(self.connections[connection].receiver.stage, Stage::Waiting);
        if !has_listener || permille == 0 || !self.chance.permille(permille) {
            return self.handle_offer(connection, &offer, now_ns + timeout_ns);
        }
        let wait_ns = if self.faults.offers_wait_out && timeout_ns < SHORT_DEADLINE_NS {
            self.chance.between(16 * timeout_ns, 24 * timeout_ns)
        } else {
            self.chance.between(1, self.faults.offer_waits_ns)
        };
        let wait = OfferWait::new(timeout_ns, now_ns);
        let mut state = self.world.lock();
        state.saw(Seen::OfferWaited);
        state.later(wait_ns, Task::TakeOffer { end, number });
        state.at(wait.first_wait_ns(), Task::OfferNotice { end, number });
        drop(state);
        let found = &mut self.sessions.ends[end];
        found.offers.insert(number, (offer, wait));
        found.protocol.touch(now_ns);
    }

    /// Tells the peer of an offer that the offer waits.
    pub(super) fn handle_offer_notice(&mut self, end: usize, number: u32) {
        let now_ns = self.now_ns();
        let found = &mut self.sessions.ends[end];
        if self.processes[found.process].dead {
            return;
        }
        if let Some((offer, wait)) = found.offers.get_mut(&number)
            && let Some(next_ns) = wait.wait(now_ns)
        {
            let side = Side { connection: offer.nonce as usize, sender: false };
            let mut state = self.world.lock();
            state.saw(Seen::WaitSaid);
            state.at(next_ns, Task::OfferNotice { end, number });
            drop(state);
            self.tell(side, |session, number, _| session.send(number, Message::Wait));
        }
    }

    /// Takes an offer that has waited, unless it is withdrawn or its peer has given up.
    pub(super) fn handle_take_offer(&mut self, end: usize, number: u32) {
        let now_ns = self.now_ns();
        let found = &mut self.sessions.ends[end];
        if self.processes[found.process].dead {
            return;
        }
        let Some((offer, wait)) = found.offers.remove(&number) else { return };
        found.protocol.touch(now_ns);
        let connection = offer.nonce as usize;
        match wait.begin(now_ns) {
            Some(deadline_ns) => self.handle_offer(connection, &offer, deadline_ns),
            None => {
                self.world.lock().saw(Seen::OfferExpired);
                self.tell(Side { connection, sender: false }, Session::failed);
            }
        }
    }

    /// Forgets an offer that its peer has withdrawn, or whose session is gone.
    pub(super) fn handle_withdrawn(&mut self, end: usize, number: u32) {
        if self.sessions.ends[end].offers.remove(&number).is_some() {
            self.world.lock().saw(Seen::OfferWithdrawn);
        }
    }

    /// Returns the handshake of an end and its progress, while the end is in set-up.
    pub(super) fn set_up(&mut self, side: Side) -> Option<(&mut dyn Handshake, &mut Progress)> {
        let pair = &mut self.connections[side.connection];
        match (side.sender, &mut pair.sender.stage, &mut pair.receiver.stage) {
            (true, Stage::Handshake(connector, progress), _) => Some((connector, progress)),
            (false, _, Stage::Handshake(acceptor, progress)) => Some((acceptor, progress)),
            _ => None,
        }
    }

    /// Returns true while the set-up thread has the handshake of an end.
    pub(super) fn is_away(&mut self, side: Side) -> bool {
        self.set_up(side).is_some_and(|(_, progress)| progress.is_away())
    }

    /// Notes that an end in set-up has its whole time from now on.
    pub(super) fn restart_time(&mut self, side: Side) {
        let now_ns = self.now_ns();
        let pair = &mut self.connections[side.connection];
        let since_ns = if side.sender { &mut pair.sender.step_since_ns } else { &mut pair.receiver.step_since_ns };
        *since_ns = now_ns;
    }

    /// Handles the news that the peer still works on the set-up of an end's connection.
    pub(super) fn handle_waits(&mut self, side: Side) {
        let now_ns = self.now_ns();
        let Some((handshake, progress)) = self.set_up(side) else { return };
        if let Some(deadline_ns) = progress.handle_wait(now_ns) {
            handshake.set_deadline(deadline_ns);
            self.world.lock().saw(Seen::Prolonged);
            self.restart_time(side);
            self.schedule_set_up(side);
        }
    }

    /// Handles a message for the set-up of an end.
    pub(super) fn handle_message(&mut self, side: Side, message: Message) {
        let Some((_, progress)) = self.set_up(side) else { return };
        match progress.handle_message(message) {
            Received::Step(step) => self.take_step(side, step),
            Received::Kept => self.world.lock().saw(Seen::MessageKept),
            Received::TooMany => {
                self.violate(Checker::Errors, format!("{}: its peer has sent too many messages", side.who()));
                self.tell(side, |session, _, now_ns| session.end(Ended::TooManyMessages, now_ns));
            }
        }
    }

    /// Takes a step of an end's set-up, for which the set-up thread may need some time.
    fn take_step(&mut self, side: Side, step: Step) {
        let given_ns = self.now_ns();
        let Some((_, progress)) = self.set_up(side) else { return };
        assert!(progress.begin(&step, given_ns), "simulated rails are joined by exchange, which may block");
        let permille = self.faults.set_up_blocks_permille;
        if permille == 0 || !self.chance.permille(permille) {
            return self.handle_step_done(side, step, given_ns);
        }
        let wait_ns = self.chance.between(1, self.faults.set_up_blocks_ns);
        let breaks = matches!(step, Step::Message(Message::Ready { .. }))
            && self.chance.permille(self.faults.blocked_breaks_permille);
        let mut state = self.world.lock();
        state.saw(Seen::SetUpBlocked);
        state.later(wait_ns, Task::StepDone { connection: side.connection, sender: side.sender, step, given_ns });
        if breaks {
            state.later(1, Task::Break { connection: side.connection });
        }
        drop(state);
        self.schedule_set_up(side);
    }

    /// Handles a step of an end's set-up, which was given to the set-up thread at this time and comes back now. The
    /// thread skips the step of a set-up that has ended meanwhile.
    pub(super) fn handle_step_done(&mut self, side: Side, step: Step, given_ns: u64) {
        let (now_ns, timeout_ns) = (self.now_ns(), self.connections[side.connection].plan.deadline_ns);
        if !self.is_away(side) {
            drop(self.abandoned.remove(&(side.connection, side.sender)));
            return;
        }
        if matches!(step, Step::Message(_)) {
            self.restart_time(side);
        }
        self.opening(side.connection, side.sender);
        let Some((handshake, progress)) = self.set_up(side) else { return };
        step.take_away(handshake, given_ns, now_ns, timeout_ns);
        let pause = handshake.pause();
        if let Some(deadline_ns) = progress.come_back(pause, now_ns) {
            handshake.set_deadline(deadline_ns);
        }
        if pause.is_none() {
            self.restart_time(side);
        }
        self.refuse_if_failed(side);
        self.drive_handshake(side);
        while let Some(message) = self.set_up(side).and_then(|(_, progress)| progress.next_kept()) {
            self.handle_message(side, message);
        }
        if let Some(error) = self.set_up(side).and_then(|(_, progress)| progress.orphaned().cloned()) {
            self.set_up_failed(side, &error, false);
        }
        self.schedule_set_up(side);
    }

    /// Does what is due in the set-up of an end.
    pub(super) fn handle_set_up_due(&mut self, side: Side) {
        let now_ns = self.now_ns();
        let pair = &mut self.connections[side.connection];
        let timer_ns = if side.sender { &mut pair.sender.timer_ns } else { &mut pair.receiver.timer_ns };
        timer_ns.take_if(|at_ns| *at_ns <= now_ns);
        if self.processes[self.process_of(side)].dead {
            return;
        }
        let Some((handshake, progress)) = self.set_up(side) else { return };
        let Due { says_wait, step } = progress.due(handshake.timeout_ns(), now_ns);
        if says_wait {
            self.world.lock().saw(Seen::WaitSaid);
            self.tell(side, |session, number, _| session.send(number, Message::Wait));
        }
        if let Some(step) = step {
            if step == Step::Timeout {
                self.note_timeout(side);
            }
            self.take_step(side, step);
        }
        self.schedule_set_up(side);
    }

    /// Notes that an end in set-up has run out of time, which it must have had.
    fn note_timeout(&mut self, side: Side) {
        self.world.lock().saw(Seen::TimedOut);
        let now_ns = self.now_ns();
        let pair = &mut self.connections[side.connection];
        let timeout_ns = pair.plan.deadline_ns;
        let (since_ns, missed) = if side.sender {
            (pair.sender.step_since_ns, &mut pair.sender.missed)
        } else {
            (pair.receiver.step_since_ns, &mut pair.receiver.missed)
        };
        *missed = true;
        if now_ns < since_ns + timeout_ns {
            let text = format!("{}: it had {timeout_ns} ns from {since_ns} ns on, and gives up before", side.who());
            self.violate(Checker::Errors, text);
        }
    }

    /// Schedules the next event of an end's set-up, unless an earlier one is scheduled.
    pub(super) fn schedule_set_up(&mut self, side: Side) {
        let next_ns = self.set_up(side).and_then(|(handshake, progress)| progress.next_ns(handshake.timeout_ns()));
        let pair = &mut self.connections[side.connection];
        let timer_ns = if side.sender { &mut pair.sender.timer_ns } else { &mut pair.receiver.timer_ns };
        if let Some(at_ns) = next_ns
            && timer_ns.is_none_or(|timer_ns| at_ns < timer_ns)
        {
            *timer_ns = Some(at_ns);
            self.world.lock().at(at_ns, Task::SetUpDue { connection: side.connection, sender: side.sender });
        }
    }
}
