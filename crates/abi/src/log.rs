//! NCCL's logger: its function type, its levels and its subsystems (`nccl_common.h`).

use core::ffi::{c_char, c_int, c_ulong};

/// `ncclDebugLogger_t`: NCCL's logger, passed to a plugin's `init`; any thread may call it.
///
/// Arguments: level (one of [`Level`]), flags (a mask of subsystems, see [`subsystem`]), the caller's file and line, a
/// printf(3) format, and the values for the format. A Rust caller passes the format `%s` and one finished string.
pub type NcclLogger =
    unsafe extern "C" fn(level: c_int, flags: c_ulong, file: *const c_char, line: c_int, format: *const c_char, ...);

/// `ncclDebugLogLevel`: the levels of NCCL_DEBUG. A line is shown if its level is at most the user's.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub c_int);

impl Level {
    /// Nothing is shown.
    pub const NONE: Self = Self(0);
    /// Only NCCL's version is shown.
    pub const VERSION: Self = Self(1);
    /// Something is wrong, and the user must know.
    pub const WARN: Self = Self(2);
    /// Details that help in finding a problem.
    pub const INFO: Self = Self(3);
    /// A line about an abort.
    pub const ABORT: Self = Self(4);
    /// Each call.
    pub const TRACE: Self = Self(5);
}

/// `ncclDebugLogSubSys`: bits for the part of NCCL that a line is about; NCCL_DEBUG_SUBSYS selects them.
pub mod subsystem {
    use core::ffi::c_ulong;

    /// Initialisation of a communicator.
    pub const INIT: c_ulong = 0x1;
    /// Collectives.
    pub const COLL: c_ulong = 0x2;
    /// Peer-to-peer transfers inside a host.
    pub const P2P: c_ulong = 0x4;
    /// Shared memory inside a host.
    pub const SHM: c_ulong = 0x8;
    /// Network; net plugins use this one.
    pub const NET: c_ulong = 0x10;
    /// Topology search.
    pub const GRAPH: c_ulong = 0x20;
    /// Choice of algorithm.
    pub const TUNING: c_ulong = 0x40;
    /// Environment variables that were read.
    pub const ENV: c_ulong = 0x80;
    /// Memory allocation.
    pub const ALLOC: c_ulong = 0x100;
    /// Calls of the public API.
    pub const CALL: c_ulong = 0x200;
    /// Proxy threads.
    pub const PROXY: c_ulong = 0x400;
    /// NVLink SHARP.
    pub const NVLS: c_ulong = 0x800;
    /// Rendezvous of ranks.
    pub const BOOTSTRAP: c_ulong = 0x1000;
    /// Registration of user buffers.
    pub const REG: c_ulong = 0x2000;
    /// Profiler.
    pub const PROFILE: c_ulong = 0x4000;
    /// Reliability, availability, serviceability.
    pub const RAS: c_ulong = 0x8000;
    /// End of a communicator.
    pub const DESTROY: c_ulong = 0x1_0000;
}
