//! Queue pairs: posted work is carried out on the spot, in the memory of this process.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use railweave_fabric_verbs::sys;

use crate::events::{Events, Source};
use crate::queues::{CompletionQueue, Entry, ReceiveQueue};
use crate::regions::{find_local, find_remote};
use crate::reports::Counts;
use crate::spin::SpinLock;
use crate::wire::{MAX_SGES, Places, Work};

/// The bit of `Wc::wc_flags` for a completion with an immediate.
const WC_WITH_IMM: u32 = 1 << 1;

/// Junk for a field that the adapter leaves unset, so that a program that reads it is noticed.
const UNSAID: u32 = u32::MAX;

/// Incremented with every change that may affect where a queue pair's work goes.
static EPOCH: AtomicU64 = AtomicU64::new(1);

/// Returns the current epoch.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// Makes every queue pair look again before it sends.
pub(crate) fn next_epoch() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

/// True if work may be pending, so that [`take_any_held`] can skip the search for it.
static ANY_HELD: AtomicBool = AtomicBool::new(false);

/// Clears [`ANY_HELD`] and returns its value; a caller that finds work still pending calls [`note_held`].
pub(crate) fn take_any_held() -> bool {
    ANY_HELD.swap(false, Ordering::AcqRel)
}

/// Notes that work is pending.
pub(crate) fn note_held() {
    ANY_HELD.store(true, Ordering::Release);
}

/// The treatment of the next work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The queue pair is not ready to send: the request is refused.
    Shut,
    /// The request is carried out.
    Open,
    /// The request waits behind pending work, or for a cable.
    Held,
    /// The peer does not respond: the request fails with `Sends::loss`.
    Lost,
    /// The queue pair is in the error state: the request is flushed.
    Broken,
}

/// The effects of a failure on others. Applied after the queue pair's own lock is released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wreck {
    /// The peer and the event that it gets, if it fails too.
    pub(crate) peer: Option<(u32, c_int)>,
}

/// The failure of a work request.
struct Failure {
    status: c_int,
    /// The peer's number.
    peer: u32,
    /// The event with which the peer's queue pair fails too; `None` if it does not fail.
    event: Option<c_int>,
}

/// Pending work: a copy of the request.
pub(crate) struct Held {
    request: sys::SendWr,
    pieces: Box<[sys::Sge]>,
    /// The inline data, to which `pieces` point.
    _inline: Box<[u8]>,
}

impl Held {
    fn work(&self) -> Work<'_> {
        Work::new(&self.request, &self.pieces)
    }
}

/// The sending side, under its lock.
pub(crate) struct Sends {
    pub(crate) gate: Gate,
    /// The epoch in which `gate` and `peer` were determined.
    pub(crate) epoch: u64,
    /// Valid while the gate is open and the epoch current: destroying a queue pair raises the epoch and then takes this
    /// lock.
    pub(crate) peer: *const QueuePair,
    /// The access flags of the peer's queue pair.
    pub(crate) peer_access: u32,
    /// True if this side may read: it must not issue more reads than the peer serves.
    pub(crate) reads: bool,
    /// The longest message, in bytes.
    pub(crate) max_message: u64,
    /// The completion status for [`Gate::Lost`].
    pub(crate) loss: c_int,
    /// The number of retries if the peer has no receive; 7 means no limit.
    pub(crate) rnr_retry: u8,
    pub(crate) held: VecDeque<Held>,
    pub(crate) wreck: Option<Wreck>,
    posted: u32,
    /// Finished work requests whose places no completion has freed yet.
    pub(crate) unreported: u32,
    pub(crate) counts: Counts,
}

/// The habits of the adapter that matter while a queue pair is used: see [`crate::profile::Habits`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// True if receive completions report the number of bytes.
    pub(crate) byte_counts: bool,
    pub(crate) sent_bytes: bool,
    pub(crate) inline_ignored: bool,
    pub(crate) stale_completions: bool,
    pub(crate) last_receive_event: bool,
}

