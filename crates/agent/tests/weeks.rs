//! Two weeks of a host, and what is left of them.

mod host;

use host::metrics::{self, Samples};
use host::{Host, MEGABIT};
use railweave_counters::Counter;
use railweave_telemetry::{EventKind, Presence};
use std::collections::BTreeMap;
use std::time::Duration;

const CONFIG: &str = "series = 64\n[balance]\n[avoid_congestion]\n[avoid_sick]\n";
const PORTS: [(&str, f64); 3] = [("mlx5_0", 80.0), ("mlx5_1", 20.0), ("mlx5_2", 40.0)];
const DAY: u64 = 86_400;

/// Returns the counters that may not go back: not those of ports, which a driver sets to zero.
fn counters(host: &Host) -> Samples {
    metrics::read(&host.agent.metrics())
}

/// Plays a shift of six hours in which jobs come, pause, crash, hang and end. Looks are rare while nothing changes.
fn shift(host: &mut Host, number: u64) {
    let name = format!("job{number}");
    let ports: [&[&str]; 3] = [&["mlx5_0", "mlx5_1"], &["mlx5_1"], &["mlx5_2", "mlx5_0", "mlx5_1"]];
    host.step = Duration::from_secs(1);
    let first = host.job(7 + number as u32 % 2, &name, ports[number as usize % 3]);
    let second = host.job(9, &format!("{name}-b"), ports[(number as usize + 1) % 3]);
    host.jobs[first].bursts = Some((40, 20));
    host.event(first, EventKind::OPENED);
    host.play(5);
    host.jobs[first].snapshot.events.clear();
    host.play(115);
    match number % 5 {
        0 => host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 100),
        1 => host.links.get_mut("mlx5_0").unwrap().knee = 30.0 * MEGABIT,
        2 => host.jump += 3 * 3600,
        3 => host.jump -= 5 * 3600,
        _ => host.agent.drain("mlx5_2").unwrap(),
    }
    host.play(60);
    host.agent.refuse(9, &format!("wrong{number}"), "is no telemetry file");
    host.step = Duration::from_secs(5);
    host.play(600);
    host.step = Duration::from_secs(60);
    host.play(2 * 3600);
    host.step = Duration::from_secs(5);
    // One crashes, and its file stays a day; the other hangs, is ended, and its file goes.
    host.jobs[first].presence = Presence::Gone;
    host.jobs[second].hangs = true;
    host.play(120);
    host.links.get_mut("mlx5_0").unwrap().knee = f64::INFINITY;
    host.give_back("mlx5_2");
    host.agent.forget(9, &format!("wrong{number}"));
    host.agent.forget(9, &host.jobs[second].file.clone());
    host.jobs[second].ended = Some(host.up);
    host.jobs[second].left = 0.0;
    host.step = Duration::from_secs(120);
    host.play(6 * 3600 - 900 - 2 * 3600);
}

#[test]
fn two_weeks_leave_nothing_behind() {
    let mut host = Host::new(CONFIG, &PORTS);
    host.play(5);
    let mut last = counters(&host);
    let mut sizes = Vec::new();
    for number in 0..14 * DAY / (6 * 3600) {
        shift(&mut host, number);
        let now = counters(&host);
        let (old, new) = (kept(&last, &now), now.clone());
        metrics::check_growth(&old, &new);
        last = now;
        for job in host.jobs.iter().filter(|job| job.presence == Presence::Gone).rev().skip(3) {
            host.agent.forget(job.user, &job.file);
        }
        // The simulation itself forgets what the host has.
        let gone = host.jobs.iter().filter(|job| job.presence == Presence::Gone).count();
        let mut extra = gone.saturating_sub(4);
        host.jobs.retain(|job| {
            let goes = job.ended.is_some() || (job.presence == Presence::Gone && extra > 0);
            extra -= usize::from(goes && job.presence == Presence::Gone);
            !goes
        });
        let state = serde_json::to_string(&host.agent.state()).unwrap().len();
        sizes.push((host.agent.metrics().len(), state, last.len()));
    }
    let (first, end) = (sizes[10], sizes[sizes.len() - 1]);
    assert!(end.0 < first.0 * 3 / 2 && end.1 < first.1 * 3 / 2, "{first:?} -> {end:?}");
    check_log(&host.log);
    assert!(host.agent.state().findings.is_empty(), "{:?}", host.agent.state().findings);
    assert!(host.changes < 20_000 && host.log.len() < 1000, "{} {}", host.changes, host.log.len());
}

/// Returns the samples that the next ones must not be below: a series that ended may begin again.
fn kept(before: &Samples, now: &Samples) -> Samples {
    before.iter().filter(|(key, _)| now.contains_key(*key)).map(|(key, value)| (key.clone(), *value)).collect()
}

