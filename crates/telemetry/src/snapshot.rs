//! The content of a telemetry file as plain structures.

use std::fmt;

use crate::latencies::{BUCKETS, Latencies};
use crate::layout::{Field, numbered, places};
use crate::process::Process;

numbered! {
    /// The direction of a connection, seen from the process that wrote the file.
    Direction {
        /// Not known.
        Unknown = 0, "unknown";
        /// The process sends data.
        Send = 1, "send";
        /// The process receives data.
        Receive = 2, "receive";
    }
}

numbered! {
    /// The state of a connection.
    ConnectionState {
        /// Not known.
        Unknown = 0, "unknown";
        /// It is being set up.
        SettingUp = 1, "setting up";
        /// It carries messages.
        Open = 2, "open";
        /// It was closed, and what was posted is being sent.
        Closing = 3, "closing";
        /// It failed; the application has not closed it yet.
        Failed = 4, "failed";
    }
}

numbered! {
    /// The state of a rail.
    RailState {
        /// Not known.
        Unknown = 0, "unknown";
        /// It carries data.
        Up = 1, "up";
        /// Its set-up failed; it is never used.
        NeverUp = 2, "never up";
        /// It may have failed; it gets no new data until that is clear.
        Suspected = 3, "suspected";
        /// It failed.
        Down = 4, "down";
        /// It is being set up again.
        Repairing = 5, "repairing";
        /// It is usable, and a policy file keeps data off it.
        Drained = 6, "drained";
    }
}

numbered! {
    /// The origin of the weights by which a message is split.
    Policy {
        /// Not known.
        Unknown = 0, "unknown";
        /// `RAILWEAVE_WEIGHTS`.
        Static = 1, "static";
        /// The speeds that the ports report.
        Speed = 2, "speed";
        /// The rails themselves.
        Adaptive = 3, "adaptive";
        /// A policy file.
        Agent = 4, "agent";
    }
}

/// A device that NCCL sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its speed in Mbit/s, if known.
    pub speed_mbps: Option<u32>,
    /// The number of its ports.
    pub port_count: u32,
    /// The network that carries its data: `verbs` or `tcp`.
    pub fabric: String,
    /// The names of its ports, with commas between.
    pub ports: String,
}

places! {
    Device { 8..72 => name, 72..76 => speed_mbps, 76..80 => port_count, 80..96 => fabric, 96..256 => ports }
}

/// A port of this host that rails use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its name: the one in `railweave topo` and in rules of policy files.
    pub name: String,
    /// The network that carries its data: `verbs` or `tcp`.
    pub fabric: String,
}

places! {
    Port { 8..72 => name, 80..96 => fabric }
}

/// A connection of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Its number in this process. No other connection of the process ever has it.
    pub number: u32,
    /// Its direction.
    pub direction: Direction,
    /// Its state.
    pub state: ConnectionState,
    /// The policy in force.
    pub policy: Policy,
    /// The index of its device in [`State::devices`], if known.
    pub device: Option<u32>,
    /// The peer's rank in the job, if known.
    pub peer_rank: Option<u32>,
    /// The peer's process id on its host, if known.
    pub peer_pid: Option<u32>,
    /// The time since which it has its state, in nanoseconds since 1970.
    pub since_ns: u64,
    /// Receives that were posted; not known of a sender.
    pub messages: Option<u64>,
    /// Messages that the application had ready before their CTS came.
    pub waited_for_cts: u64,
    /// The name of the peer's host.
    pub peer_host: String,
    /// The random id of the peer's process, which also names its file on its host.
    pub peer_process: Option<[u8; 16]>,
}

places! {
    Connection {
        8..12 => number, 12..13 => direction, 13..14 => state, 14..15 => policy, 16..20 => device, 20..24 => peer_rank,
        24..32 => since_ns, 32..40 => messages, 40..48 => waited_for_cts, 48..52 => peer_pid, 64..128 => peer_host,
        128..144 => peer_process,
    }
}

