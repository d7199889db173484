//! What Railweave's plugin exports beside NCCL's tables: counters per rail, for programs that load the plugin.

use core::ffi::{CStr, c_char, c_int};

/// The counters of one rail of this process, since the plugin was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RailCounters {
    /// The address of the rail's end in this process, as text that ends with a NUL.
    pub local: [c_char; 64],
    /// The address of the rail's end in the peer, as text that ends with a NUL.
    pub remote: [c_char; 64],
    /// Bytes of messages that this process sent over the rail.
    pub data_bytes: u64,
    /// Writes that carried those bytes.
    pub data_writes: u64,
    /// CTS notes that this process wrote over the rail.
    pub cts_writes: u64,
    /// Bytes of messages that this process received over the rail.
    pub received_bytes: u64,
    /// Connections that have used the rail.
    pub connections: u32,
    /// 1 while the rail can carry data, 0 while it is down.
    pub usable: u32,
}

impl RailCounters {
    /// All counters 0 and both addresses empty.
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

/// Type of the function under [`RAIL_COUNTERS_SYMBOL`]: writes at most `capacity` entries to `out` (may be NULL when
/// `capacity` is 0) and answers how many rails there are in all.
pub type RailCountersFn = unsafe extern "C" fn(out: *mut RailCounters, capacity: c_int) -> c_int;

/// The name of the symbol that gives a [`RailCountersFn`].
pub const RAIL_COUNTERS_SYMBOL: &CStr = c"railweaveRailCounters_v1";
