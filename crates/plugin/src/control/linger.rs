//! Connections that are closed but not over: what is under way goes out, and both ends say BYE.

use std::sync::Arc;
use std::time::Instant;

use railweave_fabric::Part;
use railweave_transport::{Error, Link, Message};

use super::Route;
use super::connections::{Connection, Setting};
use super::events::are_hit;
use super::thread::{Entry, Thread};
use crate::network::End;
use crate::process::PendingConnect;

/// A closed connection whose lanes the peer may still need.
pub(super) struct Lingering {
    route: Route,
    end: Box<dyn End>,
    peer_said_bye: bool,
    pub(super) next_ns: u64,
    step_ns: u64,
    deadline_ns: u64,
}

impl Lingering {
    /// How long a closed connection waits for its peer.
    pub(super) const LIMIT_NS: u64 = 3_000_000_000;
    const FIRST_STEP_NS: u64 = 200_000;
    const LAST_STEP_NS: u64 = 10_000_000;
}

/// An open connection whose peer or session is gone: it is lost unless its data says so first.
pub(super) struct Losing {
    pub(super) link: Arc<Link>,
    error: Error,
    /// When it is lost; None when it is.
    pub(super) deadline_ns: Option<u64>,
    /// What of this host it is made of: a flush waits for its adapter alone, whoever else is gone.
    parts: Vec<Part>,
}

impl Losing {
    /// Lanes carry what was sent before the peer died, and say themselves that it did; they get this long.
    const GRACE_NS: u64 = 1_000_000_000;

    /// Whether anybody else looks at its link.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.link) > 1
    }

    /// Whether it fails with this part. What a closed one was made of may be another's by now.
    pub(super) fn is_made_of(&self, failed: &Part) -> bool {
        self.is_open() && are_hit(&self.parts, failed)
    }
}

/// The connecting end of a connection, handed on. NCCL calls connect over and over until it has it. When nobody has asked for
/// two handshake times, nobody will: NCCL forgets the connects of a communicator that was aborted, and up to v10 no `finalize`
/// follows. The accepting end has no such limit: between listen and accept NCCL waits for other ranks, for minutes where one
/// of them compiles or loads a checkpoint.
pub(super) struct Unasked {
    route: Route,
    connect: Arc<PendingConnect>,
    /// One handshake time has passed while this thread ran: a process that stood still is not taken for one that waited.
    was_seen: bool,
    pub(super) next_ns: u64,
}

impl Thread {
    /// Closes a connection of this side.
    pub(super) fn close(&mut self, route: Route, mut end: Box<dyn End>) {
        end.start_linger();
        let now = self.now_ns();
        let mut peer_said_bye = true; // no session, no peer
        if let Some(session) = self.session(route.session) {
            if let Some(Connection::Open { peer_said_bye: said, .. }) = session.connections.get(&route.connection) {
                peer_said_bye = *said;
            }
            session.connections.remove(&route.connection);
            if !peer_said_bye {
                session.connections.insert(route.connection, Connection::Closed);
            }
            session.touch(now);
            if self.send(route, Message::Bye).is_err() {
                peer_said_bye = true;
            }
        }
        let step_ns = Lingering::FIRST_STEP_NS;
        let deadline_ns = now + Lingering::LIMIT_NS;
        self.lingering.push(Lingering { route, end, peer_said_bye, next_ns: now, step_ns, deadline_ns });
    }

    /// The peer has closed this connection, or there is no peer any more.
    pub(super) fn peer_said_bye(&mut self, route: Route) {
        let now = self.now_ns();
        for lingering in self.lingering.iter_mut().filter(|lingering| lingering.route == route) {
            lingering.peer_said_bye = true;
            lingering.next_ns = now;
        }
    }

    /// An open connection's peer or session is gone. `parts` are given once nobody else has them.
    pub(super) fn begin_losing(&mut self, link: Arc<Link>, error: Error, parts: Vec<Part>) {
        let deadline_ns = Some(self.now_ns() + Losing::GRACE_NS);
        self.losing.push(Losing { link, error, deadline_ns, parts });
    }

