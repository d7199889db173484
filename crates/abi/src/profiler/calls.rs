//! The types of the functions in a table. A name ends with the first version that has this form; `D` is the version's
//! `EventDescr`, `A` its `StateArgs`. Pointers passed to a function are valid only during the call, except strings and
//! buffers in a description, which are valid while the event lasts.

use super::EventState;
use crate::{NcclLogger, NcclResult};
use core::ffi::{c_char, c_int, c_void};

/// `init` of v1 to v3: writes the context for a communicator, and the mask of the wanted events, which all
/// communicators of the process share.
pub type InitV1 = unsafe extern "C" fn(context: *mut *mut c_void, mask: *mut c_int) -> NcclResult;
/// `init` of v4: also gets the communicator's name (may be NULL), hash, number of hosts, number of ranks and rank.
pub type InitV4 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<NcclLogger>,
) -> NcclResult;
/// `init` of v5 on, with the hash of the communicator before the mask.
pub type InitV5 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    comm_id: u64,
    mask: *mut c_int,
    name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<NcclLogger>,
) -> NcclResult;
/// `startEvent`: writes the handle of a new event; NULL if the profiler does not follow it.
pub type StartEvent<D> =
    unsafe extern "C" fn(context: *mut c_void, event: *mut *mut c_void, description: *mut D) -> NcclResult;
/// `stopEvent`: ends an event. The handle is NULL only for events of net plugins.
pub type StopEvent = unsafe extern "C" fn(event: *mut c_void) -> NcclResult;
/// `recordEventState`: reports a change of an event. The arguments are NULL for states of
/// [`EventType::GROUP_API`](super::EventType::GROUP_API).
pub type RecordEventState<A> =
    unsafe extern "C" fn(event: *mut c_void, state: EventState, arguments: *mut A) -> NcclResult;
/// `finalize`: ends the context that init wrote. Events of it may still be open.
pub type Finalize = unsafe extern "C" fn(context: *mut c_void) -> NcclResult;
