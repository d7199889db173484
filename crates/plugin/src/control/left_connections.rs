//! Connections that are ready but not accepted, and whose peers have left. NCCL may call accept minutes after connect,
//! and a peer may have had nothing to send. So such a connection is kept, and accept returns it if there is no other.
//! But a process that knows a handle could leave any number of them behind. So all but one of each listener's are
//! closed after two handshake timeouts, or sooner if there are too many.

use std::sync::Weak;

use super::clock::nanoseconds;
use super::control_loop::ControlLoop;
use super::left_queue::LeftConnection;
use super::strangers::Kind;
use crate::comm::Route;
use crate::listener::Listener;

/// Connections closed in one turn.
const MOST_CLOSED_AT_ONCE: usize = 64;

impl ControlLoop {
    /// Queues a connection that its peer has left, if it still waits for its listener's accept.
    pub(super) fn queue_left_connection(&mut self, route: Route, listener: Weak<Listener>) {
        if listener.upgrade().is_some_and(|listener| listener.peer_left(route)) {
            let until_ns = self.now_ns().saturating_add(nanoseconds(self.handshake_timeout).saturating_mul(2));
            self.left_queue.connections.push_back(LeftConnection { route, listener, until_ns });
        }
    }

    /// Closes the connections that were not accepted in time.
    pub(super) fn close_left_connections(&mut self, now: u64) {
        for _ in 0..MOST_CLOSED_AT_ONCE {
            let Some(LeftConnection { route, listener, .. }) = self.left_queue.pop(now) else {
                return;
            };
            // A peer that was only away for a while has not left.
            if self.session(route.session).is_some_and(|session| !session.protocol.has_left(route.connection)) {
                continue;
            }
            let Some(established) = listener.upgrade().and_then(|listener| listener.give_up(route)) else {
                continue;
            };
            let text = format!(
                "a connection that nobody had accepted was closed, because its peer, {}, had left it and others wait \
                 for accept, which keeps waiting; a process that connects and leaves is not part of the job",
                established.peer
            );
            self.strangers.report(now, Kind::Setup, &text);
            self.close(route, established.end);
        }
    }
}
