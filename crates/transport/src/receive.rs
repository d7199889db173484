//! The receiving end of a connection: from `irecv` and its CTS to the immediates of every active rail.

mod holds;
mod inbox;
mod listening;
mod rail_stages;
mod read_back;
mod recovery;
mod watched;

use std::sync::Arc;

use railweave_fabric::{Fabric, LaneId, MAX_RAILS, Part, PolicyName, Rail, RailId, RailSet, Region};
use railweave_policy::{Order, Weighted};

use self::holds::Holds;
use self::inbox::Inbox;
use self::rail_stages::Recovery;
use crate::connection::{Core, both_ends};
use crate::cts::{self, CtsEntry, CtsRail, CtsSource};
use crate::flush::{FLUSHES, Flushes, Progress};
use crate::rails::{ConnectedRail, Rails};
use crate::receive_credits::ReceiveCredits;
use crate::record::Records;
use crate::sequence::Sequence;
use crate::slots::{Slots, State};
use crate::{
    ConnectionConfig, Error, Fate, Incoming, MAX_BUFFERS, MAX_MESSAGE_BYTES, Misuse, OwnWeights, RailInfo, Received,
    SLOTS, Slot, Steering, Token,
};

/// A receive or a flush in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvRequest(u16);

impl RecvRequest {
    /// The number of requests of a connection, flushes included.
    pub const COUNT: usize = SLOTS + FLUSHES;

    /// Returns its index, below [`Self::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the request with this index, which must be below 65,536; the request need not be in progress.
    #[inline]
    pub fn from_index(index: usize) -> Self {
        Self(index as u16)
    }

    /// Returns the request of the receive in this slot.
    #[inline]
    fn of(slot: Slot) -> Self {
        Self(u16::from(slot.number()))
    }

    /// Returns the slot of a receive, `None` for a flush.
    #[inline]
    fn slot(self) -> Option<Slot> {
        u8::try_from(self.0).ok().map(Slot::new)
    }
}

/// The outcome of [`RecvConnection::iflush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// There was nothing to flush.
    Nothing,
    /// The flush is in progress.
    Pending(RecvRequest),
}

/// The parts from which the handshake makes a receiving connection.
pub(crate) struct ReceiveParts<F: Fabric> {
    pub(crate) config: ConnectionConfig,
    pub(crate) rails: Rails<F>,
    pub(crate) order: Order,
    pub(crate) weights: OwnWeights,
    pub(crate) cts_shadow: Arc<Region>,
    pub(crate) cts_shadow_keys: [u32; MAX_RAILS],
    pub(crate) peer_cts: u64,
    pub(crate) peer_cts_keys: [u32; MAX_RAILS],
    pub(crate) records: Arc<Region>,
    pub(crate) peer: String,
    pub(crate) fate: Arc<Fate>,
    /// The token that its lanes present.
    pub(crate) token: Token,
}

/// Returns the weights by which CTS choose their rails: under the policy `adaptive` all rails take turns, because this
/// end does not know which is the fastest.
fn cts_weights(order: &Order) -> [u32; MAX_RAILS] {
    if order.policy == PolicyName::Adaptive { [1; MAX_RAILS] } else { order.weights }
}

