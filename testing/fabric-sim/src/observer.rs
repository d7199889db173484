//! The observer of a world: it is told everything that happens, and may ask to be given a task back at a time.

use std::convert::Infallible;
use std::fmt;

use railweave_fabric::{LaneId, MemoryKind, RailError, WorkId, Write};

/// Looks at everything that happens in a world, and may have tasks in it.
pub trait Observer: fmt::Debug + Send + 'static {
    /// Something to be done at a time. The world only keeps it until then.
    type Task: fmt::Debug + Send;

    /// Something happened at a lane.
    fn see(&mut self, now_ns: u64, place: Place, event: &Event<'_>);

    /// Chance made something go wrong.
    fn suffer(&mut self, mishap: Mishap);
}

/// Nobody looks, and nobody has anything to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    type Task = Infallible;

    fn see(&mut self, _: u64, _: Place, _: &Event<'_>) {}

    fn suffer(&mut self, _: Mishap) {}
}

/// A lane of one end of a rail, by the name that the end was opened under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The connection, as [`Opening`] numbers it; `usize::MAX` where none was named.
    pub connection: usize,
    /// The end is the connection's sending one.
    pub sender: bool,
    /// The rail's number in its connection, the same at both ends.
    pub rail: u8,
    /// The lane.
    pub lane: LaneId,
}

/// The connection whose rails are opened next: the traits of the fabric do not say.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Its number, which only observers look at.
    pub connection: usize,
    /// The rails are of its sending end.
    pub sender: bool,
    /// The number of the next rail.
    pub next_rail: u8,
}

/// Something that happens at a lane. Lengths are in bytes.
#[derive(Debug)]
pub enum Event<'a> {
    /// A chain of writes was taken. Each of them is told as posted next.
    Taken {
        /// In the order in which they are posted.
        chain: &'a [Write],
    },
    /// A write is on its way.
    Posted {
        /// The write.
        write: &'a Write,
        /// When it reaches the other end.
        arrival_ns: u64,
    },
    /// The first part of a write has landed.
    Torn(Landing<'a>),
    /// A write, or the rest of it, has landed.
    Landed(Landing<'a>),
    /// A write did not reach the other end, so that nothing behind it lands.
    Lost {
        /// When the lane fails, after its retries.
        fails_at_ns: u64,
    },
    /// The lane has died.
    Died {
        /// Why.
        error: &'a RailError,
    },
    /// A poll reported that work was done.
    Sent {
        /// The work.
        id: WorkId,
    },
    /// A poll reported an immediate.
    Received {
        /// The immediate.
        immediate: u32,
        /// Length of its write, as the port tells it; 0 where it does not count.
        bytes: u32,
        /// No sender sent it.
        forged: bool,
    },
    /// A poll reported that the lane is dead.
    Failed,
    /// The send queue says that it is full although it is not.
    RoomWithheld,
    /// The send queue is full.
    QueueFull,
    /// Receives were posted.
    Receives {
        /// This many were asked for.
        asked: u32,
        /// This many were taken.
        taken: u32,
    },
    /// Fewer receives are taken than fit.
    ReceivesRefused,
    /// A flush was posted.
    Flush {
        /// The work.
        id: WorkId,
    },
    /// A flush found no room.
    FlushRefused,
    /// A flush came back.
    Flushed {
        /// The work.
        id: WorkId,
        /// The port through which it went.
        port: usize,
        /// Writes that had landed when it was posted, as [`Landing::number`] counts.
        landed: u64,
    },
    /// A rule of the fabric was broken.
    Broken(Breach),
}

/// A write that lands, or a part of one.
#[derive(Debug)]
pub struct Landing<'a> {
    /// The whole write.
    pub write: &'a Write,
    /// Where this part of it begins: of control memory the offset, which is the same for every run, of other memory the
    /// address.
    pub start: u64,
    /// The bytes that land now.
    pub bytes: &'a [u8],
    /// It lands in control memory.
    pub control: bool,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// The port through which it came.
    pub port: usize,
    /// Writes that had landed before, in the whole world.
    pub number: u64,
}

/// Rules of the fabric that its callers have to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A chain was posted to a send queue without room for it.
    SendQueue {
        /// Writes in the chain.
        chain: usize,
        /// Room there was.
        room: u32,
    },
    /// A completion queue was overrun.
    CompletionQueue {
        /// Entries that it has.
        depth: usize,
    },
    /// More than half of a send queue waits for a signalled write.
    Unsignalled {
        /// Entries that wait.
        waiting: u32,
        /// Entries that the queue has.
        depth: u32,
    },
    /// An immediate found no receive.
    NoReceive,
}

/// Something that chance makes go wrong, where no lane is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A write stalled.
    Stall,
    /// A source is read only when its write lands.
    LateRead,
    /// A completion was held back.
    LateCompletion,
    /// A poll reported less than there was.
    ShortPoll,
    /// Acknowledgements were put off until the next call.
    AckPutOff,
    /// An acknowledgement did not leave when it was to.
    AckRefused,
    /// A rail could not be opened.
    RailNotOpened,
    /// A rail was not connected at the first try.
    ConnectedLater,
    /// An immediate came that no sender sent.
    Forged,
}
