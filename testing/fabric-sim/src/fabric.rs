//! The fabric's handles: each names an object in the world, and forwards calls to the world.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Connecting, Domain, Ended, Fabric, Joining, LaneEndpoint, LaneId, Memory, MemoryKind, Part, PendingRail,
    Piece, PostError, Rail, RailSpec, Region, RegisterError, Registration, RemoteSlice, Reports, SetupError, WorkId,
    Write,
};

use crate::observer::{Mishap, Observer, Unobserved};
use crate::world::{KeyPair, Port, Registered, SimClock, World};

/// The simulated fabric. With `ONE_SIDED`, writes land in the peer's memory when they arrive; without, when the peer
/// polls.
#[derive(Debug)]
pub struct Sim<const ONE_SIDED: bool, O = Unobserved>(PhantomData<O>);

impl<const ONE_SIDED: bool, O: Observer> Fabric for Sim<ONE_SIDED, O> {
    const NAME: &'static str = "sim";
    const ONE_SIDED: bool = ONE_SIDED;
    const JOINING: Joining<SimPendingRail<ONE_SIDED, O>> =
        Joining::ByExchange { endpoints: SimPendingRail::endpoints, connect: SimPendingRail::connect };
    type Domain = SimDomain<ONE_SIDED, O>;
    type PendingRail = SimPendingRail<ONE_SIDED, O>;
    type Rail = SimRail<O>;
    type Registration = SimRegistration<O>;
    type Clock = SimClock;
}

/// A port of a process.
#[derive(Debug)]
pub struct SimDomain<const ONE_SIDED: bool, O: Observer = Unobserved> {
    world: Arc<World<O>>,
    port: usize,
    max_write: u32,
    byte_counts: bool,
}

impl<const ONE_SIDED: bool, O: Observer> SimDomain<ONE_SIDED, O> {
    /// Adds a port to a process of the world. `max_write` is its longest write in bytes: a power of two, at least 128.
    /// `byte_counts` is true if it reports the length of a received write.
    pub fn new(world: &Arc<World<O>>, process: usize, max_write: u32, byte_counts: bool) -> Arc<Self> {
        let mut state = world.lock();
        let port = state.ports.len();
        state.ports.push(Port::new(process, max_write, byte_counts));
        drop(state);
        Arc::new(Self { world: Arc::clone(world), port, max_write, byte_counts })
    }

    /// Returns the port's number in the world.
    pub fn port(&self) -> usize {
        self.port
    }

    /// Registers a region under the given address instead of its own, and as memory of this kind. Callers use it for
    /// addresses that are the same in every run, and for GPU memory.
    pub fn register_as(
        &self,
        region: &Arc<Region>,
        address: u64,
        kind: MemoryKind,
        access: Access,
    ) -> SimRegistration<O> {
        self.register_at(Some(Arc::clone(region)), region.len() as u64, address, kind, access)
    }

    /// Registers hollow memory: it has an address and a length, but no bytes. Writes from it or to it take their time
    /// and place nothing, so that long ones cost no more than short ones.
    pub fn register_hollow(&self, length: u64, address: u64, access: Access) -> SimRegistration<O> {
        self.register_at(None, length, address, MemoryKind::Host, access)
    }

    fn register_at(
        &self,
        region: Option<Arc<Region>>,
        length: u64,
        address: u64,
        kind: MemoryKind,
        access: Access,
    ) -> SimRegistration<O> {
        let mut state = self.world.lock();
        let process = state.ports[self.port].process;
        let registered = Registered { region, length, address, kind, access, process, port: self.port };
        let keys = state.register(registered);
        drop(state);
        SimRegistration { world: Arc::clone(&self.world), keys }
    }
}

impl<const ONE_SIDED: bool, O: Observer> Domain for SimDomain<ONE_SIDED, O> {
    type Fabric = Sim<ONE_SIDED, O>;

