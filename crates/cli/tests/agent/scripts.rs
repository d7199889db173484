//! The program of the policy `script`.

use crate::host::{Agent, Scratch, until};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A program that does as the file that it is given says.
const PROGRAM: &str = r#"
cd "$1"
echo $$ > pid
while read -r question; do
    printf '%s\n' "$question" > question.new && mv question.new question
    case "$(cat mode)" in
    good) echo '{"rules": ["any -> policy speed"]}' ;;
    slow) sleep 1; echo '{"rules": ["any -> policy speed"]}' ;;
    other) echo '{"rules": ["any -> policy static"]}' ;;
    wrong) echo '{"rules": ["any -> fly"]}' ;;
    garbage) echo nonsense ;;
    bytes) printf '\377\n' ;;
    more) echo '{"rules": ["any -> policy static"]}'; echo '{"rules": ["any -> policy speed"]}' ;;
    orphan) sleep 1000 & echo $! > orphan; exit 3 ;;
    later) (sleep 0.1; echo late) & echo '{"rules": ["any -> policy static"]}' ;;
    die) exit 3 ;;
    hang) exec sleep 1000 ;;
    esac
done
"#;

/// Plays a script that fails in each of these ways, and checks what the agent says about it.
fn fail(name: &str, failures: &[(&str, &str)]) {
    for (word, words) in failures {
        let scratch = Scratch::new(&format!("script-{name}-{word}"));
        let mode = |word: &str| fs::rename(scratch.file("mode.new", word), scratch.path().join("mode")).unwrap();
        mode("good");
        let program = scratch.file("steer.sh", PROGRAM);
        let folder = scratch.path().to_str().unwrap();
        let config = format!("[script]\nprogram = [\"/bin/sh\", \"{program}\", \"{folder}\"]\ntimeout_s = 2\n");
        let agent = Agent::start(&scratch, &config, &[]);
        scratch.until_policy("any -> policy speed");
        let question = fs::read_to_string(scratch.path().join("question")).unwrap();
        let question: Value = serde_json::from_str(&question).unwrap();
        assert!(question["ports"].is_array() && question["jobs"].is_array(), "{question}");
        mode("other");
        scratch.until_policy("any -> policy static");
        mode(word);
        agent.until_said(words);
        let reason = words.split(';').next().unwrap();
        until(&format!("a finding with \"{reason}\""), || agent.finding("script").filter(|text| text.contains(reason)));
        // Without an answer in time, the last rules are over.
        until(&format!("no policy with {word}"), || (!scratch.has_policy()).then_some(()));
        mode("good");
        scratch.until_policy("any -> policy speed");
        until("no finding", || agent.finding("script").is_none().then_some(()));
        let ends = |name: &str| {
            let pid = fs::read_to_string(scratch.path().join(name)).unwrap();
            until("the end of the program", || (!Path::new(&format!("/proc/{}", pid.trim())).exists()).then_some(()));
        };
        if *word == "orphan" {
            ends("orphan");
        }
        agent.terminate();
        ends("pid");
    }
}

#[test]
fn a_script_that_answers_wrong_goes_on_and_steers_once_it_is_right() {
    fail(
        "answers",
        &[
            ("garbage", "answered with something else"),
            ("wrong", "answered with a rule that is wrong: rules: action: \"fly\" is not known"),
            ("bytes", "answered with bytes that are no text in UTF-8"),
        ],
    );
}

#[test]
fn a_script_that_ends_or_hangs_is_started_again() {
    fail(
        "ends",
        &[
            ("die", "ended (exit status: 3); it is started again in"),
            ("orphan", "did not answer within 2 s; it is started again in"),
            ("hang", "did not answer within 2 s; it is started again in"),
        ],
    );
}

#[test]
fn a_line_that_nobody_asked_for_is_no_answer_to_the_next_question() {
    for word in ["more", "later"] {
        let scratch = Scratch::new(&format!("script-{word}"));
        scratch.file("mode", word);
        let program = scratch.file("steer.sh", PROGRAM);
        let folder = scratch.path().to_str().unwrap();
        let config = format!("[script]\nprogram = [\"/bin/sh\", \"{program}\", \"{folder}\"]\ntimeout_s = 100\n");
        let agent = Agent::start(&scratch, &config, &[]);
        agent.until_said("answered with more than a line; allowed: one line of JSON");
        let policy = scratch.until_policy("any -> policy static");
        assert!(!policy.contains("speed"), "{policy}");
        assert_eq!(agent.count_said("answered with something else"), 0, "{}", agent.log());
        agent.terminate();
    }
}

