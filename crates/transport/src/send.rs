//! The sending end of a connection: from `isend` to the completion of every rail's last write.

mod chains;
mod filling;
mod listening;
mod meter;
mod rail_stages;
mod recovery;
mod refusals;
mod repairs;
mod reports;
mod slot_shares;
mod watched;

use std::sync::Arc;

use railweave_fabric::{
    Fabric, LaneId, LocalSlice, MAX_RAILS, Part, Rail, RailSet, Region, RemoteSlice, WorkId, Write,
};
use railweave_policy::{Order, Piece, Shares};

use self::filling::Filling;
use self::meter::Meter;
use self::rail_stages::Recovery;
use self::repairs::Repairs;
use self::reports::InProgress;
use self::slot_shares::SlotShares;
pub use self::watched::PostedSlot;
use crate::connection::{Core, both_ends};
use crate::cts::CtsStream;
use crate::depths::longest_chain;
use crate::immediate::units;
use crate::measured::Measured;
use crate::rails::Rails;
use crate::record::RecordSource;
use crate::requests::{REQUESTS, Requests, Source};
use crate::sequence::Sequence;
use crate::work::WorkKind;
use crate::{
    ConnectionConfig, Error, Event, Fate, GRANULE, Immediate, ImmediateLayout, MAX_MESSAGE_BYTES, MemoryKeys, Misuse,
    Outgoing, OwnWeights, RailInfo, Slot, Steering, Truncated,
};

/// The message size in bytes from which a connection with striped lanes uses all lanes of a rail for one message.
pub(crate) const STRIPE_FROM: u64 = 64 * 1024;

/// A send in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest(u8);

impl SendRequest {
    /// The number of send requests of a connection.
    pub const COUNT: usize = REQUESTS;

    /// Returns its index, below [`Self::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the request with this index.
    ///
    /// # Panics
    /// If `index` is not below [`Self::COUNT`].
    #[inline]
    pub fn from_index(index: usize) -> Self {
        assert!(index < Self::COUNT, "a connection has {} send requests", Self::COUNT);
        Self(index as u8)
    }
}

/// The parts from which the handshake makes a sending connection.
pub(crate) struct SendParts<F: Fabric> {
    pub(crate) config: ConnectionConfig,
    pub(crate) rails: Rails<F>,
    pub(crate) order: Order,
    pub(crate) weights: OwnWeights,
    pub(crate) clock: F::Clock,
    pub(crate) cts: Arc<Region>,
    pub(crate) records: Arc<Region>,
    pub(crate) record_keys: [u32; MAX_RAILS],
    pub(crate) peer_records: u64,
    pub(crate) peer_record_keys: [u32; MAX_RAILS],
    pub(crate) peer_counts_bytes: bool,
    pub(crate) peer: String,
    pub(crate) fate: Arc<Fate>,
}

