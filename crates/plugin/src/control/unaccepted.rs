//! Connections that nobody has accepted and whose peers have left, in the order of their times.

use std::collections::VecDeque;
use std::sync::Weak;

use crate::comm::Route;
use crate::listener::Listener;

/// So many may wait in the process, and no more than half of what may wait for one listener's accept; beyond, the
/// oldest is closed at once.
const MOST: usize = 256;

/// One of them.
pub(super) struct Left {
    pub(super) route: Route,
    pub(super) listener: Weak<Listener>,
    pub(super) until_ns: u64,
}

/// Those whose time is not over.
pub(super) struct Unaccepted {
    most: usize,
    /// In the order of their times: all wait for as long.
    pub(super) left: VecDeque<Left>,
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

    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Left> {
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
