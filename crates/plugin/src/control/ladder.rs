//! The steps of the ladder by which a connect reaches its peer.

use railweave_fabric::Step;
use railweave_identity::TCP;
use railweave_transport::{Error, RailInfo};

use super::command::ConnectRequest;
use super::connection::Target;
use super::control_loop::ControlLoop;
use crate::log;

impl ControlLoop {
    /// Returns the connect with the next step of the ladder, after an attempt has failed. Without one, reports the
    /// error of the first attempt: later ones only add that there is no other way.
    pub(super) fn next_attempt(
        &mut self,
        session: usize,
        mut request: Box<ConnectRequest>,
        next_step: Option<Step>,
        error: Error,
    ) -> Option<Box<ConnectRequest>> {
        let peer_has_tcp = self.session(session).and_then(|session| session.protocol.peer());
        let peer_has_tcp = peer_has_tcp.is_some_and(|peer| peer.fabrics & TCP != 0);
        let can_be_taken = |step: Step| step != Step::Tcp || (request.fallback.is_some() && peer_has_tcp);
        let next_step = next_step.filter(|step| *step > request.first_step && can_be_taken(*step));
        request.failed.get_or_insert(error);
        let Some(step) = next_step else {
            // The ways that were avoided may carry again.
            if request.avoids
                && !request.has_begun_again
                && let Some(session) = self.session(session)
            {
                session.ways.forget();
                (request.has_begun_again, request.first_step, request.failed) = (true, Step::default(), None);
                return Some(request);
            }
            let error = request.failed.take().expect("it was just set");
            self.report_failed_setup(&Target::Connect(request), error);
            return None;
        };
        request.first_step = step;
        Some(request)
    }

    /// Handles the step by which a connect has reached its peer. One that costs more than the device's own ports is
    /// logged, once for each peer.
    pub(super) fn reached(&mut self, session: usize, request: &ConnectRequest, step: Step, rails: &[RailInfo]) {
        let Some(session) = self.session(session) else { return };
        let peer = session.protocol.peer_name();
        if step < Step::OtherPort || !session.ways.is_new(step) {
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
                request.failed.as_ref().map_or_else(String::new, ToString::to_string)
            )),
        }
    }
}