// tidy: SendConnection's methods call each other across files: chains.rs has the slow path of `isend`, which stays out
// of the fast path's way.
/// The sending end of a connection.
///
/// # Kinds of methods
/// * **Data path**: [`isend`](Self::isend) takes a message, [`test`](Self::test) tells when it has been sent. They
///   never block or lock, and allocate only for an error or an event. They read the fabric's
///   [`Clock`](railweave_fabric::Clock) once for a message that is measured, and once for a poll that finds the end
///   of one.
/// * **Events**: [`poll_event`](Self::poll_event) returns what is worth a line in a log although nothing failed.
/// * **Facts**: [`ConnectionEnd`](crate::ConnectionEnd) names the peer, the rails with their counters, and the parts of
///   this host that they use.
/// * **End**: [`start_linger`](crate::ConnectionEnd::start_linger) and [`linger`](crate::ConnectionEnd::linger).
///
/// Nothing moves by itself. A call that returns `None` has polled the rails if the fabric needs that; the caller just
/// retries. On a fabric whose writes need this side's processor ([`ONE_SIDED`](railweave_fabric::Fabric::ONE_SIDED) is
/// false), only such calls move anything.
///
/// # Order of calls
/// 1. Call `isend` until it returns a request. `None` means that nothing has changed: the receiver has not posted a
///    receive with this tag yet, or there is no room. The caller may then try the same message later, or another one.
/// 2. Call `test` with that request until it returns the size. The request has ended then, and another message may get
///    its index; testing it again is an error. Requests end in any order. There are [`SendRequest::COUNT`] of them.
/// 3. Call `poll_event` after an `isend` that returned a request.
/// 4. Call `start_linger` once, when the application closes the connection, and then `linger` until it returns true or
///    the caller has waited long enough. No other call may follow `start_linger`. Then drop the connection; the peer
///    never gets what is still unsent.
///
/// Messages are matched to receives in the order of `irecv` at the other end, and to the buffers of a group by tag. The
/// messages of a group go out together, once the last of them has been given to `isend`.
///
/// # Threads
/// The connection may move between threads, but only one thread at a time may use it: its calls take `&mut self`. Any
/// thread may use three parts of it at any time: its [`Fate`], its [`Steering`] (one at a time) and the
/// [`RailCounters`](crate::RailCounters) of its rails.
///
/// # Memory
/// A message's bytes belong to the connection from the `isend` that returns a request until `test` returns its size:
/// until then they must stay registered and unchanged. Its [`MemoryKeys`] are only read during the call. After
/// `start_linger` all of this memory may be released; a message that is unsent by then may be lost.
///
/// # A lost peer or adapter
/// Another part of the process may learn that the peer is gone, and report it with [`Fate::set_lost`]; or that an
/// adapter of this host failed ([`Fate::set_failed`]). Neither stops what can still finish by itself: a call looks at
/// the fate only if it would otherwise return `None` and its polls brought nothing. Then it returns the reported
/// reason, and the connection is broken. So a lost peer is no error as long as nothing waits for it.
///
/// # Errors
/// If a call is itself wrong ([`Misuse`]: a message that is too long, a request that has ended), it is refused and
/// changes nothing. Any other error breaks the connection: every later call returns the same error, except `test` of a
/// request that was done before. [`Fault`](railweave_fabric::Fault) tells whose fault it is; the message names the
/// rail, the peer and what to try.
///
/// # Example
/// In a simulated world, where time passes only when the example lets it (`crates/transport/tests/scenarios/pair.rs`
/// sets it up):
/// ```
/// # mod pair { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/pair.rs")); }
/// # fn main() -> Result<(), railweave_transport::Error> {
/// use pair::{OneSidedPair, Setup};
/// use railweave_transport::{ConnectionEnd, Outgoing};
///
/// let mut pair = OneSidedPair::new(Setup::default());
/// let (address, keys) = (pair.source.region.address(), &pair.source.keys);
/// let message = Outgoing { address, size: 8, tag: 0, keys };
/// assert_eq!(pair.sender.isend(&message)?, None, "the peer has posted no receive");
///
/// pair.receiver.irecv(&[pair.target.buffer(8, 0)], false)?;
/// pair.drive();
/// let request = pair.sender.isend(&message)?.expect("its CTS has arrived");
/// assert_eq!(pair.sender.test(request)?, None, "from here on the bytes belong to the connection");
/// pair.drive();
/// assert_eq!(pair.sender.test(request)?, Some(8), "and now they are the application's again");
/// assert!(pair.sender.test(request).is_err(), "the request has ended");
///
/// pair.sender.start_linger();
/// assert!(pair.sender.linger(), "everything is out");
/// # Ok(())
/// # }
/// ```
pub struct SendConnection<F: Fabric> {
    core: Core<F>,
    layout: ImmediateLayout,
    cts: CtsStream,
    progress: InProgress<F::Clock>,
    /// The next receive to fill.
    head: Sequence,
    filling: Box<Filling>,
    /// The splits of the slots' messages.
    shares: SlotShares,
    recovery: Box<Recovery<F>>,
    // Most messages need none of the fields from here on.
    /// True if the receiver's completions carry byte counts.
    peer_counts_bytes: bool,
    max_write: u64,
    config: ConnectionConfig,
    chain: Vec<Write>,
    records: RecordSource,
    record_keys: [u32; MAX_RAILS],
    peer_records: u64,
    peer_record_keys: [u32; MAX_RAILS],
    truncated: Option<Truncated>,
    truncation_reported: bool,
    /// The receive that a message last waited for.
    waited: Sequence,
}

