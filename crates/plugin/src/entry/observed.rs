//! NCCL's calls on a connection that is watched, by NCCL's profiler or for a trace. Each does what it does on any other
//! connection, and has the connection's observer look at what has changed. Connections that nobody watches have other
//! functions, and pay nothing for this.

use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr;

use railweave_abi::NcclResult;
use railweave_fabric::Fabric;
use railweave_transport::{
    Error, Incoming, MAX_BUFFERS, RecvConnection, RecvRequest, SendConnection, SendRequest, call,
};

use super::data_path::{
    end_of, iflush_on, iflush_on_sender, irecv_on, irecv_on_sender, isend_on, isend_on_receiver, test_recv, test_send,
};
use super::guard::{guard, put};
use crate::comm::{Calls, Comm, Observer, Request};

/// Returns the calls of a [`SendConnection<F>`] that is watched.
pub(super) fn calls_of_watched_sender<F: Fabric>() -> Calls
where
    SendConnection<F>: Send,
{
    Calls { isend: isend_watched::<F>, irecv: irecv_on_sender, test: test_send_watched::<F>, iflush: iflush_on_sender }
}

/// Returns the calls of a [`RecvConnection<F>`] that is watched.
pub(super) fn calls_of_watched_receiver<F: Fabric>() -> Calls
where
    RecvConnection<F>: Send,
{
    Calls {
        isend: isend_on_receiver,
        irecv: irecv_watched::<F>,
        test: test_recv_watched::<F>,
        iflush: iflush_watched::<F>,
    }
}

/// Returns the index of the request at `place`; `None` for no request.
///
/// # Safety
/// `place` must be NULL or hold NULL or a request of this plugin.
unsafe fn index_at(place: *mut *mut c_void) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe { place.as_ref().and_then(|request| Request::known(*request)).map(Request::index) }
}

/// Passes the end and the observer of a connection to `observe`. A connection that is being closed has no end.
///
/// # Safety
/// The same as for [`end_of`], in a call that has left the connection; `observe` must call no function of this plugin
/// that NCCL calls.
unsafe fn observe<E: crate::comm::End, F: Fabric>(
    call: &'static str,
    comm: &Comm,
    observe: impl FnOnce(&mut Observer, &E),
) -> Result<(), Error> {
    // SAFETY: the caller's promises: this is the progress thread, and nothing else here has the observer.
    let Some(observer) = (unsafe { comm.observer() }) else { return Ok(()) };
    // SAFETY: the caller's promises, and `look` calls this after it has taken the connection over.
    let end = || unsafe { end_of::<E>(call, comm) };
    call::look(comm, !F::ONE_SIDED, end, |end| {
        observe(observer, end);
        ((), end.owes())
    })
}

/// # Safety
/// The same as for [`isend_on`].
unsafe extern "C" fn isend_watched<F: Fabric>(
    comm: &Comm,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    memory: *mut c_void,
    profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult
where
    SendConnection<F>: Send,
{
    // SAFETY: the caller's promises.
    let sent = unsafe { isend_on::<F>(comm, data, size, tag, memory, profiler, request) };
    // SAFETY: this is the progress thread, in no call.
    let (watches, is_known) = unsafe { comm.observer() }.map_or((false, true), |it| (it.watches(profiler), it.waits()));
    if !sent.is_success() {
        call_failed(comm);
        return sent;
    }
    // SAFETY: a call that has succeeded has written NULL or a request.
    let is_taken = !unsafe { *request }.is_null();
    if !watches || (!is_taken && is_known) {
        return sent;
    }
    watched("isend", comm, || {
        // SAFETY: the caller's promises; `isend_on` has written NULL or a request.
        unsafe {
            let sent = index_at(request).map(SendRequest::from_index);
            observe::<SendConnection<F>, F>("isend", comm, |it, end| it.sent(end, sent, size as u64, profiler))
        }
    })
}

/// # Safety
/// The same as for [`irecv_on`].
unsafe extern "C" fn irecv_watched<F: Fabric>(
    comm: &Comm,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult
where
    RecvConnection<F>: Send,
{
    // SAFETY: the caller's promises.
    let posted = unsafe { irecv_on::<F>(comm, count, data, sizes, tags, memory, profiler, request) };
    let buffers = usize::try_from(count).unwrap_or(0).min(MAX_BUFFERS);
    let mut handles = [ptr::null_mut(); MAX_BUFFERS];
    if !profiler.is_null() {
        for (place, handle) in handles.iter_mut().take(buffers).enumerate() {
            // SAFETY: the caller's promise: there is a handle for each buffer.
            *handle = unsafe { *profiler.add(place) };
        }
    }
    // SAFETY: this is the progress thread, in no call.
    let watches = unsafe { comm.observer() }.is_some_and(|it| it.watches(handles[0]));
    if !posted.is_success() {
        call_failed(comm);
        return posted;
    }
    // SAFETY: a call that has succeeded has written NULL or a request.
    if !watches || unsafe { *request }.is_null() {
        return posted;
    }
    watched("irecv", comm, || {
        // SAFETY: the caller's promises: a call that has succeeded has as many sizes as buffers.
        let bytes = (0..buffers).map(|buffer| unsafe { *sizes.add(buffer) } as u64).sum();
        // SAFETY: the caller's promises; `irecv_on` has written NULL or a request.
        unsafe {
            let posted = index_at(request).map(RecvRequest::from_index);
            let room = (buffers as u8, bytes);
            observe::<RecvConnection<F>, F>("irecv", comm, |it, end| it.posted(end, posted, room, &handles[..buffers]))
        }
    })
}

/// An end in a call that tests a request, with the observer, which looks at it at the end of the call.
struct Looked<'a, E, L: FnMut(&mut Observer, &E)> {
    end: &'a mut E,
    observer: Option<&'a mut Observer>,
    look: L,
}

impl<E, L: FnMut(&mut Observer, &E)> Deref for Looked<'_, E, L> {
    type Target = E;

    fn deref(&self) -> &E {
        self.end
    }
}

