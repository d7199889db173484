//! NCCL's calls on the data path, the same for all API versions: isend, irecv, iflush, test. They do not block,
//! allocate or lock; this crate's clippy.toml lists the types that are banned for that.
//!
//! Each of them exists once for each fabric and end. A connection holds the addresses of its own functions ([`Calls`]),
//! and NCCL's call jumps there: one function runs from NCCL's arguments through the steps of the call
//! (`railweave_transport::call`) to the fabric's work request. Watched connections (`observed.rs`) call these functions
//! too. So they are never inlined there: each step would then have two callers, and be a call itself.

use std::ffi::{c_int, c_void};
use std::ptr;

use railweave_abi::NcclResult;
use railweave_abi::net::OPTIONAL_RECV_COMPLETION;
use railweave_fabric::Fabric;
use railweave_transport::{
    Error, Event, Flushed, Incoming, MAX_BUFFERS, Outgoing, RecvConnection, RecvRequest, SendConnection, SendRequest,
    call,
};

use super::guard::{failed, guard, null, put};
use crate::comm::{Calls, Comm, End, MemoryHandle, Request, no_connection};
use crate::log;

/// Returns the calls of a [`SendConnection<F>`].
pub(super) fn calls_of_sender<F: Fabric>() -> Calls
where
    SendConnection<F>: Send,
{
    Calls { isend: isend_on::<F>, irecv: irecv_on_sender, test: test_send::<F>, iflush: iflush_on_sender }
}

/// Returns the calls of a [`RecvConnection<F>`].
pub(super) fn calls_of_receiver<F: Fabric>() -> Calls
where
    RecvConnection<F>: Send,
{
    Calls { isend: isend_on_receiver, irecv: irecv_on::<F>, test: test_recv::<F>, iflush: iflush_on::<F> }
}

/// `isend`.
///
/// # Safety
/// `comm` and `memory` must be this plugin's, `data` in that memory, `profiler` NULL or NCCL's handle of this request
/// for its profiler, `request` NULL or valid for writing; only the connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    memory: *mut c_void,
    profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the caller's promises; the calls are the connection's own.
    unsafe {
        match Comm::known(comm) {
            Some(comm) => (comm.calls.isend)(comm, data, size, tag, memory, profiler, request),
            None => refuse_isend(comm),
        }
    }
}

/// The buffers of one receive.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<S> {
    pub(crate) count: c_int,
    pub(crate) data: *mut *mut c_void,
    pub(crate) sizes: *mut S,
    pub(crate) tags: *mut c_int,
    pub(crate) memory: *mut *mut c_void,
}

/// `irecv`. `request` may hold the hint that the completion is optional. `profiler` is NULL, or has a handle for each
/// buffer.
///
/// # Safety
/// `comm` must be this plugin's; the arrays must hold `count` entries each, with memory handles of this plugin;
/// `request` must be NULL or valid for reading and writing; only the connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn irecv(
    comm: *mut c_void,
    buffers: Buffers<usize>,
    profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let Buffers { count, data, sizes, tags, memory } = buffers;
    // SAFETY: the caller's promises; the calls are the connection's own.
    unsafe {
        match Comm::known(comm) {
            Some(comm) => (comm.calls.irecv)(comm, count, data, sizes, tags, memory, profiler, request),
            None => refuse_irecv(comm),
        }
    }
}

/// `test`.
///
/// # Safety
/// `request` must come from this plugin and not be done; `done` must be NULL or valid for writing; `sizes` must be NULL
/// or valid for writing one `int` per buffer; only the connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> NcclResult {
    // SAFETY: the caller's promises; the calls are the connection's own.
    unsafe {
        match Request::known(request) {
            Some(request) => (request.comm().calls.test)(request, done, sizes),
            None => refuse_test(),
        }
    }
}

// The next three are functions of C, which do not unwind, so that their callers can jump there: a call would cost each
// message 8 instructions, because these callers would need stack frames.

/// Refuses an `isend`.
#[cold]
extern "C" fn refuse_isend(comm: *mut c_void) -> NcclResult {
    failed("isend", no_connection(comm))
}

