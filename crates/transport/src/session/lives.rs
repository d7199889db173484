//! The connections of a session, from offer to end: the messages about them, and their steps that the caller reports.

use railweave_fabric::Fault;

use super::connections::{Connection, State};
use super::doubt::Probing;
use super::{Lost, LostCause, Session, SessionAction, Side};
use crate::{Message, Offer, Received};

/// The most connections that one session may have.
const MOST_CONNECTIONS: usize = 65_536;

impl Session {
    /// Handles a message about a connection. If it came while another thread had the connection's handshake, and the
    /// connection is [open](Self::opened) afterwards, the caller passes the message here again.
    pub fn handle_message(&mut self, connection: u32, message: Message, now_ns: u64) {
        match (self.connections.state(connection), message) {
            (Some(State::SetUp { .. }), Message::Wait) => self.actions.push_back(SessionAction::Waits(connection)),
            (Some(State::SetUp { .. }), message) => {
                self.actions.push_back(SessionAction::Message { connection, message });
            }
            (Some(State::Offered), Message::Bye(_) | Message::Refuse { .. }) => {
                self.touch(now_ns);
                self.connections.set(connection, None);
                self.actions.push_back(SessionAction::Withdrawn(connection));
            }
            (Some(State::Open { .. }), Message::Bye(received)) => {
                self.touch(now_ns);
                self.actions.extend(received.map(|received| SessionAction::Received { connection, received }));
                self.peer_left(connection, LostCause::Bye, now_ns.saturating_add(self.config.grace_ns));
            }
            (Some(State::Open { peer_left: None, .. }), Message::Rail(news)) => {
                self.actions.push_back(SessionAction::Rail { connection, news });
            }
            // The connection came up on this side and not on the peer's, for example because READY came too late. The
            // peer will send no BYE for it.
            (Some(State::Open { .. }), Message::Refuse { reason, .. }) => {
                self.peer_left(connection, LostCause::GaveUp(reason), now_ns);
            }
            (
                Some(State::Closed { peer_left: false, .. } | State::ByeAwaited),
                Message::Bye(_) | Message::Refuse { .. },
            ) => {
                self.touch(now_ns);
                self.closed_by_peer(connection, now_ns);
            }
            _ => {}
        }
    }

    /// Begins a connection. Returns its number, `None` if the session is not [up](Self::is_up), or this end is not its
    /// opener.
    pub fn begin(&mut self, now_ns: u64) -> Option<u32> {
        if !self.is_up() || self.side != Side::Opener {
            return None;
        }
        self.touch(now_ns);
        self.last_number = self.next_number();
        self.connections.set(self.last_number, Some(State::SetUp { outlives_socket: true }.into()));
        Some(self.last_number)
    }

    /// Returns the number of the next connection. Numbers go round after 2^32 connections: 0, which is the session's
    /// own, and those that are still in use are left out.
    fn next_number(&self) -> u32 {
        let mut number = self.last_number;
        loop {
            number = number.wrapping_add(1);
            if number != 0 && self.connections.state(number).is_none() {
                return number;
            }
        }
    }

    /// Begins to set up the connection that the peer offers.
    pub fn accept_offer(&mut self, connection: u32, now_ns: u64) {
        if let Some(State::Offered) = self.connections.state(connection) {
            self.touch(now_ns);
            self.connections.set(connection, Some(State::SetUp { outlives_socket: false }.into()));
        }
    }

    /// Notes that the peer may have a connection already that this end is still setting up: READY may be on its way. So
    /// the set-up outlives the session's socket. [`Self::send`] notes it for PROBE. The caller notes it where lanes are
    /// sockets, once one of the peer's has been taken.
    pub fn peer_may_have(&mut self, connection: u32) {
        if let Some(State::SetUp { .. }) = self.connections.state(connection) {
            self.connections.set(connection, Some(State::SetUp { outlives_socket: true }.into()));
        }
    }

    /// Refuses the connection that the peer offers, or that is being set up, with this reason.
    pub fn refuse(&mut self, connection: u32, fault: Fault, reason: String, now_ns: u64) {
        self.send(connection, Message::Refuse { fault, of_rails: false, reason });
        self.failed(connection, now_ns);
    }

    /// Notes that the connection that was being set up is open. Returns false, and changes nothing, if it was not being
    /// set up.
    pub fn opened(&mut self, connection: u32, now_ns: u64) -> bool {
        if !matches!(self.connections.state(connection), Some(State::SetUp { .. })) {
            return false;
        }
        self.touch(now_ns);
        self.connections.set(connection, Some(State::Open { peer_left: None, probing: Probing::default() }.into()));
        if let Some(ended) = self.ended().cloned() {
            self.peer_left(connection, LostCause::Session(ended), now_ns.saturating_add(self.config.grace_ns));
        }
        self.judge_from(connection, now_ns);
        true
    }

    /// Notes that a connection that was offered or being set up has failed.
    pub fn failed(&mut self, connection: u32, now_ns: u64) {
        match self.connections.state(connection) {
            Some(State::SetUp { .. }) => self.touch(now_ns),
            // A refused offer does not keep the session from being idle.
            Some(State::Offered) => {}
            _ => return,
        }
        self.connections.set(connection, None);
        self.end_if_unneeded(now_ns);
    }

