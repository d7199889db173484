//! The sending end of a connection: from `isend` to the completion of every rail's last write.

use std::sync::Arc;

use railweave_fabric::{
    Fabric, LocalSlice, MAX_RAILS, PostError, Rail, RailError, Region, RemoteSlice, Reports, WorkId, Write,
};
use railweave_policy::{Piece, Shares, Split};

use crate::connection::{POLL_BATCH, Rails, Work, bits};
use crate::cts::{CtsEntry, CtsStream};
use crate::handshake::longest_chain;
use crate::immediate::units;
use crate::plant::{Plant, planted, said_mask, shared};
use crate::record::{self, RecordSource};
use crate::requests::{REQUESTS, Requests};
use crate::{
    ConnectionConfig, Error, Immediate, ImmediateLayout, Link, MAX_BUFFERS, MAX_MESSAGE_BYTES, MemoryKeys, RailInfo,
    SPLIT_UNIT,
};

/// From this size on, a connection with striped lanes uses all lanes of a rail for one message.
pub(crate) const STRIPE_FROM: u64 = 64 * 1024;

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes, at most 1 GiB.
    pub size: u64,
    /// Chooses the buffer in a grouped receive.
    pub tag: u32,
    /// Keys of the memory.
    pub keys: &'a MemoryKeys,
}

/// A send that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest(u8);

impl SendRequest {
    /// How many requests a connection has.
    pub const COUNT: usize = REQUESTS;

    /// Its number, below [`Self::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The request with this number.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn from_index(index: usize) -> Self {
        assert!(index < Self::COUNT, "a connection has {} send requests", Self::COUNT);
        Self(index as u8)
    }
}

/// A message that was longer than its receive, and so was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The tag.
    pub tag: u32,
    /// Bytes of the message.
    pub message: u64,
    /// Bytes of the receive, to which it was cut.
    pub receive: u64,
}

#[derive(Clone, Copy, Default)]
struct Part {
    address: u64,
    size: u64,
    local: [u32; MAX_RAILS],
    host: bool,
    request: u8,
}

/// The oldest slot that still has unfilled buffers.
#[derive(Default)]
struct Filling {
    count: usize,
    filled: u8,
    entries: [CtsEntry; MAX_BUFFERS],
    parts: [Part; MAX_BUFFERS],
}

/// What the handshake puts a sending connection together from.
pub(crate) struct SendParts<F: Fabric> {
    pub(crate) config: ConnectionConfig,
    pub(crate) rails: Rails<F>,
    pub(crate) weights: [u32; MAX_RAILS],
    pub(crate) cts: Arc<Region>,
    pub(crate) records: Arc<Region>,
    pub(crate) record_keys: [u32; MAX_RAILS],
    pub(crate) peer_records: u64,
    pub(crate) peer_record_keys: [u32; MAX_RAILS],
    pub(crate) peer_counts_bytes: bool,
    pub(crate) peer: String,
    pub(crate) link: Arc<Link>,
}

/// The sending end of a connection.
pub struct SendConnection<F: Fabric> {
    rails: Rails<F>,
    layout: ImmediateLayout,
    cts: CtsStream,
    split: Split,
    head: u32,
    /// The rail that completed a request last: it is polled first.
    recent: u8,
    requests: Requests,
    /// Shorter messages than this take one write-with-immediate on each active rail. 0 while that is out of the question:
    /// the oldest slot is filled already, or the connection is broken. So one comparison finds most messages.
    one_write_below: u64,
    /// What it is else.
    one_write_limit: u64,
    filling: Box<Filling>,
    error: Option<Error>,
    /// A report that ends the connection, on its way from the poll to `error`.
    wrong: Option<Box<Wrong>>,
    link: Arc<Link>,
    // What most messages do not need.
    /// The receiver's completions carry byte counts.
    peer_counts_bytes: bool,
    max_write: u64,
    config: ConnectionConfig,
    chain: Vec<Write>,
    records: RecordSource,
    record_keys: [u32; MAX_RAILS],
    peer_records: u64,
    peer_record_keys: [u32; MAX_RAILS],
    peer: String,
    cut: Option<Cut>,
    cut_reported: bool,
}