/// A `struct ibv_qp`, followed by this library's own data.
#[repr(C)]
pub(crate) struct QueuePair {
    public: UnsafeCell<sys::Qp>,
    pub(crate) number: u32,
    /// The address of its protection domain.
    pub(crate) domain: usize,
    pub(crate) send_cq: *const CompletionQueue,
    pub(crate) recv_cq: *const CompletionQueue,
    /// Its own receive queue, or the shared one.
    pub(crate) receives: *const ReceiveQueue,
    own_receives: Option<Box<ReceiveQueue>>,
    /// The number of send queue places freed by polled completions; `Sends::posted` counts all places ever taken.
    pub(crate) released: AtomicU32,
    capacities: sys::QpCapabilities,
    pub(crate) manners: Manners,
    events: Arc<Events>,
    pub(crate) sends: SpinLock<Sends>,
}

impl QueuePair {
    /// Creates a queue pair in the reset state. `public` names its queues.
    pub(crate) fn new(
        public: sys::Qp,
        domain: usize,
        attributes: &sys::QpInitAttributes,
        shared: Option<*const ReceiveQueue>,
        manners: Manners,
        events: Arc<Events>,
    ) -> Self {
        let own_receives = shared
            .is_none()
            .then(|| Box::new(ReceiveQueue::new(attributes.cap.max_recv_wr as usize, attributes.cap.max_recv_sge)));
        let receives = shared.unwrap_or_else(|| own_receives.as_deref().map_or(ptr::null(), ptr::from_ref));
        Self {
            number: public.qp_num,
            domain,
            send_cq: public.send_cq.cast(),
            recv_cq: public.recv_cq.cast(),
            receives,
            own_receives,
            released: AtomicU32::new(0),
            capacities: attributes.cap,
            manners,
            events,
            sends: SpinLock::new(Sends {
                gate: Gate::Shut,
                epoch: 0,
                peer: ptr::null(),
                peer_access: 0,
                reads: false,
                max_message: 0,
                loss: 0,
                rnr_retry: 0,
                held: VecDeque::new(),
                wreck: None,
                posted: 0,
                unreported: 0,
                counts: Counts::default(),
            }),
            public: UnsafeCell::new(public),
        }
    }

    /// Returns the state, from the field that programs read.
    pub(crate) fn state(&self) -> c_int {
        self.state_field().load(Ordering::Acquire)
    }

    pub(crate) fn set_state(&self, state: c_int) {
        self.state_field().store(state, Ordering::Release);
    }

    /// Forgets all work, as after creation.
    pub(crate) fn reset(&self, sends: &mut Sends) {
        self.forget_completions();
        if let Some(receives) = &self.own_receives {
            receives.reset();
        }
        sends.held.clear();
        (sends.posted, sends.unreported) = (0, 0);
        self.released.store(0, Ordering::Release);
    }

    /// Removes its entries from its completion queues.
    pub(crate) fn forget_completions(&self) {
        for queue in [self.send_cq(), self.recv_cq()] {
            queue.forget(self.number, self.manners.stale_completions);
        }
    }

    /// Returns true if the data travels in the request itself, not from registered memory.
    #[inline]
    pub(crate) fn inlines(&self, work: &Work<'_>) -> bool {
        work.inline() && !self.manners.inline_ignored
    }

    /// Enters the error state and flushes pending work.
    pub(crate) fn break_down(&self, sends: &mut Sends, event: Option<c_int>) {
        let source = Source::Qp(ptr::from_ref(self).expose_provenance());
        if let Some(event) = event {
            self.events.raise(event, source);
        }
        if self.state() == sys::QPS_ERR {
            return;
        }
        self.set_state(sys::QPS_ERR);
        next_epoch();
        sends.gate = Gate::Broken;
        while let Some(held) = sends.held.pop_front() {
            self.report(sends, held.request.wr_id, sys::WC_WR_FLUSH_ERR);
        }
        match &self.own_receives {
            Some(receives) => receives.close().into_iter().for_each(|id| self.flush_receive(id)),
            None if self.manners.last_receive_event => self.events.raise(sys::EVENT_QP_LAST_WQE_REACHED, source),
            None => {}
        }
    }

    /// If `open` (the peer can be reached), carries out pending work until a request has to wait or fails. The gate
    /// must be of the current epoch.
    pub(crate) fn drive(&self, sends: &mut Sends, open: bool) {
        while open && let Some(held) = sends.held.pop_front() {
            if !self.carry_or_fail(sends, &held.work()) {
                sends.held.push_front(held);
                sends.gate = Gate::Held;
                return;
            }
            if sends.gate == Gate::Broken {
                return;
            }
        }
        if open {
            sends.gate = Gate::Open;
        }
    }

