//! Orders without an agent.

use crate::host::{Scratch, error, now_s, said, until};
use railweave_telemetry::{Policy, RailState};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

#[test]
fn a_drain_is_in_the_file_until_it_is_cleared() {
    let scratch = Scratch::new("drain");
    let text = scratch.said(&["show"]);
    assert!(text.contains("steered by nobody: jobs follow their own settings"), "{text}");
    assert!(!scratch.run_dir().path().exists(), "showing makes nothing");
    let text = scratch.said(&["drain", "eth1"]);
    assert!(text.contains("port eth1 is to be empty, by the policy file \""), "{text}");
    let file = scratch.file().unwrap();
    assert!(
        file.contains("\nttl forever\n") && file.ends_with("rail=eth1,eth1@*,eth1:*,eth1_dma,eth1_dma:* -> drain\n")
    );
    assert_eq!(fs::metadata(scratch.run_dir().path()).unwrap().permissions().mode() & 0o777, 0o700);
    let json = scratch.json(&["drain", "eth1"]);
    assert_eq!((&json["orders"][0]["order"], &json["orders"][0]["changed"]), (&json!("drain"), &json!(false)));
    assert_eq!(scratch.file().unwrap(), file, "it is not written again");
    assert!(scratch.said(&["drain", "eth1"]).contains("drain eth1: nothing had to change"));
    let text = scratch.said(&["show"]);
    for words in
        ["steered by its policy file alone", "of railweave policy ", "until it is removed: it is in force (rules: 1)"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("drained: eth1 (operator)\n"), "{text}");
    assert!(scratch.said(&["clear", "eth1"]).contains("port eth1 is given back, by the policy file"));
    assert_eq!(scratch.file(), None);
    let text = scratch.said(&["clear", "eth1", "peer=node3"]);
    assert!(
        text.contains("give back eth1: nothing had to change") && text.contains("clear peer=node3: nothing"),
        "{text}"
    );
    assert!(scratch.said(&["clear", "--all"]).contains("nothing is ordered"));
    assert_eq!(scratch.file(), None);
}

