//! The observer of a world: it sees every event, and may schedule tasks.

use std::convert::Infallible;
use std::fmt;

use railweave_fabric::{LaneId, MemoryKind, RailError, WorkId, Write};

/// Sees every event in a world, and may schedule tasks in it.
pub trait Observer: fmt::Debug + Send + 'static {
    /// A task. The world keeps it until it is due, and then hands it back.
    type Task: fmt::Debug + Send;

    /// Called for each event at a lane.
    fn see(&mut self, now_ns: u64, place: Place, event: &Event<'_>);

    /// Called for each mishap.
    fn suffer(&mut self, mishap: Mishap);
}

/// The observer that ignores all events and has no tasks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    type Task = Infallible;

    fn see(&mut self, _: u64, _: Place, _: &Event<'_>) {}

    fn suffer(&mut self, _: Mishap) {}
}

/// A lane of one end of a rail, by the numbers under which the end was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The connection's number in [`Opening`]; `usize::MAX` if the end was opened without one.
    pub connection: usize,
    /// True for the connection's sending end.
    pub sender: bool,
    /// The rail's number in its connection, the same at both ends.
    pub rail: u8,
    /// The lane.
    pub lane: LaneId,
}

/// The connection whose rails are opened next; the fabric's traits do not name it.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Its number, which only observers use.
    pub connection: usize,
    /// True if the rails belong to its sending end.
    pub sender: bool,
    /// The number of the next rail.
    pub next_rail: u8,
}

/// An event at a lane. Lengths are in bytes.
#[derive(Debug)]
pub enum Event<'a> {
    /// A rail was not opened.
    NotOpened,
    /// A chain of writes was accepted. An event [`Event::Posted`] for each of them follows.
    Taken {
        /// The writes, in the order in which they are posted.
        chain: &'a [Write],
    },
    /// A write was posted.
    Posted {
        /// The write.
        write: &'a Write,
        /// The time at which it reaches the other end; `u64::MAX` if that is not known, because its port has a
        /// [`Wire`](crate::Wire).
        arrival_ns: u64,
    },
    /// The first part of a write has landed.
    Torn(Landing<'a>),
    /// A write, or the rest of it, has landed.
    Landed(Landing<'a>),
    /// A write did not reach the other end, and no later write of the lane will land.
    Lost {
        /// The time at which the lane fails, after its retries.
        fails_at_ns: u64,
    },
    /// An acknowledgement was lost: the lane sends its write again.
    AckLost {
        /// The time at which it does; `u64::MAX` if no answer comes, because the peer's end is gone.
        again_at_ns: u64,
    },
    /// An outage of the rail begins at this end.
    Outage(Outage),
    /// The lane has died.
    Died {
        /// The cause.
        error: &'a RailError,
    },
    /// A poll reported finished work.
    Sent {
        /// The work.
        id: WorkId,
    },
    /// A poll reported an immediate.
    Received {
        /// The immediate.
        immediate: u32,
        /// Length of its write, as the port reports it; 0 if the port does not count bytes.
        bytes: u32,
        /// True if no sender sent it.
        forged: bool,
    },
    /// A poll reported that the lane is dead.
    Failed,
    /// A post was refused because the lane is dead, or what was posted is wrong.
    Broke,
    /// The send queue claimed to be full, which is a fault.
    RoomWithheld,
    /// The send queue reported that it is full, and it was.
    QueueFull,
    /// A call posted receives, perhaps fewer than it was asked for.
    Receives {
        /// The number asked for.
        asked: u32,
        /// The number accepted.
        taken: u32,
    },
    /// Fewer receives were accepted than fit.
    ReceivesRefused,
    /// A flush was posted.
    Flush {
        /// The work.
        id: WorkId,
    },
    /// A flush found no room.
    FlushRefused,
    /// A flush completed.
    Flushed {
        /// The work.
        id: WorkId,
        /// Number of the port that carried it.
        port: usize,
        /// Number of writes in the whole world that had landed when it was posted, like [`Landing::number`].
        landed: u64,
    },
    /// A rule of the fabric was broken.
    Broken(Breach),
}

/// A time during which something that this end of a rail needs does not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// True if its writes do not reach the peer.
    pub writes: bool,
    /// True if the acknowledgements of its writes do not come back.
    pub acknowledgements: bool,
    /// The time at which the outage begins.
    pub from_ns: u64,
    /// The time at which it ends; `u64::MAX` if it never does.
    pub until_ns: u64,
    /// True if it may last longer than the retries, so that lanes fail.
    pub is_long: bool,
}

/// A write that lands, or a part of one.
#[derive(Debug)]
pub struct Landing<'a> {
    /// The whole write.
    pub write: &'a Write,
    /// Start of this part: an offset into control memory, because that is the same in every run, or an address in other
    /// memory.
    pub start: u64,
    /// The bytes that land now.
    pub bytes: &'a [u8],
    /// True if it lands in control memory.
    pub control: bool,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// Number of the port that received it.
    pub port: usize,
    /// Number of writes that had landed before, in the whole world.
    pub number: u64,
}

/// A violation, by the fabric's caller, of a rule of its traits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A chain was posted to a send queue without room for it.
    SendQueue {
        /// Writes in the chain.
        chain: usize,
        /// Room in the send queue.
        room: u32,
    },
    /// A completion queue was overrun.
    CompletionQueue {
        /// Entries of the queue.
        depth: usize,
    },
    /// More than half of a send queue's entries are unsignalled writes since the last signalled one.
    Unsignalled {
        /// Unsignalled entries.
        waiting: u32,
        /// Entries of the queue.
        depth: u32,
    },
    /// An immediate found no receive.
    NoReceive,
}

/// A fault of the world that is not an [`Event`] at a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A write stalled.
    Stall,
    /// The source of a write is read only when it lands.
    LateRead,
    /// A completion was held back.
    LateCompletion,
    /// A poll reported fewer completions than its caller had room for.
    ShortPoll,
    /// A poll came just before a completion, and reported none.
    BlindPoll,
    /// Acknowledgements were put off until the next call.
    AckPutOff,
    /// A call that had to send acknowledgements sent none.
    AckRefused,
    /// Acknowledgements that a call had to send did not leave, more than a millisecond after they were put off.
    AckRefusedLong,
    /// An acknowledgement came late, alone.
    AckStalled,
    /// The rate of a rail drifted.
    RateDrift,
    /// The rate of a rail jumped.
    RateJump,
    /// A rail nearly stands still.
    Standstill,
    /// A write was lost in an outage of one direction.
    WriteLostOneWay,
    /// An acknowledgement was lost in an outage of one direction.
    AckLostOneWay,
    /// A write or an acknowledgement was lost in an outage of both directions of a rail, or of a port.
    LostInOutage,
    /// A lane got everything through after an outage.
    Recovered,
    /// A lane's retries ended within an outage.
    RetriesEnded,
    /// A write landed after the end of its lane.
    LandedLate,
    /// The last write that got through before the end of its lane landed only in part, or without its completion.
    PlacedInPart,
    /// A write that would have landed after the end of its lane found the other end fenced.
    Fenced,
    /// An end was dropped with completions that no poll had reported.
    CompletionsDropped,
    /// Completions that no poll had reported vanished with their lane.
    CompletionsPurged,
    /// A device that failed forgot completions that no poll had reported.
    CompletionsForgotten,
    /// A registration got the key of one that had ended.
    KeyReused,
    /// An attempt to connect a rail has to be repeated.
    ConnectedLater,
    /// An immediate arrived that no sender had sent.
    Forged,
}