impl<E, L: FnMut(&mut Observer, &E)> DerefMut for Looked<'_, E, L> {
    fn deref_mut(&mut self) -> &mut E {
        self.end
    }
}

impl<E, L: FnMut(&mut Observer, &E)> Drop for Looked<'_, E, L> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer.take() {
            (self.look)(observer, self.end);
        }
    }
}

/// # Safety
/// The same as for [`test_send`].
unsafe extern "C" fn test_send_watched<F: Fabric>(request: &Request, done: *mut c_int, size: *mut c_int) -> NcclResult
where
    SendConnection<F>: Send,
{
    let (comm, index) = (request.comm(), request.index());
    // SAFETY: this is the progress thread, in no call.
    if !unsafe { comm.observer() }.is_some_and(|it| it.is_watching()) {
        // SAFETY: the caller's promises.
        return unsafe { test_send::<F>(request, done, size) };
    }
    watched("test", comm, || {
        // SAFETY: the caller's promises.
        unsafe { put("test", "done", done, 0) }?;
        let end = || {
            // SAFETY: the caller's promises, and `test_send` calls this after it has taken the connection over. The
            // observer has one reference, which ends with the call.
            let (end, observer) = unsafe { (end_of::<SendConnection<F>>("test", comm)?, comm.observer()) };
            Ok(Looked { end, observer, look: |observer: &mut Observer, end: &_| observer.look_at_sends(end) })
        };
        if let Some(bytes) = call::test_send(comm, end, SendRequest::from_index(index))? {
            // SAFETY: checked above not to be NULL, and the caller's promises; the call is over.
            unsafe {
                done.write(1);
                if !size.is_null() {
                    size.write(bytes as c_int);
                }
                comm.observer().into_iter().for_each(|observer| observer.done(index, bytes));
            }
        }
        Ok(())
    })
}

/// # Safety
/// The same as for [`test_recv`].
unsafe extern "C" fn test_recv_watched<F: Fabric>(request: &Request, done: *mut c_int, sizes: *mut c_int) -> NcclResult
where
    RecvConnection<F>: Send,
{
    let (comm, index) = (request.comm(), request.index());
    // SAFETY: this is the progress thread, in no call.
    if !unsafe { comm.observer() }.is_some_and(|it| it.is_watching()) {
        // SAFETY: the caller's promises.
        return unsafe { test_recv::<F>(request, done, sizes) };
    }
    watched("test", comm, || {
        // SAFETY: the caller's promises.
        unsafe { put("test", "done", done, 0) }?;
        let end = || {
            // SAFETY: as in `test_send_watched`.
            let (end, observer) = unsafe { (end_of::<RecvConnection<F>>("test", comm)?, comm.observer()) };
            Ok(Looked { end, observer, look: |observer: &mut Observer, end: &_| observer.look_at_receives(end) })
        };
        let mut bytes = None;
        let tested = call::test_recv(comm, end, RecvRequest::from_index(index), |arrived| {
            bytes = Some(arrived.iter().sum());
            // SAFETY: checked above not to be NULL, and the caller's promises.
            unsafe {
                done.write(1);
                if !sizes.is_null() {
                    arrived.iter().enumerate().for_each(|(place, size)| sizes.add(place).write(*size as c_int));
                }
            }
        });
        if let Some(bytes) = bytes {
            // SAFETY: the call is over.
            unsafe { comm.observer() }.into_iter().for_each(|observer| observer.done(index, bytes));
        }
        tested
    })
}

/// # Safety
/// The same as for [`iflush_on`].
unsafe fn iflush_watched<F: Fabric>(
    comm: &Comm,
    buffers: &[Incoming<'_>],
    request: *mut *mut c_void,
) -> Result<(), Error>
where
    RecvConnection<F>: Send,
{
    // SAFETY: the caller's promises; `iflush_on` writes a request or leaves NULL there; this is the progress thread.
    unsafe {
        iflush_on::<F>(comm, buffers, request)?;
        if let (Some(index), Some(observer)) = (index_at(request), comm.observer()) {
            observer.flushes(RecvRequest::from_index(index));
        }
    }
    Ok(())
}

/// Makes a call. One that finds the connection broken ends what is watched.
fn watched(call: &'static str, comm: &Comm, make: impl FnOnce() -> Result<(), Error>) -> NcclResult {
    let code = guard(call, make);
    if !code.is_success() {
        call_failed(comm);
    }
    code
}

/// Ends what is watched of a connection that a failed call has found broken.
#[cold]
fn call_failed(comm: &Comm) {
    // SAFETY: this is the progress thread, in no call.
    if let Some(observer) = unsafe { comm.observer() } {
        observer.call_failed();
    }
}
