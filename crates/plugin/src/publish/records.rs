//! The connections that are open, as the telemetry file shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use railweave_fabric::{PolicyName, RailId, RailSet};
use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Latencies, Policy, Process, Rail, RailState, State,
};
use railweave_transport::{Fate, Order, ProcessId, RailCounters, RailInfo, RailName, Steering};

use super::ports::{devices, port_index};
use crate::comm::Route;
use crate::network::Network;

/// The parts in which a share is counted.
const WHOLE: u128 = 65_536;

/// Lists keep room for this many entries when they shrink.
const FEW: usize = 16;

/// A connection that has come up.
pub(crate) struct Opened<'a> {
    pub(crate) route: Route,
    pub(crate) direction: Direction,
    /// Its network, and its device there.
    pub(crate) network: &'a dyn Network,
    pub(crate) device: usize,
    pub(crate) fate: &'a Arc<Fate>,
    pub(crate) steering: &'a Arc<Steering>,
    /// The rails that came up.
    pub(crate) rails: &'a [RailInfo],
    /// The rails that did not.
    pub(crate) left_out: &'a [(RailId, RailName)],
    pub(crate) peer: Peer,
}

/// The process at the other end of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Its rank in the job; negative if it is not known.
    pub(crate) rank: i32,
    pub(crate) process: ProcessId,
}

/// A connection, apart from its records.
pub(super) struct Entry {
    pub(super) steering: Arc<Steering>,
    fate: Arc<Fate>,
    /// The number of its rails, those that did not come up included.
    rails: usize,
    /// The rails that came up.
    pub(super) up: RailSet,
    /// The names of this end's ports, by the rails' numbers; empty if not known.
    pub(super) ports: Vec<String>,
    /// The order that it began with, which is that of the settings.
    pub(super) own: Order,
    /// The order that was given last.
    pub(super) given: Order,
    /// True if the order has changed since a line named it.
    pub(super) is_untold: bool,
    is_fallback: bool,
    /// True if a sample was asked for at the last look.
    is_sampled: bool,
    /// True once it is closed and freed: it is removed by the next [`Records::refresh`].
    is_gone: bool,
}

/// The connections with their records.
pub(super) struct Records {
    pub(super) state: State,
    /// In the order of `state.connections`, which is that of their numbers.
    pub(super) entries: Vec<Entry>,
    /// The counters of each rail, in the order of `state.rails`; `None` for one that did not come up.
    counters: Vec<Option<Arc<RailCounters>>>,
    /// The [`activity`] of each at the last look. Both lists are dense, because a look at many idle connections finds
    /// nothing in the caches.
    activity: Vec<u64>,
    numbers: BTreeMap<Route, u32>,
    next_number: u32,
    /// The process's network, and TCP for peers that RDMA does not reach.
    networks: Vec<Arc<dyn Network>>,
    /// True if connections are to be removed.
    has_gone: bool,
    /// True if the records say that bytes are in flight: the next look tells if they still are, though no counter of
    /// [`activity`] changes when they are complete.
    pub(super) has_flights: bool,
}

/// The result of a look at the counters.
#[derive(Default)]
pub(super) struct Moved {
    /// True if a counter of any connection has changed.
    pub(super) any: bool,
    /// The connections that are newly found to be broken: their numbers, and the reasons.
    pub(super) broken: Vec<(u32, String)>,
}

impl Records {
    pub(super) fn new(process: Process, networks: Vec<Arc<dyn Network>>) -> Self {
        let state = State { process, ..State::default() };
        let mut records = Self {
            state,
            entries: Vec::new(),
            counters: Vec::new(),
            activity: Vec::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            networks,
            has_gone: false,
            has_flights: false,
        };
        records.refresh_devices();
        records
    }

