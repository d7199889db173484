//! What a device refuses while a rail comes up: at each call, for each reason, one sentence, and nothing is left open.

mod common;

use common::{INFINIBAND, Machine, Pair, ROCE, Wish, assert_says, strict};
use railweave_fabric::Fault;
use railweave_verbs_stand_in::Open;

const ERRORS: [(&str, &str); 3] =
    [("ENOMEM", "Cannot allocate memory"), ("EINVAL", "Invalid argument"), ("ETIMEDOUT", "Connection timed out")];

/// Two lanes, and one for flushes at the receiver's end.
fn wish() -> Wish {
    let mut wish = Wish { lanes: 2, ..Wish::default() };
    wish.receiver.flush = true;
    wish
}

/// A function, how often the set-up of such a rail calls it, how many calls in a row must fail before it gives up, and the
/// words of its sentence.
struct Step {
    function: &'static str,
    calls: u32,
    tries: u32,
    words: &'static [&'static str],
}

const fn step(function: &'static str, calls: u32, tries: u32, words: &'static [&'static str]) -> Step {
    Step { function, calls, tries, words }
}

const STEPS: [Step; 7] = [
    step("alloc_pd", 2, 1, &["no protection domain can be allocated", "kernel log"]),
    step("query_port", 2, 1, &["the port cannot be queried", "is the adapter still there?"]),
    step("create_cq", 2, 1, &["a completion queue of ", " entries cannot be created", "RAILWEAVE_LANES", "max_cqe"]),
    // A lane is tried without inline data too, the one for flushes never has any.
    step("create_qp", 5, 2, &["a queue pair for ", "cannot be created", "max_qp"]),
    step("modify_qp/INIT", 5, 1, &["QP transition failed: queue pair 0x", "to INIT (partition-key index 0, port 1"]),
    step("modify_qp/RTR", 5, 1, &["QP transition failed: queue pair 0x", "to RTR for the peer's 0x", "path MTU 4096"]),
    step(
        "modify_qp/RTS",
        5,
        1,
        &["QP transition failed: queue pair 0x", "to RTS for the peer's 0x", "timeout 20, retry"],
    ),
];

fn failures(step: &Step, first: u32, count: u32, error: &str) -> String {
    (first..first + count).map(|call| format!("fail = {}:{call}:{error}\n", step.function)).collect()
}

#[test]
fn a_failure_of_any_call_of_the_set_up_is_told_and_leaves_nothing() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b) = (machine.port("a"), machine.port("b"));
    let only_devices = Open { contexts: 2, ..Open::default() };
    for (step, (error, text)) in STEPS.iter().flat_map(|step| ERRORS.iter().map(move |error| (step, error))) {
        // While the kernel looks for the peer's address it may answer so for a while.
        let is_tried_again = *error == "ETIMEDOUT" && ["modify_qp/RTR", "modify_qp/RTS"].contains(&step.function);
        let tries = if is_tried_again { 3 } else { step.tries };
        for call in 1..=step.calls {
            let what = format!("{}:{call}:{error}", step.function);
            machine.fail(&failures(step, call, tries, error));
            let refused = Pair::open(&a, &b, &wish()).err().unwrap_or_else(|| panic!("{what} is not noticed"));
            assert_says(&refused.message, step.words);
            assert_says(&refused.message, &[text, "; "]);
            let names_port = ["a: ", "b: "].iter().any(|name| refused.message.starts_with(name));
            let names_both = ["of a (GID 10.0.0.1)", "of b (GID 10.1.0.1)"].iter().any(|n| refused.message.contains(n));
            assert!(names_port || names_both, "{what}: no port in {}", refused.message);
            assert_eq!(refused.fault, Fault::Local, "{what}");
            assert_eq!(machine.stand_in.open(), only_devices, "{what} leaves something open");
            if tries > 1 && call < step.calls {
                // One failure less does no harm.
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
        machine.fail(&format!("fail = reg_mr:1:{error}\n"));
        let refused = Pair::open(&a, &b, &wish()).err().unwrap();
        assert_says(&refused.message, &["b: ", "1 bytes of host memory", "cannot be registered", text]);
        assert_eq!(machine.stand_in.open(), Open { contexts: 2, ..Open::default() });
    }
}

#[test]
fn a_peer_that_cannot_be_reached_is_told_with_what_to_look_at() {
    let machine = Machine::new(&strict(ROCE));
    let (a, b) = (machine.port("a"), machine.port("b"));
    for error in ["ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "ENODEV"] {
        machine.fail(&format!("fail = modify_qp/RTR:*:{error}\n"));
        let refused = Pair::open(&a, &b, &Wish::default()).err().unwrap();
        let words = ["of b (GID 10.1.0.1)", "(GID 10.0.0.1), ", "GID index 1", "cannot be reached", "subnet, cable"];
        assert_says(&refused.message, &words);
    }
    machine.fail("fail = modify_qp/RTR:*:EINVAL\n");
    let refused = Pair::open(&a, &b, &Wish::default()).err().unwrap();
    assert_says(&refused.message, &["check the GID index (NCCL_IB_GID_INDEX, show_gids)"]);
    assert!(!refused.message.contains("cannot be reached"), "{}", refused.message);
}

#[test]
fn on_infiniband_the_local_identifier_is_told() {
    let machine = Machine::new(&format!("fail = modify_qp/RTR:*:EINVAL\n{INFINIBAND}"));
    let refused = machine.try_pair(&Wish::default()).err().unwrap();
    assert_says(&refused.message, &["QP transition failed", "to RTR", "LID 0x7", "both ports are of one network"]);
}

#[test]
fn a_device_that_is_too_small_is_told_with_the_limit_to_look_at() {
    let cases = [
        ("max_qp = 1", "a queue pair for 64 sends and 0 receives cannot be created: Cannot allocate", "max_qp"),
        ("max_qp_wr = 63", "a queue pair for 64 sends and 0 receives cannot be created", "max_qp_wr"),
        ("max_cqe = 191", "a completion queue of 192 entries cannot be created", "max_cqe"),
        ("max_cq = 0", "a completion queue of 192 entries cannot be created: Cannot allocate", "max_cqe"),
        ("max_pd = 0", "no protection domain can be allocated: Cannot allocate", "kernel log"),
    ];
    let machine =
        |limits: &str| Machine::new(&strict(&format!("[device a]\n[port 1]\n[device b]\n{limits}\n[port 1]\n")));
    let wish = Wish { lanes: 2, ..Wish::default() };
    for (limit, what, advice) in cases {
        let refused = machine(limit).try_pair(&wish).err().unwrap_or_else(|| panic!("{limit} is enough"));
        assert_says(&refused.message, &["b: ", what, advice]);
    }
    let enough = "max_qp = 2\nmax_qp_wr = 64\nmax_cqe = 192\nmax_cq = 1\nmax_srq_wr = 64\nmax_pd = 1";
    machine(enough).pair(&wish).exchange();
}