// tidy: RecvConnection's methods call each other across files: recovery.rs has the rails that fail and come back.
/// The receiving end of a connection.
///
/// # Kinds of methods
/// * **Data path**: [`irecv`](Self::irecv) posts a receive of 1 to 8 buffers, [`iflush`](Self::iflush) makes data that
///   came into GPU memory visible, [`test`](Self::test) tells when either is done. They never block or lock, and
///   allocate only for an error; a fabric may read a clock now and then.
/// * **Debt**: [`owes`](Self::owes) and [`acknowledge`](Self::acknowledge), for a caller that will make no calls for a
///   while.
/// * **Facts**: [`ConnectionEnd`](crate::ConnectionEnd) names the peer, the rails with their counters, and the parts of
///   this host that they use.
/// * **End**: [`start_linger`](crate::ConnectionEnd::start_linger) and [`linger`](crate::ConnectionEnd::linger).
///
/// Nothing moves by itself. A call that returns `None` has polled the rails, unless it waits for an acknowledgement
/// that this end still owes. On a fabric whose writes need this side's processor
/// ([`ONE_SIDED`](railweave_fabric::Fabric::ONE_SIDED) is false), data arrives only in such calls, so `test` must be
/// called as long as any request is outstanding.
///
/// # Order of calls
/// 1. Call `irecv` until it returns a request. `None` means that nothing has changed: there is no room yet.
/// 2. Call `test` with that request until it returns the sizes. The request has ended then, and another receive may get
///    its index; testing it again is an error. Requests end in any order. There are [`RecvRequest::COUNT`] of them.
/// 3. If one of the buffers is GPU memory, call `iflush` with the same buffers, and `test` with the request that it
///    returns, before anybody reads them. A receive with `optional` needs none, as its data was read before, and
///    a flush of it promises nothing.
/// 4. Before a time without calls, ask `owes`. If it returns true, call `acknowledge` until it returns true, and soon:
///    on a fabric that is not one-sided, a call may leave the peer waiting for an acknowledgement, or for a CTS for
///    which there was no room.
/// 5. Call `start_linger` once, when the application closes the connection, and then `linger` until it returns true or
///    the caller has waited long enough. No other call may follow `start_linger`. Then drop the connection.
///
/// # Threads
/// The connection may move between threads, but only one thread at a time may use it: its calls take `&mut self`. Any
/// thread may use three parts of it at any time: its [`Fate`], its [`Steering`] (one at a time) and the
/// [`RailCounters`](crate::RailCounters) of its rails.
///
/// # Memory
/// The buffers belong to the connection from the `irecv` that returns a request until `test` returns its sizes: until
/// then they must stay registered, and their content is undefined. A receive that was reported early (`optional`) gives
/// its buffers back only once its data is there, which the application must find out for itself. The buffers of a flush
/// must stay registered until it is done. [`MemoryKeys`](crate::MemoryKeys) are only read during the call. After
/// `start_linger` arriving data is discarded, and all buffers may be released.
///
/// # A lost peer or adapter
/// Another part of the process may learn that the peer is gone, and report it with [`Fate::set_lost`]; or that an
/// adapter of this host failed ([`Fate::set_failed`]). Neither stops what can still finish by itself: data that has
/// arrived is received. A call looks at the fate only if it would otherwise return `None` and its polls brought
/// nothing. Then it returns the reported reason, and the connection is broken. A flush needs no peer: `test` of a flush
/// looks only for a failed adapter, even if its polls brought something.
///
/// # Errors
/// If a call is itself wrong ([`Misuse`]: a wrong number of buffers, a buffer that is too long, a request that has
/// ended, too many flushes), it is refused and changes nothing. Any other error breaks the connection: every later call
/// returns the same error, except `test` of a request that was complete before. [`Fault`](railweave_fabric::Fault)
/// tells whose fault it is; the message names the rail, the peer and what to try.
///
/// # Example
/// Over a fabric that is not one-sided, in a simulated world, where time passes only when the example lets it
/// (`crates/transport/tests/scenarios/pair.rs` sets it up):
/// ```
/// # mod pair { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/pair.rs")); }
/// # fn main() -> Result<(), railweave_transport::Error> {
/// use pair::{Setup, TwoSidedPair};
/// use railweave_transport::{ConnectionEnd, Flushed, Incoming};
///
/// let mut pair = TwoSidedPair::new(Setup::default().gpu().acks_put_off());
/// let (address, keys) = (pair.target.region.address(), pair.target.keys);
/// let buffer = Incoming { address, size: 32, tag: 0, keys: &keys };
/// let request = pair.receiver.irecv(&[buffer], false)?.expect("there is room");
/// let next = Incoming { address: address + 32, ..buffer };
/// let next = pair.receiver.irecv(&[next], false)?.expect("there is room");
/// assert_eq!(pair.receiver.test(request)?, None, "from here on the buffer belongs to the connection");
///
/// pair.drive();
/// let message = pair.isend();
/// pair.drive();
/// assert_eq!(pair.receiver.test(request)?, Some(&[8][..]), "the exact size of the one buffer");
///
/// // While `next` waits, the acknowledgement may be put off. A caller that falls silent has it sent first.
/// assert!(pair.receiver.owes());
/// while !pair.receiver.acknowledge() {}
/// assert_eq!(pair.sent(message), 8, "the peer need not wait for the end of the silence");
///
/// // The buffer is GPU memory, so it must not be read before a flush.
/// if let Flushed::Pending(flush) = pair.receiver.iflush(&[buffer])? {
///     pair.drive();
///     assert_eq!(pair.receiver.test(flush)?, Some(&[][..]), "now it may");
/// }
/// assert!(pair.receiver.test(request).is_err(), "the request has ended");
/// assert_eq!(pair.receiver.test(next)?, None, "its message is not sent yet");
///
/// pair.receiver.start_linger();
/// assert!(pair.receiver.linger(), "everything is out");
/// # Ok(())
/// # }
/// ```
pub struct RecvConnection<F: Fabric> {
    core: Core<F>,
    /// The rails of CTS.
    cts_rails: Weighted,
    /// The rails that may carry CTS while one of them is usable, by the order in force.
    ordered: RailSet,
    /// Those of them that may carry some now.
    allowed: RailSet,
    inbox: Inbox,
    cts: CtsSource,
    /// The next receive to post.
    head: Sequence,
    /// CTS entries below this number overwrite none that may still be needed; [`Self::raise_limit`] raises it.
    entry_limit: u64,
    /// The oldest receive that is not known to be complete.
    oldest: Sequence,
    recovery: Box<Recovery<F>>,
}

