//! A device's refusals while a rail comes up: at each call, for each reason, one sentence, and nothing is left open.

mod common;

use common::{INFINIBAND, Machine, Pair, ROCE, Wish, assert_says, open, strict};
use railweave_fabric::{
    Connecting, Domain, LaneEndpoint, PendingRail, RailSpec, RegisterError, Role, SetupError, SetupStep, TargetState,
    Transition,
};
use railweave_fabric_verbs::VerbsPort;
use railweave_fabric_verbs::{ModifyRetries, VerbsConfig, VerbsPendingRail};
use railweave_fake_ibverbs::Open;
use std::time::Duration;

const ERRORS: [(&str, &str); 3] =
    [("ENOMEM", "Cannot allocate memory"), ("EINVAL", "Invalid argument"), ("ETIMEDOUT", "Connection timed out")];

/// Two lanes, and one for flushes at the receiver's end.
fn wish() -> Wish {
    let mut wish = Wish { lanes: 2, ..Wish::default() };
    wish.receiver.flush = true;
    wish
}

/// A function, the number of calls that the set-up of such a rail makes to it, the number of calls in a row that must
/// fail before it gives up, and the check of its error.
struct Step {
    function: &'static str,
    calls: u32,
    tries: u32,
    /// Returns true if the error is that of this step.
    fails: fn(&SetupError) -> bool,
}

const fn step(function: &'static str, calls: u32, tries: u32, fails: fn(&SetupError) -> bool) -> Step {
    Step { function, calls, tries, fails }
}

const STEPS: [Step; 7] = [
    step("alloc_pd", 2, 1, |error| matches!(refused(error), Some(SetupStep::ProtectionDomain))),
    step("query_port", 2, 1, |error| matches!(refused(error), Some(SetupStep::PortQuery))),
    step("create_cq", 2, 1, |error| matches!(refused(error), Some(SetupStep::CompletionQueue { .. }))),
    // A lane is also tried without inline data; the one for flushes never has any.
    step("create_qp", 5, 2, |error| {
        matches!(refused(error), Some(SetupStep::QueuePair { .. } | SetupStep::FlushQueuePair))
    }),
    step("modify_qp/INIT", 5, 1, |error| {
        matches!(refused(error), Some(SetupStep::Init { partition_key: 0, port: 1, .. }))
    }),
    step("modify_qp/RTR", 5, 1, |error| matches!(reached(error), Some(TargetState::ReadyToReceive { mtu: 4096, .. }))),
    step("modify_qp/RTS", 5, 1, |error| matches!(reached(error), Some(TargetState::ReadyToSend { timeout: 20, .. }))),
];

/// The step that the kernel or the library refused, if it is one named only with its port.
fn refused(error: &SetupError) -> Option<&SetupStep> {
    match error {
        SetupError::Refused { what, .. } => Some(what),
        _ => None,
    }
}

/// The state that a queue pair was meant to reach with its peer.
fn reached(error: &SetupError) -> Option<TargetState> {
    match error {
        SetupError::Transition(transition) => Some(transition.to),
        _ => None,
    }
}

fn failures(step: &Step, first: u32, count: u32, error: &str) -> String {
    let calls = first..first + count;
    format!("faults = [{}]\n", calls.map(|call| format!("'{}:{call}:{error}', ", step.function)).collect::<String>())
}

#[test]
fn a_failure_of_any_call_of_the_set_up_is_told_and_leaves_nothing() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b) = (machine.port("a"), machine.port("b"));
    let only_devices = Open { contexts: 2, ..Open::default() };
    for (step, (error, text)) in STEPS.iter().flat_map(|step| ERRORS.iter().map(move |error| (step, error))) {
        // The kernel may return this for a while during address resolution.
        let is_retried = *error == "ETIMEDOUT" && ["modify_qp/RTR", "modify_qp/RTS"].contains(&step.function);
        if *error == "ETIMEDOUT" && step.function == "modify_qp/INIT" {
            // It is retried once the peer is known, after all other steps.
            continue;
        }
        let tries = if is_retried { 3 } else { step.tries };
        for call in 1..=step.calls {
            let what = format!("{}:{call}:{error}", step.function);
            machine.fail(&failures(step, call, tries, error));
            let refused = Pair::open(&a, &b, &wish()).err().unwrap_or_else(|| panic!("{what} is not noticed"));
            assert!((step.fails)(&refused), "{what}: {refused:?}");
            let words = refused.to_string();
            assert_says(&words, &[text, "; "]);
            let names_port = ["a: ", "b: "].iter().any(|name| words.starts_with(name));
            let names_both = ["of a (GID 10.0.0.1)", "of b (GID 10.1.0.1)"].iter().any(|n| words.contains(n));
            assert!(names_port || names_both, "{what}: no port in {words}");
            assert_eq!(machine.fake.open(), only_devices, "{what} leaves something open");
            if tries > 1 && call < step.calls {
                // One failure fewer does no harm.
                machine.fail(&failures(step, call, tries - 1, error));
                Pair::open(&a, &b, &wish()).unwrap_or_else(|error| panic!("{what}: {error}")).exchange();
            }
        }
        machine.fail(&failures(step, step.calls + tries, 1, error));
        Pair::open(&a, &b, &wish()).unwrap_or_else(|error| panic!("{} is called more often: {error}", step.function));
    }
}