    /// Brings the devices up to date: NCCL may have fused some.
    fn refresh_devices(&mut self) {
        let count = self.networks.iter().map(|network| network.devices().count()).sum::<usize>();
        let before = self.state.devices.len();
        if count == before {
            return;
        }
        self.state.devices = self.networks.iter().flat_map(|network| devices(&**network)).collect();
        for (record, _) in self.state.connections.iter_mut().zip(&self.entries).filter(|(_, entry)| entry.is_fallback) {
            record.device = record.device.map(|device| device + (count - before) as u32);
        }
    }

    /// Adds a connection. Returns its place.
    pub(super) fn open(&mut self, opened: &Opened<'_>, time_ns: u64) -> usize {
        self.refresh_devices();
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(opened.route, number);
        let is_fallback = self.networks.first().is_some_and(|network| network.is_tcp() != opened.network.is_tcp());
        let skipped = if is_fallback { self.networks[0].devices().count() } else { 0 };
        let own = opened.steering.current();
        self.state.connections.push(Connection {
            number,
            direction: opened.direction,
            state: ConnectionState::Open,
            policy: policy(own.policy),
            device: u32::try_from(skipped + opened.device).ok(),
            peer_rank: u32::try_from(opened.peer.rank).ok(),
            peer_pid: Some(opened.peer.pid),
            since_ns: time_ns,
            messages: (opened.direction == Direction::Receive).then_some(0),
            waited_for_cts: 0,
            peer_host: opened.peer.host.clone(),
            peer_process: Some(opened.peer.process.0),
        });
        let (first_rail, mut ports) = (self.counters.len(), Vec::new());
        for id in RailId::all() {
            let up = opened.rails.iter().find(|rail| rail.index == id.index());
            let never_up = opened.left_out.iter().find(|(rail, _)| *rail == id);
            let Some(name) = up.map(|rail| &rail.name).or(never_up.map(|(_, name)| name)) else {
                continue;
            };
            ports.resize(id.index() + 1, String::new());
            if let Some(rail) = up {
                ports[id.index()] = opened.network.port_name(opened.device, rail.local_port).unwrap_or_default();
            }
            self.counters.push(up.map(|rail| Arc::clone(&rail.counters)));
            self.activity.push(0);
            self.state.rails.push(Rail {
                connection: number,
                number: id.index() as u8,
                state: if up.is_some() { RailState::Up } else { RailState::NeverUp },
                policy: policy(own.policy),
                lanes: up.map(|rail| rail.lanes),
                since_ns: time_ns,
                speed_mbps: up.and_then(|rail| rail.speed_mbps),
                in_flight: up.map(|_| 0),
                port: port_index(&mut self.state.ports, &ports[id.index()], opened.network),
                local: name.local.clone(),
                remote: name.remote.clone(),
                ..Rail::default()
            });
        }
        self.entries.push(Entry {
            steering: Arc::clone(opened.steering),
            fate: Arc::clone(opened.fate),
            rails: self.counters.len() - first_rail,
            up: opened.rails.iter().filter_map(|rail| RailId::new(rail.index)).collect(),
            ports,
            own,
            given: own,
            is_untold: false,
            is_fallback,
            is_sampled: false,
            is_gone: false,
        });
        self.entries.len() - 1
    }

    /// Returns the number of a connection that is known.
    pub(super) fn number(&self, route: Route) -> Option<u32> {
        self.numbers.get(&route).copied()
    }

    /// Notes that a connection is closed. Returns its number, and the reason if it is newly found to be broken.
    pub(super) fn close(&mut self, route: Route, time_ns: u64) -> Option<(u32, Option<String>)> {
        let number = self.number(route)?;
        let broken = self.place(number).and_then(|place| self.find_broken(place));
        self.set_state(number, ConnectionState::Closing, time_ns);
        Some((number, broken))
    }

    /// Forgets a connection that is freed. Returns its number and the reason if it is newly found to be broken.
    pub(super) fn forget(&mut self, route: Route) -> Option<(u32, String)> {
        let number = self.numbers.remove(&route)?;
        let place = self.place(number)?;
        let broken = self.find_broken(place);
        self.entries[place].is_gone = true;
        self.has_gone = true;
        Some((number, broken?))
    }

