//! Calls a fake profiler of every version as a communicator does.

mod fake;

use super::*;
use crate::net::ProfilerHandle;
use fake::{Habits, calls, change_mask, load, start};
use railweave_abi::profiler::{EventType, v6};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::{from_ref, null_mut};

const CALL: CollCall = CollCall {
    function: Function::ALL_GATHER,
    count: 100,
    data_type: DataType::FLOAT32,
    root: 0,
    graph_captured: false,
};

fn pointer(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

fn coll() -> Coll {
    Coll {
        sequence: 5,
        function: Function::ALL_GATHER,
        input: pointer(0x1000),
        output: pointer(0x2000),
        count: 400,
        root: 0,
        data_type: DataType::INT8,
        channels: 2,
        warps: 16,
        algorithm: Algorithm::RING,
        protocol: Protocol::SIMPLE,
    }
}

fn shape(direction: Direction) -> OpShape {
    OpShape { channel: 1, peer: 4, steps: 9, chunk_bytes: 4096, direction, in_flight: 2 }
}

/// Makes the calls that a net plugin makes for one request: a start, an update and a stop. Returns the event's handle
/// after the start.
fn report(callback: ProfilerCallback, handle: ProfilerHandle) -> *mut c_void {
    let mut event = null_mut();
    let mut call = |kind: EventCall, parent: *mut c_void, data: usize| {
        // SAFETY: the event can be written, and the handle is that of a step in place.
        let code = unsafe { callback(&raw mut event, kind.0, parent, 0x1_0001, pointer(data)) };
        assert!(code.is_success());
        event
    };
    let started = call(EventCall::START, handle.pointer(), 0xd1);
    call(EventCall::UPDATE, null_mut(), 0xd2);
    call(EventCall::STOP, null_mut(), 0);
    started
}

/// Plays one collective with a step in each direction, a send and a receive of a user, and the GPU's work.
fn play(profiler: &Profiler, callback: ProfilerCallback) {
    let call = profiler.call();
    let group_api = call.group_api(false, 1);
    group_api.group_began();
    let coll_api = call.coll_api(group_api.parent(), &CALL);
    let coll_api_parent = coll_api.parent();
    coll_api.stop();
    let graph_captured = false;
    let p2p_call = P2pCall { function: Function::SEND, count: 7, data_type: DataType::FLOAT32, graph_captured };
    let p2p_api = call.p2p_api(group_api.parent(), &p2p_call);
    let p2p_api_parent = p2p_api.parent();
    p2p_api.stop();
    group_api.group_ends();
    call.kernel_launch(group_api.parent()).stop();
    let group = call.group();
    let coll = call.coll(group.parent(), coll_api_parent, &coll());
    let (function, data_type) = (Function::SEND, DataType::FLOAT32);
    let p2p = P2p { function, buffer: null_mut(), data_type, count: 7, peer: 6, channels: 1 };
    let p2p = call.p2p(group.parent(), p2p_api_parent, &p2p);
    let parent = coll.parent();
    coll.stop();
    p2p.stop();
    group.stop();
    group_api.stop();
    call.kernel_ch(parent, 1, 1000).stop(2000);
    let mut send = call.proxy_op(parent, shape(Direction::Send));
    send.in_progress();
    send.start_step(8);
    send.send_gpu_wait(8);
    send.send_peer_wait(8);
    report(callback, send.handle(8));
    send.send_wait(8, 64);
    send.stop_step(8);
    send.stop();
    let mut receive = call.proxy_op(parent, shape(Direction::Receive));
    receive.in_progress();
    receive.start_step(0);
    receive.recv_wait(0);
    receive.recv_flush_wait(0, 32);
    receive.recv_gpu_wait(0);
    receive.stop_step(0);
    receive.stop();
}

/// The calls of [`play`]: the versions that make each, and the call.
const STORY: [(std::ops::RangeInclusive<u32>, &str); 52] = [
    (5..=7, "start group_api0 under - rank 0: depth 1 graph false"),
    (5..=7, "record group_api0 23 -"),
    (5..=7, "start coll_api0 under group_api0 rank 0: AllGather 100 of ncclFloat32"),
    (5..=7, "stop coll_api0"),
    (5..=7, "start p2p_api0 under group_api0 rank 0: Send 7 of ncclFloat32"),
    (5..=7, "stop p2p_api0"),
    (5..=7, "record group_api0 24 -"),
    (5..=7, "start launch0 under group_api0 rank 0: 0"),
    (5..=7, "stop launch0"),
    (1..=7, "start group0 under - rank 0"),
    (1..=1, "start coll0 under group0 rank 3: 2 400 of 0 1 2 in 1000 for world c0"),
    (2..=3, "start coll0 under group0 rank 3: AllGather 400 of ncclInt8 RING SIMPLE in 1000 for world c0"),
    (4..=4, "start coll0 under group0 rank 3: AllGather 400 of ncclInt8 RING SIMPLE in 1000"),
    (5..=7, "start coll0 under coll_api0 rank 3: AllGather 400 of ncclInt8 RING SIMPLE in 1000 in group0"),
    (1..=1, "start p2p0 under group0 rank 3: 6 7 of 7 peer 6 for world c0"),
    (2..=3, "start p2p0 under group0 rank 3: Send 7 of ncclFloat32 peer 6 for world c0"),
    (4..=4, "start p2p0 under group0 rank 3: Send 7 of ncclFloat32 peer 6"),
    (5..=7, "start p2p0 under p2p_api0 rank 3: Send 7 of ncclFloat32 peer 6 in group0"),
    (1..=7, "stop coll0"),
    (1..=7, "stop p2p0"),
    (1..=7, "stop group0"),
    (5..=7, "stop group_api0"),
    (3..=3, "start kernel0 under coll0 rank 0: channel 1"),
    (4..=7, "start kernel0 under coll0 rank 0: channel 1 at 1000"),
    (4..=7, "record kernel0 22 2000"),
    (3..=7, "stop kernel0"),
    (1..=7, "start op0 under coll0 rank 3: channel 1 peer 4 steps 9 of 4096 send 1"),
    (4..=7, "record op0 19 0"),
    (1..=7, "start step0 under op0 rank 3: 8"),
    (1..=3, "record op0 0 0 1"),
    (1..=7, "record step0 8 0"),
    (1..=3, "record op0 1 0 0"),
    (4..=7, "record step0 20 0"),
    (3..=7, "start net0 under step0 rank 3: id 10001 data d1"),
    (4..=7, "record net0 21 210"),
    (3..=7, "stop net0"),
    (1..=2, "stop -"),
    (1..=3, "record op0 2 64 1"),
    (1..=7, "record step0 9 64"),
    (1..=3, "record op0 3 64 1"),
    (1..=7, "stop step0"),
    (1..=7, "stop op0"),
    (1..=7, "start op1 under coll0 rank 3: channel 1 peer 4 steps 9 of 4096 send 0"),
    (4..=7, "record op1 19 0"),
    (1..=7, "start step1 under op1 rank 3: 0"),
    (1..=3, "record op1 4 0 1"),
    (1..=7, "record step1 10 0"),
    (1..=3, "record op1 5 32 1"),
    (1..=7, "record step1 11 32"),
    (1..=3, "record op1 6 32 1"),
    (1..=7, "record step1 12 32"),
    (1..=3, "record op1 7 32 1"),
];

#[test]
fn every_version_gets_its_own_events_and_states_in_order() {
    for version in 1..=7 {
        let plugin = load(version);
        let profiler = start(&plugin, Habits::ALL).unwrap();
        let init = if version <= 3 { "init" } else { "init world c0 hosts 2 rank 3 of 8 true" };
        assert_eq!(calls(), [init]);
        play(&profiler, plugin.callback());
        let expected = STORY.iter().filter(|(versions, _)| versions.contains(&version)).map(|(_, call)| {
            // Steps of v1 to v3 have no arguments.
            let step = call.starts_with("record step") && version <= 3;
            if step { format!("{} 0 0", call.rsplit_once(' ').unwrap().0) } else { (*call).to_owned() }
        });
        let expected: Vec<String> = expected.chain(["stop step1".to_owned(), "stop op1".to_owned()]).collect();
        assert_eq!(calls(), expected, "v{version}");
        profiler.finalize().unwrap();
        assert_eq!(calls(), ["finalize 99"]);
    }
}

#[test]
fn an_event_starts_if_any_kind_below_it_is_wanted() {
    let (net, step, op) = (EventType::NET_PLUGIN, EventType::PROXY_STEP, EventType::PROXY_OP);
    let (kernel, launch, ctrl) = (EventType::KERNEL_CH, EventType::KERNEL_LAUNCH, EventType::PROXY_CTRL);
    let operations = "group_api coll_api p2p_api group coll p2p";
    for (wanted, started) in [
        (net, format!("{operations} op step net op step")),
        (step, format!("{operations} op step op step")),
        (op, format!("{operations} op op")),
        (kernel, format!("{operations} kernel")),
        (EventType::COLL, "group_api coll_api group coll".to_owned()),
        (EventType::P2P, "group_api p2p_api group p2p".to_owned()),
        (EventType::GROUP, "group_api group".to_owned()),
        (EventType::COLL_API, "group_api coll_api".to_owned()),
        (EventType::P2P_API, "group_api p2p_api".to_owned()),
        (EventType::CE_BATCH, "group_api coll_api".to_owned()),
        (launch, "group_api launch".to_owned()),
        (EventType::GROUP_API, "group_api".to_owned()),
        (ctrl, String::new()),
    ] {
        let plugin = load(6);
        let profiler = start(&plugin, Habits { mask: wanted.bit(), ..Habits::ALL }).unwrap();
        calls();
        play(&profiler, plugin.callback());
        let calls = calls();
        let starts = calls.iter().filter_map(|call| call.strip_prefix("start ")?.split(' ').next());
        let names: Vec<_> = starts.map(|name| name.trim_end_matches(|c: char| c.is_ascii_digit())).collect();
        assert_eq!(names.join(" "), started, "{wanted:?}");
        // NCCL stops events of net plugins even if they have no handle, and changes them too.
        let nameless: Vec<_> = calls.iter().filter(|call| call.contains(" - ") && !call.contains("start")).collect();
        let expected = if wanted == net { 0 } else { 1 };
        assert_eq!(nameless.len(), expected, "{wanted:?}: {nameless:?}");
    }
}

#[test]
fn events_without_handles_are_not_changed_nor_stopped_but_those_of_net_plugins_are() {
    let plugin = load(7);
    let profiler = start(&plugin, Habits { handles: 0, ..Habits::ALL }).unwrap();
    play(&profiler, plugin.callback());
    let others: Vec<_> = calls().into_iter().filter(|call| !call.starts_with("start")).collect();
    assert_eq!(others, ["init world c0 hosts 2 rank 3 of 8 true", "record - 21 210", "stop -"]);

    // Steps of an operation without a handle have an end, but no states.
    let handles = Habits::ALL.handles & !EventType::PROXY_OP.bit();
    let profiler = start(&plugin, Habits { handles, ..Habits::ALL }).unwrap();
    play(&profiler, plugin.callback());
    let of_step = |call: &String| call.split(' ').nth(1).is_some_and(|event| event.starts_with("step"));
    let steps: Vec<_> = calls().into_iter().filter(of_step).collect();
    assert_eq!(steps, ["start step0 under - rank 3: 8", "stop step0", "start step1 under - rank 3: 0", "stop step1"]);
}

#[test]
fn a_new_mask_holds_for_all_communicators_from_the_next_call_on() {
    let plugin = load(6);
    let habits = Habits { mask: EventType::GROUP_API.bit(), ..Habits::ALL };
    let (profiler, other) = (start(&plugin, habits).unwrap(), start(&plugin, habits).unwrap());
    let call = profiler.call();
    calls();
    change_mask(EventType::NET_PLUGIN.bit());
    let group = call.group();
    let coll = call.coll(group.parent(), group.parent(), &coll());
    let op = call.proxy_op(coll.parent(), shape(Direction::Send));
    op.start_step(0);
    assert!(report(plugin.callback(), op.handle(0)).is_null(), "the start left the handle alone");
    assert_eq!(calls(), ["record - 21 210", "stop -"]);
    assert_eq!((call.mask(), profiler.call().mask(), other.mask()), (1 << 8, 1 << 7, 1 << 7));
}

#[test]
fn messages_share_steps_in_turn_and_a_repeated_start_takes_the_place_of_the_first() {
    let plugin = load(6);
    let profiler = start(&plugin, Habits::ALL).unwrap();
    let call = profiler.call();
    let group = call.group();
    let mut op = call.proxy_op(group.parent(), shape(Direction::Receive));
    calls();
    assert_eq!(op.handle(0), op.handle(2));
    assert_ne!(op.handle(0), op.handle(1));
    for number in [0, 1, 1] {
        op.start_step(number);
    }
    op.stop_step(1);
    op.stop_step(1);
    op.stop_step(0);
    let stops: Vec<_> = calls().into_iter().filter(|call| call.starts_with("stop")).collect();
    assert_eq!(stops, ["stop step2", "stop step0"], "a step that was stopped is not stopped again");
}

#[test]
fn a_profiler_that_fails_is_an_error_and_one_without_a_context_is_not_finalized() {
    for version in 1..=7 {
        let plugin = load(version);
        let failing = Habits { init: railweave_abi::NcclResult::SYSTEM_ERROR, ..Habits::ALL };
        let error = start(&plugin, failing).unwrap_err().to_string();
        assert!(error.contains("init of profiler \"fake\" returned ncclSystemError"), "{error}");
        assert_eq!(calls().len(), 1, "only init was called");
        let profiler = start(&plugin, Habits { context: false, ..Habits::ALL }).unwrap();
        profiler.call().group().stop();
        profiler.finalize().unwrap();
        assert_eq!(calls()[1..], ["start group0 under - rank 0", "stop group0"]);
        drop(start(&plugin, Habits::ALL).unwrap());
        assert_eq!(calls()[1..], ["finalize 99"], "dropping it finalizes it");
    }
}

#[test]
fn a_missing_function_or_name_is_named() {
    unsafe extern "C" fn stop(_event: *mut c_void) -> railweave_abi::NcclResult {
        railweave_abi::NcclResult::SUCCESS
    }
    static EMPTY: v6::Profiler = v6::Profiler {
        name: c"empty".as_ptr(),
        init: None,
        start_event: None,
        stop_event: Some(stop),
        record_event_state: None,
        finalize: None,
    };
    static NAMELESS: v6::Profiler = v6::Profiler { name: std::ptr::null(), ..EMPTY };
    let at = |version, table: &'static v6::Profiler| {
        // SAFETY: the table is static, and of version 6 if that is asked for.
        unsafe { ProfilerPlugin::at(Path::new("file"), version, from_ref(table).cast()) }
    };
    let error = start(&at(6, &EMPTY).unwrap().unwrap(), Habits::ALL).unwrap_err().to_string();
    assert!(error.contains("NULL for init in its table ncclProfiler_v6"), "{error}");
    let error = at(6, &NAMELESS).unwrap_err().to_string();
    assert!(error.contains("file has NULL as the name in ncclProfiler_v6"), "{error}");
    assert!(at(8, &EMPTY).unwrap().is_none());
}

#[test]
fn the_callback_without_a_profiler_does_nothing() {
    let mut event = pointer(0x77);
    for kind in [EventCall::START, EventCall::STOP, EventCall::UPDATE_AND_STOP] {
        // SAFETY: it reads nothing.
        assert!(unsafe { without_profiler(&raw mut event, kind.0, null_mut(), 0, null_mut()) }.is_success());
    }
    assert_eq!((event.addr(), calls().len()), (0x77, 0));
}