impl<F: Fabric> SendConnection<F> {
    pub(crate) fn new(parts: SendParts<F>) -> Self {
        let max_write = parts.rails.iter().map(|(_, rail)| u64::from(rail.rail.max_write())).min().unwrap_or(1);
        let writes = MAX_MESSAGE_BYTES.div_ceil(max_write) as u32;
        let layout = ImmediateLayout::new(parts.rails.count);
        let one_write = parts.peer_counts_bytes && !parts.config.striped;
        let longest = max_write
            .min(parts.config.adaptive_routing_above.unwrap_or(u64::MAX))
            .min(u64::from(layout.all_ones() - 1) * SPLIT_UNIT);
        let one_write_limit = if one_write { longest + 1 } else { 0 };
        Self {
            layout,
            one_write_below: one_write_limit,
            one_write_limit,
            split: Split::new(parts.weights, parts.config.split_min),
            recent: parts.rails.usable.trailing_zeros() as u8,
            rails: parts.rails,
            cts: CtsStream::new(parts.cts),
            head: 0,
            filling: Box::default(),
            requests: Requests::new(),
            error: None,
            wrong: None,
            link: parts.link,
            peer_counts_bytes: parts.peer_counts_bytes,
            max_write,
            config: parts.config,
            chain: Vec::with_capacity(longest_chain(writes) as usize),
            records: RecordSource::new(parts.records),
            record_keys: parts.record_keys,
            peer_records: parts.peer_records,
            peer_record_keys: parts.peer_record_keys,
            peer: parts.peer,
            cut: None,
            cut_reported: false,
        }
    }

    /// The peer in words.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Where the rest of the process says that the peer is gone.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The rails that came up.
    pub fn rails(&self) -> Vec<RailInfo> {
        self.rails.infos()
    }

    /// Whether [`Self::take_cut`] has something to report.
    #[inline]
    pub fn has_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// The first message on this connection that was cut because its receive was shorter; reported once.
    pub fn take_cut(&mut self) -> Option<Cut> {
        self.cut.take()
    }

    /// Sends a message into the first buffer with its tag of the oldest receive that still has unfilled ones. None when
    /// there is none yet, or no room: call again later.
    ///
    /// # Errors
    /// When the connection is broken, the peer breaks the protocol, or the message is longer than 1 GiB.
    pub fn isend(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        match self.isend_quick(message) {
            Some(request) => Ok(Some(request)),
            None => self.isend_rest(message),
        }
    }

    /// Nearly all messages: the oldest receive has one buffer, with the message's tag and room for it, and one write carries the
    /// message on each active rail. So what the CTS entry says goes straight into the writes. None where anything is not like
    /// that: then nothing has changed, and [`Self::isend_rest`] takes the message.
    ///
    /// When a write cannot be posted although there is room, the connection is broken: the next call says so.
    #[inline(always)]
    pub fn isend_quick(&mut self, message: &Outgoing<'_>) -> Option<SendRequest> {
        let sequence = self.head;
        if message.size >= self.one_write_below || !self.requests.is_place_free(sequence) {
            return None;
        }
        if planted(Plant::EmptyNotSent) && message.size == 0 {
            return None;
        }
        let receive = self.cts.single(sequence as u8, message.tag)?;
        if message.size > receive.size || receive.address.checked_add(message.size).is_none() {
            return None;
        }
        let Some(rail) = self.split.whole(message.size, self.rails.usable) else {
            let to = receive.address;
            return self.isend_split(message.address, message.size, message.keys, to);
        };
        let state = self.rails.get_mut(rail);
        if state.lanes != 1 || state.rail.send_room(0) == 0 {
            let to = receive.address;
            return self.isend_split(message.address, message.size, message.keys, to);
        }
        let write = Common::new(message, receive.address, sequence).write(
            Piece { rail, offset: 0, bytes: message.size },
            receive.key(key_of(rail)),
            self.layout,
            state.side.bit,
        );
        self.cts.take_single();
        self.head = sequence.wrapping_add(1);
        let request = SendRequest(self.requests.post_one(sequence, 1, message.size));
        state.side.info.counters.count_data(1, message.size);
        self.split.count_whole(message.size);
        if let Err(error) = state.rail.post_first(&write) {
            self.post_failed(rail, error);
        }
        Some(request)
    }

