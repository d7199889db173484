//! The rails of a connection while they come up: the work that both sides of a handshake share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Connecting, Domain, Fabric, Joining, LaneEndpoint, LocalSlice, MAX_RAILS, Memory, NetworkAddress, Part,
    PendingRail, Piece, Rail, RailId, RailSet, RailSpec, Region, Registration, RemoteSlice, Role, SettingId,
    SetupError,
};

use super::failure::{HandshakeFailure, LeftOut};
use super::plan::{CounterSource, RailPlan, own_weights};
use super::probe::{Probe, packet_bytes, repeat_ns};
use super::{Action, HandshakePort};
use crate::depths::Depths;
use crate::preface::Token;
use crate::rails::{ConnectedRail, Rails};
use crate::recovery::Remake;
use crate::{Cause, ConnectionConfig, Event, Lanes, Message, Order, OwnWeights, RailLanes};

/// The pauses between two looks at the first packets: short ones first, as they usually come through at once.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// One rail while it comes up.
pub(super) struct Opening<F: Fabric> {
    pub(super) plan: RailPlan,
    pub(super) pending: Option<F::PendingRail>,
    registrations: Vec<F::Registration>,
    /// The facts from which its lanes can be made again, once they are open.
    remake: Option<Arc<Remake<F>>>,
    /// The key by which the peer writes into this end's memory.
    inbox_key: u32,
    /// The key of the memory from which this end writes.
    outbox_key: u32,
    /// The key by which this end writes into the peer's memory.
    peer_key: u32,
    /// The exchange by which this end connects the lanes.
    exchange: Option<Exchange<F>>,
    /// The number of lanes whose sockets this end is still dialling.
    pub(super) undialled: u32,
    /// The reason why it must be left out, if a part of this host that it uses has failed.
    failed: Option<LeftOut>,
    /// The reason why the rail is left out, if it is.
    pub(super) dropped: Option<LeftOut>,
    /// The rail once it is connected, if it must carry its first packets.
    probe: Option<Probe<F::Rail>>,
    /// True once it has carried them.
    has_carried: bool,
}

impl<F: Fabric> Opening<F> {
    pub(super) fn new(plan: RailPlan) -> Self {
        Self {
            plan,
            pending: None,
            registrations: Vec::new(),
            remake: None,
            inbox_key: 0,
            outbox_key: 0,
            peer_key: 0,
            exchange: None,
            undialled: 0,
            failed: None,
            dropped: None,
            probe: None,
            has_carried: false,
        }
    }

    /// Returns the parts of this host that the rail uses.
    fn parts(&self) -> Vec<Part> {
        let connected = || self.probe.as_ref().map(|probe| probe.rail.parts());
        self.pending.as_ref().map(PendingRail::parts).or_else(connected).unwrap_or_default()
    }

    /// Returns the rail as LANES describes it.
    fn lanes(&self) -> RailLanes {
        match &self.pending {
            Some(pending) => {
                RailLanes::Open { key: self.inbox_key, endpoints: endpoints::<F>(pending, self.plan.lanes) }
            }
            None => RailLanes::Dropped {
                reason: self.dropped.as_ref().map(ToString::to_string).unwrap_or_default(),
                is_of_way: self.dropped.as_ref().is_some_and(LeftOut::is_of_way),
            },
        }
    }
}

/// The memory of a connection apart from NCCL's: CTS ring and records.
pub(super) struct OwnMemory {
    /// The memory that the peer writes into.
    pub(super) inbox: Arc<Region>,
    /// The memory from which this end writes to the peer.
    pub(super) outbox: Arc<Region>,
}

impl OwnMemory {
    pub(super) fn new(inbox_bytes: usize, outbox_bytes: usize) -> Self {
        Self { inbox: Arc::new(Region::new(inbox_bytes)), outbox: Arc::new(Region::new(outbox_bytes)) }
    }
}

/// The parts from which a handshake makes a connection.
pub(super) struct ConnectionParts<F: Fabric> {
    pub(super) rails: Rails<F>,
    pub(super) order: Order,
    pub(super) weights: OwnWeights,
    pub(super) clock: F::Clock,
    pub(super) outbox_keys: [u32; MAX_RAILS],
    pub(super) peer_keys: [u32; MAX_RAILS],
}