/// Refuses an `irecv`.
#[cold]
extern "C" fn refuse_irecv(comm: *mut c_void) -> NcclResult {
    failed("irecv", no_connection(comm))
}

/// Refuses a `test`.
#[cold]
extern "C" fn refuse_test() -> NcclResult {
    failed("test", Error::protocol("test was called with NULL for the request"))
}

/// `iflush`. A request of NULL means that there is nothing to wait for.
///
/// # Safety
/// The same as for [`irecv`].
pub(crate) unsafe fn iflush(
    comm: *mut c_void,
    buffers: &Buffers<c_int>,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let comm = unsafe {
        put("iflush", "the request", request, ptr::null_mut())?;
        Comm::from_raw(comm)
    }?;
    let count = usize::try_from(buffers.count).unwrap_or(0).min(MAX_BUFFERS);
    if count > 0 && (buffers.data.is_null() || buffers.sizes.is_null() || buffers.memory.is_null()) {
        return Err(null("iflush", "one of the buffers' arrays"));
    }
    if count == 0 {
        return Ok(());
    }
    // SAFETY: the arrays hold `count` entries, by the caller's promise; each is read inside them.
    let buffer = |index: usize| unsafe {
        let size = *buffers.sizes.add(index);
        let size = usize::try_from(size).map_err(|_| negative_size("iflush", size))?;
        incoming("iflush", *buffers.data.add(index), size, 0, *buffers.memory.add(index))
    };
    let mut all = [buffer(0)?; MAX_BUFFERS];
    for (index, place) in all.iter_mut().enumerate().take(count) {
        *place = buffer(index)?;
    }
    // SAFETY: checked above not to be NULL, and the caller's promises; the call is the connection's own.
    unsafe { (comm.calls.iflush)(comm, &all[..count], request) }
}

