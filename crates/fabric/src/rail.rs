//! The traits that a network implements.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::{Access, Clock, Joining, LaneId, Memory, Part, PostError, RailError, RegisterError, SetupError};

/// A kind of network: names its types and states its capabilities.
pub trait Fabric: Sized + 'static {
    /// Name in options and messages: `tcp`, `verbs`.
    const NAME: &'static str;
    /// True if writes reach the peer's memory, checked against its keys, without the peer's processor. If false, bytes
    /// move only while both ends poll.
    const ONE_SIDED: bool;
    /// The way in which the lanes of both ends find each other.
    const JOINING: Joining<Self::PendingRail>;
    /// The place where memory is registered for one port.
    type Domain: Domain<Fabric = Self>;
    /// A rail whose lanes are being connected.
    type PendingRail: PendingRail<Fabric = Self>;
    /// A rail.
    type Rail: Rail;
    /// Registered memory.
    type Registration: Registration;
    /// The clock of the world in which its rails are.
    type Clock: Clock;
}

/// The place where memory is registered for one port (a protection domain, in RDMA). All connections over that port
/// share it; NCCL's service threads call it while progress threads use the registered memory.
pub trait Domain: Send + Sync + 'static {
    /// The fabric this belongs to.
    type Fabric: Fabric;

    /// Registers memory. Dropping the registration ends it: its keys are refused, and after the drop has returned the
    /// fabric no longer touches the memory.
    ///
    /// # Errors
    /// If the fabric cannot register such memory, or a limit is reached.
    fn register(&self, memory: Memory, access: Access)
    -> Result<<Self::Fabric as Fabric>::Registration, RegisterError>;

    /// Returns the longest single write over this port, in bytes.
    fn max_write(&self) -> u32 {
        1 << 30
    }

    /// Returns true if the byte counts of [`Reports::handle_received`] can be trusted on this port.
    fn byte_counts(&self) -> bool {
        true
    }

    /// Returns false if the port's link is known to be down on this host: then nothing passes, whatever the peer does.
    fn is_link_up(&self) -> bool {
        true
    }

    /// Returns the clock of the world in which this port is.
    fn clock(&self) -> <Self::Fabric as Fabric>::Clock;

    /// Opens a rail: creates its queues. May block if [`Joining::may_block`].
    ///
    /// # Errors
    /// If this host cannot meet the specification.
    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<<Self::Fabric as Fabric>::PendingRail, SetupError>;
}

/// Registered memory: dropping it ends the registration.
pub trait Registration: Send + Sync + 'static {
    /// Returns the key for this side's work that uses the memory as its source.
    fn local_key(&self) -> u32;
    /// Returns the key for the peer's writes that use the memory as their destination.
    fn remote_key(&self) -> u32;
}

/// The end of a connection that a rail belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends data, receives CTS.
    Sender,
    /// Receives data, sends CTS.
    Receiver,
}

/// The requirements on a rail.
#[derive(Clone, Debug)]
pub struct RailSpec {
    /// The rail's end of the connection.
    pub role: Role,
    /// Number of lanes, 1 to [`crate::MAX_LANES`].
    pub lanes: u8,
    /// Capacity of each lane's send queue, in work requests.
    pub send_depth: u32,
    /// Capacity of the rail's pool of generic receives, over all its lanes.
    pub receive_depth: u32,
    /// The maximum number of immediates that arrive on one lane before receives are posted again. If a fabric posts
    /// receives per lane, each lane needs no more than this.
    pub lane_receives: u32,
    /// DSCP and ECN bits of every packet (the IPv4 TOS byte, the IPv6 and GRH traffic class) as NCCL requests them;
    /// `None` keeps the default. The user's setting, which the fabric knows, takes precedence.
    pub traffic_class: Option<u8>,
    /// The peer's address as it was offered; a port with several addresses chooses a suitable one of its own.
    pub peer: Option<Ipv6Addr>,
}

/// A rail whose lanes are being connected, as [`Fabric::JOINING`] says. Dropping it releases everything.
pub trait PendingRail: Send + 'static {
    /// The fabric this belongs to.
    type Fabric: Fabric;

    /// Returns the parts of this host that the rail uses, as the events of its devices name them.
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// Returns true if every lane is connected.
    fn is_ready(&self) -> bool;

    /// Returns the rail. Call it once [`Self::is_ready`].
    ///
    /// # Errors
    /// If a lane is not connected.
    fn into_rail(self) -> Result<<Self::Fabric as Fabric>::Rail, SetupError>;
}

