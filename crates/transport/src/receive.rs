//! The receiving end of a connection: from `irecv` and its CTS to the immediates of every active rail.

use std::sync::Arc;

use railweave_fabric::{Completion, Fabric, LocalSlice, MAX_RAILS, PostError, Rail, Region, RemoteSlice, Write};
use railweave_policy::Split;

use crate::connection::{Rails, Work, bits, completion_buffer};
use crate::cts::{self, CtsEntry, ENTRY_BYTES};
use crate::flush::{FLUSHES, Flushes};
use crate::handshake::{CTS_SIGNAL_EVERY, Depths};
use crate::plant::{Plant, attributed, checks, planted};
use crate::record::Records;
use crate::send::{linger, stripes};
use crate::{
    ConnectionConfig, Error, Immediate, ImmediateLayout, Link, MAX_BUFFERS, MAX_MESSAGE_BYTES, MemoryKeys, RailInfo,
    SLOTS, SPLIT_UNIT,
};

/// Generic receives are posted when at least this many are missing.
const REFILL_BATCH: u32 = 32;

/// A buffer to receive into.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Most bytes that may be received, at most 1 GiB.
    pub size: u64,
    /// Which send of a grouped receive goes here.
    pub tag: u32,
    /// Keys of the memory.
    pub keys: &'a MemoryKeys,
}

/// A receive or a flush that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvRequest(u16);

impl RecvRequest {
    /// How many requests a connection has, flushes included.
    pub const COUNT: usize = SLOTS + FLUSHES;

    /// Its number, below [`Self::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The request with this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn from_index(index: usize) -> Self {
        assert!(index < Self::COUNT, "a connection has {} receive requests", Self::COUNT);
        Self(index as u16)
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// There was nothing to flush.
    Nothing,
    /// It is under way.
    Pending(RecvRequest),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// CTS is out; the application waits.
    Open,
    /// CTS is out; the application was told already that it is done.
    Early,
    /// Everything is there; the application does not know yet.
    Complete,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    state: State,
    /// The completion may be reported before it is there.
    optional: bool,
    count: u8,
    /// Rails that carry data: 0 until the first immediate says so.
    expected: u8,
    seen: u8,
    size_q: u32,
    bytes: u64,
    first_entry: u64,
    lanes_seen: [u16; MAX_RAILS],
    capacities: [u64; MAX_BUFFERS],
    sizes: [u64; MAX_BUFFERS],
    /// Addresses of buffers that may need a flush; 0 for host memory.
    addresses: [u64; MAX_BUFFERS],
}

impl Slot {
    /// Takes it for a new receive; its sizes and buffers are written by whoever knows them.
    #[inline]
    fn open(&mut self, count: u8, optional: bool, first_entry: u64) {
        self.state = State::Open;
        self.optional = optional;
        self.count = count;
        self.expected = 0;
        self.seen = 0;
        self.size_q = 0;
        self.bytes = 0;
        self.first_entry = first_entry;
        self.lanes_seen = [0; MAX_RAILS];
    }

    /// What is wrong with an immediate of this slot that came on a lane of a rail, where the rail uses `lanes` lanes.
    #[inline]
    fn wrong_with(&self, immediate: &Immediate, usable: u8, rail: usize, lane: u8, lanes: u32) -> Option<&'static str> {
        let seen = self.lanes_seen[rail];
        if !matches!(self.state, State::Open | State::Early) {
            Some("the slot has no open receive")
        } else if immediate.mask & !usable != 0 {
            Some("the mask names a rail that this connection does not have")
        } else if immediate.mask & 1 << rail == 0 {
            Some("the mask lacks the rail that it came on")
        } else if self.expected != 0 && self.expected != immediate.mask {
            Some("an earlier immediate of the slot had another mask")
        } else if self.expected != 0 && self.size_q != immediate.size_q {
            Some("an earlier immediate of the slot had another size_q")
        } else if if lanes == 1 { seen != 0 } else { seen & 1 << lane != 0 || seen.count_ones() >= lanes } {
            Some("the rail has spoken for this slot before")
        } else {
            None
        }
    }
}

