//! The reading of one process's trace: the frames of its files become a [`Rank`].

use crate::rank::{Asked, Event, Facts, Missing, Piece, Rank, Request};
use railweave_trace::{Frame, Kind, RECORD_BYTES, Record, Records, Sample, TraceFile, What};
use std::collections::{HashMap, HashSet};

impl Rank {
    /// Reads the files of one process. Those of other processes than the first one's are left out; so are repeated
    /// ones.
    ///
    /// Threads note records at the same time, so the end of something may stand before its begin. An end without any
    /// begin is counted and left out: its begin was in an older file, or was lost.
    #[must_use]
    pub fn read(mut parts: Vec<TraceFile>) -> Self {
        parts.sort_by_key(|part| part.process.part);
        let Some(first) = parts.first() else { return Self::default() };
        let mut reading = Reading::default();
        reading.rank.process = first.process.clone();
        let id = first.process.id.clone();
        let mut next = 0;
        for part in parts {
            if part.process.id != id || part.process.part < next {
                continue;
            }
            let missing = &mut reading.rank.missing;
            missing.files = missing.files.saturating_add(part.process.part - next);
            missing.rest_bytes = missing.rest_bytes.saturating_add(part.rest_bytes as u64);
            next = part.process.part.saturating_add(1);
            // Later measurements know the wall clock's last step.
            (reading.rank.process.at_ns, reading.rank.process.wall_ns) = (part.process.at_ns, part.process.wall_ns);
            part.frames.into_iter().for_each(|frame| reading.frame(frame));
        }
        reading.finish()
    }
}

/// The most pieces of a request among which the other end of one is sought: a file can claim millions of them.
const MOST_OPEN: usize = 64;

/// The records of one process, so far.
#[derive(Default)]
struct Reading {
    rank: Rank,
    /// The event that began with the last record of each thread: the next one may have the facts about it.
    begun: HashMap<u32, u64>,
    events: HashMap<u64, PartOfEvent>,
    requests: HashMap<(u32, u64), PartOfRequest>,
    ended: HashMap<u32, u64>,
}

/// The records of one event, so far.
#[derive(Default)]
struct PartOfEvent {
    begin: Option<(u64, u64, Kind, u32)>,
    facts: Facts,
    end: Option<u64>,
    bytes: u64,
    states: Vec<(u64, u16)>,
}

/// The records of one request, so far.
#[derive(Default)]
struct PartOfRequest {
    begin: Option<(u64, Asked, u64)>,
    end: Option<(u64, u64)>,
    cts_wait: Option<u64>,
    event: u64,
    pieces: Vec<PartOfPiece>,
}

struct PartOfPiece {
    rail: u8,
    begin: Option<u64>,
    end: Option<u64>,
    bytes: u64,
}

impl Reading {
    fn frame(&mut self, frame: Frame) {
        let rank = &mut self.rank;
        match frame {
            Frame::Name(it) => {
                rank.names.insert(it.number, it.text);
            }
            Frame::Communicator(it) => {
                rank.communicators.insert(it.number, it);
            }
            Frame::Connection(it) => {
                let number = it.number;
                rank.connections.entry(number).or_default().facts = it;
            }
            Frame::Rail(it) => {
                if let Ok(number) = u8::try_from(it.number) {
                    let connection = rank.connections.entry(it.connection).or_default();
                    let rail = connection.rails.entry(number).or_default();
                    (rail.local, rail.remote) = (it.local, it.remote);
                }
            }
            Frame::Records(records) => self.records(&records),
            Frame::Sample(sample) => self.sample(&sample),
            Frame::Happened(it) => {
                self.at(it.at_ns);
                self.rank.happened.push(it);
            }
            Frame::Setup(it) => {
                self.at(it.from_ns);
                self.at(it.to_ns);
                self.rank.setups.push(it);
            }
            Frame::Ended(it) => {
                self.at(it.at_ns);
                self.ended.insert(it.connection, it.at_ns);
            }
            Frame::PeerClock(it) => rank.peer_clocks.push(it),
            Frame::Process(_) | Frame::Thread(_) => {}
        }
    }

    /// Notes that the trace reaches to a time.
    fn at(&mut self, ns: u64) {
        let (first, last) = self.rank.span.unwrap_or((ns, ns));
        self.rank.span = Some((first.min(ns), last.max(ns)));
    }

