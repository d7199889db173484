//! A fabric without a network: it records posted work, checks it, and completes it when told to.
//!
//! It keeps the promises of every fabric (completions in order, an immediate only where a receive is posted, a lane's
//! failure once), because the protocol may rely on them. It checks the protocol's promises to every fabric: room in the
//! queue, and sources inside registered memory of the same port.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    Access, Clock, ClosedAt, Connecting, Domain, Ended, Fabric, Joining, LaneEndpoint, LaneId, Memory, PendingRail,
    PostError, Rail, RailError, RailSpec, Region, RegisterError, Registration, RemoteSlice, Reports, SetupError,
    SetupStep, WorkId, Write,
};

/// The fabric. If one-sided, its lanes are connected by end points; otherwise they are sockets, as on TCP.
pub(crate) struct Scripted<const ONE_SIDED: bool>;

impl<const ONE_SIDED: bool> Fabric for Scripted<ONE_SIDED> {
    const NAME: &'static str = "scripted";
    const ONE_SIDED: bool = ONE_SIDED;
    const JOINING: Joining<Pending<ONE_SIDED>> = if ONE_SIDED {
        Joining::ByExchange { endpoints: Pending::endpoints, connect: Pending::connect }
    } else {
        Joining::BySockets { awaits: Pending::awaits_socket, attach: Pending::attach, address: Pending::address }
    };
    type Domain = Port<ONE_SIDED>;
    type PendingRail = Pending<ONE_SIDED>;
    type Rail = Open;
    type Registration = Registered;
    type Clock = ScriptedClock;
}

/// A clock on which a microsecond passes between two readings.
#[derive(Default)]
pub(crate) struct ScriptedClock(AtomicU64);

impl Clock for ScriptedClock {
    fn ticks(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn ticks_per_second(&self) -> u64 {
        1_000_000
    }
}

/// One process's network, seen from outside: the script reads and steers it here.
#[derive(Clone, Default)]
pub(crate) struct World(Arc<Mutex<State>>);

/// The state of a world.
#[derive(Default)]
pub(crate) struct State {
    memory: BTreeMap<u32, Range>,
    keys: u32,
    /// Rails that are being connected.
    pub(crate) pending: usize,
    /// Rails that are open.
    pub(crate) open: usize,
    /// All rails that were ever open, in the order in which they became rails.
    pub(crate) rails: Vec<RailState>,
    /// Registrations, rails and lanes that are refused next.
    pub(crate) refusals: Refusals,
    /// The number of times that the peer has closed all sockets of dialled lanes.
    pub(crate) closings: u32,
    /// The fate of the packets by which a set-up tries its rails.
    pub(crate) first_packets: FirstPackets,
    /// True once the set-up is over, so that the script looks at writes and completes them.
    pub(crate) is_up: bool,
}

/// The fate of the packets by which a set-up tries its rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FirstPackets {
    #[default]
    ComeThrough,
    Vanish,
    Fail,
}

/// For each kind of call, the number of next calls that fail.
#[derive(Default)]
pub(crate) struct Refusals {
    pub(crate) register: u8,
    pub(crate) open: u8,
    pub(crate) connect: u8,
    /// The number of next attempts to connect that are put off, not refused.
    pub(crate) later: u8,
}

struct Range {
    port: usize,
    address: u64,
    length: u64,
    access: Access,
    region: Option<Arc<Region>>,
}

/// An open rail.
pub(crate) struct RailState {
    port: usize,
    lanes: Vec<LaneState>,
    send_depth: usize,
    receive_depth: u32,
    receives: u32,
    completions: VecDeque<Completion>,
    /// True once its lanes have ended.
    has_ended: bool,
    /// Writes that the script has not looked at yet.
    pub(crate) posted: Vec<Write>,
}

#[derive(Default)]
struct LaneState {
    /// Writes that still hold their room.
    outstanding: VecDeque<Write>,
    broken: bool,
}

impl World {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the port with this number.
    pub(crate) fn port<const ONE_SIDED: bool>(&self, port: usize, caps: Caps) -> Arc<Port<ONE_SIDED>> {
        Arc::new(Port { world: self.clone(), port, caps })
    }

    /// Opens a descriptor that takes the place of a lane's socket.
    pub(crate) fn socket() -> OwnedFd {
        File::open("/dev/null").expect("/dev/null is there").into()
    }