#[test]
fn the_memory_that_flushes_read_into_is_part_of_the_set_up() {
    let machine = Machine::new(ROCE);
    let (a, b) = (machine.port("a"), machine.port("b"));
    for (error, text) in ERRORS {
        machine.fail(&format!("faults = ['reg_mr:1:{error}']\n"));
        let refused = Pair::open(&a, &b, &wish()).err().unwrap();
        let SetupError::Register(RegisterError::Refused { port, length: 1, .. }) = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!(port, "b");
        assert_says(&refused.to_string(), &[text]);
        assert_eq!(machine.fake.open(), Open { contexts: 2, ..Open::default() });
    }
}

#[test]
fn a_peer_that_cannot_be_reached_is_told_with_what_to_look_at() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b) = (machine.port("a"), machine.port("b"));
    for error in ["ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "ENODEV"] {
        machine.fail(&format!("faults = ['modify_qp/RTR:*:{error}']\n"));
        let refused = Pair::open(&a, &b, &Wish::default()).err().unwrap();
        let SetupError::Transition(transition) = refused else { panic!("{refused}") };
        let Transition { port, gid, peer_gid, to, .. } = &*transition;
        assert_eq!((port.as_str(), gid.as_str(), peer_gid.as_str()), ("b", "10.1.0.1", "10.0.0.1"));
        assert!(transition.is_unreachable() && matches!(to, TargetState::ReadyToReceive { gid_index: 1, .. }));
    }
    machine.fail("faults = ['modify_qp/RTR:*:EINVAL']\n");
    let refused = Pair::open(&a, &b, &Wish::default()).err().unwrap();
    assert!(matches!(&refused, SetupError::Transition(transition) if !transition.is_unreachable()), "{refused}");
}

#[test]
fn on_infiniband_the_local_identifier_is_told() {
    let machine = Machine::new(&format!("faults = ['modify_qp/RTR:*:EINVAL']\n{INFINIBAND}"));
    let refused = machine.try_pair(&Wish::default()).err().unwrap();
    assert!(matches!(reached(&refused), Some(TargetState::ReadyToReceive { lid: 7, .. })), "{refused}");
}

