//! The start of a session: the peer is dialled, both ends say HELLO, and prove that they have the key.

use super::proof::{Hellos, NO_PROOF};
use super::reach::Next;
use super::{Ended, HelloFault, Session, SessionAction, Side, SocketEnd, SocketEndKind, Stage, Unreachable, Unwelcome};
use crate::{Event, Frame, Hello, HelloError, Message};

impl Session {
    pub(super) fn say_hello(&mut self, nonce: [u8; 32], deadline_ns: u64) {
        self.nonce = nonce;
        let ours = Hello { nonce, wanted: self.wanted, ..self.config.hello.clone() }.encode();
        self.actions.push_back(SessionAction::Send(Frame { connection: 0, message: Message::Hello(ours.clone()) }));
        self.stage = Stage::Hello { deadline_ns, ours };
    }

    pub(super) fn handle_hello(&mut self, bytes: Vec<u8>, now_ns: u64) {
        let ours = Hello { wanted: self.wanted, ..self.config.hello.clone() };
        let checked = Hello::decode(&bytes).map_err(HelloFault::from).and_then(|theirs| {
            ours.check(&theirs).map_err(HelloFault::from)?;
            Ok(Box::new(theirs))
        });
        match checked {
            Ok(theirs) => self.hello_fits(theirs, bytes, now_ns),
            Err(fault) => self.hello_does_not_fit(fault, now_ns),
        }
    }

    fn hello_fits(&mut self, theirs: Box<Hello>, bytes: Vec<u8>, now_ns: u64) {
        let Stage::Hello { deadline_ns, ours } = &mut self.stage else {
            return;
        };
        let Some(prover) = self.config.prover.clone() else {
            return self.up(theirs, now_ns);
        };
        let (deadline_ns, hellos) = (*deadline_ns, Hellos::new(std::mem::take(ours), bytes));
        let first = (self.side == Side::Opener).then(|| hellos.ours(&*prover, self.side));
        self.stage = Stage::Proof { deadline_ns, hellos, theirs };
        if let Some(proof) = first {
            self.send_now(0, Message::Proof(proof));
        }
    }

    /// Refuses a HELLO that does not fit. This end's own HELLO is on its way, so that the peer can name the difference
    /// itself.
    fn hello_does_not_fit(&mut self, fault: HelloFault, now_ns: u64) {
        let address = self.address;
        if self.side == Side::Acceptor {
            self.unwelcome(Unwelcome::Hello { address, fault: fault.clone() });
        }
        self.actions.push_back(SessionAction::HangUp { flush: true });
        match self.side {
            Side::Acceptor => self.over(Ended::Refused, now_ns),
            Side::Opener if self.is_away() => {
                if matches!(fault, HelloFault::Differs(HelloError::WrongProcess { .. })) {
                    self.note_sign(format!("{address}: {fault}"), now_ns);
                }
                self.next_attempt(now_ns);
            }
            // The wanted process may be at the next address.
            Side::Opener if matches!(fault, HelloFault::Differs(HelloError::WrongProcess { .. })) => {
                self.reach.failed(address, &SocketEnd { kind: SocketEndKind::Other, text: fault.to_string() });
                self.dial_next(now_ns);
            }
            Side::Opener => self.unreachable(Unreachable::Hello { address, fault }, now_ns),
        }
    }

    pub(super) fn handle_proof(&mut self, proof: &[u8; 32], now_ns: u64) {
        let peer = self.peer_name();
        let (Stage::Proof { hellos, theirs, .. }, Some(prover)) = (&self.stage, &self.config.prover) else {
            return;
        };
        let is_right = hellos.is_theirs(&**prover, self.side, proof);
        match (self.side, is_right) {
            (Side::Opener, true) => self.up(theirs.clone(), now_ns),
            (Side::Acceptor, true) => {
                let (ours, theirs) = (hellos.ours(&**prover, self.side), theirs.clone());
                self.send_now(0, Message::Proof(ours));
                self.up(theirs, now_ns);
            }
            (Side::Opener, false) => {
                self.actions.push_back(SessionAction::HangUp { flush: false });
                match self.is_away() {
                    true => self.next_attempt(now_ns),
                    false => self.unreachable(Unreachable::OtherKey { peer }, now_ns),
                }
            }
            (Side::Acceptor, false) => {
                self.send_now(0, Message::Proof(NO_PROOF));
                self.unwelcome(Unwelcome::OtherKey { peer });
                self.actions.push_back(SessionAction::HangUp { flush: true });
                self.over(Ended::Refused, now_ns);
            }
        }
    }

    pub(super) fn unwelcome(&mut self, unwelcome: Unwelcome) {
        self.event.get_or_insert(Event::Unwelcome(unwelcome));
    }

    /// Says that a peer broke the rules of the session.
    pub(super) fn unwelcome_out_of_turn(&mut self) {
        let peer = self.peer_name();
        self.unwelcome(Unwelcome::OutOfTurn { peer });
    }

    fn up(&mut self, theirs: Box<Hello>, now_ns: u64) {
        if self.is_away() {
            return self.ask_to_resume(now_ns);
        }
        let nonce = if self.side == Side::Opener { &self.nonce } else { &theirs.nonce };
        self.id.0.copy_from_slice(&nonce[..16]);
        self.peer = Some(theirs);
        self.stage = Stage::Up;
        self.touch(now_ns);
        self.actions.push_back(SessionAction::Up);
    }

    /// Dials the next address of the wanted process.
    pub(super) fn dial_next(&mut self, now_ns: u64) {
        if self.is_away() {
            return self.redial_next(now_ns);
        }
        match self.reach.next(now_ns) {
            Next::Dial { address, deadline_ns } => {
                self.address = address;
                self.stage = Stage::Dialling { deadline_ns };
                self.actions.push_back(SessionAction::Dial { from: None, to: address });
            }
            Next::Pause { at_ns } => self.stage = Stage::Pausing { until_ns: at_ns },
            Next::GiveUp(unreachable) => self.unreachable(unreachable, now_ns),
        }
    }

    fn unreachable(&mut self, unreachable: Unreachable, now_ns: u64) {
        self.actions.push_back(SessionAction::Unreachable(unreachable));
        self.over(Ended::Refused, now_ns);
    }

    /// Handles the loss of the socket: an opener that was not up yet tries the next address, a session that is away
    /// goes on looking for its peer, one that is up may go away, and any other ends.
    pub(super) fn give_up_socket(&mut self, why: Ended, kind: SocketEndKind, now_ns: u64) {
        match (&self.stage, self.side) {
            (Stage::Over(_) | Stage::Pausing { .. } | Stage::Waiting { .. }, _) => {}
            (Stage::Up, _) => self.lose_socket(why, kind, now_ns),
            _ if self.is_away() => self.lose_attempt(&why.to_string(), kind, now_ns),
            (_, Side::Opener) => {
                // A peer that has said HELLO has not closed the socket because of too many newcomers.
                let kind = if matches!(self.stage, Stage::Proof { .. }) { SocketEndKind::Other } else { kind };
                self.reach.failed(self.address, &SocketEnd { kind, text: why.to_string() });
                self.dial_next(now_ns);
            }
            _ => self.over(why, now_ns),
        }
    }
}