    /// Asserts that nothing opened or registered by the protocol is left.
    pub(crate) fn assert_freed(&self) {
        let state = self.lock();
        let registered = state.memory.values().filter(|range| range.region.is_some()).count();
        assert_eq!((state.pending, state.open, registered), (0, 0, 0), "pending rails, rails, registrations are left");
    }
}

impl State {
    /// Registers a range on a port as the application's memory, which nobody reads or writes. Returns its local key.
    pub(crate) fn announce(&mut self, port: usize, address: u64, length: u64) -> u32 {
        self.add(Range { port, address, length, access: Access::DATA, region: None })
    }

    fn add(&mut self, range: Range) -> u32 {
        // Keys are far apart, so that a slip in arithmetic on keys hits none.
        self.keys += 1;
        let key = self.keys.wrapping_mul(0x9e37_79b1);
        self.memory.insert(key, range);
        key
    }

    /// Returns the protocol's only region with these rights; `None` if there is none.
    pub(crate) fn own_region(&self, remote_write: bool) -> Option<Arc<Region>> {
        let ranges = self.memory.values().filter(|range| range.access.remote_write == remote_write);
        ranges.filter_map(|range| range.region.clone()).next()
    }

    /// Returns true if any write from this range of memory is in progress.
    pub(crate) fn reads(&self, address: u64, length: u64) -> bool {
        let lanes = self.rails.iter().flat_map(|rail| &rail.lanes);
        lanes.flat_map(|lane| &lane.outstanding).any(|write| {
            let (start, bytes) = (write.local.address, u64::from(write.local.length));
            bytes > 0 && length > 0 && start < address + length && address < start + bytes
        })
    }

    /// Returns the newest lanes of the rail with this number, modulo the number of rails.
    pub(crate) fn newest(&mut self, rail: usize, rails: usize) -> &mut RailState {
        let newest = self.rails.iter().rposition(|state| state.port == rail % rails);
        &mut self.rails[newest.expect("every rail was open once")]
    }

    fn check(&self, port: usize, write: &Write) {
        let (address, length, key) = (write.local.address, u64::from(write.local.length), write.local.key);
        if length == 0 {
            return;
        }
        let range = self
            .memory
            .get(&key)
            .unwrap_or_else(|| panic!("posted with the local key {key:#x}, under which nothing is registered"));
        assert_eq!(range.port, port, "posted with another port's local key");
        let end = address.checked_add(length).expect("a source does not wrap around");
        assert!(
            address >= range.address && end <= range.address + range.length,
            "posted from {address:#x} to {end:#x}, outside the registered memory"
        );
    }
}

impl RailState {
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the number of its port, which is that of the rail in its connection.
    pub(crate) fn port(&self) -> usize {
        self.port
    }

    /// Completes everything on a lane up to its next signalled write. Returns false if there is no signalled write.
    pub(crate) fn complete(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        let Some(signalled) = lane.outstanding.iter().position(|write| write.signalled) else {
            return false;
        };
        let last = lane.outstanding.drain(..=signalled).next_back();
        self.completions.extend(last.map(|write| Completion::Sent { id: write.id }));
        true
    }

    /// Delivers an immediate. Without a posted receive the lane fails, as on every fabric.
    pub(crate) fn receive(&mut self, lane: usize, immediate: u32, bytes: u32) {
        if self.lanes[lane].broken || self.has_ended {
            return;
        }
        if self.receives == 0 {
            return self.fail(lane);
        }
        self.receives -= 1;
        self.completions.push_back(Completion::Received { lane: LaneId::at(lane), immediate, bytes });
    }

    /// Returns true if an unreported immediate satisfies `is`.
    pub(crate) fn has_waiting(&self, mut is: impl FnMut(u32) -> bool) -> bool {
        let immediates = self.completions.iter().filter_map(|completion| match completion {
            Completion::Received { immediate, .. } => Some(*immediate),
            _ => None,
        });
        { immediates }.any(&mut is)
    }

    pub(crate) fn fail(&mut self, lane: usize) {
        if !std::mem::replace(&mut self.lanes[lane].broken, true) {
            let error = Box::new(RailError::PeerClosed(ClosedAt::Rest(0)));
            self.completions.push_back(Completion::Failed { lane: LaneId::at(lane), id: None, error });
        }
    }
}

/// The abilities of a port.
#[derive(Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) max_write: u32,
    pub(crate) byte_counts: bool,
}

/// A port.
pub(crate) struct Port<const ONE_SIDED: bool> {
    world: World,
    port: usize,
    caps: Caps,
}

