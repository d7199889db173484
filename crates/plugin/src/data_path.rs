//! NCCL's calls on the data path, without versions: isend, irecv, iflush, test. They do not block, allocate or lock; what is
//! banned for that stands in this crate's clippy.toml.

use std::ffi::{c_int, c_void};

use railweave_transport::{Error, Flushed, Incoming, MAX_BUFFERS, Outgoing, RecvRequest, SendRequest};

use crate::api::{null, put};
use crate::comm::{Comm, Request};
use crate::debtor;
use crate::log;
use crate::network::{End, MemoryHandle};

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
#[inline]
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
    let message = Outgoing { address: data.addr() as u64, size: size as u64, tag: tag as u32, keys: &memory.keys };
    let Some(sent) = end.isend(&message)? else {
        debtor::leave(comm, false);
        return Ok(());
    };
    if let Some(cut) = end.take_cut() {
        log::warn(&format!(
            "to {}: a message of {} bytes (tag {:#x}) was cut to the {} bytes of its receive; the application's send and \
             receive sizes differ (said once per connection)",
            comm.peer, cut.message, cut.tag, cut.receive
        ));
    }
    // SAFETY: checked above not to be NULL, and the caller's promise.
    unsafe { request.write(comm.request(sent.index())) };
    Ok(())
}

/// One buffer of `irecv` and `iflush`.
///
/// # Safety
/// `memory` as for [`memory_handle`].
#[inline]
unsafe fn incoming<'a>(
    call: &str,
    data: *mut c_void,
    size: u64,
    tag: c_int,
    memory: *mut c_void,
) -> Result<Incoming<'a>, Error> {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory_handle(call, memory) }?;
    Ok(Incoming { address: data.addr() as u64, size, tag: tag as u32, keys: &memory.keys })
}

/// The buffers of one grouped receive.
pub(crate) struct Buffers<S> {
    pub(crate) count: c_int,
    pub(crate) data: *mut *mut c_void,
    pub(crate) sizes: *mut S,
    pub(crate) tags: *mut c_int,
    pub(crate) memory: *mut *mut c_void,
}

/// `irecv`.
///
/// # Safety
/// `comm` must be this plugin's; the arrays must hold `count` entries each, with memory handles of this plugin; `request`
/// must be NULL or valid for reading and writing; only the connection's progress thread may call this.
#[inline]
pub(crate) unsafe fn irecv<S: Copy + TryInto<u64>>(
    comm: *mut c_void,
    buffers: &Buffers<S>,
    optional_allowed: bool,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    if request.is_null() {
        return Err(null("irecv", "the request"));
    }
    // SAFETY: not NULL, and the caller's promise.
    let hint = unsafe { request.replace(std::ptr::null_mut()) };
    let optional = optional_allowed && hint.addr() == railweave_abi::net::OPTIONAL_RECV_COMPLETION;
    // SAFETY: the caller's promise.
    let comm = unsafe { Comm::from_raw(comm) }?;
    // SAFETY: this is the connection's progress thread.
    let Some(End::Recv(end)) = (unsafe { enter(comm) }) else {
        return Err(Error::protocol("irecv was called on a connection that sends"));
    };
    let count = usize::try_from(buffers.count).unwrap_or(0);
    if !(1..=MAX_BUFFERS).contains(&count) {
        return Err(Error::protocol(format!(
            "irecv was called with {} buffers, allowed are 1 to {MAX_BUFFERS} (maxRecvs)",
            buffers.count
        )));
    }
    if buffers.data.is_null() || buffers.sizes.is_null() || buffers.tags.is_null() || buffers.memory.is_null() {
        return Err(null("irecv", "one of the buffers' arrays"));
    }
    // SAFETY: the arrays hold `count` entries, by the caller's promise; each is read inside them.
    let buffer = |index: usize| unsafe {
        let size = (*buffers.sizes.add(index)).try_into().map_err(|_| negative("irecv", index))?;
        incoming("irecv", *buffers.data.add(index), size, *buffers.tags.add(index), *buffers.memory.add(index))
    };
    let received = if count == 1 {
        end.irecv(&[buffer(0)?], optional)?
    } else {
        let mut all = [buffer(0)?; MAX_BUFFERS];
        for (index, place) in all.iter_mut().enumerate().take(count) {
            *place = buffer(index)?;
        }
        end.irecv(&all[..count], optional)?
    };
    // A thread that has posted something posts or tests more: what it owes elsewhere may still travel with that.
    let owes = end.owes();
    if received.is_none() || owes {
        debtor::leave(comm, owes);
    }
    if let Some(received) = received {
        // SAFETY: checked above not to be NULL, and the caller's promise.
        unsafe { request.write(comm.request(received.index())) };
    }
    Ok(())
}

#[cold]
fn negative(call: &str, index: usize) -> Error {
    Error::protocol(format!("{call} was called with a negative size for buffer {index}"))
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
        let size = u64::try_from(*buffers.sizes.add(index)).map_err(|_| negative("iflush", index))?;
        incoming("iflush", *buffers.data.add(index), size, 0, *buffers.memory.add(index))
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
#[inline]
pub(crate) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> Result<(), Error> {
    // SAFETY: the caller's promises.
    let (comm, index) = unsafe {
        put("test", "done", done, 0)?;
        Request::from_raw(request)
    }?;
    // Sizes are at most 1 GiB, which an int holds.
    // SAFETY: this is the connection's progress thread.
    let over = match unsafe { enter(comm) } {
        None => return Err(Error::protocol("test was called for a request of a connection that was closed")),
        Some(End::Send(end)) => {
            let sent = end.test(SendRequest::from_index(index))?;
            debtor::leave(comm, false);
            if let Some(size) = sent
                && !sizes.is_null()
            {
                // SAFETY: not NULL, and the caller's promise.
                unsafe { sizes.write(size as c_int) };
            }
            sent.is_some()
        }
        Some(End::Recv(end)) => {
            let received = end.test(RecvRequest::from_index(index), debtor::may_owe(comm))?;
            if let Some(received) = received
                && !sizes.is_null()
            {
                for (place, size) in received.iter().enumerate() {
                    // SAFETY: not NULL, and room for one int per buffer by the caller's promise.
                    unsafe { sizes.add(place).write(*size as c_int) };
                }
            }
            let over = received.is_some();
            debtor::leave(comm, end.owes());
            over
        }
    };
    if over {
        // SAFETY: checked above not to be NULL, and the caller's promise.
        unsafe { done.write(1) };
    }
    Ok(())
}
