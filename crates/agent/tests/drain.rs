//! Stories of ports that are emptied.

mod host;

use host::Host;
use railweave_agent::{Agent, Inherited, Now, Phase};
use railweave_telemetry::RailState;
use std::collections::BTreeMap;
use std::time::Duration;

const PORTS: [(&str, f64); 2] = [("mlx5_0", 100.0), ("mlx5_1", 100.0)];

#[test]
fn a_port_empties_and_is_given_back() {
    let mut host = Host::new("", &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(10);
    host.agent.drain("mlx5_1").unwrap();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
    host.look();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying), "jobs have not even read the order");
    host.play(5);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert_eq!(host.findings("mlx5_1"), ["port-drained", "port-empty"]);
    let (empty, other) = (host.jobs[job].sent(1), host.jobs[job].sent(0));
    host.play(60);
    assert_eq!(host.jobs[job].sent(1), empty, "a report is a promise");
    assert!(host.jobs[job].sent(0) > other, "the job goes on");
    assert!(host.give_back("mlx5_1") && !host.give_back("mlx5_1"));
    host.play(5);
    assert!(host.jobs[job].sent(1) > empty);
    assert!(host.findings("mlx5_1").is_empty() && host.agent.rules(7).is_empty());
    assert!(!host.log.iter().any(|line| line.contains("in-vain")), "{:?}", host.log);
}

#[test]
fn a_drain_is_in_vain_if_a_connection_has_no_other_port_or_does_not_follow() {
    for follows in [true, false] {
        let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
        let other = host.job(7, "two", &["mlx5_0", "mlx5_1"]);
        host.jobs[other].follows = follows;
        if follows {
            host.job(7, "one", &["mlx5_1"]);
        }
        host.play(10);
        assert_eq!(host.phase("mlx5_1"), Some(Phase::InVain));
        assert_eq!(host.findings("mlx5_1"), ["drain-in-vain", "port-drained"]);
        host.jobs.retain(|job| job.follows && job.ports.len() > 1);
    }
}

#[test]
fn an_order_between_two_looks_that_are_rare_is_not_in_vain_at_the_next() {
    let mut host = Host::new("every_ms = 5000", &PORTS);
    host.step = Duration::from_secs(5);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(20);
    host.agent.drain("mlx5_1").unwrap();
    host.play(30);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert!(!host.log.iter().any(|line| line.contains("in-vain")), "{:?}", host.log);
}

#[test]
fn an_operators_drain_outlives_the_agent_and_a_configured_one_does_not() {
    let mut host = Host::new("drain = [\"mlx5_0\"]", &[("mlx5_0", 10.0), ("mlx5_1", 10.0), ("mlx5_2", 10.0)]);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1", "mlx5_2"]);
    host.play(5);
    host.agent.drain("mlx5_1").unwrap();
    host.play(10);
    let before = (host.jobs[job].sent(0), host.jobs[job].sent(1));
    host.restart("");
    let rule = format!("rail={} -> drain", host::patterns("mlx5_1"));
    assert!(host.agent.rules(7).contains(&rule), "before its first look");
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying), "it has not looked yet");
    host.look();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying), "one look shows no silence");
    host.play(10);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert_eq!(host.jobs[job].sent(1), before.1);
    assert!(host.jobs[job].sent(0) > before.0);
    assert_eq!(host.agent.drained_by_operator().collect::<Vec<_>>(), ["mlx5_1"]);
}

#[test]
fn a_port_that_no_rail_uses_is_empty_soon_and_a_rail_that_is_down_keeps_none() {
    let ports = [("mlx5_0", 100.0), ("mlx5_1", 100.0), ("mlx5_9", 100.0)];
    let mut host = Host::new("drain = [\"mlx5_9\", \"mlx5_1\"]", &ports);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.jobs[job].snapshot.state.rails[1].state = RailState::Down;
    host.play(8);
    assert_eq!(host.phase("mlx5_9"), Some(Phase::Empty));
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert_eq!(host.phase("mlx5_0"), None);
}

