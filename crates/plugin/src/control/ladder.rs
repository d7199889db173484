//! The steps of the ladder by which a connect reaches its peer.

use railweave_fabric::Step;
use railweave_identity::TCP;
use railweave_transport::{Failed, RailInfo};

use super::command::ConnectRequest;
use super::connection::Target;
use super::control_loop::ControlLoop;
use crate::log;

impl ControlLoop {
    /// Returns a connect whose attempt has failed, for its next attempt. Without one, or if nobody waits for it any
    /// more, reports the error.
    pub(super) fn next_attempt(
        &mut self,
        session: usize,
        mut request: Box<ConnectRequest>,
        failed: Failed,
    ) -> Option<Box<ConnectRequest>> {
        let gone_on = match self.session(session) {
            _ if request.result.is_abandoned() => Err(failed.error),
            Some(session) => {
                let peer_has_tcp = session.protocol.peer().is_some_and(|peer| peer.fabrics & TCP != 0);
                let has_tcp = request.fallback.is_some() && peer_has_tcp;
                request.climb.go_on(&mut session.ways, failed, has_tcp)
            }
            None => Err(failed.error),
        };
        match gone_on {
            Ok(()) => Some(request),
            Err(error) => {
                self.report_failed_setup(&Target::Connect(request), error);
                None
            }
        }
    }

    /// Handles the step by which a connect has reached its peer. One that costs more than the device's own ports is
    /// logged, once for each peer.
    pub(super) fn reached(&mut self, session: usize, request: &ConnectRequest, step: Step, rails: &[RailInfo]) {
        let Some(session) = self.session(session) else { return };
        let peer = session.protocol.peer_name();
        if step < Step::OtherPort || !session.ways.note_step(step) {
            return;
        }
        let rails: Vec<_> = rails.iter().map(|rail| rail.name.to_string()).collect();
        let (rails, device) = (rails.join(", "), &request.network.devices().at(request.device).name);
        match step {
            Step::Subnet | Step::Routed => {}
            Step::OtherPort => log::info(&format!(
                "the ports of device {device} do not reach {peer}; other ports of the two hosts take their place, and \
                 share their speed with their own devices (said once for each peer): {rails}"
            )),
            Step::Forwarded => log::info(&format!(
                "no port of device {device} is on a subnet of {peer}; a host or a router in between forwards, and its \
                 links carry this traffic too (said once for each peer): {rails}"
            )),
            Step::Tcp => log::warn(&format!(
                "TCP carries the connections of device {device} to {peer}, because RDMA does not reach it; this costs \
                 speed and processor time (said once for each peer): {rails}. RDMA's error: {}",
                request.climb.error().map_or_else(String::new, ToString::to_string)
            )),
        }
    }
}