impl<F: Fabric> SendConnection<F> {
    pub(crate) fn new(parts: SendParts<F>) -> Self {
        let max_write = parts.rails.iter().map(|connected| u64::from(connected.rail.max_write())).min().unwrap_or(1);
        let writes = MAX_MESSAGE_BYTES.div_ceil(max_write) as u32;
        let layout = ImmediateLayout::new(parts.rails.count());
        let one_write = parts.peer_counts_bytes && !parts.config.striped;
        let longest = max_write
            .min(parts.config.adaptive_routing_above.unwrap_or(u64::MAX))
            .min(u64::from(layout.all_ones() - 1) * GRANULE);
        // Below this size, one write-with-immediate per active rail carries a message.
        let fast_below = if one_write { longest + 1 } else { 0 };
        Self {
            layout,
            shares: SlotShares::new(parts.rails.count()),
            progress: InProgress {
                requests: Requests::new(Arc::clone(&parts.fate), parts.config.striped),
                repairs: Repairs::default(),
                meter: Meter::new(
                    &parts.order,
                    parts.config.split_min,
                    parts.clock,
                    parts.rails.count(),
                    parts.rails.usable(),
                ),
            },
            core: Core::new(
                parts.rails,
                fast_below,
                parts.peer,
                parts.fate,
                Arc::new(Steering::new(&parts.order, parts.weights)),
                &parts.config,
            ),
            cts: CtsStream::new(parts.cts, u64::from(parts.config.first_number)),
            head: Sequence::new(parts.config.first_number),
            waited: Sequence::new(parts.config.first_number).before(1),
            filling: Box::default(),
            recovery: Box::new(Recovery::new(parts.config.rail_pause)),
            peer_counts_bytes: parts.peer_counts_bytes,
            max_write,
            config: parts.config,
            chain: Vec::with_capacity(longest_chain(writes) as usize),
            records: RecordSource::new(parts.records),
            record_keys: parts.record_keys,
            peer_records: parts.peer_records,
            peer_record_keys: parts.peer_record_keys,
            truncated: None,
            truncation_reported: false,
        }
    }