    /// [`Self::isend_quick`] on several rails, or several lanes, to the receive at `to` that the next CTS entry names. Takes the
    /// message in pieces: so it need not lie in memory for those that do not come here.
    #[inline(never)]
    fn isend_split(&mut self, address: u64, size: u64, keys: &MemoryKeys, to: u64) -> Option<SendRequest> {
        let sequence = self.head;
        if !self.has_room() {
            return None;
        }
        let receive = self.cts.shown(to, size);
        let shares = shared(self.split.split(size, self.rails.usable));
        let common = Common::new(&Outgoing { address, size, tag: 0, keys }, to, sequence);
        let (mut offset, mut owed) = (0, 0);
        for rail in bits(shares.mask) {
            let bytes = shares.bytes[rail % MAX_RAILS];
            let write =
                common.write(Piece { rail, offset, bytes }, receive.key(key_of(rail)), self.layout, shares.mask);
            let state = self.rails.get_mut(rail);
            let posted = match state.lanes {
                1 => state.rail.post_first(&write),
                lanes => state.rail.post(lane_of(sequence, lanes), &[write]),
            };
            if let Err(error) = posted {
                self.post_failed(rail, error);
                return None;
            }
            state.side.info.counters.count_data(1, bytes);
            offset += bytes;
            owed += 1;
        }
        self.cts.take_single();
        self.head = sequence.wrapping_add(1);
        Some(SendRequest(self.requests.post_one(sequence, owed, size)))
    }

    /// Whether every rail has room for one write of the next slot.
    #[inline]
    fn has_room(&self) -> bool {
        bits(self.rails.usable).all(|rail| {
            let state = self.rails.get(rail);
            state.rail.send_room(lane_of(self.head, state.lanes)) > 0
        })
    }

    /// [`Self::isend`] of what [`Self::isend_quick`] did not take.
    ///
    /// # Errors
    /// As [`Self::isend`].
    #[inline(never)]
    pub fn isend_rest(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        if self.error.is_none() && !self.has_room() {
            return self.no_room();
        }
        self.isend_any(message)
    }

    /// Any message: it waits in its slot until the slot has all its buffers.
    fn isend_any(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        if self.error.is_some() {
            return Err(self.broken());
        }
        if message.size > MAX_MESSAGE_BYTES {
            return Err(too_long(message.size, &self.peer));
        }
        if self.filling.count == 0 && !self.open_slot()? {
            return self.no_room();
        }
        let filling = &mut *self.filling;
        let unfilled = |index: &usize| filling.filled & 1 << index == 0;
        let tagged = |index: &usize| filling.entries[*index].tag == message.tag || planted(Plant::TagIgnored);
        let Some(buffer) = (0..filling.count).filter(unfilled).find(tagged) else {
            return self.no_room();
        };
        let Some(request) = self.requests.find_free(self.head) else {
            return self.no_room();
        };
        let receive = filling.entries[buffer].size;
        let size = if planted(Plant::CutIgnored) { message.size } else { message.size.min(receive) };
        filling.parts[buffer] =
            Part { address: message.address, size, local: message.keys.local, host: message.keys.host, request };
        let filled = filling.filled | 1 << buffer;
        if filled.count_ones() as usize == filling.count && !self.post_slot()? {
            return self.no_room();
        }
        // Only now is it certain that the message goes out: until here nothing was changed that a retry does not redo.
        if self.filling.count != 0 {
            self.filling.filled = filled;
        }
        self.requests.take(request, size);
        if size < message.size {
            self.note_cut(message.tag, message.size, receive);
        }
        Ok(Some(SendRequest(request)))
    }

    /// A message was cut to its receive.
    #[cold]
    #[inline(never)]
    fn note_cut(&mut self, tag: u32, message: u64, receive: u64) {
        if !self.cut_reported {
            self.cut_reported = true;
            self.cut = Some(Cut { tag, message, receive });
        }
    }

