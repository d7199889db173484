//! The traits that a network implements.

use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::{Access, Joining, LaneId, Memory, Part, PostError, RailError, RegisterError, SetupError};

/// A kind of network: names its types and says what it is capable of.
pub trait Fabric: Sized + 'static {
    /// Its name in options and messages: `tcp`, `verbs`.
    const NAME: &'static str;
    /// Writes land in the peer's memory, and its keys are honoured, without the peer's processor. Where they do not,
    /// both ends must poll for anything to move.
    const ONE_SIDED: bool;
    /// How the lanes of both ends find each other.
    const JOINING: Joining<Self::PendingRail>;
    /// Where memory is registered for one port.
    type Domain: Domain<Fabric = Self>;
    /// A rail whose lanes are being connected.
    type PendingRail: PendingRail<Fabric = Self>;
    /// A rail.
    type Rail: Rail;
    /// Registered memory.
    type Registration: Registration;
}

/// Where memory is registered for one port (a protection domain, in RDMA). Shared by every connection over that port;
/// called from NCCL's service threads while progress threads use what was registered.
pub trait Domain: Send + Sync + 'static {
    /// The fabric this belongs to.
    type Fabric: Fabric;

    /// Registers memory. Dropping the registration ends it: from then on its keys are refused, and the memory is
    /// touched no more once the drop has returned.
    ///
    /// # Errors
    /// When the fabric cannot register such memory, or a limit is reached.
    fn register(&self, memory: Memory, access: Access)
    -> Result<<Self::Fabric as Fabric>::Registration, RegisterError>;

    /// The longest single write over this port, in bytes.
    fn max_write(&self) -> u32 {
        1 << 30
    }

    /// Returns true if [`Reports::handle_received`] gets true byte counts on this port.
    fn byte_counts(&self) -> bool {
        true
    }

    /// Begins a rail: creates its queues. May block where [`Fabric::JOINING`] does.
    ///
    /// # Errors
    /// When this host cannot provide what the specification asks for.
    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<<Self::Fabric as Fabric>::PendingRail, SetupError>;
}

/// Registered memory: dropping it ends the registration.
pub trait Registration: Send + Sync + 'static {
    /// The key that this side's work names as its source.
    fn local_key(&self) -> u32;
    /// The key that the peer's writes name as their destination.
    fn remote_key(&self) -> u32;
}

/// Which end of a connection a rail is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends data, receives CTS.
    Sender,
    /// Receives data, sends CTS.
    Receiver,
}

/// What a rail must provide.
#[derive(Clone, Debug)]
pub struct RailSpec {
    /// Which end.
    pub role: Role,
    /// Lanes, 1 to [`crate::MAX_LANES`].
    pub lanes: u8,
    /// Work requests that each lane's send queue holds.
    pub send_depth: u32,
    /// Generic receives that the rail's pool holds, over all its lanes.
    pub receive_depth: u32,
    /// The most immediates that one lane brings before its receives are posted again. Where lanes have receives of
    /// their own, none needs more of the pool's than these.
    pub lane_receives: u32,
    /// DSCP and ECN bits of every packet (the IPv4 TOS byte, the IPv6 and GRH traffic class) as NCCL asks for them;
    /// None leaves the default. What the user sets goes before it, and is known to the fabric.
    pub traffic_class: Option<u8>,
    /// The peer's address as it was offered: a port with several addresses of its own takes one that suits.
    pub peer: Option<Ipv6Addr>,
}

/// A rail whose lanes are being connected, as [`Fabric::JOINING`] says. Dropping it releases everything.
pub trait PendingRail: Send + 'static {
    /// The fabric this belongs to.
    type Fabric: Fabric;

    /// What of this host it is made of, as the events of its devices name it.
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// Whether every lane is connected.
    fn is_ready(&self) -> bool;

    /// The rail. Call it when [`Self::is_ready`].
    ///
    /// # Errors
    /// When a lane is not connected.
    fn into_rail(self) -> Result<<Self::Fabric as Fabric>::Rail, SetupError>;
}

/// Names a piece of posted work in its completion. The fabric carries its low [`WorkId::BITS`] and never looks inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

impl WorkId {
    /// The bits that may be set: what is left of 64 is the fabric's, so that it needs no table to find the id again.
    pub const BITS: u32 = 40;
}

/// A piece of this process's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalSlice {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// [`Registration::local_key`] of the registration that covers it. Not looked at when the length is 0.
    pub key: u32,
}

/// A place in the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address of the first byte.
    pub address: u64,
    /// [`Registration::remote_key`] there. Not looked at when the length is 0.
    pub key: u32,
}

