//! Set-ups that have to wait: offers for which there is no place yet, and messages that come while a call blocks the
//! set-up of their connection.

use std::collections::VecDeque;

use railweave_transport::{Message, Offer, Session};

use super::game::{Game, Side};
use super::sessions::Blocked;
use crate::Seen;
use crate::task::Task;
use crate::witness::Note;

impl<const O: bool> Game<O> {
    /// Handles a peer's offer on one end of a session: takes it, or lets it wait for its place.
    pub(super) fn offer_arrived(&mut self, end: usize, number: u32, offer: Offer) {
        let connection = offer.nonce as usize;
        let permille = self.faults.offer_waits_permille;
        if permille == 0 || !self.chance.permille(permille) {
            return self.handle_offer(connection, &offer);
        }
        self.world.lock().saw(Seen::OfferWaited);
        self.sessions.ends[end].offers.insert(number, offer);
        let side = Side { connection, sender: false };
        self.tell(side, |session, number, _| session.send(number, Message::Wait));
        let wait_ns = self.chance.between(1, self.faults.offer_waits_ns);
        self.world.lock().later(wait_ns, Task::TakeOffer { end, number });
    }

    /// Takes an offer that has waited, unless it is withdrawn.
    pub(super) fn handle_take_offer(&mut self, end: usize, number: u32) {
        let found = &mut self.sessions.ends[end];
        if self.processes[found.process].dead {
            return;
        }
        if let Some(offer) = found.offers.remove(&number) {
            self.handle_offer(offer.nonce as usize, &offer);
        }
    }

    /// Forgets an offer that its peer has withdrawn, or whose session is gone.
    pub(super) fn handle_withdrawn(&mut self, end: usize, number: u32) {
        if self.sessions.ends[end].offers.remove(&number).is_some() {
            self.world.lock().saw(Seen::OfferWithdrawn);
        }
    }

    /// Restarts the time that a connector has, because its offer waits at the peer.
    pub(super) fn handle_waits(&mut self, side: Side) {
        let at_ns = self.now_ns() + self.connections[side.connection].plan.deadline_ns;
        if let Some(handshake) = self.handshake(side) {
            handshake.set_deadline(at_ns);
            let pair = &mut self.connections[side.connection];
            match side.sender {
                true => pair.sender.deadline_ns = at_ns,
                false => pair.receiver.deadline_ns = at_ns,
            }
            self.world.lock().at(at_ns, Task::Deadline { connection: side.connection, sender: side.sender });
        }
    }

    /// Returns true if a message for the set-up of this end is kept until a call returns. A message may itself begin
    /// such a call.
    pub(super) fn keeps(&mut self, side: Side, message: &Message) -> bool {
        if let Some(blocked) = self.blocked.get_mut(&(side.connection, side.sender)) {
            blocked.messages.push_back(message.clone());
            self.world.lock().saw(Seen::MessageKept);
            return true;
        }
        let permille = self.faults.set_up_blocks_permille;
        if permille == 0 || !self.chance.permille(permille) || self.handshake(side).is_none() {
            return false;
        }
        self.world.lock().saw(Seen::SetUpBlocked);
        let blocked = Blocked { messages: VecDeque::from([message.clone()]), is_interrupted: false };
        self.blocked.insert((side.connection, side.sender), blocked);
        let wait_ns = self.chance.between(1, self.faults.set_up_blocks_ns);
        let mut state = self.world.lock();
        state.later(wait_ns, Task::Unblock { connection: side.connection, sender: side.sender });
        if matches!(message, Message::Ready { .. }) && self.chance.permille(self.faults.blocked_breaks_permille) {
            state.later(1, Task::Break { connection: side.connection });
        }
        true
    }

    pub(super) fn is_blocked(&self, side: Side) -> bool {
        self.blocked.contains_key(&(side.connection, side.sender))
    }

    /// Notes that the session of a blocked set-up has ended. Returns false if the set-up is not blocked.
    pub(super) fn interrupts_later(&mut self, side: Side) -> bool {
        let blocked = self.blocked.get_mut(&(side.connection, side.sender));
        blocked.map(|blocked| blocked.is_interrupted = true).is_some()
    }

    /// Handles the return of the call that blocked a set-up: everything that was put off meanwhile is done now.
    pub(super) fn handle_unblocked(&mut self, side: Side) {
        let Some(blocked) = self.blocked.remove(&(side.connection, side.sender)) else { return };
        if self.processes[self.process_of(side)].dead {
            return;
        }
        for message in blocked.messages {
            if self.handshake(side).is_some() {
                self.deliver(side, message);
            } else {
                // The connection is open, or nothing of it is left.
                self.tell(side, |session, number, now_ns| session.handle_message(number, message, now_ns));
            }
        }
        if blocked.is_interrupted {
            if self.is_up(side) {
                self.world.lock().saw(Seen::CameUpLate);
            }
            self.interrupted(side);
            self.tell(side, Session::failed);
        }
        self.handle_go_on(side);
        self.handle_deadline(side);
    }
}
