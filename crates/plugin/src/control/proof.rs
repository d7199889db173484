//! The proof that the other end of a session has the job's key, which comes between HELLO and everything else.

use railweave_transport::{Hello, Message};

use super::Route;
use super::sessions::Stage;
use super::strangers::Kind;
use super::thread::Thread;
use crate::key::{Key, Prover};

/// What the peer's proof is about.
pub(super) struct Expected {
    prover: Prover,
    opener_hello: Vec<u8>,
    acceptor_hello: Vec<u8>,
}

impl Thread {
    /// Proves to the peer behind HELLO that this process has the key, and waits for the same from it.
    pub(super) fn ask_for_proof(&mut self, token: usize, key: &Key, theirs: Box<Hello>, their_hello: &[u8]) {
        let Some(session) = self.session(token) else {
            return;
        };
        let Stage::Hello { deadline_ns } = session.stage else {
            return;
        };
        let our_hello = session.our_hello.clone();
        let (us, prover, opener_hello, acceptor_hello) = match session.wanted {
            Some(_) => (Prover::Opener, Prover::Acceptor, our_hello, their_hello.to_vec()),
            None => (Prover::Acceptor, Prover::Opener, their_hello.to_vec(), our_hello),
        };
        let proof = key.proof(us, &opener_hello, &acceptor_hello);
        let expected = Expected { prover, opener_hello, acceptor_hello };
        session.stage = Stage::Proof { deadline_ns, theirs, expected };
        let _ = self.send(Route { session: token, connection: 0 }, Message::Proof(proof));
    }

    /// Reads the peer's proof: with it the session is up, without it over.
    pub(super) fn handle_proof(&mut self, token: usize, proof: &[u8; 32]) {
        let Some(key) = self.key.clone() else {
            return;
        };
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        let peer = session.peer_name();
        let Stage::Proof { expected, theirs, .. } = &session.stage else {
            return;
        };
        if key.is_proof(proof, expected.prover, &expected.opener_hello, &expected.acceptor_hello) {
            let theirs = theirs.clone();
            return self.session_up(token, theirs);
        }
        let text = format!("{peer} has another key; copy the same RAILWEAVE_KEY_FILE to every host");
        match session.wanted.take() {
            Some(process) => self.session_refused(process, &text, false),
            None => self.strangers.report(now, Kind::Key, &format!("{text}; its session was refused")),
        }
        self.end_session(token, "the keys differ");
    }
}