#[test]
fn a_device_that_is_too_small_is_told_with_the_limit_to_look_at() {
    let cases = [
        ("max_qp = 1", SetupStep::QueuePair { sends: 64, receives: 0 }),
        ("max_qp_wr = 63", SetupStep::QueuePair { sends: 64, receives: 0 }),
        ("max_cqe = 191", SetupStep::CompletionQueue { entries: 192 }),
        ("max_cq = 0", SetupStep::CompletionQueue { entries: 192 }),
        ("max_pd = 0", SetupStep::ProtectionDomain),
    ];
    let machine = |limits: &str| {
        Machine::new(&strict(&format!(
            "[[device]]\nname = 'a'\n[[device.port]]\n\
            [[device]]\nname = 'b'\n{limits}\n[[device.port]]\n"
        )))
    };
    let wish = Wish { lanes: 2, ..Wish::default() };
    for (limit, expected) in cases {
        let refused = machine(limit).try_pair(&wish).err().unwrap_or_else(|| panic!("{limit} is enough"));
        let SetupError::Refused { port, what, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!((port.as_str(), what), ("b", &expected), "{limit}");
    }
    let enough = "max_qp = 2\nmax_qp_wr = 64\nmax_cqe = 192\nmax_cq = 1\nmax_srq_wr = 64\nmax_pd = 1";
    machine(enough).pair(&wish).exchange();
}

/// A rail of one lane to a peer's port.
fn spec(role: Role, peer: &VerbsPort) -> RailSpec {
    RailSpec {
        role,
        lanes: 1,
        send_depth: 64,
        receive_depth: 64,
        lane_receives: 64,
        traffic_class: None,
        peer: Some(peer.facts.wire_address()),
    }
}

/// Both ends of a rail that is not connected yet, with these retries at both.
fn pending([a, b]: &[VerbsPort; 2], modify_retries: ModifyRetries) -> (VerbsPendingRail, VerbsPendingRail) {
    let config = VerbsConfig { modify_retries, ..VerbsConfig::default() };
    let open = |port: &VerbsPort, peer: &VerbsPort, role| {
        open(port, config, |_| ()).unwrap().open_rail(&spec(role, peer)).unwrap()
    };
    (open(a, b, Role::Sender), open(b, a, Role::Receiver))
}

/// The pauses for which a rail asks until it is connected.
fn pauses(rail: &mut VerbsPendingRail, remote: &[LaneEndpoint]) -> Result<Vec<u64>, SetupError> {
    let mut pauses = Vec::new();
    while let Connecting::Later { pause, reason } = rail.connect(remote)? {
        let is_transition = matches!(refused(&reason), Some(SetupStep::Init { .. })) || reached(&reason).is_some();
        assert!(is_transition, "{reason:?}");
        pauses.push(pause.as_millis() as u64);
    }
    Ok(pauses)
}

#[test]
fn each_pause_is_longer_than_the_one_before_and_each_change_of_state_has_its_own() {
    let machine = Machine::new(ROCE);
    let ports = ["a", "b"].map(|name| machine.port(name));
    for (fault, expected) in [
        ("modify_qp/RTR:1-4:ETIMEDOUT", &[100, 200, 300, 400][..]),
        ("modify_qp/RTS:1-2:ETIMEDOUT", &[100, 200]),
        ("modify_qp/RTR:1-2:ETIMEDOUT', 'modify_qp/RTS:1-2:ETIMEDOUT", &[100, 200, 100, 200]),
        // Each end was refused once when it was opened; this is the far end's second refusal.
        ("modify_qp/INIT:1-3:ETIMEDOUT", &[200]),
    ] {
        machine.fail(&format!("faults = ['{fault}']\n"));
        let (near, mut far) = pending(&ports, ModifyRetries::default());
        assert_eq!(pauses(&mut far, &near.endpoints()).unwrap(), expected, "{fault}");
        assert!(far.is_ready());
    }
}

#[test]
fn a_change_of_state_is_retried_as_the_settings_say() {
    let machine = Machine::new(ROCE);
    let ports = ["a", "b"].map(|name| machine.port(name));
    let retries = |count, any_error| ModifyRetries { count, pause: Duration::from_millis(1), any_error };
    let tried = |fault: &str, retries| {
        machine.fail(&format!("faults = ['{fault}']\n"));
        let (near, mut far) = pending(&ports, retries);
        pauses(&mut far, &near.endpoints()).map(|pauses| pauses.len()).map_err(|error| error.to_string())
    };
    assert_eq!(tried("modify_qp/RTR:1-2:ETIMEDOUT", retries(2, false)), Ok(2));
    assert_says(&tried("modify_qp/RTR:1-3:ETIMEDOUT", retries(2, false)).unwrap_err(), &["to RTR", "tried 3 times"]);
    let once = tried("modify_qp/RTR:1-3:ETIMEDOUT", retries(0, false)).unwrap_err();
    assert!(!once.contains("tried"), "{once}");
    assert_says(&tried("modify_qp/RTR:1:EINVAL", retries(2, false)).unwrap_err(), &["Invalid argument"]);
    assert_eq!(tried("modify_qp/RTR:1-2:EINVAL", retries(2, true)), Ok(2));
}

#[test]
fn a_queue_pair_that_waits_for_another_has_a_pause_of_its_own_and_none_without_retries() {
    let machine = Machine::new(ROCE);
    let ports = ["a", "b"].map(|name| machine.port(name));
    let config = |count, pause| VerbsConfig {
        modify_retries: ModifyRetries { count, pause, any_error: false },
        ..VerbsConfig::default()
    };
    // Both ends of two rails between one pair of ports, whose peer's port the kernel takes long not to find.
    let first_and_second = |config: VerbsConfig| {
        machine.fail("faults = []\n");
        let domains = ports.each_ref().map(|port| open(port, config, |_| ()).unwrap());
        let rail = || {
            let [near, far] = [(0, 1, Role::Sender), (1, 0, Role::Receiver)]
                .map(|(own, peer, role)| domains[own].open_rail(&spec(role, &ports[peer])).unwrap());
            (near, far)
        };
        let (mut rails, times) = ([rail(), rail()], "modify_qp/RTR:1-9");
        machine.fail(&format!("faults = ['{times}:ETIMEDOUT', '{times}:150ms']\n"));
        rails.each_mut().map(|(near, far)| far.connect(&near.endpoints()))
    };
    for pause in [Duration::ZERO, Duration::from_secs(30)] {
        let [first, second] = first_and_second(config(2, pause));
        assert!(matches!(first, Ok(Connecting::Later { pause: asked, .. }) if asked == pause), "{first:?}");
        let Ok(Connecting::Later { pause: asked, reason }) = second else { panic!("{second:?}") };
        assert!(matches!(reason, SetupError::Waiting { .. }), "{reason}");
        assert_eq!(asked, Duration::from_millis(100));
    }
    for outcome in first_and_second(config(0, Duration::ZERO)) {
        assert!(matches!(outcome, Err(SetupError::Transition(_))), "{outcome:?}");
    }
}

#[test]
fn a_lane_for_flushes_is_retried_too() {
    let machine = Machine::new(ROCE);
    let (a, b) = (machine.port("a"), machine.port("b"));
    machine.fail("faults = ['modify_qp/RTR:1-2:ETIMEDOUT']\n");
    Pair::open(&a, &b, &wish()).unwrap_or_else(|error| panic!("{error}")).exchange();
}