/// The id that the caller gives a piece of work; its completion returns it. The fabric carries the low [`WorkId::BITS`]
/// bits and never interprets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

impl WorkId {
    /// The number of bits that may be set. The fabric uses the others for itself, so that it needs no table to recover
    /// the id.
    pub const BITS: u32 = 40;
}

/// A piece of this process's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalSlice {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// [`Registration::local_key`] of the registration that covers it. Ignored if the length is 0.
    pub key: u32,
}

/// A place in the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address of the first byte.
    pub address: u64,
    /// [`Registration::remote_key`] there. Ignored if the length is 0.
    pub key: u32,
}

/// A one-sided write, with or without an immediate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// The bytes to write. An empty slice writes nothing and only carries the immediate.
    pub local: LocalSlice,
    /// The destination.
    pub remote: RemoteSlice,
    /// Consumes one of the peer's generic receives; the peer gets it through [`Reports::handle_received`].
    pub immediate: Option<u32>,
    /// True if [`Reports::handle_sent`] must report it. Unsignalled writes give their room back with the next signalled
    /// one on the same lane.
    pub signalled: bool,
    /// True if the source is host memory, which the processor can read: a fabric may copy the bytes of a short write
    /// into the work request.
    pub host: bool,
    /// The write's id in its completion.
    pub id: WorkId,
}

/// The receiver of [`Rail::report`]'s completions, one by one: the data path looks at each once and stores none.
pub trait Reports {
    /// Handles the end of a signalled write or a flush: the bytes are in the peer's memory, and the source may be
    /// reused. All work posted earlier on that lane is complete too.
    fn handle_sent(&mut self, id: WorkId);
    /// Handles a write with an immediate that has arrived on `lane`: its `bytes`, and all writes posted earlier on that
    /// lane, are in memory.
    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32);
    /// Handles the death of a lane, or the failure of the piece of work named by `id`. Other work posted on the lane
    /// may or may not have arrived.
    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>);
}

/// A rail that has [ended](Rail::end).
#[must_use = "the lanes may not have ended, and the memory's owner may not see what was placed"]
pub struct Ended {
    /// True if the lanes are known to be out of service. Otherwise the device has refused it, and data may still land
    /// or leave.
    pub is_over: bool,
    /// True if everything could be flushed. Otherwise the device is gone, the memory is not registered, or no answer
    /// came in time.
    pub is_visible: bool,
    /// The remains of the rail, which do nothing any more. Dropping them may take seconds if [`Joining::may_block`].
    pub remains: Option<Box<dyn Send>>,
}

impl Ended {
    /// Returns the end of a rail without remains that had nothing to flush, or has flushed it.
    pub fn whole() -> Self {
        Self { is_over: true, is_visible: true, remains: None }
    }
}