    /// Returns why a connection is broken, if nothing has noted that it is. It is about to have another state.
    fn find_broken(&self, place: usize) -> Option<String> {
        let is_open = self.state.connections[place].state == ConnectionState::Open;
        self.entries[place].fate.broken().filter(|_| is_open).map(ToString::to_string)
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.state.connections.binary_search_by_key(&number, |record| record.number).ok()
    }

    fn set_state(&mut self, number: u32, state: ConnectionState, time_ns: u64) {
        if let Some(place) = self.place(number) {
            (self.state.connections[place].state, self.state.connections[place].since_ns) = (state, time_ns);
        }
    }

    /// Removes the connections that are gone, with their rails.
    fn remove_gone(&mut self) {
        if !std::mem::take(&mut self.has_gone) {
            return;
        }
        let mut gone = self.entries.iter().map(|entry| entry.is_gone);
        self.state.connections.retain(|_| gone.next() == Some(false));
        let is_gone = |entry: &Entry| std::iter::repeat_n(entry.is_gone, entry.rails);
        let mut gone = self.entries.iter().flat_map(is_gone);
        self.state.rails.retain(|_| gone.next() == Some(false));
        let mut gone = self.entries.iter().flat_map(is_gone);
        self.counters.retain(|_| gone.next() == Some(false));
        let mut gone = self.entries.iter().flat_map(is_gone);
        self.activity.retain(|_| gone.next() == Some(false));
        self.entries.retain(|entry| !entry.is_gone);
        shrink(&mut self.state.connections);
        shrink(&mut self.state.rails);
        shrink(&mut self.entries);
        shrink(&mut self.counters);
        shrink(&mut self.activity);
    }

    /// Returns true if a counter has changed since the last call.
    fn has_moved(&mut self) -> bool {
        let mut moved = false;
        for (counters, before) in self.counters.iter().zip(&mut self.activity) {
            let now = counters.as_ref().map_or(0, |counters| activity(counters));
            moved |= std::mem::replace(before, now) != now;
        }
        moved
    }

    /// Brings all records up to date, and asks the senders that have moved for a sample. Unless `is_thorough`, it only
    /// looks at the counters if none has changed.
    pub(super) fn refresh(&mut self, time_ns: u64, is_thorough: bool) -> Moved {
        self.refresh_devices();
        self.remove_gone();
        let mut moved = Moved::default();
        if !self.has_moved() && !is_thorough {
            return moved;
        }
        self.has_flights = false;
        let (mut rails, mut all_counters) = (&mut self.state.rails[..], &self.counters[..]);
        for (record, entry) in self.state.connections.iter_mut().zip(&mut self.entries) {
            let (own, rest) = std::mem::take(&mut rails).split_at_mut(entry.rails);
            let (counters, other_counters) = all_counters.split_at(entry.rails);
            (rails, all_counters) = (rest, other_counters);
            let sends = record.direction == Direction::Send;
            let has_moved = refresh_rails(own, counters, sends);
            if entry.is_sampled {
                for (record, counters) in own.iter_mut().zip(counters) {
                    record.latencies = counters.as_ref().map_or(record.latencies, |rail| Latencies(rail.latencies()));
                }
            }
            entry.is_sampled = sends && has_moved;
            if entry.is_sampled {
                entry.steering.ask_for_sample();
            }
            moved.any |= has_moved;
            self.has_flights |= own.iter().any(|rail| rail.in_flight.is_some_and(|bytes| bytes > 0));
            if record.state == ConnectionState::Open {
                refresh_states(own, counters, entry.given.allowed, time_ns);
            }
            record.waited_for_cts = entry.steering.waited_for_cts();
            record.messages = record.messages.map(|_| own.iter().map(|rail| rail.cts_writes).sum());
            if record.state == ConnectionState::Open
                && let Some(error) = entry.fate.broken()
            {
                (record.state, record.since_ns) = (ConnectionState::Failed, time_ns);
                for rail in own.iter_mut().filter(|rail| rail.state != RailState::NeverUp) {
                    (rail.state, rail.since_ns) = (RailState::Down, time_ns);
                }
                moved.broken.push((record.number, error.to_string()));
            }
        }
        moved
    }

