//! The queue of connections that were not accepted and whose peers have left.

use std::collections::VecDeque;
use std::sync::Weak;

use crate::comm::Route;
use crate::listener::Listener;

/// The most connections that may wait in this queue; fewer if half of the limit for one listener's accept is less.
/// Beyond this, the oldest is closed at once.
const MOST: usize = 256;

/// A connection that was not accepted and whose peer has left.
pub(super) struct LeftConnection {
    pub(super) route: Route,
    pub(super) listener: Weak<Listener>,
    pub(super) until_ns: u64,
}

/// The queue, in the order of deadlines.
pub(super) struct LeftQueue {
    most: usize,
    /// In the order of deadlines: all wait for the same time.
    pub(super) connections: VecDeque<LeftConnection>,
}

impl LeftQueue {
    /// Makes an empty queue. `most_of_a_listener`: the connections that may wait for one listener's accept.
    pub(super) fn new(most_of_a_listener: usize) -> Self {
        Self { most: (most_of_a_listener / 2).min(MOST), connections: VecDeque::new() }
    }

    /// Returns the time to close the first connection.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let are_too_many = self.connections.len() > self.most;
        self.connections.front().map(|left| if are_too_many { 0 } else { left.until_ns })
    }

    pub(super) fn pop(&mut self, now_ns: u64) -> Option<LeftConnection> {
        let is_due = |left: &LeftConnection| left.until_ns <= now_ns;
        let is_over = self.connections.len() > self.most || self.connections.front().is_some_and(is_due);
        let left = if is_over { self.connections.pop_front() } else { None };
        if self.connections.capacity() > 32 && self.connections.len() < self.connections.capacity() / 8 {
            // Shrinks the queue after a burst of connections.
            self.connections.shrink_to(self.connections.len() * 2);
        }
        left
    }
}