#[test]
fn all_users_leave_a_port_that_is_named_once() {
    let mut host = Host::new("", &PORTS);
    let jobs = [host.job(7, "one", &["mlx5_0", "mlx5_1"]), host.job(8, "one", &["mlx5_1", "mlx5_0"])];
    host.play(5);
    host.agent.drain("mlx5_1").unwrap();
    host.play(10);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    let sent = (host.jobs[jobs[0]].sent(1), host.jobs[jobs[1]].sent(0));
    host.play(10);
    assert_eq!(sent, (host.jobs[jobs[0]].sent(1), host.jobs[jobs[1]].sent(0)));
    assert_eq!(host.agent.rules(7), host.agent.rules(8));
}

#[test]
fn the_name_of_an_interface_stands_for_its_addresses() {
    let mut host = Host::new("", &[("eth0", 10.0), ("eth1", 10.0)]);
    let job = host.job(7, "one", &["eth0@10.0.0.1", "eth1"]);
    let (other, names) = (host.jobs[job].snapshot.clone(), ["eth0@10.0.0.1", "eth1"]);
    assert_eq!(other.state.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), names);
    host.play(5);
    host.agent.drain("eth0").unwrap();
    host.play(10);
    assert_eq!(host.phase("eth0@10.0.0.1"), Some(Phase::Empty), "{}", host.agent.rules(7));
    assert_eq!(host.phase("eth0"), Some(Phase::Empty));
    assert_eq!(host.jobs[job].snapshot.state.rails[0].state, RailState::Drained);
    assert_eq!(host.jobs[job].snapshot.state.rails[1].state, RailState::Up);
    host.give_back("eth0");
    host.play(5);
    assert_eq!((host.phase("eth0@10.0.0.1"), host.phase("eth0")), (None, None));
    let single = host.job(7, "two", &["eth0@10.0.0.2"]);
    host.agent.drain("eth0").unwrap();
    host.play(10);
    assert_eq!(host.phase("eth0"), Some(Phase::InVain), "a rail of another name goes on");
    assert_eq!(host.jobs[single].snapshot.state.rails[0].state, RailState::Up);
}

#[test]
fn a_reason_ends_without_the_others() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.agent.drain("mlx5_1").unwrap();
    host.play(10);
    let reasons = |host: &Host| {
        let ports = host.agent.state().ports;
        let port = ports.into_iter().find(|port| port.port == "mlx5_1").and_then(|port| port.drain);
        port.unwrap().reasons.iter().map(|reason| reason.reason.word()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&host), ["operator", "configuration"]);
    assert!(host.give_back("mlx5_1"));
    assert_eq!(reasons(&host), ["configuration"]);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty), "it stays as empty as it is");
}

#[test]
fn a_made_up_name_of_a_sick_port_spoils_no_policy_file() {
    let mut host = Host::new("[avoid_sick]\n", &[("eth0", 10.0), ("eth1", 10.0)]);
    host.job(7, "one", &["eth0@10.0.0.1", "eth1"]);
    for name in ["eth0@a b", "eth0@\nany", "eth0@a,b", "eth0@->", "eth0@*"] {
        host.job(8, "two", &[name, "eth1"]);
    }
    host.play(5);
    host.links.get_mut("eth0").unwrap().count(railweave_counters::Counter::SymbolErrors, 1000);
    host.play(5);
    // The host itself checks that the file is right.
    assert_eq!(host.agent.rules(7), format!("rail={} -> drain\n", host::patterns("eth0")));
    for place in 0..1000 {
        assert_eq!(host.agent.drain(&format!("p{place}")).is_ok(), place < 256);
    }
    host.look();
}

#[test]
fn a_port_that_rails_without_names_may_use_is_not_empty() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    host.job(7, "new", &["mlx5_0", "mlx5_1"]);
    let old = host.job(8, "old", &["mlx5_1"]);
    for rail in &mut host.jobs[old].snapshot.state.rails {
        rail.port = None;
    }
    host.play(20);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
    assert_eq!(host.findings("mlx5_1"), ["drain-in-vain", "port-drained"]);
    assert!(host.log.iter().any(|line| line.contains("may be in use by 1 rails of processes")), "{:?}", host.log);
    let rail = &mut host.jobs[old].snapshot.state.rails[0];
    (rail.state, rail.in_flight) = (RailState::Down, Some(1));
    host.play(5);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying), "it is still sending");
    host.jobs[old].presence = railweave_telemetry::Presence::Gone;
    host.play(5);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
}

