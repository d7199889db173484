//! The reports of the control thread's other parts to the telemetry and the trace.

use railweave_telemetry::{Direction, EventKind};
use railweave_transport::{Error, Event, Hello, RailInfo};

use super::connection::{Connection, ConnectionSetup, Target};
use super::control_loop::{ControlLoop, Entry};
use crate::comm::{Established, Route, Traced};
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

    /// Adds a connection whose handshake has finished. Returns what its calls need if the process is traced.
    pub(super) fn publish_opened(
        &mut self,
        route: Route,
        setup: &ConnectionSetup,
        established: &Established,
        peer: Peer,
    ) -> Option<Traced> {
        let now_ns = self.now_ns();
        let (place, sends) = (&setup.place, matches!(setup.target, Target::Connect(_)));
        let traced = self.tracing.as_mut().map(|tracing| {
            let device = place.network.devices().at(place.device).name.clone();
            let took_ns = now_ns.saturating_sub(setup.begun_ns);
            tracing.open(route, (sends, device), &established.rails, &peer, (&established.peer, took_ns))
        });
        if let Some(publish) = &mut self.publish {
            publish.open(&Opened {
                route,
                direction: if sends { Direction::Send } else { Direction::Receive },
                network: &*setup.place.network,
                device: setup.place.device,
                fate: &established.fate,
                steering: &established.steering,
                rails: &established.rails,
                left_out: &setup.left_out,
                peer,
            });
        }
        traced
    }

    /// Adds a set-up that has failed to the trace.
    pub(super) fn trace_failed_setup(&mut self, route: Route, setup: &ConnectionSetup, error: &Error) {
        let now_ns = self.now_ns();
        let Some(tracing) = &self.tracing else { return };
        let peer = match self.entries.get(&route.session) {
            Some(Entry::Session(session)) => session.protocol.peer_name(),
            _ => String::new(),
        };
        let connects = matches!(setup.target, Target::Connect(_));
        tracing.fail_setup(connects, &peer, now_ns.saturating_sub(setup.begun_ns), error.to_string());
    }

    /// Adds the clocks of peers to the trace, if it is time to.
    pub(super) fn trace_clocks(&mut self) {
        let now_ns = self.now_ns();
        let Some(tracing) = &mut self.tracing else { return };
        if !tracing.is_clock_due(now_ns) {
            return;
        }
        for entry in self.entries.values() {
            if let Entry::Session(session) = entry
                && let (Some(peer), Some(clock)) = (session.protocol.peer(), session.protocol.peer_clock())
            {
                tracing.clock(peer.process, clock);
            }
        }
    }

    /// Adds an event to the trace, with these words.
    pub(super) fn trace_event(&self, event: &Event, route: Option<Route>, text: &str) {
        let Some(tracing) = &self.tracing else { return };
        let (kind, rail) = match event {
            Event::Unwelcome(_) => (EventKind::UNWELCOME, None),
            Event::RailLeftOut { rail, .. } => (EventKind::RAIL_LEFT_OUT, Some(*rail)),
            Event::RailDown { rail, .. } => (EventKind::RAIL_DOWN, Some(*rail)),
            Event::RailAway { rail, .. } => (EventKind::RAIL_STATE, Some(*rail)),
            Event::RailUp { rail, .. } => (EventKind::RAIL_UP, Some(*rail)),
            Event::MessageTruncated(_) => (EventKind::TRUNCATED, None),
        };
        tracing.happened(kind, route, rail.map(|rail| rail.index() as u32), text);
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
        if let Some(tracing) = &self.tracing {
            tracing.rename(route, &rails);
        }
        if let Some(publish) = &mut self.publish {
            publish.rename(route, &rails);
        }
    }

    /// Notes that a connection is closed, and lingers.
    pub(super) fn publish_closed(&mut self, route: Route) {
        if let Some(tracing) = &mut self.tracing {
            tracing.close(route);
        }
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
        if self.tracing.is_none() && self.publish.is_none() {
            return;
        }
        let text = text();
        if let Some(tracing) = &self.tracing {
            tracing.happened(kind, route, None, &text);
        }
        if let Some(publish) = &mut self.publish {
            publish.note(kind, route, text);
        }
    }

    /// Notes an event that the data path of an open connection has reported and logged.
    pub(super) fn note_reported(&mut self, route: Route, event: &Event) {
        self.note_event(event, Some(route), event.to_string());
    }

    /// Notes an event that was logged with these words.
    pub(super) fn note_event(&mut self, event: &Event, route: Option<Route>, text: String) {
        self.trace_event(event, route, &text);
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