    fn register(&self, memory: Memory, access: Access) -> Result<SimRegistration<O>, RegisterError> {
        match memory.region() {
            Some(region) => Ok(self.register_as(region, memory.address(), memory.kind(), access)),
            // Without unsafe code the world cannot access memory by its address alone.
            None => Err(RegisterError::Unsupported { fabric: "sim", kind: memory.kind().name() }),
        }
    }

    fn max_write(&self) -> u32 {
        self.max_write
    }

    fn byte_counts(&self) -> bool {
        self.byte_counts
    }

    fn clock(&self) -> SimClock {
        self.world.lock().clock()
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<SimPendingRail<ONE_SIDED, O>, SetupError> {
        let end = self.world.lock().open_end(self.port, spec, ONE_SIDED)?;
        let rail = SimRail { world: Arc::clone(&self.world), end, lanes: spec.lanes, max_write: self.max_write };
        Ok(SimPendingRail { rail, connected: false, attempted: Vec::new() })
    }
}

/// Registered memory of a world.
#[derive(Debug)]
pub struct SimRegistration<O: Observer = Unobserved> {
    world: Arc<World<O>>,
    keys: KeyPair,
}

impl<O: Observer> Registration for SimRegistration<O> {
    fn local_key(&self) -> u32 {
        self.keys.local
    }

    fn remote_key(&self) -> u32 {
        self.keys.remote
    }
}

impl<O: Observer> Drop for SimRegistration<O> {
    fn drop(&mut self) {
        self.world.lock().keys.remove(self.keys);
    }
}

/// One end of a rail that is being set up.
#[derive(Debug)]
pub struct SimPendingRail<const ONE_SIDED: bool, O: Observer = Unobserved> {
    rail: SimRail<O>,
    connected: bool,
    /// The peer's end points at the first attempt, if it has to be repeated; otherwise empty.
    attempted: Vec<LaneEndpoint>,
}

impl<const ONE_SIDED: bool, O: Observer> SimPendingRail<ONE_SIDED, O> {
    /// Returns one end point per lane, for the peer.
    pub fn endpoints(&self) -> Vec<LaneEndpoint> {
        let endpoint = |lane| {
            let mut bytes = [0; LaneEndpoint::BYTES];
            bytes[..8].copy_from_slice(&(self.rail.end as u64).to_le_bytes());
            bytes[8] = lane;
            LaneEndpoint(bytes)
        };
        (0..self.rail.lanes).map(endpoint).collect()
    }

    /// Connects the lanes to the peer's end points. After [`Connecting::Later`], call it again with the same ones.
    ///
    /// # Errors
    /// If the end points are not one per lane of the same end, differ from those of an earlier attempt, or name an end
    /// that is gone.
    pub fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<Connecting, SetupError> {
        let wrong = SetupError::Unreachable;
        let numbers: Vec<u64> =
            remote.iter().map(|endpoint| u64::from_le_bytes(endpoint.0[..8].try_into().unwrap_or_default())).collect();
        let lanes_fit = remote.iter().enumerate().all(|(lane, endpoint)| usize::from(endpoint.0[8]) == lane);
        let peer = numbers.first().copied().unwrap_or(u64::MAX) as usize;
        if remote.len() != usize::from(self.rail.lanes) || !lanes_fit || numbers.iter().any(|n| *n != peer as u64) {
            return Err(wrong(format!("{} end points do not fit the rail's {} lanes", remote.len(), self.rail.lanes)));
        }
        if !self.attempted.is_empty() && self.attempted != remote {
            return Err(wrong("the end points differ from those of the first attempt".into()));
        }
        let mut state = self.rail.world.lock();
        let later_permille = state.faults.connect_later_permille;
        if state.chance.permille(later_permille) {
            state.suffer(Mishap::ConnectedLater);
            let most_ns = state.faults.connect_later_ns;
            let pause = Duration::from_nanos(1 + state.chance.below(most_ns));
            drop(state);
            self.attempted = remote.to_vec();
            let reason = wrong("the simulated host does not know the peer's address yet".into());
            return Ok(Connecting::Later { pause, reason });
        }
        let Some(rail) = state.ends.get(peer).and_then(Option::as_ref).map(|end| end.rail) else {
            return Err(wrong("the peer's end of the rail is gone".into()));
        };
        if let Some(end) = state.ends[self.rail.end].as_mut() {
            end.peer = Some(peer);
            if !end.sender {
                // Both ends use the same number for a rail: the sender's end is opened first and knows it.
                end.rail = rail;
            }
        }
        drop(state);
        self.connected = true;
        Ok(Connecting::Done)
    }
}

impl<const ONE_SIDED: bool, O: Observer> PendingRail for SimPendingRail<ONE_SIDED, O> {
    type Fabric = Sim<ONE_SIDED, O>;