    /// Gives each connection from this place on the order that `decide` returns, and shows it. Returns true if one of
    /// them had another order before.
    pub(super) fn order(
        &mut self,
        from: usize,
        time_ns: u64,
        mut decide: impl FnMut(&Connection, &Entry, &[Device]) -> Order,
    ) -> bool {
        let mut is_changed = false;
        let mut first_rail = self.entries[..from].iter().map(|entry| entry.rails).sum();
        for place in from..self.entries.len() {
            let order = decide(&self.state.connections[place], &self.entries[place], &self.state.devices);
            is_changed |= self.give(place, first_rail, order, time_ns);
            first_rail += self.entries[place].rails;
        }
        is_changed
    }

    /// Calls `tell` for each connection whose order has changed since the last call.
    pub(super) fn tell_orders(&mut self, mut tell: impl FnMut(&Connection, &Entry)) {
        for (record, entry) in self.state.connections.iter().zip(&mut self.entries) {
            if std::mem::take(&mut entry.is_untold) && !entry.is_gone {
                tell(record, entry);
            }
        }
    }

    /// Gives a connection, whose rails begin at this place, an order. Returns false if it is the one that it has.
    fn give(&mut self, place: usize, first_rail: usize, order: Order, time_ns: u64) -> bool {
        let entry = &mut self.entries[place];
        if entry.given == order || entry.is_gone {
            return false;
        }
        (entry.given, entry.is_untold) = (order, true);
        entry.steering.order(&order);
        self.state.connections[place].policy = policy(order.policy);
        let rails = &mut self.state.rails[first_rail..][..entry.rails];
        let up: RailSet = rails.iter().filter(|rail| is_usable(rail.state)).filter_map(rail_id).collect();
        // If none of the rails that may be used is up, the others are used all the same.
        let drains = !(up & order.allowed).is_empty();
        for rail in rails {
            rail.policy = policy(order.policy);
            let is_drained = drains && rail_id(rail).is_some_and(|id| !order.allowed.contains(id));
            let state = if is_drained { RailState::Drained } else { RailState::Up };
            if is_usable(rail.state) && rail.state != state {
                (rail.state, rail.since_ns) = (state, time_ns);
            }
        }
        true
    }
}

/// Gives memory back after a burst of connections.
fn shrink<T>(list: &mut Vec<T>) {
    let room = list.len().max(FEW);
    if list.capacity() > 2 * room {
        list.shrink_to(room);
    }
}

/// Notes the rails of an open connection that have gone down, and those that are back.
fn refresh_states(records: &mut [Rail], rails: &[Option<Arc<RailCounters>>], allowed: RailSet, time_ns: u64) {
    for (record, counters) in records.iter_mut().zip(rails) {
        let state = match counters.as_ref().map(|counters| counters.is_down()) {
            Some(true) => RailState::Down,
            Some(false) if record.state != RailState::Down => continue,
            Some(false) if rail_id(record).is_some_and(|id| !allowed.contains(id)) => RailState::Drained,
            Some(false) => RailState::Up,
            None => continue,
        };
        if record.state != state {
            (record.state, record.since_ns) = (state, time_ns);
        }
    }
}

