//! The failure of a lane, and a test for socket errors that are not failures.

use std::io;

use railweave_fabric::{RailError, WorkId};

/// The reason why a lane ends, with the work concerned. Boxed to keep results small.
#[derive(Debug)]
pub(crate) struct LaneFailure(pub(crate) Box<(Option<WorkId>, RailError)>);

impl LaneFailure {
    /// Makes a failure of the lane as a whole.
    pub(crate) fn of_lane(error: RailError) -> Self {
        Self(Box::new((None, error)))
    }

    /// Makes a failure of a piece of this side's work.
    pub(crate) fn of_work(id: WorkId, error: RailError) -> Self {
        Self(Box::new((Some(id), error)))
    }

    /// Makes the failure for a failed system call.
    pub(crate) fn of_socket(doing: &'static str, error: &io::Error) -> Self {
        // Errors of a socket's system calls always have an error number.
        Self::of_lane(RailError::Socket { doing, errno: error.raw_os_error().unwrap_or(libc::EIO) })
    }
}

/// Returns true if the system call must be repeated at the next poll.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
