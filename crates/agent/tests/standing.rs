//! Orders of an operator: in a policy file without an agent, and from one agent to the next.

mod host;

use host::Host;
use railweave_agent::{Inherited, Now, OperatorOrder, OperatorRule, Origin, Reason, Standing, origin};
use railweave_telemetry::{Order, Policy, Rules, Subject};
use std::time::Duration;

const PORTS: [(&str, f64); 2] = [("mlx5_0", 100.0), ("mlx5_1", 100.0)];
const CLOCK: Duration = Duration::from_secs(1_790_000_000);

fn rules(standing: &Standing) -> Vec<String> {
    standing.rules().map(OperatorRule::to_string).collect()
}

fn own(host: &Host) -> Vec<String> {
    host.agent.operator_rules().map(|(rule, _)| rule.to_string()).collect()
}

/// Returns the order for a connection to a peer over two ports.
fn decide(text: &str, peer_host: &str) -> Option<Order> {
    let rules = Rules::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    rules.decide(&Subject { peer_host, rails: &["mlx5_0", "mlx5_1"], ..Subject::default() })
}

fn before(text: &str) -> Inherited {
    let (Origin::Agent(before) | Origin::Command(before)) = origin(text) else { panic!("{text}") };
    before
}

#[test]
fn a_file_says_again_what_was_ordered() {
    let mut standing = Standing::default();
    assert!(standing.is_empty() && standing.orders().is_empty());
    assert_eq!(standing.drain("mlx5_1"), Ok(true));
    assert_eq!(standing.drain("mlx5_1"), Ok(false));
    assert_eq!(standing.set("peer=a  job=* -> weights 80,20"), Ok(true));
    assert_eq!(standing.set("peer=b -> policy speed"), Ok(true));
    assert_eq!(standing.set("peer=b ->  policy speed"), Ok(false));
    assert_eq!(standing.set("job=* peer=a -> weights 70,30"), Ok(true), "in place of the first");
    for ttl_s in [None, Some(60)] {
        let text = standing.file("0.1.0 on node1", CLOCK, ttl_s);
        let mark = "# railweave policy 0.1.0 on node1 wrote this; change it with railweave policy";
        assert_eq!(text.lines().nth(1), Some(mark));
        assert!(text.contains(ttl_s.map_or("\nttl forever\n", |_| "\nttl 60\n")), "{text}");
        assert!(text.contains("written 1790000000\n") && text.ends_with(&standing.orders()));
        assert_eq!(Standing::of(&text), Some(standing.clone()));
        Rules::parse(&text).unwrap();
        assert!(matches!(origin(&text), Origin::Command(_)));
    }
    assert_eq!(rules(&standing), ["job=* peer=a -> weights 70,30", "peer=b -> policy speed"]);
    assert!(standing.clear("peer=a job=*") && !standing.clear("peer=a job=*") && !standing.clear("peer=a"));
    assert!(standing.give_back("mlx5_1") && !standing.give_back("mlx5_1"));
    assert!(standing.clear("peer=b") && standing.is_empty());
}

#[test]
fn drains_hold_together_with_rules() {
    let mut standing = Standing::default();
    standing.drain("mlx5_1").unwrap();
    standing.set("peer=a -> policy speed").unwrap();
    standing.set("peer=b rail=mlx5_0 -> drain").unwrap();
    let text = standing.file("x", CLOCK, None);
    let order = |drained| Some(Order { drained, ..Order::default() });
    assert_eq!(decide(&text, "a").unwrap(), Order { policy: Some(Policy::Speed), drained: 0b10, weights: None });
    assert_eq!(decide(&text, "b"), order(0b01), "a rule that names rails itself");
    assert_eq!(decide(&text, "c"), order(0b10));
    standing.give_back("mlx5_1");
    assert_eq!(decide(&standing.file("x", CLOCK, None), "c"), None);
}

