//! The cost of telemetry: the time of a write with 500 connections of two rails each, as a part of a core at ten writes
//! a second; and of the policy files, polled a hundred times a second.
//!
//! `cargo run --release -p railweave-telemetry --example cost`
#![allow(clippy::print_stdout)] // its results

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, PolicyFile, Process, Publisher, Rail, RailState, RunDir,
    SeedPolicy, State, create_seed_policy, read,
};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const CONNECTIONS: u32 = 500;
const WRITES: u64 = 1000;
const TICK_NS: u64 = 100_000_000;

fn state() -> State {
    let connection = |number| Connection {
        number,
        direction: Direction::Send,
        state: ConnectionState::Open,
        peer_host: format!("node{number}"),
        ..Connection::default()
    };
    let rail = |index: u32| Rail {
        connection: index / 2,
        number: (index % 2) as u8,
        state: RailState::Up,
        local: format!("fe80::1234:5678:9abc:{:x}", index % 2),
        remote: format!("fe80::1234:5678:9abc:{index:x}"),
        ..Rail::default()
    };
    State {
        process: Process::of_this_process([1; 16], Some(0), Some(1), |_| None),
        devices: vec![Device { name: "mlx5_0+mlx5_1".into(), ..Device::default() }],
        connections: (0..CONNECTIONS).map(connection).collect(),
        rails: (0..2 * CONNECTIONS).map(rail).collect(),
        ports: Vec::new(),
    }
}

/// Publishes many times, after `change`. Returns the mean time and the longest.
fn measure(publisher: &mut Publisher, state: &mut State, start_ns: u64, change: impl Fn(&mut State)) -> [Duration; 2] {
    let mut total = Duration::ZERO;
    let mut longest = Duration::ZERO;
    for write in 0..WRITES {
        change(state);
        let start = Instant::now();
        if let Some(notice) = publisher.publish(state, start_ns + write * TICK_NS) {
            println!("{notice}");
        }
        total += start.elapsed();
        longest = longest.max(start.elapsed());
    }
    [total / WRITES as u32, longest]
}

/// Shows the time of a poll of each policy file.
fn measure_policies(dir: &RunDir) {
    let show = |what: &str, poll: &mut dyn FnMut() -> Option<String>| {
        let start = Instant::now();
        for _ in 0..WRITES {
            if let Some(sentence) = poll() {
                println!("{sentence}");
            }
        }
        let mean = start.elapsed() / WRITES as u32;
        println!("{what}: {mean:.1?} a poll, {:.3} % of a core at a hundred a second", mean.as_secs_f64() * 1e4);
    };
    for ranks in [16, 1024, 65_536] {
        let path = dir.path().join(format!("table-{ranks}"));
        if let Err(error) = create_seed_policy(&path, ranks) {
            println!("{error}");
        }
        let mut policy = SeedPolicy::new(path);
        show(&format!("a table of {ranks} ranks"), &mut || policy.poll());
    }
    let rules = "peer=node3 rank=0-7 -> weights 80,20\n".repeat(1000);
    if let Err(error) = std::fs::write(dir.policy_file(), format!("railweave-policy 1\nttl forever\n{rules}")) {
        println!("{error}");
    }
    let mut policy = PolicyFile::new(dir.policy_file());
    show("a policy file of 1000 rules, unchanged", &mut || policy.poll(SystemTime::now()));
}

fn main() {
    let dir = RunDir::named(Some(&Path::new("/dev/shm").join(format!("railweave-cost-{}", std::process::id()))));
    let mut publisher = Publisher::new(dir.clone(), [1; 16]);
    let mut state = state();
    let show = |what: &str, [mean, longest]: [Duration; 2]| {
        let percent = mean.as_secs_f64() * 10.0 * 100.0;
        println!("{what}: {mean:.1?} a write, {percent:.3} % of a core at ten a second; the longest {longest:.1?}");
    };
    let count = |rails: &mut [Rail]| {
        for rail in rails {
            rail.bytes_sent += 4 << 20;
            rail.writes_sent += 4;
            rail.latencies.0[3] += 1;
        }
    };
    measure(&mut publisher, &mut state, 0, |_| {});
    show("nothing changed", measure(&mut publisher, &mut state, 1 << 40, |_| {}));
    let some = measure(&mut publisher, &mut state, 2 << 40, |state| count(&mut state.rails[..100]));
    show("100 of 1000 rails changed", some);
    let all = measure(&mut publisher, &mut state, 3 << 40, |state| {
        count(&mut state.rails);
        state
            .connections
            .iter_mut()
            .for_each(|connection| connection.messages = connection.messages.map(|messages| messages + 4));
    });
    show("all 1000 rails and 500 connections changed", all);
    for number in 0..5000 {
        publisher.add(&Event { time_ns: number, text: "an event of a sentence".into(), ..Event::default() });
    }
    show("nothing changed, the ring of events full", measure(&mut publisher, &mut state, 4 << 40, |_| {}));
    let start = Instant::now();
    let snapshot = read(publisher.path());
    println!("read in {:.1?}: {} rails", start.elapsed(), snapshot.map_or(0, |snapshot| snapshot.state.rails.len()));
    println!("{} bytes", std::fs::metadata(publisher.path()).map_or(0, |facts| facts.len()));
    publisher.remove();
    measure_policies(&dir);
    let _ = std::fs::remove_dir_all(dir.path());
}