#[test]
fn a_port_that_a_file_which_is_refused_may_use_is_not_empty() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.agent.refuse(8, "x.railweave", "is no file");
    host.play(20);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
    assert_eq!(host.findings("mlx5_1"), ["drain-in-vain", "port-drained"]);
    host.agent.forget(8, "x.railweave");
    host.look();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    // A process that has ended uses no port, whatever its file says.
    let gone = host.job(8, "gone", &["mlx5_0", "mlx5_1"]);
    host.look();
    host.jobs[gone].presence = railweave_telemetry::Presence::Gone;
    host.agent.refuse(8, &host.jobs[gone].file.clone(), "is no file");
    host.play(5);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
}

#[test]
fn the_counters_of_an_interface_are_not_those_of_an_address_that_it_may_not_have() {
    let mut host = Host::new("drain = [\"eth0@10.0.0.9\"]", &[("eth0", 10.0), ("eth1", 10.0)]);
    host.job(7, "one", &["eth0@10.0.0.1", "eth1"]);
    host.play(10);
    assert_eq!(host.findings("eth0@10.0.0.9"), ["port-drained", "port-unknown"]);
}

#[test]
fn a_rail_that_is_repaired_is_still_down() {
    let mut host = Host::new("", &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.jobs[job].snapshot.state.rails[1].state = RailState::Repairing;
    host.look();
    assert_eq!(host.findings("mlx5_1"), ["rail-down"]);
}

#[test]
fn a_port_that_a_folder_which_is_refused_may_use_is_not_empty() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let text = "\"/dev/shm/railweave-8\" cannot be read";
    host.agent.set_refused_folders(BTreeMap::from([("/dev/shm/railweave-8".to_owned(), text.to_owned())]));
    host.play(20);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
    assert_eq!(host.findings("/dev/shm/railweave-8"), ["file-refused"]);
    assert!(host.log.iter().any(|line| line.contains("may be in use by 1 files")), "{:?}", host.log);
    host.agent.set_refused_folders(BTreeMap::new());
    host.look();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
}

#[test]
fn a_job_that_begins_leaves_a_drained_port_without_an_alarm() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(20);
    let job = host.job(7, "two", &["mlx5_1"]);
    host.play(5);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying), "it may not have read its policy file yet");
    host.play(2);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::InVain));
    // A connection that had no room in the file any more: its rails are forgotten with it.
    let state = &mut host.jobs[job].snapshot.state;
    state.connections.clear();
    state.rails[0].state = RailState::Down;
    host.play(8);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
}

#[test]
fn a_port_that_nothing_has_the_name_of_is_never_empty() {
    let mut host = Host::new("drain = [\"mlx5_l\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(600);
    assert_eq!(host.phase("mlx5_l"), Some(Phase::Emptying));
    assert_eq!(host.findings("mlx5_l"), ["port-drained", "port-unknown"]);
    assert!(host.log.iter().any(|line| line.contains("known: mlx5_0, mlx5_1;")), "{:?}", host.log);
    // One that was known stays so if its adapter is taken out.
    host.agent.drain("mlx5_1").unwrap();
    host.play(10);
    host.links.get_mut("mlx5_1").unwrap().is_present = false;
    host.jobs.clear();
    host.play(3600);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
}

#[test]
fn the_name_of_an_adapter_stands_for_its_ports_and_engine() {
    let mut host = Host::new("", &[("mlx5_0:1", 10.0), ("mlx5_0:2", 10.0), ("mlx5_01:1", 10.0)]);
    let job = host.job(7, "one", &["mlx5_0:1", "mlx5_0:2", "mlx5_01:1", "mlx5_0_dma:2"]);
    host.play(5);
    host.agent.drain("mlx5_0").unwrap();
    host.play(10);
    assert_eq!(host.phase("mlx5_0"), Some(Phase::Empty), "{}", host.agent.rules(7));
    let samples = host::metrics::read(&host.agent.metrics());
    let drained = |port| host::metrics::sum(&samples, "railweave_port_drained", &[("port", port)]);
    assert_eq!(["mlx5_0:2", "mlx5_0_dma:2", "mlx5_01:1"].map(drained), [1.0, 1.0, 0.0]);
    let states: Vec<_> = host.jobs[job].snapshot.state.rails.iter().map(|rail| rail.state).collect();
    assert_eq!(states, [RailState::Drained, RailState::Drained, RailState::Up, RailState::Drained]);
    host.job(7, "two", &["mlx5_0:2"]);
    host.play(10);
    assert_eq!(host.phase("mlx5_0"), Some(Phase::InVain), "a rail over one of its ports goes on");
}

#[test]
fn made_up_names_push_no_port_out_of_the_rule_and_a_new_job_needs_no_other() {
    let mut host = Host::new("drain = [\"eth0\"]", &[("eth0", 10.0), ("eth1", 10.0)]);
    host.play(1);
    let rules = host.agent.rules(7);
    for place in 0..300 {
        host.job(8, "evil", &[&format!("eth0@{place:04}"), "eth1"]);
    }
    let job = host.job(7, "one", &["eth0@zzz", "eth1"]);
    host.play(10);
    assert_eq!(host.agent.rules(7), rules, "no name of a process is in it");
    assert_eq!(host.jobs[job].snapshot.state.rails[0].state, RailState::Drained);
    assert_eq!(host.phase("eth0"), Some(Phase::Empty));
}

#[test]
fn a_process_of_another_container_that_is_silent_for_long_is_gone() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    let job = host.job(7, "one", &["mlx5_1"]);
    host.jobs[job].presence = railweave_telemetry::Presence::Unknown;
    host.play(20);
    host.jobs[job].hangs = true;
    host.play(290);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::InVain), "it may send again");
    assert!(host.agent.state().findings.iter().any(|finding| finding.kind == "process-silent"));
    host.play(20);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert!(!host.agent.state().findings.iter().any(|finding| finding.kind == "process-silent"));
    let state = host.agent.state();
    assert_eq!(state.jobs[0].processes[0].presence, "gone");
    // One that is known to be there is not.
    host.jobs[job].presence = railweave_telemetry::Presence::Running;
    host.look();
    assert_eq!(host.agent.state().jobs[0].processes[0].presence, "silent");
}

