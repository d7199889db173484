//! The sending end of a connection: from `isend` to the completion of every rail's last write.

use std::sync::Arc;

use railweave_fabric::{
    Completion, Fabric, LocalSlice, MAX_RAILS, PostError, Rail, Region, RemoteSlice, WorkId, Write,
};
use railweave_policy::{Piece, Shares, Split};

use crate::connection::{Rails, Work, bits, completion_buffer};
use crate::cts::{CtsEntry, CtsStream};
use crate::handshake::longest_chain;
use crate::plant::{Plant, checks, planted, said_mask, shared};
use crate::record::{self, RecordSource};
use crate::requests::{REQUESTS, Requests};
use crate::{
    ConnectionConfig, Error, Immediate, ImmediateLayout, Link, MAX_BUFFERS, MAX_MESSAGE_BYTES, MemoryKeys, RailInfo,
    SLOTS, SPLIT_UNIT,
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
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The request with this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn from_index(index: usize) -> Self {
        Self(u8::try_from(index).expect("a connection has 256 send requests"))
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

/// A slot whose data is posted.
#[derive(Clone, Copy, Default)]
struct Posted {
    sequence: u32,
    /// Signalled writes that are not complete.
    owed: u16,
    count: u8,
    requests: [u8; MAX_BUFFERS],
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
    filling: Box<Filling>,
    posted: Box<[Posted; SLOTS]>,
    requests: Requests,
    completions: [Completion; crate::connection::POLL_BATCH],
    error: Option<Box<Error>>,
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
        Self {
            layout: ImmediateLayout::new(parts.rails.count),
            split: Split::new(parts.weights, parts.config.split_min),
            rails: parts.rails,
            cts: CtsStream::new(parts.cts),
            head: 0,
            filling: Box::default(),
            posted: Box::new([Posted::default(); SLOTS]),
            requests: Requests::new(),
            completions: completion_buffer(),
            error: None,
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

    /// The first message on this connection that was cut because its receive was shorter; reported once.
    #[inline]
    pub fn take_cut(&mut self) -> Option<Cut> {
        self.cut.take()
    }

    /// Sends a message into the first buffer with its tag of the oldest receive that still has unfilled ones. None when
    /// there is none yet, or no room: call again later.
    ///
    /// # Errors
    /// When the connection is broken, the peer breaks the protocol, or the message is longer than 1 GiB.
    pub fn isend(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
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
        let Some(request) = self.requests.first_free() else {
            return self.no_room();
        };
        let receive = filling.entries[buffer].size;
        let size = if planted(Plant::CutIgnored) { message.size } else { message.size.min(receive) };
        filling.parts[buffer] =
            Part { address: message.address, size, local: message.keys.local, host: message.keys.host, request };
        let filled = filling.filled | 1 << buffer;
        if usize::from(filled.count_ones() as u8) == filling.count && !self.post_slot()? {
            return self.no_room();
        }
        if size < message.size && !self.cut_reported {
            self.cut_reported = true;
            self.cut = Some(Cut { tag: message.tag, message: message.size, receive });
        }
        // Only now is it certain that the message goes out: until here nothing was changed that a retry does not redo.
        if self.filling.count != 0 {
            self.filling.filled = filled;
        }
        self.requests.take(request);
        self.requests.sizes[usize::from(request)] = size;
        Ok(Some(SendRequest(request)))
    }

    /// The bytes that were sent, once every active rail's last write is complete; then the request is over.
    ///
    /// # Errors
    /// When the connection is broken, or there is no such request.
    pub fn test(&mut self, request: SendRequest) -> Result<Option<u64>, Error> {
        if let Some(size) = self.requests.release(request.0) {
            return Ok(Some(size));
        }
        if self.error.is_some() {
            return Err(self.broken());
        }
        let moved = self.poll()?;
        if let Some(size) = self.requests.release(request.0) {
            return Ok(Some(size));
        }
        if self.requests.is_free(request.0) {
            return Err(Error::protocol(format!(
                "test was called for send request {}, which is not under way; a request is over once test said done",
                request.0
            )));
        }
        if !moved {
            self.check_link()?;
        }
        Ok(None)
    }

    /// From now on nobody waits for anything: what arrives is thrown away, errors are silent. Called when it is closed.
    pub fn start_linger(&mut self) {
        self.rails.rails.iter_mut().flatten().for_each(|rail| rail.rail.start_linger());
    }

    /// Moves what is left to move; whether everything is out and acknowledged.
    pub fn linger(&mut self) -> bool {
        linger(&mut self.rails, &mut self.completions)
    }

    fn open_slot(&mut self) -> Result<bool, Error> {
        let slot = self.head as u8;
        // The receiver may have opened the slot again before our completions of its last use are here.
        if self.posted[usize::from(slot)].owed != 0 {
            return Ok(false);
        }
        let filling = &mut *self.filling;
        match self.cts.take(slot, &mut filling.entries) {
            Ok(0) => Ok(false),
            Ok(count) => {
                filling.count = count;
                filling.filled = 0;
                Ok(true)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Nothing could be posted. Where the peer's writes and our completions need this side's processor, it works now.
    #[inline]
    fn no_room(&mut self) -> Result<Option<SendRequest>, Error> {
        if !F::ONE_SIDED && self.poll()? {
            return Ok(None);
        }
        self.check_link()?;
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

    #[inline]
    fn lane(&self, rail: usize) -> u8 {
        match self.rails.get(rail).lanes {
            1 => 0,
            lanes => (self.head % u32::from(lanes)) as u8,
        }
    }

    /// Posts the slot that has all its buffers; false when there is no room.
    #[inline]
    fn post_slot(&mut self) -> Result<bool, Error> {
        let size = self.filling.parts[0].size;
        let size_q = self.layout.size_q(size);
        let one_write = self.filling.count == 1
            && self.peer_counts_bytes
            && !self.config.striped
            && size_q != self.layout.all_ones()
            && size <= self.max_write
            && self.config.adaptive_routing_above.is_none_or(|above| size <= above);
        let owed = if one_write { self.post_one(size, size_q)? } else { self.post_chains()? };
        if owed == 0 {
            return Ok(false);
        }
        let filling = &mut *self.filling;
        let posted = &mut self.posted[usize::from(self.head as u8)];
        posted.sequence = self.head;
        posted.owed = owed;
        posted.count = filling.count as u8;
        for (request, part) in posted.requests.iter_mut().zip(&filling.parts[..filling.count]) {
            *request = part.request;
        }
        filling.count = 0;
        self.head = self.head.wrapping_add(1);
        Ok(true)
    }

    /// The common case: one buffer, one write-with-immediate on each active rail. Answers how many, 0 without room.
    #[inline]
    fn post_one(&mut self, size: u64, size_q: u32) -> Result<u16, Error> {
        for rail in bits(self.rails.usable) {
            if self.rails.get(rail).rail.send_room(self.lane(rail)) == 0 {
                return Ok(0);
            }
        }
        if planted(Plant::EmptyNotSent) && size == 0 {
            return Ok(1);
        }
        if let Some(rail) = self.split.whole(size, self.rails.usable) {
            self.post_piece(Piece { rail, offset: 0, bytes: size }, 1 << rail, size_q)?;
            return Ok(1);
        }
        let shares = shared(self.split.split(size, self.rails.usable));
        for piece in shares.pieces() {
            self.post_piece(piece, shares.mask, size_q)?;
        }
        Ok(shares.mask.count_ones() as u16)
    }

    /// One rail's part of the slot's only buffer, as one write-with-immediate.
    #[inline]
    fn post_piece(&mut self, piece: Piece, mask: u8, size_q: u32) -> Result<(), Error> {
        let slot = self.head as u8;
        let (part, entry) = (&self.filling.parts[0], &self.filling.entries[0]);
        let write = Write {
            local: LocalSlice {
                address: part.address.wrapping_add(piece.offset),
                length: piece.bytes as u32,
                key: part.local[piece.rail],
            },
            remote: RemoteSlice { address: entry.address + piece.offset, key: entry.keys[key_of(piece.rail)] },
            immediate: Some(self.layout.encode(Immediate { slot, mask: said_mask(mask), size_q })),
            signalled: true,
            host: part.host,
            id: Work::Data(self.head).id(),
        };
        let lane = self.lane(piece.rail);
        let state = self.rails.get_mut(piece.rail);
        if let Err(error) = state.rail.post(lane, &[write]) {
            return Err(self.post_failed(piece.rail, error));
        }
        state.info.counters.count_data(1, piece.bytes);
        Ok(())
    }

    /// Every other case: chains of plain writes that end in a write-with-immediate, and where the immediate cannot say
    /// the sizes, the record on the leader. Answers how many signalled writes were posted, 0 without room.
    fn post_chains(&mut self) -> Result<u16, Error> {
        let count = self.filling.count;
        let pieces = |size: u64| size.div_ceil(self.max_write).max(1) as u32;
        let longest = self.filling.parts[..count].iter().map(|part| pieces(part.size)).sum::<u32>() + 1;
        for rail in bits(self.rails.usable) {
            let state = self.rails.get(rail);
            let mut lanes = if self.config.striped { 0..state.lanes } else { self.lane(rail)..self.lane(rail) + 1 };
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
            let lanes = if all_lanes { self.rails.get(rail).lanes } else { 1 };
            let first_lane = if all_lanes { 0 } else { self.lane(rail) };
            for lane in 0..lanes {
                let bytes = self.build_chain(&shares, rail, lane, lanes);
                let record = in_record && rail == leader && lane == 0;
                self.end_chain(rail, slot, record, in_record, immediate);
                let state = self.rails.rails[rail].as_mut().expect("active rails are usable");
                if let Err(error) = state.rail.post(first_lane + lane, &self.chain) {
                    return Err(self.post_failed(rail, error));
                }
                state.info.counters.count_data(self.chain.len() as u64, bytes);
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
    #[inline]
    fn poll(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for rail in bits(self.rails.usable) {
            let count = self.rails.get_mut(rail).rail.poll(&mut self.completions);
            for index in 0..count {
                match self.completions[index] {
                    Completion::Sent { id } => self.handle_sent(id),
                    _ => return Err(self.handle_other(rail, index)),
                }
            }
            moved |= count > 0;
        }
        Ok(moved)
    }

    /// A signalled write is complete.
    #[inline]
    fn handle_sent(&mut self, id: WorkId) {
        let Some(Work::Data(sequence)) = Work::from_id(id) else {
            panic!("a sender got a completion of work that it never posts: {:#x}", id.0);
        };
        let sequence = if planted(Plant::SequenceWrapped) { sequence & !0x80 } else { sequence };
        let posted = &mut self.posted[usize::from(sequence as u8)];
        assert!(
            posted.sequence == sequence && posted.owed > 0 || !checks(),
            "a completion came for slot {sequence:#x}, of which none is owed"
        );
        posted.owed = posted.owed.saturating_sub(1);
        if posted.owed == 0 || planted(Plant::SendDoneEarly) {
            posted.requests[..usize::from(posted.count)].iter().for_each(|request| self.requests.finish(*request));
        }
    }

    /// A completion that ends the connection.
    #[cold]
    fn handle_other(&mut self, rail: usize, index: usize) -> Error {
        let error = match std::mem::replace(&mut self.completions[index], Completion::EMPTY) {
            Completion::Failed { lane, error, .. } => self.rails.failure(rail, lane, &error, &self.peer),
            other => Error::protocol(format!(
                "{} to {}: an immediate came to the sending end ({other}); the peer breaks the protocol",
                self.rails.name(rail),
                self.peer
            )),
        };
        self.fail(error)
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.error.get_or_insert_with(|| Box::new(error)).as_ref().clone()
    }

    #[cold]
    fn broken(&self) -> Error {
        *self.error.clone().expect("asked only when there is one")
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

/// Lane `lane`'s part, of `lanes`, of a rail's piece: offset and bytes, in multiples of 128 but for the end.
fn lane_part(offset: u64, bytes: u64, lane: u8, lanes: u8) -> (u64, u64) {
    let unit = if planted(Plant::LanesNot128) { 8 } else { SPLIT_UNIT };
    let each = bytes.div_ceil(u64::from(lanes)).next_multiple_of(unit);
    let start = (each * u64::from(lane)).min(bytes);
    (offset + start, (bytes - start).min(each))
}

/// Moves what is left on the rails of a closing connection; whether everything is out.
pub(crate) fn linger<F: Fabric>(rails: &mut Rails<F>, completions: &mut [Completion]) -> bool {
    rails.rails.iter_mut().flatten().fold(true, |drained, state| {
        state.rail.poll(completions);
        drained & state.rail.is_drained()
    })
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