/// One rail of one connection, called by the data path. No call but [`Self::end`] blocks or locks. None allocates,
/// except for an error.
pub trait Rail: Send + 'static {
    /// Returns the number of lanes, 1 to [`crate::MAX_LANES`].
    fn lanes(&self) -> u8;

    /// Returns the number of work requests that `lane`'s send queue has room for.
    fn send_room(&self, lane: LaneId) -> u32;

    /// Returns the longest single write, in bytes.
    fn max_write(&self) -> u32;

    /// Returns true if `lane` has failed, even if the failure was not reported yet. Returns false for a lane that does
    /// not exist.
    fn is_broken(&self, lane: LaneId) -> bool;

    /// Posts a chain of writes on one lane: all of them or none. They take effect in order.
    ///
    /// # Errors
    /// If the chain cannot be posted: see [`PostError`].
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

    /// Posts a chain without the checks of [`Self::post`]. The caller guarantees that the lane exists and has not
    /// reported a failure, that [`Self::send_room`] covers the chain, and that no write is longer than
    /// [`Self::max_write`]. The data path posts most writes this way, so this call takes as few steps as possible.
    ///
    /// # Errors
    /// If the lane is broken ([`PostError::Broken`]), or a source is not registered and the fabric checks that
    /// ([`PostError::Invalid`]).
    ///
    /// # Panics
    /// May panic when the lane does not exist or the chain does not fit.
    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError>;

    /// Returns true if this end can flush. If it cannot, a flush has nothing to do: no memory needs one, or the user
    /// has switched flushes off.
    fn flushes(&self) -> bool {
        false
    }

    /// Reads one byte of this side's own registered memory through the port, so that everything that the port wrote
    /// there earlier is visible to the memory's owner. Completes through [`Reports::handle_sent`].
    ///
    /// # Errors
    /// If the flush cannot be posted: see [`PostError`]; [`PostError::Invalid`] if this end does not
    /// [flush](Self::flushes).
    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError>;

    /// Posts up to `count` generic receives, which may be 0; returns the number taken. After that, each lane can take
    /// as many immediates as the pool holds, but at most [`RailSpec::lane_receives`].
    ///
    /// # Errors
    /// If the rail is broken or has no room at the moment. A lane may then have fewer receives.
    fn post_receives(&mut self, count: u32) -> Result<u32, PostError>;

    /// Makes progress and reports at most `most` completions; those of one lane are in order. Returns false only if
    /// there were none. On a fabric that is not one-sided, this call also moves the bytes. A lane reports at most
    /// one failure.
    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool;

    /// Returns true if the peer may be waiting for something that this end has not sent: acknowledgements of reported
    /// writes, which a poll may defer to the next call so that they can travel with its writes, or writes posted while
    /// the path was full. A one-sided fabric never owes anything.
    fn owes(&self) -> bool {
        false
    }

    /// Sends what this end [owes](Self::owes). Returns true once nothing is owed. A caller that may stop polling must
    /// repeat this call until it returns true; otherwise the peer might wait forever.
    fn acknowledge(&mut self) -> bool {
        true
    }

    /// Looks at the lanes, and returns the longest time for which the peer's host has acknowledged nothing although
    /// something was on its way to it all the time, as far as the looks so far have shown. Zero on a one-sided fabric,
    /// where nobody knows more than the completions tell. May take a system call per lane.
    fn silence(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Ends the rail for good, whether its lanes have failed or not: its fence. Dropping a rail also frees it, but
    /// loses reports.
    ///
    /// Takes the lanes out of service, and reports everything that is complete. After the call has returned, and before
    /// the remains are dropped, nothing that the peer has posted on this rail lands in this end's memory, and the
    /// device takes nothing more from it; packets of this end that this host or the network already has may land at the
    /// peer until the peer has ended its side. By then `reports` has been given every signalled write and every flush
    /// that is known to be complete ([`Reports::handle_sent`]), and every immediate that has arrived
    /// ([`Reports::handle_received`]), unless an earlier [`Self::report`] did so. Work of this end that nothing
    /// reported may or may not have arrived. A write of the peer that nothing reported may be in memory in part.
    /// [`Reports::handle_failed`] is not called, not even for failures that are not reported yet: the caller has
    /// already given the rail up.
    ///
    /// At last, when nothing can land any more, reads one byte of each of `flushes`, pieces of this side's registered
    /// memory, like [`Self::post_flush`]: so all that the rail has placed there is visible to the memory's owner.
    /// There may be any number of them. A rail that does not [flush](Self::flushes) ignores them.
    ///
    /// May block if [`Joining::may_block`]: normally for milliseconds, and for about a second if the device no longer
    /// answers.
    fn end(self, flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended;

    /// Returns the same as [`PendingRail::parts`].
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// Returns the addresses of this end and of the peer's, canonical; `None` if the fabric has none.
    fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        None
    }

    /// Describes both ends of the rail for messages: `127.0.0.1:1234 - 127.0.0.1:4321`.
    fn describe(&self) -> String;

    /// Returns the number by which this host knows the rail's first lane, for profilers: that of its queue pair, or the
    /// local port of its socket; 0 if the fabric has none.
    fn number(&self) -> u32 {
        0
    }

    /// Describes each lane for messages: both ends' numbers and addresses, and the path's MTU where the fabric knows
    /// it.
    fn describe_lanes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Prepares for closing: from now on the peer's writes are discarded, because their memory may be gone, and
    /// failures are not reported. A one-sided fabric has nothing to do.
    fn start_linger(&mut self) {}

    /// Returns true if all posted work is complete at the peer, and everything that the peer waits for has been sent,
    /// so that dropping the rail loses nothing. Unsignalled writes at the end of a lane count as complete once they
    /// have been sent.
    fn is_drained(&self) -> bool {
        true
    }
}
