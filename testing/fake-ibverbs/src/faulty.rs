//! The data path's functions for a machine on which they fail on demand. They stand in a context's table only there, so
//! that nobody else pays for the question.

use std::ffi::c_int;

use railweave_fabric_verbs::sys;

use crate::{completions, pairs, receives, world};

/// ibv_poll_cq(3), or a failure.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, entries: c_int, wc: *mut sys::Wc) -> c_int {
    let struck = world::lock().strike("poll_cq");
    match struck {
        // SAFETY: the caller's promises are passed on.
        Ok(()) => unsafe { completions::poll_cq(cq, entries, wc) },
        Err(errno) => -errno,
    }
}

/// ibv_post_send(3), or a failure.
pub(crate) unsafe extern "C" fn post_send(qp: *mut sys::Qp, wr: *mut sys::SendWr, bad: *mut *mut sys::SendWr) -> c_int {
    let struck = world::lock().strike("post_send");
    // SAFETY: the caller's promises are passed on; the place for the bad request is one of them.
    unsafe {
        match struck {
            Ok(()) => pairs::post_send(qp, wr, bad),
            Err(errno) => {
                bad.write(wr);
                errno
            }
        }
    }
}

/// ibv_post_recv(3), or a failure.
pub(crate) unsafe extern "C" fn post_recv(qp: *mut sys::Qp, wr: *mut sys::RecvWr, bad: *mut *mut sys::RecvWr) -> c_int {
    let struck = world::lock().strike("post_recv");
    // SAFETY: as for `post_send`.
    unsafe {
        match struck {
            Ok(()) => pairs::post_recv(qp, wr, bad),
            Err(errno) => {
                bad.write(wr);
                errno
            }
        }
    }
}

/// ibv_post_srq_recv(3), or a failure.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::Srq,
    wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    let struck = world::lock().strike("post_srq_recv");
    // SAFETY: as for `post_send`.
    unsafe {
        match struck {
            Ok(()) => receives::post_srq_recv(srq, wr, bad),
            Err(errno) => {
                bad.write(wr);
                errno
            }
        }
    }
}
