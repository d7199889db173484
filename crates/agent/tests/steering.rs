//! Stories of policies that steer.

mod host;

use host::{Host, MEGABIT};
use railweave_counters::Counter;
use railweave_telemetry::RailState;

const EQUAL: [(&str, f64); 2] = [("mlx5_0", 100.0), ("mlx5_1", 100.0)];
const UNLIKE: [(&str, f64); 2] = [("mlx5_0", 80.0), ("mlx5_1", 20.0)];

/// Returns the share of a job's data that went over a rail while `seconds` passed.
fn share(host: &mut Host, job: usize, rail: usize, seconds: u64) -> f64 {
    let sent = |host: &Host| [host.jobs[job].sent(0), host.jobs[job].sent(1)];
    let before = sent(host);
    host.play(seconds);
    let after = sent(host);
    let moved = [after[0] - before[0], after[1] - before[1]];
    moved[rail] as f64 / (moved[0] + moved[1]) as f64
}

#[test]
fn a_congested_port_has_less_until_it_is_free() {
    let mut host = Host::new("[avoid_congestion]\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    assert!((share(&mut host, job, 1, 30) - 0.5).abs() < 0.01);
    host.links.get_mut("mlx5_1").unwrap().knee = 40.0 * MEGABIT;
    host.play(20);
    assert_eq!(host.findings("mlx5_1"), ["port-congested"]);
    assert!(host.findings("mlx5_0").is_empty());
    assert!(share(&mut host, job, 1, 10) < 0.36);
    host.links.get_mut("mlx5_1").unwrap().knee = f64::INFINITY;
    host.play(1800);
    assert!((share(&mut host, job, 1, 10) - 0.5).abs() < 0.01, "it has its share again");
    assert!(host.findings("mlx5_1").is_empty() && host.agent.rules(7).is_empty());
}

#[test]
fn a_rail_that_never_came_up_keeps_its_group_from_nothing() {
    let mut host = Host::new("[avoid_congestion]\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    // Another process of the job, whose connection began without a cable.
    let other = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.jobs[other].demand = 0.0;
    let rail = &mut host.jobs[other].snapshot.state.rails[1];
    (rail.state, rail.port) = (RailState::NeverUp, None);
    host.play(30);
    host.links.get_mut("mlx5_1").unwrap().knee = 40.0 * MEGABIT;
    host.play(20);
    assert!(share(&mut host, job, 1, 10) < 0.36);
}

#[test]
fn ports_that_are_congested_alike_keep_their_shares() {
    let mut host = Host::new("[avoid_congestion]\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.links.values_mut().for_each(|link| link.knee = 1.0);
    host.play(60);
    assert!((share(&mut host, job, 1, 10) - 0.5).abs() < 0.01);
    assert_eq!(host.changes, 0);
}

#[test]
fn rails_of_one_number_over_several_ports_get_no_weights() {
    let mut host = Host::new("[avoid_congestion]\n", &[("mlx5_0", 100.0), ("mlx5_1", 100.0), ("mlx5_2", 100.0)]);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let other = host.job(7, "one", &["mlx5_0", "mlx5_2"]);
    host.jobs[other].snapshot.state.devices[0].name = "mlx5_0+mlx5_1".to_owned();
    host.links.get_mut("mlx5_1").unwrap().knee = 1.0;
    host.play(20);
    assert_eq!(host.findings("mlx5_1"), ["port-congested"]);
    assert_eq!(host.agent.rules(7), "", "a rule cannot tell them apart");
}

#[test]
fn groups_that_no_rule_can_name_get_no_weights() {
    let mut host = Host::new("[avoid_congestion]\n", &EQUAL);
    host.job(7, "(other)", &["mlx5_0", "mlx5_1"]);
    let old = host.job(8, "old", &["mlx5_0", "mlx5_1"]);
    host.jobs[old].snapshot.state.rails[0].port = None;
    host.links.get_mut("mlx5_1").unwrap().knee = 1.0;
    host.play(20);
    assert_eq!(host.findings("mlx5_1"), ["port-congested"]);
    assert_eq!((host.agent.rules(7), host.agent.rules(8)), (String::new(), String::new()));
}

#[test]
fn a_day_of_bursts_changes_orders_rarely_and_keeps_the_port_useful() {
    let mut host = Host::new("[avoid_congestion]\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.jobs[job].bursts = Some((20, 40));
    host.links.get_mut("mlx5_1").unwrap().knee = 60.0 * MEGABIT;
    host.play(3600);
    host.play(23 * 3600);
    assert!(host.changes > 4, "{}", host.changes);
    assert!(host.changes < 24 * 60, "{} orders in a day", host.changes);
    let part = share(&mut host, job, 1, 3600);
    assert!((0.15..0.5).contains(&part), "{part}");
}

#[test]
fn shares_are_not_learnt_from_orders() {
    let mut host = Host::new("[avoid_congestion]\n", &[("mlx5_0", 60.0), ("mlx5_1", 40.0)]);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(30);
    // Congestion that comes and goes, while the port itself stays the same.
    for _ in 0..40 {
        for _ in 0..3 {
            host.links.get_mut("mlx5_1").unwrap().count(Counter::RpCnpHandled, 500);
            host.look();
        }
        host.links.get_mut("mlx5_1").unwrap().count(Counter::RpCnpHandled, 500);
        host.look();
        while !host.agent.rules(7).is_empty() {
            host.look();
        }
    }
    for _ in 0..4 {
        host.links.get_mut("mlx5_1").unwrap().count(Counter::RpCnpHandled, 500);
        host.look();
    }
    let view = host.agent.state();
    let weights = view.jobs[0].groups[0].weights.clone().expect("it is congested");
    // Two fifths, of which it keeps seven tenths.
    assert!((weights[&1] - 0.28 / 0.88).abs() < 0.02, "{weights:?}");
    assert!(share(&mut host, job, 1, 2) < 0.4);
}

#[test]
fn a_sick_port_is_left_until_it_was_well_for_long() {
    let mut host = Host::new("[avoid_sick]\nleave_s = 100\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(5);
    host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 59);
    host.play(70);
    assert!(host.agent.rules(7).is_empty());
    host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 60);
    host.play(10);
    assert_eq!(host.findings("mlx5_1"), ["port-drained", "port-empty", "port-sick"]);
    let sent = host.jobs[job].sent(1);
    host.play(140);
    assert_eq!(host.jobs[job].sent(1), sent);
    host.play(60);
    assert!(host.findings("mlx5_1").is_empty() && host.jobs[job].sent(1) > sent);
    assert_eq!(host.changes, 2);
}

#[test]
fn a_sick_port_that_leaves_and_comes_back_is_still_sick() {
    let mut host = Host::new("[avoid_sick]\nleave_s = 100\n", &EQUAL);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(5);
    host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 60);
    host.play(10);
    host.links.get_mut("mlx5_1").unwrap().is_present = false;
    host.play(10);
    host.links.get_mut("mlx5_1").unwrap().is_present = true;
    host.play(10);
    assert_eq!(host.changes, 1, "it was drained once");
    assert_eq!(host.agent.rules(7), format!("rail={} -> drain\n", host::patterns("mlx5_1")));
    let state = host.agent.state();
    assert_eq!(state.ports.iter().filter(|port| port.counters.is_empty()).count(), 0);
}

#[test]
fn a_sick_port_stays_sick_over_a_restart_of_the_agent() {
    let config = "[avoid_sick]\nleave_s = 100\n";
    let mut host = Host::new(config, &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(5);
    host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 60);
    host.play(70);
    let (rules, sent) = (host.agent.rules(7), host.jobs[job].sent(1));
    host.restart(config);
    assert_eq!(host.agent.rules(7), rules, "before its first look");
    assert!(host.log.iter().any(|line| line.contains("port mlx5_1 stays drained: it had 60 link errors")));
    host.play(99);
    assert_eq!((host.agent.rules(7), host.jobs[job].sent(1)), (rules, sent), "it has to be well for the whole time");
    assert_eq!(host.findings("mlx5_1"), ["port-drained", "port-empty", "port-sick"]);
    host.play(5);
    assert!(host.agent.rules(7).is_empty() && host.jobs[job].sent(1) > sent);
    // Without the policy, there is nothing to take over.
    host.links.get_mut("mlx5_1").unwrap().count(Counter::SymbolErrors, 60);
    host.play(2);
    assert!(!host.agent.rules(7).is_empty());
    host.restart("");
    assert!(host.agent.rules(7).is_empty());
}

#[test]
fn an_interface_that_no_job_uses_is_neither_sick_nor_slow() {
    let mut host = Host::new("[avoid_sick]\n", &[("eth0", 100.0), ("eth1", 100.0), ("eth9", 100.0)]);
    for link in host.links.values_mut() {
        link.reading.fabric = railweave_counters::Fabric::Tcp;
    }
    host.job(7, "one", &["eth0@10.0.0.1", "eth1"]);
    host.play(5);
    for link in host.links.values_mut() {
        link.count(Counter::SymbolErrors, 1000);
        link.reading.rate = link.reading.rate.map(|rate| rate / 10);
    }
    host.play(5);
    assert_eq!(host.findings("eth0"), ["port-drained", "port-sick", "port-slow"]);
    assert!(host.findings("eth9").is_empty() && !host.agent.rules(7).contains("eth9"), "{}", host.agent.rules(7));
}

#[test]
fn a_look_that_soon_follows_another_changes_no_rate() {
    let mut host = Host::new("[avoid_congestion]\nenter_s = 1\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(20);
    let rates = |host: &Host| {
        let state = host.agent.state();
        let port = &state.ports[0];
        let samples = host::metrics::read(&host.agent.metrics());
        let share = host::metrics::sum(&samples, "railweave_rail_share_ratio", &[("port", "mlx5_0")]);
        (port.sent_bytes_per_second, port.congestion_marks_per_second, share)
    };
    let before = rates(&host);
    // The job writes its file ten times a second, and the order of an operator comes in between.
    host.jobs[job].hangs = true;
    host.step = std::time::Duration::from_millis(20);
    host.links.get_mut("mlx5_0").unwrap().count(Counter::RpCnpHandled, 50);
    for _ in 0..3 {
        host.look();
        assert_eq!(rates(&host), before);
    }
    assert!(host.agent.rules(7).is_empty(), "50 marks are few for a second");
    host.jobs[job].hangs = false;
    host.step = std::time::Duration::from_secs(1);
    host.look();
    let after = rates(&host);
    assert!((after.1 - 50.0 / 1.06).abs() < 0.1, "none is lost: {after:?}");
    assert!((after.0 / before.0 - 1.0).abs() < 0.06, "{after:?} {before:?}");
}

#[test]
fn jobs_go_on_if_all_their_ports_are_sick() {
    let mut host = Host::new("[avoid_sick]\n", &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(5);
    for link in host.links.values_mut() {
        link.count(Counter::SymbolErrors, 1000);
    }
    host.play(10);
    assert_eq!(
        host.agent.rules(7),
        format!("rail={},{} -> drain\n", host::patterns("mlx5_0"), host::patterns("mlx5_1"))
    );
    let sent = host.jobs[job].sent(0) + host.jobs[job].sent(1);
    host.play(10);
    let moved = host.jobs[job].sent(0) + host.jobs[job].sent(1) - sent;
    assert!(moved as f64 > 1900.0 * MEGABIT, "{moved}");
    assert!(host.findings("mlx5_0").contains(&"drain-in-vain"));
}

/// Returns the seconds after which both jobs have done equal work.
fn makespan(config: &str, bursts: [Option<(u64, u64)>; 2]) -> (u64, u32) {
    let mut host = Host::new(config, &UNLIKE);
    let jobs = [host.job(7, "one", &["mlx5_0", "mlx5_1"]), host.job(8, "two", &["mlx5_1"])];
    for (job, bursts) in jobs.into_iter().zip(bursts) {
        host.jobs[job].bursts = bursts;
        host.jobs[job].left = 12_000.0 * MEGABIT;
    }
    let begin = host.up;
    while host.jobs.iter().any(|job| job.ended.is_none()) {
        host.look();
        assert!((host.up - begin).as_secs() < 20_000);
    }
    ((host.up - begin).as_secs(), host.changes)
}

#[test]
fn jobs_over_unlike_ports_end_sooner_together() {
    let alone = makespan("", [None; 2]);
    let balanced = makespan("[balance]\n", [None; 2]);
    assert_eq!(alone.1, 0);
    // Its only port gives the second 600 s at best.
    assert!(alone.0 > 660 && balanced.0 < 620, "{balanced:?} of {alone:?}");
}

#[test]
fn jobs_that_pause_lose_nothing_by_balance() {
    for bursts in
        [[Some((20, 10)), Some((20, 10))], [Some((20, 10)), None], [None, Some((5, 5))], [Some((7, 11)), Some((13, 6))]]
    {
        let alone = makespan("", bursts);
        let balanced = makespan("[balance]\n", bursts);
        assert!(balanced.0 * 100 <= alone.0 * 102, "{bursts:?}: {balanced:?} of {alone:?}");
        assert!(u64::from(balanced.1) <= balanced.0 / 10, "{bursts:?}: {balanced:?}");
    }
}

#[test]
fn jobs_over_the_same_ports_get_no_orders() {
    let mut host = Host::new("[balance]\n", &UNLIKE);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.job(8, "two", &["mlx5_0", "mlx5_1"]);
    host.play(1800);
    assert_eq!(host.changes, 0);
}

#[test]
fn a_job_that_wants_little_is_given_no_port() {
    let mut host = Host::new("[balance]\n", &UNLIKE);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let small = host.job(8, "two", &["mlx5_1"]);
    host.jobs[small].demand = MEGABIT;
    host.play(3600);
    let rate = (host.jobs[job].sent(0) + host.jobs[job].sent(1)) as f64 / 3600.0 / MEGABIT;
    assert!(rate > 97.0, "{rate} of 99");
    assert!(host.changes < 20, "{}", host.changes);
}

#[test]
fn balance_follows_jobs_that_begin_and_end() {
    let mut host = Host::new("[balance]\n", &UNLIKE);
    let one = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(30);
    assert_eq!(host.changes, 0, "one job has nobody to share with");
    let two = host.job(8, "two", &["mlx5_1"]);
    host.play(15);
    assert!(host.findings("").contains(&"balance"), "{:?}", host.log);
    let before = host.jobs[two].sent(0);
    host.play(10);
    assert!((host.jobs[two].sent(0) - before) as f64 > 190.0 * MEGABIT, "it has its only port to itself");
    host.jobs[two].left = 1.0;
    host.play(10);
    let before = host.jobs[one].sent(0) + host.jobs[one].sent(1);
    host.play(10);
    let moved = host.jobs[one].sent(0) + host.jobs[one].sent(1) - before;
    assert!(moved as f64 > 990.0 * MEGABIT, "{moved}: it has all ports again");
    let three = host.job(9, "three", &["mlx5_1"]);
    host.play(90);
    let before = host.jobs[three].sent(0);
    host.play(10);
    assert!((host.jobs[three].sent(0) - before) as f64 > 190.0 * MEGABIT);
}

#[test]
fn a_balanced_job_leaves_a_port_that_is_drained() {
    let mut host = Host::new("[balance]\n", &[("mlx5_0", 80.0), ("mlx5_1", 20.0), ("mlx5_2", 40.0)]);
    let one = host.job(7, "one", &["mlx5_0", "mlx5_1", "mlx5_2"]);
    host.job(8, "two", &["mlx5_1"]);
    host.play(20);
    assert!(host.agent.rules(7).contains("weights"), "{}", host.agent.rules(7));
    host.agent.drain("mlx5_0").unwrap();
    host.play(8);
    let sent = host.jobs[one].sent(0);
    host.play(120);
    assert_eq!(host.jobs[one].sent(0), sent);
    assert!(!host.agent.rules(8).contains("job=one"), "another user's job");
}

#[test]
fn shares_are_not_learnt_from_drains() {
    let mut host = Host::new("[avoid_congestion]\n", &[("mlx5_0", 60.0), ("mlx5_1", 40.0)]);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(30);
    for _ in 0..10 {
        host.agent.drain("mlx5_1").unwrap();
        host.play(10);
        host.give_back("mlx5_1");
        host.play(4);
    }
    for _ in 0..4 {
        host.links.get_mut("mlx5_1").unwrap().count(Counter::RpCnpHandled, 500);
        host.look();
    }
    let weights = host.agent.state().jobs[0].groups[0].weights.clone().expect("it is congested");
    assert!((weights[&1] - 0.28 / 0.88).abs() < 0.02, "{weights:?}");
}

const SCRIPT: &str =
    "fixed = [\"peer=node9 -> weights 9,1\"]\n[script]\nprogram = [\"/bin/steer\"]\ntimeout_s = 5\n[avoid_sick]\n";

#[test]
fn rules_of_operators_and_scripts_hold_together_with_drains() {
    let mut host = Host::new(SCRIPT, &EQUAL);
    let job = host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(2);
    host.agent.script_answered(r#"{"rules": ["peer=node2 -> weights 3,1", "peer=node9 -> weights 1,1"]}"#, host.now());
    host.play(2);
    assert!((share(&mut host, job, 1, 2) - 0.25).abs() < 0.01);
    host.agent.drain("mlx5_1").unwrap();
    host.agent.script_answered(r#"{"rules": ["peer=node2 -> weights 3,1"]}"#, host.now());
    host.play(2);
    let sent = host.jobs[job].sent(1);
    host.play(3);
    assert_eq!(host.jobs[job].sent(1), sent);
    let rules = host.agent.rules(7);
    let rail = format!("rail={}", host::patterns("mlx5_1"));
    let expected = format!(
        "peer=node9 {rail} -> weights 9,1 drain\npeer=node9 -> weights 9,1\npeer=node2 {rail} -> weights 3,1 drain\n\
         peer=node2 -> weights 3,1\n{rail} -> drain\n"
    );
    assert_eq!(rules, expected);
}

#[test]
fn the_rules_of_a_script_hold_over_a_reload_that_does_not_change_it() {
    let config = |text: &str| railweave_agent::Config::parse(text).unwrap();
    let mut host = Host::new(SCRIPT, &EQUAL);
    host.play(2);
    host.agent.script_answered(r#"{"rules": ["peer=node2 -> weights 3,1"]}"#, host.now());
    host.agent.set_config(config(&format!("ttl_s = 60\n{SCRIPT}")));
    assert!(host.agent.rules(7).contains("weights 3,1"));
    host.agent.set_config(config(&SCRIPT.replace("steer", "other")));
    assert!(!host.agent.rules(7).contains("weights 3,1"), "they are not its own");
}

#[test]
fn a_script_is_waited_for_until_a_third_of_the_time_to_live() {
    let mut host = Host::new("ttl_s = 30\n[script]\nprogram = [\"/bin/steer\"]\ntimeout_s = 100\n", &EQUAL);
    host.look();
    host.play(10);
    assert!(host.agent.is_undecided());
    host.look();
    assert!(!host.agent.is_undecided());
}

#[test]
fn an_order_ends_the_wait_for_a_script() {
    let orders: [fn(&mut Host); 2] = [
        |host| host.agent.drain("mlx5_1").unwrap(),
        |host| drop(host.agent.set_rule("peer=node2 -> weights 3,1", host.now()).unwrap()),
    ];
    for order in orders {
        let mut host = Host::new("ttl_s = 30\n[script]\nprogram = [\"/bin/steer\"]\ntimeout_s = 100\n", &EQUAL);
        host.look();
        assert!(host.agent.is_undecided() && !host.agent.give_back("mlx5_0", host.now()) && host.agent.is_undecided());
        order(&mut host);
        assert!(!host.agent.is_undecided());
    }
}

#[test]
fn a_script_that_fails_leaves_its_last_rules_for_a_while() {
    let mut host = Host::new(SCRIPT, &EQUAL);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let good = r#"{"rules": ["peer=node2 -> weights 3,1"]}"#;
    let steers = |host: &Host| host.agent.rules(7).contains("weights 3,1");
    host.play(5);
    assert!(host.findings("").is_empty(), "it has time to begin");
    host.play(2);
    assert_eq!(host.findings(""), ["script"], "it never answered");
    host.agent.script_answered(good, host.now());
    host.play(1);
    assert!(steers(&host) && host.findings("").is_empty());
    host.agent.script_answered("{\"rules\": [\"x\\ny\"]}", host.now());
    host.play(1);
    assert!(steers(&host) && host.findings("") == ["script"]);
    host.play(5);
    assert!(!steers(&host));
    host.agent.script_answered(good, host.now());
    host.play(1);
    host.agent.script_failed("ended: exit status 1".into());
    host.play(3);
    assert!(steers(&host) && host.findings("") == ["script"]);
    host.play(4);
    assert!(!steers(&host) && host.findings("") == ["script"]);
    assert!(host.agent.rules(7).contains("weights 9,1"), "the operator's rules stay");
    let ends = host.log.iter().filter(|line| line.contains("script: is over")).count();
    assert_eq!(ends, 2, "{:?}", host.log);
}
