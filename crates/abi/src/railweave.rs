//! The symbol that Railweave's plugin exports alongside NCCL's tables: counters per rail, for programs that load the
//! plugin.

use core::ffi::{CStr, c_char, c_int};

/// The counters of one rail of this process since the plugin was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RailCounters {
    /// The address of the rail's end in this process, as a string that ends with a NUL.
    pub local: [c_char; 64],
    /// The address of the rail's end in the peer, as a string that ends with a NUL.
    pub remote: [c_char; 64],
    /// Message bytes that this process has sent over the rail.
    pub data_bytes: u64,
    /// Writes that carried these bytes.
    pub data_writes: u64,
    /// CTS entries that this process has written over the rail.
    pub cts_writes: u64,
    /// Message bytes that this process has received over the rail.
    pub received_bytes: u64,
    /// Connections that have used the rail.
    pub connections: u32,
    /// 1 if the rail can carry data, 0 if it is down.
    pub usable: u32,
}

impl RailCounters {
    /// All counters are 0, and both addresses are empty.
    pub const ZERO: Self = Self {
        local: [0; 64],
        remote: [0; 64],
        data_bytes: 0,
        data_writes: 0,
        cts_writes: 0,
        received_bytes: 0,
        connections: 0,
        usable: 0,
    };
}

const _: () = assert!(size_of::<RailCounters>() == 168);

/// The type of the function [`RAIL_COUNTERS_SYMBOL`], which writes at most `capacity` entries to `out` (may be NULL if
/// `capacity` is 0) and returns the total number of rails.
pub type RailCountersFn = unsafe extern "C" fn(out: *mut RailCounters, capacity: c_int) -> c_int;

/// The name of the exported [`RailCountersFn`].
pub const RAIL_COUNTERS_SYMBOL: &CStr = c"railweaveRailCounters_v1";
