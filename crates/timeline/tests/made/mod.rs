//! Traces that are made by hand.
#![allow(dead_code)] // Each program of tests uses some of it.

use railweave_timeline::{Choice, Rank, Timeline};
use railweave_trace::{
    Coll, Communicator, Connection, Frame, Happened, Kind, Name, Op, PeerClock, Process, Rail, RailSample, Record,
    Records, Sample, TraceFile, What,
};

/// The id of a process, by its number.
pub(crate) fn id(number: u8) -> Vec<u8> {
    vec![number; 16]
}

/// A trace in the making: one process, with one connection over two rails.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) process: Process,
    pub(crate) frames: Vec<Frame>,
    pub(crate) rest_bytes: usize,
}

impl Made {
    /// A process with this number as its rank and its id, on host "node0" or "node1", which began its sessions at 1 s.
    pub(crate) fn new(rank: u8, host: u8) -> Self {
        let process = Process {
            id: id(rank),
            pid: 100 + u32::from(rank),
            host: format!("node{host}"),
            boot_id: vec![0xb0 + host; 16],
            rank: Some(rank.into()),
            world: Some(2),
            at_ns: 1_000_000_000,
            wall_ns: 1_700_000_001_000_000_000,
            sessions_from_ns: 1_000_000_000,
            ..Process::default()
        };
        Self { process, frames: Vec::new(), rest_bytes: 0 }
    }

    pub(crate) fn with(mut self, frame: Frame) -> Self {
        self.frames.push(frame);
        self
    }

    /// Connection 1, which sends to a rank or receives from it over rails 0 and 1.
    pub(crate) fn connected(self, peer: u8, host: u8, sends: bool) -> Self {
        let connection = Connection {
            number: 1,
            sends,
            peer: id(peer),
            host: format!("node{host}"),
            rank: Some(peer.into()),
            at_ns: 1_000_000_000,
            device: String::new(),
        };
        let rail = |number: u32| {
            let (local, remote) = (format!("eth{number}"), format!("ens{number}"));
            Frame::Rail(Rail { connection: 1, number, local, remote })
        };
        self.with(Frame::Connection(connection)).with(rail(0)).with(rail(1))
    }

    /// Communicator 5 of id 0xc0, and the names that [`Self::collective`] uses.
    pub(crate) fn named(self) -> Self {
        let communicator = Communicator { number: 5, id: 0xc0, name: "default".into(), ..Communicator::default() };
        ["AllReduce", "float", "RING", "SIMPLE"]
            .iter()
            .zip(1..)
            .fold(self.with(Frame::Communicator(communicator)), |made, (text, number)| {
                made.with(Frame::Name(Name { number, text: (*text).into() }))
            })
    }

    /// Records of one thread, with their times.
    pub(crate) fn records(self, thread: u32, lost: u64, records: &[(u64, What)]) -> Self {
        let bytes =
            records.iter().flat_map(|(at_ns, what)| Record::bytes(Record { at_ns: *at_ns, what: *what }.words()));
        let bytes = bytes.collect();
        self.with(Frame::Records(Records { thread, lost, bytes }))
    }

    /// A collective (event 1), its operation (event 2) and a step of that (event 3).
    pub(crate) fn collective(self, sequence: u64, [begin, op, step, step_end]: [u64; 4]) -> Self {
        let coll = Coll { function: 1, datatype: 2, algorithm: 3, protocol: 4, count: 1024, sequence };
        let facts = Op { sends: true, channel: 2, peer: 1, steps: 1, chunk: 4096, pid: self.process.pid };
        self.named().records(
            1,
            0,
            &[
                (begin, begins(1, 0, Kind::Coll, 5)),
                (begin, What::Coll(coll)),
                (begin + 1, What::EventEnd { event: 1 }),
                (op, begins(2, 1, Kind::ProxyOp, 5)),
                (op, What::Op(facts)),
                (step, begins(3, 2, Kind::ProxyStep, 0)),
                (step_end, What::EventEnd { event: 3 }),
                (step_end, What::EventEnd { event: 2 }),
            ],
        )
    }

    pub(crate) fn peer_clock(self, peer: u8, at_ns: u64, ahead_ns: i64, within_ns: u64) -> Self {
        self.with(Frame::PeerClock(PeerClock { peer: id(peer), at_ns, ahead_ns, within_ns }))
    }

    pub(crate) fn happened(self, at_ns: u64, kind: u32, name: &str, rail: u32) -> Self {
        let (name, text) = (name.into(), format!("{name} it is"));
        self.with(Frame::Happened(Happened { at_ns, kind, name, connection: Some(1), rail: Some(rail), text }))
    }

    pub(crate) fn sample(self, at_ns: u64, number: u32, state: RailSample) -> Self {
        self.with(Frame::Sample(Sample { at_ns, rails: vec![RailSample { connection: 1, number, ..state }] }))
    }

    pub(crate) fn file(self) -> TraceFile {
        TraceFile { process: self.process, frames: self.frames, rest_bytes: self.rest_bytes }
    }

    pub(crate) fn rank(self) -> Rank {
        Rank::read(vec![self.file()])
    }
}

pub(crate) fn begins(event: u64, parent: u64, kind: Kind, number: u32) -> What {
    What::EventBegin { event, parent, kind, number }
}

/// A send over both rails of connection 1: begin, bytes and times of each piece, end.
pub(crate) fn send(request: u64, begin: u64, pieces: [(u64, u64, u64); 2], end: u64) -> Vec<(u64, What)> {
    let bytes = pieces.iter().map(|(bytes, ..)| bytes).sum();
    let mut records = vec![(begin, What::SendBegin { connection: 1, request, bytes })];
    for ((bytes, from, to), rail) in pieces.into_iter().zip(0..) {
        records.push((from, What::PieceBegin { connection: 1, rail, request, bytes }));
        records.push((to, What::PieceEnd { connection: 1, rail, request }));
    }
    records.push((end, What::RequestEnd { connection: 1, request, bytes }));
    records
}

/// The timeline of processes whose times need not overlap.
pub(crate) fn join(made: impl IntoIterator<Item = Made>) -> Timeline {
    Timeline::join(made.into_iter().map(Made::rank).collect(), Choice::All).unwrap()
}