#[test]
fn a_port_that_rails_without_room_in_their_file_may_use_is_not_empty() {
    for state in [None, Some(RailState::Up), Some(RailState::Suspected)] {
        let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
        let job = host.job(7, "one", &["mlx5_0", "mlx5_1", "mlx5_0"]);
        let snapshot = &mut host.jobs[job].snapshot;
        match state {
            None => snapshot.left_out[2] = 4,
            // Its connection is not in the file.
            Some(state) => (snapshot.state.rails[2].connection, snapshot.state.rails[2].state) = (9, state),
        }
        host.play(20);
        assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
        assert_eq!(host.findings("mlx5_1"), ["drain-in-vain", "port-drained"]);
    }
}

#[test]
fn a_port_that_carries_cts_or_that_data_comes_over_is_named_as_such() {
    let mut host = Host::new("drain = [\"mlx5_1\"]", &PORTS);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(10);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    host.jobs[job].snapshot.state.rails[1].cts_writes += 1;
    host.look();
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Emptying));
    host.play(2);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    let comes = |host: &Host| {
        let findings = host.agent.state().findings;
        findings.iter().any(|it| it.kind == "port-empty" && it.text.contains("data from node2 still comes over it"))
    };
    host.jobs[job].snapshot.state.rails[1].bytes_received += 1;
    host.look();
    assert!(comes(&host));
    host.play(2);
    assert!(!comes(&host), "that was a while ago");
}

#[test]
fn a_port_that_was_known_stays_so_and_one_that_is_not_is_given_time() {
    let mut host = Host::new("drain = [\"mlx5_1\", \"mlx5_l\"]", &PORTS);
    host.job(7, "one", &["mlx5_0"]);
    host.look();
    assert_eq!(host.findings("mlx5_l"), ["port-drained"]);
    host.play(5);
    assert_eq!(host.findings("mlx5_l"), ["port-drained", "port-unknown"]);
    host.links.get_mut("mlx5_1").unwrap().is_present = false;
    // It is not even remembered for so long.
    host.play(1000);
    assert_eq!(host.phase("mlx5_1"), Some(Phase::Empty));
    assert_eq!(host.findings("mlx5_1"), ["port-drained", "port-empty"]);
}

#[test]
fn a_port_that_is_drained_is_never_one_too_many() {
    let mut host = Host::new("", &PORTS);
    (0..256).for_each(|number| host.agent.drain(&format!("port{number}")).unwrap());
    assert!(host.agent.drain("mlx5_1").unwrap_err().contains("\"mlx5_1\" is one too many; allowed: 256"));
    host.agent.drain("port7").unwrap();
    assert_eq!(host.agent.drained_by_operator().count(), 256);
}

