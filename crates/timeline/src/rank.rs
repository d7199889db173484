//! The trace of one process: its communicators, events, connections, requests and pieces.

use railweave_trace::{Coll, Communicator, Kind, Op, P2p, PeerClock, Process, RailSample, Setup};
use std::collections::{BTreeMap, HashMap};

/// The trace of one process, which is one rank of its job. Times are those of its files until
/// [`Timeline::join`](crate::Timeline::join) moves them: from then on, nanoseconds since the timeline's begin.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// The process, as the first of its files tells it.
    pub process: Process,
    /// Its host: a number of [`Timeline::hosts`](crate::Timeline::hosts).
    pub host: usize,
    /// The first and the last time in the trace; `None` if it has no times.
    pub span: Option<(u64, u64)>,
    /// Texts by their numbers.
    pub names: HashMap<u32, String>,
    /// NCCL's communicators by their numbers.
    pub communicators: BTreeMap<u32, Communicator>,
    /// NCCL's events by their ids.
    pub events: HashMap<u64, Event>,
    /// The connections by their numbers.
    pub connections: BTreeMap<u32, Connection>,
    /// Events that are worth a line in a log, in their order.
    pub happened: Vec<railweave_trace::Happened>,
    /// The set-ups of connections that are over.
    pub setups: Vec<Setup>,
    /// The clocks of peers, as this process has measured them.
    pub(crate) peer_clocks: Vec<PeerClock>,
    /// The parts of the trace that are missing.
    pub missing: Missing,
}

/// The number of things that a trace lacks, or has and cannot place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Files that were removed while the process ran, to keep within the limit of bytes.
    pub files: u32,
    /// Bytes at the ends of files that are no whole frames.
    pub rest_bytes: u64,
    /// Records that the process lost, because its threads were faster than the files.
    pub lost: u64,
    /// Ends, waits and facts whose begin is not in the trace.
    pub without_begin: u64,
    /// Records of connections that the trace does not define.
    pub without_connection: u64,
    /// Records of kinds that this version does not know.
    pub unknown: u64,
}

/// An event of NCCL's profiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event that it is a part of; 0 for none.
    pub parent: u64,
    /// Its kind.
    pub kind: Kind,
    /// Its communicator; for a proxy step, the number of the step instead.
    pub number: u32,
    /// The facts about it.
    pub facts: Facts,
    /// The time at which it began.
    pub begin: u64,
    /// The time at which it ended, as NCCL tells: the end of a collective's event is only that of its enqueueing.
    /// `None` if the trace ends before.
    pub end: Option<u64>,
    /// The end of what it started: the last end among the event itself and all that are parts of it.
    pub until: u64,
    /// True if the trace ends before the event, or a part of it, does.
    pub is_unfinished: bool,
    /// Bytes that a proxy step transfers; 0 if unknown.
    pub bytes: u64,
    /// The states that it entered, with their times, in their order; NCCL numbers them (`ncclProfilerEventState_t`).
    pub states: Vec<(u64, u16)>,
}

/// The facts about an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Facts {
    /// There are none.
    #[default]
    None,
    /// It is a collective, or the call of one.
    Coll(Coll),
    /// It is a send or receive between two ranks, or the call of one.
    P2p(P2p),
    /// It is a proxy operation.
    Op(Op),
}

/// A connection.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The facts about it.
    pub facts: railweave_trace::Connection,
    /// The peer, if its trace is part of the timeline: a number of [`Timeline::ranks`](crate::Timeline::ranks).
    pub peer: Option<usize>,
    /// The peer's process id, if its trace is part of the timeline.
    pub peer_pid: Option<u32>,
    /// The peer's rank, if its trace is part of the timeline and tells it.
    pub peer_rank: Option<u32>,
    /// The time of its end, if it was closed.
    pub ended: Option<u64>,
    /// Its rails by their numbers.
    pub rails: BTreeMap<u8, Rail>,
    /// Its requests, in the order of their begins.
    pub requests: Vec<Request>,
}

/// A rail.
#[derive(Clone, Debug, Default)]
pub struct Rail {
    /// The name of its local end: the last one, if it has changed.
    pub local: String,
    /// The name of its remote end: the last one, if it has changed.
    pub remote: String,
    /// Its states with their times, in their order.
    pub samples: Vec<(u64, RailSample)>,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// A message is sent.
    Send,
    /// Messages are received.
    Receive,
    /// Data that has come is flushed.
    Flush,
}

/// A request of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number in its connection.
    pub number: u64,
    /// Its kind.
    pub asked: Asked,
    /// The time of its begin.
    pub begin: u64,
    /// The time of its end; `None` if the trace ends before.
    pub end: Option<u64>,
    /// Bytes that were sent or have come; of a receive without an end, the room in its buffers.
    pub bytes: u64,
    /// The time for which it had waited for its CTS before its begin, in nanoseconds.
    pub cts_wait: Option<u64>,
    /// The event of NCCL's profiler that it belongs to; 0 for none.
    pub event: u64,
    /// Its pieces, in the order of their begins.
    pub pieces: Vec<Piece>,
}

