//! Orders to real agents.

use crate::host::{Scratch, can_mount, error, said, until};
use railweave_telemetry::{Folder, Policy, RailState};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

/// An agent, which is killed at the end.
struct Agent(Child);

impl Agent {
    /// Starts an agent for the run dir, and waits until it takes orders.
    fn start(scratch: &Scratch, more: &str) -> Self {
        let agent = Self::spawn(scratch, more);
        until("an agent that takes orders", || {
            let by = scratch.json(&["show"])["by"].clone();
            (by["kind"] == "agent" && steers(scratch)).then_some(())
        });
        agent
    }

    fn spawn(scratch: &Scratch, more: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.arg("agent").arg("--run-dir").arg(scratch.run_dir().path());
        Self::run(scratch, command, more)
    }

    /// Starts a command that becomes an agent.
    fn run(scratch: &Scratch, mut command: Command, more: &str) -> Self {
        let config = scratch.path().join("agent.toml");
        fs::write(&config, format!("every_ms = 200\n{more}")).unwrap();
        let log = File::create(scratch.path().join("agent.log")).unwrap();
        command.args(["--listen", "127.0.0.1:0", "--config"]).arg(config);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns true if the agent has looked: before that, it refuses orders.
fn steers(scratch: &Scratch) -> bool {
    scratch.run_dir().path().join("agent.lock").exists()
        && scratch.policy(&["clear", "none"]).status.success()
        && scratch.policy(&["drain", "none", "--dry-run"]).status.success()
}

fn drained(scratch: &Scratch) -> Vec<(String, String)> {
    let json = scratch.json(&["show"]);
    let words = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    json["drains"].as_array().unwrap().iter().map(|it| (words(&it["port"]), words(&it["phase"]))).collect()
}

#[test]
fn an_agent_drains_a_port_and_says_when_it_is_empty() {
    let scratch = Scratch::new("agent-drain");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Drained);
    let _agent = Agent::start(&scratch, "");
    let json = scratch.json(&["drain", "eth1", "--wait=50s"]);
    assert_eq!((&json["by"]["kind"], &json["orders"][0]["changed"]), (&json!("agent"), &json!(true)), "{json}");
    assert_eq!((&json["waited"][0]["empty"], &json["waited"][0]["phase"]), (&json!(true), &json!("empty")));
    assert!(scratch.file().unwrap().contains("# drained eth1\n"));
    assert_eq!(drained(&scratch), [("eth1".to_owned(), "empty".to_owned())]);
    let text = scratch.said(&["show"]);
    for words in
        ["steered by the agent at \"", ", version 0.", "of railweave agent 0.", "drained: eth1 (operator), empty"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json = scratch.json(&["drain", "eth1", "eth1@10.0.1.7", "--wait=50s"]);
    assert_eq!((&json["waited"][0]["empty"], &json["waited"][1]["empty"]), (&json!(true), &json!(true)), "{json}");
    scratch.said(&["clear", "eth1@10.0.1.7"]);
    assert!(scratch.said(&["drain", "eth1"]).contains("nothing had to change"));
    let text = said(&scratch.policy(&["drain", "eth77", "--wait=300ms"]), 3);
    assert!(text.contains("warning: ") && text.contains("port eth77 is still in use after "), "{text}");
    assert!(scratch.said(&["clear", "eth1", "eth77"]).contains("port eth1 is given back, by the agent at"));
    until("no policy", || scratch.file().is_none().then_some(()));
    assert!(scratch.said(&["clear", "eth1"]).contains("nobody has ordered a drain of port eth1"));
    // A name of the port, and one that stands for it.
    scratch.said(&["drain", "eth1", "eth1@10.0.1.7"]);
    let json = scratch.json(&["drain", "eth1@10.0.1.7"]);
    assert_eq!(json["orders"][0]["changed"], false, "{json}");
    scratch.said(&["clear", "eth1@10.0.1.7"]);
    assert!(
        scratch.said(&["clear", "eth1@10.0.1.7"]).contains("stays drained, by the name of its adapter or interface")
    );
    assert_eq!(scratch.json(&["drain", "eth1@10.0.1.7"])["orders"][0]["changed"], true);
    let json = scratch.json(&["clear", "--all"]);
    assert_eq!(json["orders"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(drained(&scratch), []);
}

#[test]
fn an_agent_takes_rules_in_the_order_of_the_command() {
    let scratch = Scratch::new("agent-rules");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    let _agent = Agent::start(&scratch, "drain = [\"eth5\"]\n");
    let text = scratch.said(&["set", "peer=node8 -> weights 80,20", "any -> policy adaptive", "--dry-run"]);
    assert!(text.contains("own settings (share 20 % now) -> share 20 %"), "{text}");
    assert!(text.contains("the agent was asked about each order alone"), "{text}");
    assert_eq!(scratch.json(&["show"])["rules"], json!([]));
    scratch.said(&["set", "peer=node8 rank=3 -> weights 80,20", "any -> policy adaptive"]);
    let matchers = |json: Value| -> Vec<String> {
        json["rules"].as_array().unwrap().iter().map(|it| it["matchers"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(matchers(scratch.json(&["show"])), ["peer=node8 rank=3", "any"]);
    let json = scratch.json(&["set", "rank=3 peer=node8 -> weights 80,20"]);
    assert_eq!(json["orders"][0]["changed"], false, "{json}");
    for last in ["any -> policy adaptive", "any -> policy speed", "any -> policy adaptive"] {
        let is_same = scratch.json(&["show"])["rules"][1]["actions"] == last.trim_start_matches("any -> ");
        let json = scratch.json(&["set", "peer=node8 rank=3 -> weights 80,20", last]);
        let changed = json["orders"].as_array().unwrap().iter().map(|order| order["changed"] == true);
        assert_eq!(changed.collect::<Vec<_>>(), [!is_same; 2], "{json}");
    }
    let rail = until("the rules in the file", || {
        let json = scratch.json(&["show"]);
        (json["rails"][1]["before"]["by"] == "weights").then(|| json["rails"][1].clone())
    });
    assert_eq!((&rail["port"], &rail["before"]["share"]), (&json!("eth1@10.0.1.7"), &json!(0.2)));
    let json = scratch.json(&["drain", "eth1", "--dry-run"]);
    assert_eq!(json["orders"][0]["rails"][1]["after"]["by"], "drain", "{json}");
    assert!(scratch.said(&["clear", "rank=3 peer=node8"]).contains("is cleared, by the agent"));
    let text = scratch.said(&["clear", "eth5"]);
    assert!(text.contains("port eth5 stays drained, by no order of an operator (configuration)"), "{text}");
    let error = scratch.error(&["drain", "eth1", "--for", "1h"]);
    assert!(error.contains("keeps orders until they are cleared"), "{error}");
    scratch.said(&["clear", "--all"]);
    assert_eq!(matchers(scratch.json(&["show"])), [""; 0]);
    let history = scratch.said(&["history"]);
    assert!(history.contains("ordered: ") && history.contains("80,20"), "{history}");
}

#[test]
fn an_agent_that_starts_takes_over_orders_without_one() {
    let scratch = Scratch::new("agent-inherits");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    scratch.said(&["drain", "eth1"]);
    scratch.said(&["set", "peer=node8 -> weights 80,20"]);
    let agent = Agent::start(&scratch, "ttl_s = 3\n");
    until("the agent's own file", || scratch.file().filter(|text| text.contains("\n# railweave agent ")));
    assert_eq!(drained(&scratch)[0].0, "eth1");
    assert_eq!(scratch.json(&["show"])["rules"][0]["matchers"], "peer=node8");
    scratch.said(&["drain", "eth2"]);
    until("the other drain", || scratch.file().filter(|text| text.contains("# drained eth2\n")));
    drop(agent);
    // Its file holds for a while, and has what the next one needs.
    let text = scratch.said(&["clear", "eth1"]);
    assert!(text.contains("by the policy file") && text.contains("of an agent that is gone"), "{text}");
    let file = scratch.file().unwrap();
    assert!(file.contains("# drained eth2\n") && file.contains("ttl forever") && !file.contains("eth1"), "{file}");
    assert!(file.contains("# ordered peer=node8 -> weights 80,20\n"), "{file}");
}

#[test]
fn orders_that_an_agent_takes_over_lose_their_end_which_its_log_says() {
    for (name, ttl, count) in [("agent-for", &["--for", "1h"][..], 1), ("agent-forever", &[], 0)] {
        let scratch = Scratch::new(name);
        scratch.said(&[&["drain", "eth1"], ttl].concat());
        let _agent = Agent::start(&scratch, "");
        until("the drain", || (!drained(&scratch).is_empty()).then_some(()));
        let log = fs::read_to_string(scratch.path().join("agent.log")).unwrap();
        assert_eq!(log.matches("were to end with --for, and hold until they are cleared").count(), count, "{log}");
    }
}

#[test]
fn an_agent_beside_a_file_of_somebody_else_takes_no_orders() {
    let scratch = Scratch::new("agent-foreign");
    scratch.write("railweave-policy 1\nttl forever\nany -> policy static\n");
    let _agent = Agent::spawn(&scratch, "");
    let log = || fs::read_to_string(scratch.path().join("agent.log")).unwrap();
    let error = until("the agent's reason", || {
        let output = scratch.policy(&["drain", "eth1"]);
        let error = String::from_utf8(output.stderr).unwrap();
        let is_kept_out = scratch.json(&["show"])["by"]["kind"] == "file" && log().contains("by somebody");
        (is_kept_out && output.status.code() == Some(1)).then_some(error)
    });
    assert!(error.contains("was written by somebody else") && error.matches("; try ").count() == 1, "{error}");
    assert!(scratch.file().unwrap().contains("static"));
    // The file goes by the hand of its owner, and the agent steers.
    fs::remove_file(scratch.run_dir().policy_file()).unwrap();
    until("an agent that steers", || (scratch.json(&["show"])["by"]["kind"] == "agent").then_some(()));
    assert_eq!(scratch.json(&["drain", "eth1"])["by"]["kind"], "agent");
}

#[test]
fn the_agent_of_root_takes_orders_for_the_folder_of_a_user() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("agent-root");
    let folder = "/dev/shm/railweave-65534";
    // With a folder of its own in the place of that of this host's users.
    let script = format!(
        "mount -t tmpfs -o mode=1777 none /dev/shm && mkdir -m 700 {folder} && chown 65534 {folder} && exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_railweave"), "agent"]);
    command.env_remove("RAILWEAVE_RUN_DIR");
    let agent = Agent::run(&scratch, command, "");
    let policy = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &agent.0.id().to_string(), env!("CARGO_BIN_EXE_railweave"), "policy"]);
        command.args(words).args(["--run-dir", folder]).output().unwrap()
    };
    let shown = until("the agent of root", || {
        let text = String::from_utf8(policy(&["show"]).stdout).unwrap();
        text.contains("steered by the agent at \"/dev/shm/railweave-0/agent.sock\"").then_some(text)
    });
    assert!(shown.contains(&format!("run dir: \"{folder}\"")), "{shown}");
    until("an order", || policy(&["drain", "eth1"]).status.success().then_some(()));
    until("the order in the file", || said(&policy(&["show"]), 0).contains("it is in force (rules: 1)").then_some(()));
    let text = said(&policy(&["drain", "eth2", "--dry-run", "--json"]), 0);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["by"]["socket"], "/dev/shm/railweave-0/agent.sock", "{json}");
    // One that was given there without an agent.
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--target", &agent.0.id().to_string(), "sh", "-c"]);
    command.arg(format!("printf '1.000\\tme\\tdrain eth8\\n' > {folder}/history"));
    assert!(command.status().unwrap().success());
    until("both orders", || {
        let history = said(&policy(&["history"]), 0);
        (history.contains("drain eth1") && history.contains("me ordered: drain eth8")).then_some(())
    });
}

