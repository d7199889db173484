//! Connections that are ready, that nobody has accepted yet, and whose peers have left. NCCL may call accept minutes
//! after connect, and a job in which the peer had nothing to send is well: so such a connection stays, and accept
//! gives it out where no other is there. Whoever knows a handle could leave any number of them behind: so of each
//! listener's all but the last one are closed after two handshake times, or sooner where there are too many.

use std::collections::VecDeque;
use std::sync::Weak;

use super::strangers::Kind;
use super::thread::Thread;
use super::{Route, nanoseconds};
use crate::listener::Listener;

/// So many may wait in the process; beyond, the oldest is closed at once.
const MOST: usize = 256;

/// One of them.
struct Left {
    route: Route,
    listener: Weak<Listener>,
    until_ns: u64,
}

/// Those whose time is not over.
#[derive(Default)]
pub(super) struct Unaccepted {
    /// In the order of their times: all wait for as long.
    left: VecDeque<Left>,
}

impl Unaccepted {
    /// When the time of the first is over.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.left.front().map(|left| left.until_ns)
    }

    fn pop(&mut self, now_ns: u64) -> Option<Left> {
        let is_due = |left: &Left| left.until_ns <= now_ns;
        let is_over = self.left.len() > MOST || self.left.front().is_some_and(is_due);
        let left = if is_over { self.left.pop_front() } else { None };
        if self.left.capacity() > 32 && self.left.len() < self.left.capacity() / 8 {
            // A crowd that has gone leaves its places behind.
            self.left.shrink_to(self.left.len() * 2);
        }
        left
    }
}

impl Thread {
    /// The peer has left this connection, which was handed to a listener.
    pub(super) fn peer_left(&mut self, route: Route, listener: Weak<Listener>) {
        if listener.upgrade().is_some_and(|listener| listener.peer_left(route)) {
            let until_ns = self.now_ns().saturating_add(nanoseconds(self.handshake_timeout).saturating_mul(2));
            self.unaccepted.left.push_back(Left { route, listener, until_ns });
        }
    }

    /// Closes what nobody accepted in time.
    pub(super) fn close_unaccepted(&mut self, now: u64) {
        while let Some(Left { route, listener, .. }) = self.unaccepted.pop(now) {
            let Some(established) = listener.upgrade().and_then(|listener| listener.give_up(route)) else {
                continue;
            };
            let text = format!(
                "a connection that nobody had accepted was closed, and accept waits on: its peer, {}, had left it, and there \
                 are others; whoever connects and leaves again is no part of the job",
                established.peer
            );
            self.strangers.report(now, Kind::Setup, &text);
            self.close(route, established.end);
        }
    }
}