    pub(super) fn linger(&mut self, now: u64) {
        let settling = &mut self.settling;
        let is_over = |lingering: &mut Lingering| {
            if lingering.next_ns > now {
                return false;
            }
            settling.look(Instant::now());
            let drained = lingering.end.linger();
            lingering.next_ns = now + lingering.step_ns;
            lingering.step_ns = (lingering.step_ns * 2).min(Lingering::LAST_STEP_NS);
            drained && lingering.peer_said_bye || lingering.deadline_ns <= now
        };
        let over: Vec<Lingering> = self.lingering.extract_if(.., is_over).collect();
        for lingering in over {
            self.look_at_debts();
            self.free(lingering.end);
        }
    }

    /// Frees what its peers have not let go in time, and what was never up.
    pub(super) fn linger_no_longer(mut self) {
        let over = std::mem::take(&mut self.lingering);
        over.into_iter().for_each(|lingering| self.free(lingering.end));
        let entries = std::mem::take(&mut self.entries);
        for entry in entries.into_values() {
            let Entry::Session(session) = entry else {
                continue;
            };
            for connection in session.connections.into_values() {
                if let Connection::Setup(Setting { handshake: Some(handshake), .. }) = connection {
                    self.free(handshake);
                }
            }
        }
    }

    /// Keeps an eye on the connecting end of a connection that was handed on.
    pub(super) fn watch_connect(&mut self, route: Route, connect: Arc<PendingConnect>) {
        let next_ns = self.deadline_ns();
        self.unasked.push_back(Unasked { route, connect, was_seen: false, next_ns });
    }

    /// Closes connections that nobody asks for.
    pub(super) fn reap(&mut self, now: u64) {
        while self.unasked.front().is_some_and(|unasked| unasked.next_ns <= now)
            && let Some(unasked) = self.unasked.pop_front()
        {
            self.look_at_debts();
            let Unasked { route, connect, was_seen, .. } = unasked;
            if !connect.has(route) {
                continue;
            }
            if !was_seen {
                // All wait for as long, so they stay in order.
                let next_ns = self.deadline_ns();
                self.unasked.push_back(Unasked { route, connect, was_seen: true, next_ns });
                continue;
            }
            let seconds = 2.0 * self.handshake_timeout.as_secs_f64();
            let text = format!(
                "a connection was ready and connect was not called again for {seconds} s; it was closed: its communicator \
                 was aborted, or raise RAILWEAVE_HANDSHAKE_TIMEOUT if the application is that slow"
            );
            if let Some(established) = connect.take_back(route, Error::local(text)) {
                self.close(route, established.end);
            }
        }
    }

    /// Says of connections whose time is over that they are lost, and forgets those that nothing concerns any more.
    pub(super) fn lose(&mut self, now: u64) {
        if !self.losing.iter().any(|losing| losing.deadline_ns.is_some_and(|at| at <= now)) {
            return;
        }
        self.losing.retain_mut(|losing| {
            if losing.deadline_ns.is_some_and(|at| at <= now) {
                losing.link.set_lost(losing.error.clone());
                losing.deadline_ns = None;
            }
            losing.is_open() && (losing.deadline_ns.is_some() || !losing.parts.is_empty())
        });
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::Piece;

    use super::*;

    #[test]
    fn what_a_closed_connection_was_made_of_is_nothing_of_it_any_more() {
        let part = |piece| Part { device: "mlx5_0".into(), piece };
        let link = Arc::new(Link::default());
        let losing = Losing {
            link: Arc::clone(&link),
            error: Error::peer("gone"),
            deadline_ns: None,
            parts: vec![part(Piece::QueuePair(7))],
        };
        assert!(losing.is_made_of(&part(Piece::QueuePair(7))) && losing.is_made_of(&part(Piece::Device)));
        assert!(!losing.is_made_of(&part(Piece::QueuePair(8))));
        drop(link);
        assert!(!losing.is_made_of(&part(Piece::QueuePair(7))));
    }
}