#[test]
fn a_program_that_the_configuration_names_no_more_is_not_waited_for() {
    let scratch = Scratch::new("script-other");
    scratch.file("mode", "hang");
    let program = scratch.file("steer.sh", PROGRAM);
    let config = |mode: &str| {
        let folder = scratch.path().to_str().unwrap();
        format!("[script]\nprogram = [\"/bin/sh\", \"{program}\", \"{folder}\", \"{mode}\"]\ntimeout_s = 3600\n")
    };
    let agent = Agent::start(&scratch, &config("first"), &[]);
    let pid = || fs::read_to_string(scratch.path().join("pid")).ok().filter(|pid| !pid.trim().is_empty());
    let first = until("the program", pid);
    let name = |pid: &str| fs::read_to_string(format!("/proc/{}/comm", pid.trim())).unwrap_or_default();
    until("a program that hangs", || (name(&first) == "sleep\n").then_some(()));
    scratch.file("mode", "good");
    agent.put_config(&config("second"));
    agent.signal(rustix::process::Signal::HUP);
    scratch.until_policy("any -> policy speed");
    until("its end", || (!Path::new(&format!("/proc/{}", first.trim())).exists()).then_some(()));
    assert_eq!(agent.count_said("is started again"), 0, "{}", agent.log());
    agent.terminate();
}

#[test]
fn a_script_that_cannot_be_started_is_named() {
    let scratch = Scratch::new("no-script");
    let agent = Agent::start(&scratch, "[script]\nprogram = [\"/nowhere/steer\"]\n", &[]);
    assert!(agent.until_finding("script").contains("\"/nowhere/steer\" cannot be started"));
    agent.until_said("is started again in 2 s");
    agent.terminate();
}

#[test]
fn the_rules_of_a_script_outlive_a_restart_of_the_agent() {
    let scratch = Scratch::new("script-again");
    scratch.file("mode", "slow");
    let program = scratch.file("steer.sh", PROGRAM);
    let folder = scratch.path().to_str().unwrap();
    let script = format!("[script]\nprogram = [\"/bin/sh\", \"{program}\", \"{folder}\"]\ntimeout_s = 100\n");
    let config = format!("ttl_s = 300\n{script}");
    let first = Agent::start(&scratch, &config, &[]);
    scratch.until_policy("any -> policy speed");
    first.kill();
    let second = Agent::spawn(&scratch, &mut Agent::command(&scratch, &config, &[]));
    until("a policy of the second agent", || {
        // It is replaced by rename, and never missing.
        let policy = fs::read_to_string(scratch.run_dir().join("policy")).unwrap();
        assert!(policy.contains("any -> policy speed"), "{policy}");
        policy.contains(&format!("process {} wrote this", second.id())).then_some(())
    });
    second.terminate();
}

/// Checks that a program that the agent starts for the first time is started again soon.
fn check_second(agent: &Agent) {
    agent.put_config("[script]\nprogram = [\"/nowhere/second\"]\n");
    agent.signal(rustix::process::Signal::HUP);
    agent.until_said("\"/nowhere/second\" cannot be started");
    let log = agent.log();
    assert!(log.lines().any(|line| line.contains("/nowhere/second") && line.contains("again in 1 s")), "{log}");
}

#[test]
fn another_program_is_started_again_soon() {
    let scratch = Scratch::new("script-soon");
    let agent = Agent::start(&scratch, "[script]\nprogram = [\"/nowhere/first\"]\n", &[]);
    agent.until_said("is started again in 2 s");
    check_second(&agent);
    agent.terminate();
}

#[test]
fn a_program_that_ran_well_is_followed_by_one_that_is_started_again_soon() {
    let scratch = Scratch::new("script-after");
    let good = "while read -r question; do echo '{\"rules\": [\"any -> policy speed\"]}'; done";
    let program = scratch.path().join("steer.sh");
    let agent = Agent::start(&scratch, &format!("[script]\nprogram = [\"/bin/sh\", {program:?}]\n"), &[]);
    agent.until_said("is started again in 2 s");
    scratch.file("steer.sh", good);
    scratch.until_policy("any -> policy speed");
    check_second(&agent);
    agent.terminate();
}

#[test]
fn an_answer_of_a_program_has_up_to_a_mebibyte() {
    let scratch = Scratch::new("script-long");
    let program = scratch.file("steer.sh", "read -r question; head -c 2000000 /dev/zero | tr '\\0' x; sleep 1000");
    let agent = Agent::start(&scratch, &format!("[script]\nprogram = [\"/bin/sh\", \"{program}\"]\n"), &[]);
    agent.until_said("answered with more than 1048576 bytes; allowed: one line of JSON");
    agent.terminate();
}