    /// Returns the next event of this connection, if there is one.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        // Nearly always there is none, and nothing needs to be written.
        if self.truncated.is_some() { self.truncated.take().map(Event::MessageTruncated) } else { None }
    }

    /// Sends a message into the oldest receive that still has unfilled buffers: into the first of them with the
    /// message's tag. Returns `None` if there is no such buffer yet, or no room: call again later.
    ///
    /// # Errors
    /// If the connection is broken, the peer breaks the protocol, or the message is longer than 1 GiB.
    #[inline(always)]
    pub fn isend(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        match self.isend_fast(message) {
            Some(request) => Ok(Some(request)),
            // A copy, so that the message itself need not lie in memory on the fast path.
            None => self.isend_slow(*message),
        }
    }

    /// The fast path of nearly all messages: the oldest receive has one buffer, with the message's tag and room for it,
    /// and one write per active rail carries the message. So the fields of the CTS entry go straight into the writes.
    /// Returns `None` for all other messages: then nothing has changed, and the slow path takes the message.
    ///
    /// If a write cannot be posted although there is room, the connection is broken: the slow path or the next call
    /// returns the error.
    #[inline(always)]
    fn isend_fast(&mut self, message: &Outgoing<'_>) -> Option<SendRequest> {
        let sequence = self.head;
        if !self.core.fast.takes(message.size)
            || !self.progress.requests.is_slot_free(sequence)
            || self.core.has_order()
        {
            return None;
        }
        let receive = self.cts.single(sequence.slot(), message.tag)?;
        if message.size > receive.size {
            return None;
        }
        let Some(rail) = self.progress.meter.whole(message.size, self.core.rails.usable()) else {
            let to = receive.address;
            return self.isend_split(message.address, message.size, message.keys, to);
        };
        let connected = self.core.rails.get_mut(rail);
        if connected.lanes != 1 || connected.rail.send_room(LaneId::FIRST) == 0 {
            let to = receive.address;
            return self.isend_split(message.address, message.size, message.keys, to);
        }
        let write = WriteTemplate::new(message, receive.address, sequence).write(
            Piece { rail, offset: 0, bytes: message.size },
            receive.key(rail),
            self.layout,
            connected.side.alone,
        );
        self.cts.take_single();
        self.head = sequence.next();
        let (mask, source) = (connected.side.alone, Source::of(message));
        let request = SendRequest(self.progress.requests.post_one(sequence, mask, &source, Measured::NOT));
        connected.side.info.counters.count_data(1, message.size);
        self.progress.meter.count_whole(message.size);
        if let Err(error) = connected.rail.post_fitting(LaneId::FIRST, &[write]) {
            // The connection keeps an error.
            let _ = self.core.post_failed(rail, error, &mut self.progress);
        }
        Some(request)
    }

    /// Continues [`Self::isend_fast`] for several rails, or several lanes, to the receive at `to` that the next CTS
    /// entry names. Takes the message's fields one by one, so that on the fast path the message itself need not lie in
    /// memory.
    ///
    /// It could carry every fast message, since one rail is a split too, but that would cost messages on one rail 104
    /// instructions.
    #[inline(never)]
    fn isend_split(&mut self, address: u64, size: u64, keys: &MemoryKeys, to: u64) -> Option<SendRequest> {
        let sequence = self.head;
        if !self.has_room() {
            return None;
        }
        if !self.progress.meter.unknown().is_empty() {
            self.ping();
            // It may have found the connection broken.
            if !self.core.fast.takes(size) {
                return None;
            }
        }
        let receive = self.cts.shown(to, size);
        let mut shares = Shares::default();
        self.progress.meter.look();
        self.progress.meter.split(size, self.core.rails.usable(), &mut shares);
        let measured = self.progress.meter.begin_one(sequence, size);
        let template = WriteTemplate::new(&Outgoing { address, size, tag: 0, keys }, to, sequence);
        let mut offset = 0;
        for rail in shares.mask {
            let bytes = shares.bytes[rail];
            let write = template.write(Piece { rail, offset, bytes }, receive.key(rail), self.layout, shares.mask);
            let connected = self.core.rails.get_mut(rail);
            let posted = match connected.lanes {
                1 => connected.rail.post_fitting(LaneId::FIRST, &[write]),
                lanes => connected.rail.post(lane_of(sequence, lanes), &[write]),
            };
            if let Err(error) = posted
                && self.core.post_failed(rail, error, &mut self.progress).is_err()
            {
                return None;
            }
            let side = &self.core.rails.get(rail).side;
            side.info.counters.count_data(1, bytes);
            if measured == Measured::NOT {
                self.shares.note(sequence, rail, bytes);
            } else {
                self.progress.meter.give_one(sequence, side, bytes);
            }
            offset += bytes;
        }
        self.cts.take_single();
        self.head = sequence.next();
        let source = Source { address, size, keys: keys.local };
        Some(SendRequest(self.progress.requests.post_one(sequence, shares.mask, &source, measured)))
    }

    /// Returns true if there is a rail, and every rail has room for one write of the next slot.
    #[inline]
    fn has_room(&self) -> bool {
        let usable = self.core.rails.usable();
        !usable.is_empty()
            && usable.iter().all(|rail| {
                let connected = self.core.rails.get(rail);
                connected.rail.send_room(lane_of(self.head, connected.lanes)) > 0
            })
    }

    /// The slow path of [`Self::isend`].
    #[inline(never)]
    fn isend_slow(&mut self, message: Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        self.core.check_open()?;
        // A message without a CTS leaves the order to the next one, which is the one to measure. An open slot has taken
        // its CTS already.
        if self.core.has_order() && (self.filling.count > 0 || self.cts.has_next()) {
            let order = self.core.take_order();
            self.progress.meter.follow(&order);
            if let Some(request) = self.isend_measured(&message) {
                return Ok(Some(request));
            }
            // A post may have failed.
            self.core.check_open()?;
        }
        if !self.has_room() {
            return self.no_room();
        }
        self.isend_any(&message)
    }

    /// Sends a message that only an order kept from the fast path, so that it is measured even if it travels whole.
    #[cold]
    fn isend_measured(&mut self, message: &Outgoing<'_>) -> Option<SendRequest> {
        let sequence = self.head;
        if !self.core.fast.takes(message.size) || !self.progress.requests.is_slot_free(sequence) {
            return None;
        }
        let receive = self.cts.single(sequence.slot(), message.tag).filter(|receive| message.size <= receive.size)?;
        let to = receive.address;
        self.isend_split(message.address, message.size, message.keys, to)
    }

    /// Posts an empty write on each idle rail whose latency is not known well, if it has room for one more than that.
    ///
    /// If one cannot be posted although there is room, the connection is broken: the next call returns the error.
    #[cold]
    #[inline(never)]
    fn ping(&mut self) {
        let waiting = self.core.rails.usable().bits() & !self.progress.meter.pinged().bits();
        for rail in self.progress.meter.unknown() & RailSet::from_bits(waiting) {
            let connected = self.core.rails.get_mut(rail);
            if !self.progress.meter.wants_ping(rail) || connected.rail.send_room(LaneId::FIRST) < 2 {
                self.progress.meter.note_no_ping(rail);
                continue;
            }
            self.progress.meter.note_ping(rail);
            let write = Write { signalled: true, host: true, id: WorkKind::Ping.id(), ..Write::default() };
            if let Err(error) = connected.rail.post_fitting(LaneId::FIRST, &[write])
                && self.core.post_failed(rail, error, &mut self.progress).is_err()
            {
                return;
            }
        }
    }

    /// Returns the number of bytes sent, once every active rail's last write is complete; then the request has ended.
    ///
    /// # Errors
    /// If the connection is broken, or there is no such request.
    #[inline(always)]
    pub fn test(&mut self, request: SendRequest) -> Result<Option<u64>, Error> {
        match self.test_fast(request) {
            Ok(size) => Ok(Some(size)),
            Err(moved) => self.test_slow(request, moved),
        }
    }

    /// The fast path of [`Self::test`]: returns the size if the request is done, at the latest after a poll of the rail
    /// that last completed something. The error, for the slow path, is true if that poll brought anything.
    #[inline(always)]
    fn test_fast(&mut self, request: SendRequest) -> Result<u64, bool> {
        if let Some(size) = self.progress.requests.release(request.0) {
            return Ok(size);
        }
        // The connection keeps an error: the slow path returns it, unless this request is done all the same.
        let moved = self.core.poll_rail(self.core.recent, &mut self.progress).unwrap_or(true);
        self.progress.requests.release(request.0).ok_or(moved)
    }

    /// The slow path of [`Self::test`]: polls the other rails.
    #[inline(never)]
    fn test_slow(&mut self, request: SendRequest, mut moved: bool) -> Result<Option<u64>, Error> {
        self.core.check_open()?;
        for rail in self.core.rails.usable().without(self.core.recent) {
            let polled = self.core.poll_rail(rail, &mut self.progress);
            // A request that is done is reported even if the same poll reported a failed lane.
            if let Some(size) = self.progress.requests.release(request.0) {
                self.core.recent = rail;
                return Ok(Some(size));
            }
            moved |= polled?;
        }
        if self.progress.requests.is_free(request.0) {
            return Err(Misuse::NoSend(request.0).into());
        }
        if !moved {
            self.core.check_fate(&mut self.progress)?;
        }
        Ok(None)
    }

    /// Returns what this end has received: a sender receives nothing.
    #[expect(clippy::unused_self, reason = "the receiving end has the same method")]
    fn received_so_far(&self) -> Option<crate::Received> {
        None
    }

    /// Returns `None` for a message that could not be posted. On a fabric whose writes need this side's processor,
    /// polls the rails first.
    #[inline(never)]
    fn no_room(&mut self) -> Result<Option<SendRequest>, Error> {
        // A peer over a two-sided fabric answers only once it looks for data, so there the first message tells.
        // The first message also follows an order, which may leave some rails out.
        if F::ONE_SIDED && !self.progress.meter.unknown().is_empty() && !self.core.has_order() {
            self.ping();
            self.core.check_open()?;
            self.core.poll(&mut self.progress)?;
        }
        if F::ONE_SIDED || !self.core.poll(&mut self.progress)? {
            self.core.check_fate(&mut self.progress)?;
        }
        Ok(None)
    }
}

