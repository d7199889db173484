//! The descriptions of events, by which NCCL's versions differ.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use railweave_abi::profiler::{EventType, parts, v1, v2, v3, v4, v5, v6, v7};
use railweave_trace::{Coll, Op, P2p};

use crate::trace;

/// An event that starts.
pub(super) struct Started {
    pub(super) kind: EventType,
    /// The handle of its parent; NULL for none.
    pub(super) parent: *mut c_void,
    pub(super) facts: Facts,
}

/// The facts about an event, as the trace has them.
pub(super) enum Facts {
    Coll(Coll),
    P2p(P2p),
    Op(Op),
    /// The number of a step.
    Step(u32),
    None,
}

/// Returns the text at one of NCCL's pointers; empty for NULL.
///
/// # Safety
/// The pointer must be NULL or lead to a string that ends with a NUL.
pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A version's description of an event.
pub(super) trait Describe {
    /// Returns the event, with the trace's numbers for its texts.
    ///
    /// # Safety
    /// The union must hold the member that the kind of the event says, and its texts must be NULL or end with a NUL.
    unsafe fn started(&self) -> Started;
}

// NCCL's numbers in v1, which later versions replaced by texts (`nccl.h`, `nccl_common.h` of NCCL 2.23).
const FUNCTIONS: [&str; 8] =
    ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"];
const DATATYPES: [&str; 10] = [
    "ncclInt8",
    "ncclUint8",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
];
const ALGORITHMS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];

/// Returns the trace's number of a text of NCCL's.
///
/// # Safety
/// The pointer must be NULL or lead to a string that ends with a NUL.
unsafe fn name(pointer: *const c_char) -> u16 {
    // SAFETY: the caller's promise.
    trace::name(&unsafe { text(pointer) })
}

/// Returns the trace's number of one of NCCL's own numbers.
fn known(names: &[&str], number: u8) -> u16 {
    match names.get(usize::from(number)) {
        Some(name) => trace::name(name),
        None => trace::name(&format!("number {number}")),
    }
}

fn op(op: parts::ProxyOp) -> Facts {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    Facts::Op(Op {
        sends: op.is_send != 0,
        channel: op.channel_id.into(),
        peer: op.peer,
        steps: count(op.n_steps),
        chunk: count(op.chunk_size),
        pid: count(op.pid),
    })
}

fn step(step: parts::ProxyStep) -> Facts {
    Facts::Step(u32::try_from(step.step).unwrap_or(0))
}

impl Describe for v1::EventDescr {
    unsafe fn started(&self) -> Started {
        let (kind, event) = (EventType(self.kind.into()), &self.event);
        // SAFETY: the caller's promise about the union, by the kind.
        let facts = unsafe {
            match kind {
                EventType::COLL => Facts::Coll(Coll {
                    function: known(&FUNCTIONS, event.coll.func),
                    datatype: known(&DATATYPES, event.coll.datatype),
                    algorithm: known(&ALGORITHMS, event.coll.algo),
                    protocol: known(&PROTOCOLS, event.coll.proto),
                    count: event.coll.count as u64,
                    sequence: event.coll.seq_number,
                }),
                EventType::P2P => Facts::P2p(P2p {
                    function: known(&FUNCTIONS, event.p2p.func),
                    datatype: known(&DATATYPES, event.p2p.datatype),
                    peer: event.p2p.peer,
                    count: event.p2p.count as u64,
                }),
                EventType::PROXY_OP => op(event.proxy_op),
                EventType::PROXY_STEP => step(event.proxy_step),
                _ => Facts::None,
            }
        };
        Started { kind, parent: self.parent_obj, facts }
    }
}

/// Implements [`Describe`] for a version whose texts are texts. `$kind` makes an [`EventType`] of the version's kind;
/// `$api` has further cases.
macro_rules! describe {
    ($version:ident, $kind:expr, |$event:ident| { $($api:tt)* }) => {
        impl Describe for $version::EventDescr {
            unsafe fn started(&self) -> Started {
                let (kind, $event) = ($kind(self.kind), &self.event);
                // SAFETY: the caller's promises about the union, by the kind, and about texts.
                let facts = unsafe {
                    match kind {
                        EventType::COLL => Facts::Coll(Coll {
                            function: name($event.coll.func),
                            datatype: name($event.coll.datatype),
                            algorithm: name($event.coll.algo),
                            protocol: name($event.coll.proto),
                            count: $event.coll.count as u64,
                            sequence: $event.coll.seq_number,
                        }),
                        EventType::P2P => Facts::P2p(P2p {
                            function: name($event.p2p.func),
                            datatype: name($event.p2p.datatype),
                            peer: $event.p2p.peer,
                            count: $event.p2p.count as u64,
                        }),
                        EventType::PROXY_OP => op($event.proxy_op),
                        EventType::PROXY_STEP => step($event.proxy_step),
                        $($api)*
                        _ => Facts::None,
                    }
                };
                Started { kind, parent: self.parent_obj, facts }
            }
        }
    };
}

/// Implements [`Describe`] for a version that reports the application's calls too.
macro_rules! describe_calls {
    ($version:ident) => {
        describe!($version, std::convert::identity, |event| {
            EventType::COLL_API => Facts::Coll(Coll {
                function: name(event.coll_api.func),
                datatype: name(event.coll_api.datatype),
                count: event.coll_api.count as u64,
                ..Coll::default()
            }),
            EventType::P2P_API => Facts::P2p(P2p {
                function: name(event.p2p_api.func),
                datatype: name(event.p2p_api.datatype),
                peer: -1,
                count: event.p2p_api.count as u64,
            }),
        });
    };
}

fn of_byte(kind: u8) -> EventType {
    EventType(kind.into())
}

describe!(v2, of_byte, |event| {});
describe!(v3, of_byte, |event| {});
describe!(v4, of_byte, |event| {});
describe_calls!(v5);
describe_calls!(v6);
describe_calls!(v7);

/// The arguments of a state.
pub(super) trait Arguments {
    /// Returns the bytes that a step or an operation transfers; 0 if they do not say.
    ///
    /// # Safety
    /// The union must hold the member that the state says.
    unsafe fn bytes(&self, state: i32) -> u64;
}

impl Arguments for parts::StateArgsV1 {
    unsafe fn bytes(&self, state: i32) -> u64 {
        // SAFETY: the caller's promise: these are the states of proxy operations.
        if (0..8).contains(&state) { unsafe { self.proxy_op.trans_size as u64 } } else { 0 }
    }
}

impl Arguments for parts::StateArgsV4 {
    unsafe fn bytes(&self, state: i32) -> u64 {
        // SAFETY: the caller's promise: these are the states of steps.
        if (8..13).contains(&state) || state == 20 { unsafe { self.proxy_step.trans_size as u64 } } else { 0 }
    }
}

/// Returns a description's event, or one without a kind for NULL.
///
/// # Safety
/// `description` must be NULL or valid, and hold what [`Describe::started`] requires.
pub(super) unsafe fn started<D: Describe>(description: *const D) -> Started {
    // SAFETY: the caller's promise; NULL becomes `None`.
    match unsafe { description.as_ref() } {
        // SAFETY: as above.
        Some(description) => unsafe { description.started() },
        None => Started { kind: EventType(0), parent: ptr::null_mut(), facts: Facts::None },
    }
}