    /// The bytes that were sent, once every active rail's last write is complete; then the request is over.
    ///
    /// # Errors
    /// When the connection is broken, or there is no such request.
    pub fn test(&mut self, request: SendRequest) -> Result<Option<u64>, Error> {
        match self.test_quick(request) {
            Ok(size) => Ok(Some(size)),
            Err(moved) => self.test_rest(request, moved),
        }
    }

    /// [`Self::test`] as it mostly ends: the request is done, or is when the rail that completed the last one is polled. Else
    /// whether that rail had anything to say, for [`Self::test_rest`].
    #[expect(clippy::missing_errors_doc, reason = "no error, but more to do")]
    #[inline(always)]
    pub fn test_quick(&mut self, request: SendRequest) -> Result<u64, bool> {
        if let Some(size) = self.requests.release(request.0) {
            return Ok(size);
        }
        // An error is kept, and `test_rest` looks for it.
        let moved = self.poll_rail(usize::from(self.recent)).unwrap_or(true);
        self.requests.release(request.0).ok_or(moved)
    }

    /// [`Self::test`] of a request that [`Self::test_quick`] found not done: polls the other rails.
    ///
    /// # Errors
    /// As [`Self::test`].
    #[inline(never)]
    pub fn test_rest(&mut self, request: SendRequest, mut moved: bool) -> Result<Option<u64>, Error> {
        if self.error.is_some() {
            return Err(self.broken());
        }
        for rail in bits(self.rails.usable & !(1 << self.recent)) {
            moved |= self.poll_rail(rail)?;
            if let Some(size) = self.requests.release(request.0) {
                self.recent = rail as u8;
                return Ok(Some(size));
            }
        }
        if self.requests.is_free(request.0) {
            return Err(not_under_way(request.0));
        }
        if !moved {
            self.check_link()?;
        }
        Ok(None)
    }

    /// From now on nobody waits for anything: what arrives is thrown away, errors are silent. Called when it is closed.
    pub fn start_linger(&mut self) {
        self.rails.start_linger();
    }

    /// Moves what is left to move; whether everything is out and acknowledged.
    pub fn linger(&mut self) -> bool {
        self.rails.linger()
    }

