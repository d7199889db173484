//! The events of a user's call, down to the operations that it starts.

use super::describe::{Coll, CollCall, P2p, P2pCall, What};
use super::started::Profiler;
use super::table::Args;
use railweave_abi::profiler::parts::{GroupApi, KernelCh, KernelChArgs, KernelLaunch};
use railweave_abi::profiler::{EventState, EventType};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Returns the mask of these kinds.
pub(super) const fn any<const N: usize>(kinds: [EventType; N]) -> c_int {
    let (mut mask, mut index) = (0, 0);
    while index < N {
        mask |= kinds[index].bit();
        index += 1;
    }
    mask
}

/// The kinds below an operation's proxies.
const PROXIES: c_int = any([EventType::PROXY_OP, EventType::PROXY_STEP, EventType::NET_PLUGIN]);
/// The kinds below an operation.
const BELOW: c_int = PROXIES | EventType::KERNEL_CH.bit();
/// The kinds for which a collective starts.
const COLL: c_int = BELOW | EventType::COLL.bit();
/// The kinds for which a send or receive starts.
const P2P: c_int = BELOW | EventType::P2P.bit();
/// The kinds for which a group of operations starts.
const GROUP: c_int = COLL | P2P | EventType::GROUP.bit();
/// The kinds of copy engines, which this host does not have; their parents are started for them all the same.
const COPY_ENGINES: c_int = any([EventType::CE_COLL, EventType::CE_SYNC, EventType::CE_BATCH]);
/// The kinds for which the call of a collective starts.
const COLL_API: c_int = COLL | COPY_ENGINES | EventType::COLL_API.bit();
/// The kinds for which the call of a send or receive starts.
const P2P_API: c_int = P2P | EventType::P2P_API.bit();
/// The kinds for which a group of calls starts.
const GROUP_API: c_int = GROUP | COLL_API | P2P_API | any([EventType::GROUP_API, EventType::KERNEL_LAUNCH]);

/// A user's call, with the mask that holds for it and all events below it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'p> {
    pub(super) profiler: &'p Profiler,
    pub(super) mask: c_int,
}

/// An event that lasts; it has no handle if the profiler does not follow it. Dropping it does not stop it.
#[derive(Debug)]
pub struct Event<'p> {
    profiler: &'p Profiler,
    handle: *mut c_void,
}

// SAFETY: the handle is only passed to the profiler, whose functions NCCL calls from any thread.
unsafe impl Send for Event<'_> {}
// SAFETY: as above.
unsafe impl Sync for Event<'_> {}

/// An event as the parent of others, which may start after it was stopped, as in NCCL.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'p> {
    profiler: &'p Profiler,
    handle: *mut c_void,
}

// SAFETY: the handle is only passed to the profiler, whose functions NCCL calls from any thread.
unsafe impl Send for Parent<'_> {}
// SAFETY: as above.
unsafe impl Sync for Parent<'_> {}

/// The work of the GPU on one channel.
#[derive(Debug)]
pub struct KernelEvent<'p>(Event<'p>);

impl Profiler {
    /// Begins a user's call: takes the mask of this moment.
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        Call { profiler: self, mask: self.mask() }
    }
}

impl<'p> Call<'p> {
    /// Returns the mask.
    #[must_use]
    pub fn mask(self) -> i32 {
        self.mask
    }