impl<const ONE_SIDED: bool> Domain for Port<ONE_SIDED> {
    type Fabric = Scripted<ONE_SIDED>;

    fn register(&self, memory: Memory, access: Access) -> Result<Registered, RegisterError> {
        let mut state = self.world.lock();
        if refuses(&mut state.refusals.register) {
            return Err(RegisterError::Full { most: 0 });
        }
        let (address, length) = (memory.address(), memory.length() as u64);
        let region = memory.region().cloned();
        let key = state.add(Range { port: self.port, address, length, access, region });
        Ok(Registered { world: self.world.clone(), key })
    }

    fn max_write(&self) -> u32 {
        self.caps.max_write
    }

    fn byte_counts(&self) -> bool {
        self.caps.byte_counts
    }

    fn clock(&self) -> ScriptedClock {
        ScriptedClock::default()
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<Pending<ONE_SIDED>, SetupError> {
        let mut state = self.world.lock();
        if refuses(&mut state.refusals.open) {
            return Err(refusal());
        }
        state.pending += 1;
        let sockets = vec![None; usize::from(spec.lanes)];
        Ok(Pending { port: Arc::clone(self), spec: spec.clone(), connected: false, sockets, remote: Vec::new() })
    }
}

fn refuses(count: &mut u8) -> bool {
    let refuses = *count > 0;
    *count = count.saturating_sub(1);
    refuses
}

fn refusal() -> SetupError {
    let error = (&io::Error::other("the script refuses it")).into();
    SetupError::Refused { port: "scripted".to_owned(), what: SetupStep::PortQuery, error }
}

/// Registered memory.
pub(crate) struct Registered {
    world: World,
    key: u32,
}

impl Registration for Registered {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.world.lock().memory.remove(&self.key);
    }
}

/// A rail that is being connected.
pub(crate) struct Pending<const ONE_SIDED: bool> {
    port: Arc<Port<ONE_SIDED>>,
    spec: RailSpec,
    connected: bool,
    /// One per lane: the number of [closings](State::closings) at the time when its socket was attached.
    sockets: Vec<Option<u32>>,
    /// The end points to which connecting was put off.
    remote: Vec<LaneEndpoint>,
}

impl<const ONE_SIDED: bool> Pending<ONE_SIDED> {
    fn endpoints(&self) -> Vec<LaneEndpoint> {
        vec![LaneEndpoint([0xe5; LaneEndpoint::BYTES]); usize::from(self.spec.lanes)]
    }

    fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<Connecting, SetupError> {
        assert_eq!(remote.len(), usize::from(self.spec.lanes), "one end point per lane");
        assert!(
            self.remote.is_empty() || self.remote == remote,
            "a rail goes on with the end points that it began with"
        );
        assert!(!self.connected, "a rail is connected once");
        let mut state = self.port.world.lock();
        if refuses(&mut state.refusals.connect) {
            return Err(refusal());
        }
        if refuses(&mut state.refusals.later) {
            drop(state);
            self.remote = remote.to_vec();
            return Ok(Connecting::Later { pause: Duration::from_nanos(1), reason: refusal() });
        }
        drop(state);
        self.connected = true;
        Ok(Connecting::Done)
    }

    fn awaits_socket(&self, lane: LaneId) -> bool {
        let closings = self.port.world.lock().closings;
        let place = self.sockets.get(lane.index());
        place.is_some_and(|came| came.is_none_or(|came| came < closings))
    }

    #[expect(clippy::unused_self, reason = "Joining names it as a method of a pending rail")]
    fn address(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::new(192, 0, 2, 77).into())
    }

    fn attach(&mut self, lane: LaneId, _socket: OwnedFd) -> Result<(), SetupError> {
        assert!(self.awaits_socket(lane), "a socket comes for a lane that awaits one");
        let mut state = self.port.world.lock();
        if refuses(&mut state.refusals.connect) {
            return Err(refusal());
        }
        self.sockets[lane.index()] = Some(state.closings);
        Ok(())
    }
}

impl<const ONE_SIDED: bool> PendingRail for Pending<ONE_SIDED> {
    type Fabric = Scripted<ONE_SIDED>;

    fn is_ready(&self) -> bool {
        self.connected || self.sockets.iter().all(Option::is_some)
    }

