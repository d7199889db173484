//! The profiler in the library: what NCCL's events become in the trace, with and without the network.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use common::traces::{dir, file, files, names, records, trace};
use common::{Pair, TWO_RAILS, alone, each, library, load, noise, until, warnings};
use railweave_abi::profiler::parts::ProxyOp;
use railweave_abi::profiler::{EventType, PROFILER_SYMBOLS, v6};
use railweave_nccl_host::net::NetApi;
use railweave_nccl_host::profiler::{
    Algorithm, Coll, CommunicatorInfo, DataType, Direction, Function, OpShape, P2p, ProfilerPlugin, Protocol,
};
use railweave_trace::{Frame, Kind, Record, What};

const BIG: usize = 4 << 20;

fn all_reduce() -> Coll {
    Coll {
        sequence: 41,
        function: Function::ALL_REDUCE,
        input: std::ptr::null_mut(),
        output: std::ptr::null_mut(),
        count: 1000,
        root: 0,
        data_type: DataType::FLOAT32,
        channels: 1,
        warps: 0,
        algorithm: Algorithm::RING,
        protocol: Protocol::SIMPLE,
    }
}

fn send_to_2() -> P2p {
    let (function, buffer, data_type) = (Function::SEND, std::ptr::null_mut(), DataType::FLOAT32);
    P2p { function, buffer, data_type, count: 5, peer: 2, channels: 1 }
}

