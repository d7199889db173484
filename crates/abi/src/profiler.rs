//! The profiler's callback that NCCL hands to a net plugin from v10 on (`nccl_common.h`, `nccl_profiler.h`).

use crate::NcclResult;
use core::ffi::{c_int, c_void};

/// `ncclProfilerCallback_t`: tells NCCL's profiler about an event inside the plugin.
///
/// A start writes `event`, the other calls read it. `kind` is one of [`EventCall`]. `parent` is the `phandle` from
/// isend or irecv; if that is NULL, the plugin must not call. `plugin_id` is the kind of network, shifted left by 16,
/// with the version of `data`'s layout in the low bits. `data` points to a structure of that layout.
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
