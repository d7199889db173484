//! The frames of a trace file, as protocol buffers: a reader of this version skips what a later one adds.

/// One frame of a trace file.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(oneof = "Frame", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    frame: Option<Frame>,
}

/// One frame of a trace file. Numbers are the process's own: a thread's, a connection's, a name's.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Frame {
    /// The process. It is the first frame of each file.
    #[prost(message, tag = "1")]
    Process(Process),
    /// A thread, before its first records.
    #[prost(message, tag = "2")]
    Thread(Thread),
    /// A text that records name by its number, before the first of them.
    #[prost(message, tag = "3")]
    Name(Name),
    /// A communicator of NCCL, before its first records.
    #[prost(message, tag = "4")]
    Communicator(Communicator),
    /// A connection that is set up, before its first records.
    #[prost(message, tag = "5")]
    Connection(Connection),
    /// A rail of a connection, before its first records; again if its ends have other names.
    #[prost(message, tag = "6")]
    Rail(Rail),
    /// The records of a thread since its last ones.
    #[prost(message, tag = "7")]
    Records(Records),
    /// The state of the rails at one time.
    #[prost(message, tag = "8")]
    Sample(Sample),
    /// Something that is worth a line in a log.
    #[prost(message, tag = "9")]
    Happened(Happened),
    /// The set-up of a connection, once it is over.
    #[prost(message, tag = "10")]
    Setup(Setup),
    /// A connection was closed.
    #[prost(message, tag = "11")]
    Ended(Ended),
    /// The difference between the clocks of two processes.
    #[prost(message, tag = "12")]
    PeerClock(PeerClock),
}

impl Frame {
    /// Returns the bytes of the frame, without its length and its checksum.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(&Envelope { frame: Some(self.clone()) })
    }

    /// Reads a frame; `None` if it is of a kind that this version does not know.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Option<Self>, prost::DecodeError> {
        Ok(<Envelope as prost::Message>::decode(bytes)?.frame)
    }
}

/// The facts about a process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Process {
    /// Its random id: 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub id: Vec<u8>,
    /// Its process id on its host.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// The host's name.
    #[prost(string, tag = "3")]
    pub host: String,
    /// The random id of the host's run (/proc/sys/kernel/random/boot_id): 16 bytes, none if unknown. Processes with the
    /// same one share a clock.
    #[prost(bytes = "vec", tag = "4")]
    pub boot_id: Vec<u8>,
    /// Its rank in the job, if known.
    #[prost(uint32, optional, tag = "5")]
    pub rank: Option<u32>,
    /// The number of ranks in the job, if known.
    #[prost(uint32, optional, tag = "6")]
    pub world: Option<u32>,
    /// The id of the job; empty if unknown.
    #[prost(string, tag = "7")]
    pub job: String,
    /// The version of the library.
    #[prost(string, tag = "8")]
    pub version: String,
    /// The number of the file among those of the process, from 0.
    #[prost(uint32, tag = "9")]
    pub part: u32,
    /// A time, and the same time in nanoseconds since 1970.
    #[prost(fixed64, tag = "10")]
    pub at_ns: u64,
    /// See `at_ns`.
    #[prost(fixed64, tag = "11")]
    pub wall_ns: u64,
    /// The time at which the clock of the process's sessions began, by which [`PeerClock`] counts.
    #[prost(fixed64, tag = "12")]
    pub sessions_from_ns: u64,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Thread {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Its id on its host (gettid(2)).
    #[prost(uint32, tag = "2")]
    pub tid: u32,
    /// Its name (PR_GET_NAME of prctl(2)); empty if unknown.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A text with a number, such as the name of a collective.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Name {
    /// The number, at least 1 and below 65,536. The number 0 stands for no text.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The text.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// A communicator of NCCL, as this process is part of it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Communicator {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// NCCL's id, the same on all ranks; 0 if unknown (profiler v1 to v3).
    #[prost(fixed64, tag = "2")]
    pub id: u64,
    /// The name that the user gave it; empty if there is none.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The rank of this process in it, if known.
    #[prost(uint32, optional, tag = "4")]
    pub rank: Option<u32>,
    /// The number of its ranks, if known.
    #[prost(uint32, optional, tag = "5")]
    pub ranks: Option<u32>,
    /// The number of its hosts, if known.
    #[prost(uint32, optional, tag = "6")]
    pub nodes: Option<u32>,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Connection {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// True if this process sends over it; otherwise it receives.
    #[prost(bool, tag = "2")]
    pub sends: bool,
    /// The peer's random id: 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub peer: Vec<u8>,
    /// The peer's host.
    #[prost(string, tag = "4")]
    pub host: String,
    /// The peer's rank, if known.
    #[prost(uint32, optional, tag = "5")]
    pub rank: Option<u32>,
    /// The time at which it was set up.
    #[prost(fixed64, tag = "6")]
    pub at_ns: u64,
    /// The device's name.
    #[prost(string, tag = "7")]
    pub device: String,
}

/// A rail.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Rail {
    /// Its connection.
    #[prost(uint32, tag = "1")]
    pub connection: u32,
    /// Its number in the connection, below 8.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// The name of its local end.
    #[prost(string, tag = "3")]
    pub local: String,
    /// The name of its remote end.
    #[prost(string, tag = "4")]
    pub remote: String,
}