/// Checks that each finding is said once at each end.
fn check_log(log: &[String]) {
    let mut open: BTreeMap<&str, i64> = BTreeMap::new();
    for line in log {
        let (kind, rest) = line.split_once(':').unwrap();
        let is_end = rest.ends_with(" is over");
        let kind = kind.split(' ').next().unwrap();
        *open.entry(kind).or_default() += if is_end { -1 } else { 1 };
        assert!(open[kind] >= 0, "{line}");
    }
    assert!(open.values().all(|count| *count == 0), "{open:?}");
    let expected = ["port-congested", "port-drained", "port-empty", "port-sick", "process-silent", "file-refused"];
    for kind in expected {
        assert!(open.contains_key(kind), "{kind} was never said: {open:?}");
    }
    assert_eq!(log.iter().filter(|line| line.starts_with("file-refused")).count(), 2 * 56);
    assert_eq!(log.iter().filter(|line| line.starts_with("process-silent")).count(), 2 * 56);
}

#[test]
fn metrics_are_what_the_host_has_counted() {
    let mut host = Host::new("series = 16\n", &PORTS);
    let jobs: Vec<usize> = (0..20).map(|place| host.job(7, &format!("job{place}"), &["mlx5_0", "mlx5_1"])).collect();
    host.event(3, EventKind::RAIL_DOWN);
    host.look();
    host.jobs[3].snapshot.events.clear();
    host.play(60);
    let sent = |host: &Host, rail| jobs.iter().map(|job| host.jobs[*job].sent(rail)).sum::<u64>() as f64;
    let samples = counters(&host);
    let name = "railweave_rail_sent_bytes_total";
    assert_eq!(metrics::sum(&samples, name, &[("port", "mlx5_0")]), sent(&host, 0));
    assert_eq!(metrics::sum(&samples, name, &[("port", "mlx5_1")]), sent(&host, 1));
    assert_eq!(metrics::sum(&samples, name, &[]), sent(&host, 0) + sent(&host, 1));
    assert!(metrics::count(&samples, name) <= 18);
    assert!(metrics::sum(&samples, name, &[("job_id", "(other)")]) > 0.0);
    let port = metrics::sum(&samples, "railweave_port_data_transmitted_bytes_total", &[("port", "mlx5_1")]);
    assert!((port - 1000.0 - sent(&host, 1)).abs() < 2000.0, "{port}");
    // There is less room for kinds than for series here, so some have no name.
    let events = |samples: &Samples| metrics::sum(samples, "railweave_events_total", &[]);
    assert_eq!(events(&samples), 1.0);
    assert_eq!(metrics::sum(&samples, "railweave_processes", &[("presence", "running")]), 20.0);
    assert_eq!(metrics::sum(&samples, "railweave_rails", &[("state", "up")]), 40.0);

    // An agent that begins later counts from then on.
    host.event(3, EventKind::RAIL_DOWN);
    let before = (sent(&host, 0), sent(&host, 1));
    host.restart("");
    host.look();
    let first = counters(&host);
    assert_eq!(metrics::sum(&first, name, &[]), 0.0);
    assert_eq!(events(&first), 0.0);
    let begun = sent(&host, 0);
    assert!(begun > before.0);
    host.jobs[3].snapshot.events.clear();
    host.play(10);
    assert_eq!(metrics::sum(&counters(&host), name, &[("port", "mlx5_0")]), sent(&host, 0) - begun);
}

