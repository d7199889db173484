//! The events of collectives as a profiler sees them: a tree for each, down to the events of the net plugin.

mod support;

use railweave_abi::profiler::parts::StateArgsV4;
use railweave_abi::profiler::{EventState, EventType, v6};
use railweave_abi::{NcclLogger, NcclResult};
use railweave_bench::Communicator;
use railweave_bench::communicator::Mode;
use railweave_nccl_host::profiler::ProfilerPlugin;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use support::{Faults, Loopback, with_profiled_ranks};

/// An event, with the places of its start and its end among all starts and ends of the process.
#[derive(Clone, Debug)]
struct Event {
    rank: i32,
    kind: EventType,
    parent: Option<usize>,
    text: String,
    states: Vec<i32>,
    begin: usize,
    end: Option<usize>,
}

/// The events of all ranks, and the number of starts and ends. A handle is the index of its event, plus 1.
static LOG: Mutex<(Vec<Event>, usize)> = Mutex::new((Vec::new(), 0));
static MASK: AtomicI32 = AtomicI32::new(0);
/// Held by the test that uses the profiler.
static TURN: Mutex<()> = Mutex::new(());

fn index(handle: *mut c_void) -> Option<usize> {
    handle.addr().checked_sub(1)
}

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _comm_id: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    rank: c_int,
    _log: Option<NcclLogger>,
) -> NcclResult {
    // SAFETY: the host passes both pointers.
    unsafe {
        *context = std::ptr::without_provenance_mut(rank as usize + 1);
        *mask = MASK.load(SeqCst);
    }
    NcclResult::SUCCESS
}
unsafe extern "C" fn start(
    context: *mut c_void,
    event: *mut *mut c_void,
    description: *mut v6::EventDescr,
) -> NcclResult {
    // SAFETY: the host passes a description, whose kind says which member of the union is valid, with strings.
    let (kind, parent, text) = unsafe {
        let all = &*description;
        let string = |pointer: *const c_char| CStr::from_ptr(pointer).to_str().unwrap();
        let text = match all.kind {
            EventType::GROUP_API => format!("depth {}", all.event.group_api.group_depth),
            EventType::COLL_API => format!("{} {}", string(all.event.coll_api.func), all.event.coll_api.count),
            EventType::P2P_API => format!("{} {}", string(all.event.p2p_api.func), all.event.p2p_api.count),
            EventType::COLL => {
                let coll = all.event.coll;
                let (func, datatype) = (string(coll.func), string(coll.datatype));
                format!("{func} {} of {datatype} number {} on {}", coll.count, coll.seq_number, coll.n_channels)
            }
            EventType::P2P => {
                let p2p = all.event.p2p;
                format!("{} {} of {} peer {}", string(p2p.func), p2p.count, string(p2p.datatype), p2p.peer)
            }
            EventType::PROXY_OP => {
                let op = all.event.proxy_op;
                let way = if op.is_send == 1 { "to" } else { "from" };
                format!("channel {} {way} {}: {} steps of {}", op.channel_id, op.peer, op.n_steps, op.chunk_size)
            }
            EventType::PROXY_STEP => all.event.proxy_step.step.to_string(),
            EventType::KERNEL_CH => format!("channel {}", all.event.kernel_ch.channel_id),
            EventType::NET_PLUGIN => format!("id {:x}", all.event.net_plugin.id),
            _ => String::new(),
        };
        (all.kind, all.parent_obj, text)
    };
    let (events, clock) = &mut *LOG.lock().unwrap();
    *clock += 1;
    let (rank, parent, begin) = (context.addr() as i32 - 1, index(parent), *clock);
    events.push(Event { rank, kind, parent, text, states: Vec::new(), begin, end: None });
    // SAFETY: the host passes the pointer.
    unsafe { *event = std::ptr::without_provenance_mut(events.len()) };
    NcclResult::SUCCESS
}
unsafe extern "C" fn stop(event: *mut c_void) -> NcclResult {
    let (events, clock) = &mut *LOG.lock().unwrap();
    *clock += 1;
    let event = &mut events[index(event).expect("a handle")];
    assert!(event.end.replace(*clock).is_none(), "stopped twice: {event:?}");
    NcclResult::SUCCESS
}
unsafe extern "C" fn record(event: *mut c_void, state: EventState, _args: *mut StateArgsV4) -> NcclResult {
    let (events, _) = &mut *LOG.lock().unwrap();
    let event = &mut events[index(event).expect("a handle")];
    assert!(event.end.is_none(), "changed after its end: {event:?}");
    event.states.push(state.0);
    NcclResult::SUCCESS
}
unsafe extern "C" fn finalize(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}

