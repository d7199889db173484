//! Why a lane ends, and what of a socket's answers is no reason for it.

use std::io;

use railweave_fabric::{RailError, WorkId};

/// Why a lane ends. Boxed, because it travels beside small results.
#[derive(Debug)]
pub(crate) struct LaneFailure(pub(crate) Box<(Option<WorkId>, RailError)>);

impl LaneFailure {
    /// The lane as a whole.
    pub(crate) fn of_lane(error: RailError) -> Self {
        Self(Box::new((None, error)))
    }

    /// A piece of this side's work.
    pub(crate) fn of_work(id: WorkId, error: RailError) -> Self {
        Self(Box::new((Some(id), error)))
    }

    /// The kernel's answer to a system call.
    pub(crate) fn of_socket(doing: &'static str, error: &io::Error) -> Self {
        // Whatever a socket's system call says is a number of the kernel's.
        Self::of_lane(RailError::Socket { doing, errno: error.raw_os_error().unwrap_or(libc::EIO) })
    }
}

/// Whether a system call is to be made again at the next poll.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