/// The state that both sides of a handshake keep. `C` is the end of a connection that the handshake makes.
pub(super) struct SetUp<F: Fabric, C> {
    pub(super) config: ConnectionConfig,
    pub(super) ports: Vec<HandshakePort<F>>,
    pub(super) peer: String,
    pub(super) token: Token,
    pub(super) rails: Vec<Opening<F>>,
    /// `None` until it is needed, so that an offer alone costs its acceptor little.
    pub(super) memory: Option<OwnMemory>,
    /// The address of the peer's memory that this end writes into.
    pub(super) peer_stream: u64,
    pub(super) deadline_ns: u64,
    pub(super) pause: Option<Duration>,
    /// True if other ports of the connector may take the place of those that do not connect.
    pub(super) has_others: bool,
    /// The next time to repeat the first packets; `None` before their time has begun.
    repeat_ns: Option<u64>,
    /// The end of their time.
    probe_end_ns: u64,
    /// The end of the time in which this end connects lanes, if others are connected already or may be.
    connect_end_ns: Option<u64>,
    pub(super) actions: VecDeque<Action<C>>,
    pub(super) events: VecDeque<Event>,
    counters: CounterSource,
}

impl<F: Fabric, C> SetUp<F, C> {
    pub(super) fn new(
        config: ConnectionConfig,
        ports: Vec<HandshakePort<F>>,
        peer: String,
        token: Token,
        deadline_ns: u64,
        counters: CounterSource,
    ) -> Self {
        Self {
            config,
            ports,
            peer,
            token,
            rails: Vec::new(),
            memory: None,
            peer_stream: 0,
            deadline_ns,
            pause: None,
            has_others: false,
            repeat_ns: None,
            probe_end_ns: 0,
            connect_end_ns: None,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            counters,
        }
    }

    pub(super) fn send(&mut self, message: Message) {
        self.actions.push_back(Action::Send(message));
    }

    /// Ends the handshake without a connection.
    pub(super) fn fail(&mut self, failure: HandshakeFailure) {
        self.rails.clear();
        self.pause = None;
        let error = Cause::Handshake { peer: self.peer.clone(), failure };
        self.actions.push_back(Action::Failed(error.into()));
    }

    /// Ends the handshake without a connection, and tells the peer why.
    pub(super) fn give_up(&mut self, failure: HandshakeFailure) {
        let (fault, of_rails) = (failure.fault(), failure.is_of_rails());
        self.send(Message::Refuse { fault, of_rails, reason: failure.of(&self.peer) });
        self.fail(failure);
    }

