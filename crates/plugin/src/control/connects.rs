//! The connects of this process, each on the session with the peer's process, which is opened if there is none.

use std::net::SocketAddr;

use railweave_transport::{Error, Session as Protocol, Unreachable};

use super::ConnectRequest;
use super::connection::Target;
use super::control_loop::{ControlLoop, Entry};
use super::session::Session;

impl ControlLoop {
    /// Begins a connection.
    pub(super) fn connect(&mut self, mut request: ConnectRequest) {
        request.until_ns = self.now_ns().saturating_add(self.handshake_ns());
        let process = request.handle.process;
        let port = request.handle.control_port;
        let addresses: Vec<_> = request.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
        if let Some(token) = self.sessions_by_process.get(&process).copied()
            && let Some(session) = self.session(token)
        {
            session.protocol.learn(addresses);
            if session.protocol.is_up() {
                self.begin_or_queue_connect(token, request);
            } else {
                session.setups.queue_connect(request);
            }
            return;
        }
        let protocol = Protocol::open(self.sessions.clone(), process, addresses, self.now_ns());
        let token = self.fresh_token();
        let mut session = Box::new(Session::new(protocol, Some(process)));
        session.setups.queue_connect(request);
        self.sessions_by_process.insert(process, token);
        self.entries.insert(token, Entry::Session(session));
        self.drive_session(token);
    }

    /// Begins the connects that waited for a session.
    pub(super) fn begin_queued_connects(&mut self, token: usize) {
        let Some(session) = self.session(token) else {
            return;
        };
        for request in session.setups.take_queued_connects() {
            self.look_at_debts();
            self.begin_or_queue_connect(token, request);
        }
    }

    /// Fails the connects that waited for a session.
    pub(super) fn fail_queued_connects(&mut self, token: usize, why: &Unreachable) {
        let error = Error::from(why.clone());
        let Some(session) = self.session(token) else {
            return;
        };
        for request in session.setups.take_queued_connects() {
            self.look_at_debts();
            self.report_failed_setup(&Target::Connect(Box::new(request)), error.clone());
        }
    }
}
