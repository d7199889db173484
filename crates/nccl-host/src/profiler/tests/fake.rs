//! A profiler made of static tables, one per version, that records the calls of its thread.

use crate::profiler::{CommunicatorInfo, Profiler, ProfilerError, ProfilerPlugin};
use railweave_abi::profiler::calls::{InitV1, InitV4, InitV5};
use railweave_abi::profiler::parts::{StateArgsV1, StateArgsV4};
use railweave_abi::profiler::{EventState, EventType, v1, v2, v3, v4, v5, v6, v7};
use railweave_abi::{NcclLogger, NcclResult};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{from_ref, null_mut};

const CONTEXT: usize = 0x99;
const OK: NcclResult = NcclResult::SUCCESS;

/// The behaviour of the fake profiler on this thread.
#[derive(Clone, Copy)]
pub(super) struct Habits {
    /// The mask that `init` writes.
    pub(super) mask: c_int,
    /// The result of `init`.
    pub(super) init: NcclResult,
    /// True if `init` writes a context.
    pub(super) context: bool,
    /// The mask of the kinds whose events get handles.
    pub(super) handles: c_int,
}

impl Habits {
    pub(super) const ALL: Self = Self { mask: 0xffff, init: OK, context: true, handles: 0xffff };
}

thread_local! {
    static HABITS: Cell<Habits> = const { Cell::new(Habits::ALL) };
    static MASK: Cell<*mut c_int> = const { Cell::new(null_mut()) };
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static COUNTS: RefCell<BTreeMap<u64, usize>> = const { RefCell::new(BTreeMap::new()) };
}

const NAMES: [&str; 16] = [
    "group",
    "coll",
    "p2p",
    "op",
    "step",
    "ctrl",
    "kernel",
    "net",
    "group_api",
    "coll_api",
    "p2p_api",
    "launch",
    "ce_coll",
    "ce_sync",
    "ce_batch",
    "phase",
];

/// Returns the calls since the last time; names of events begin at 0 again.
pub(super) fn calls() -> Vec<String> {
    COUNTS.take();
    CALLS.take()
}

/// Writes another mask to the place that the last `init` got.
pub(super) fn change_mask(mask: c_int) {
    // SAFETY: a host keeps the mask as long as the profiler is loaded.
    unsafe { *MASK.get() = mask };
}

fn note(text: String) -> NcclResult {
    CALLS.with_borrow_mut(|calls| calls.push(text));
    OK
}

/// Returns the name of a handle: its kind, and the number of earlier events of this kind.
fn name(handle: *mut c_void) -> String {
    match handle.addr() {
        0 => "-".to_owned(),
        number => format!("{}{}", NAMES[number / 256], number % 256 - 1),
    }
}

fn string(pointer: *const c_char) -> String {
    // SAFETY: the host passes strings, or NULL.
    if pointer.is_null() { "-".to_owned() } else { unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned() }
}

/// A kind in any version.
trait Kind {
    fn number(self) -> u64;
}

impl Kind for u8 {
    fn number(self) -> u64 {
        self.into()
    }
}

impl Kind for EventType {
    fn number(self) -> u64 {
        self.0
    }
}

/// # Safety
/// `event` can be written.
unsafe fn begin(
    context: *mut c_void,
    event: *mut *mut c_void,
    kind: impl Kind,
    (parent, rank): (*mut c_void, c_int),
    text: &str,
) -> NcclResult {
    assert_eq!(context.addr(), if HABITS.get().context { CONTEXT } else { 0 });
    let kind = kind.number();
    assert!(kind.is_power_of_two(), "one kind");
    let count = COUNTS.with_borrow_mut(|counts| {
        let count = counts.entry(kind).or_default();
        *count += 1;
        *count
    });
    let handle = std::ptr::without_provenance_mut(kind.trailing_zeros() as usize * 256 + count);
    if HABITS.get().handles & kind as c_int != 0 {
        // SAFETY: the caller promises it.
        unsafe { *event = handle };
    }
    note(format!("start {} under {} rank {rank}{text}", name(handle), name(parent)))
}

/// # Safety
/// Both can be written.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int, text: String) -> NcclResult {
    let habits = HABITS.get();
    MASK.set(mask);
    // SAFETY: the caller promises it.
    unsafe {
        assert!((*context).is_null());
        if habits.context {
            *context = std::ptr::without_provenance_mut(CONTEXT);
        }
        *mask = habits.mask;
    }
    let _ = note(text);
    habits.init
}

