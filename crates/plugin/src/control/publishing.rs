//! The reports of the control thread's other parts to the telemetry.

use railweave_telemetry::{Direction, EventKind};
use railweave_transport::{Event, Hello, RailInfo};

use super::connection::{Connection, ConnectionSetup, Target};
use super::control_loop::ControlLoop;
use crate::comm::{Established, Route};
use crate::publish::{Opened, Peer, Publish};

/// Returns the peer as the telemetry shows it.
pub(super) fn peer_of(hello: &Hello) -> Peer {
    Peer { host: hello.host.clone(), pid: hello.pid, rank: hello.rank, process: hello.process }
}

impl ControlLoop {
    /// Reads the policy files and writes the telemetry file, each if it is time to.
    pub(super) fn look_at_telemetry(&mut self) {
        let now = self.now_ns();
        if let Some(publish) = &mut self.publish {
            publish.look(now);
        }
    }

    /// Ends the telemetry of a process that ends in good order.
    pub(super) fn end_publishing(&mut self) {
        if let Some(publish) = self.publish.take() {
            publish.end();
        }
    }

    /// Adds a connection whose handshake has finished.
    pub(super) fn publish_opened(
        &mut self,
        route: Route,
        setup: &ConnectionSetup,
        established: &Established,
        peer: Peer,
    ) {
        if let Some(publish) = &mut self.publish {
            publish.open(&Opened {
                route,
                direction: match setup.target {
                    Target::Connect(_) => Direction::Send,
                    Target::Accept(..) => Direction::Receive,
                },
                network: &*setup.place.network,
                device: setup.place.device,
                fate: &established.fate,
                steering: &established.steering,
                rails: &established.rails,
                left_out: &setup.left_out,
                peer,
            });
        }
    }

    /// Notes the rails of an open connection one of which is back, perhaps over other addresses.
    pub(super) fn set_rails(&mut self, route: Route, rails: Option<Vec<RailInfo>>) {
        let connection = self.session(route.session).and_then(|it| it.connections.get_mut(&route.connection));
        let (Some(rails), Some(Connection::Open { heard, .. })) = (rails, connection) else {
            return;
        };
        if heard.rails.iter().map(|rail| &rail.name).eq(rails.iter().map(|rail| &rail.name)) {
            return;
        }
        heard.rails.clone_from(&rails);
        if let Some(publish) = &mut self.publish {
            publish.rename(route, &rails);
        }
    }

    /// Notes that a connection is closed, and lingers.
    pub(super) fn publish_closed(&mut self, route: Route) {
        if let Some(publish) = &mut self.publish {
            publish.close(route);
        }
    }

    /// Notes that nothing of a connection is left.
    pub(super) fn publish_freed(&mut self, route: Route) {
        if let Some(publish) = &mut self.publish {
            publish.forget(route);
        }
    }

    /// Has the telemetry written soon, because a call has failed.
    pub(super) fn publish_soon(&mut self) {
        self.publish.as_mut().map(Publish::hurry_most).unwrap_or_default();
    }

    /// Notes an event, of this connection if there is one.
    pub(super) fn note(&mut self, kind: EventKind, route: Option<Route>, text: impl FnOnce() -> String) {
        if let Some(publish) = &mut self.publish {
            publish.note(kind, route, text());
        }
    }

    /// Notes an event that the data path of an open connection has reported and logged.
    pub(super) fn note_reported(&mut self, route: Route, event: &Event) {
        self.note_event(event, Some(route), event.to_string());
    }

    /// Notes an event that was logged with these words.
    pub(super) fn note_event(&mut self, event: &Event, route: Option<Route>, text: String) {
        let Some(publish) = &mut self.publish else {
            return;
        };
        match event {
            Event::Unwelcome(_) => publish.note(EventKind::UNWELCOME, route, text),
            Event::RailLeftOut { rail, .. } => publish.note_rail(EventKind::RAIL_LEFT_OUT, rail.index() as u8, text),
            Event::RailDown { .. } => publish.note(EventKind::RAIL_DOWN, route, text),
            // Its telemetry says that the rail is down.
            Event::RailAway { .. } => {}
            Event::RailUp { .. } => publish.note(EventKind::RAIL_UP, route, text),
            Event::MessageTruncated(_) => publish.note(EventKind::TRUNCATED, route, text),
        }
    }
}
