//! The counters per rail that Railweave's plugin exports next to NCCL's tables.

use railweave_abi::railweave::{RailCounters, RailCountersFn};
use std::ffi::{c_char, c_int};

/// The traffic of one rail of this process since the plugin was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCount {
    /// The address of this process's end.
    pub local: String,
    /// The address of the peer's end.
    pub remote: String,
    /// Bytes of messages sent.
    pub data_bytes: u64,
    /// Writes that carried them.
    pub data_writes: u64,
    /// CTS notes sent.
    pub cts_writes: u64,
    /// Bytes of messages received.
    pub received_bytes: u64,
    /// Connections that have used the rail.
    pub connections: u32,
    /// True if it can carry data now.
    pub usable: bool,
}

/// The largest number of rails that are read; a count above it cannot be right.
const MAX_RAILS: usize = 65_536;

/// Reads all counters.
///
/// # Safety
/// `counters` is the plugin's function of this type, and the plugin is loaded.
pub(crate) unsafe fn read_counters(counters: RailCountersFn) -> Vec<RailCount> {
    let mut rails: Vec<RailCounters> = Vec::new();
    loop {
        let capacity = c_int::try_from(rails.len()).unwrap_or(c_int::MAX);
        // SAFETY: `rails` has room for `capacity` entries.
        let count = unsafe { counters(rails.as_mut_ptr(), capacity) };
        let count = usize::try_from(count).unwrap_or(0).min(MAX_RAILS);
        // Connections may be added between two calls; if the entries do not fit, all are read again.
        if count <= rails.len() {
            rails.truncate(count);
            return rails.iter().map(RailCount::from).collect();
        }
        rails.resize(count, RailCounters::ZERO);
    }
}

impl From<&RailCounters> for RailCount {
    fn from(raw: &RailCounters) -> Self {
        Self {
            local: address(&raw.local),
            remote: address(&raw.remote),
            data_bytes: raw.data_bytes,
            data_writes: raw.data_writes,
            cts_writes: raw.cts_writes,
            received_bytes: raw.received_bytes,
            connections: raw.connections,
            usable: raw.usable != 0,
        }
    }
}

fn address(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|char| char.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn three(out: *mut RailCounters, capacity: c_int) -> c_int {
        for index in 0..capacity.min(3) {
            let mut rail = RailCounters::ZERO;
            rail.local[0] = b'a' as c_char;
            rail.data_bytes = index as u64;
            // SAFETY: the caller has room for `capacity` entries.
            unsafe { out.add(index as usize).write(rail) };
        }
        3
    }

    #[test]
    fn all_rails_are_read_however_many() {
        // SAFETY: the function is of this type.
        let rails = unsafe { read_counters(three) };
        assert_eq!(rails.iter().map(|rail| rail.data_bytes).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((rails[0].local.as_str(), rails[0].remote.as_str(), rails[0].usable), ("a", "", false));
    }
}