/// The pool of generic receives of one rail.
#[derive(Clone, Copy, Default)]
struct Pool {
    depth: u32,
    posted: u32,
    /// Immediates that open slots may still be owed.
    reserved: u32,
    /// Immediates that one slot may bring.
    per_slot: u32,
}

/// What the handshake puts a receiving connection together from.
pub(crate) struct ReceiveParts<F: Fabric> {
    pub(crate) config: ConnectionConfig,
    pub(crate) rails: Rails<F>,
    pub(crate) weights: [u32; MAX_RAILS],
    pub(crate) cts_shadow: Arc<Region>,
    pub(crate) cts_shadow_keys: [u32; MAX_RAILS],
    pub(crate) peer_cts: u64,
    pub(crate) peer_cts_keys: [u32; MAX_RAILS],
    pub(crate) records: Arc<Region>,
    pub(crate) peer: String,
    pub(crate) link: Arc<Link>,
}

/// The receiving end of a connection.
pub struct RecvConnection<F: Fabric> {
    rails: Rails<F>,
    layout: ImmediateLayout,
    split: Split,
    config: ConnectionConfig,
    slots: Box<[Slot; SLOTS]>,
    /// Sequence number of the next receive.
    head: u32,
    /// Oldest slot whose CTS entries may not be written over yet.
    oldest: u32,
    /// Number of the next CTS entry.
    next_entry: u64,
    /// Receives whose application waits.
    waiting: u32,
    /// Rails that may still owe the peer an acknowledgement.
    owing: u8,
    pools: [Pool; MAX_RAILS],
    unsignalled_cts: [u32; MAX_RAILS],
    cts_shadow: Arc<Region>,
    cts_shadow_keys: [u32; MAX_RAILS],
    peer_cts: u64,
    peer_cts_keys: [u32; MAX_RAILS],
    records: Records,
    completions: [Completion; crate::connection::POLL_BATCH],
    flushes: Flushes,
    error: Option<Box<Error>>,
    link: Arc<Link>,
    peer: String,
}

