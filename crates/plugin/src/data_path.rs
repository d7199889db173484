//! NCCL's calls on the data path, without versions: isend, irecv, iflush, test. They do not block, allocate or lock; what is
//! banned for that stands in this crate's clippy.toml.

use std::ffi::{c_int, c_void};

use railweave_transport::{Error, Flushed, Incoming, MAX_BUFFERS};

use crate::api::{null, put};
use crate::comm::{Comm, Request};
use crate::ends::{End, RecvEnd};
use crate::network::MemoryHandle;

/// # Safety
/// `memory` must be NULL or come from [`crate::api::reg_mr`] and not be deregistered.
#[inline]
unsafe fn memory_handle<'a>(call: &str, memory: *mut c_void) -> Result<&'a MemoryHandle, Error> {
    // SAFETY: the caller's promise; NULL gives None.
    unsafe { memory.cast::<MemoryHandle>().as_ref() }.ok_or_else(|| null(call, "the memory handle (regMr's)"))
}

/// The data path's end of a connection that this thread uses from now on.
///
/// # Safety
/// This must be the connection's progress thread.
#[inline]
#[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
unsafe fn enter(comm: &Comm) -> Option<&mut End> {
    comm.debt.take_over();
    // SAFETY: the caller's promise, and nobody settles the connection's debt any more.
    unsafe { comm.end() }
}

/// `isend`.
///
/// # Safety
/// `comm` and `memory` must be this plugin's, `data` in that memory, `request` NULL or valid for writing; only the
/// connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let (comm, memory) = unsafe {
        put("isend", "the request", request, std::ptr::null_mut())?;
        (Comm::from_raw(comm)?, memory_handle("isend", memory)?)
    };
    // SAFETY: this is the connection's progress thread.
    let Some(End::Send(end)) = (unsafe { enter(comm) }) else {
        return Err(Error::protocol("isend was called on a connection that receives"));
    };
    // SAFETY: checked above not to be NULL, and the caller's promise.
    unsafe { end.isend(comm, data.addr() as u64, size as u64, tag as u32, &memory.keys, request) }
}

/// One buffer of `irecv` and `iflush`.
///
/// # Safety
/// `memory` as for [`memory_handle`].
#[inline]
unsafe fn incoming<'a, S: TryInto<u64>>(
    call: &str,
    data: *mut c_void,
    size: S,
    tag: c_int,
    memory: *mut c_void,
) -> Result<Incoming<'a>, Error> {
    let Ok(size) = size.try_into() else {
        return Err(negative(call));
    };
    // SAFETY: the caller's promise.
    let memory = unsafe { memory_handle(call, memory) }?;
    Ok(Incoming { address: data.addr() as u64, size, tag: tag as u32, keys: &memory.keys })
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

/// `irecv`. `request` may hold the hint that the completion is optional.
///
/// # Safety
/// `comm` must be this plugin's; the arrays must hold `count` entries each, with memory handles of this plugin; `request`
/// must be NULL or valid for reading and writing; only the connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn irecv<S: Copy + TryInto<u64>>(
    comm: *mut c_void,
    buffers: Buffers<S>,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    if request.is_null() {
        return Err(null("irecv", "the request"));
    }
    // SAFETY: the caller's promise.
    let comm = unsafe { Comm::from_raw(comm) }?;
    // SAFETY: this is the connection's progress thread.
    let Some(End::Recv(end)) = (unsafe { enter(comm) }) else {
        return Err(Error::protocol("irecv was called on a connection that sends"));
    };
    if buffers.count != 1 {
        // SAFETY: the caller's promises.
        return unsafe { irecv_group(comm, end.as_mut(), &{ buffers }, request) };
    }
    let Buffers { data, sizes, tags, memory, .. } = buffers;
    if data.is_null() || sizes.is_null() || tags.is_null() || memory.is_null() {
        return Err(null("irecv", "one of the buffers' arrays"));
    }
    // SAFETY: the caller's promises, for one entry each; the request was checked not to be NULL.
    unsafe {
        let Incoming { address, size, tag, keys } = incoming("irecv", *data, *sizes, *tags, *memory)?;
        end.irecv_one(comm, address, size, tag, keys, request)
    }
}

