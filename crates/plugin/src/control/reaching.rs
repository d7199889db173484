//! Reaching a process: its addresses are tried in turn, until one brings a session to it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use mio::Token as PollToken;
use railweave_transport::{Error, ProcessId};

use super::ConnectRequest;
use super::connections::Target;
use super::heartbeat::Heartbeat;
use super::sessions::Session;
use super::stream::Stream;
use super::thread::Thread;
use crate::descriptors;

/// A process that connections are wanted to, while there is no session to it.
pub(super) struct Reaching {
    addresses: VecDeque<SocketAddr>,
    waiting: Vec<ConnectRequest>,
    failures: Vec<String>,
    /// The session, once it is up or while it is dialled.
    pub(super) session: usize,
    up: bool,
}

impl Thread {
    /// Begins a connection: over the session to its process, which is opened when there is none.
    pub(super) fn connect(&mut self, request: ConnectRequest) {
        let process = request.handle.process;
        match self.reaching.get_mut(&process) {
            Some(Reaching { up: true, session, .. }) => {
                let session = *session;
                self.offer(session, request);
            }
            Some(reaching) => reaching.waiting.push(request),
            None => {
                let port = request.handle.control_port;
                let addresses =
                    request.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect::<VecDeque<_>>();
                let failures = Vec::new();
                let reaching = Reaching { addresses, waiting: vec![request], failures, session: 0, up: false };
                self.reaching.insert(process, reaching);
                self.dial_next(process);
            }
        }
    }

    /// Dials the next address of a process; without one, every connect to it fails.
    fn dial_next(&mut self, process: ProcessId) {
        let Some(mut reaching) = self.reaching.remove(&process) else {
            return;
        };
        while let Some(address) = reaching.addresses.pop_front() {
            // The time that is left is shared by the addresses that are left.
            let share = self.handshake_timeout / (reaching.addresses.len() as u32 + 1);
            let deadline_ns = self.now_ns() + u64::try_from(share.as_nanos()).unwrap_or(u64::MAX / 2);
            let token = self.fresh_token();
            let dialled = Stream::dial(None, address).and_then(|mut stream| {
                stream.register(self.registry(), PollToken(token))?;
                Ok(stream)
            });
            match dialled {
                Ok(stream) => {
                    let now = self.now_ns();
                    let heartbeat = Heartbeat::new(self.peer_timeout, now);
                    let mut session = Session::new(stream, address, now, deadline_ns, heartbeat);
                    session.wanted = Some(process);
                    reaching.session = token;
                    self.reaching.insert(process, reaching);
                    self.begin_session(token, session);
                    return;
                }
                Err(error) => reaching.failures.push(format!("{address}: {error}{}", descriptors::hint(&error))),
            }
        }
        let failures = match reaching.failures.as_slice() {
            [] => "the handle names no address".to_owned(),
            some => some.join("; "),
        };
        for request in reaching.waiting {
            let error = Error::peer(format!(
                "No local NIC found that reaches the peer: {failures}; check that both hosts have an address in a common \
                 network, that no firewall blocks TCP between them, and RAILWEAVE_OOB_IF"
            ));
            self.fail(&Target::Connect(request.result), error);
        }
    }

    /// The session to a process is up: what waited for it goes on.
    pub(super) fn reached(&mut self, process: ProcessId, token: usize) {
        let Some(reaching) = self.reaching.get_mut(&process) else {
            return;
        };
        reaching.up = true;
        reaching.session = token;
        for request in std::mem::take(&mut reaching.waiting) {
            self.offer(token, request);
        }
    }

    /// The session to a process cannot be: by this address, or at all.
    pub(super) fn session_refused(&mut self, process: ProcessId, text: &str, try_next: bool) {
        let Some(reaching) = self.reaching.get_mut(&process) else {
            return;
        };
        reaching.failures.push(text.to_owned());
        if try_next {
            return self.dial_next(process);
        }
        if let Some(reaching) = self.reaching.remove(&process) {
            for request in reaching.waiting {
                self.fail(&Target::Connect(request.result), Error::configuration(text));
            }
        }
    }
}