/// # Safety
/// The same as for [`isend`], on a connection that sends over `F`.
#[inline(never)]
pub(super) unsafe extern "C" fn isend_on<F: Fabric>(
    comm: &Comm,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    memory: *mut c_void,
    _profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult
where
    SendConnection<F>: Send,
{
    guard("isend", || {
        // SAFETY: the caller's promises.
        let memory = unsafe {
            put("isend", "the request", request, ptr::null_mut())?;
            memory_handle("isend", memory)?
        };
        let (address, size, tag, keys) = (data.addr() as u64, size as u64, tag as u32, &memory.keys);
        let message = Outgoing { address, size, tag, keys };
        // SAFETY: the caller's promises, and `isend` calls this after it has taken the connection over.
        let end = || unsafe { end_of::<SendConnection<F>>("isend", comm) };
        if let Some(sent) = call::isend(comm, end, &message, |event| log_event(&event, comm))? {
            // SAFETY: checked above not to be NULL, and the caller's promise.
            unsafe { request.write(comm.request(sent.index())) };
        }
        Ok(())
    })
}

/// # Safety
/// The same as for [`irecv`], on a connection that receives over `F`.
#[inline(never)]
pub(super) unsafe extern "C" fn irecv_on<F: Fabric>(
    comm: &Comm,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    _profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult
where
    RecvConnection<F>: Send,
{
    guard("irecv", || {
        if request.is_null() {
            return Err(null("irecv", "the request"));
        }
        // SAFETY: not NULL, and the caller's promises.
        let optional = unsafe { take_hint(request) };
        // Each array has its own message, and separate branches take fewer instructions.
        if data.is_null() {
            return Err(null("irecv", "the array of addresses"));
        }
        if sizes.is_null() {
            return Err(null("irecv", "the array of sizes"));
        }
        if tags.is_null() {
            return Err(null("irecv", "the array of tags"));
        }
        if memory.is_null() {
            return Err(null("irecv", "the array of memory handles"));
        }
        if count != 1 {
            let buffers = Buffers { count, data, sizes, tags, memory };
            // SAFETY: the caller's promises.
            return unsafe { irecv_group::<F>(comm, &buffers, optional, request) };
        }
        // SAFETY: the caller's promises, for one entry each.
        let buffer = unsafe { incoming("irecv", *data, *sizes, *tags, *memory)? };
        // SAFETY: the caller's promises; `request` is not NULL.
        unsafe { irecv_buffers::<F>(comm, &[buffer], optional, request) }
    })
}

/// # Safety
/// The same as for [`test()`], of a request of a connection that sends over `F`.
#[inline(never)]
pub(super) unsafe extern "C" fn test_send<F: Fabric>(
    request: &Request,
    done: *mut c_int,
    size: *mut c_int,
) -> NcclResult
where
    SendConnection<F>: Send,
{
    guard("test", || {
        let (comm, sent) = (request.comm(), SendRequest::from_index(request.index()));
        // SAFETY: the caller's promises.
        unsafe { put("test", "done", done, 0) }?;
        // SAFETY: the caller's promises, and `test_send` calls this after it has taken the connection over.
        let end = || unsafe { end_of::<SendConnection<F>>("test", comm) };
        if let Some(bytes) = call::test_send(comm, end, sent)? {
            // SAFETY: checked above not to be NULL, and the caller's promises. Sizes are at most 1 GiB, which an int
            // holds.
            unsafe {
                done.write(1);
                if !size.is_null() {
                    size.write(bytes as c_int);
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// The same as for [`test()`], of a request of a connection that receives over `F`.
#[inline(never)]
pub(super) unsafe extern "C" fn test_recv<F: Fabric>(
    request: &Request,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult
where
    RecvConnection<F>: Send,
{
    guard("test", || {
        let (comm, received) = (request.comm(), RecvRequest::from_index(request.index()));
        // SAFETY: the caller's promises.
        unsafe { put("test", "done", done, 0) }?;
        // SAFETY: the caller's promises, and `test_recv` calls this after it has taken the connection over.
        let end = || unsafe { end_of::<RecvConnection<F>>("test", comm) };
        call::test_recv(comm, end, received, |arrived| {
            // SAFETY: checked above not to be NULL, and the caller's promises. Sizes are at most 1 GiB, which an int
            // holds.
            unsafe {
                done.write(1);
                if !sizes.is_null() {
                    arrived.iter().enumerate().for_each(|(place, size)| sizes.add(place).write(*size as c_int));
                }
            }
        })
    })
}

/// `iflush` of some buffers.
///
/// # Safety
/// The same as for [`iflush()`], on a connection that receives over `F`; `request` must not be NULL.
pub(super) unsafe fn iflush_on<F: Fabric>(
    comm: &Comm,
    buffers: &[Incoming<'_>],
    request: *mut *mut c_void,
) -> Result<(), Error>
where
    RecvConnection<F>: Send,
{
    // SAFETY: the caller's promises, and `iflush` calls this after it has taken the connection over.
    let end = || unsafe { end_of::<RecvConnection<F>>("iflush", comm) };
    if let Flushed::Pending(flush) = call::iflush(comm, end, buffers)? {
        // SAFETY: the caller's promise.
        unsafe { request.write(comm.request(flush.index())) };
    }
    Ok(())
}

/// `isend` on the wrong end.
pub(super) unsafe extern "C" fn isend_on_receiver(
    _: &Comm,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    failed("isend", Error::protocol("isend was called on a connection that receives"))
}

/// `irecv` on the wrong end.
pub(super) unsafe extern "C" fn irecv_on_sender(
    _: &Comm,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut usize,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    failed("irecv", Error::protocol("irecv was called on a connection that sends"))
}

/// `iflush` on the wrong end.
pub(super) unsafe fn iflush_on_sender(_: &Comm, _: &[Incoming<'_>], _: *mut *mut c_void) -> Result<(), Error> {
    Err(Error::protocol("iflush was called on a connection that sends"))
}

/// `irecv` with any number of buffers.
///
/// # Safety
/// The same as for [`irecv`]; neither `request` nor an array may be NULL.
#[inline(never)]
unsafe fn irecv_group<F: Fabric>(
    comm: &Comm,
    buffers: &Buffers<usize>,
    optional: bool,
    request: *mut *mut c_void,
) -> Result<(), Error>
where
    RecvConnection<F>: Send,
{
    let Some(count) = usize::try_from(buffers.count).ok().filter(|count| (1..=MAX_BUFFERS).contains(count)) else {
        return Err(Error::protocol(format!(
            "irecv was called with {} buffers; allowed: 1 to {MAX_BUFFERS} (maxRecvs)",
            buffers.count
        )));
    };
    // SAFETY: the arrays hold `count` entries, by the caller's promise; each is read inside them.
    let buffer = |index: usize| unsafe {
        let (data, size) = (*buffers.data.add(index), *buffers.sizes.add(index));
        incoming("irecv", data, size, *buffers.tags.add(index), *buffers.memory.add(index))
    };
    let mut all = [buffer(0)?; MAX_BUFFERS];
    for (index, place) in all.iter_mut().enumerate().take(count) {
        *place = buffer(index)?;
    }
    // SAFETY: the caller's promises.
    unsafe { irecv_buffers::<F>(comm, &all[..count], optional, request) }
}

/// `irecv` into these buffers.
///
/// # Safety
/// The same as for [`irecv`], on a connection that receives over `F`; `request` must not be NULL.
#[inline(always)]
unsafe fn irecv_buffers<F: Fabric>(
    comm: &Comm,
    buffers: &[Incoming<'_>],
    optional: bool,
    request: *mut *mut c_void,
) -> Result<(), Error>
where
    RecvConnection<F>: Send,
{
    // SAFETY: the caller's promises, and `irecv` calls this after it has taken the connection over.
    let end = || unsafe { end_of::<RecvConnection<F>>("irecv", comm) };
    if let Some(received) = call::irecv(comm, end, buffers, optional)? {
        // SAFETY: the caller's promise.
        unsafe { request.write(comm.request(received.index())) };
    }
    Ok(())
}

/// Logs an event of a connection.
#[cold]
fn log_event(event: &Event, comm: &Comm) {
    log::warn(&log::line(event, &comm.peer));
    comm.note(event.clone());
}

/// Returns a connection's end.
///
/// # Safety
/// This must be the connection's progress thread, which has taken the connection over, and `E` the type of its end:
/// only functions of its own [`Calls`] may call this.
#[inline(always)]
#[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
pub(super) unsafe fn end_of<'a, E: End>(call: &str, comm: &'a Comm) -> Result<&'a mut E, Error> {
    // SAFETY: the caller's promise.
    match unsafe { comm.end() } {
        // SAFETY: the caller's promise about its type.
        Some(end) => Ok(unsafe { &mut *ptr::from_mut::<dyn End>(end).cast::<E>() }),
        None => Err(closed(call)),
    }
}

/// Returns true if NCCL does not need this receive's completion, and replaces the hint with NULL.
///
/// # Safety
/// `request` must be valid for reading and writing.
#[inline]
unsafe fn take_hint(request: *mut *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    unsafe { request.replace(ptr::null_mut()) }.addr() == OPTIONAL_RECV_COMPLETION
}

/// # Safety
/// `memory` must be NULL or come from [`super::api::reg_mr`] and not be deregistered.
#[inline]
unsafe fn memory_handle<'a>(call: &str, memory: *mut c_void) -> Result<&'a MemoryHandle, Error> {
    // SAFETY: the caller's promise; NULL becomes `None`.
    unsafe { memory.cast::<MemoryHandle>().as_ref() }.ok_or_else(|| null(call, "the memory handle (regMr's)"))
}

/// Builds one buffer of `irecv` or `iflush`.
///
/// # Safety
/// `memory` as for [`memory_handle`].
#[inline]
unsafe fn incoming<'a>(
    call: &str,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    memory: *mut c_void,
) -> Result<Incoming<'a>, Error> {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory_handle(call, memory) }?;
    Ok(Incoming { address: data.addr() as u64, size: size as u64, tag: tag as u32, keys: &memory.keys })
}

/// Returns the error for a negative size: NCCL's older versions pass sizes as `int`.
#[cold]
pub(crate) fn negative_size(call: &str, size: c_int) -> Error {
    Error::protocol(format!("{call} was called with a size of {size} bytes; allowed: 0 and more"))
}

#[cold]
fn closed(call: &str) -> Error {
    Error::protocol(format!("{call} was called on a connection that was closed"))
}