both_ends!(SendConnection);

/// The fields that the writes of one message share, when one write goes out on each active rail.
struct WriteTemplate<'a> {
    message: Outgoing<'a>,
    /// The receive's address.
    to: u64,
    slot: Slot,
    size_q: u32,
    id: WorkId,
}

impl<'a> WriteTemplate<'a> {
    /// Returns the template for a message to the receive at the address `to`. An immediate must be able to hold the
    /// message's size.
    #[inline(always)]
    fn new(message: &Outgoing<'a>, to: u64, sequence: Sequence) -> Self {
        Self {
            message: *message,
            to,
            slot: sequence.slot(),
            size_q: units(message.size as u32),
            id: WorkKind::Data(sequence).id(),
        }
    }

    /// Returns the write of one rail's piece, to memory with this key; `mask` has the active rails.
    #[inline(always)]
    fn write(&self, piece: Piece, key: u32, layout: ImmediateLayout, mask: RailSet) -> Write {
        let immediate = Immediate { slot: self.slot, mask, size_q: self.size_q };
        Write {
            local: LocalSlice {
                address: self.message.address.wrapping_add(piece.offset),
                length: piece.bytes as u32,
                key: self.message.keys.local[piece.rail],
            },
            remote: RemoteSlice { address: self.to.wrapping_add(piece.offset), key },
            immediate: Some(layout.encode(immediate)),
            signalled: true,
            host: self.message.keys.host,
            id: self.id,
        }
    }
}

/// Returns true if a striped connection uses all lanes for a message; both ends derive it from size_q.
#[inline]
pub(crate) fn stripes(size_q: u32, all_ones: u32) -> bool {
    size_q == all_ones || u64::from(size_q) >= STRIPE_FROM / GRANULE
}

/// Returns the lane of a slot that uses only one of `lanes` lanes: they take turns.
#[inline]
fn lane_of(sequence: Sequence, lanes: u8) -> LaneId {
    match lanes {
        1 => LaneId::FIRST,
        lanes => LaneId((sequence.number() % u32::from(lanes)) as u8),
    }
}
