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

/// So many may wait in the process, and no more than half of what may wait for one listener's accept; beyond, the
/// oldest is closed at once.
const MOST: usize = 256;

/// So many are closed before others are looked at again.
const MOST_CLOSED_AT_ONCE: usize = 64;

/// One of them.
struct Left {
    route: Route,
    listener: Weak<Listener>,
    until_ns: u64,
}

/// Those whose time is not over.
pub(super) struct Unaccepted {
    most: usize,
    /// In the order of their times: all wait for as long.
    left: VecDeque<Left>,
}

impl Unaccepted {
    /// Where so many may wait for one listener's accept.
    pub(super) fn new(most_of_a_listener: usize) -> Self {
        Self { most: (most_of_a_listener / 2).min(MOST), left: VecDeque::new() }
    }

    /// When the first is to be closed.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let are_too_many = self.left.len() > self.most;
        self.left.front().map(|left| if are_too_many { 0 } else { left.until_ns })
    }

    fn pop(&mut self, now_ns: u64) -> Option<Left> {
        let is_due = |left: &Left| left.until_ns <= now_ns;
        let is_over = self.left.len() > self.most || self.left.front().is_some_and(is_due);
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
        for _ in 0..MOST_CLOSED_AT_ONCE {
            let Some(Left { route, listener, .. }) = self.unaccepted.pop(now) else {
                return;
            };
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