    /// Returns the parts of this host that the connection will use.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.rails.iter().flat_map(Opening::parts).collect()
    }

    /// Notes that the rails that use a part of this host have failed with it, for this reason.
    pub(super) fn note_failed(&mut self, failed: &Part, reason: &str) {
        // A device that has failed brings nothing through for the rest of the process's life.
        let is_of_way = failed.piece == Piece::Device;
        for opening in &mut self.rails {
            if opening.parts().iter().any(|part| part.fails_with(failed)) {
                opening.failed.get_or_insert_with(|| LeftOut::Broke { reason: reason.to_owned(), is_of_way });
            }
        }
    }

    /// Leaves out the rails that have failed with a part of this host. May block, as every end of a queue pair may.
    pub(super) fn leave_out_failed(&mut self) {
        for rail in RailId::all().take(self.rails.len()) {
            let opening = &self.rails[rail.index()];
            if let Some(reason) = opening.failed.clone().filter(|_| opening.dropped.is_none()) {
                self.drop_rail(rail, reason);
            }
        }
    }

    /// Returns the reason why one of these rails failed with a part of this host, if one did.
    pub(super) fn reason_of_failed(&self, rails: RailSet) -> Option<LeftOut> {
        RailId::all()
            .zip(&self.rails)
            .find_map(|(rail, opening)| opening.failed.clone().filter(|_| rails.contains(rail)))
    }

    /// Returns the rails that failed with a part of this host. The peer may still count on them.
    pub(super) fn failed(&self) -> RailSet {
        RailId::all().zip(&self.rails).filter(|(_, opening)| opening.failed.is_some()).map(|(rail, _)| rail).collect()
    }

    /// Leaves a rail out.
    pub(super) fn drop_rail(&mut self, rail: RailId, reason: LeftOut) {
        let opening = &mut self.rails[rail.index()];
        (opening.pending, opening.exchange, opening.probe) = (None, None, None);
        opening.registrations.clear();
        let name = opening.plan.name();
        opening.dropped = Some(reason.clone());
        self.events.push_back(Event::RailLeftOut { rail, name, reason });
    }

    /// Leaves out all rails that are not left out yet.
    pub(super) fn drop_all(&mut self, reason: &LeftOut) {
        for rail in RailId::all().take(self.rails.len()) {
            if self.rails[rail.index()].dropped.is_none() {
                self.drop_rail(rail, reason.clone());
            }
        }
    }

    /// Registers the connection's own memory on a rail, and creates the rail's queues for writes of at most `max_write`
    /// bytes.
    pub(super) fn open_rail(&mut self, rail: RailId, role: Role, max_write: u32) -> Result<(), SetupError> {
        let count = self.rails.len();
        let rail = &mut self.rails[rail.index()];
        let (plan, domain) = (rail.plan, &self.ports[usize::from(rail.plan.local_port)].domain);
        let depths = Depths::new(role, plan.lanes, count, self.config.striped, max_write);
        let memory = self.memory.as_ref().expect("rails are opened once the memory is there");
        let register = |region: &Arc<Region>, access| domain.register(Memory::from_region(region), access);
        let inbox = register(&memory.inbox, Access::CONTROL)?;
        let outbox = register(&memory.outbox, Access::SOURCE)?;
        let spec = RailSpec {
            role,
            lanes: plan.lanes,
            send_depth: depths.send,
            receive_depth: depths.receive,
            lane_receives: depths.lane_receive,
            traffic_class: self.config.traffic_class,
            peer: Some(plan.remote.address),
        };
        rail.pending = Some(domain.open_rail(&spec)?);
        let (local, remote) =
            (plan.local_address(), NetworkAddress::new(plan.remote_address(), plan.remote.prefix_len));
        let packet_bytes = packet_bytes([plan.local.mtu, plan.remote.mtu]).min(domain.max_write());
        rail.remake = Some(Arc::new(Remake { domain: Arc::clone(domain), spec, local, remote, packet_bytes }));
        (rail.inbox_key, rail.outbox_key) = (inbox.remote_key(), outbox.local_key());
        rail.registrations = vec![inbox, outbox];
        Ok(())
    }

    /// Sends LANES, once every rail is open or dropped.
    pub(super) fn send_lanes(&mut self, byte_counts: bool) {
        let inbox = &self.memory.as_ref().expect("rails are opened once the memory is there").inbox;
        let rails = self.rails.iter().map(Opening::lanes).collect();
        let message = Lanes { byte_counts, stream: inbox.address(), rails };
        self.send(Message::Lanes(message));
    }

    /// Checks that the peer's LANES has the agreed number of rails, and notes the address of the memory that this end
    /// writes into. Returns the rails.
    pub(super) fn take_lanes(&mut self, lanes: Lanes) -> Result<Vec<RailLanes>, HandshakeFailure> {
        if lanes.rails.len() != self.rails.len() {
            let (lanes, answered) = (lanes.rails.len(), self.rails.len());
            return Err(HandshakeFailure::WrongRails { lanes, answered });
        }
        self.peer_stream = lanes.stream;
        Ok(lanes.rails)
    }

    /// Checks that the peer has opened as many lanes of a rail as agreed.
    pub(super) fn check_lanes(&self, rail: RailId, endpoints: &[LaneEndpoint]) -> Result<(), HandshakeFailure> {
        let (agreed, lanes) = (self.rails[rail.index()].plan.lanes, endpoints.len());
        if lanes == usize::from(agreed) {
            return Ok(());
        }
        Err(HandshakeFailure::WrongLanes { rail, lanes, agreed })
    }

    /// Takes the peer's end of a rail. Returns true if this end must connect it; otherwise its lanes are sockets.
    pub(super) fn peer_opened(&mut self, rail: RailId, key: u32, endpoints: Vec<LaneEndpoint>) -> bool {
        let rail = &mut self.rails[rail.index()];
        rail.peer_key = key;
        match F::JOINING {
            Joining::ByExchange { connect, .. } => {
                rail.exchange = Some(Exchange { connect, endpoints, reason: None });
                true
            }
            Joining::BySockets { .. } => false,
        }
    }

    /// Returns true if this end is connecting lanes.
    pub(super) fn is_connecting(&self) -> bool {
        self.rails.iter().any(|rail| rail.exchange.is_some())
    }

    fn probe_timeout_ns(&self) -> u64 {
        u64::try_from(self.config.probe_timeout.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Continues to connect lanes; `now_ns` is `None` at the first attempt. Returns true if no attempt has to be
    /// repeated. Once one rail is connected, the others have as long as their first packets would have. That includes
    /// the time in a thread's queue: without it, the rails of many connections over a cable that leads nowhere would
    /// look for their ports one after another.
    pub(super) fn connect(&mut self, now_ns: Option<u64>) -> bool {
        self.pause = None;
        for rail in RailId::all().take(self.rails.len()) {
            let opening = &mut self.rails[rail.index()];
            let (Some(exchange), Some(pending)) = (&mut opening.exchange, &mut opening.pending) else {
                continue;
            };
            match exchange.go_on(pending) {
                Ok(None) => opening.exchange = None,
                Ok(pause) => self.pause = self.pause.max(pause),
                Err(error) => self.drop_rail(rail, LeftOut::Failed(error)),
            }
        }
        let may_do_without = self.has_others || !self.connected().is_empty();
        if let Some(now_ns) = now_ns.filter(|_| self.pause.is_some() && may_do_without) {
            let latest_ns = now_ns.saturating_add(self.probe_timeout_ns());
            let end_ns = *self.connect_end_ns.get_or_insert(latest_ns);
            self.deadline_ns = self.deadline_ns.min(end_ns);
        }
        self.pause.is_none()
    }

    /// Gives up on lanes that this host could not connect in time; the rails that are connected carry on without them.
    /// Returns the reason if no rail is left.
    pub(super) fn give_up_connecting(&mut self) -> Option<LeftOut> {
        let is_probe_timeout = self.connect_end_ns.is_some_and(|end_ns| end_ns <= self.deadline_ns);
        let limit = if is_probe_timeout { SettingId::ProbeTimeout } else { SettingId::HandshakeTimeout };
        self.pause = None;
        let mut last = None;
        for rail in RailId::all().take(self.rails.len()) {
            if let Some(exchange) = &self.rails[rail.index()].exchange {
                let reason = LeftOut::TooLate { last: exchange.reason.clone(), limit };
                last = Some(reason.clone());
                self.drop_rail(rail, reason);
            }
        }
        last.filter(|_| self.rails.iter().all(|rail| rail.pending.is_none()))
    }

    /// Sends the first packets of every rail that is connected.
    pub(super) fn begin_probes(&mut self) {
        let outbox = self.memory.as_ref().expect("rails are opened once the memory is there").outbox.address();
        for rail in RailId::all().take(self.rails.len()) {
            let opening = &mut self.rails[rail.index()];
            let packet_bytes = opening.remake.as_ref().map(|remake| remake.packet_bytes);
            let Some((pending, length)) = opening.pending.take().zip(packet_bytes) else {
                continue;
            };
            let remote = RemoteSlice { address: self.peer_stream, key: opening.peer_key };
            let key = opening.outbox_key;
            match pending.into_rail() {
                Ok(up) => {
                    let local = LocalSlice { address: outbox, length, key };
                    let probe = opening.probe.insert(Probe::new(up, local, remote));
                    if let Err(error) = probe.send() {
                        self.drop_rail(rail, LeftOut::Broke { reason: error.to_string(), is_of_way: false });
                    }
                }
                Err(error) => self.drop_rail(rail, LeftOut::Failed(error)),
            }
        }
    }

    /// Looks after the first packets; `now_ns` is `None` while their time has not begun. Returns true if none is
    /// awaited any more.
    pub(super) fn probe(&mut self, now_ns: Option<u64>) -> bool {
        let timeout_ns = self.probe_timeout_ns();
        let next_ns = |now_ns: u64| Some(now_ns.saturating_add(repeat_ns(timeout_ns)));
        let repeats = match (now_ns, self.repeat_ns) {
            (Some(now_ns), None) => {
                self.probe_end_ns = now_ns.saturating_add(timeout_ns);
                self.repeat_ns = next_ns(now_ns);
                false
            }
            (Some(now_ns), Some(at_ns)) if now_ns >= at_ns => {
                self.repeat_ns = next_ns(now_ns);
                true
            }
            _ => false,
        };
        let mut is_waiting = false;
        for rail in RailId::all().take(self.rails.len()) {
            let opening = &mut self.rails[rail.index()];
            let Some(probe) = opening.probe.as_mut().filter(|_| !opening.has_carried) else {
                continue;
            };
            let broke = |reason: String, is_of_way| LeftOut::Broke { reason, is_of_way };
            let sent = if repeats { probe.send() } else { Ok(()) };
            let carried = sent
                .map_err(|error| broke(error.to_string(), false))
                .and_then(|()| probe.has_carried().map_err(|error| broke(error.to_string(), error.is_unanswered())));
            match carried {
                Ok(true) => opening.has_carried = true,
                Ok(false) => is_waiting = true,
                Err(reason) => self.drop_rail(rail, reason),
            }
        }
        let pause = self.pause.map_or(SHORTEST_PAUSE, |pause| (2 * pause).min(LONGEST_PAUSE));
        self.pause = is_waiting.then_some(pause);
        if is_waiting && self.repeat_ns.is_some() {
            // A message of the peer begins its time again, not that of the packets.
            self.deadline_ns = self.probe_end_ns;
        }
        !is_waiting
    }

    /// Handles the end of the time of the first packets: leaves out the rails that have not carried theirs.
    pub(super) fn end_probes(&mut self, now_ns: u64) {
        let had_begun = self.repeat_ns.is_some();
        if self.probe(Some(now_ns)) || !had_begun {
            return;
        }
        self.pause = None;
        for rail in RailId::all().take(self.rails.len()) {
            let opening = &self.rails[rail.index()];
            if let Some(probe) = opening.probe.as_ref().filter(|_| !opening.has_carried) {
                let (bytes, timeout) = (probe.packet_bytes(), self.config.probe_timeout);
                self.drop_rail(rail, LeftOut::Silent { bytes, timeout });
            }
        }
    }

    /// Leaves out the rails that a message of the peer does not name, for this reason.
    ///
    /// # Errors
    /// If the message names others than those allowed.
    pub(super) fn keep_named(
        &mut self,
        message: &'static str,
        named: RailSet,
        allowed: RailSet,
        reason: &LeftOut,
    ) -> Result<(), HandshakeFailure> {
        if !named.is_within(allowed) {
            return Err(HandshakeFailure::WrongRailSet { message, named, rails: self.rails.len() });
        }
        for rail in RailId::all().take(self.rails.len()).filter(|rail| !named.contains(*rail)) {
            let opening = &self.rails[rail.index()];
            if opening.pending.is_some() || opening.probe.is_some() {
                self.drop_rail(rail, reason.clone());
            }
        }
        Ok(())
    }

    /// Returns the rails that are connected: those that have carried their first packets, where they must.
    pub(super) fn connected(&self) -> RailSet {
        let is_connected = |opening: &Opening<F>| match &opening.pending {
            Some(pending) => pending.is_ready(),
            None => opening.has_carried && opening.probe.is_some(),
        };
        RailId::all().zip(&self.rails).filter(|(_, opening)| is_connected(opening)).map(|(rail, _)| rail).collect()
    }

    /// Takes the rail with this number, if it is connected.
    ///
    /// # Errors
    /// If a lane of it is not.
    pub(super) fn take_rail(&mut self, rail: RailId) -> Result<Option<F::Rail>, SetupError> {
        let opening = &mut self.rails[rail.index()];
        match opening.pending.take() {
            Some(pending) => pending.into_rail().map(Some),
            None => Ok(opening.probe.take().map(|probe| probe.rail)),
        }
    }

    /// Returns the reason why the first of the rails that are left out is.
    pub(super) fn first_left_out(&self) -> Option<LeftOut> {
        self.rails.iter().find_map(|opening| opening.dropped.clone())
    }

    /// Returns true if no rail came up, and only this host is at fault.
    pub(super) fn failed_here(&self) -> bool {
        self.rails.iter().all(|opening| opening.dropped.as_ref().is_some_and(LeftOut::is_local))
    }

    /// Returns the parts of a connection. `up` has the finished rail for each number, `None` for one that did not come
    /// up.
    pub(super) fn make(&mut self, up: Vec<Option<F::Rail>>) -> ConnectionParts<F> {
        let openings = std::mem::take(&mut self.rails);
        let mut weights = own_weights(&openings.iter().map(|opening| opening.plan).collect::<Vec<_>>());
        let (mut outbox_keys, mut peer_keys) = ([0; MAX_RAILS], [0; MAX_RAILS]);
        let mut rails = Vec::new();
        for ((rail, opening), up) in RailId::all().zip(openings).zip(up) {
            outbox_keys[rail] = opening.outbox_key;
            peer_keys[rail] = opening.peer_key;
            if up.is_none() {
                weights.speed[rail] = 0;
                weights.fixed.iter_mut().for_each(|fixed| fixed[rail] = 0);
            }
            let info = opening.plan.info(rail, &self.counters);
            let made = up.zip(opening.remake);
            rails.push(made.map(|(up, remake)| ConnectedRail::new(up, info, opening.registrations, remake)));
        }
        let order = weights.order(self.config.policy);
        let clock = self.ports[0].domain.clock();
        ConnectionParts { rails: Rails::new(rails), order, weights, clock, outbox_keys, peer_keys }
    }
}

/// Returns true if the rails of a fabric must carry a packet before they count. Lanes that are sockets have carried
/// their prefaces.
pub(super) fn proves<F: Fabric>() -> bool {
    F::ONE_SIDED && matches!(F::JOINING, Joining::ByExchange { .. })
}

/// Returns this end's end points of a rail's lanes, for LANES. Lanes that are sockets have none; each is represented by
/// zeros.
fn endpoints<F: Fabric>(pending: &F::PendingRail, lanes: u8) -> Vec<LaneEndpoint> {
    match F::JOINING {
        Joining::ByExchange { endpoints, .. } => endpoints(pending),
        Joining::BySockets { .. } => vec![LaneEndpoint::default(); usize::from(lanes)],
    }
}

/// The function that connects a rail's lanes to the peer's end points: [`Joining::ByExchange`].
type Connect<F> = fn(&mut <F as Fabric>::PendingRail, &[LaneEndpoint]) -> Result<Connecting, SetupError>;

/// The peer's end points of a rail that the fabric is still connecting.
struct Exchange<F: Fabric> {
    connect: Connect<F>,
    endpoints: Vec<LaneEndpoint>,
    /// The reason why it is not connected yet, once it was tried.
    reason: Option<SetupError>,
}

impl<F: Fabric> Exchange<F> {
    /// Continues to connect. Returns the pause until the next attempt, `None` once it is connected.
    fn go_on(&mut self, pending: &mut F::PendingRail) -> Result<Option<Duration>, SetupError> {
        match (self.connect)(pending, &self.endpoints)? {
            Connecting::Done => Ok(None),
            Connecting::Later { pause, reason } => {
                self.reason = Some(reason);
                Ok(Some(pause))
            }
        }
    }
}