impl<F: Fabric> RecvConnection<F> {
    pub(crate) fn new(mut parts: ReceiveParts<F>) -> Self {
        let (number, entry) = (parts.config.first_number, u64::from(parts.config.first_number));
        let first = Sequence::new(number);
        for connected in parts.rails.iter_mut() {
            let rail = connected.side.id;
            connected.cts = CtsRail::new(parts.cts_shadow_keys[rail], parts.peer_cts_keys[rail], number);
        }
        Self {
            cts_rails: Weighted::new(cts_weights(&parts.order), parts.config.split_min),
            ordered: parts.order.allowed,
            allowed: parts.order.allowed,
            inbox: Inbox {
                slots: Slots::new(parts.rails.count(), parts.rails.usable(), Records::new(parts.records), first),
                credits: ReceiveCredits::new(&mut parts.rails, &parts.config),
                flushes: Flushes::new(number),
                holds: Holds::default(),
                checked: RailSet::EMPTY,
                owing: RailSet::EMPTY,
                fatal: None,
                fate: Arc::clone(&parts.fate),
            },
            cts: CtsSource::new(parts.cts_shadow, parts.peer_cts, entry),
            head: first,
            entry_limit: entry + cts::ENTRIES,
            oldest: first,
            recovery: Box::new(Recovery::new(parts.token, parts.config.rail_pause)),
            core: Core::new(
                parts.rails,
                MAX_MESSAGE_BYTES + 1,
                parts.peer,
                parts.fate,
                Arc::new(Steering::new(&parts.order, parts.weights)),
                &parts.config,
            ),
        }
    }