impl<F: Fabric> RecvConnection<F> {
    pub(crate) fn new(parts: ReceiveParts<F>) -> Self {
        let mut pools = [Pool::default(); MAX_RAILS];
        for (index, rail) in parts.rails.iter() {
            let role = railweave_fabric::Role::Receiver;
            let depth = Depths::new(role, rail.lanes, parts.config.striped, rail.rail.max_write()).receive;
            let per_slot = if parts.config.striped { u32::from(rail.lanes) } else { 1 };
            pools[index] = Pool { depth, posted: 0, reserved: 0, per_slot };
        }
        Self {
            layout: ImmediateLayout::new(parts.rails.count),
            split: Split::new(parts.weights, parts.config.split_min),
            rails: parts.rails,
            config: parts.config,
            slots: Box::new([Slot::default(); SLOTS]),
            head: 0,
            oldest: 0,
            next_entry: 0,
            waiting: 0,
            owing: 0,
            pools,
            unsignalled_cts: [0; MAX_RAILS],
            cts_shadow: parts.cts_shadow,
            cts_shadow_keys: parts.cts_shadow_keys,
            peer_cts: parts.peer_cts,
            peer_cts_keys: parts.peer_cts_keys,
            records: Records::new(parts.records),
            completions: completion_buffer(),
            flushes: Flushes::new(),
            error: None,
            link: parts.link,
            peer: parts.peer,
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

    /// Receives into a group of 1 to 8 buffers. None when there is no room: call again later.
    ///
    /// With `optional`, [`Self::test`] may say that it is done before the data is there
    /// (`NCCL_NET_OPTIONAL_RECV_COMPLETION`); fabrics that need this side's processor to place data ignore it, because
    /// a receive that nobody tests would never be placed.
    ///
    /// # Errors
    /// When the connection is broken, or the buffers are not 1 to 8 of at most 1 GiB each.
    pub fn irecv(&mut self, buffers: &[Incoming<'_>], optional: bool) -> Result<Option<RecvRequest>, Error> {
        if self.error.is_some() {
            return Err(self.broken());
        }
        if !(1..=MAX_BUFFERS).contains(&buffers.len()) {
            return Err(wrong_count(buffers.len()));
        }
        if let Some(long) = buffers.iter().find(|buffer| buffer.size > MAX_MESSAGE_BYTES) {
            return Err(too_long(long.size));
        }
        let index = self.head as u8;
        let taken = self.slots[usize::from(index)].state != State::Free && !planted(Plant::SlotReusedEarly);
        if taken || !self.entries_fit(buffers.len()) {
            return self.no_room();
        }
        let Some(rail) = self.split.cts_rail(self.head, self.rails.usable) else {
            return self.no_room();
        };
        // Entries that go round the ring's end take a second write.
        if self.rails.get(rail).rail.send_room(0) < 2 || !self.reserve() {
            return self.no_room();
        }
        if self.head.wrapping_sub(self.oldest) == SLOTS as u32 && !planted(Plant::OldestForgotten) {
            // The slot that is opened again was the oldest one's: the receive after it is the oldest now.
            self.oldest = self.oldest.wrapping_add(1);
        }
        let slot = &mut self.slots[usize::from(index)];
        slot.open(buffers.len() as u8, optional && F::ONE_SIDED, self.next_entry);
        for (number, buffer) in buffers.iter().enumerate() {
            slot.capacities[number] = buffer.size;
            slot.addresses[number] = if buffer.keys.host { 0 } else { buffer.address };
            let entry = CtsEntry {
                address: buffer.address,
                size: buffer.size,
                tag: buffer.tag,
                slot: index,
                buffer: number as u8,
                buffers: buffers.len() as u8,
                keys: buffer.keys.remote,
            };
            entry.store(&self.cts_shadow, self.next_entry + number as u64);
        }
        self.post_cts(rail, buffers.len() as u64)?;
        self.waiting += 1;
        self.head = self.head.wrapping_add(1);
        Ok(Some(RecvRequest(u16::from(index))))
    }

    /// The exact sizes of the buffers, once everything is there; then the request is over. A flush has no sizes. A
    /// receive whose completion is optional may be over before; then the sizes are those that it was posted with.
    ///
    /// With `may_owe` a receive may be over while this end still [owes](Self::owes) the peer its acknowledgement: the
    /// caller promises to call [`Self::acknowledge`] (or anything else on this connection that posts or polls) before it
    /// waits for anything. Without, it is over only once the acknowledgement is on its way.
    ///
    /// # Errors
    /// When the connection is broken, the peer breaks the protocol, or there is no such request.
    pub fn test(&mut self, request: RecvRequest, may_owe: bool) -> Result<Option<&[u64]>, Error> {
        if usize::from(request.0) >= SLOTS {
            return Ok(self.test_flush(usize::from(request.0) - SLOTS)?.then_some(&[]));
        }
        let index = usize::from(request.0);
        if self.slots[index].state != State::Complete {
            if self.error.is_some() {
                return Err(self.broken());
            }
            let moved = self.poll()?;
            match (self.slots[index].state, self.slots[index].optional) {
                (State::Complete, _) => {}
                (State::Open, true) => {
                    let early = if planted(Plant::OptionalFreesSlot) { State::Free } else { State::Early };
                    self.slots[index].state = early;
                    self.waiting -= 1;
                    return Ok(Some(&self.slots[index].capacities[..usize::from(self.slots[index].count)]));
                }
                (State::Open, false) => {
                    if !moved {
                        self.check_link()?;
                    }
                    return Ok(None);
                }
                (State::Free | State::Early, _) => return Err(not_under_way(index)),
            }
        }
        // As long as others wait, the caller comes back; who has nothing to wait for may never do so.
        if (self.waiting == 0 || !may_owe) && !self.acknowledge() {
            return Ok(None);
        }
        self.remember_rails(index);
        let slot = &mut self.slots[index];
        slot.state = State::Free;
        Ok(Some(&slot.sizes[..usize::from(slot.count)]))
    }

    /// Makes what the rails wrote into these buffers visible to their owner. Only GPU memory with bytes in it needs
    /// that.
    ///
    /// # Errors
    /// When the connection is broken, or more flushes are outstanding than NCCL has requests.
    pub fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        if self.error.is_some() {
            return Err(self.broken());
        }
        let Some(index) = self.flushes.begin(buffers, self.rails.usable)? else {
            return Ok(Flushed::Nothing);
        };
        self.post_flush(index)?;
        Ok(Flushed::Pending(RecvRequest((SLOTS + index) as u16)))
    }

    /// From now on nobody waits for anything: what arrives is thrown away, errors are silent. Called when it is closed.
    pub fn start_linger(&mut self) {
        self.rails.rails.iter_mut().flatten().for_each(|rail| rail.rail.start_linger());
    }

    /// Moves what is left to move; whether everything is out and acknowledged.
    pub fn linger(&mut self) -> bool {
        linger(&mut self.rails, &mut self.completions)
    }

    /// Whether the ring of CTS entries has room for `count` more.
    #[inline]
    fn entries_fit(&mut self, count: usize) -> bool {
        loop {
            if self.oldest == self.head {
                return true;
            }
            let oldest = &self.slots[usize::from(self.oldest as u8)];
            let needed = self.next_entry + count as u64 - oldest.first_entry;
            if needed <= cts::ENTRIES || planted(Plant::CtsRingOverwritten) {
                return true;
            }
            if matches!(oldest.state, State::Open | State::Early) {
                return false;
            }
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// Reserves the immediates that one more slot may bring, on every rail; false when receives are short.
    #[inline]
    fn reserve(&mut self) -> bool {
        for rail in bits(self.rails.usable) {
            let pool = &self.pools[rail];
            if pool.posted < pool.reserved + pool.per_slot {
                self.refill(rail);
                let pool = &self.pools[rail];
                if pool.posted < pool.reserved + pool.per_slot && !planted(Plant::ReceiveNotReserved) {
                    return false;
                }
            }
        }
        for rail in bits(self.rails.usable) {
            self.pools[rail].reserved += self.pools[rail].per_slot;
        }
        true
    }

    /// Posts the generic receives that are missing, as far as there is room. A rail that is broken says why in a
    /// completion, and until that comes there is nothing to say: a poll refills, so it must not be asked for one here.
    fn refill(&mut self, rail: usize) {
        let pool = &mut self.pools[rail];
        if let Ok(posted) = self.rails.get_mut(rail).rail.post_receives(pool.depth - pool.posted) {
            pool.posted += posted;
        }
    }

    /// Sends the entries of one slot, which stand in the shadow already.
    #[inline]
    fn post_cts(&mut self, rail: usize, count: u64) -> Result<(), Error> {
        let first = self.next_entry;
        self.next_entry += count;
        let until_end = cts::ENTRIES - first % cts::ENTRIES;
        self.unsignalled_cts[rail] += 1;
        let signalled = self.unsignalled_cts[rail] == CTS_SIGNAL_EVERY && !planted(Plant::CtsNeverSignalled);
        if signalled {
            self.unsignalled_cts[rail] = 0;
        }
        let id = Work::Cts(self.next_entry as u32).id();
        let write = |from: u64, entries: u64, signalled: bool| Write {
            local: LocalSlice {
                address: self.cts_shadow.address() + cts::offset(from) as u64,
                length: (entries * ENTRY_BYTES as u64) as u32,
                key: self.cts_shadow_keys[rail],
            },
            remote: RemoteSlice {
                address: self.peer_cts.wrapping_add(cts::offset(from) as u64),
                key: self.peer_cts_keys[rail],
            },
            immediate: None,
            signalled,
            host: true,
            id,
        };
        let state = self.rails.rails[rail].as_mut().expect("CTS goes over a usable rail");
        let posted = if count <= until_end {
            state.rail.post(0, &[write(first, count, signalled)])
        } else {
            state
                .rail
                .post(0, &[write(first, until_end, false), write(first + until_end, count - until_end, signalled)])
        };
        state.info.counters.count_cts();
        posted.map_err(|error| self.post_failed(rail, error))
    }

    /// Nothing could be posted: what arrives meanwhile makes room.
    fn no_room(&mut self) -> Result<Option<RecvRequest>, Error> {
        if !self.poll()? {
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

    /// Takes what the rails have to say; whether there was anything.
    #[inline]
    fn poll(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for rail in bits(self.rails.usable) {
            let count = self.rails.get_mut(rail).rail.poll(&mut self.completions);
            for index in 0..count {
                match self.completions[index] {
                    Completion::Received { lane, immediate, bytes } => {
                        if !F::ONE_SIDED {
                            self.owing |= 1 << rail;
                        }
                        self.handle_immediate(attributed(rail, self.rails.usable), lane, immediate, bytes)?;
                    }
                    Completion::Sent { id } => self.handle_sent(rail, id),
                    Completion::Failed { .. } => return Err(self.handle_failure(rail, index)),
                }
            }
            moved |= count > 0;
            if self.pools[rail].depth - self.pools[rail].posted >= REFILL_BATCH {
                self.refill(rail);
            }
        }
        Ok(moved)
    }

    #[cold]
    fn handle_failure(&mut self, rail: usize, index: usize) -> Error {
        let failure = std::mem::replace(&mut self.completions[index], Completion::EMPTY);
        let Completion::Failed { lane, error, .. } = failure else {
            unreachable!("asked for failures only");
        };
        let error = self.rails.failure(rail, lane, &error, &self.peer);
        self.fail(error)
    }

    /// Whether the peer may be waiting for acknowledgements that were put off.
    #[inline]
    pub fn owes(&self) -> bool {
        !F::ONE_SIDED && self.owing != 0
    }

    /// Sends the acknowledgements that rails have put off; whether all are on their way.
    #[inline]
    pub fn acknowledge(&mut self) -> bool {
        if !F::ONE_SIDED {
            for rail in bits(self.owing) {
                if self.rails.get_mut(rail).rail.acknowledge() {
                    self.owing &= !(1 << rail);
                }
            }
        }
        F::ONE_SIDED || self.owing == 0
    }

    fn handle_sent(&mut self, rail: usize, id: railweave_fabric::WorkId) {
        match Work::from_id(id) {
            Some(Work::Cts(_)) => {}
            Some(Work::Flush { request, generation }) => {
                self.flushes.handle_sent(usize::from(request), generation, rail);
            }
            _ => panic!("a receiver got a completion of work that it never posts: {:#x}", id.0),
        }
    }

    /// One rail (or one lane of it) has spoken for a slot.
    #[inline]
    fn handle_immediate(&mut self, rail: usize, lane: u8, bits: u32, bytes: u32) -> Result<(), Error> {
        let all_ones = self.layout.all_ones();
        let immediate = self.layout.decode(bits);
        let pool = &mut self.pools[rail];
        pool.posted = pool.posted.saturating_sub(1);
        self.rails.get(rail).info.counters.count_received(u64::from(bytes));
        let slot = &mut self.slots[usize::from(immediate.slot)];
        let lanes = match self.config.striped && stripes(immediate.size_q, all_ones) {
            true if planted(Plant::DoneBeforeLastLane) => 1,
            true => u32::from(self.rails.get(rail).lanes),
            false => 1,
        };
        if let Some(what) = slot.wrong_with(&immediate, self.rails.usable, rail, lane, lanes)
            && checks()
        {
            return Err(self.violation(rail, bits, what));
        }
        if slot.expected == 0 {
            slot.expected = immediate.mask;
            slot.size_q = immediate.size_q;
        }
        slot.lanes_seen[rail] |= 1 << lane;
        slot.bytes += u64::from(bytes);
        if lanes == 1 || slot.lanes_seen[rail].count_ones() == lanes {
            slot.seen |= 1 << rail;
        }
        let all_seen = slot.seen == slot.expected || planted(Plant::DoneBeforeLastRail);
        if all_seen { self.complete(rail, bits) } else { Ok(()) }
    }

    /// Every active rail of the slot has spoken.
    #[inline]
    fn complete(&mut self, rail: usize, bits_of: u32) -> Result<(), Error> {
        let index = self.layout.decode(bits_of).slot;
        let slot = &mut self.slots[usize::from(index)];
        let count = usize::from(slot.count);
        let in_record = slot.size_q == self.layout.all_ones();
        let record = if in_record { self.records.take(index, count) } else { None };
        let wrong = (in_record && record.is_none())
            || (!in_record && (count > 1 || slot.bytes.div_ceil(SPLIT_UNIT) != u64::from(slot.size_q)));
        if wrong && checks() {
            let what = match (in_record, count) {
                (true, _) => "no completion record was written for the slot".to_owned(),
                (false, 2..) => "a grouped receive needs a completion record".to_owned(),
                _ => contradiction(slot.bytes),
            };
            return Err(self.violation(rail, bits_of, &what));
        }
        let slot = &mut self.slots[usize::from(index)];
        match record {
            Some(sizes) => slot.sizes = sizes,
            None => slot.sizes[0] = slot.bytes + u64::from(planted(Plant::SizeOffByOne)),
        }
        if (0..count).any(|buffer| slot.sizes[buffer] > slot.capacities[buffer]) && checks() {
            let what = format!("sizes {:?} exceed the buffers' {:?}", &slot.sizes[..count], &slot.capacities[..count]);
            return Err(self.violation(rail, bits_of, &what));
        }
        if slot.state == State::Early {
            slot.state = State::Free;
        } else {
            slot.state = State::Complete;
            self.waiting -= 1;
        }
        if planted(Plant::ReservationLeaked) && count > 1 {
            return Ok(());
        }
        for rail in bits(self.rails.usable) {
            self.pools[rail].reserved -= self.pools[rail].per_slot;
        }
        Ok(())
    }

    /// Keeps which rails wrote into a slot's GPU buffers: NCCL flushes buffers, not requests.
    #[inline]
    fn remember_rails(&mut self, index: usize) {
        let slot = &self.slots[index];
        for address in &slot.addresses[..usize::from(slot.count)] {
            if *address != 0 {
                self.flushes.remember(*address, slot.expected);
            }
        }
    }

    fn post_flush(&mut self, index: usize) -> Result<(), Error> {
        match self.flushes.post(index, &mut self.rails) {
            Ok(()) => Ok(()),
            Err((rail, error)) => Err(self.post_failed(rail, error)),
        }
    }

    fn test_flush(&mut self, index: usize) -> Result<bool, Error> {
        if self.error.is_some() {
            return Err(self.broken());
        }
        if !self.flushes.is_under_way(index) {
            return Err(not_under_way(SLOTS + index));
        }
        let moved = self.poll()?;
        self.post_flush(index)?;
        if self.flushes.finish(index) {
            return Ok(true);
        }
        if !moved {
            self.check_link()?;
        }
        Ok(false)
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.error.get_or_insert_with(|| Box::new(error)).as_ref().clone()
    }

    #[cold]
    fn broken(&self) -> Error {
        *self.error.clone().expect("asked only when there is one")
    }

    /// The peer broke the protocol, which ends the connection.
    #[cold]
    fn violation(&mut self, rail: usize, bits: u32, what: &str) -> Error {
        let immediate = self.layout.decode(bits);
        let error = Error::protocol(format!(
            "{} to {}: immediate {bits:#010x} (slot {}, mask {:#b}, size_q {:#x}): {what}; the peer breaks the protocol",
            self.rails.name(rail),
            self.peer,
            immediate.slot,
            immediate.mask,
            immediate.size_q
        ));
        self.fail(error)
    }

    /// Work could not be posted although there was room. The lane's completion says more than its refusal.
    #[cold]
    fn post_failed(&mut self, rail: usize, error: PostError) -> Error {
        if self.error.is_none()
            && let Err(reason) = self.poll()
        {
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
fn contradiction(bytes: u64) -> String {
    format!(
        "size_q contradicts the {bytes} bytes that arrived (an adapter that does not report byte counts needs \
         RAILWEAVE_BYTE_COUNTS=0)"
    )
}

#[cold]
fn wrong_count(count: usize) -> Error {
    Error::protocol(format!("irecv was called with {count} buffers, allowed are 1 to {MAX_BUFFERS} (maxRecvs)"))
}

#[cold]
fn too_long(size: u64) -> Error {
    Error::configuration(format!(
        "a receive of {size} bytes is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device"
    ))
}

#[cold]
fn not_under_way(request: usize) -> Error {
    Error::protocol(format!(
        "test was called for receive request {request}, which is not under way; a request is over once test said done"
    ))
}