    fn sample(&mut self, sample: &Sample) {
        self.at(sample.at_ns);
        for state in &sample.rails {
            let connection = self.rank.connections.get_mut(&state.connection);
            let number = u8::try_from(state.number);
            match connection.zip(number.ok()).and_then(|(it, number)| it.rails.get_mut(&number)) {
                Some(rail) => rail.samples.push((sample.at_ns, state.clone())),
                None => self.rank.missing.without_connection += 1,
            }
        }
    }

    fn records(&mut self, records: &Records) {
        let missing = &mut self.rank.missing;
        missing.lost = missing.lost.saturating_add(records.lost);
        // Records were lost somewhere between the thread's last frame and the end of this one: facts on the other side
        // of such a border may be another event's.
        if records.lost > 0 {
            self.begun.remove(&records.thread);
        }
        for bytes in records.bytes.as_chunks::<RECORD_BYTES>().0 {
            let begun = self.begun.remove(&records.thread);
            match Record::of(Record::words_in(bytes)) {
                Some(record) => {
                    self.at(record.at_ns);
                    self.record(records.thread, begun, record);
                }
                None => self.rank.missing.unknown += 1,
            }
        }
        if records.lost > 0 {
            self.begun.remove(&records.thread);
        }
    }

    /// Takes a record of a thread; `begun` is the event that the one before it has begun.
    fn record(&mut self, thread: u32, begun: Option<u64>, Record { at_ns, what }: Record) {
        match what {
            What::SendBegin { connection, request, bytes } => {
                self.request(connection, request).begin = Some((at_ns, Asked::Send, bytes));
            }
            What::ReceiveBegin { connection, request, bytes, .. } => {
                self.request(connection, request).begin = Some((at_ns, Asked::Receive, bytes));
            }
            What::FlushBegin { connection, request } => {
                self.request(connection, request).begin = Some((at_ns, Asked::Flush, 0));
            }
            What::CtsWait { connection, request, for_ns } => {
                self.request(connection, request).cts_wait = Some(for_ns);
            }
            What::RequestEnd { connection, request, bytes } => {
                self.request(connection, request).end = Some((at_ns, bytes));
            }
            What::Belongs { connection, request, event } => self.request(connection, request).event = event,
            What::PieceBegin { connection, rail, request, bytes } => {
                self.request(connection, request).begin_piece(rail, at_ns, bytes);
            }
            What::PieceEnd { connection, rail, request } => {
                self.request(connection, request).end_piece(rail, at_ns);
            }
            What::EventBegin { event, parent, kind, number } => {
                self.events.entry(event).or_default().begin = Some((at_ns, parent, kind, number));
                self.begun.insert(thread, event);
            }
            What::Coll(coll) => self.facts(begun, Facts::Coll(coll)),
            What::P2p(p2p) => self.facts(begun, Facts::P2p(p2p)),
            What::Op(op) => self.facts(begun, Facts::Op(op)),
            What::EventEnd { event } => {
                let end = &mut self.events.entry(event).or_default().end;
                *end = Some(end.map_or(at_ns, |before| before.min(at_ns)));
            }
            What::State { event, state, bytes } => {
                let event = self.events.entry(event).or_default();
                event.bytes = event.bytes.max(bytes);
                event.states.push((at_ns, state));
            }
        }
    }

    fn request(&mut self, connection: u32, request: u64) -> &mut PartOfRequest {
        self.requests.entry((connection, request)).or_default()
    }

    fn facts(&mut self, begun: Option<u64>, facts: Facts) {
        match begun.and_then(|event| self.events.get_mut(&event)) {
            Some(event) => event.facts = facts,
            None => self.rank.missing.without_begin += 1,
        }
    }