#[test]
fn every_version_of_the_profiler_puts_collectives_and_steps_above_the_rails() {
    each(
        &[1, 2, 3, 4, 5, 6, 7],
        |_| vec![TWO_RAILS],
        |version| {
            trace();
            let plugin = load(None);
            let loaded = ProfilerPlugin::load(&library(), Some(*version)).unwrap();
            assert_eq!((loaded.name(), loaded.versions()), ("Railweave", &[7, 6, 5, 4, 3, 2, 1][..]));
            let net = plugin.init_with(7, None, Some(&loaded)).unwrap();
            let name = Some(c"training".to_owned());
            let profiler = loaded.init(CommunicatorInfo { name, comm_id: 7, hosts: 2, ranks: 4, rank: 3 }).unwrap();
            assert_ne!(profiler.mask(), 0);
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&noise(1, BIG)), pair.incoming(BIG));
            let call = profiler.call();
            let group = call.group();
            let group_api = call.group_api(false, 1);
            let coll = call.coll(group.parent(), group_api.parent(), &all_reduce());
            call.p2p(group.parent(), group_api.parent(), &send_to_2()).stop();
            let shape =
                |direction| OpShape { channel: 2, peer: 1, steps: 1, chunk_bytes: BIG, direction, in_flight: 1 };
            let mut sends = call.proxy_op(coll.parent(), shape(Direction::Send));
            let mut receives = call.proxy_op(coll.parent(), shape(Direction::Receive));
            coll.stop();
            sends.start_step(0);
            receives.start_step(0);
            for _ in 0..1000 {
                sends.send_peer_wait(0);
            }
            let recv = until("room", || {
                // SAFETY: the buffers last until the requests are done.
                unsafe { net.irecv_profiled(&pair.recv, &[to.part(0)], false, &[receives.handle(0)]) }.unwrap()
            });
            let send = until("a receive", || {
                let (start, registration) = (from.start(), from.registration());
                // SAFETY: as above.
                unsafe { net.isend_profiled(&pair.send, start, BIG, 0, registration, sends.handle(0)) }.unwrap()
            });
            pair.finish(&[send], &[recv]);
            sends.stop_step(0);
            receives.stop_step(0);
            drop((sends, receives));
            group.stop();
            group_api.stop();
            pair.close();
            profiler.finalize().unwrap();
            net.finalize().unwrap();

            let file = file();
            let (records, names) = (records(&file), names(&file));
            let mut events = BTreeMap::new();
            for (place, record) in records.iter().enumerate() {
                if let What::EventBegin { event, parent, kind, number } = record.what {
                    let ends = records.iter().filter(|other| other.what == What::EventEnd { event }).count();
                    assert!(events.insert(event, (kind, parent, number, place)).is_none());
                    assert!(ends == 1 || kind == Kind::ProxyOp, "{kind:?} ends {ends} times");
                }
            }
            let of_kind = |kind: Kind| {
                let its: Vec<_> =
                    events.iter().filter(|(_, event)| event.0 == kind).map(|(number, _)| *number).collect();
                its
            };
            let [coll] = of_kind(Kind::Coll)[..] else { panic!("one collective: {events:?}") };
            let facts = |event: u64| records[events[&event].3 + 1].what;
            let What::Coll(facts_of_coll) = facts(coll) else { panic!("{:?}", facts(coll)) };
            let text = |number: u16| names[&number].as_str();
            assert_eq!((text(facts_of_coll.function), facts_of_coll.count), ("AllReduce", 1000));
            assert_eq!((text(facts_of_coll.datatype), text(facts_of_coll.algorithm)), ("ncclFloat32", "RING"));
            assert_eq!((text(facts_of_coll.protocol), facts_of_coll.sequence), ("SIMPLE", 41));
            let [p2p] = of_kind(Kind::P2p)[..] else { panic!("one send: {events:?}") };
            let What::P2p(facts_of_p2p) = facts(p2p) else { panic!("{:?}", facts(p2p)) };
            assert_eq!((text(facts_of_p2p.function), facts_of_p2p.peer, facts_of_p2p.count), ("Send", 2, 5));
            let ops = of_kind(Kind::ProxyOp);
            assert_eq!(ops.len(), 2);
            for op in &ops {
                assert_eq!(events[op].1, coll, "the collective is above");
                let What::Op(facts) = facts(*op) else { panic!("{:?}", facts(*op)) };
                assert_eq!((facts.channel, facts.peer, facts.steps, facts.chunk), (2, 1, 1, BIG as u32));
                assert_eq!(facts.pid, std::process::id());
            }
            let steps = of_kind(Kind::ProxyStep);
            assert_eq!(steps.iter().map(|step| events[step].1).collect::<BTreeSet<_>>(), ops.into_iter().collect());
            let belong: BTreeSet<u64> = records
                .iter()
                .filter_map(|record| if let What::Belongs { event, .. } = record.what { Some(event) } else { None })
                .collect();
            // Events of net plugins came with v3.
            assert_eq!(belong, if *version < 3 { BTreeSet::new() } else { steps.into_iter().collect() });
            assert_eq!(of_kind(Kind::GroupApi).len(), usize::from(*version >= 5));
            let states = records.iter().filter(|record| matches!(record.what, What::State { .. })).count();
            assert!((1..20).contains(&states), "a state that is repeated is noted once: {states}");
            let communicator = file.frames.iter().find_map(|frame| match frame {
                Frame::Communicator(communicator) => Some(communicator.clone()),
                _ => None,
            });
            let communicator = communicator.expect("there is one");
            assert_eq!(events[&coll].2, communicator.number);
            let expected = if *version < 4 { (0, "", None) } else { (7, "training", Some(3)) };
            assert_eq!((communicator.id, communicator.name.as_str(), communicator.rank), expected);
        },
    );
}

#[test]
fn each_receive_of_a_group_is_above_the_rails_of_its_one_request() {
    alone(&[TWO_RAILS], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let net = load(None).init_with(1, None, Some(&loaded)).unwrap();
        let profiler = loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100)), [(); 3].map(|()| pair.incoming(100)));
        let call = profiler.call();
        let group = call.group();
        let direction = Direction::Receive;
        let shape = OpShape { channel: 0, peer: 1, steps: 1, chunk_bytes: 100, direction, in_flight: 1 };
        let ops = [(); 3].map(|()| call.proxy_op(group.parent(), shape));
        ops.iter().for_each(|op| op.start_step(0));
        let parts = [to[0].part(0), to[1].part(1), to[2].part(2)];
        let recv = until("room", || {
            // SAFETY: the buffers last until the requests are done.
            unsafe { net.irecv_profiled(&pair.recv, &parts, false, &ops.each_ref().map(|op| op.handle(0))) }.unwrap()
        });
        let sends: Vec<_> = (0..3).map(|tag| pair.isend(&from, 100, tag)).collect();
        pair.finish(&sends, &[recv]);
        drop(ops);
        group.stop();
        pair.close();
        profiler.finalize().unwrap();
        net.finalize().unwrap();
        let records = records(&file());
        let belongs = |record: &Record| match record.what {
            What::Belongs { connection, request, event } => Some(((connection, request), event)),
            _ => None,
        };
        let belonging: Vec<_> = records.iter().filter_map(belongs).collect();
        let steps: BTreeSet<u64> = belonging.iter().map(|(_, event)| *event).collect();
        assert!(belonging.len() == 3 && steps.len() == 3, "{belonging:?}");
        assert!(belonging.iter().all(|(request, _)| *request == belonging[0].0), "{belonging:?}");
    });
}

