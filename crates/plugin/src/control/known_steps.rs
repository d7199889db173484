//! The steps of the ladder that are known to reach a session's peer.

use std::collections::HashMap;
use std::net::IpAddr;

use railweave_fabric::Step;

use super::command::ConnectRequest;

/// A session's knowledge of the ladder to its peer.
#[derive(Default)]
pub(super) struct KnownSteps {
    /// The furthest step that the log has named; `None` for none.
    said: Option<Step>,
    /// The step that worked after others had failed, by this side's device and the ports of the peer's.
    worked: HashMap<(usize, Vec<IpAddr>), Step>,
}

/// Returns the key of a connect among those whose ladders are alike.
fn key(request: &ConnectRequest) -> (usize, Vec<IpAddr>) {
    let ports = request.handle.addresses.iter().filter(|entry| entry.is_of_device());
    (request.device, ports.map(|entry| entry.address).collect())
}

impl KnownSteps {
    /// Returns the step from which a connect climbs: earlier connections have shown that others do not work.
    pub(super) fn first_step(&self, request: &ConnectRequest) -> Step {
        let known = if self.worked.is_empty() { None } else { self.worked.get(&key(request)).copied() };
        known.unwrap_or_default().max(request.first_step)
    }

    /// Remembers the step by which a connect has reached the peer after others had failed.
    pub(super) fn remember(&mut self, request: &ConnectRequest, step: Step) {
        self.worked.insert(key(request), step);
    }

    /// Returns true if the log has named neither this step nor a further one; it does now.
    pub(super) fn is_new(&mut self, step: Step) -> bool {
        let is_new = self.said < Some(step);
        self.said = self.said.max(Some(step));
        is_new
    }
}