#[test]
fn an_agent_that_only_watches_takes_no_orders() {
    let scratch = Scratch::new("agent-watches");
    let folder = Folder::open(scratch.made().path()).unwrap();
    let lock = folder.lock().unwrap().unwrap();
    let agent = Agent::spawn(&scratch, "");
    let error = until("the agent's reason", || {
        let output = scratch.policy(&["drain", "eth1"]);
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code() == Some(1) && error.contains(" carries out no orders in ")).then_some(error)
    });
    assert!(
        error.contains("this agent only watches there") && error.contains("; try `railweave policy` as root"),
        "{error}"
    );
    drop(lock);
    until("an agent that steers", || scratch.policy(&["drain", "eth1"]).status.success().then_some(()));
    drop(agent);
}

#[test]
fn an_order_that_ended_well_survives_an_agent_that_is_killed() {
    let scratch = Scratch::new("agent-killed");
    for port in ["eth1", "eth2", "eth3", "eth4", "eth5"] {
        let agent = Agent::start(&scratch, "");
        scratch.said(&["drain", port]);
        // It is killed at once.
        drop(agent);
        let file = scratch.file().unwrap_or_default();
        assert!(file.contains(&format!("# drained {port}\n")), "{port}: {file}");
    }
    assert_eq!(scratch.json(&["show"])["drains"].as_array().map(Vec::len), Some(5));
}