#[test]
fn an_agents_file_leaves_its_orders_and_its_sick_ports() {
    let mut host = Host::new("fixed = [\"any -> policy static\"]\n[avoid_sick]\n", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let sick = vec![("mlx5_1".to_owned(), "went down 3 times in five minutes".to_owned())];
    host.agent.inherit(&Inherited { sick, ..Inherited::default() }, host.now());
    host.agent.drain("mlx5_0").unwrap();
    host.agent.set_rule("peer=a -> policy speed", host.now()).unwrap();
    let mut standing = Standing::of(&host.policy(7)).unwrap();
    assert_eq!(standing.drained().collect::<Vec<_>>(), ["mlx5_0"]);
    assert_eq!(standing.sick().collect::<Vec<_>>(), [("mlx5_1", "went down 3 times in five minutes")]);
    assert_eq!(rules(&standing), ["peer=a -> policy speed"], "those of the configuration are its own");
    assert!(standing.orders().contains("mlx5_0,") && standing.orders().contains("mlx5_1,"));
    assert!(standing.give_back("mlx5_1") && !standing.give_back("mlx5_1"));
    assert!(!standing.orders().contains("mlx5_1") && standing.sick().count() == 0);
    let mut both = Standing::of(&host.policy(7).replace("# drained mlx5_0", "# drained mlx5_1")).unwrap();
    assert!(both.give_back("mlx5_1") && both.drained().count() == 0, "whatever the reasons were");
    let mut standing = Standing::of(&host.policy(7)).unwrap();
    standing.forget_sick();
    assert!(standing.orders().contains("mlx5_0,") && !standing.orders().contains("mlx5_1,"));
}

#[test]
fn hostile_lines_order_nothing() {
    for text in ["", "railweave-policy 1\n", "railweave-policy 1\nttl 30\n# ordered any -> policy speed\n"] {
        assert_eq!(Standing::of(text), None, "{text}");
        assert_eq!(origin(text), Origin::Other);
    }
    let long = format!("# ordered peer={} -> policy speed", "p".repeat(1024));
    let lines = [
        "# drained 7",
        "# drained a b",
        "# drained eth*",
        "# ordered ",
        "# ordered any",
        "# ordered -> policy speed",
        "# ordered any -> fly",
        "# ordered any -> policy speed -> policy speed",
        "# ordered # any -> policy speed",
        "# ordered ttl 5 -> policy speed",
        "# ordered peer=\u{1b}[2J -> policy speed",
        &long,
        "# sick eth0",
        "# sick 7 is ill",
        "written 99999999999999999999",
    ];
    for mark in ["# railweave agent", "# railweave policy"] {
        let text = format!("railweave-policy 1\n{mark}\n{}\n", lines.join("\n"));
        assert_eq!(Standing::of(&text), Some(Standing::default()));
        let mut host = Host::new("[avoid_sick]\n", &PORTS);
        host.agent.inherit(&before(&text), host.now());
        assert!(own(&host).is_empty() && host.agent.drained_by_operator().count() == 0, "{:?}", own(&host));
    }
    // The neighbour.
    let text = "railweave-policy 1\n# railweave policy\n# ordered any -> policy speed\n# drained eth0\n";
    assert!(Standing::of(text).is_some_and(|standing| !standing.is_empty()));
}

#[test]
fn too_many_lines_are_left_out() {
    let mut text = "railweave-policy 1\n# railweave policy\n".to_owned();
    for number in 0..300 {
        text += &format!("# ordered peer=n{number} -> policy speed\n# drained p{number}\n# sick s{number} is ill\n");
        // The first of the same is the newest.
        text += &format!("# ordered peer=n{number} -> policy static\n");
    }
    let mut standing = Standing::of(&text).unwrap();
    assert_eq!((standing.rules().count(), standing.drained().count(), standing.sick().count()), (250, 256, 256));
    assert_eq!(rules(&standing)[0], "peer=n0 -> policy speed");
    assert!(standing.set("peer=other -> policy speed").unwrap_err().contains("one too many; allowed: 250"));
    assert!(standing.drain("other").unwrap_err().contains("one too many; allowed: 256"));
    assert!(standing.set("peer=a").unwrap_err().contains("is not a rule"));
    assert!(standing.drain("1").unwrap_err().contains("is not the name of a port"));
    Rules::parse(&standing.file("x", CLOCK, None)).unwrap();
}

#[test]
fn a_file_stays_small_enough_to_be_read() {
    let mut standing = Standing::default();
    let port = |number: usize| format!("p{number:063}");
    (0..200).for_each(|number| assert_eq!(standing.drain(&port(number)), Ok(true)));
    let rule = |number: usize| format!("peer={number:01000} -> policy speed");
    let count = (0..250).take_while(|number| standing.set(&rule(*number)).is_ok()).count();
    let error = standing.set(&rule(count)).unwrap_err();
    assert!(error.contains("the policy file has no room for 1 of its rules; allowed:"), "{error}");
    assert_eq!(standing.rules().count(), count, "it was not set");
    let text = standing.file("x", CLOCK, None);
    assert!(count > 5 && text.len() < 1 << 20, "{count} rules, {} bytes", text.len());
    Rules::parse(&text).unwrap();
}

#[test]
fn rules_of_an_operator_come_before_those_of_the_configuration_and_outlive_the_agent() {
    let mut host = Host::new("fixed = [\"any -> policy static\"]", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.play(2);
    let clock = host.now().clock;
    assert_eq!(
        host.agent.set_rule("peer=a  -> policy speed", host.now()).unwrap().to_string(),
        "peer=a -> policy speed"
    );
    host.play(2);
    host.agent.set_rule("peer=b -> policy speed", host.now()).unwrap();
    assert_eq!(host.agent.state().agent.policies, ["operator", "fixed"]);
    let since: Vec<Duration> = host.agent.operator_rules().map(|(_, since)| since).collect();
    assert_eq!(since, [clock + Duration::from_secs(2), clock]);
    let expected = ["peer=b -> policy speed", "peer=a -> policy speed", "any -> policy static"];
    assert_eq!(host.agent.rules(7).lines().collect::<Vec<_>>(), expected);
    host.play(2);
    host.restart("");
    assert_eq!(host.agent.rules(7).lines().collect::<Vec<_>>(), expected[..2], "before its first look");
    assert!(host.log.iter().any(|line| line.starts_with("rule peer=a -> policy speed goes on")), "{:?}", host.log);
    assert!(
        host.agent.clear_rule("peer=a", host.now()).is_some() && host.agent.clear_rule("peer=a", host.now()).is_none()
    );
    host.play(2);
    host.restart("");
    assert_eq!(own(&host), ["peer=b -> policy speed"]);
    host.agent.clear_rule("peer=b", host.now());
    assert!(host.agent.state().agent.policies.is_empty() && host.agent.rules(7).is_empty());
}

#[test]
fn an_agent_takes_over_the_file_of_railweave_policy() {
    let mut standing = Standing::default();
    standing.drain("mlx5_1").unwrap();
    standing.set("peer=a -> policy speed").unwrap();
    standing.set("peer=b -> policy speed").unwrap();
    let mut host = Host::new("", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let lines = host.agent.inherit(&before(&standing.file("x", host.now().clock, None)), host.now());
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(own(&host), ["peer=b -> policy speed", "peer=a -> policy speed"]);
    assert_eq!(host.agent.rules(7), standing.orders());
    assert_eq!(Standing::of(&host.policy(7)), Some(standing), "and leaves it to the next one");
}

#[test]
fn a_rule_that_was_cleared_or_set_since_is_not_taken_over() {
    let mut host = Host::new("", &PORTS);
    let at = |second| Now { clock: Duration::from_secs(second), up: Duration::from_secs(second) };
    let written = |written_s, rules: &[&str]| {
        let lines = rules.iter().map(|rule| format!("# ordered {rule}\n")).collect::<String>();
        before(&format!("railweave-policy 1\n# railweave agent\n{lines}written {written_s}\n"))
    };
    let file = ["peer=b -> policy speed", "peer=a -> policy speed"];
    assert_eq!(host.agent.inherit(&written(1, &file), at(2)).len(), 2);
    assert!(host.agent.clear_rule("peer=b", at(100)).is_some());
    host.agent.set_rule("peer=a -> policy static", at(100)).unwrap();
    host.agent.set_rule("peer=c -> policy static", at(110)).unwrap();
    // Those of other run dirs.
    assert!(host.agent.inherit(&written(100, &file), at(112)).is_empty());
    assert_eq!(own(&host), ["peer=c -> policy static", "peer=a -> policy static"]);
    // Another agent was told since.
    assert_eq!(host.agent.inherit(&written(105, &file), at(113)).len(), 2);
    assert_eq!(own(&host), ["peer=c -> policy static", "peer=b -> policy speed", "peer=a -> policy speed"]);
    let same = ["peer=b -> policy adaptive", "peer=c -> policy static"];
    assert_eq!(host.agent.inherit(&written(120, &same), at(121)).len(), 1);
    assert_eq!(own(&host), ["peer=b -> policy adaptive", "peer=c -> policy static", "peer=a -> policy speed"]);
}

#[test]
fn a_rule_that_is_set_again_is_not_newer_and_yet_holds_against_older_files() {
    let mut host = Host::new("", &PORTS);
    let at = |second| Now { clock: Duration::from_secs(second), up: Duration::from_secs(second) };
    host.agent.set_rule("peer=a -> policy static", at(100)).unwrap();
    host.agent.set_rule("peer=a -> policy static", at(110)).unwrap();
    let text = "railweave-policy 1\n# railweave agent\n# ordered peer=a -> policy speed\nwritten 105\n";
    assert!(host.agent.inherit(&before(text), at(120)).is_empty());
    let rules: Vec<_> = host.agent.operator_rules().map(|(rule, since)| (rule.to_string(), since.as_secs())).collect();
    assert_eq!(rules, [("peer=a -> policy static".to_owned(), 100)]);
}

#[test]
fn rules_taken_over_have_the_same_bound() {
    let mut host = Host::new("", &PORTS);
    for number in 0..250 {
        host.agent.set_rule(&format!("peer=n{number} -> policy speed"), host.now()).unwrap();
    }
    let error = host.agent.set_rule("peer=other -> policy speed", host.now()).unwrap_err();
    assert!(error.contains("is one too many; allowed: 250"), "{error}");
    let text = "railweave-policy 1\n# railweave agent\n# ordered peer=x -> policy speed\n";
    let lines = host.agent.inherit(&before(text), host.now());
    assert!(lines.len() == 1 && lines[0].contains("is one too many"), "{lines:?}");
    assert_eq!(own(&host).len(), 250);
}

#[test]
fn an_order_that_is_tried_gives_the_rules_that_it_would_and_changes_nothing() {
    let config = "drain = [\"mlx5_0\"]\nfixed = [\"any -> policy static\"]\n";
    let mut host = Host::new(config, &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    host.job(8, "two", &["mlx5_1", "mlx5_0"]);
    host.play(10);
    host.agent.drain("mlx5_0").unwrap();
    host.play(2);
    for (order, is_visible) in [
        (OperatorOrder::Set("peer=a  -> policy speed"), true),
        (OperatorOrder::Set("any -> weights 1,2"), true),
        (OperatorOrder::Set("any -> weights 1,2"), false),
        (OperatorOrder::Drain("mlx5_1"), true),
        (OperatorOrder::GiveBack("mlx5_1"), true),
        // The configuration drains it too.
        (OperatorOrder::GiveBack("mlx5_0"), false),
        (OperatorOrder::Clear("any"), true),
    ] {
        let rules = |host: &Host| [7, 8].map(|user| host.agent.rules(user));
        let before = (rules(&host), host.phase("mlx5_0"), host.phase("mlx5_1"), host.agent.state().findings.len());
        let tried = host.agent.dry_run(order).unwrap().unwrap();
        let text = |rules: &[String]| rules.iter().map(|rule| format!("{rule}\n")).collect::<String>();
        let of = |user| tried.iter().find(|it| it.user == user).unwrap();
        assert_eq!([7, 8].map(|user| text(&of(user).before)), before.0, "{order:?}");
        let tried = [7, 8].map(|user| text(&of(user).rules));
        let after = (rules(&host), host.phase("mlx5_0"), host.phase("mlx5_1"), host.agent.state().findings.len());
        assert_eq!(before, after, "{order:?}");
        let now = host.now();
        match order {
            OperatorOrder::Drain(port) => host.agent.drain(port).unwrap(),
            OperatorOrder::GiveBack(port) => assert!(host.agent.give_back(port, now)),
            OperatorOrder::Set(rule) => drop(host.agent.set_rule(rule, now).unwrap()),
            OperatorOrder::Clear(matchers) => assert!(host.agent.clear_rule(matchers, now).is_some()),
        }
        assert_eq!(rules(&host), tried, "{order:?}");
        assert_eq!(rules(&host) != before.0, is_visible, "{order:?}");
        host.play(2);
    }
}

#[test]
fn an_order_that_would_fail_fails_when_it_is_tried() {
    let (mut drains, mut rules) = (Host::new("", &PORTS), Host::new("", &PORTS));
    for number in 0..256 {
        drains.agent.drain(&format!("p{number}")).unwrap();
        let _ = rules.agent.set_rule(&format!("peer=n{number} -> policy speed"), rules.now());
    }
    for order in [
        OperatorOrder::Drain("7"),
        OperatorOrder::Drain("eth0"),
        OperatorOrder::Set("peer=a"),
        OperatorOrder::Set("peer=a -> policy speed"),
    ] {
        let host = if matches!(order, OperatorOrder::Drain(_)) { &mut drains } else { &mut rules };
        let tried = host.agent.dry_run(order).unwrap_err();
        let now = host.now();
        let given = match order {
            OperatorOrder::Drain(port) => host.agent.drain(port),
            OperatorOrder::Set(rule) => host.agent.set_rule(rule, now).map(drop),
            other => panic!("{other:?}"),
        };
        assert_eq!(given, Err(tried));
    }
    for order in [OperatorOrder::GiveBack("eth0"), OperatorOrder::Clear("any")] {
        assert_eq!(drains.agent.dry_run(order), Ok(None));
    }
    // The neighbours.
    assert!(matches!(drains.agent.dry_run(OperatorOrder::Drain("p7")), Ok(Some(_))));
    assert!(matches!(rules.agent.dry_run(OperatorOrder::Set("peer=n7 -> policy static")), Ok(Some(_))));
}

#[test]
fn orders_that_policy_files_have_no_room_for_are_refused() {
    let mut host = Host::new("", &PORTS);
    let now = host.now();
    let name = |number: usize| format!("{}{number:03}", "p".repeat(60));
    for number in 0..20 {
        host.agent.drain(&name(number)).unwrap();
    }
    let rule = |number: usize| format!("peer={}{number:03} -> policy speed", "n".repeat(900));
    let refused = (0..250).find_map(|number| Some((number, host.agent.set_rule(&rule(number), now).err()?)));
    let (number, error) = refused.expect("the rules have more bytes than a policy file");
    assert!(error.contains("has no room for 1 of its rules; allowed: about 900 KB"), "{error}");
    assert_eq!(host.agent.operator_rules().count(), number);
    assert_eq!(host.agent.dry_run(OperatorOrder::Set(&rule(number))), Err(error));
    let error = (20..256).find_map(|number| host.agent.drain(&name(number)).err()).expect("drains make rules longer");
    assert!(error.contains("has no room for "), "{error}");
    // The neighbours: what goes, and what was there before.
    host.agent.set_rule(&rule(number - 1), now).unwrap();
    host.agent.drain(&name(0)).unwrap();
    assert!(host.agent.clear_rule(&format!("peer={}000", "n".repeat(900)), now).is_some());
    host.agent.set_rule("peer=b -> policy speed", now).unwrap();
}

#[test]
fn drains_that_nobody_orders_are_told_once() {
    let mut host = Host::new("drain = [\"mlx5_0\"]\n[avoid_sick]\nleave_s = 5\n", &PORTS);
    host.job(7, "one", &["mlx5_0", "mlx5_1"]);
    let changes = |host: &mut Host| {
        let changes = host.agent.take_drain_changes();
        changes.into_iter().map(|it| (it.port, it.reason, it.begins)).collect::<Vec<_>>()
    };
    host.play(5);
    assert_eq!(changes(&mut host), [("mlx5_0".to_owned(), Reason::Configuration, true)]);
    host.agent.drain("mlx5_1").unwrap();
    host.links.get_mut("mlx5_1").unwrap().count(railweave_counters::Counter::SymbolErrors, 1000);
    host.play(2);
    assert_eq!(changes(&mut host), [("mlx5_1".to_owned(), Reason::Sick, true)]);
    host.restart("[avoid_sick]\nleave_s = 5\n");
    assert_eq!(changes(&mut host), [], "it goes on");
    host.play(200);
    assert!(host.give_back("mlx5_1"));
    assert_eq!(changes(&mut host), [("mlx5_1".to_owned(), Reason::Sick, false)]);
}
