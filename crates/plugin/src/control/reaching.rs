//! Reaching a process: its addresses are tried in turn, until one brings a session to it. Where the socket is closed
//! before HELLO has come, the address is tried again once no other is left.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use mio::Token as PollToken;
use railweave_transport::{Error, ProcessId};

use super::ConnectRequest;
use super::connections::Target;
use super::heartbeat::Heartbeat;
use super::sessions::Session;
use super::stream::Stream;
use super::thread::{Entry, Thread};
use super::tries::{self, Tries};
use crate::descriptors;

/// A process that connections are wanted to, while there is no session to it.
pub(super) struct Reaching {
    addresses: VecDeque<SocketAddr>,
    /// The dialled address, where the socket was just closed before anything had come.
    closing: Option<SocketAddr>,
    /// The addresses where that was so at the last try, each with what happened.
    closed: Vec<(SocketAddr, String)>,
    /// When those are tried again.
    tries: Tries,
    /// Until when all this may take.
    until_ns: u64,
    waiting: Vec<ConnectRequest>,
    failures: Vec<String>,
    /// How many of the failures are that no way leads there.
    no_way: usize,
    /// The peer is to be found at loopback addresses alone.
    is_loopback: bool,
    /// The session, once it is up or while it is dialled.
    pub(super) session: usize,
    up: bool,
}

/// A process whose addresses are dialled again after a pause.
pub(super) struct SessionRedial {
    process: ProcessId,
    pub(super) at_ns: u64,
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
                let addresses = request.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
                let reaching = Reaching::new(addresses, vec![request], self.deadline_ns());
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
            let now = self.now_ns();
            let share = reaching.until_ns.saturating_sub(now) / (reaching.addresses.len() as u64 + 1);
            let deadline_ns = now.saturating_add(share);
            let token = self.fresh_token();
            let dialled = Stream::dial(None, address).and_then(|mut stream| {
                stream.register(self.registry(), PollToken(token))?;
                Ok(stream)
            });
            match dialled {
                Ok(stream) => {
                    let heartbeat = Heartbeat::new(self.peer_timeout, now);
                    let mut session = Box::new(Session::new(stream, address, now, deadline_ns, heartbeat));
                    session.wanted = Some(process);
                    reaching.session = token;
                    self.reaching.insert(process, reaching);
                    self.begin_session(token, session);
                    return;
                }
                Err(error) => {
                    reaching.no_way += usize::from(is_no_way(&error));
                    reaching.failures.push(format!("{address}: {error}{}", descriptors::hint(&error)));
                }
            }
        }
        if !reaching.closed.is_empty()
            && let Some(at_ns) = reaching.tries.next_ns(self.now_ns())
        {
            let token = self.fresh_token();
            reaching.session = token;
            self.reaching.insert(process, reaching);
            self.entries.insert(token, Entry::SessionRedial(SessionRedial { process, at_ns }));
            return self.touch(token);
        }
        let text = reaching.refusal();
        for request in reaching.waiting {
            self.fail(&Target::Connect(request.result), Error::peer(text.as_str()));
        }
    }

    /// Dials the addresses of a process once more that have closed the socket.
    pub(super) fn redial_session(&mut self, redial: SessionRedial) {
        if let Some(reaching) = self.reaching.get_mut(&redial.process) {
            reaching.addresses.extend(reaching.closed.drain(..).map(|(address, _)| address));
            self.dial_next(redial.process);
        }
    }

    /// Why the dialled address of a process does not answer, and whether nothing has come from there.
    pub(super) fn dial_failed(&mut self, process: ProcessId, address: SocketAddr, is_mute: bool, error: &io::Error) {
        if let Some(reaching) = self.reaching.get_mut(&process) {
            reaching.no_way += usize::from(is_no_way(error));
            reaching.closing = (is_mute && tries::is_closed(error)).then_some(address);
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
            self.look_at_debts();
            self.offer(token, request);
        }
    }

    /// The session to a process cannot be: by this address, or at all.
    pub(super) fn session_refused(&mut self, process: ProcessId, text: &str, try_next: bool) {
        let Some(reaching) = self.reaching.get_mut(&process) else {
            return;
        };
        match reaching.closing.take() {
            Some(address) => reaching.closed.push((address, text.to_owned())),
            None => reaching.failures.push(text.to_owned()),
        }
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

impl Reaching {
    fn new(addresses: VecDeque<SocketAddr>, waiting: Vec<ConnectRequest>, until_ns: u64) -> Self {
        Self {
            is_loopback: !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback()),
            addresses,
            closing: None,
            closed: Vec::new(),
            tries: Tries::until(until_ns),
            until_ns,
            waiting,
            failures: Vec::new(),
            no_way: 0,
            session: 0,
            up: false,
        }
    }

    /// Why no address brings a session to the process, and what to do.
    fn refusal(&self) -> String {
        let closed = self.closed.iter().map(|(_, text)| {
            format!("{text} each time that it was dialled: whoever listens there has too many newcomers, or is not Railweave")
        });
        let all: Vec<_> = self.failures.iter().cloned().chain(closed).collect();
        let failures = all.join("; ");
        if all.is_empty() {
            return "No local NIC found that reaches the peer: its handle names no address that can be dialled; give its host an \
                    IPv4 or a global IPv6 address, or name an interface that has one in RAILWEAVE_OOB_IF there"
                .to_owned();
        }
        if self.is_loopback {
            return format!(
                "the peer cannot be reached: {failures}; it is to be found at loopback addresses alone: where it is on another \
                 host, name ports in its RAILWEAVE_RAILS that others reach; on this one, check that its process still runs"
            );
        }
        if self.no_way == all.len() {
            return format!(
                "No local NIC found that reaches the peer: {failures}; give both hosts an address in a common network, and name \
                 an interface that has one in RAILWEAVE_OOB_IF on the peer's"
            );
        }
        format!(
            "the peer cannot be reached: {failures}; check that its process still runs, that no firewall blocks TCP to its control \
             port (RAILWEAVE_CONTROL_PORT gives a range to let through), and that RAILWEAVE_OOB_IF names an interface there that \
             this host reaches"
        )
    }
}

