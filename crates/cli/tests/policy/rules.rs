//! Rules of the command and of files.

use crate::host::{Scratch, said};
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// Returns the rules of the policy file.
fn rules(scratch: &Scratch) -> Vec<String> {
    let file = scratch.file().unwrap_or_default();
    file.lines().filter(|line| line.contains("->") && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn the_first_rule_of_a_command_comes_first_and_later_commands_before_it() {
    let scratch = Scratch::new("rules");
    let json = scratch.json(&["set", "peer=a -> policy speed", "any -> policy adaptive"]);
    assert_eq!(json["orders"][0]["matchers"], "peer=a", "in the order of the command: {json}");
    assert_eq!(rules(&scratch), ["peer=a -> policy speed", "any -> policy adaptive"]);
    let file = scratch.file();
    for more in [&["--dry-run"][..], &[]] {
        let words = ["set", "peer=a -> policy speed", "any -> policy adaptive"];
        let json = scratch.json(&[&words, more].concat());
        assert!(json["orders"].as_array().unwrap().iter().all(|order| order["changed"] == false), "{json}");
        assert_eq!(scratch.file(), file);
    }
    let text = scratch.said(&["set", "peer=b   job=c -> weights 1,2"]);
    assert!(text.contains("peer=b job=c -> weights 1,2 comes first, by "), "{text}");
    scratch.said(&["set", "any -> policy static"]);
    let all = ["any -> policy static", "peer=b job=c -> weights 1,2", "peer=a -> policy speed"];
    assert_eq!(rules(&scratch), all, "a rule replaces the one with the same matchers");
    assert!(scratch.said(&["set", "any -> policy static"]).contains("nothing had to change"));
    scratch.said(&["clear", "job=c peer=b", "any -> policy static"]);
    assert_eq!(rules(&scratch), all[2..]);
}

#[test]
fn a_file_of_rules_counts_as_a_whole() {
    let scratch = Scratch::new("file");
    let path = scratch.path().join("rules");
    fs::write(&path, "# mine\n\n  peer=a -> policy speed\npeer=b -> dance\n").unwrap();
    let file = path.to_str().unwrap();
    let error = scratch.error(&["set", "any -> policy adaptive", "--file", file]);
    assert!(error.contains("line 4: rule: ") && error.contains("\"dance\" is not known"), "{error}");
    assert_eq!(scratch.file(), None);
    fs::write(&path, "# mine\n\n  peer=a -> policy speed\nrail=eth1 -> drain\n").unwrap();
    scratch.said(&["set", "any -> policy adaptive", "--file", file]);
    assert_eq!(rules(&scratch), ["any -> policy adaptive", "peer=a -> policy speed", "rail=eth1 -> drain"]);
    for (text, words) in [("# none\n", "has no rules"), ("\u{0}", "is not a rule")] {
        fs::write(&path, text).unwrap();
        assert!(scratch.error(&["set", "--file", file]).contains(words));
    }
    fs::write(&path, b"\xff").unwrap();
    assert!(scratch.error(&["set", "--file", file]).contains("cannot be read"));
    fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(scratch.error(&["set", "--file", file]).contains("has more than 1048576 bytes"));
    assert!(scratch.error(&["set", "--file", "/dev/zero"]).contains("has more than 1048576 bytes"));
    assert!(scratch.error(&["set", "--file", "/nowhere"]).contains("cannot be read"));
}

#[test]
fn rules_come_from_standard_input() {
    let scratch = Scratch::new("stdin");
    let mut child =
        scratch.command(&["set", "--file", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"peer=a -> policy speed\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rules(&scratch), ["peer=a -> policy speed"]);
}

#[test]
fn wrong_arguments_change_nothing() {
    let scratch = Scratch::new("wrong");
    for words in [
        &["set"][..],
        &["set", "peer=a"],
        &["set", "any -> policy speed", "any -> weights 0"],
        &["set", "any -> policy speed\nany -> policy static"],
        &["drain"],
        &["drain", "7"],
        &["drain", "eth1", "a b"],
        &["drain", "eth1", "--wait=never"],
        &["clear"],
        &["clear", "eth1", "--all"],
        &["clear", "a b"],
        &["clear", "foo=bar"],
        &["clear", "peer=a", "any x"],
        &["history", "-n", "some"],
        &["history", "-n", "0"],
        &["drain", "any"],
    ] {
        said(&scratch.policy(words), 2);
    }
    assert!(!scratch.run_dir().path().exists());
    let help = scratch.said(&["drain", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("Exit codes: 0 done") && help.contains("3 --wait ended"), "{help}");
}

#[test]
fn rules_with_the_same_matchers_are_refused() {
    let scratch = Scratch::new("twice");
    let words = ["set", "peer=a rank=1 -> policy speed", "peer=b -> policy speed", "rank=1 peer=a -> weights 1,2"];
    let error = scratch.error(&words);
    assert!(error.contains("two rules have the matchers rank=1 peer=a, and the second would never hold"), "{error}");
    let output = scratch.policy(&[&words[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&said(&output, 1)).unwrap();
    assert!(json["error"].as_str().is_some_and(|reason| error.contains(reason)), "{json}");
    assert!(scratch.file().is_none());
}

#[test]
fn more_rules_than_there_is_room_for_are_refused() {
    let scratch = Scratch::new("many");
    let path = scratch.path().join("rules");
    let rules: String = (0..251).map(|number| format!("peer=node{number} -> policy speed\n")).collect();
    fs::write(&path, rules).unwrap();
    let error = scratch.error(&["set", "--file", path.to_str().unwrap()]);
    assert!(error.contains("is one too many; allowed: 250 rules"), "{error}");
    assert_eq!(scratch.file(), None, "none of them is set");
}
