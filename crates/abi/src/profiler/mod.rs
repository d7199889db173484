//! NCCL's profiler: the callback that net plugins get, and the interface of profiler plugins, one module per version
//! (`nccl_common.h`, `nccl_profiler.h`, `profiler/profiler_v1.h` to `profiler_v7.h`).
//!
//! A profiler exports a table, such as [`v6::Profiler`]. NCCL describes each event that it starts with the version's
//! `EventDescr`, whose union is read by its kind ([`EventType`]), and reports changes as an [`EventState`] with the
//! version's `StateArgs`. The versions 1 to 6 are those of NCCL 2.30.7's headers, version 7 is that of 2.31's. Forks of
//! NCCL have tables of their own under the names of versions that NCCL did not have yet, so a host must know whose
//! plugin it loads.

pub mod calls;
pub mod ib;
mod kind;
pub mod parts;
mod state;
pub mod v1;
pub mod v2;
pub mod v3;
pub mod v4;
pub mod v5;
pub mod v6;
pub mod v7;

pub use kind::EventType;
pub use state::EventState;

use crate::NcclResult;
use core::ffi::{CStr, c_int, c_void};

/// The versions of the interface with the data symbols of their tables, newest first, in the order in which NCCL tries
/// them.
pub const PROFILER_SYMBOLS: [(u32, &CStr); 7] = [
    (7, c"ncclProfiler_v7"),
    (6, c"ncclProfiler_v6"),
    (5, c"ncclProfiler_v5"),
    (4, c"ncclProfiler_v4"),
    (3, c"ncclProfiler_v3"),
    (2, c"ncclProfiler_v2"),
    (1, c"ncclProfiler_v1"),
];

/// `ncclProfilerCallback_t`: tells NCCL's profiler about an event inside the plugin.
///
/// A start writes `event`, the other calls read it. `kind` is one of [`EventCall`]. `parent` is the `phandle` from
/// isend or irecv; if that is NULL, the plugin must not call. `plugin_id` is the kind of network, shifted left by 16,
/// with the version of `data`'s layout in the low bits, such as [`ib::PLUGIN_ID_V1`]. `data` points to a structure of
/// that layout.
///
/// A start leaves `event` as it was if the profiler does not want events of net plugins, and the other calls pass
/// `event` on even if it is NULL: set it to NULL before a start, and make no more calls if it is NULL after that.
pub type ProfilerCallback = unsafe extern "C" fn(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    plugin_id: i64,
    data: *mut c_void,
) -> NcclResult;

/// The change of an event that one call of the [`ProfilerCallback`] reports.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventCall(pub c_int);

impl EventCall {
    /// The event begins; the call writes its handle.
    pub const START: Self = Self(0);
    /// The event ends.
    pub const STOP: Self = Self(1);
    /// The event changes.
    pub const UPDATE: Self = Self(2);
    /// The event changes and ends.
    pub const UPDATE_AND_STOP: Self = Self(3);
}