    /// Fails the oldest pending work, like a card whose retries are exhausted.
    pub(crate) fn fail_oldest(&self, sends: &mut Sends, status: c_int) {
        if let Some(held) = sends.held.pop_front() {
            self.fail(sends, held.request.wr_id, status, None);
        }
    }

    /// Completes all pending work, as if a peer had taken it that is not in this process.
    pub(crate) fn take_held(&self, sends: &mut Sends) {
        while let Some(held) = sends.held.pop_front() {
            let work = held.work();
            self.complete_here(sends, &work, work.length());
        }
    }

    /// Adds this queue pair's counts.
    pub(crate) fn count(&self, counts: &mut Counts) {
        *counts = Counts::sum([&*counts, &self.sends.lock().counts].into_iter());
        if let Some(receives) = &self.own_receives {
            receives.count(counts);
        }
    }

    /// Fails one work request, with all consequences.
    pub(crate) fn fail(&self, sends: &mut Sends, id: u64, status: c_int, peer: Option<(u32, c_int)>) {
        self.report(sends, id, status);
        self.break_down(sends, None);
        sends.wreck = Some(Wreck { peer });
    }

    #[inline]
    pub(crate) fn send_cq(&self) -> &CompletionQueue {
        // SAFETY: a completion queue is not destroyed while a queue pair uses it (`lifecycle` returns EBUSY).
        unsafe { &*self.send_cq }
    }

    #[inline]
    pub(crate) fn recv_cq(&self) -> &CompletionQueue {
        // SAFETY: as above.
        unsafe { &*self.recv_cq }
    }

    #[inline]
    pub(crate) fn receives(&self) -> &ReceiveQueue {
        // SAFETY: it is this queue pair's own, or a shared one, which is not destroyed while a queue pair uses it.
        unsafe { &*self.receives }
    }

    fn state_field(&self) -> &AtomicI32 {
        // SAFETY: the field is an aligned c_int, and is only changed through this atomic. Programs read it as they do
        // with a real provider.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.public.get()).state) }
    }

    /// Reports failed work. In such a completion only status, identifier and queue pair are valid: the rest is junk, so
    /// that a program that reads it is noticed.
    fn report(&self, sends: &mut Sends, id: u64, status: c_int) {
        let places = std::mem::take(&mut sends.unreported) + 1;
        self.send_cq().push(Entry { completion: failed(id, self.number, status), released: &self.released, places });
    }

    /// Posts a chain of receives to its own queue; see [`ReceiveQueue::post_chain`].
    ///
    /// # Safety
    /// The same as for ibv_post_recv(3).
    pub(crate) unsafe fn post_receives(&self, wr: *mut sys::RecvWr, bad: *mut *mut sys::RecvWr) -> (c_int, bool) {
        let usable = self.own_receives.as_ref().filter(|_| self.state() != sys::QPS_RESET);
        // SAFETY: the caller hands over a chain of work requests and a place for the bad one.
        unsafe {
            let Some(receives) = usable else {
                bad.write(wr);
                return (libc::EINVAL, false);
            };
            receives.post_chain(wr, bad, |id| self.flush_receive(id))
        }
    }

    fn flush_receive(&self, id: u64) {
        self.recv_cq().push(Entry {
            completion: failed(id, self.number, sys::WC_WR_FLUSH_ERR),
            released: &self.receives().released,
            places: 1,
        });
    }

    /// Checks that this request may be posted now.
    #[inline]
    fn admit(&self, sends: &Sends, request: &sys::SendWr) -> Result<(), c_int> {
        let places = sends.posted.wrapping_sub(self.released.load(Ordering::Acquire));
        if places >= self.capacities.max_send_wr {
            return Err(libc::ENOMEM);
        }
        if sends.gate == Gate::Shut
            || request.num_sge < 0
            || request.num_sge as u32 > self.capacities.max_send_sge
            || (request.num_sge > 0 && request.sg_list.is_null())
            || !matches!(request.opcode, sys::WR_RDMA_WRITE | sys::WR_RDMA_WRITE_WITH_IMM | sys::WR_RDMA_READ)
        {
            return Err(libc::EINVAL);
        }
        Ok(())
    }