    /// Closes an open connection from this side; `received` is what this end has received, if it is the receiver of
    /// data. It lingers from now on: [`SessionAction::Linger`]. Returns false, and changes nothing, if it was not open:
    /// then there will be no [`SessionAction::Over`] for it.
    pub fn close(&mut self, connection: u32, received: Option<Received>, now_ns: u64) -> bool {
        let Some(State::Open { peer_left, .. }) = self.connections.state(connection) else {
            return false;
        };
        // A peer that is gone takes nothing any more.
        let is_gone = matches!(peer_left, Some(LostCause::Gone(_))) || self.away.as_ref().is_some_and(|it| it.is_gone);
        let linger_ns = if is_gone { 0 } else { self.config.linger_ns };
        let state = State::Closed {
            // The end of the session is one way in which the peer leaves.
            peer_left: peer_left.is_some(),
            pause_ns: self.config.linger_pause_ns.0,
            until_ns: now_ns.saturating_add(linger_ns),
        };
        self.touch(now_ns);
        self.connections.set(connection, Some(Connection { state, due_ns: Some(now_ns) }));
        self.send(connection, Message::Bye(received));
        true
    }

    /// Notes that a closed connection has lingered. `is_drained` is true if everything of it is out and acknowledged.
    pub fn handle_lingered(&mut self, connection: u32, is_drained: bool, now_ns: u64) {
        let Some(State::Closed { peer_left, pause_ns, until_ns }) = self.connections.state(connection).cloned() else {
            return;
        };
        if is_drained && peer_left || until_ns <= now_ns {
            let awaited = (!peer_left).then(|| State::ByeAwaited.into());
            self.connections.set(connection, awaited);
            self.actions.push_back(SessionAction::Over(connection));
            return self.end_if_unneeded(now_ns);
        }
        // Checks fall on multiples of their pause, so that the caller wakes up once for many connections that were
        // closed together.
        let due_ns = now_ns.saturating_add(pause_ns).checked_next_multiple_of(pause_ns.max(1));
        let pause_ns = (pause_ns * 2).min(self.config.linger_pause_ns.1);
        let state = State::Closed { peer_left, pause_ns, until_ns };
        self.connections.set(connection, Some(Connection { state, due_ns }));
    }

    pub(super) fn handle_offer(&mut self, connection: u32, offer: Offer) {
        if let Some(State::Closed { peer_left: true, .. }) = self.connections.state(connection) {
            // Both ends have closed the connection that had this number: nobody needs it to linger on.
            self.connections.set(connection, None);
            self.actions.push_back(SessionAction::Over(connection));
        }
        let refusal = if self.connections.state(connection).is_some() {
            "the connection's number is already in use"
        } else if self.connections.len() >= MOST_CONNECTIONS {
            "the session has 65536 connections, the most allowed"
        } else {
            // This is no step towards a connection: the offer has not been judged yet, and a stranger may offer
            // anything.
            self.connections.set(connection, Some(State::Offered.into()));
            self.actions.push_back(SessionAction::Offer { connection, offer });
            return;
        };
        self.send(connection, Message::Refuse { fault: Fault::Protocol, of_rails: false, reason: refusal.to_owned() });
    }

    /// Notes that the peer of an open connection has left it, or is gone; only the first report counts. The connection
    /// is lost at `at_ns`.
    pub(super) fn peer_left(&mut self, number: u32, cause: LostCause, at_ns: u64) {
        if let Some(State::Open { peer_left: None, probing }) = self.connections.state(number).cloned() {
            let state = State::Open { peer_left: Some(cause), probing };
            self.connections.set(number, Some(Connection { state, due_ns: Some(at_ns) }));
            self.actions.push_back(SessionAction::PeerLeft(number));
        }
    }

    pub(super) fn closed_by_peer(&mut self, number: u32, now_ns: u64) {
        match self.connections.state(number).cloned() {
            Some(State::Closed { peer_left: false, pause_ns, until_ns }) => {
                let state = State::Closed { peer_left: true, pause_ns, until_ns };
                self.connections.set(number, Some(Connection { state, due_ns: Some(now_ns) }));
            }
            Some(State::ByeAwaited) => self.connections.set(number, None),
            _ => {}
        }
    }

    /// Does whatever is due for a connection.
    pub(super) fn connection_due(&mut self, number: u32, now_ns: u64) {
        let state = self.connections.state(number).cloned();
        if let Some(state) = state.clone() {
            self.connections.set(number, Some(state.into()));
        }
        match state {
            Some(State::Open { peer_left: None, probing }) => {
                let insists = self.insists(now_ns);
                let is_due = probing.is_due;
                self.actions.push_back(SessionAction::Judge { connection: number, is_due, insists });
            }
            Some(State::Open { peer_left: Some(cause), .. }) => {
                let lost = Lost { peer: self.peer_name(), cause };
                self.actions.push_back(SessionAction::Lost { connection: number, lost });
            }
            Some(State::Closed { .. }) => self.actions.push_back(SessionAction::Linger(number)),
            _ => {}
        }
    }
}
