//! The proof that the other end of a session has the job's key, which comes between HELLO and everything else.
//!
//! The opener proves first, and the acceptor only to whoever has proved it: what a proof is made of is known to both, so a
//! proof given away would let a stranger try keys at leisure.

use railweave_transport::{Hello, Message};

use super::Route;
use super::sessions::Stage;
use super::strangers::Kind;
use super::thread::Thread;
use crate::key::{ExpectedProof, Key, Prover};

/// The peer's proof that is awaited.
pub(super) struct Expected {
    proof: ExpectedProof,
    /// The acceptor's own proof, which it sends in return.
    ours: Option<[u8; 32]>,
}

/// What an acceptor sends instead of its proof when the opener's was wrong: so that the opener can name the reason, too.
const NO_PROOF: [u8; 32] = [0; 32];

impl Thread {
    /// Proves to the peer behind HELLO that this process has the key, if this end opened the session, and waits for the
    /// same from it.
    pub(super) fn ask_for_proof(&mut self, token: usize, key: &Key, theirs: Box<Hello>, their_hello: &[u8]) {
        let Some(session) = self.session(token) else {
            return;
        };
        let Stage::Hello { deadline_ns } = session.stage else {
            return;
        };
        let our_hello = std::mem::take(&mut session.our_hello);
        if session.wanted.is_some() {
            let proof = key.expected(Prover::Acceptor, &our_hello, their_hello);
            session.stage = Stage::Proof { deadline_ns, theirs, expected: Expected { proof, ours: None } };
            let ours = key.proof(Prover::Opener, &our_hello, their_hello);
            let _ = self.send(Route { session: token, connection: 0 }, Message::Proof(ours));
        } else {
            let proof = key.expected(Prover::Opener, their_hello, &our_hello);
            let ours = Some(key.proof(Prover::Acceptor, their_hello, &our_hello));
            session.stage = Stage::Proof { deadline_ns, theirs, expected: Expected { proof, ours } };
        }
    }

    /// Reads the peer's proof: with it the session is up, without it over.
    pub(super) fn handle_proof(&mut self, token: usize, proof: &[u8; 32]) {
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        let peer = session.peer_name();
        let Stage::Proof { expected, theirs, .. } = &session.stage else {
            return;
        };
        let (right, ours, theirs) = (expected.proof.is(proof), expected.ours, theirs.clone());
        let route = Route { session: token, connection: 0 };
        if right {
            if ours.is_none_or(|ours| self.send(route, Message::Proof(ours)).is_ok()) {
                self.session_up(token, theirs);
            }
            return;
        }
        let text = format!("{peer} has another key; copy the same RAILWEAVE_KEY_FILE to every host");
        match session.wanted.take() {
            Some(process) => {
                self.session_refused(process, &text, false);
                self.end_session(token, "the keys differ");
            }
            None => {
                self.strangers.report(now, Kind::Key, &format!("{text}; its session was refused"));
                if self.send(route, Message::Proof(NO_PROOF)).is_ok() {
                    self.begin_closing(token);
                }
            }
        }
    }
}