/// Runs `body` on two ranks over two rings with a profiler that wants `mask`; returns the results and all events.
fn profiled(
    mask: c_int,
    faults: Faults,
    body: impl Fn(&mut Communicator<'_, Loopback>) -> Result<(), String> + Sync,
) -> (Vec<Result<(), String>>, Vec<Event>) {
    static TABLE: v6::Profiler = v6::Profiler {
        name: c"tree".as_ptr(),
        init: Some(init),
        start_event: Some(start),
        stop_event: Some(stop),
        record_event_state: Some(record),
        finalize: Some(finalize),
    };
    let _turn = TURN.lock().unwrap();
    MASK.store(mask, SeqCst);
    // SAFETY: the table is static, and of this version.
    let plugin = unsafe { ProfilerPlugin::at(Path::new(""), 6, from_ref(&TABLE).cast()) }.unwrap().unwrap();
    let (results, _) = with_profiled_ranks(Some(&plugin), 2, 2, Mode::Staged, faults, body);
    (results, std::mem::take(&mut LOG.lock().unwrap().0))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the texts of the events of a rank and a kind, and of those of their parents.
fn family(events: &[Event], rank: i32, kind: EventType) -> Vec<(String, String)> {
    let parent = |event: &Event| event.parent.map_or(String::new(), |parent| events[parent].text.clone());
    let own = events.iter().filter(|event| event.rank == rank && event.kind == kind);
    own.map(|event| (event.text.clone(), parent(event))).collect()
}

/// Checks the steps of all operations of proxies, and the events of the net plugin below them.
fn check_steps(events: &[Event]) {
    let children = |parent: usize, kind| {
        events.iter().enumerate().filter(move |(_, event)| event.parent == Some(parent) && event.kind == kind)
    };
    for (index, op) in events.iter().enumerate().filter(|(_, event)| event.kind == EventType::PROXY_OP) {
        assert_eq!(op.states, [EventState::PROXY_OP_IN_PROGRESS.0]);
        let end = op.end.expect("it was stopped");
        // The host starts the step of a receive again if there was no request, as NCCL does.
        let used = children(index, EventType::PROXY_STEP).filter(|(_, step)| !step.states.is_empty());
        let mut numbers = Vec::new();
        for (index, step) in used {
            numbers.push(step.text.parse::<usize>().unwrap());
            let (begin, stopped) = (step.begin, step.end.expect("it was stopped"));
            assert!(op.begin < begin && stopped < end, "{op:?} {step:?}");
            match *step.states {
                [8, ref tries @ .., 9] => assert!(op.text.contains(" to ") && tries.iter().all(|state| *state == 20)),
                [10, 11, 12] => assert!(op.text.contains(" from ")),
                ref other => panic!("{other:?}"),
            }
            let [(_, net)] = children(index, EventType::NET_PLUGIN).collect::<Vec<_>>()[..] else {
                panic!("one request: {step:?}");
            };
            assert_eq!(net.text, "id 30001");
            assert!(begin < net.begin && net.end.is_some_and(|end| end < stopped), "{step:?} {net:?}");
        }
        let all = op.text.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(numbers, (0..all).collect::<Vec<usize>>(), "{op:?}");
    }
}

#[test]
fn a_collective_is_a_tree_from_the_call_down_to_the_requests() {
    let (results, events) = profiled(0xffff, Faults::default(), |communicator| {
        let mut data = vec![1.0; 3_000_000];
        communicator.all_reduce(&mut data).map_err(text)?;
        communicator.all_reduce(&mut data[..64]).map_err(text)?;
        communicator.all_gather(&data[..96], &mut vec![0.0; 192]).map_err(text)
    });
    assert_eq!(results, [Ok(()), Ok(())]);
    for rank in 0..2 {
        let [reduce, again, gather] = [
            "AllReduce 3000000 of ncclFloat32 number 0 on 2",
            "AllReduce 64 of ncclFloat32 number 1 on 2",
            "AllGather 384 of ncclInt8 number 0 on 2",
        ];
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(own, parent)| ((*own).to_owned(), (*parent).to_owned())).collect()
        };
        let calls = [("AllReduce 3000000", "depth 1"), ("AllReduce 64", "depth 1"), ("AllGather 96", "depth 1")];
        assert_eq!(family(&events, rank, EventType::COLL_API), pairs(&calls));
        assert_eq!(
            family(&events, rank, EventType::COLL),
            pairs(&[(reduce, calls[0].0), (again, calls[1].0), (gather, calls[2].0)])
        );
        assert_eq!(family(&events, rank, EventType::KERNEL_LAUNCH), pairs(&[("", "depth 1"); 3]));
        let channels = [reduce, again, gather].map(|coll| [("channel 0", coll), ("channel 1", coll)]);
        assert_eq!(family(&events, rank, EventType::KERNEL_CH), pairs(channels.as_flattened()));
        let ops = |steps| {
            [("from", 0), ("from", 1), ("to", 0), ("to", 1)]
                .map(|(way, channel)| format!("channel {channel} {way} {}: {steps} steps of 1048576", 1 - rank))
        };
        let ops: Vec<_> = [(6, reduce), (2, again), (1, gather)]
            .into_iter()
            .flat_map(|(steps, coll)| ops(steps).map(|op| (op, coll.to_owned())))
            .collect();
        assert_eq!(family(&events, rank, EventType::PROXY_OP), ops);
    }
    check_steps(&events);
    // A call ends before its group does, and operations are enqueued and stopped before proxies start.
    let of = |kind: EventType| events.iter().find(move |event| event.rank == 0 && event.kind == kind).unwrap();
    let (group_api, coll_api, launch) =
        (of(EventType::GROUP_API), of(EventType::COLL_API), of(EventType::KERNEL_LAUNCH));
    let (group, coll, op) = (of(EventType::GROUP), of(EventType::COLL), of(EventType::PROXY_OP));
    let order = [
        Some(group_api.begin),
        Some(coll_api.begin),
        coll_api.end,
        Some(launch.begin),
        launch.end,
        Some(group.begin),
        Some(coll.begin),
        coll.end,
        group.end,
        group_api.end,
        Some(op.begin),
        op.end,
    ];
    assert!(order.is_sorted_by(|first, second| first.is_some() && first < second), "{order:?}");
    assert_eq!(group_api.states, [EventState::GROUP_START_API_STOP.0, EventState::GROUP_END_API_START.0]);
}