    /// Receives into a group of 1 to 8 buffers. Returns `None` if there is no room: call again later.
    ///
    /// The CTS is on its way when this returns, unless the fabric has no room for it: then this end [owes](Self::owes)
    /// it.
    ///
    /// With `optional`, [`Self::test`] may report the receive as done before the data is there
    /// (`NCCL_NET_OPTIONAL_RECV_COMPLETION`). It is ignored on fabrics that need this side's processor to place data,
    /// because the data of a receive that is never tested would not be placed there.
    ///
    /// # Errors
    /// If the connection is broken, or the buffers are not 1 to 8 of at most 1 GiB each.
    #[inline(always)]
    pub fn irecv(&mut self, buffers: &[Incoming<'_>], optional: bool) -> Result<Option<RecvRequest>, Error> {
        let optional = optional && F::ONE_SIDED;
        let [buffer] = buffers else {
            return self.irecv_slow(buffers, optional);
        };
        match self.irecv_fast(buffer, optional) {
            Some(request) => Ok(Some(request)),
            // A copy, so that the buffer itself need not lie in memory on the fast path.
            None => self.irecv_slow(&[*buffer], optional),
        }
    }

    /// The fast path of nearly all receives: one buffer, and room for everything, so one CTS entry in one write.
    /// Returns `None` for all other receives: then nothing has changed, and the slow path takes the receive. The slow
    /// path could take every receive, for 102 instructions more.
    ///
    /// If the write cannot be posted although there is room, the connection is broken: the next call returns the error.
    #[inline(always)]
    fn irecv_fast(&mut self, buffer: &Incoming<'_>, optional: bool) -> Option<RecvRequest> {
        let (slot, first) = (self.head.slot(), self.cts.next());
        let is_free = self.inbox.slots.get(slot).state == State::Free;
        if !self.core.fast.takes(buffer.size) || !is_free || first >= self.entry_limit || !self.inbox.credits.is_any() {
            return None;
        }
        if self.core.has_order() {
            return None;
        }
        let rail = self.cts_rails.planned_cts_rail(self.head.number(), self.core.rails.usable() & self.allowed)?;
        let connected = self.core.rails.get_mut(rail);
        if connected.rail.send_room(LaneId::FIRST) == 0 {
            return None;
        }
        let write = self.cts.take_one(&CtsEntry::of(buffer, slot, 0, 1), &mut connected.cts, &connected.side.info);
        self.inbox.may_owe::<F>(connected.side.alone);
        let receive = self.inbox.slots.open(slot, 1, optional, first);
        receive.capacities[0] = buffer.size;
        if !buffer.keys.host {
            receive.flushable = true;
            receive.addresses[0] = buffer.address;
        }
        self.inbox.credits.handle_opened();
        self.head = self.head.next();
        if let Err(error) = connected.rail.post_fitting(LaneId::FIRST, &[write]) {
            // The connection keeps an error.
            let _ = self.core.post_failed(rail, error, &mut self.inbox);
        }
        Some(RecvRequest::of(slot))
    }

    /// The slow path of [`Self::irecv`]: takes any number of buffers, and makes room if there is none.
    #[inline(never)]
    fn irecv_slow(&mut self, buffers: &[Incoming<'_>], optional: bool) -> Result<Option<RecvRequest>, Error> {
        self.core.check_open()?;
        let count = buffers.len();
        if !(1..=MAX_BUFFERS).contains(&count) {
            return Err(Misuse::Buffers(count).into());
        }
        if let Some(long) = buffers.iter().find(|buffer| buffer.size > MAX_MESSAGE_BYTES) {
            return Err(Misuse::ReceiveTooLong(long.size).into());
        }
        self.note_called();
        if self.holds_receives(buffers) || self.is_awaited_there(buffers) {
            return self.no_room();
        }
        let Some(rail) = self.find_room(count) else {
            return self.no_room();
        };
        // Entries that wrap around the end of the ring take a second write.
        if self.core.rails.get(rail).rail.send_room(LaneId::FIRST) < 2 {
            return self.no_room();
        }
        let slot = self.head.slot();
        let receive = self.inbox.slots.open(slot, count as u8, optional, self.cts.next());
        for (number, buffer) in buffers.iter().enumerate() {
            receive.capacities[number] = buffer.size;
            receive.flushable |= !buffer.keys.host;
            receive.addresses[number] = if buffer.keys.host { 0 } else { buffer.address };
            self.cts.write(&CtsEntry::of(buffer, slot, number as u8, count as u8));
        }
        self.inbox.may_owe::<F>(RailSet::only(rail));
        let ConnectedRail { rail: lanes, cts, side, .. } = self.core.rails.get_mut(rail);
        let posted = self.cts.post(lanes, cts, &side.info, count as u64);
        self.inbox.credits.handle_opened();
        self.head = self.head.next();
        if let Err(error) = posted {
            self.core.post_failed(rail, error, &mut self.inbox)?;
        }
        Ok(Some(RecvRequest::of(slot)))
    }

    /// Returns the exact sizes of the buffers, once all data is there; then the request has ended. A flush has no
    /// sizes. A receive whose completion is optional may end earlier; then the sizes are those that it was posted with.
    ///
    /// While other receives wait, a receive may end although this end still [owes](Self::owes) the peer its
    /// acknowledgement. The last one ends only once the acknowledgement is on its way.
    ///
    /// # Errors
    /// If the connection is broken, the peer breaks the protocol, or there is no such request.
    #[inline(always)]
    pub fn test(&mut self, request: RecvRequest) -> Result<Option<&[u64]>, Error> {
        match self.test_fast(request) {
            Ok(slot) => Ok(self.take_sizes(slot)),
            Err(moved) => self.test_slow(request, moved),
        }
    }

    /// The fast path of [`Self::test`]: returns the slot of a receive that is complete, at the latest after a poll of
    /// the rail that last completed something. The error, for the slow path, is true if that poll brought anything.
    #[inline(always)]
    fn test_fast(&mut self, request: RecvRequest) -> Result<Slot, bool> {
        let slot = request.slot().ok_or(false)?;
        if self.inbox.slots.get(slot).state == State::Complete {
            return Ok(slot);
        }
        // If both ends must poll for anything to move, the slow path polls every rail.
        if !F::ONE_SIDED {
            return Err(false);
        }
        // The connection keeps an error: the slow path returns it, unless this request is complete all the same.
        let moved = self.core.poll_rail(self.core.recent, &mut self.inbox).unwrap_or(true);
        if self.inbox.slots.get(slot).state == State::Complete { Ok(slot) } else { Err(moved) }
    }

    /// Ends a receive that is complete. Returns `None` if its acknowledgement must be on its way first and is not yet,
    /// or if its memory may be read back just now for the fence of a rail, until when it must stay registered.
    #[inline(always)]
    fn take_sizes(&mut self, slot: Slot) -> Option<&[u64]> {
        // While other receives wait, the caller usually calls again at once; a caller with nothing left to wait for
        // does not.
        let may_owe = F::ONE_SIDED || self.inbox.slots.is_waited_for(self.head);
        if !may_owe && !self.acknowledge() {
            return None;
        }
        let receive = self.inbox.slots.get_mut(slot);
        if receive.flushable {
            if self.inbox.flushes.is_fencing() && self.core.check_open().is_ok() {
                return None;
            }
            self.remember_rails(slot);
        }
        self.inbox.slots.get_mut(slot).state = State::Free;
        let receive = self.inbox.slots.get(slot);
        Some(&receive.sizes[..usize::from(receive.count)])
    }

    /// The slow path of [`Self::test`]: polls the other rails.
    #[inline(never)]
    fn test_slow(&mut self, request: RecvRequest, mut moved: bool) -> Result<Option<&[u64]>, Error> {
        let Some(slot) = request.slot() else {
            return Ok(self.test_flush(request.index() - SLOTS)?.then_some(&[]));
        };
        self.core.check_open()?;
        // The rails that the fast path has not polled.
        let usable = self.core.rails.usable();
        let unpolled = if F::ONE_SIDED { usable.without(self.core.recent) } else { usable };
        for rail in unpolled {
            let polled = self.core.poll_rail(rail, &mut self.inbox);
            // A receive that is complete is reported even if the same poll reported a failed lane.
            if (F::ONE_SIDED || polled.is_err()) && self.inbox.slots.get(slot).state == State::Complete {
                self.core.recent = rail;
                break;
            }
            moved |= polled?;
        }
        let receive = self.inbox.slots.get(slot);
        match receive.state {
            State::Complete => Ok(self.take_sizes(slot)),
            // As in `take_sizes`, its memory may be read back just now.
            State::Open if receive.optional && !(receive.flushable && self.inbox.flushes.is_fencing()) => {
                self.inbox.slots.report_early(slot);
                Ok(Some(self.inbox.slots.capacities(slot)))
            }
            State::Open => {
                if !moved {
                    self.core.check_fate(&mut self.inbox)?;
                }
                Ok(None)
            }
            State::Free | State::Early => Err(Misuse::NoReceive(slot.index()).into()),
        }
    }

    /// Makes the data that the rails wrote into these buffers visible to their owner. Only GPU memory needs that, and
    /// an empty buffer never does.
    ///
    /// # Errors
    /// If the connection is broken, or more flushes are outstanding than NCCL has requests.
    pub fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        self.core.check_open()?;
        let Some(index) = self.inbox.flushes.begin(buffers, self.core.rails.flushing())? else {
            return Ok(Flushed::Nothing);
        };
        self.post_flush(index)?;
        Ok(Flushed::Pending(RecvRequest((SLOTS + index) as u16)))
    }

    /// Returns the rail for the CTS of one more receive of `count` buffers, `None` if there is no room for it.
    fn find_room(&mut self, count: usize) -> Option<RailId> {
        let free = self.inbox.slots.get(self.head.slot()).state == State::Free;
        let end = self.cts.next() + count as u64;
        if free && (end <= self.entry_limit || self.raise_limit(end)) && (self.inbox.credits.is_any() || self.refill())
        {
            self.cts_rail()
        } else {
            None
        }
    }

    /// Returns the rail for the CTS of the next receive, by the order in force; `None` if no rail is usable.
    #[cold]
    fn cts_rail(&mut self) -> Option<RailId> {
        if self.core.has_order() {
            let order = self.core.take_order();
            self.cts_rails.set_weights(cts_weights(&order));
            self.ordered = order.allowed;
        }
        let usable = self.core.postable();
        // The fast path knows no other difference between the rails.
        self.allowed = self.ordered & usable;
        let allowed = self.allowed;
        self.cts_rails.cts_rail(self.head.number(), if allowed.is_empty() { usable } else { allowed })
    }

    /// Posts generic receives. Returns true if there are then enough for one more slot on every rail.
    #[cold]
    fn refill(&mut self) -> bool {
        self.inbox.credits.refill(&mut self.core.rails, self.inbox.slots.open_count(self.head));
        self.inbox.credits.is_any()
    }

    /// Moves the limit past receives that are over. Returns true if the ring then has room for CTS entries below
    /// `end`.
    #[cold]
    fn raise_limit(&mut self, end: u64) -> bool {
        // The slots of older receives were opened again, so those receives are complete.
        self.oldest = self.head.before(self.head.since(self.oldest).min(SLOTS as u32));
        // This ends with the newest receive at the latest: its entries and the new ones are few.
        loop {
            let oldest = self.inbox.slots.get(self.oldest.slot());
            // The entries of a receive that is complete tell a fence which GPU memory to read back.
            let is_open = matches!(oldest.state, State::Open | State::Early)
                || oldest.state == State::Complete && oldest.flushable;
            let limit = oldest.first_entry + cts::ENTRIES;
            self.entry_limit = limit;
            self.cap_limit();
            if end <= self.entry_limit {
                return true;
            }
            if is_open || self.entry_limit < limit {
                return false;
            }
            self.oldest = self.oldest.next();
        }
    }

    /// Returns `None` for a receive that could not be posted. Polls the rails first, because arrivals make room.
    #[inline(never)]
    fn no_room(&mut self) -> Result<Option<RecvRequest>, Error> {
        if !self.core.poll(&mut self.inbox)? {
            self.core.check_fate(&mut self.inbox)?;
        }
        Ok(None)
    }

    /// Returns true if the peer may be waiting for something that this end has not sent yet: acknowledgements that were
    /// put off, and CTS for which there was no room. A caller that leaves the connection in this state must see to it
    /// that [`Self::acknowledge`] is called soon.
    #[inline]
    pub fn owes(&mut self) -> bool {
        if F::ONE_SIDED || self.inbox.owing.is_empty() {
            return false;
        }
        let owes = |rail: &RailId| self.core.rails.find(*rail).is_some_and(|connected| connected.rail.owes());
        self.inbox.owing = self.inbox.owing.iter().filter(owes).collect();
        !self.inbox.owing.is_empty()
    }

    /// Sends what this end [owes](Self::owes). Returns true if all of it is on its way.
    #[inline]
    pub fn acknowledge(&mut self) -> bool {
        for rail in self.inbox.owing {
            if self.core.rails.find_mut(rail).is_none_or(|connected| connected.rail.acknowledge()) {
                self.inbox.owing.remove(rail);
            }
        }
        self.inbox.owing.is_empty()
    }

    /// Returns what this end has received, after a last look at its rails; `None` if the peer has broken the protocol.
    /// An application that closes has the data of receives that were reported early, or wants it no more.
    fn received_so_far(&mut self) -> Option<Received> {
        // This ends: nothing is posted meanwhile, and each report uses up a write or a receive. Where this side places
        // the data, its memory may be deregistered already.
        while F::ONE_SIDED && matches!(self.core.poll(&mut self.inbox), Ok(true)) {}
        let slots = &self.inbox.slots;
        (!slots.is_closed()).then(|| Received::new(self.head, |slot| slots.get(slot).state != State::Open))
    }

    fn post_flush(&mut self, index: usize) -> Result<(), Error> {
        match self.inbox.flushes.post(index, &mut self.core.rails) {
            Ok(()) => Ok(()),
            Err((rail, error)) => self.core.post_failed(rail, error, &mut self.inbox),
        }
    }

    /// Tests a flush. Only this side's adapters and memory take part in it. So the fate is checked only for a failed
    /// adapter, which completes nothing, and not for a lost peer.
    fn test_flush(&mut self, index: usize) -> Result<bool, Error> {
        if !self.inbox.flushes.is_in_progress(index) {
            self.core.check_open()?;
            return Err(Misuse::NoReceive(SLOTS + index).into());
        }
        let polled = match self.core.check_open() {
            Ok(()) => self.core.poll(&mut self.inbox),
            Err(error) => Err(error),
        };
        match self.inbox.flushes.finish(index) {
            Progress::Done => return Ok(true),
            Progress::Failed(rail) => return Err(self.core.fail_unrepairable(rail, &mut self.inbox)),
            Progress::Pending => {}
        }
        polled?;
        self.core.check_adapters(&mut self.inbox)?;
        self.post_flush(index)?;
        Ok(false)
    }
}

both_ends!(RecvConnection);