#[test]
fn a_file_of_an_agent_before_drains_no_port_that_was_given_back() {
    let before = Inherited { drained: vec!["mlx5_1".to_owned()], ..Inherited::default() };
    let mut host = Host::new("", &PORTS);
    let at = |second| Now { clock: Duration::from_secs(second), up: Duration::from_secs(second) };
    assert_eq!(host.agent.inherit(&before, at(0)).len(), 1);
    assert!(host.agent.give_back("mlx5_1", at(100)));
    // Those of other run dirs.
    let written = |written_s| Inherited { written_s, ..before.clone() };
    assert!(host.agent.inherit(&written(100), at(102)).is_empty() && host.phase("mlx5_1").is_none());
    assert_eq!(host.agent.inherit(&written(101), at(102)).len(), 1, "another agent was told since");
    assert!(host.agent.give_back("mlx5_1", at(103)));
    host.agent.drain("mlx5_1").unwrap();
    assert_eq!(host.agent.inherit(&before, at(104)).len(), 1, "it is drained");
}

#[test]
fn a_clock_that_was_set_loses_no_drain() {
    let mut host = Host::new("", &PORTS);
    let at = |clock, up| Now { clock: Duration::from_secs(clock), up: Duration::from_secs(up) };
    let written = |written_s| Inherited { written_s, drained: vec!["mlx5_1".to_owned()], ..Inherited::default() };
    let give_back = |host: &mut Host, clock, up| {
        host.agent.drain("mlx5_1").unwrap();
        assert!(host.agent.give_back("mlx5_1", at(clock, up)));
    };
    give_back(&mut host, 1010, 10);
    assert!(host.agent.inherit(&written(1000), at(9000, 20)).is_empty(), "the clock was set forward");
    assert_eq!(host.agent.inherit(&written(8995), at(9000, 20)).len(), 1, "another agent was told since");
    give_back(&mut host, 9010, 30);
    assert!(host.agent.inherit(&written(1900), at(2010, 40)).is_empty(), "the clock was set back");
    assert_eq!(host.agent.inherit(&written(2001), at(2010, 40)).len(), 1, "another agent was told since");
    give_back(&mut host, 2020, 50);
    assert_eq!(host.agent.inherit(&written(9000), at(2030, 60)).len(), 1, "nobody knows when that was");
    give_back(&mut host, 2040, 70);
    assert_eq!(host.agent.inherit(&written(u64::MAX), at(2050, 80)).len(), 1, "a file may have any number");
}

#[test]
fn the_first_of_many_ports_that_were_given_back_is_forgotten_whatever_the_clock_says() {
    let mut host = Host::new("", &PORTS);
    for number in 0..=1024 {
        let port = format!("port{number}");
        host.agent.drain(&port).unwrap();
        let now = Now { clock: Duration::from_secs(5000 - number), up: Duration::from_secs(number) };
        assert!(host.agent.give_back(&port, now));
    }
    let mut inherit = |number: u64| {
        let before = Inherited { written_s: 1, drained: vec![format!("port{number}")], ..Inherited::default() };
        let now = Now { clock: Duration::from_secs(5000), up: Duration::from_secs(2000) };
        host.agent.inherit(&before, now).len()
    };
    assert_eq!([0, 1, 1024].map(&mut inherit), [1, 0, 0]);
}

#[test]
fn the_errors_of_a_sick_port_are_no_other_orders() {
    let orders = |reason: &str, change: fn(&mut Agent)| {
        let mut host = Host::new("[avoid_sick]\n", &PORTS);
        let sick = vec![("mlx5_1".to_owned(), reason.to_owned())];
        host.agent.inherit(&Inherited { sick, ..Inherited::default() }, host.now());
        change(&mut host.agent);
        let rules = host.agent.rules(7);
        assert!(host.agent.policy_file(&rules, Duration::ZERO).contains(&format!("# sick mlx5_1 {reason}\n")));
        host.agent.policy_orders(&rules)
    };
    let first = orders("had 60 link errors in a minute", |_| {});
    assert_eq!(first, orders("had 61 link errors in a minute", |_| {}));
    let drained = orders("had 60 link errors in a minute", |agent| agent.drain("mlx5_1").unwrap());
    assert_ne!(first, drained, "the next agent has to know");
}