#[test]
fn without_the_setting_the_profiler_sleeps_and_there_is_neither_a_thread_nor_a_file() {
    alone(&[TWO_RAILS], || {
        let plugin = load(None);
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let net = plugin.init_with(7, None, Some(&loaded)).unwrap();
        let profiler = loaded.init(CommunicatorInfo::default()).unwrap();
        assert_eq!(profiler.mask(), 0);
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, BIG);
        let names = fs::read_dir("/proc/self/task").unwrap().map(|task| {
            let path = task.unwrap().path().join("comm");
            fs::read_to_string(path).unwrap_or_default()
        });
        let names: Vec<_> = names.collect();
        assert!(names.iter().any(|name| name.starts_with("railweave")), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("railweave-trace")), "{names:?}");
        pair.close();
        assert!(!dir().exists());
    });
}

#[test]
fn the_profiler_traces_a_process_that_uses_another_network() {
    alone(&[TWO_RAILS], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let profiler = loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
        assert_ne!(profiler.mask(), 0);
        profiler.call().group().stop();
        profiler.finalize().unwrap();
        assert_eq!(records(&file()).len(), 2, "its begin and its end");
    });
}

#[test]
fn a_setting_that_is_wrong_is_said_even_if_another_network_is_used() {
    alone(&[TWO_RAILS, ("RAILWEAVE_TRACE_MAX", "lots")], || {
        // It collects what is logged; its `init` is not called.
        let _plugin = load(None);
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let start = || loaded.init(CommunicatorInfo::default()).unwrap();
        let untraced = start();
        assert!(untraced.mask() == 0 && warnings().is_empty(), "{:?}", warnings());
        trace();
        let traced = start();
        let said = warnings();
        assert!(traced.mask() == 0 && said.len() == 1, "{said:?}");
        assert!(said[0].contains("nothing is traced: RAILWEAVE_TRACE_MAX"), "{said:?}");
        untraced.finalize().unwrap();
        traced.finalize().unwrap();
    });
}

#[test]
fn a_profiler_that_starts_before_the_network_is_in_the_same_trace() {
    alone(&[TWO_RAILS], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let start = || loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
        let first = start();
        let net = load(None).init(1, None).unwrap();
        let second = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 8);
        pair.close();
        first.call().group().stop();
        first.finalize().unwrap();
        second.finalize().unwrap();
        net.finalize().unwrap();
        let file = file();
        let number = |frame: &Frame| if let Frame::Communicator(it) = frame { Some(it.number) } else { None };
        assert_eq!(file.frames.iter().filter_map(number).collect::<Vec<_>>(), [1, 2]);
        let peer = |frame: &Frame| if let Frame::Connection(it) = frame { Some(it.peer.clone()) } else { None };
        assert_eq!(file.frames.iter().find_map(peer), Some(file.process.id.clone()), "peers know it by the same id");
        let begun = |record: &Record| matches!(record.what, What::EventBegin { number: 1, .. });
        assert_eq!(records(&file).iter().filter(|record| begun(record)).count(), 1);
    });
}

#[test]
fn the_traces_of_one_process_keep_the_limit_together_and_no_event_of_one_ends_in_another() {
    alone(&[TWO_RAILS, ("RAILWEAVE_TRACE_MAX", "1M")], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), Some(6)).unwrap();
        let mut traces = BTreeMap::new();
        for life in 1..=6 {
            let net = load(None).init(1, None).unwrap();
            let profiler = loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
            (0..10_000).for_each(|_| profiler.call().group().stop());
            profiler.finalize().unwrap();
            net.finalize().unwrap();
            let bytes: u64 = fs::read_dir(dir()).unwrap().map(|it| it.unwrap().metadata().unwrap().len()).sum();
            assert!(bytes <= 1 << 20, "{bytes} bytes after {life} traces");
            for file in files() {
                for record in records(&file) {
                    if let What::EventBegin { event, .. } = record.what {
                        let first = traces.entry(event).or_insert_with(|| file.process.id.clone());
                        assert_eq!(*first, file.process.id, "event {event} is in two traces");
                    }
                }
            }
        }
        assert!(traces.len() > 10_000);
    });
}