    fn admit_inline(&self, work: &Work<'_>) -> Result<(), c_int> {
        let fits = work.length() <= u64::from(self.capacities.max_inline_data);
        if fits && !work.reads() { Ok(()) } else { Err(libc::EINVAL) }
    }

    #[cold]
    fn hold(&self, sends: &mut Sends, work: &Work<'_>) {
        let mut pieces: Box<[sys::Sge]> = work.pieces.into();
        let mut inline: Vec<u8> = Vec::new();
        if self.inlines(work) {
            inline.reserve_exact(work.length() as usize);
            for piece in &mut pieces {
                let place = inline.len();
                // SAFETY: ibv_post_send(3): inline memory is readable during the call, whatever its key. The vector
                // does not move: it has room for all pieces.
                unsafe {
                    let from: *const u8 = ptr::with_exposed_provenance(piece.address as usize);
                    inline.extend_from_slice(std::slice::from_raw_parts(from, piece.length as usize));
                    piece.address = inline.as_ptr().add(place).expose_provenance() as u64;
                }
            }
        }
        sends.gate = Gate::Held;
        note_held();
        sends.held.push_back(Held { request: *work.request, pieces, _inline: inline.into_boxed_slice() });
    }

    /// Carries out one request. The gate must be open. Returns false if the peer has no receive for it.
    #[inline]
    fn carry(&self, sends: &mut Sends, work: &Work<'_>) -> Result<bool, Failure> {
        // SAFETY: the gate is open in this epoch, so the peer exists until this side's lock is released
        // (`Sends::peer`).
        let peer = unsafe { &*sends.peer };
        let length = work.length();
        let mut local = [MaybeUninit::uninit(); MAX_SGES];
        let remote = self.check(sends, peer, work, length, &mut local)?;
        let receive = if work.request.opcode == sys::WR_RDMA_WRITE_WITH_IMM {
            let Some(receive) = peer.receives().take() else { return Ok(false) };
            Some(receive)
        } else {
            None
        };
        // SAFETY: `check` has found a place for each piece. All ranges lie in registered regions, which are not removed
        // while this lock is held; local ones may also lie in memory that the caller of ibv_post_send passes inline.
        unsafe { work.transfer(&local, remote) };
        self.complete(sends, peer, work, length, receive);
        Ok(true)
    }

    /// Finds the places of the pieces and of the peer's memory, and checks the rights to both.
    #[inline]
    fn check(
        &self,
        sends: &Sends,
        peer: &Self,
        work: &Work<'_>,
        length: u64,
        local: &mut Places,
    ) -> Result<*mut u8, Failure> {
        let alone = |status| Failure { status, peer: 0, event: None };
        let both = |status, event| Failure { status, peer: peer.number, event: Some(event) };
        if length > sends.max_message {
            return Err(alone(sys::WC_LOC_LEN_ERR));
        }
        let (read, inline) = (work.reads(), self.inlines(work));
        let needs = if read { sys::ACCESS_LOCAL_WRITE as u32 } else { 0 };
        for (piece, place) in work.pieces.iter().zip(local) {
            place.write(if inline {
                ptr::with_exposed_provenance_mut(piece.address as usize)
            } else if piece.length == 0 {
                ptr::null_mut() // without bytes, the key is not checked
            } else {
                find_local(piece.lkey, self.domain, piece.address, piece.length.into(), needs)
                    .ok_or_else(|| alone(sys::WC_LOC_PROT_ERR))?
            });
        }
        let right = if read { sys::ACCESS_REMOTE_READ } else { sys::ACCESS_REMOTE_WRITE } as u32;
        if read && !sends.reads {
            return Err(alone(sys::WC_LOC_QP_OP_ERR));
        }
        if sends.peer_access & right == 0 {
            return Err(both(sys::WC_REM_INV_REQ_ERR, sys::EVENT_QP_REQ_ERR));
        }
        if length == 0 {
            return Ok(ptr::null_mut());
        }
        let target = work.request.rdma;
        find_remote(target.rkey, peer.domain, target.remote_address, length, right)
            .ok_or_else(|| both(sys::WC_REM_ACCESS_ERR, sys::EVENT_QP_ACCESS_ERR))
    }