/// Any count of buffers.
///
/// # Safety
/// As for [`irecv`], where `request` is not NULL.
#[inline(never)]
unsafe fn irecv_group<S: Copy + TryInto<u64>>(
    comm: &Comm,
    end: &mut dyn RecvEnd,
    buffers: &Buffers<S>,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    let Some(count) = usize::try_from(buffers.count).ok().filter(|count| (1..=MAX_BUFFERS).contains(count)) else {
        return Err(Error::protocol(format!(
            "irecv was called with {} buffers, allowed are 1 to {MAX_BUFFERS} (maxRecvs)",
            buffers.count
        )));
    };
    if buffers.data.is_null() || buffers.sizes.is_null() || buffers.tags.is_null() || buffers.memory.is_null() {
        return Err(null("irecv", "one of the buffers' arrays"));
    }
    // SAFETY: the arrays hold `count` entries, by the caller's promise; each is read inside them.
    let buffer = |index: usize| unsafe {
        let (data, size) = (*buffers.data.add(index), *buffers.sizes.add(index));
        incoming("irecv", data, size, *buffers.tags.add(index), *buffers.memory.add(index))
    };
    let mut all = [buffer(0)?; MAX_BUFFERS];
    for (index, place) in all.iter_mut().enumerate().take(count) {
        *place = buffer(index)?;
    }
    // SAFETY: the caller's promise.
    unsafe { end.irecv(comm, &all[..count], request) }
}

#[cold]
fn negative(call: &str) -> Error {
    Error::protocol(format!("{call} was called with a negative size for a buffer"))
}

/// `iflush`. A request of NULL means that there is nothing to wait for.
///
/// # Safety
/// As for [`irecv`].
pub(crate) unsafe fn iflush(
    comm: *mut c_void,
    buffers: &Buffers<c_int>,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let comm = unsafe {
        put("iflush", "the request", request, std::ptr::null_mut())?;
        Comm::from_raw(comm)
    }?;
    // SAFETY: this is the connection's progress thread.
    let Some(End::Recv(end)) = (unsafe { enter(comm) }) else {
        return Err(Error::protocol("iflush was called on a connection that sends"));
    };
    let count = usize::try_from(buffers.count).unwrap_or(0).min(MAX_BUFFERS);
    if count > 0 && (buffers.data.is_null() || buffers.sizes.is_null() || buffers.memory.is_null()) {
        return Err(null("iflush", "one of the buffers' arrays"));
    }
    if count == 0 {
        return Ok(());
    }
    // SAFETY: the arrays hold `count` entries, by the caller's promise; each is read inside them.
    let buffer = |index: usize| unsafe {
        incoming("iflush", *buffers.data.add(index), *buffers.sizes.add(index), 0, *buffers.memory.add(index))
    };
    let mut all = [buffer(0)?; MAX_BUFFERS];
    for (index, place) in all.iter_mut().enumerate().take(count) {
        *place = buffer(index)?;
    }
    if let Flushed::Pending(flush) = end.iflush(&all[..count])? {
        // SAFETY: checked above not to be NULL, and the caller's promise.
        unsafe { request.write(comm.request(flush.index())) };
    }
    Ok(())
}

/// `test`.
///
/// # Safety
/// `request` must come from this plugin and not be over; `done` must be NULL or valid for writing; `sizes` must be NULL
/// or valid for writing one `int` per buffer; only the connection's progress thread may call this.
#[inline(always)]
pub(crate) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let (comm, index) = unsafe {
        put("test", "done", done, 0)?;
        Request::from_raw(request)
    }?;
    // SAFETY: this is the connection's progress thread; `done` was checked not to be NULL, and the caller's promises.
    unsafe {
        match enter(comm) {
            Some(End::Send(end)) => end.test(comm, index, done, sizes),
            Some(End::Recv(end)) => end.test(comm, index, done, sizes),
            None => Err(Error::protocol("test was called for a request of a connection that was closed")),
        }
    }
}