#[test]
fn a_step_that_nccl_starts_again_and_again_is_one_event() {
    alone(&[TWO_RAILS], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), None).unwrap();
        let profiler = loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
        let direction = Direction::Receive;
        let shape = OpShape { channel: 2, peer: 1, steps: 40, chunk_bytes: BIG, direction, in_flight: 40 };
        let group = profiler.call().group();
        let mut op = profiler.call().proxy_op(group.parent(), shape);
        for _ in 0..1000 {
            for step in 0..40 {
                op.start_step(step);
                op.recv_wait(step);
            }
        }
        (0..40).for_each(|step| op.stop_step(step));
        op.start_step(0);
        drop(op);
        group.stop();
        profiler.finalize().unwrap();
        let records = records(&file());
        let begun = |kind: Kind| {
            let is_its = |record: &&Record| matches!(record.what, What::EventBegin { kind: its, .. } if its == kind);
            records.iter().filter(is_its).count()
        };
        assert_eq!((begun(Kind::ProxyOp), begun(Kind::ProxyStep)), (1, 41), "one that has ended may begin again");
        let states = records.iter().filter(|record| matches!(record.what, What::State { .. })).count();
        assert_eq!(states, 40);
    });
}

#[test]
fn an_event_of_another_process_is_taken_with_that_processs_context() {
    alone(&[TWO_RAILS], || {
        trace();
        let loaded = ProfilerPlugin::load(&library(), Some(6)).unwrap();
        let profiler = loaded.init(CommunicatorInfo { ranks: 2, ..CommunicatorInfo::default() }).unwrap();
        // SAFETY: the symbol is a table of this version, of a library that stays loaded.
        let table = unsafe {
            let library = railweave_nccl_host::library::open(&library()).unwrap();
            let address = railweave_nccl_host::library::address(&library, c"ncclProfiler_v6").unwrap();
            std::mem::forget(library);
            &*address.cast::<v6::Profiler>()
        };
        // A process that sends through the proxy of this one has contexts and events of its own, at any address.
        let foreign = std::ptr::without_provenance_mut(0x7f00_dead_beef);
        let op = ProxyOp { pid: 1, channel_id: 3, peer: 5, n_steps: 1, chunk_size: 8, is_send: 1 };
        let mut description = v6::EventDescr {
            kind: EventType::PROXY_OP,
            parent_obj: foreign,
            rank: 0,
            event: v6::Event { proxy_op: op },
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: the description is of this kind, and the place is a variable.
        unsafe {
            let _ = table.start_event.unwrap()(foreign, &raw mut event, &raw mut description);
            assert!(!event.is_null());
            let _ = table.stop_event.unwrap()(event);
        }
        profiler.finalize().unwrap();
        let records = records(&file());
        let facts = records.iter().find_map(|record| if let What::Op(op) = record.what { Some(op) } else { None });
        assert_eq!(facts.map(|op| (op.pid, op.channel, op.peer)), Some((1, 3, 5)));
        let communicators = records.iter().filter_map(|record| match record.what {
            What::EventBegin { number, .. } => Some(number),
            _ => None,
        });
        assert_eq!(communicators.collect::<Vec<_>>(), [0], "no communicator of this process");
    });
}

#[test]
fn behind_each_table_of_the_profiler_there_are_zeros() {
    let library = railweave_nccl_host::library::open(&library()).unwrap();
    for (_, symbol) in PROFILER_SYMBOLS {
        let address = railweave_nccl_host::library::address(&library, symbol).expect("every version is there");
        // SAFETY: the library's table has six words, and eight more behind it.
        let words = unsafe { std::slice::from_raw_parts(address.cast::<usize>(), 14) };
        assert!(words[..6].iter().all(|word| *word != 0) && words[6..].iter().all(|word| *word == 0), "{symbol:?}");
    }
}