#[test]
fn sends_and_receives_are_operations_of_their_own() {
    let (results, events) = profiled(0xffff, Faults::default(), |communicator| {
        communicator.all_to_all(&[1.0; 64], &mut [0.0; 64]).map_err(text)
    });
    assert_eq!(results, [Ok(()), Ok(())]);
    for rank in 0..2 {
        let own = |kind| family(&events, rank, kind).into_iter().map(|(own, parent)| format!("{own} < {parent}"));
        let peer = 1 - rank;
        assert!(own(EventType::P2P_API).eq(["Send 32 < depth 2", "Recv 32 < depth 2"]));
        let p2p = ["Send", "Recv"].map(|way| format!("{way} 32 of ncclFloat32 peer {peer} < {way} 32"));
        assert!(own(EventType::P2P).eq(p2p));
        let ops = [("from", "Recv"), ("to", "Send")].map(|(way, call)| {
            format!("channel 2 {way} {peer}: 1 steps of 524288 < {call} 32 of ncclFloat32 peer {peer}")
        });
        assert!(own(EventType::PROXY_OP).eq(ops), "{:?}", own(EventType::PROXY_OP).collect::<Vec<_>>());
        assert_eq!(own(EventType::KERNEL_CH).count(), 2);
    }
    check_steps(&events);
}

#[test]
fn a_profiler_that_wants_requests_gets_their_parents_and_one_that_wants_nothing_gets_nothing() {
    let body = |communicator: &mut Communicator<'_, Loopback>| communicator.all_reduce(&mut [1.0; 64]).map_err(text);
    let (results, events) = profiled(EventType::NET_PLUGIN.bit(), Faults::default(), body);
    assert_eq!(results, [Ok(()), Ok(())]);
    check_steps(&events);
    assert_eq!(events.iter().filter(|event| event.kind == EventType::NET_PLUGIN).count(), 16);
    let unwanted = [EventType::KERNEL_CH, EventType::KERNEL_LAUNCH];
    assert!(!events.iter().any(|event| unwanted.contains(&event.kind)));
    let (results, events) = profiled(0, Faults::default(), body);
    assert_eq!(results, [Ok(()), Ok(())]);
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn the_events_of_a_failed_collective_are_left_open() {
    let faults = Faults { fail: Some(1), ..Faults::default() };
    let (results, events) =
        profiled(0xffff, faults, |communicator| communicator.all_reduce(&mut vec![1.0; 3_000_000]).map_err(text));
    assert!(results.iter().any(Result::is_err), "{results:?}");
    let op = |event: &&Event| event.kind == EventType::PROXY_OP && event.end.is_none();
    assert!(events.iter().any(|event| op(&event)), "an operation was not finished");
    assert!(events.iter().filter(|event| event.kind == EventType::COLL).all(|event| event.end.is_some()));
}