    fn finish(self) -> Rank {
        let Self { mut rank, events, requests, ended, .. } = self;
        for (number, at_ns) in ended {
            if let Some(connection) = rank.connections.get_mut(&number) {
                connection.ended = Some(at_ns);
            }
        }
        for (id, event) in events {
            match event.finish() {
                Some(event) => drop(rank.events.insert(id, event)),
                None => rank.missing.without_begin += 1,
            }
        }
        drop_repeated(&mut rank.events, &requests.values().map(|part| part.event).collect());
        let Rank { connections, missing, .. } = &mut rank;
        for ((number, request), part) in requests {
            let Some(connection) = connections.get_mut(&number) else {
                missing.without_connection += 1;
                continue;
            };
            connection.requests.extend(part.finish(request, missing));
        }
        for connection in connections.values_mut() {
            connection.requests.sort_by_key(|request| (request.begin, request.number));
            connection.requests.shrink_to_fit();
            for rail in connection.rails.values_mut() {
                rail.samples.sort_by_key(|(at_ns, _)| *at_ns);
            }
        }
        rank.happened.sort_by_key(|it| it.at_ns);
        rank
    }
}

/// Leaves out the steps that are only attempts of later ones: NCCL starts a receive's step again in each round until
/// the network takes the receive, and does not stop the one before. `used` are the events that requests belong to.
fn drop_repeated(events: &mut HashMap<u64, Event>, used: &HashSet<u64>) {
    let mut last: HashMap<(u64, u32), (u64, u64)> = HashMap::new();
    for (id, event) in events.iter().filter(|(_, event)| event.kind == Kind::ProxyStep && event.parent != 0) {
        let place = last.entry((event.parent, event.number)).or_default();
        *place = (*place).max((event.begin, *id));
    }
    events.retain(|id, event| {
        let is_bare = event.kind == Kind::ProxyStep && event.end.is_none() && event.states.is_empty();
        let later = last.get(&(event.parent, event.number)).filter(|later| (event.begin, *id) < **later);
        !is_bare || later.is_none() || used.contains(id)
    });
}

impl PartOfEvent {
    fn finish(mut self) -> Option<Event> {
        let (begin, parent, kind, number) = self.begin?;
        let end = self.end.map(|end| end.max(begin));
        let (until, is_unfinished) = (end.unwrap_or(begin), end.is_none());
        self.states.sort_unstable();
        let Self { facts, bytes, states, .. } = self;
        Some(Event { parent, kind, number, facts, begin, end, until, is_unfinished, bytes, states })
    }
}

impl PartOfRequest {
    fn begin_piece(&mut self, rail: u8, at_ns: u64, bytes: u64) {
        let is_its_end = |piece: &PartOfPiece| {
            piece.rail == rail && piece.begin.is_none() && piece.end.is_some_and(|end| end >= at_ns)
        };
        match self.pieces.iter_mut().rev().take(MOST_OPEN).find(|piece| is_its_end(piece)) {
            Some(piece) => (piece.begin, piece.bytes) = (Some(at_ns), bytes),
            None => self.pieces.push(PartOfPiece { rail, begin: Some(at_ns), end: None, bytes }),
        }
    }

    fn end_piece(&mut self, rail: u8, at_ns: u64) {
        let is_open = |piece: &&mut PartOfPiece| piece.rail == rail && piece.end.is_none();
        match self.pieces.iter_mut().rev().take(MOST_OPEN).find(is_open) {
            Some(piece) => piece.end = Some(at_ns),
            None => self.pieces.push(PartOfPiece { rail, begin: None, end: Some(at_ns), bytes: 0 }),
        }
    }

    fn finish(self, number: u64, missing: &mut Missing) -> Option<Request> {
        let Some((begin, asked, bytes)) = self.begin else {
            missing.without_begin += 1;
            return None;
        };
        let whole = |piece: PartOfPiece| {
            let Some(begin) = piece.begin else {
                missing.without_begin += 1;
                return None;
            };
            Some(Piece { rail: piece.rail, begin, end: piece.end.map(|end| end.max(begin)), bytes: piece.bytes })
        };
        let mut pieces: Vec<Piece> = self.pieces.into_iter().filter_map(whole).collect();
        pieces.sort_by_key(|piece| (piece.begin, piece.rail));
        let (end, bytes) = match self.end {
            // The end of a send repeats its bytes, and that of a receive has those that came.
            Some((end, came)) => (Some(end.max(begin)), if asked == Asked::Flush { bytes } else { came }),
            None => (None, bytes),
        };
        Some(Request { number, asked, begin, end, bytes, cts_wait: self.cts_wait, event: self.event, pieces })
    }
}