/// A rail of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rail {
    /// The number of its connection: [`Connection::number`].
    pub connection: u32,
    /// Its number in the connection, from 0.
    pub number: u8,
    /// Its state.
    pub state: RailState,
    /// The policy in force.
    pub policy: Policy,
    /// The number of its lanes, if known.
    pub lanes: Option<u8>,
    /// The time since which it has its state, in nanoseconds since 1970.
    pub since_ns: u64,
    /// The reported speed in Mbit/s, if known.
    pub speed_mbps: Option<u32>,
    /// Its share of the data now, in parts of 65,536, if known.
    pub share: Option<u32>,
    /// Bytes that were posted and have not completed yet, if known.
    pub in_flight: Option<u64>,
    /// Data bytes that were sent.
    pub bytes_sent: u64,
    /// Writes of data that were sent.
    pub writes_sent: u64,
    /// Writes of CTS that were sent.
    pub cts_writes: u64,
    /// Data bytes that were received.
    pub bytes_received: u64,
    /// Messages that the application had ready before their CTS came over this rail, if known.
    pub waited_for_cts: Option<u64>,
    /// Parts of messages that were sent again.
    pub retransmitted: u64,
    /// Times that other rails took over from this one.
    pub failovers: u32,
    /// The index of this end's port in [`State::ports`], if known. Files of layout 1.0 have no ports, and 0 here.
    pub port: Option<u16>,
    /// The address of this end, by now: a rail may come back over another one.
    pub local: String,
    /// The address of the peer's end.
    pub remote: String,
    /// The latencies of sampled writes.
    pub latencies: Latencies,
}

places! {
    Rail {
        8..12 => connection, 12..13 => number, 13..14 => state, 14..15 => policy, 15..16 => lanes, 16..24 => since_ns,
        24..28 => speed_mbps, 28..32 => share, 32..40 => in_flight, 40..48 => bytes_sent, 48..56 => writes_sent,
        56..64 => cts_writes, 64..72 => bytes_received, 72..80 => waited_for_cts, 80..88 => retransmitted,
        88..92 => failovers, 92..94 => port, 96..144 => local, 144..192 => remote, 192..256 => latencies,
    }
}

impl Field for Latencies {
    fn put(&self, out: &mut [u8]) {
        self.0.put(out);
    }

    fn get(bytes: &[u8]) -> Self {
        Self(<[u32; BUCKETS] as Field>::get(bytes))
    }
}

/// The kind of an event. A reader shows a kind that it does not know by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventKind(pub u16);

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        impl EventKind {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// Every kind with its word.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self($number), $word)),*];
        }
    };
}
event_kinds! {
    /// A peer was refused on a session.
    UNWELCOME = 1, "unwelcome";
    /// A connection was set up without one of its rails.
    RAIL_LEFT_OUT = 2, "rail-left-out";
    /// A message was longer than its receive.
    TRUNCATED = 3, "truncated";
    /// A connection was opened.
    OPENED = 4, "opened";
    /// A connection was closed.
    CLOSED = 5, "closed";
    /// A connection failed.
    FAILED = 6, "failed";
    /// A rail changed its state.
    RAIL_STATE = 7, "rail-state";
    /// Another policy holds, or another order of a policy file.
    POLICY = 8, "policy";
    /// Something happened to a port.
    PORT = 9, "port";
    /// Something happened to the session with a peer.
    SESSION = 10, "session";
    /// A rail of a connection failed, and the connection goes on without it.
    RAIL_DOWN = 11, "rail-down";
    /// Such a rail carries messages again.
    RAIL_UP = 12, "rail-up";
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::ALL.iter().find(|(kind, _)| kind == self) {
            Some((_, word)) => f.write_str(word),
            None => write!(f, "kind {}", self.0),
        }
    }
}

impl Field for EventKind {
    fn put(&self, out: &mut [u8]) {
        self.0.put(out);
    }

    fn get(bytes: &[u8]) -> Self {
        Self(u16::get(bytes))
    }
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The number of the connection that it is about, if there is one.
    pub connection: Option<u32>,
    /// The number of the rail that it is about, if there is one.
    pub rail: Option<u8>,
    /// Its kind.
    pub kind: EventKind,
    /// The words for people, cut at 232 bytes.
    pub text: String,
}

places! {
    Event { 8..16 => time_ns, 16..20 => connection, 20..21 => rail, 22..24 => kind, 24..256 => text }
}

/// The state of a process: all that is in its file but the events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The process.
    pub process: Process,
    /// The devices, in NCCL's order.
    pub devices: Vec<Device>,
    /// The connections.
    pub connections: Vec<Connection>,
    /// The rails of all connections.
    pub rails: Vec<Rail>,
    /// The ports that rails use, in the order in which they were first used.
    pub ports: Vec<Port>,
}

impl State {
    /// Returns the port of this end of a rail, if it is known.
    pub fn port_of(&self, rail: &Rail) -> Option<&Port> {
        self.ports.get(usize::from(rail.port?))
    }
}

/// A telemetry file, as a reader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The state.
    pub state: State,
    /// The last events, the oldest first.
    pub events: Vec<Event>,
    /// The number of events that the process has had.
    pub events_ever: u64,
    /// The devices, connections and rails that had no room in the file.
    pub left_out: [u32; 3],
    /// The time of the last write, in nanoseconds since 1970.
    pub written_ns: u64,
    /// The number of the last write.
    pub generation: u64,
}