/// Brings a connection's rails up to date. Returns true if any of them has moved anything.
fn refresh_rails(records: &mut [Rail], rails: &[Option<Arc<RailCounters>>], sends: bool) -> bool {
    let (mut moved, mut carried) = (false, [0; 8]);
    for ((record, counters), carried) in records.iter_mut().zip(rails).zip(&mut carried) {
        let Some(counters) = counters else {
            continue;
        };
        let counts = [counters.data_bytes(), counters.data_writes(), counters.cts_writes(), counters.received_bytes()];
        let before = [record.bytes_sent, record.writes_sent, record.cts_writes, record.bytes_received];
        record.in_flight = Some(counters.in_flight());
        (record.retransmitted, record.failovers) = (counters.repaired(), counters.failovers());
        if counts == before {
            continue;
        }
        moved = true;
        *carried = if sends { counts[0].wrapping_sub(before[0]) } else { counts[3].wrapping_sub(before[3]) };
        [record.bytes_sent, record.writes_sent, record.cts_writes, record.bytes_received] = counts;
    }
    let sum: u128 = carried.iter().map(|bytes| u128::from(*bytes)).sum();
    if sum > 0 {
        for (record, carried) in records.iter_mut().zip(carried) {
            record.share = record.lanes.map(|_| (u128::from(carried) * WHOLE / sum) as u32);
        }
    }
    moved
}

/// Returns a number that changes whenever a rail moves something.
fn activity(counters: &RailCounters) -> u64 {
    let writes = counters.data_writes().wrapping_add(counters.cts_writes());
    writes.wrapping_add(counters.received_bytes())
}

fn rail_id(rail: &Rail) -> Option<RailId> {
    RailId::new(rail.number.into())
}

fn is_usable(state: RailState) -> bool {
    matches!(state, RailState::Up | RailState::Drained)
}