    /// Starts a group of calls; `depth` is that of the user's nested groups, 1 for a call outside of any.
    #[must_use]
    pub fn group_api(self, graph_captured: bool, depth: i32) -> Event<'p> {
        let what = What::GroupApi(GroupApi { graph_captured, group_depth: depth });
        self.event(GROUP_API, EventType::GROUP_API, null_mut(), what)
    }

    /// Starts the call of a collective.
    #[must_use]
    pub fn coll_api(self, group: Parent<'p>, call: &CollCall) -> Event<'p> {
        self.event(COLL_API, EventType::COLL_API, group.of(self.profiler), What::CollApi(call))
    }

    /// Starts the call of a send or receive.
    #[must_use]
    pub fn p2p_api(self, group: Parent<'p>, call: &P2pCall) -> Event<'p> {
        self.event(P2P_API, EventType::P2P_API, group.of(self.profiler), What::P2pApi(call))
    }

    /// Starts the launch of a kernel, on no stream: this host has no GPU.
    #[must_use]
    pub fn kernel_launch(self, group: Parent<'p>) -> Event<'p> {
        let what = What::KernelLaunch(KernelLaunch { stream: null_mut() });
        self.event(EventType::KERNEL_LAUNCH.bit(), EventType::KERNEL_LAUNCH, group.of(self.profiler), what)
    }

    /// Starts a group of operations.
    #[must_use]
    pub fn group(self) -> Event<'p> {
        self.event(GROUP, EventType::GROUP, null_mut(), What::Nothing)
    }

    /// Starts a collective of a group, for the call `api`.
    #[must_use]
    pub fn coll(self, group: Parent<'p>, api: Parent<'p>, coll: &Coll) -> Event<'p> {
        self.operation(COLL, EventType::COLL, group, api, What::Coll(coll))
    }

    /// Starts a send or receive of a group, for the call `api`.
    #[must_use]
    pub fn p2p(self, group: Parent<'p>, api: Parent<'p>, p2p: &P2p) -> Event<'p> {
        self.operation(P2P, EventType::P2P, group, api, What::P2p(p2p))
    }

    /// Starts the work of the GPU on one channel for an operation, at a time of the GPU in nanoseconds.
    #[must_use]
    pub fn kernel_ch(self, operation: Parent<'p>, channel: u8, begin_ns: u64) -> KernelEvent<'p> {
        let what = What::KernelCh(KernelCh { channel_id: channel, p_timer: begin_ns });
        let parent = operation.of(self.profiler);
        KernelEvent(self.event(EventType::KERNEL_CH.bit(), EventType::KERNEL_CH, parent, what))
    }

    fn event(self, wanted: c_int, kind: EventType, parent: *mut c_void, what: What<'_>) -> Event<'p> {
        let handle = self.profiler.start(self.mask, wanted, kind, (parent, null_mut()), what);
        Event { profiler: self.profiler, handle }
    }

    fn operation(
        self,
        wanted: c_int,
        kind: EventType,
        group: Parent<'p>,
        api: Parent<'p>,
        what: What<'_>,
    ) -> Event<'p> {
        let parents = (api.of(self.profiler), group.of(self.profiler));
        Event { profiler: self.profiler, handle: self.profiler.start(self.mask, wanted, kind, parents, what) }
    }
}

impl<'p> Event<'p> {
    /// Returns the event as the parent of others.
    #[must_use]
    pub fn parent(&self) -> Parent<'p> {
        Parent { profiler: self.profiler, handle: self.handle }
    }

    /// Records that the user's group has begun; for [`Call::group_api`].
    pub fn group_began(&self) {
        self.record(EventState::GROUP_START_API_STOP, Args::Null);
    }

    /// Records that the user ends the group; for [`Call::group_api`].
    pub fn group_ends(&self) {
        self.record(EventState::GROUP_END_API_START, Args::Null);
    }

    /// Stops the event.
    pub fn stop(self) {
        if !self.handle.is_null() {
            // SAFETY: the profiler wrote the handle, and this is its last use but as a parent.
            unsafe { self.profiler.plugin().table.stop(self.handle) };
        }
    }

    fn record(&self, state: EventState, args: Args) {
        if !self.handle.is_null() {
            // SAFETY: the profiler wrote the handle, and the event lasts.
            unsafe { self.profiler.plugin().table.record(self.handle, state, args) };
        }
    }
}

impl KernelEvent<'_> {
    /// Stops the event at a time of the GPU in nanoseconds.
    pub fn stop(self, end_ns: u64) {
        self.0.record(EventState::KERNEL_CH_STOP, Args::KernelCh(KernelChArgs { p_timer: end_ns }));
        self.0.stop();
    }
}

impl Parent<'_> {
    /// Returns the handle for a child's description.
    ///
    /// # Panics
    /// If the parent is an event of another profiler, which could not read the handle.
    pub(super) fn of(self, profiler: &Profiler) -> *mut c_void {
        assert!(std::ptr::eq(self.profiler.plugin(), profiler.plugin()), "a parent is an event of the same profiler");
        self.handle
    }
}