/// Records of one thread, in their order.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Records {
    /// The thread.
    #[prost(uint32, tag = "1")]
    pub thread: u32,
    /// The number of records that were lost between the thread's last frame of records and the end of this one: among
    /// these or before them, because the thread was faster than the file, or because the file could not be written.
    #[prost(uint64, tag = "2")]
    pub lost: u64,
    /// The [`Record`](crate::Record)s, [`RECORD_BYTES`](crate::RECORD_BYTES) bytes each.
    #[prost(bytes = "vec", tag = "3")]
    pub bytes: Vec<u8>,
}

/// The state of some rails at one time: of those that have changed since the last sample.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Sample {
    /// The time.
    #[prost(fixed64, tag = "1")]
    pub at_ns: u64,
    /// The rails.
    #[prost(message, repeated, tag = "2")]
    pub rails: Vec<RailSample>,
}

/// The state of a rail.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RailSample {
    /// Its connection.
    #[prost(uint32, tag = "1")]
    pub connection: u32,
    /// Its number in the connection.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// True if it carries data.
    #[prost(bool, tag = "3")]
    pub is_up: bool,
    /// Its part, in millionths, of the bytes that all rails of the connection were given to send since the sample
    /// before; the last one that is known if there were none, and none at the receiving end.
    #[prost(uint32, optional, tag = "4")]
    pub share: Option<u32>,
    /// Bytes of data that it was given to send, since the connection was set up.
    #[prost(uint64, tag = "5")]
    pub sent: u64,
    /// Bytes of data that came over it, since the connection was set up.
    #[prost(uint64, tag = "6")]
    pub received: u64,
    /// Bytes on their way; none at the receiving end.
    #[prost(uint64, optional, tag = "7")]
    pub in_flight: Option<u64>,
}

/// Something that is worth a line in a log.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Happened {
    /// The time.
    #[prost(fixed64, tag = "1")]
    pub at_ns: u64,
    /// Its kind, as the telemetry numbers them (docs/telemetry.md).
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    /// The name of its kind.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its connection, if it is one's.
    #[prost(uint32, optional, tag = "4")]
    pub connection: Option<u32>,
    /// Its rail, if it is one's.
    #[prost(uint32, optional, tag = "5")]
    pub rail: Option<u32>,
    /// The text.
    #[prost(string, tag = "6")]
    pub text: String,
}

/// The set-up of a connection: its handshake.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Setup {
    /// The time of the first message of the handshake.
    #[prost(fixed64, tag = "1")]
    pub from_ns: u64,
    /// The time of its end.
    #[prost(fixed64, tag = "2")]
    pub to_ns: u64,
    /// The connection; none if the set-up has failed.
    #[prost(uint32, optional, tag = "3")]
    pub connection: Option<u32>,
    /// True if this process connects; otherwise it accepts.
    #[prost(bool, tag = "4")]
    pub connects: bool,
    /// The peer, as the log names it.
    #[prost(string, tag = "5")]
    pub peer: String,
    /// The reason of its failure; empty if it has not failed.
    #[prost(string, tag = "6")]
    pub failure: String,
}

/// A connection was closed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Ended {
    /// The time.
    #[prost(fixed64, tag = "1")]
    pub at_ns: u64,
    /// The connection.
    #[prost(uint32, tag = "2")]
    pub connection: u32,
}

/// The difference between the clocks of two processes' sessions. Each clock shows the time since
/// [`Process::sessions_from_ns`] of its process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PeerClock {
    /// The peer's random id: 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub peer: Vec<u8>,
    /// The time of the measurement, on the clock of this process's sessions.
    #[prost(uint64, tag = "2")]
    pub at_ns: u64,
    /// How much the peer's clock is ahead, in nanoseconds; below 0 if it is behind.
    #[prost(sint64, tag = "3")]
    pub ahead_ns: i64,
    /// The most that this may be wrong, in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub within_ns: u64,
}
