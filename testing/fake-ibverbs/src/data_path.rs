//! The functions of the data path, to which a context's table points. Each has a second version that can fail on
//! demand; the table has that version only if the machine has such a fault, so that other machines do not pay for the
//! check.

use std::ffi::c_int;

use railweave_fabric_verbs::sys;

use crate::pairs::{Gate, QueuePair, epoch};
use crate::queues::{CompletionQueue, SharedReceiveQueue};
use crate::world;

/// ibv_post_send(3).
pub(crate) unsafe extern "C" fn post_send(qp: *mut sys::Qp, wr: *mut sys::SendWr, bad: *mut *mut sys::SendWr) -> c_int {
    // SAFETY: ibv_post_send(3): the caller passes a pointer from ibv_create_qp that is not yet destroyed; it points to
    // the first field of a QueuePair.
    let pair = unsafe { &*qp.cast::<QueuePair>() };
    let mut sends = pair.sends.lock();
    let mut next = wr;
    let mut refusal = 0;
    while !next.is_null() {
        if sends.gate != Gate::Open || sends.epoch != epoch() {
            drop(sends);
            sends = world::lock().look(pair);
        }
        // SAFETY: the caller passes a chain of work requests.
        let request = unsafe { &*next };
        if let Err(errno) = pair.post(&mut sends, request) {
            refusal = errno;
            // SAFETY: the caller passes a place for it.
            unsafe { bad.write(next) };
            break;
        }
        next = request.next;
    }
    let wreck = sends.wreck.take();
    drop(sends);
    if let Some(wreck) = wreck {
        world::lock().apply(wreck);
    }
    refusal
}

/// ibv_post_recv(3).
pub(crate) unsafe extern "C" fn post_recv(qp: *mut sys::Qp, wr: *mut sys::RecvWr, bad: *mut *mut sys::RecvWr) -> c_int {
    // SAFETY: the same as in `post_send`.
    posted(unsafe { (*qp.cast::<QueuePair>()).post_receives(wr, bad) })
}

/// ibv_post_srq_recv(3).
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::Srq,
    wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3): the caller passes a pointer from ibv_create_srq that is not yet destroyed; it
    // points to the first field of a SharedReceiveQueue. A shared queue is never closed, so nothing is flushed.
    posted(unsafe { (*srq.cast::<SharedReceiveQueue>()).queue.post_chain(wr, bad, |_| ()) })
}

/// ibv_poll_cq(3).
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, entries: c_int, wc: *mut sys::Wc) -> c_int {
    // SAFETY: ibv_poll_cq(3): the caller passes a pointer from ibv_create_cq that is not yet destroyed, which points to
    // the first field of a CompletionQueue, and room for `entries` completions.
    unsafe { (*cq.cast::<CompletionQueue>()).poll(entries, wc) }
}

/// Carries out work that has waited for a receive. Returns the result of ibv_post_recv(3).
#[inline]
fn posted((refusal, wanted): (c_int, bool)) -> c_int {
    if wanted {
        world::lock().carry_on();
    }
    refusal
}

/// Calls ibv_poll_cq(3), or fails.
pub(crate) unsafe extern "C" fn poll_cq_or_fail(cq: *mut sys::Cq, entries: c_int, wc: *mut sys::Wc) -> c_int {
    let struck = world::lock().strike("poll_cq");
    match struck {
        // SAFETY: the caller's promises are passed on.
        Ok(()) => unsafe { poll_cq(cq, entries, wc) },
        Err(errno) => -errno,
    }
}

macro_rules! or_fail {
    ($($name:ident: $real:ident($object:ty, $request:ty) on $function:literal;)*) => { $(
        /// Calls the function of the same name, or fails.
        pub(crate) unsafe extern "C" fn $name(
            object: *mut $object,
            wr: *mut $request,
            bad: *mut *mut $request,
        ) -> c_int {
            let struck = world::lock().strike($function);
            // SAFETY: the caller's promises are passed on; the place for the bad request is one of them.
            unsafe {
                match struck {
                    Ok(()) => $real(object, wr, bad),
                    Err(errno) => {
                        bad.write(wr);
                        errno
                    }
                }
            }
        }
    )* };
}

or_fail! {
    post_send_or_fail: post_send(sys::Qp, sys::SendWr) on "post_send";
    post_recv_or_fail: post_recv(sys::Qp, sys::RecvWr) on "post_recv";
    post_srq_recv_or_fail: post_srq_recv(sys::Srq, sys::RecvWr) on "post_srq_recv";
}