    fn open_slot(&mut self) -> Result<bool, Error> {
        let slot = self.head as u8;
        // The receiver may have opened the slot again before our completions of its last use are here.
        if self.requests.is_owed(self.head) {
            return Ok(false);
        }
        let filling = &mut *self.filling;
        match self.cts.take(slot, &mut filling.entries) {
            Ok(0) => Ok(false),
            Ok(count) => {
                filling.count = count;
                filling.filled = 0;
                self.one_write_below = 0;
                Ok(true)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Nothing could be posted. Where the peer's writes and our completions need this side's processor, it works now.
    #[inline(never)]
    fn no_room(&mut self) -> Result<Option<SendRequest>, Error> {
        if F::ONE_SIDED || !self.poll()? {
            self.check_link()?;
        }
        Ok(None)
    }

    fn check_link(&mut self) -> Result<(), Error> {
        match self.link.lost() {
            None => Ok(()),
            Some(_) if planted(Plant::LinkIgnored) => Ok(()),
            Some(error) => {
                let error = error.clone();
                Err(self.fail(error))
            }
        }
    }

    /// Posts the slot that has all its buffers; false when there is no room.
    fn post_slot(&mut self) -> Result<bool, Error> {
        let owed = self.post_chains()?;
        if owed == 0 {
            return Ok(false);
        }
        let filling = &mut *self.filling;
        self.requests.post(self.head, owed, filling.parts[..filling.count].iter().map(|part| part.request));
        filling.count = 0;
        self.one_write_below = self.one_write_limit;
        self.head = self.head.wrapping_add(1);
        Ok(true)
    }

    /// Chains of plain writes that end in a write-with-immediate, and where the immediate cannot say the sizes, the record
    /// on the leader. Answers how many signalled writes were posted, 0 without room.
    fn post_chains(&mut self) -> Result<u8, Error> {
        let count = self.filling.count;
        let pieces = |size: u64| size.div_ceil(self.max_write).max(1) as u32;
        let longest = self.filling.parts[..count].iter().map(|part| pieces(part.size)).sum::<u32>() + 1;
        for rail in bits(self.rails.usable) {
            let state = self.rails.get(rail);
            let lane = lane_of(self.head, state.lanes);
            let mut lanes = if self.config.striped { 0..state.lanes } else { lane..lane + 1 };
            let needed = if planted(Plant::RoomForOne) { 1 } else { longest };
            if lanes.any(|lane| state.rail.send_room(lane) < needed) {
                return Ok(0);
            }
        }

        let mut shares = [Shares::default(); MAX_BUFFERS];
        let mut mask = 0;
        for (share, part) in shares.iter_mut().zip(&self.filling.parts[..count]) {
            *share = shared(self.split.split(part.size, self.rails.usable));
            mask |= if part.size == 0 { 0 } else { share.mask };
        }
        if mask == 0 {
            mask = shares[0].mask;
        }
        let total = self.filling.parts[0].size;
        let adaptive = self.config.adaptive_routing_above.is_some_and(|above| total > above);
        let in_record =
            count > 1 || adaptive || !self.peer_counts_bytes || shares[0].bytes.iter().any(|b| *b > self.max_write);
        let size_q = if in_record { self.layout.all_ones() } else { self.layout.size_q(total) };
        let in_record = size_q == self.layout.all_ones();
        let slot = self.head as u8;
        if in_record {
            self.fill_record(slot, planted(Plant::RecordFilledLate));
        }
        let immediate = self.layout.encode(Immediate { slot, mask: said_mask(mask), size_q });
        let all_lanes = self.config.striped && stripes(size_q, self.layout.all_ones());
        let first = mask.trailing_zeros() as usize;
        let leader = if planted(Plant::RecordByWrongRail) { 7 - mask.leading_zeros() as usize } else { first };

        let mut owed = 0;
        for rail in bits(mask) {
            let count = self.rails.get(rail).lanes;
            let (first_lane, lanes) = if all_lanes { (0, count) } else { (lane_of(self.head, count), 1) };
            for lane in 0..lanes {
                let bytes = self.build_chain(&shares, rail, lane, lanes);
                let record = in_record && rail == leader && lane == 0;
                self.end_chain(rail, slot, record, in_record, immediate);
                if planted(Plant::EmptyNotSent)
                    && self.filling.parts[..self.filling.count].iter().all(|part| part.size == 0)
                {
                    self.chain.clear();
                }
                let state = self.rails.rails[rail].as_mut().expect("active rails are usable");
                if let Err(error) = state.rail.post(first_lane + lane, &self.chain) {
                    return Err(self.post_failed(rail, error));
                }
                state.side.info.counters.count_data(self.chain.len() as u64, bytes);
                owed += 1;
            }
        }
        if in_record && planted(Plant::RecordFilledLate) {
            self.fill_record(slot, false);
        }
        Ok(owed)
    }

    /// The plain writes of one lane, into `self.chain`; answers their bytes.
    fn build_chain(&mut self, shares: &[Shares; MAX_BUFFERS], rail: usize, lane: u8, lanes: u8) -> u64 {
        self.chain.clear();
        let mut total = 0;
        let filling = &*self.filling;
        let buffers = filling.parts.iter().zip(&filling.entries).zip(shares).take(filling.count);
        for ((part, entry), share) in buffers {
            let Some(piece) = share.pieces().find(|piece| piece.rail == rail) else {
                continue;
            };
            let (mut offset, mut left) = lane_part(piece.offset, piece.bytes, lane, lanes);
            total += left;
            while left > 0 {
                let length = left.min(self.max_write);
                self.chain.push(Write {
                    local: LocalSlice {
                        address: part.address.wrapping_add(offset),
                        length: length as u32,
                        key: part.local[rail],
                    },
                    remote: RemoteSlice { address: entry.address + offset, key: entry.keys[key_of(rail)] },
                    host: part.host,
                    ..Write::default()
                });
                offset += length;
                left -= length;
                if planted(Plant::LastWriteDropped) {
                    break;
                }
            }
        }
        total
    }

    /// Ends a lane's chain with the signalled write-with-immediate.
    fn end_chain(&mut self, rail: usize, slot: u8, record: bool, in_record: bool, immediate: u32) {
        if in_record || self.chain.is_empty() {
            self.chain.push(Write::default());
        }
        let last = self.chain.last_mut().expect("a write was pushed");
        if record {
            last.local = LocalSlice {
                address: self.records.region.address() + record::offset(slot) as u64,
                length: record::RECORD_BYTES as u32,
                key: self.record_keys[rail],
            };
            last.remote = RemoteSlice {
                address: self.peer_records.wrapping_add(record::offset(slot) as u64),
                key: self.peer_record_keys[rail],
            };
            last.host = true;
        }
        last.immediate = Some(immediate);
        last.signalled = true;
        last.id = Work::Data(self.head).id();
        if planted(Plant::RecordFirst) && in_record {
            self.chain.rotate_right(1);
        }
    }

    /// Prepares the record of the slot that is being posted.
    fn fill_record(&self, slot: u8, not_yet: bool) {
        let count = self.filling.count;
        let mut sizes = self.filling.parts.map(|part| if not_yet { 0 } else { part.size });
        if planted(Plant::GroupSizesSwapped) {
            sizes[..count].reverse();
        }
        self.records.fill(slot, &sizes[..count]);
    }

    /// Takes what the rails have to say; whether there was anything.
    #[inline(never)]
    fn poll(&mut self) -> Result<bool, Error> {
        bits(self.rails.usable).try_fold(false, |moved, rail| Ok(self.poll_rail(rail)? | moved))
    }

    /// Takes what a rail has to say; whether there was anything.
    #[inline(always)]
    fn poll_rail(&mut self, rail: usize) -> Result<bool, Error> {
        let mut completions = Completions { requests: &mut self.requests, wrong: &mut self.wrong };
        let moved = self.rails.get_mut(rail).rail.report(POLL_BATCH, &mut completions);
        if self.wrong.is_some() {
            return Err(self.handle_wrong(rail));
        }
        Ok(moved)
    }

    /// A report that ends the connection.
    #[cold]
    #[inline(never)]
    fn handle_wrong(&mut self, rail: usize) -> Error {
        let error = match self.wrong.take().map(|wrong| *wrong) {
            None => return self.broken(),
            Some(Wrong::Failed { lane, error }) => self.rails.failure(rail, lane, &error, &self.peer),
            Some(Wrong::Received { immediate, bytes }) => Error::protocol(format!(
                "{} to {}: an immediate came to the sending end ({immediate:#010x}, {bytes} bytes); the peer breaks the \
                 protocol",
                self.rails.name(rail),
                self.peer
            )),
        };
        self.fail(error)
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.one_write_below = 0;
        self.error.get_or_insert(error).clone()
    }

    #[cold]
    fn broken(&self) -> Error {
        self.error.clone().expect("asked only when there is one")
    }

    /// Work could not be posted although there was room. The lane's completion says more than its refusal.
    #[cold]
    fn post_failed(&mut self, rail: usize, error: PostError) -> Error {
        if let Err(reason) = self.poll() {
            return reason;
        }
        let message = format!("{} to {}: {error}", self.rails.name(rail), self.peer);
        self.fail(match error {
            PostError::Invalid(_) => Error::protocol(message),
            PostError::Full | PostError::Broken => Error::peer(message),
        })
    }
}

/// What the writes of a message have in common that go out one on each active rail.
struct Common<'a> {
    message: Outgoing<'a>,
    /// The receive's address.
    to: u64,
    slot: u8,
    size_q: u32,
    id: WorkId,
}

impl<'a> Common<'a> {
    /// Of a message to the receive at this address, whose size an immediate can say.
    #[inline(always)]
    fn new(message: &Outgoing<'a>, to: u64, sequence: u32) -> Self {
        Self {
            message: *message,
            to,
            slot: sequence as u8,
            size_q: units(message.size as u32),
            id: Work::Data(sequence).id(),
        }
    }

    /// The write of one rail's piece, to memory with this key, when the rails in `mask` are active.
    #[inline(always)]
    fn write(&self, piece: Piece, key: u32, layout: ImmediateLayout, mask: u8) -> Write {
        let immediate = Immediate { slot: self.slot, mask: said_mask(mask), size_q: self.size_q };
        Write {
            local: LocalSlice {
                address: self.message.address.wrapping_add(piece.offset),
                length: piece.bytes as u32,
                key: self.message.keys.local[piece.rail % MAX_RAILS],
            },
            remote: RemoteSlice { address: self.to.wrapping_add(piece.offset), key },
            immediate: Some(layout.encode(immediate)),
            signalled: true,
            host: self.message.keys.host,
            id: self.id,
        }
    }
}

/// Takes what one rail reports.
struct Completions<'a> {
    requests: &'a mut Requests,
    wrong: &'a mut Option<Box<Wrong>>,
}

/// A report that ends the connection.
enum Wrong {
    Failed { lane: u8, error: Box<RailError> },
    Received { immediate: u32, bytes: u32 },
}

impl Reports for Completions<'_> {
    #[inline(always)]
    fn handle_sent(&mut self, id: WorkId) {
        match Work::from_id(id) {
            Some(Work::Data(sequence)) => self.requests.handle_sent(sequence),
            _ => panic!("a sender got a completion of work that it never posts: {:#x}", id.0),
        }
    }

