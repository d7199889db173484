//! The callback that a net plugin gets. NCCL has one profiler and thus one callback; here, each loaded profiler has a
//! callback of its own, so that several can be at work in one process.

use super::describe::{Start, What};
use super::table::{Args, Table};
use railweave_abi::profiler::parts::{NetPlugin, NetPluginArgs};
use railweave_abi::profiler::{EventCall, EventState, EventType};
use railweave_abi::{NcclResult, ProfilerCallback};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};

/// A step, as the callback finds it behind the handle that `isend` or `irecv` got.
#[derive(Debug)]
pub(super) struct Step {
    /// The handle of the step's event; NULL if there is none.
    pub(super) event: AtomicPtr<c_void>,
    /// The context of the communicator.
    pub(super) context: *mut c_void,
    /// The mask that was taken when the user made the call.
    pub(super) mask: c_int,
    /// The rank.
    pub(super) rank: c_int,
}

// SAFETY: the context is only passed to the profiler, whose functions NCCL calls from any thread.
unsafe impl Send for Step {}
// SAFETY: as above; the event is atomic, and nothing else changes.
unsafe impl Sync for Step {}

/// The number of profilers that can be loaded at one time.
pub(super) const MAX_PROFILERS: usize = 32;

static TABLES: [RwLock<Option<Table>>; MAX_PROFILERS] = [const { RwLock::new(None) }; MAX_PROFILERS];

macro_rules! callbacks {
    ($($index:literal)*) => { [$(callback::<$index>),*] };
}

static CALLBACKS: [ProfilerCallback; MAX_PROFILERS] =
    callbacks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);

/// A place among the callbacks, as long as this lives. The callback does nothing after that.
#[derive(Debug)]
pub(super) struct Place(usize);

impl Place {
    /// Takes a free place; `None` if there is none.
    pub(super) fn take(table: Table) -> Option<Self> {
        TABLES
            .iter()
            .position(|place| {
                let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
                let free = place.is_none();
                if free {
                    *place = Some(table);
                }
                free
            })
            .map(Self)
    }

    /// Returns the callback.
    pub(super) fn callback(&self) -> ProfilerCallback {
        CALLBACKS[self.0]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TABLES[self.0].write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The callback without a profiler: it accepts every event and keeps none.
pub(crate) unsafe extern "C" fn without_profiler(
    _event: *mut *mut c_void,
    _kind: c_int,
    _parent: *mut c_void,
    _plugin_id: i64,
    _data: *mut c_void,
) -> NcclResult {
    NcclResult::SUCCESS
}

/// The callback of one place.
///
/// A call with NULL where NCCL would read ends the process here too, but with a sentence.
unsafe extern "C" fn callback<const PLACE: usize>(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    plugin_id: i64,
    data: *mut c_void,
) -> NcclResult {
    let table = *TABLES[PLACE].read().unwrap_or_else(PoisonError::into_inner);
    let Some(table) = table else { return NcclResult::SUCCESS };
    assert!(!event.is_null(), "the net plugin called NCCL's profiler without a place for the event's handle");
    if EventCall(kind) == EventCall::START {
        // SAFETY: a plugin passes the handle that isend or irecv gave it, while its request is outstanding; until then,
        // the caller of isend or irecv keeps the step in place.
        let step = unsafe { parent.cast::<Step>().as_ref() };
        let step = step.expect("the net plugin started an event without the handle that isend or irecv gave it");
        if step.mask & EventType::NET_PLUGIN.bit() != 0 {
            let start = Start {
                kind: EventType::NET_PLUGIN,
                parent: step.event.load(Ordering::Acquire),
                group: null_mut(),
                rank: step.rank,
                name: null(),
                comm_id: 0,
                what: What::NetPlugin(NetPlugin { id: plugin_id, data }),
            };
            // SAFETY: the context is the communicator's; the plugin gives a place for the handle and valid data.
            unsafe { table.start(step.context, event, start) };
        }
        return NcclResult::SUCCESS;
    }
    // SAFETY: not NULL, and the plugin's own variable.
    let event = unsafe { *event };
    // NCCL calls the profiler even if the handle is NULL.
    if EventCall(kind) != EventCall::STOP {
        let args = Args::NetPlugin(NetPluginArgs { data });
        // SAFETY: the handle is one that a start wrote, or NULL.
        unsafe { table.record(event, EventState::NET_PLUGIN_UPDATE, args) };
    }
    if EventCall(kind) != EventCall::UPDATE {
        // SAFETY: as above, and this is its last use.
        unsafe { table.stop(event) };
    }
    NcclResult::SUCCESS
}
