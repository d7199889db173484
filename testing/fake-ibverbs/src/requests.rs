//! The requests that the loaded library answers.

use std::ffi::{c_char, c_int};

use serde::{Deserialize, Serialize};

/// The type of the function `fake_ibverbs`: takes a [`Request`] as JSON in a C string, and returns a `Result` as JSON
/// in a C string, which the caller frees with free(3). The error is a sentence that names the reason.
pub(crate) type AskFn = unsafe extern "C" fn(*const c_char) -> *mut c_char;

/// One request. The result is null unless the variant names one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Describes the machine in place of the file, from the next ibv_get_device_list on; `None` goes back to the file.
    Describe(Option<String>),
    /// The work done since the library was loaded: a map from the names of devices to [`crate::Counts`].
    Counts,
    /// The numbers of open objects: [`crate::Open`].
    Open,
    /// All open queue pairs, in rising order of their numbers: a list of [`crate::QpReport`].
    QueuePairs,
    /// The sentence about a program's last mistake.
    Complaint,
    /// Raises an asynchronous event. `number` is a port of the device, and then all open contexts of the device get the
    /// event; or it is a queue pair, for an event of this queue pair, or of a completion or shared receive queue that
    /// it uses. An error of a queue pair puts it into the error state, and a fatal error of the device puts all its
    /// queue pairs there. With `only` nothing but the event happens, as when an adapter is gone and completes no work.
    Raise { device: String, kind: c_int, number: u32, only: bool },
    /// Sets a port's state, and raises the event that reports it.
    PortState { device: String, port: u8, state: c_int },
    /// Sets or empties an entry of a port's GID table, and raises the event that reports it. The type and interface
    /// stay; an empty entry becomes RoCE v2 on interface 1.
    Gid { device: String, port: u8, index: usize, gid: Option<[u8; 16]> },
    /// Lets no work of a device complete any more, not even with an error.
    Silence { device: String },
    /// Changes the cable of a port.
    PortLink { device: String, port: u8, link: Link },
    /// Changes the cable of one queue pair and its peer alone.
    PairLink { number: u32, link: Link },
}

/// A change of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Link {
    Mend,
    Cut,
    /// Fails the oldest work that waits for it on each queue pair, at both ends.
    TimeOut,
    /// Takes and acknowledges the work that waits for it, as a peer that is not in this process would.
    Take,
}