unsafe extern "C" fn init_v1(context: *mut *mut c_void, mask: *mut c_int) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { init(context, mask, "init".to_owned()) }
}
unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<NcclLogger>,
) -> NcclResult {
    let text = format!("init {} {hash:x} hosts {hosts} rank {rank} of {ranks} {}", string(name), log.is_some());
    // SAFETY: the host's own arguments.
    unsafe { init(context, mask, text) }
}
unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    comm_id: u64,
    mask: *mut c_int,
    name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<NcclLogger>,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { init_v4(context, mask, name, comm_id, hosts, ranks, rank, log) }
}
unsafe extern "C" fn stop(event: *mut c_void) -> NcclResult {
    note(format!("stop {}", name(event)))
}
unsafe extern "C" fn record_v1(event: *mut c_void, state: EventState, args: *mut StateArgsV1) -> NcclResult {
    // SAFETY: the host passes arguments with every state of these versions.
    let args = unsafe { args.as_ref().expect("arguments").proxy_op };
    note(format!("record {} {} {} {}", name(event), state.0, args.trans_size, args.steps))
}
unsafe extern "C" fn record_v4(event: *mut c_void, state: EventState, args: *mut StateArgsV4) -> NcclResult {
    // SAFETY: the host passes arguments or NULL; every member has at most these 8 bytes.
    let value = unsafe { args.as_ref().map(|args| args.kernel_ch.p_timer) };
    note(format!("record {} {} {}", name(event), state.0, value.map_or("-".to_owned(), |value| value.to_string())))
}
unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    note(format!("finalize {:x}", context.addr()))
}

/// Makes the table of a version. `$arms` shows the members of the union that versions have in different forms.
macro_rules! table {
    ($module:ident, $init:ident: $init_type:ident, $record:ident, |$event:ident| { $($arms:tt)* }) => {{
        unsafe extern "C" fn start(
            context: *mut c_void,
            event: *mut *mut c_void,
            description: *mut $module::EventDescr,
        ) -> NcclResult {
            // SAFETY: the host passes a description, whose kind says which member of the union is valid.
            unsafe {
                let all = &*description;
                let $event = &all.event;
                let text = match EventType(all.kind.number()) {
                    EventType::GROUP => String::new(),
                    EventType::PROXY_OP => {
                        let op = $event.proxy_op;
                        assert_eq!(op.pid, std::process::id().cast_signed());
                        let (channel, peer, steps, chunk) = (op.channel_id, op.peer, op.n_steps, op.chunk_size);
                        format!(": channel {channel} peer {peer} steps {steps} of {chunk} send {}", op.is_send)
                    }
                    EventType::PROXY_STEP => format!(": {}", $event.proxy_step.step),
                    $($arms)*
                    other => panic!("v{} got {other:?}", stringify!($module)),
                };
                begin(context, event, all.kind, (all.parent_obj, all.rank), &text)
            }
        }
        const INIT: $init_type = $init;
        static TABLE: $module::Profiler = $module::Profiler {
            name: c"fake".as_ptr(),
            init: Some(INIT),
            start_event: Some(start),
            stop_event: Some(stop),
            record_event_state: Some($record),
            finalize: Some(finalize),
        };
        from_ref(&TABLE).cast::<c_void>()
    }};
}

macro_rules! show {
    (coll $coll:expr) => {{
        let coll = $coll;
        let (func, datatype) = (string(coll.func), string(coll.datatype));
        let how = (string(coll.algo), string(coll.proto));
        format!(": {func} {} of {datatype} {} {} in {:x}", coll.count, how.0, how.1, coll.send_buff.addr())
    }};
    (p2p $p2p:expr) => {{
        let p2p = $p2p;
        format!(": {} {} of {} peer {}", string(p2p.func), p2p.count, string(p2p.datatype), p2p.peer)
    }};
    (net $net:expr) => {{
        let net = $net;
        format!(": id {:x} data {:x}", net.id, net.data.addr())
    }};
    (named $named:expr) => {{
        let named = $named;
        format!(" for {} {:x}", string(named.name), named.comm_hash)
    }};
}

