//! Connections that are ready and that connect no longer asks for.

use std::sync::Arc;

use railweave_transport::Error;

use super::control_loop::ControlLoop;
use super::pending::PendingConnect;
use super::pending::UnclaimedConnect;
use crate::comm::Route;

impl ControlLoop {
    /// Watches the connecting end of a ready connection.
    pub(super) fn watch_connect(&mut self, route: Route, connect: Arc<PendingConnect>) {
        let next_ns = self.deadline_ns();
        self.unclaimed_connects.push_back(UnclaimedConnect { route, connect, was_seen: false, next_ns });
    }

    /// Closes connections that connect has not asked for in time.
    pub(super) fn close_unclaimed_connects(&mut self, now: u64) {
        while self.unclaimed_connects.front().is_some_and(|unclaimed| unclaimed.next_ns <= now)
            && let Some(unclaimed) = self.unclaimed_connects.pop_front()
        {
            self.look_at_debts();
            let UnclaimedConnect { route, connect, was_seen, .. } = unclaimed;
            if !connect.has(route) {
                continue;
            }
            if !was_seen {
                // All wait for the same time, so they stay in order.
                let next_ns = self.deadline_ns();
                self.unclaimed_connects.push_back(UnclaimedConnect { route, connect, was_seen: true, next_ns });
                continue;
            }
            let seconds = 2.0 * self.handshake_timeout.as_secs_f64();
            let text = format!(
                "a connection was ready and connect was not called again for {seconds} s; it was closed; \
                 if its communicator was not aborted, the application is slow: raise RAILWEAVE_HANDSHAKE_TIMEOUT"
            );
            if let Some(established) = connect.take_back(route, Error::local(text)) {
                self.close(route, established.end);
            }
        }
    }
}