    #[inline(always)]
    fn handle_received(&mut self, _lane: u8, immediate: u32, bytes: u32) {
        keep(self.wrong, || Wrong::Received { immediate, bytes });
    }

    #[inline(always)]
    fn handle_failed(&mut self, lane: u8, _id: Option<WorkId>, error: Box<RailError>) {
        keep(self.wrong, || Wrong::Failed { lane, error });
    }
}

/// Keeps the first report that ends the connection.
#[cold]
fn keep(place: &mut Option<Box<Wrong>>, wrong: impl FnOnce() -> Wrong) {
    place.get_or_insert_with(|| Box::new(wrong()));
}

#[cold]
fn not_under_way(request: u8) -> Error {
    Error::protocol(format!(
        "test was called for send request {request}, which is not under way; a request is over once test said done"
    ))
}

#[cold]
fn too_long(size: u64, peer: &str) -> Error {
    Error::configuration(format!(
        "a message of {size} bytes to {peer} is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device"
    ))
}

/// Whether a striped connection uses all lanes for a message: both ends derive it from size_q.
#[inline]
pub(crate) fn stripes(size_q: u32, all_ones: u32) -> bool {
    size_q == all_ones || u64::from(size_q) >= STRIPE_FROM / SPLIT_UNIT
}

/// The rail whose keys a rail's writes use: its own.
#[inline]
fn key_of(rail: usize) -> usize {
    if planted(Plant::KeyOfOtherRail) { 0 } else { rail }
}