    /// Reports a request that was carried out: to the peer if it consumed a receive, and to this side if it is
    /// signalled.
    #[inline]
    fn complete(&self, sends: &mut Sends, peer: &Self, work: &Work<'_>, length: u64, receive: Option<u64>) {
        let request = work.request;
        if let Some(id) = receive {
            peer.recv_cq().push(Entry {
                completion: sys::Wc {
                    wr_id: id,
                    status: sys::WC_SUCCESS,
                    opcode: sys::WC_RECV_RDMA_WITH_IMM,
                    byte_len: if peer.manners.byte_counts { length as u32 } else { 0 },
                    imm_data: request.imm_data,
                    qp_num: peer.number,
                    wc_flags: WC_WITH_IMM,
                    ..sys::Wc::default()
                },
                released: &peer.receives().released,
                places: 1,
            });
        }
        self.complete_here(sends, work, length);
    }

    /// Reports a request that was carried out to this side, if it is signalled.
    #[inline]
    fn complete_here(&self, sends: &mut Sends, work: &Work<'_>, length: u64) {
        let request = work.request;
        sends.counts.bytes += length;
        sends.unreported += 1;
        if request.send_flags & sys::SEND_SIGNALED != 0 {
            let places = std::mem::take(&mut sends.unreported);
            self.send_cq().push(Entry {
                completion: sys::Wc {
                    wr_id: request.wr_id,
                    status: sys::WC_SUCCESS,
                    opcode: if work.reads() { sys::WC_RDMA_READ } else { sys::WC_RDMA_WRITE },
                    byte_len: if work.reads() || self.manners.sent_bytes { length as u32 } else { UNSAID },
                    qp_num: self.number,
                    ..sys::Wc::default()
                },
                released: &self.released,
                places,
            });
        }
    }

    /// Carries out or fails one request. Returns false if it must wait for a receive.
    #[inline]
    fn carry_or_fail(&self, sends: &mut Sends, work: &Work<'_>) -> bool {
        match self.carry(sends, work) {
            Ok(true) => true,
            Ok(false) if sends.rnr_retry == 7 => false,
            Ok(false) => {
                self.fail(sends, work.request.wr_id, sys::WC_RNR_RETRY_EXC_ERR, None);
                true
            }
            Err(failure) => {
                let peer = failure.event.map(|event| (failure.peer, event));
                self.fail(sends, work.request.wr_id, failure.status, peer);
                true
            }
        }
    }

    /// Posts one request of ibv_post_send(3), as the gate says. The gate must be of the current epoch.
    #[inline]
    pub(crate) fn post(&self, sends: &mut Sends, request: &sys::SendWr) -> Result<(), c_int> {
        self.admit(sends, request)?;
        // SAFETY: ibv_post_send(3): `sg_list` has `num_sge` entries; `admit` has checked that this is not negative.
        let work = unsafe { Work::of(request) };
        if self.inlines(&work) {
            self.admit_inline(&work)?;
        }
        sends.posted = sends.posted.wrapping_add(1);
        work.count(&mut sends.counts);
        match sends.gate {
            Gate::Open => {
                if !self.carry_or_fail(sends, &work) {
                    self.hold(sends, &work);
                }
            }
            Gate::Held => self.hold(sends, &work),
            Gate::Lost => self.fail(sends, request.wr_id, sends.loss, None),
            Gate::Broken | Gate::Shut => self.report(sends, request.wr_id, sys::WC_WR_FLUSH_ERR),
        }
        Ok(())
    }
}

/// Returns the completion of failed work. Fields that are undefined then (ibv_poll_cq(3)) are those of an arrival, so
/// that nobody gets away with reading them.
fn failed(id: u64, qp_number: u32, status: c_int) -> sys::Wc {
    sys::Wc {
        wr_id: id,
        status,
        opcode: sys::WC_RECV_RDMA_WITH_IMM,
        vendor_err: 0x50 + status as u32,
        byte_len: u32::MAX,
        imm_data: u32::MAX,
        qp_num: qp_number,
        ..sys::Wc::default()
    }
}