fn policy(name: PolicyName) -> Policy {
    match name {
        PolicyName::Static => Policy::Static,
        PolicyName::Speed => Policy::Speed,
        PolicyName::Adaptive => Policy::Adaptive,
        PolicyName::Agent => Policy::Agent,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    use railweave_topology::ChosenPort;
    use railweave_transport::{Offer, OwnWeights, Token};

    use crate::devices::Devices;
    use crate::network::{AnyHandshake, HandshakeParams, To};

    /// A network without devices.
    struct Empty(Devices);

    impl Network for Empty {
        fn devices(&self) -> &Devices {
            &self.0
        }

        fn ports(&self) -> &[ChosenPort] {
            &[]
        }

        fn may_block(&self) -> bool {
            false
        }

        fn port_name(&self, _: usize, _: usize) -> Option<String> {
            None
        }

        fn connect(&self, _: usize, _: To<'_>, _: HandshakeParams) -> Box<dyn AnyHandshake> {
            unreachable!("nothing is connected here")
        }

        fn accept(&self, _: usize, _: &Offer, _: bool, _: Token, _: HandshakeParams) -> Box<dyn AnyHandshake> {
            unreachable!("nothing is accepted here")
        }
    }

    const WEIGHTS: OwnWeights = OwnWeights { speed: [1; 8], fixed: None };

    fn route(connection: u32) -> Route {
        Route { session: 1, connection }
    }

    fn name(rail: usize) -> RailName {
        RailName { local: format!("here{rail}"), remote: format!("there{rail}") }
    }

    fn open(records: &mut Records, number: u32, up: &[usize], never_up: &[usize]) -> Arc<Steering> {
        open_to(Peer::default(), records, number, up, never_up)
    }

    /// Opens a connection with these rails, of which some did not come up. Returns its steering.
    pub(in super::super) fn open_to(
        peer: Peer,
        records: &mut Records,
        number: u32,
        up: &[usize],
        never_up: &[usize],
    ) -> Arc<Steering> {
        let info = |rail: &usize| RailInfo {
            index: *rail,
            local_port: *rail,
            name: name(*rail),
            speed_mbps: None,
            lanes: 1,
            counters: Arc::default(),
        };
        let steering = Arc::new(Steering::new(&WEIGHTS.order(PolicyName::Adaptive), WEIGHTS));
        records.open(
            &Opened {
                route: route(number),
                direction: Direction::Send,
                network: &Empty(Devices::new(Vec::new(), None)),
                device: 0,
                fate: &Arc::default(),
                steering: &steering,
                rails: &up.iter().map(info).collect::<Vec<_>>(),
                left_out: &never_up.iter().map(|rail| (RailId::new(*rail).unwrap(), name(*rail))).collect::<Vec<_>>(),
                peer,
            },
            7,
        );
        steering
    }

    /// Orders the connections from this place on to leave out these rails. Returns the numbers of those that changed.
    fn drain(records: &mut Records, from: usize, rails: u8) -> Vec<u32> {
        let order = Order { allowed: RailSet::from_bits(!rails), ..WEIGHTS.order(PolicyName::Adaptive) };
        let mut changed = Vec::new();
        let is_changed = records.order(from, 8, |_, _, _| order);
        records.tell_orders(|record, _| changed.push(record.number));
        assert_eq!(is_changed, !changed.is_empty());
        changed
    }

    /// Returns the connection, number, state and change of each rail.
    fn states(records: &Records) -> Vec<(u32, u8, RailState, u64)> {
        records.state.rails.iter().map(|rail| (rail.connection, rail.number, rail.state, rail.since_ns)).collect()
    }

    #[test]
    fn an_order_changes_the_rails_of_its_connections_that_are_up() {
        use RailState::{Drained, NeverUp, Up};
        let mut records = Records::new(Process::default(), Vec::new());
        let first = open(&mut records, 0, &[0, 1, 2], &[]);
        let second = open(&mut records, 1, &[0], &[1]);
        let third = open(&mut records, 2, &[1], &[0]);
        assert_eq!(drain(&mut records, 1, 1), [1, 2], "those from the second on");
        // The second has no rail but the one that it is to leave out.
        let expected = [(0, 0, Up, 7), (0, 1, Up, 7), (0, 2, Up, 7)].to_vec();
        let others = [(1, 0, Up, 7), (1, 1, NeverUp, 7), (2, 0, NeverUp, 7), (2, 1, Up, 7)];
        assert_eq!(states(&records), [&expected[..], &others].concat());
        assert_eq!(first.current().allowed.bits(), 0xff);
        assert_eq!([second, third].map(|steering| steering.current().allowed.bits()), [0xfe; 2]);

        assert_eq!(drain(&mut records, 0, 0b10), [0, 1, 2]);
        let expected = [(0, 0, Up, 7), (0, 1, Drained, 8), (0, 2, Up, 7)].to_vec();
        assert_eq!(states(&records), [&expected[..], &others].concat());
        assert_eq!(drain(&mut records, 0, 0b10), [0; 0], "they have that order");
        assert_eq!(drain(&mut records, 0, 0), [0, 1, 2]);
        assert_eq!(states(&records)[1], (0, 1, Up, 8), "and it may be used again");
    }

    #[test]
    fn a_connection_that_is_gone_takes_its_rails_with_it() {
        let mut records = Records::new(Process::default(), Vec::new());
        open(&mut records, 0, &[0, 1, 2], &[3]);
        let second = open(&mut records, 1, &[0], &[]);
        open(&mut records, 2, &[0, 1], &[]);
        assert_eq!(records.forget(route(0)), None);
        assert_eq!(drain(&mut records, 0, 1), [1, 2], "one that is gone is ordered nothing");
        records.refresh(9, false);
        let rails: Vec<_> = records.state.rails.iter().map(|rail| (rail.connection, rail.number)).collect();
        assert_eq!(rails, [(1, 0), (2, 0), (2, 1)]);
        assert_eq!((records.counters.len(), records.activity.len(), records.entries.len()), (3, 3, 2));
        assert_eq!((records.number(route(0)), records.number(route(2))), (None, Some(2)));
        assert_eq!(drain(&mut records, 1, 0b10), [2]);
        assert_eq!(second.current().allowed.bits(), 0xfe);
        let states: Vec<_> = records.state.rails.iter().map(|rail| rail.state).collect();
        assert_eq!(states, [RailState::Up, RailState::Up, RailState::Drained]);
    }
}