/// The part of a request that one rail carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The rail.
    pub rail: u8,
    /// The time of its begin.
    pub begin: u64,
    /// The time of its end; `None` if the trace ends before.
    pub end: Option<u64>,
    /// Its bytes; 0 at the receiving end, which only knows the sum.
    pub bytes: u64,
}

impl Rank {
    /// Returns a text by its number; "?" if the trace lacks it.
    #[must_use]
    pub fn name(&self, number: u16) -> &str {
        self.names.get(&number.into()).map_or("?", String::as_str)
    }

    /// Returns the last time of the trace.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.span.map_or(0, |(_, last)| last)
    }

    /// Returns its rank in the job: as the process knows it, or the one that all of its communicators name. `None` if
    /// these differ, or one does not tell.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        let mut named = self.communicators.values().map(|it| it.rank);
        let of_communicators = || {
            let first = named.next()??;
            named.all(|rank| rank == Some(first)).then_some(first)
        };
        self.process.rank.or_else(of_communicators)
    }

    /// Returns the words for something whose end is not in the trace: it may have ended if records were lost.
    #[must_use]
    pub fn without_end(&self) -> &'static str {
        if self.missing.lost > 0 { "end not seen" } else { "unfinished" }
    }

    /// Returns the name of the rank: "rank 3 (pid 4711)", or "pid 4711" if its rank is unknown.
    #[must_use]
    pub fn label(&self) -> String {
        match self.number() {
            Some(rank) => format!("rank {rank} (pid {})", self.process.pid),
            None => format!("pid {}", self.process.pid),
        }
    }

    /// Returns the name of a communicator: the user's if there is one. Number 0 is one of another process, which sends
    /// through this one's proxy (NCCL's PXN).
    #[must_use]
    pub fn communicator(&self, number: u32) -> String {
        match self.communicators.get(&number) {
            Some(it) if !it.name.is_empty() => it.name.clone(),
            Some(it) if it.id != 0 => format!("communicator {:x}", it.id),
            _ if number == 0 => "another process".into(),
            _ => format!("communicator {number}"),
        }
    }

    /// Returns the name of an event.
    #[must_use]
    pub fn event_name(&self, event: &Event) -> String {
        let of_facts = match event.facts {
            Facts::Coll(coll) => Some(self.name(coll.function).to_owned()),
            Facts::P2p(p2p) => Some(match self.name(p2p.function) {
                "Send" if p2p.peer >= 0 => format!("Send to {}", p2p.peer),
                "Recv" if p2p.peer >= 0 => format!("Recv from {}", p2p.peer),
                other => other.to_owned(),
            }),
            _ => None,
        };
        let known = |other: &str| of_facts.clone().unwrap_or_else(|| other.to_owned());
        match (event.kind, event.facts) {
            (Kind::Coll, Facts::Coll(coll)) => format!("{} #{}", self.name(coll.function), coll.sequence),
            (Kind::Coll, _) => known("collective"),
            (Kind::P2p, _) => known("send or receive"),
            (Kind::CollApi, _) => format!("{} called", known("collective")),
            (Kind::P2pApi, _) => format!("{} called", known("send or receive")),
            (Kind::Group, _) => "group".into(),
            (Kind::GroupApi, _) => "group called".into(),
            (Kind::KernelLaunch, _) => "kernel launch".into(),
            (Kind::ProxyOp, Facts::Op(op)) => {
                let way = if op.sends { "send to" } else { "receive from" };
                format!("{way} {}, {} steps", op.peer, op.steps)
            }
            (Kind::ProxyOp, _) => "proxy operation".into(),
            (Kind::ProxyStep, _) => format!("step {}", event.number),
        }
    }
}

impl Connection {
    /// Returns the time until which something without an end lasts, in a trace with this last time.
    #[must_use]
    pub fn last(&self, of_trace: u64) -> u64 {
        self.ended.map_or(of_trace, |ended| ended.min(of_trace))
    }

    /// Returns the peer's name: "node1, rank 0", or "node1, pid 4711" if only that is known, or the host alone.
    #[must_use]
    pub fn peer_name(&self) -> String {
        let host = if self.facts.host.is_empty() { "an unknown host" } else { &self.facts.host };
        match (self.facts.rank.or(self.peer_rank), self.peer_pid) {
            (Some(rank), _) => format!("{host}, rank {rank}"),
            (None, Some(pid)) => format!("{host}, pid {pid}"),
            (None, None) => host.to_owned(),
        }
    }

    /// Returns the name of a rail: "rail 0 eth0 10.0.0.1 -> eth1 10.0.0.2".
    #[must_use]
    pub fn rail_name(&self, number: u8) -> String {
        match self.rails.get(&number) {
            Some(rail) if !(rail.local.is_empty() && rail.remote.is_empty()) => {
                // The arrow shows the way of the data.
                let arrow = if self.facts.sends { "->" } else { "<-" };
                format!("rail {number} {} {arrow} {}", rail.local, rail.remote)
            }
            _ => format!("rail {number}"),
        }
    }
}