/// The lane of a slot, of `lanes`, where it uses one: they take turns.
#[inline]
fn lane_of(sequence: u32, lanes: u8) -> u8 {
    match lanes {
        1 => 0,
        lanes => (sequence % u32::from(lanes)) as u8,
    }
}

/// Lane `lane`'s part, of `lanes`, of a rail's piece: offset and bytes, in multiples of 128 but for the end.
fn lane_part(offset: u64, bytes: u64, lane: u8, lanes: u8) -> (u64, u64) {
    let unit = if planted(Plant::LanesNot128) { 8 } else { SPLIT_UNIT };
    let each = bytes.div_ceil(u64::from(lanes)).next_multiple_of(unit);
    let start = (each * u64::from(lane)).min(bytes);
    (offset + start, (bytes - start).min(each))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lanes_share_a_piece_in_units(offset in 0u64..1 << 20, bytes in 0u64..1 << 22, lanes in 1u8..=16) {
            let mut at = offset;
            for lane in 0..lanes {
                let (start, length) = lane_part(offset, bytes, lane, lanes);
                if length > 0 {
                    prop_assert_eq!(start, at);
                    let ends = start + length == offset + bytes;
                    prop_assert!(ends || length % SPLIT_UNIT == 0);
                }
                at += length;
            }
            prop_assert_eq!(at, offset + bytes);
        }
    }
}
