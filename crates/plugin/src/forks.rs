//! Forks of the process: how a child is told from its parent, and the descriptors that it must not keep.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// The number of forks between this process and the one that first called [`ProcessMark::own`], counted by a handler
/// that the C library calls in each child. Process ids are not enough: a child in a process namespace of its own may
/// have the same id as its parent.
static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);

/// A place without a descriptor.
const NONE: RawFd = -1;

/// The most descriptors that children close. A control port that listens on more addresses is kept by them.
const MOST_CLOSED: usize = 64;

/// The descriptors that a forked child closes at once.
static CLOSED_IN_CHILDREN: [AtomicI32; MOST_CLOSED] = [const { AtomicI32::new(NONE) }; MOST_CLOSED];

/// The mark that distinguishes a process from its forked children and from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMark {
    forks: u32,
    /// The process id, for a child made without the C library's fork (by `clone`): it is not counted, but nearly always
    /// has another id.
    pid: u32,
}

impl ProcessMark {
    /// Returns this process's mark.
    pub(crate) fn own() -> Self {
        watch_forks();
        Self { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }
}

/// Lets forked children close their copies of these descriptors, so that they are closed when this process ends. That
/// the listening sockets are shows its peers that it has: a session's socket, of which a child has a copy, does not.
pub(crate) fn close_in_children(descriptors: impl Iterator<Item = RawFd>) {
    watch_forks();
    for descriptor in descriptors {
        let free =
            |place: &&AtomicI32| place.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = CLOSED_IN_CHILDREN.iter().find(free);
    }
}

/// Undoes [`close_in_children`]. Must be called before the descriptors are closed: their numbers may then be another's.
pub(crate) fn keep_in_children(descriptors: impl Iterator<Item = RawFd>) {
    for descriptor in descriptors {
        let held =
            |place: &&AtomicI32| place.compare_exchange(descriptor, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = CLOSED_IN_CHILDREN.iter().find(held);
    }
}

/// Starts watching forks. If several threads do this at once, each fork counts more than once, which is harmless.
fn watch_forks() {
    if COUNTING.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete), and it only changes
    // atomics and calls close, which is allowed between fork and exec (signal-safety(7)). If this fails for lack of
    // memory, process ids alone tell processes apart.
    unsafe { libc::pthread_atfork(None, None, Some(handle_fork_in_child)) };
    COUNTING.store(true, Ordering::Release);
}

unsafe extern "C" fn handle_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for place in &CLOSED_IN_CHILDREN {
        let descriptor = place.swap(NONE, Ordering::AcqRel);
        if descriptor != NONE {
            // SAFETY: the descriptor was open at the fork, and nobody else in this child has touched it yet.
            unsafe { libc::close(descriptor) };
        }
    }
}