#[test]
fn an_agent_that_cannot_write_says_so_and_takes_orders_back() {
    let scratch = Scratch::new("agent-full");
    let _agent = Agent::start(&scratch, "");
    // The new file cannot be made, as on a full disk.
    let unfinished = scratch.run_dir().path().join("policy.new");
    fs::create_dir(&unfinished).unwrap();
    let text = scratch.error(&["drain", "eth1"]);
    assert!(text.contains(" has the order, and cannot carry it out yet: \"") && text.contains("policy\""), "{text}");
    let json: Value = serde_json::from_str(&said(&scratch.policy(&["drain", "eth2", "--json", "--wait"]), 1)).unwrap();
    assert_eq!((&json["by"]["kind"], &json["orders"][0]["changed"]), (&json!("agent"), &json!(true)), "{json}");
    assert!(json["error"].as_str().is_some_and(|error| error.contains("each look retries it")), "{json}");
    assert_eq!(json["waited"], json!([]));
    assert_eq!(drained(&scratch).len(), 2);
    let json = scratch.json(&["show"]);
    assert_eq!(json["by"]["kind"], "agent", "{json}");
    assert!(json["trouble"].as_str().is_some_and(|reason| reason.contains("jobs follow the last one")), "{json}");
    // The same once more changes nothing for the agent, and is as little in the file.
    assert!(scratch.error(&["drain", "eth1"]).contains("cannot carry it out yet"));
    // One more is left, which has no room either.
    scratch.error(&["clear", "eth1"]);
    scratch.said(&["clear", "eth2"]);
    assert_eq!(drained(&scratch), []);
    scratch.error(&["drain", "eth3"]);
    fs::remove_dir(&unfinished).unwrap();
    until("the order in the file", || scratch.file().filter(|text| text.contains("# drained eth3\n")));
    assert!(scratch.said(&["clear", "--all"]).contains("port eth3 is given back"));
}