    fn into_rail(self) -> Result<Open, SetupError> {
        assert!(self.is_ready(), "a rail is made when its lanes are connected");
        let mut state = self.port.world.lock();
        state.open += 1;
        state.rails.push(RailState {
            port: self.port.port,
            lanes: (0..self.spec.lanes).map(|_| LaneState::default()).collect(),
            send_depth: self.spec.send_depth as usize,
            receive_depth: self.spec.receive_depth,
            receives: 0,
            completions: VecDeque::new(),
            has_ended: false,
            posted: Vec::new(),
        });
        let index = state.rails.len() - 1;
        Ok(Open {
            world: self.port.world.clone(),
            index,
            lanes: self.spec.lanes,
            caps: self.port.caps,
            one_sided: ONE_SIDED,
        })
    }
}

impl<const ONE_SIDED: bool> Drop for Pending<ONE_SIDED> {
    fn drop(&mut self) {
        self.port.world.lock().pending -= 1;
    }
}

/// A rail.
pub(crate) struct Open {
    world: World,
    index: usize,
    lanes: u8,
    caps: Caps,
    one_sided: bool,
}

impl Rail for Open {
    fn lanes(&self) -> u8 {
        self.lanes
    }

    fn send_room(&self, lane: LaneId) -> u32 {
        let state = self.world.lock();
        let rail = &state.rails[self.index];
        (rail.send_depth - rail.lanes[lane.index()].outstanding.len()) as u32
    }

    fn max_write(&self) -> u32 {
        self.caps.max_write
    }

    fn is_broken(&self, lane: LaneId) -> bool {
        self.world.lock().rails[self.index].lanes[lane.index()].broken
    }

    /// Work posted without room, or too long, is a defect of the protocol and must not be refused quietly.
    fn post(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        self.post_fitting(lane, chain)
    }

    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        let mut state = self.world.lock();
        for write in chain {
            assert!(write.local.length <= self.caps.max_write, "a write of {} bytes is too long", write.local.length);
            state.check(state.rails[self.index].port, write);
        }
        let fate = if state.is_up { None } else { Some(state.first_packets) };
        let rail = &mut state.rails[self.index];
        if fate == Some(FirstPackets::Fail) {
            rail.fail(lane.index());
        }
        if fate == Some(FirstPackets::ComeThrough) {
            rail.completions.extend(chain.iter().map(|write| Completion::Sent { id: write.id }));
            return Ok(());
        }
        let lane = &mut rail.lanes[lane.index()];
        if lane.broken {
            return Err(PostError::Broken);
        }
        assert!(lane.outstanding.len() + chain.len() <= rail.send_depth, "posted without room");
        lane.outstanding.extend(chain);
        rail.posted.extend_from_slice(chain);
        Ok(())
    }

    fn flushes(&self) -> bool {
        self.one_sided
    }

    fn post_flush(&mut self, _target: RemoteSlice, id: WorkId) -> Result<(), PostError> {
        assert!(self.one_sided, "a flush where the fabric has no need of it");
        let mut state = self.world.lock();
        let rail = &mut state.rails[self.index];
        let lane = &mut rail.lanes[0];
        if lane.broken {
            return Err(PostError::Broken);
        }
        if lane.outstanding.len() == rail.send_depth {
            return Err(PostError::Full);
        }
        lane.outstanding.push_back(Write { signalled: true, id, ..Write::default() });
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        let mut state = self.world.lock();
        let rail = &mut state.rails[self.index];
        if rail.lanes.iter().any(|lane| lane.broken) {
            return Err(PostError::Broken);
        }
        let taken = count.min(rail.receive_depth - rail.receives);
        rail.receives += taken;
        Ok(taken)
    }

    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        let mut state = self.world.lock();
        let completions = &mut state.rails[self.index].completions;
        let count = completions.len().min(most);
        completions.drain(..count).for_each(|completion| completion.report(reports));
        count > 0
    }

    fn describe(&self) -> String {
        format!("scripted {}", self.index)
    }

    fn is_drained(&self) -> bool {
        self.world.lock().rails[self.index].lanes.iter().all(|lane| lane.outstanding.is_empty())
    }

    fn end(self, _flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended {
        let mut state = self.world.lock();
        let rail = &mut state.rails[self.index];
        rail.has_ended = true;
        rail.lanes.iter_mut().for_each(|lane| lane.outstanding.clear());
        let completions = std::mem::take(&mut rail.completions);
        drop(state);
        let is_good = |completion: &Completion| !matches!(completion, Completion::Failed { .. });
        completions.into_iter().filter(is_good).for_each(|completion| completion.report(reports));
        Ended::whole()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.world.lock().open -= 1;
    }
}
