//! Traffic of each rail since the plugin was loaded: the sum over all connections that used it, open or closed.
#![allow(
    clippy::disallowed_types,
    reason = "connections are made and counters read here; the data path counts in atomics of its own"
)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};

use railweave_abi::railweave::RailCounters as CRailCounters;
use railweave_transport::{RailCounters, RailName};

use crate::per_process::PerProcess;
use crate::shares::take_abandoned;

#[derive(Default)]
struct Rail {
    open: Vec<Arc<RailCounters>>,
    closed: [u64; 4],
    connections: u32,
}

static RAILS: PerProcess<Mutex<BTreeMap<RailName, Rail>>> = PerProcess::new();

fn values(counters: &RailCounters) -> [u64; 4] {
    [counters.data_bytes(), counters.data_writes(), counters.cts_writes(), counters.received_bytes()]
}

/// Returns new counters for one connection's use of a rail; they add to the rail's sum, even once it is back over other
/// addresses than those that name it here.
pub(crate) fn of(name: &RailName) -> Arc<RailCounters> {
    let counters = Arc::new(RailCounters::default());
    let mut rails = RAILS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rail = rails.entry(name.clone()).or_default();
    rail.fold();
    rail.connections += 1;
    rail.open.push(Arc::clone(&counters));
    counters
}

impl Rail {
    /// Adds the counters of closed connections to the sum and drops them.
    fn fold(&mut self) {
        let closed = &mut self.closed;
        take_abandoned(&mut self.open, |counters| {
            closed.iter_mut().zip(values(counters)).for_each(|(sum, value)| *sum += value);
        });
    }
}

fn write_text(place: &mut [c_char], text: &str) {
    let last = place.len() - 1;
    for (place, byte) in place[..last].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

/// Writes the counters of at most `capacity` rails to `out`. Returns the number of all rails, which may be greater.
///
/// # Safety
/// `out` must be valid for writing `capacity` entries, or `capacity` must not be positive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn railweaveRailCounters_v1(out: *mut CRailCounters, capacity: c_int) -> c_int {
    let mut rails = RAILS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (index, (name, rail)) in rails.iter_mut().enumerate().take(usize::try_from(capacity).unwrap_or(0)) {
        rail.fold();
        let mut sum = rail.closed;
        for counters in &rail.open {
            sum.iter_mut().zip(values(counters)).for_each(|(sum, value)| *sum += value);
        }
        let mut entry = CRailCounters::ZERO;
        write_text(&mut entry.local, &name.local);
        write_text(&mut entry.remote, &name.remote);
        [entry.data_bytes, entry.data_writes, entry.cts_writes, entry.received_bytes] = sum;
        entry.connections = rail.connections;
        entry.usable = u32::from(rail.open.iter().any(|counters| !counters.is_down()));
        // SAFETY: the caller promises room for `capacity` entries, and the index is below that.
        unsafe { out.add(index).write(entry) };
    }
    rails.len() as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_closed_connection_counted_is_kept() {
        let name = RailName { local: "192.0.2.1".into(), remote: "192.0.2.2".into() };
        let (first, second) = (of(&name), of(&name));
        drop(first);
        let mut out = vec![CRailCounters::ZERO; 64];
        // SAFETY: the vector has 64 entries.
        let count = unsafe { railweaveRailCounters_v1(out.as_mut_ptr(), 64) };
        let text =
            |place: &[c_char]| place.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect::<String>();
        let entry = out[..count as usize].iter().find(|entry| text(&entry.local) == "192.0.2.1").unwrap();
        assert_eq!((text(&entry.remote).as_str(), entry.connections, entry.usable), ("192.0.2.2", 2, 1));
        drop(second);
    }
}