#[test]
fn an_order_at_the_end_of_its_agent_is_carried_out_or_refused() {
    let scratch = Scratch::new("agent-ends");
    let mut given = Vec::new();
    for number in 0..8 {
        let mut agent = Agent::start(&scratch, "");
        let port = format!("eth{number}");
        let order = scratch.command(&["drain", &port]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Between nothing and as long as the order takes.
        std::thread::sleep(std::time::Duration::from_millis(5 * number));
        assert!(Command::new("kill").args(["-TERM", &agent.0.id().to_string()]).status().unwrap().success());
        assert!(agent.0.wait().unwrap().success());
        let output = order.wait_with_output().unwrap();
        if output.status.success() {
            given.push(port);
        } else {
            error(&output);
        }
        let file = scratch.file().unwrap_or_default();
        assert!(given.iter().all(|port| file.contains(&format!("# drained {port}\n"))), "{given:?}: {file}");
    }
}

#[test]
fn an_order_that_a_foreign_file_keeps_out_fails() {
    let scratch = Scratch::new("agent-kept-out");
    for number in 0..4 {
        let _agent = Agent::start(&scratch, "");
        let port = format!("eth{number}");
        // No look has seen it yet, or one has.
        fs::write(scratch.path().join("new"), "railweave-policy 1\nttl forever\nany -> policy static\n").unwrap();
        fs::rename(scratch.path().join("new"), scratch.run_dir().policy_file()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(60 * number));
        let error = scratch.error(&["drain", &port]);
        assert!(error.contains("was written by somebody else"), "{error}");
        assert!(scratch.error(&["drain", &port]).contains("was written by somebody else"));
        fs::remove_file(scratch.run_dir().policy_file()).unwrap();
    }
}

#[test]
fn an_order_that_another_one_has_given_is_waited_for() {
    let scratch = Scratch::new("agent-twice");
    let _agent = Agent::start(&scratch, "");
    for port in ["eth1", "eth2", "eth3"] {
        let drain = || scratch.command(&["drain", port]).stdout(Stdio::null()).spawn().unwrap();
        for mut order in [drain(), drain(), drain()] {
            assert!(order.wait().unwrap().success());
            assert!(scratch.file().is_some_and(|file| file.contains(&format!("# drained {port}\n"))), "{port}");
        }
    }
}

#[test]
fn an_order_that_is_in_the_file_does_not_hide_one_that_is_not() {
    let scratch = Scratch::new("agent-hides");
    let _agent = Agent::start(&scratch, "");
    scratch.said(&["drain", "eth0"]);
    scratch.said(&["set", "peer=a -> policy speed", "peer=b -> policy speed"]);
    fs::create_dir(scratch.run_dir().path().join("policy.new")).unwrap();
    for _ in 0..2 {
        assert!(scratch.error(&["drain", "eth1", "eth0"]).contains("cannot carry it out yet"));
        assert!(scratch.error(&["clear", "peer=a", "peer=nobody"]).contains("cannot carry it out yet"));
    }
    fs::remove_dir(scratch.run_dir().path().join("policy.new")).unwrap();
    scratch.said(&["set", "peer=a -> policy speed", "peer=b -> policy speed"]);
    fs::create_dir(scratch.run_dir().path().join("policy.new")).unwrap();
    for _ in 0..2 {
        // It is in the file, and in the wrong place.
        assert!(scratch.error(&["set", "peer=b -> policy speed"]).contains("cannot carry it out yet"));
    }
    scratch.said(&["clear", "--all"]);
    assert!(scratch.file().is_none());
}