/// A one-sided write, with or without an immediate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// What to write. An empty slice writes nothing and only carries the immediate.
    pub local: LocalSlice,
    /// Where to.
    pub remote: RemoteSlice,
    /// Consumes one generic receive of the peer and reaches it through [`Reports::handle_received`].
    pub immediate: Option<u32>,
    /// Whether [`Reports::handle_sent`] is wanted. A chain's unsignalled writes give their room back with the next
    /// signalled one on the same lane.
    pub signalled: bool,
    /// The source is host memory, so that the processor may read it: a fabric may carry a short one in the work itself.
    pub host: bool,
    /// Comes back in the completion.
    pub id: WorkId,
}

/// Takes what [`Rail::report`] reports, one by one: the data path looks at each completion once, and needs none in
/// memory.
pub trait Reports {
    /// A signalled write, or a flush, is complete: the peer's memory has the bytes, and the source may be reused. All
    /// that was posted before on that lane is complete too.
    fn handle_sent(&mut self, id: WorkId);
    /// A write with an immediate has arrived on `lane`: its `bytes`, and all that was posted before it on its lane, are
    /// in memory.
    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32);
    /// A lane died, or the piece of work that `id` names failed. What else was posted on the lane may or may not have
    /// arrived.
    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>);
}

/// One rail of one connection: what the data path calls. No call blocks, allocates (but for errors) or locks.
pub trait Rail: Send + 'static {
    /// How many lanes the rail has.
    fn lanes(&self) -> u8;

    /// Work requests that `lane`'s send queue has room for.
    fn send_room(&self, lane: LaneId) -> u32;

    /// The longest single write in bytes.
    fn max_write(&self) -> u32;

    /// Returns true if `lane` has failed, whether its failure was reported or not. False for a lane that does not
    /// exist.
    fn is_broken(&self, lane: LaneId) -> bool;

    /// Posts a chain of writes on one lane: all of them or none. They take effect in order.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        let lanes = self.lanes();
        if lane.0 >= lanes {
            return Err(PostError::Invalid(format!("lane {lane} of a rail with {lanes}")));
        }
        if self.is_broken(lane) {
            return Err(PostError::Broken);
        }
        let most = self.max_write();
        if let Some(long) = chain.iter().map(|write| write.local.length).find(|length| *length > most) {
            return Err(PostError::Invalid(format!("a write of {long} bytes; this port carries at most {most}")));
        }
        if chain.len() > self.send_room(lane) as usize {
            return Err(PostError::Full);
        }
        self.post_fitting(lane, chain)
    }

    /// Posts a chain of which the caller knows what [`Self::post`] would check: the lane exists, no failure of it was
    /// reported, [`Self::send_room`] covers the chain, and no write is longer than [`Self::max_write`]. The data path
    /// posts most writes by this, so a fabric does it in as few steps as it can.
    ///
    /// # Errors
    /// [`PostError::Broken`], and [`PostError::Invalid`] for a source that is not registered, where the fabric looks.
    ///
    /// # Panics
    /// Perhaps, when the lane does not exist or the chain does not fit.
    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError>;

    /// Whether this end has a way to flush. Where it has none, flushes have nothing to do: no memory needs them, or the
    /// user has switched them off.
    fn flushes(&self) -> bool {
        false
    }

    /// Reads one byte back from this side's own registered memory through the port, so that everything the port wrote
    /// there before is visible to whoever owns the memory. Completes through [`Reports::handle_sent`].
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Invalid`] where it does not [flush](Self::flushes).
    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError>;

    /// Posts up to `count` generic receives, also none; answers how many were taken. Each lane has as many then as the
    /// pool holds, or [as many as one brings](RailSpec::lane_receives) if these are fewer.
    ///
    /// # Errors
    /// When the rail is broken, or has no room now. Then a lane may have fewer.
    fn post_receives(&mut self, count: u32) -> Result<u32, PostError>;

    /// Makes progress and reports completions, at most `most`, in the order of their lanes. Answers whether there was
    /// anything. On a fabric that is not one-sided this is also what moves bytes.
    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool;

    /// Whether the peer may be waiting for what this end has not sent: acknowledgements of what was reported, which a
    /// poll may put off until the next call, so that they can travel with what is posted then; and writes that were
    /// posted when the way was full. Where the peer's processor has no part in a write, nothing is ever owed.
    fn owes(&self) -> bool {
        false
    }

    /// Sends what this end [owes](Self::owes). True when nothing is owed any more. A caller that may stop polling calls
    /// this until it is true; else the peer might wait for ever.
    fn acknowledge(&mut self) -> bool {
        true
    }

    /// As [`PendingRail::parts`].
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// Both ends of the rail in words, for messages: `127.0.0.1:1234 - 127.0.0.1:4321`.
    fn describe(&self) -> String;

    /// The connection is closing: from now on writes of the peer are thrown away, because their memory may be gone, and
    /// failures are silent. Where the peer's processor has no part in a write, there is nothing to do.
    fn start_linger(&mut self) {}

    /// Whether everything posted is complete at the peer and everything that the peer waits for is on its way, so that
    /// dropping the rail loses nothing. Unsignalled writes at the end of a lane count once they are on their way.
    fn is_drained(&self) -> bool {
        true
    }
}