/// Whether the kernel has no route to where it was to go. Firewalls and hosts that are down answer otherwise: with
/// EHOSTUNREACH, where a neighbour does not answer or a packet is rejected; EADDRNOTAVAIL is for want of source ports.
fn is_no_way(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NetworkUnreachable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(failures: &[&str], no_way: usize, is_loopback: bool) -> String {
        let failures = failures.iter().map(|text| (*text).to_owned()).collect();
        let reaching = Reaching::new(VecDeque::new(), Vec::new(), 0);
        Reaching { failures, no_way, is_loopback, ..reaching }.refusal()
    }

    #[test]
    fn the_nic_is_blamed_where_it_is_the_trouble_alone() {
        const NIC: &str = "No local NIC found that reaches the peer";
        let failures = ["10.0.0.1:7: Network is unreachable", "10.1.0.1:7: Connection refused"];
        for (text, remedy) in
            [(refusal(&[], 0, false), "RAILWEAVE_OOB_IF"), (refusal(&failures[..1], 1, false), "in a common network")]
        {
            assert!(text.starts_with(NIC) && text.contains(remedy), "{text}");
        }
        for (text, remedy) in [
            (refusal(&failures, 1, false), "firewall"),
            (refusal(&failures[1..], 0, false), "firewall"),
            (refusal(&failures[1..], 0, true), "RAILWEAVE_RAILS"),
        ] {
            assert!(!text.contains(NIC), "{text}");
            assert!(text.contains("Connection refused") && text.contains(remedy), "{text}");
        }
        assert!(is_no_way(&io::Error::from_raw_os_error(libc::ENETUNREACH)));
        for other in [libc::EHOSTUNREACH, libc::EADDRNOTAVAIL, libc::ECONNREFUSED] {
            assert!(!is_no_way(&io::Error::from_raw_os_error(other)), "{other}");
        }
    }
}
