//! The control thread's part of the trace: connections, their set-ups, events, and the clocks of peers.

use std::collections::BTreeMap;
use std::sync::Arc;

use railweave_telemetry::EventKind;
use railweave_trace::{Connection, Frame, PeerClock, Setup};
use railweave_transport::{self as transport, ProcessId, RailInfo};

use crate::comm::{Route, Traced};
use crate::publish::Peer;
use crate::trace::{self, Tracer};

/// The time between two looks at the clocks of peers.
const CLOCKS_NS: u64 = 1_000_000_000;

/// The trace, as the control thread adds to it.
pub(super) struct Tracing {
    tracer: Arc<Tracer>,
    /// The numbers of the connections that are not closed.
    numbers: BTreeMap<Route, u32>,
    /// The clocks of peers, as the trace has them.
    clocks: BTreeMap<[u8; 16], transport::PeerClock>,
    /// The time of the next look at them, on the control thread's clock.
    next_clocks_ns: u64,
}

impl Tracing {
    pub(super) fn new(tracer: Arc<Tracer>) -> Self {
        Self { tracer, numbers: BTreeMap::new(), clocks: BTreeMap::new(), next_clocks_ns: 0 }
    }

    /// Adds a connection that has come up, `took_ns` after its set-up began. Returns what its calls need.
    pub(super) fn open(
        &mut self,
        route: Route,
        (sends, device): (bool, String),
        rails: &[RailInfo],
        peer: &Peer,
        (name, took_ns): (&str, u64),
    ) -> Traced {
        let at_ns = trace::now_ns();
        let connection = Connection {
            number: 0,
            sends,
            peer: peer.process.0.to_vec(),
            host: peer.host.clone(),
            rank: u32::try_from(peer.rank).ok(),
            at_ns,
            device,
        };
        let number = self.tracer.open(connection, rails);
        self.numbers.insert(route, number);
        self.tracer.add(Frame::Setup(Setup {
            from_ns: at_ns.saturating_sub(took_ns),
            to_ns: at_ns,
            connection: Some(number),
            connects: sends,
            peer: name.to_owned(),
            failure: String::new(),
        }));
        Traced { tracer: Arc::clone(&self.tracer), connection: number }
    }

    /// Adds a set-up that has failed, `took_ns` after it began.
    pub(super) fn fail_setup(&self, connects: bool, peer: &str, took_ns: u64, failure: String) {
        let to_ns = trace::now_ns();
        let (from_ns, peer) = (to_ns.saturating_sub(took_ns), peer.to_owned());
        self.tracer.add(Frame::Setup(Setup { from_ns, to_ns, connection: None, connects, peer, failure }));
    }

    /// Adds the addresses that the rails of a connection have now.
    pub(super) fn rename(&self, route: Route, rails: &[RailInfo]) {
        if let Some(number) = self.numbers.get(&route) {
            self.tracer.name_rails(*number, rails);
        }
    }

    /// Notes that a connection is closed.
    pub(super) fn close(&mut self, route: Route) {
        if let Some(number) = self.numbers.remove(&route) {
            self.tracer.close(number);
        }
    }

    /// Adds an event, of this connection and this rail if there is one.
    pub(super) fn happened(&self, kind: EventKind, route: Option<Route>, rail: Option<u32>, text: &str) {
        let connection = route.and_then(|route| self.numbers.get(&route)).copied();
        self.tracer.happened(kind, connection, rail, text);
    }

    /// Returns true once it is time to look at the clocks of peers again.
    pub(super) fn is_clock_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.next_clocks_ns <= now_ns;
        if is_due {
            self.next_clocks_ns = now_ns + CLOCKS_NS;
        }
        is_due
    }

    /// Adds the clock of a peer, unless the trace has this measurement.
    pub(super) fn clock(&mut self, peer: ProcessId, clock: transport::PeerClock) {
        if self.clocks.insert(peer.0, clock) == Some(clock) {
            return;
        }
        let transport::PeerClock { ahead_ns, within_ns, at_ns } = clock;
        self.tracer.add(Frame::PeerClock(PeerClock { peer: peer.0.to_vec(), at_ns, ahead_ns, within_ns }));
    }
}
