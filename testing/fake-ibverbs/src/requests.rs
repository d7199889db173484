//! The requests that the loaded library answers.

use std::ffi::{c_char, c_int};

use serde::{Deserialize, Serialize};

use crate::reports::QpReport;

/// Type of the function `fake_ibverbs`: takes a [`Request`] as JSON, in a string of C, and returns a string to be freed
/// with free(3): a `Result` as JSON, of what was asked for or of a sentence that says why not.
pub(crate) type AskFn = unsafe extern "C" fn(*const c_char) -> *mut c_char;

/// Type of the function `fake_ibverbs_queue_pair`: writes what there is to tell about the queue pair of this number.
/// Returns 0, or -1 if there is none.
pub(crate) type QueuePairFn = unsafe extern "C" fn(u32, *mut QpReport) -> c_int;

/// One request. Where no answer is named it is null.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// From the next ibv_get_device_list on this describes the machine, in place of the file; none goes back to the
    /// file.
    Describe(Option<String>),
    /// The work done since the library was loaded: a map from the names of devices to [`crate::Counts`].
    Counts,
    /// The objects that are open: [`crate::Open`].
    Open,
    /// The numbers of all open queue pairs, in rising order.
    QueuePairs,
    /// The last thing that a program did wrong, in words.
    Complaint,
    /// Raises an asynchronous event on all that have the device open. `number` is the port, or for events of queue
    /// pairs the queue pair; for an error of a completion or shared receive queue a queue pair that uses it. Errors of
    /// queue pairs put these into the error state, a fatal error of the device all of it, unless `only`: then nothing
    /// but the event is there, as when an adapter is gone and completes nothing.
    Raise { device: String, kind: c_int, number: u32, only: bool },
    /// Sets a port's state, and raises the event that tells of it.
    PortState { device: String, port: u8, state: c_int },
    /// Sets a place of a port's GID table or empties it, and raises the event that tells of it. The type and interface
    /// stay; an empty place gets those of RoCE v2 on interface 1.
    Gid { device: String, port: u8, index: usize, gid: Option<[u8; 16]> },
    /// Does this to the cable of a port.
    PortLink { device: String, port: u8, link: Link },
    /// Does this to one queue pair and its peer alone.
    PairLink { number: u32, link: Link },
}

/// The fate of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Link {
    Mend,
    Cut,
    /// The oldest work that waits for it fails on each queue pair, at both ends.
    TimeOut,
}
