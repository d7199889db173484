//! The requests of a connection as NCCL's profiler and the trace see them: which rails carry each, and since when.
//!
//! A connection that nobody watches has no observer, and its calls do not look for one.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use railweave_abi::ProfilerCallback;
use railweave_abi::profiler::EventCall;
use railweave_abi::profiler::ib::{KIND_QP, NetIbDescr, PLUGIN_ID_V1, Qp};
use railweave_fabric::{Fabric, MAX_RAILS, RailId, RailSet};
use railweave_trace::{Record, What};
use railweave_transport::{
    Carriers, Fate, PostedSlot, RailInfo, RecvConnection, RecvRequest, SendConnection, SendRequest,
};

use crate::trace::{self, Tracer};

/// The opcode of a send's events: that of its writes, IBV_WR_RDMA_WRITE_WITH_IMM of ibv_post_send(3).
const WRITE_WITH_IMMEDIATE: c_int = 3;

/// The opcode of a receive's events: that of its completions, IBV_WC_RECV_RDMA_WITH_IMM of ibv_poll_cq(3).
const RECEIVED_WITH_IMMEDIATE: c_int = 129;

/// The watcher of a connection's requests. Only NCCL's progress thread of the connection uses it.
pub(crate) struct Observer {
    /// NCCL's callback; `None` before v10 of its net API.
    callback: Option<ProfilerCallback>,
    trace: Option<Traced>,
    fate: Arc<Fate>,
    /// The index of each rail's local port.
    ports: [c_int; MAX_RAILS],
    opcode: c_int,
    /// The time since when messages wait for a CTS; 0 if none does.
    waiting_since_ns: u64,
    next_request: u64,
    watched: Vec<Watched>,
}

/// A connection that is traced.
pub(crate) struct Traced {
    pub(crate) tracer: Arc<Tracer>,
    /// The connection's number in the trace.
    pub(crate) connection: u32,
}

/// A request that is watched.
struct Watched {
    /// The request's index.
    index: usize,
    /// Its number in the connection.
    number: u64,
    /// NCCL's handle of it for its profiler; NULL if there is none.
    handle: *mut c_void,
    /// At the sending end, its slot, once it is posted.
    slot: Option<PostedSlot>,
    /// False once NCCL's profiler is known not to want its events.
    is_wanted: bool,
    /// The rails whose parts have begun, and those whose parts have ended.
    begun: RailSet,
    ended: RailSet,
    /// The profiler's events of the rails; NULL for none.
    events: [*mut c_void; MAX_RAILS],
}

// SAFETY: the pointers are NCCL's, which are passed back to NCCL only, by the thread that uses the connection.
unsafe impl Send for Observer {}

/// The records of one call, all at one time.
struct Notes<'a> {
    trace: Option<&'a Traced>,
    at_ns: u64,
}

impl Notes<'_> {
    fn add(&mut self, what: impl FnOnce(u32) -> What) {
        let Some(trace) = self.trace else { return };
        if self.at_ns == 0 {
            self.at_ns = trace::now_ns();
        }
        trace::note(&trace.tracer, Record { at_ns: self.at_ns, what: what(trace.connection) });
    }
}

impl Observer {
    /// Returns the observer of a connection; `None` if nobody may watch it.
    pub(crate) fn of(
        callback: Option<ProfilerCallback>,
        trace: Option<Traced>,
        rails: &[RailInfo],
        fate: &Arc<Fate>,
        sends: bool,
    ) -> Option<Box<Self>> {
        // If NCCL has this library's own profiler, which sleeps, no event reaches another.
        let callback = callback.filter(|_| trace.is_some() || !crate::callback::is_own());
        if callback.is_none() && trace.is_none() {
            return None;
        }
        let mut ports = [0; MAX_RAILS];
        for rail in rails {
            if let Some(port) = ports.get_mut(rail.index) {
                *port = c_int::try_from(rail.local_port).unwrap_or(0);
            }
        }
        Some(Box::new(Self {
            callback,
            trace,
            fate: Arc::clone(fate),
            ports,
            opcode: if sends { WRITE_WITH_IMMEDIATE } else { RECEIVED_WITH_IMMEDIATE },
            waiting_since_ns: 0,
            next_request: 0,
            // All that a connection can have, because the data path does not allocate.
            watched: Vec::with_capacity(RecvRequest::COUNT),
        }))
    }

    /// Returns true if a request with this handle of NCCL's is to be watched.
    #[inline]
    pub(crate) fn watches(&self, handle: *mut c_void) -> bool {
        self.trace.is_some() || !handle.is_null()
    }