#[test]
fn only_the_first_look_at_an_old_file_is_at_what_was_counted_before() {
    let mut host = Host::new("", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let mut snapshot = host.jobs.remove(0).snapshot;
    snapshot.state.rails[0].bytes_sent = 100;
    snapshot.state.rails[0].latencies.0[3] = 9;
    (snapshot.state.connections[0].messages, snapshot.state.connections[0].waited_for_cts) = (Some(8), 7);
    host.agent.see(7, "file", &snapshot, Presence::Running, true, host.now());
    let mut next = snapshot.state.connections[0].clone();
    next.number += 1;
    let mut rail = snapshot.state.rails[0].clone();
    (rail.connection, rail.bytes_sent) = (next.number, 50);
    snapshot.state.connections.push(next);
    snapshot.state.rails.push(rail);
    snapshot.events = vec![railweave_telemetry::Event { kind: EventKind::OPENED, ..Default::default() }];
    host.agent.see(7, "file", &snapshot, Presence::Running, true, host.now());
    let samples = counters(&host);
    let sum = |name: &str| metrics::sum(&samples, &format!("railweave_{name}"), &[]);
    assert_eq!((sum("rail_sent_bytes_total"), sum("events_total")), (50.0, 1.0));
    // Those of the second connection and its rail.
    assert_eq!((sum("receives_total"), sum("cts_waits_total")), (8.0, 7.0));
    assert_eq!(sum("rail_write_latency_seconds_count"), 9.0);
}

#[test]
fn connections_are_shown_as_they_are_now() {
    let mut host = Host::new("", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let mut snapshot = host.jobs.remove(0).snapshot;
    let mut next = snapshot.state.connections[0].clone();
    next.number += 1;
    snapshot.state.connections.push(next);
    let mut look = |snapshot: &railweave_telemetry::Snapshot| {
        let now = host.now();
        host.agent.see(7, "file", snapshot, Presence::Running, false, now);
        host.agent.end_look(Vec::new(), now);
        let samples = counters(&host);
        let of = |labels: &[(&str, &str)]| metrics::sum(&samples, "railweave_connections", labels);
        [of(&[]), of(&[("state", "failed")])]
    };
    assert_eq!(look(&snapshot), [2.0, 0.0]);
    snapshot.state.connections[0].state = railweave_telemetry::ConnectionState::Failed;
    assert_eq!(look(&snapshot), [2.0, 1.0]);
    snapshot.state.connections.remove(0);
    assert_eq!(look(&snapshot), [1.0, 0.0]);
}

#[test]
fn a_file_that_is_read_again_was_not_written_again() {
    let mut host = Host::new("", &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(5);
    host.jobs[job].hangs = true;
    let (file, snapshot) = (host.jobs[job].file.clone(), host.jobs[job].snapshot.clone());
    for _ in 0..15 {
        host.agent.see(7, &file, &snapshot, Presence::Running, false, host.now());
        host.look();
    }
    assert_eq!(host.findings("7/one"), ["process-silent"]);
}

#[test]
fn a_file_that_was_refused_counts_once() {
    let mut host = Host::new("", &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(20);
    host.agent.refuse(7, &host.jobs[job].file.clone(), "is being written");
    let now = host.now();
    host.agent.end_look(Vec::new(), now);
    let samples = counters(&host);
    assert_eq!(metrics::sum(&samples, "railweave_rails", &[]), 0.0, "nothing is known of them now");
    assert_eq!(metrics::sum(&samples, "railweave_processes", &[("presence", "unknown")]), 1.0);
    assert_eq!(host.findings(&format!("7/{}", host.jobs[job].file)), ["file-refused"]);
    host.play(20);
    let sent = (host.jobs[job].sent(0) + host.jobs[job].sent(1)) as f64;
    let samples = counters(&host);
    assert_eq!(metrics::sum(&samples, "railweave_rail_sent_bytes_total", &[]), sent);
    assert_eq!(metrics::sum(&samples, "railweave_rails", &[]), 2.0);
    assert!(host.findings(&format!("7/{}", host.jobs[job].file)).is_empty());
}

#[test]
fn a_job_that_ends_is_forgotten_after_a_while_and_one_that_crashed_uses_no_rail() {
    let mut host = Host::new("", &PORTS);
    let crashed = host.job(7, "crashed", &["mlx5_0", "mlx5_1"]);
    let ends = host.job(7, "ends", &["mlx5_0", "mlx5_1"]);
    host.play(10);
    (host.jobs[crashed].presence, host.jobs[ends].left) = (Presence::Gone, 1.0);
    host.play(10);
    let samples = counters(&host);
    assert_eq!(metrics::sum(&samples, "railweave_rails", &[]), 0.0);
    assert_eq!(metrics::sum(&samples, "railweave_processes", &[("presence", "gone")]), 1.0);
    let of = |samples: &Samples, job| {
        samples.keys().filter(|(_, labels)| labels.iter().any(|(_, value)| value == job)).count()
    };
    assert!(of(&samples, "ends") > 0 && of(&samples, "crashed") > 0);
    host.play(1000);
    let samples = counters(&host);
    assert_eq!(of(&samples, "ends"), 0);
    assert!(of(&samples, "crashed") > 0, "its file is still there");
}

#[test]
fn a_clock_that_jumps_changes_no_decision() {
    let play = |jumps: bool| {
        let mut host = Host::new(CONFIG, &PORTS);
        host.job(7, "one", &["mlx5_0", "mlx5_1"]);
        host.job(8, "two", &["mlx5_1"]);
        for round in 0..30_i64 {
            host.play(10);
            if jumps {
                host.jump = if round % 2 == 0 { 7200 * round } else { -90_000_000 };
            }
        }
        (host.changes, host.agent.rules(7), host.log)
    };
    assert_eq!(play(true), play(false));
}
