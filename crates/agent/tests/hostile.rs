//! Files that lie: they cost neither the agent nor the jobs of others anything.

mod host;

use host::{Host, metrics};
use railweave_agent::{Agent, Config, Now, Steers};
use railweave_counters::Counter;
use railweave_telemetry::{Event, EventKind, Presence, RailState};
use std::time::Duration;

const PORTS: [(&str, f64); 2] = [("mlx5_0", 100.0), ("mlx5_1", 100.0)];
const ALL: &str = "drain = [\"mlx5_0\"]\nseries = 16\n[balance]\n[avoid_congestion]\n[avoid_sick]\n";
const EVIL: &str = "a\"b\\c\nd\u{1b}é\u{2028}{x=\"y\"} # EOF";

#[test]
fn the_largest_numbers_are_numbers() {
    let mut host = Host::new(ALL, &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let mut last = metrics::Samples::new();
    for round in 0..40 {
        let most = if round % 2 == 0 { u64::MAX } else { 0 };
        let state = &mut host.jobs[job].snapshot.state;
        for rail in &mut state.rails {
            (rail.writes_sent, rail.cts_writes, rail.bytes_received) = (most, most, most);
            (rail.retransmitted, rail.failovers, rail.in_flight) = (most, most as u32, Some(most));
            rail.latencies.0 = [most as u32; railweave_telemetry::BUCKETS];
            rail.speed_mbps = Some(if round % 3 == 0 { 0 } else { u32::MAX });
        }
        (state.connections[0].messages, state.connections[0].waited_for_cts) = (Some(most), most);
        for link in host.links.values_mut() {
            for (_, value) in &mut link.reading.counters {
                *value = most;
            }
            link.reading.rate = Some(most);
        }
        let step = host.step;
        host.look();
        let samples = metrics::read(&host.agent.metrics());
        let own = |samples: &metrics::Samples| {
            let mut samples = samples.clone();
            samples.retain(|(name, _), _| !name.starts_with("railweave_port_"));
            samples
        };
        metrics::check_growth(&own(&last), &own(&samples));
        last = samples;
        let json = serde_json::to_string(&host.agent.state()).unwrap();
        assert!(!json.contains("NaN"));
        host.step = step;
    }
}

#[test]
fn names_are_shown_as_they_are_and_end_nothing() {
    let mut host = Host::new(ALL, &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let job = host.job(8, EVIL, &[EVIL, "mlx5_1"]);
    host.jobs[job].snapshot.state.connections[0].peer_host = EVIL.to_owned();
    host.jobs[job].snapshot.state.process.host = EVIL.to_owned();
    host.jobs[job].snapshot.state.rails[0].state = RailState::Down;
    host.event(job, EventKind(999));
    host.play(5);
    host.agent.refuse(8, EVIL, "is\nno file");
    host.jobs[job].hangs = true;
    host.play(20);
    let samples = metrics::read(&host.agent.metrics());
    for label in ["job_id", "peer_host", "port"] {
        assert!(metrics::sum(&samples, "railweave_rails", &[(label, EVIL)]) > 0.0, "{label}");
    }
    assert!(host.log.len() >= 4, "{:?}", host.log);
    for line in &host.log {
        assert!(!line.contains(char::is_control), "{line:?} in a log");
    }
    let state = host.agent.state();
    assert!(state.findings.iter().all(|finding| !finding.text.contains(char::is_control)));
    let json = serde_json::to_value(&state).unwrap();
    assert!(json["jobs"].as_array().unwrap().iter().any(|it| it["job"] == EVIL));
}

/// Returns an agent with a bound, and a file's content that a test changes.
fn flooded(series: usize) -> (Host, Now) {
    let mut host = Host::new(&format!("series = {series}\n[balance]\n[avoid_congestion]\n"), &PORTS);
    host.job(8, "flood", &["mlx5_0", "mlx5_1"]);
    let now = host.now();
    (host, now)
}

#[test]
fn made_up_names_are_bounded() {
    let (mut host, mut now) = flooded(64);
    let mut snapshot = host.jobs.remove(0).snapshot;
    let mut sent = 0_u64;
    for round in 0..3000_u32 {
        now.up += Duration::from_millis(100);
        let state = &mut snapshot.state;
        state.process.job = format!("job{round}");
        state.connections[0].number = round;
        state.connections[0].peer_host = format!("peer{round}");
        for (number, rail) in state.rails.iter_mut().enumerate() {
            (rail.connection, rail.number, rail.bytes_sent) = (round, (round % 256) as u8, 10);
            state.ports[number].name = format!("port{round}-{number}");
        }
        // The rails of one number are one rail to a process: the second counts nothing.
        sent += 10;
        snapshot.events = vec![Event { kind: EventKind(round as u16), ..Event::default() }];
        let file = format!("{round}.railweave");
        host.agent.see(8, &file, &snapshot, Presence::Unknown, false, now);
        host.agent.refuse(8, &format!("{round}.wrong"), "is wrong");
        if round % 10 == 0 {
            host.agent.end_look(Vec::new(), now);
        }
    }
    let lines = host.agent.end_look(Vec::new(), now);
    assert!(lines.len() < 200, "{} lines", lines.len());
    let text = host.agent.metrics();
    let samples = metrics::read(&text);
    let total = metrics::sum(&samples, "railweave_rail_sent_bytes_total", &[]);
    assert_eq!(total, sent as f64, "all is counted, under another name");
    let series = metrics::count(&samples, "railweave_rail_sent_bytes_total");
    assert!(series <= 64 + 66, "{series} series");
    for name in
        ["railweave_receives_total", "railweave_events_total", "railweave_findings", "railweave_port_weight_ratio"]
    {
        let count = metrics::count(&samples, name);
        assert!(count <= 64 + 128, "{count} {name}");
    }
    let jobs = metrics::count(&samples, "railweave_processes");
    assert!(jobs <= 4 * 65, "{jobs} of processes");
    assert_eq!(metrics::sum(&samples, "railweave_processes", &[]), 3000.0);
    assert_eq!(metrics::sum(&samples, "railweave_agent_unreadable_files", &[]), 3000.0);
    assert_eq!(metrics::sum(&samples, "railweave_events_total", &[]), 3000.0);
}

#[test]
fn a_user_has_a_most_of_rails_and_of_connections() {
    let few = 1_000;
    for (connections, rails_each, words) in [(60_000, 0, "120000 connections"), (few, 60, "120000 rails")] {
        let (mut host, now) = flooded(64);
        let mut snapshot = host.jobs.remove(0).snapshot;
        let (connection, rail) = (snapshot.state.connections[0].clone(), snapshot.state.rails[0].clone());
        let connection = |number| railweave_telemetry::Connection { number, ..connection.clone() };
        snapshot.state.connections = (0..connections).map(connection).collect();
        let rail = |connection, number| railweave_telemetry::Rail { connection, number, ..rail.clone() };
        snapshot.state.rails =
            (0..connections).flat_map(|of| (0..rails_each).map(move |number| rail(of, number))).collect();
        let mut see = |file: &str, user| host.agent.see(user, file, &snapshot, Presence::Running, false, now);
        see("one", 8);
        see("two", 8);
        see("two", 9);
        host.agent.end_look(Vec::new(), now);
        let findings = host.agent.state().findings.into_iter().filter(|finding| finding.kind == "file-refused");
        let texts: Vec<String> = findings.map(|finding| finding.text).collect();
        assert!(texts.len() == 1 && texts[0].contains(words), "{texts:?}");
    }
}

#[test]
fn many_groups_cost_no_square_of_them_and_make_no_file_too_long() {
    let config = Config::parse("series = 100000\ndrain = [\"p3\"]\n[balance]\n[avoid_congestion]\n").unwrap();
    let mut agent = Agent::new(config, "0.1.0", "node1", 1);
    agent.set_steers(8, "/x", Steers::Yes);
    let (mut host, mut now) = flooded(64);
    let mut snapshot = host.jobs.remove(0).snapshot;
    let (connection, rails) = (snapshot.state.connections[0].clone(), snapshot.state.rails.clone());
    let mut reading = host.links["mlx5_0"].reading.clone();
    let groups = 3000;
    snapshot.state.connections = Vec::new();
    snapshot.state.rails = Vec::new();
    for number in 0..groups {
        let connection =
            railweave_telemetry::Connection { number, peer_host: format!("node{number}"), ..connection.clone() };
        snapshot.state.connections.push(connection);
        for rail in &rails {
            snapshot.state.rails.push(railweave_telemetry::Rail { connection: number, ..rail.clone() });
        }
    }
    let begin = std::time::Instant::now();
    for look in 0..20_u64 {
        now.up += Duration::from_secs(1);
        for rail in &mut snapshot.state.rails {
            (rail.bytes_sent, rail.bytes_received) = (look * 5000 * (1 + u64::from(rail.number)), look * 5000);
        }
        snapshot.written_ns = look;
        for job in ["one", "two"] {
            snapshot.state.process.job = job.to_owned();
            agent.see(8, job, &snapshot, Presence::Running, false, now);
        }
        for (counter, value) in &mut reading.counters {
            *value += if *counter == Counter::RpCnpHandled { 1000 } else { 0 };
        }
        agent.end_look(vec![reading.clone()], now);
    }
    let text = agent.policy_file(&agent.rules(8), now.clock);
    let rules = railweave_telemetry::Rules::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    assert!(text.len() < 1 << 20 && text.lines().count() > 3000, "{} bytes", text.len());
    let rails = ["p3", "mlx5_1"];
    let order = rules.decide(&railweave_telemetry::Subject { rails: &rails, ..Default::default() }).unwrap();
    assert_eq!(order.drained, 1, "drains come before all that has no room");
    let state = agent.state();
    let finding = state.findings.iter().find(|it| it.kind == "not-steering" && it.about == "8").unwrap();
    assert!(finding.text.contains(" rules for user 8 have no room in a policy file"), "{}", finding.text);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn silent_processes_are_one_finding_of_their_job() {
    let mut host = Host::new("", &PORTS);
    for place in 0..40 {
        let job = host.job(7, if place < 30 { "one" } else { "two" }, &["mlx5_0", "mlx5_1"]);
        host.play(1);
        host.jobs[job].hangs = true;
    }
    host.play(20);
    assert_eq!(host.findings("7/one"), ["process-silent"]);
    assert_eq!(host.findings("7/two"), ["process-silent"]);
    let said: Vec<_> = host.log.iter().filter(|line| line.starts_with("process-silent")).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    let state = host.agent.state();
    let finding = state.findings.iter().find(|it| it.about == "7/one").unwrap();
    assert!(finding.text.starts_with("30 processes of job \"one\" of user 7 have not written"), "{}", finding.text);
    for place in 0..20 {
        // One has the name that stands for others.
        let name = if place == 0 { "(more)".to_owned() } else { format!("job{place}") };
        let job = host.job(8, &name, &["mlx5_0", "mlx5_1"]);
        host.jobs[job].hangs = true;
    }
    host.play(20);
    let lines = host.log.len();
    host.play(20);
    assert_eq!(host.log[lines..], [] as [String; 0], "all was said");
    assert_eq!(host.findings("8/(more)"), ["process-silent"], "names that are made up are bounded");
}

#[test]
fn files_beyond_those_that_are_named_are_counted() {
    let mut host = Host::new("", &PORTS);
    for (number, expected) in [(16, None), (17, Some("1 more files")), (18, Some("2 more files"))] {
        (0..number).for_each(|number| host.agent.refuse(8, &format!("{number}.railweave"), "is wrong"));
        host.look();
        let findings = host.agent.state().findings;
        let more = findings.iter().find(|it| it.about == "8/(more)").map(|it| &*it.text);
        assert_eq!(more.map(|text| &text[..12]), expected, "{more:?}");
    }
}