    /// Returns true if another `isend` without a CTS tells nothing new.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.trace.is_none() || self.waiting_since_ns > 0
    }

    /// Returns true if a request is watched.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Notes the result of an `isend` of `bytes` bytes with this handle: the request if the message was taken.
    ///
    /// # Safety
    /// The handle must be NULL or NCCL's, for this request.
    pub(crate) unsafe fn sent<F: Fabric>(
        &mut self,
        end: &SendConnection<F>,
        request: Option<SendRequest>,
        bytes: u64,
        handle: *mut c_void,
    ) {
        let Some(request) = request else {
            if self.trace.is_some() && self.waiting_since_ns == 0 && end.waits_for_cts() {
                self.waiting_since_ns = trace::now_ns();
            }
            return;
        };
        let waiting_since_ns = std::mem::take(&mut self.waiting_since_ns);
        let Some((number, event)) = self.begin(request.index(), handle) else {
            return;
        };
        {
            let mut notes = notes(&self.trace);
            if waiting_since_ns > 0 {
                let for_ns = trace::now_ns().saturating_sub(waiting_since_ns);
                notes.add(|connection| What::CtsWait { connection, request: number, for_ns });
            }
            notes.add(|connection| What::SendBegin { connection, request: number, bytes });
            if event != 0 {
                notes.add(|connection| What::Belongs { connection, request: number, event });
            }
        }
        self.look_at_sends(end);
    }

    /// Notes that an `irecv` of `buffers` buffers with room for `bytes` bytes was posted, with these handles of its
    /// buffers. A group is one request, so a profiler gets the events of its rails for the first of them.
    ///
    /// # Safety
    /// Each handle must be NULL or NCCL's, for this request.
    pub(crate) unsafe fn posted<F: Fabric>(
        &mut self,
        end: &RecvConnection<F>,
        request: Option<RecvRequest>,
        (buffers, bytes): (u8, u64),
        handles: &[*mut c_void],
    ) {
        let handle = handles.first().copied().unwrap_or_default();
        if let Some(request) = request
            && let Some((number, event)) = self.begin(request.index(), handle)
        {
            let others = handles.iter().skip(1).filter(|_| event != 0);
            let others = others.map(|handle| self.start(RailId::default(), *handle, number, 0, 0).addr() as u64);
            let mut notes = notes(&self.trace);
            notes.add(|connection| What::ReceiveBegin { connection, request: number, bytes, buffers });
            for event in std::iter::once(event).chain(others).filter(|event| *event != 0) {
                notes.add(|connection| What::Belongs { connection, request: number, event });
            }
        }
        self.look_at_receives(end);
    }

    /// Notes that a flush was posted.
    pub(crate) fn flushes(&mut self, request: RecvRequest) {
        if self.trace.is_some()
            && let Some((number, _)) = self.begin(request.index(), ptr::null_mut())
        {
            notes(&self.trace).add(|connection| What::FlushBegin { connection, request: number });
        }
    }

    /// Begins to watch a request. Returns its number, and the event of NCCL's profiler that it belongs to, 0 for none.
    fn begin(&mut self, index: usize, handle: *mut c_void) -> Option<(u64, u64)> {
        if self.watched.len() == RecvRequest::COUNT {
            return None;
        }
        self.next_request += 1;
        let number = self.next_request;
        // This library's own profiler answers with the event above: its trace has the rails already.
        let is_own = crate::callback::is_own();
        let event = if is_own { self.start(RailId::default(), handle, number, 0, 0).addr() as u64 } else { 0 };
        let handle = if is_own { ptr::null_mut() } else { handle };
        let (begun, ended, events) = (RailSet::EMPTY, RailSet::EMPTY, [ptr::null_mut(); MAX_RAILS]);
        self.watched.push(Watched { index, number, handle, slot: None, is_wanted: true, begun, ended, events });
        Some((number, event))
    }

    /// Starts an event of NCCL's profiler. Returns its handle; NULL if NCCL wants none.
    fn start(&self, rail: RailId, handle: *mut c_void, request: u64, lane: u32, bytes: u64) -> *mut c_void {
        let mut event = ptr::null_mut();
        let Some(callback) = self.callback.filter(|_| !handle.is_null()) else { return event };
        let qp = Qp {
            device: self.ports[rail],
            wr_id: request,
            opcode: self.opcode,
            qp_num: lane.cast_signed(),
            length: usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        let mut descr = NetIbDescr { kind: KIND_QP, qp };
        // The code says nothing: NCCL's callback always succeeds. It leaves the event NULL if it wants none.
        // SAFETY: the callback is NCCL's. The handle is not NULL, and its request is in progress. NCCL copies the
        // structure.
        let _ = unsafe { callback(&raw mut event, EventCall::START.0, handle, PLUGIN_ID_V1, (&raw mut descr).cast()) };
        event
    }

    /// Ends an event of NCCL's profiler.
    fn stop(callback: Option<ProfilerCallback>, event: *mut c_void) {
        if let Some(callback) = callback
            && !event.is_null()
        {
            let mut event = event;
            // SAFETY: the callback is NCCL's, and the event is one that it has started and that was not stopped.
            unsafe {
                let _ = callback(&raw mut event, EventCall::STOP.0, ptr::null_mut(), PLUGIN_ID_V1, ptr::null_mut());
            }
        }
    }

    /// Notes the rails that carry sends now, and those that are done with theirs.
    pub(crate) fn look_at_sends<F: Fabric>(&mut self, end: &SendConnection<F>) {
        self.look(
            |watched| {
                let request = SendRequest::from_index(watched.index);
                watched.slot = watched.slot.or_else(|| end.posted_slot(request));
                watched.slot.map_or(Carriers::default(), |slot| end.carriers(slot))
            },
            |watched, rail| {
                let request = SendRequest::from_index(watched.index);
                let bytes = watched.slot.map_or(0, |slot| end.bytes_on(slot, request, rail));
                (end.lane_number(rail), bytes)
            },
        );
    }

    /// Notes the rails that carry receives now, and those that are done with theirs.
    pub(crate) fn look_at_receives<F: Fabric>(&mut self, end: &RecvConnection<F>) {
        let parts = |watched: &mut Watched| end.carriers(RecvRequest::from_index(watched.index));
        self.look(parts, |_, rail| (end.lane_number(rail), 0));
    }

    /// Looks at all requests: `parts` returns the rails of one, `facts` the number of a rail's first lane and the bytes
    /// that the rail was given.
    fn look(
        &mut self,
        mut parts: impl FnMut(&mut Watched) -> Carriers,
        facts: impl Fn(&Watched, RailId) -> (u32, u64),
    ) {
        let mut watched = std::mem::take(&mut self.watched);
        {
            let mut notes = notes(&self.trace);
            for it in &mut watched {
                let Carriers { active, missing } = parts(it);
                let number = it.number;
                for rail in active.except(it.begun) {
                    let (lane, bytes) = facts(it, rail);
                    it.events[rail] = self.start(rail, it.handle, number, lane, bytes);
                    notes.add(|connection| What::PieceBegin {
                        connection,
                        rail: rail.index() as u8,
                        request: number,
                        bytes,
                    });
                }
                if !active.is_within(it.begun) {
                    // NCCL's mask is the same for all rails of a request.
                    it.is_wanted = self.trace.is_some() || it.events.iter().any(|event| !event.is_null());
                }
                it.begun |= active;
                for rail in it.begun.except(missing).except(it.ended) {
                    it.end_part(self.callback, rail, &mut notes);
                }
            }
        }
        watched.retain(|it| it.is_wanted);
        self.watched = watched;
    }

    /// Notes that a request is done, with this many bytes.
    pub(crate) fn done(&mut self, index: usize, bytes: u64) {
        let Some(place) = self.watched.iter().position(|watched| watched.index == index) else { return };
        let mut watched = self.watched.remove(place);
        let mut notes = notes(&self.trace);
        for rail in watched.begun.except(watched.ended) {
            watched.end_part(self.callback, rail, &mut notes);
        }
        let request = watched.number;
        notes.add(|connection| What::RequestEnd { connection, request, bytes });
    }

    /// Ends what is in progress if the connection is broken: NCCL tests none of it again. A connection that has only
    /// refused a call goes on.
    pub(crate) fn call_failed(&mut self) {
        if self.fate.broken().is_none() {
            return;
        }
        for watched in self.watched.drain(..) {
            for rail in watched.begun.except(watched.ended) {
                Self::stop(self.callback, watched.events[rail]);
            }
        }
    }
}

impl Watched {
    /// Notes that a rail is done with its part.
    fn end_part(&mut self, callback: Option<ProfilerCallback>, rail: RailId, notes: &mut Notes<'_>) {
        self.ended.insert(rail);
        Observer::stop(callback, std::mem::replace(&mut self.events[rail], ptr::null_mut()));
        let request = self.number;
        notes.add(|connection| What::PieceEnd { connection, rail: rail.index() as u8, request });
    }
}

/// Returns the place for the records of one call.
fn notes(trace: &Option<Traced>) -> Notes<'_> {
    Notes { trace: trace.as_ref(), at_ns: 0 }
}