    fn parts(&self) -> Vec<Part> {
        self.rail.parts()
    }

    fn is_ready(&self) -> bool {
        self.connected
    }

    fn into_rail(self) -> Result<SimRail<O>, SetupError> {
        match self.connected {
            true => Ok(self.rail),
            false => Err(SetupError::NotConnected { port: format!("rail {}", self.rail.end) }),
        }
    }
}

/// One end of a rail.
#[derive(Debug)]
pub struct SimRail<O: Observer = Unobserved> {
    world: Arc<World<O>>,
    end: usize,
    lanes: u8,
    max_write: u32,
}

impl<O: Observer> Rail for SimRail<O> {
    fn lanes(&self) -> u8 {
        self.lanes
    }

    fn send_room(&self, lane: LaneId) -> u32 {
        self.world.lock().send_room(self.end, lane)
    }

    fn max_write(&self) -> u32 {
        self.max_write
    }

    fn is_broken(&self, lane: LaneId) -> bool {
        self.world.lock().is_broken(self.end, lane)
    }

    /// Does the same as `post_fitting`: the world checks all posts, so that observers also see those for which there is
    /// no room.
    fn post(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        self.post_fitting(lane, chain)
    }

    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        self.world.lock().post(self.end, lane, chain)
    }

    fn flushes(&self) -> bool {
        true
    }

    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError> {
        self.world.lock().post_flush(self.end, target, id)
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        self.world.lock().post_receives(self.end, count)
    }

    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        self.world.lock().poll_end(self.end, most, reports) > 0
    }

    fn owes(&self) -> bool {
        self.world.lock().owes(self.end)
    }

    fn acknowledge(&mut self) -> bool {
        self.world.lock().acknowledge_alone(self.end)
    }

    fn silence(&mut self) -> Duration {
        Duration::from_nanos(self.world.lock().silence_ns(self.end))
    }

    fn end(self, flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended {
        let mut world = self.world.lock();
        let is_visible = world.end_rail(self.end, flushes, reports);
        Ended { is_over: !world.refuses_ends, is_visible, remains: Some(Box::new(Remains)) }
    }

    fn parts(&self) -> Vec<Part> {
        let port = self.world.lock().ends[self.end].as_ref().map_or(usize::MAX, |end| end.port);
        vec![Part { device: format!("port {port}").into(), piece: Piece::Port(1) }]
    }

    fn describe(&self) -> String {
        let state = self.world.lock();
        let port = |end: Option<usize>| {
            let end = end.and_then(|end| state.ends[end].as_ref());
            end.map_or("no port".to_owned(), |end| format!("port {}", end.port))
        };
        let peer = state.ends[self.end].as_ref().and_then(|end| end.peer);
        format!("{} - {}", port(Some(self.end)), port(peer))
    }

    fn start_linger(&mut self) {
        if let Some(end) = self.world.lock().ends[self.end].as_mut() {
            end.lingering = true;
        }
    }

    fn is_drained(&self) -> bool {
        self.world.lock().is_drained(self.end)
    }
}

/// The remains of a rail that has ended: nothing, but callers must hand them on.
struct Remains;

impl<O: Observer> Drop for SimRail<O> {
    fn drop(&mut self) {
        self.world.lock().drop_end(self.end);
    }
}