#[test]
fn everything_is_cleared_at_once() {
    let scratch = Scratch::new("all");
    scratch.said(&["drain", "eth1", "eth2"]);
    scratch.said(&["set", "peer=node3 -> weights 80,20"]);
    scratch.said(&["clear", "eth2"]);
    assert!(scratch.file().unwrap().contains("peer=node3 -> weights 80,20\n"));
    let json = scratch.json(&["clear", "--all"]);
    assert_eq!(json["orders"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(scratch.file(), None);
}

#[test]
fn a_dry_run_shows_what_the_order_then_does() {
    let scratch = Scratch::new("dry-run");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    scratch.said(&["set", "peer=node8 -> weights 80,20"]);
    let before = scratch.file();
    let text = scratch.said(&["drain", "eth1", "--dry-run"]);
    for words in ["drain eth1 would change:", "share 80 % -> all", "share 20 % -> drained", "1: eth1@10.0.1.7"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("1 connections of job 4711 go on using port eth1 (send, node9, by eth0+eth1)"), "{text}");
    let json = scratch.json(&["drain", "eth1", "--dry-run"]);
    let order = &json["orders"][0];
    assert_eq!(
        (&json["dry_run"], &order["port"], &order["kept_connections"]),
        (&json!(true), &json!("eth1"), &json!(1))
    );
    let rails = order["rails"].as_array().unwrap();
    assert_eq!(rails.len(), 2, "rails without a change are left out: {json}");
    assert_eq!(rails[1]["before"], json!({"by": "weights", "share": 0.2, "policy": null}));
    assert_eq!(rails[1]["after"], json!({"by": "drain", "share": 0.0, "policy": null}));
    assert_eq!(scratch.file(), before);
    assert!(!scratch.run_dir().path().join("agent.lock").exists() || before.is_some());
    scratch.said(&["drain", "eth1"]);
    let shown = scratch.json(&["show"]);
    assert_eq!(shown["rails"][1]["before"], rails[1]["after"], "{shown}");
    let text = scratch.said(&["clear", "eth1", "peer=node8", "--dry-run"]);
    assert!(text.contains("drained -> share 20 %"), "{text}");
    assert!(text.contains("share 20 % -> own settings"), "the second after the first: {text}");
}

#[test]
fn a_dry_run_without_a_folder_makes_none() {
    let scratch = Scratch::new("dry-none");
    let text = scratch.said(&["drain", "eth1", "--dry-run"]);
    assert!(text.contains("no process of Railweave has a file here"), "{text}");
    assert!(!scratch.run_dir().path().exists());
}

#[test]
fn processes_that_follow_no_orders_are_named() {
    let scratch = Scratch::new("unsteered");
    let _process = scratch.publish(1, Policy::Static, RailState::Up);
    for words in [&["show"][..], &["drain", "eth1", "--dry-run"]] {
        let text = scratch.said(words);
        assert!(text.contains("on node7 does not follow orders with 2 connections"), "{text}");
        assert_eq!(scratch.json(words)["unsteered"][0]["policy"], "static");
    }
    scratch.said(&["set", "any -> policy static"]);
    assert_eq!(scratch.json(&["show"])["unsteered"], json!([]));
}

#[test]
fn names_that_nothing_has_are_ordered_with_a_warning() {
    let scratch = Scratch::new("unknown");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    let text = scratch.said(&["drain", "eth77"]);
    assert!(text.contains("warning: no rail, device or port of this host has the name eth77"), "{text}");
    assert!(scratch.file().unwrap().contains("# drained eth77\n"));
    assert_eq!(scratch.json(&["drain", "eth1"])["warnings"], json!([]));
    let json = scratch.json(&["set", "device=eth0+eth1 -> policy speed", "device=ib* -> policy speed"]);
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
fn orders_end_with_the_time_that_they_were_given() {
    let scratch = Scratch::new("for");
    let text = scratch.said(&["drain", "eth1", "--for", "1s"]);
    assert!(text.contains("all orders of the file end in 1 s"), "{text}");
    assert!(scratch.file().unwrap().contains("\nttl 1\n"));
    until("the end of the orders", || scratch.said(&["show"]).contains("it is stale").then_some(()));
    assert_eq!(scratch.json(&["show"])["drains"], json!([]));
    scratch.said(&["drain", "eth2"]);
    let file = scratch.file().unwrap();
    assert!(file.contains("# drained eth2\n") && !file.contains("eth1"), "{file}");
    for words in [&["drain", "eth2", "--for", "2h", "--dry-run"], &["drain", "eth2", "--for", "2h"][..]] {
        let order = scratch.json(words)["orders"][0].clone();
        assert_eq!(order["changed"], true, "{order}");
        assert_eq!(order["notes"], json!(["port eth2 was drained already", "all orders of the file end in 7200 s"]));
    }
    assert_eq!(scratch.json(&["clear", "eth9"])["orders"][0]["changed"], false);
    assert!(scratch.file().unwrap().contains("\nttl 7200\n"), "the same order with another end");
    let text = scratch.said(&["drain", "eth3"]);
    assert!(text.contains("orders that were to end with --for hold until they are cleared"), "{text}");
    for wrong in ["0s", "25h", "soon"] {
        said(&scratch.policy(&["drain", "eth1", "--for", wrong]), 2);
    }
}

#[test]
fn orders_of_a_clock_that_was_set_back_stand() {
    let scratch = Scratch::new("set-back");
    scratch.said(&["drain", "eth1", "eth2"]);
    let file = scratch.file().unwrap();
    assert!(!file.contains("\nwritten "), "jobs would ignore it: {file}");
    let end = format!("written {}\nttl 86400\n", now_s() + 5000);
    let from = file.find("# written ").unwrap();
    let to = file.find("ttl forever\n").unwrap() + "ttl forever\n".len();
    scratch.write(&format!("{}{end}{}", &file[..from], &file[to..]));
    scratch.said(&["clear", "eth1"]);
    let file = scratch.file().unwrap();
    assert!(file.contains("# drained eth2\n") && file.contains("\nttl 86400\n") && !file.contains("eth1"), "{file}");
}

#[test]
fn a_file_of_somebody_else_stays_while_it_may_hold() {
    let scratch = Scratch::new("foreign");
    let text = "railweave-policy 1\nttl forever\nany -> policy static\n";
    for (text, shown) in
        [(text, "of somebody else"), ("rubbish \u{1b}[31m", "it orders nothing, and jobs keep the last")]
    {
        scratch.write(text);
        for words in [&["drain", "eth1"][..], &["drain", "eth1", "--dry-run"], &["clear", "--all"]] {
            let error = scratch.error(words);
            assert!(error.contains("was written by somebody else") && error.contains("; try removing it"), "{error}");
        }
        assert_eq!(scratch.file().as_deref(), Some(text));
        let said = scratch.said(&["show"]);
        assert!(said.contains(shown) && !said.contains('\u{1b}'), "{said}");
    }
    scratch.write(&format!("railweave-policy 1\nwritten {}\nttl 5\nany -> policy static\n", now_s() - 100));
    assert_eq!(scratch.json(&["show"])["policy_file"]["state"], "stale");
    scratch.said(&["drain", "eth1"]);
    assert!(!scratch.file().unwrap().contains("static"));
}

#[test]
fn the_orders_of_an_agent_that_is_gone_stay_and_its_policies_end() {
    let scratch = Scratch::new("gone");
    let text = format!(
        "railweave-policy 1\n# railweave agent 0.1.0 on here, process 1 wrote this\n# drained eth1\n\
         # ordered peer=node3 -> weights 80,20\n# sick eth7 is ill\nwritten {}\nttl 30\n\
         job=a peer=b device=c -> weights 1,2\nrail=eth1 -> drain\n",
        now_s() - 100
    );
    scratch.write(&text);
    assert_eq!(scratch.json(&["show"])["drains"][0]["port"], "eth1");
    assert!(scratch.said(&["show"]).contains("these hold again with the next order, or once an agent starts"));
    let said = scratch.said(&["clear", "eth9"]);
    assert!(said.contains("nothing had to change") && scratch.file() == Some(text), "{said}");
    let said = scratch.said(&["drain", "eth2"]);
    assert!(said.contains("its operator's orders stay, and those of its policies end"), "{said}");
    let file = scratch.file().unwrap();
    for words in ["# drained eth1\n", "# drained eth2\n", "# ordered peer=node3 -> weights 80,20\n", "ttl forever\n"] {
        assert!(file.contains(words), "{words}: {file}");
    }
    assert!(!file.contains("job=a") && !file.contains("eth7"), "nobody would see that it is well: {file}");
    // While the file still holds, it is kept empty, and can be given back.
    let text = format!(
        "railweave-policy 1\n# railweave agent 0.1.0 on here, process 1 wrote this\n# sick eth7 is ill\nwritten {}\n\
         ttl 3600\nrail=eth7 -> drain\n",
        now_s()
    );
    scratch.write(&text);
    assert_eq!(scratch.json(&["show"])["drains"][0]["reasons"], json!(["sick"]));
    assert_eq!(scratch.json(&["clear", "eth7"])["orders"][0]["changed"], json!(true));
    assert!(scratch.file().is_none_or(|file| !file.contains("eth7")));
    // Those that the command itself drains are not said to be in use again. One that it gives back after another order
    // is: that order has freed it.
    let in_use = "sick ports are in use again (eth7)";
    for (words, is_said) in [
        (&["drain", "eth2"][..], true),
        (&["drain", "eth7"], false),
        (&["drain", "eth2", "eth7"], false),
        (&["set", "any -> policy speed"], true),
    ] {
        scratch.write(&text);
        assert_eq!(scratch.said(words).contains(in_use), is_said, "{words:?}");
    }
    scratch.write(&text.replace("# sick", "# drained eth2\n# sick"));
    assert!(scratch.said(&["clear", "eth2", "eth7"]).contains(in_use));
    scratch.write(&text);
    let dry = scratch.said(&["clear", "--all", "--dry-run"]);
    let said = scratch.said(&["clear", "--all"]);
    assert!(said.contains("port eth7 is given back") && !said.contains("in use again"), "{said}");
    assert!(!said.contains("orders stay") && !dry.contains("orders stay"), "{said}{dry}");
    assert!(scratch.file().is_none());
    // Any order that changes the file ends it: nobody would see that it is well.
    scratch.write(&text);
    let json = scratch.json(&["drain", "eth2", "--dry-run"]);
    assert!(json["orders"][0]["changed"] == true && scratch.file().as_deref() == Some(&*text), "{json}");
    scratch.said(&["drain", "eth2"]);
    let file = scratch.file().unwrap();
    assert!(file.contains("# drained eth2\n") && !file.contains("eth7"), "{file}");
}

#[test]
fn orders_that_come_at_once_are_all_carried_out() {
    let scratch = Scratch::new("at-once");
    scratch.made();
    let ports = ["eth1", "eth2", "eth3", "eth4"];
    let spawn = |port: &&str| scratch.command(&["drain", port]).stdout(Stdio::null()).spawn().unwrap();
    let all: Vec<_> = ports.iter().map(spawn).collect();
    for mut child in all {
        assert!(child.wait().unwrap().success());
    }
    let file = scratch.file().unwrap();
    assert!(ports.iter().all(|port| file.contains(&format!("# drained {port}\n"))), "{file}");
}

#[test]
fn a_port_is_waited_for_until_nothing_uses_it() {
    let scratch = Scratch::new("wait");
    let process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    let output = scratch.policy(&["drain", "eth1", "--wait=1s"]);
    let text = said(&output, 3);
    assert!(text.contains("port eth1 is still in use after ") && text.contains(": 2 rails use it, with "), "{text}");
    drop(process);
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Drained);
    let json = scratch.json(&["drain", "eth1", "--wait"]);
    assert_eq!((&json["waited"][0]["port"], &json["waited"][0]["empty"]), (&json!("eth1"), &json!(true)));
    assert!(json["waited"][0]["seconds"].as_f64().unwrap() >= 1.5, "{json}");
    let text = said(&scratch.policy(&["drain", "eth1", "eth0", "--wait=2s"]), 3);
    assert!(text.contains("port eth1 is empty, after ") && text.contains("port eth0 is still in use after "), "{text}");
    fs::write(scratch.run_dir().file_of([2; 16]), "rubbish").unwrap();
    let text = said(&scratch.policy(&["drain", "eth1", "--wait=2s"]), 3);
    assert!(text.contains("1 rails or files do not say which ports they use"), "{text}");
    said(&scratch.policy(&["drain", "eth1", "--wait", "--dry-run"]), 2);
}

#[test]
fn a_wait_that_fails_leaves_the_report_of_the_orders() {
    let scratch = Scratch::new("wait-fails");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    let mut command = scratch.command(&["drain", "eth1", "--json", "--wait=10s"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the order", || scratch.file());
    fs::set_permissions(scratch.run_dir().path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = error(&output);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["orders"][0]["changed"], &json["waited"]), (&json!(true), &json!([])), "{json}");
    let reason = json["error"].as_str().unwrap();
    assert!(reason.contains("may be written by others") && error.contains(reason), "{error}{json}");
}

#[test]
fn the_history_has_orders_and_what_jobs_took_up() {
    let scratch = Scratch::new("history");
    assert!(scratch.said(&["history"]).contains("no order was given"));
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    scratch.said(&["drain", "eth1"]);
    scratch.said(&["drain", "eth1"]);
    scratch.said(&["set", "peer=node3 -> weights 80,20"]);
    scratch.said(&["clear", "eth1"]);
    let json = scratch.json(&["history"]);
    let texts: Vec<_> = json["entries"].as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect();
    let orders = ["drain eth1", "set peer=node3 -> weights 80,20", "give back eth1"];
    assert_eq!(texts[1..], orders, "{json}");
    assert_eq!((&json["entries"][0]["kind"], &json["entries"][1]["kind"]), (&json!("event"), &json!("order")));
    let text = scratch.said(&["history"]);
    assert!(
        text.starts_with("1970-01-01 00:00:01 UTC  node7 pid ") && text.contains(" rank 3 took up: a policy"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
    assert_eq!(scratch.said(&["history", "-n", "2"]).lines().count(), 2);
}

#[test]
fn folders_that_cannot_be_used_are_named() {
    let scratch = Scratch::new("folders");
    let path = scratch.run_dir().path().to_owned();
    fs::write(&path, "").unwrap();
    let all = [&["show"][..], &["drain", "eth1"], &["history"]];
    all.iter().for_each(|words| assert!(scratch.error(words).contains("is not a folder")));
    let json: serde_json::Value =
        serde_json::from_str(&said(&scratch.policy(&["drain", "eth1", "--json"]), 1)).unwrap();
    assert!(json["error"].as_str().is_some_and(|reason| reason.contains("is not a folder")), "{json}");
    assert_eq!((&json["by"], &json["orders"]), (&serde_json::Value::Null, &serde_json::json!([])), "{json}");
    fs::remove_file(&path).unwrap();
    scratch.made();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    all.iter().for_each(|words| assert!(scratch.error(words).contains("may be written by others")));
    let mut missing = scratch.command(&["drain", "eth1"]);
    missing.args(["--run-dir"]).arg(path.join("not/there"));
    said(&missing.output().unwrap(), 2);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["policy", "drain", "eth1"]).env("RAILWEAVE_RUN_DIR", path.join("not/there"));
    assert!(error(&command.output().unwrap()).contains("cannot be made"));
    assert!(error(&command.env("RAILWEAVE_RUN_DIR", "not/absolute").output().unwrap()).contains("RAILWEAVE_RUN_DIR"));
    // A job would refuse this one.
    let mut command = scratch.command(&["show"]);
    command.env("RAILWEAVE_POLICY", "foo");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    said(&command.output().unwrap(), 0);
}