/// Makes the table of a version from v5 on, whose events differ only in fields that this host leaves at zero.
macro_rules! from_v5 {
    ($module:ident) => {
        table!($module, init_v5: InitV5, record_v4, |event| {
            EventType::GROUP_API => {
                format!(": depth {} graph {}", event.group_api.group_depth, event.group_api.graph_captured)
            }
            EventType::COLL_API => {
                let api = event.coll_api;
                assert!(api.stream.is_null() && !api.graph_captured && api.root == 0);
                format!(": {} {} of {}", string(api.func), api.count, string(api.datatype))
            }
            EventType::P2P_API => {
                let api = event.p2p_api;
                assert!(api.stream.is_null() && !api.graph_captured);
                format!(": {} {} of {}", string(api.func), api.count, string(api.datatype))
            }
            EventType::KERNEL_LAUNCH => format!(": {}", event.kernel_launch.stream.addr()),
            EventType::COLL => {
                let coll = event.coll;
                let own = (coll.seq_number, coll.n_channels, coll.n_warps, coll.recv_buff.addr(), coll.root);
                assert_eq!(own, (5, 2, 16, 0x2000, 0));
                format!("{} in {}", show!(coll coll), name(coll.parent_group))
            }
            EventType::P2P => format!("{} in {}", show!(p2p event.p2p), name(event.p2p.parent_group)),
            EventType::KERNEL_CH => format!(": channel {} at {}", event.kernel_ch.channel_id, event.kernel_ch.p_timer),
            EventType::NET_PLUGIN => show!(net event.net_plugin),
        })
    };
}

/// Returns the address of the table of a version.
fn table(version: u32) -> *const c_void {
    match version {
        1 => table!(v1, init_v1: InitV1, record_v1, |event| {
            EventType::COLL => {
                let coll = event.coll;
                let own = (coll.seq_number, coll.n_max_channels, coll.n_warps, coll.recv_buff.addr(), coll.root);
                assert_eq!(own, (5, 2, 16, 0x2000, 0));
                let (func, datatype, input) = (coll.func, coll.datatype, coll.send_buff.addr());
                let how = format!(": {func} {} of {datatype} {} {} in {input:x}", coll.count, coll.algo, coll.proto);
                how + &show!(named coll)
            }
            EventType::P2P => {
                let p2p = event.p2p;
                let what = format!(": {} {} of {} peer {}", p2p.func, p2p.count, p2p.datatype, p2p.peer);
                what + &show!(named p2p)
            }
        }),
        2 => table!(v2, init_v1: InitV1, record_v1, |event| {
            EventType::COLL => show!(coll event.coll) + &show!(named event.coll),
            EventType::P2P => show!(p2p event.p2p) + &show!(named event.p2p),
        }),
        3 => table!(v3, init_v1: InitV1, record_v1, |event| {
            EventType::COLL => show!(coll event.coll) + &show!(named event.coll),
            EventType::P2P => show!(p2p event.p2p) + &show!(named event.p2p),
            EventType::KERNEL_CH => format!(": channel {}", event.kernel_ch.channel_id),
            EventType::NET_PLUGIN => show!(net event.net_plugin),
        }),
        4 => table!(v4, init_v4: InitV4, record_v4, |event| {
            EventType::COLL => show!(coll event.coll),
            EventType::P2P => show!(p2p event.p2p),
            EventType::KERNEL_CH => format!(": channel {} at {}", event.kernel_ch.channel_id, event.kernel_ch.p_timer),
            EventType::NET_PLUGIN => show!(net event.net_plugin),
        }),
        5 => from_v5!(v5),
        6 => from_v5!(v6),
        _ => from_v5!(v7),
    }
}

/// Loads the fake profiler.
pub(super) fn load(version: u32) -> ProfilerPlugin {
    // SAFETY: the table is static, and of this version.
    unsafe { ProfilerPlugin::at(Path::new("fake"), version, table(version)) }.unwrap().expect("a table")
}

/// Starts the fake profiler of a version for rank 3 of 8.
pub(super) fn start(plugin: &ProfilerPlugin, habits: Habits) -> Result<Profiler, ProfilerError> {
    HABITS.set(habits);
    let (name, comm_id) = (Some(c"world".to_owned()), 0xc0);
    plugin.init(CommunicatorInfo { name, comm_id, hosts: 2, ranks: 8, rank: 3 })
}
