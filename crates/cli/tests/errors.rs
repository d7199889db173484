//! The errors that a user reads if a command cannot work, with its exit status.

use std::process::{Command, Output};

fn railweave(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railweave")).args(arguments).output().unwrap()
}

/// Returns the text on standard error of a command that must fail with `status`.
fn error(arguments: &[&str], status: i32) -> String {
    let output = railweave(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(output.stdout.is_empty(), "an error is not a result");
    text
}

#[test]
fn a_missing_plugin_is_one_sentence_that_names_it() {
    for command in ["demo", "bench"] {
        let text = error(&[command, "--lib", "/nowhere/plugin.so"], 1);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("/nowhere/plugin.so") && text.contains("there is no such file"), "{text}");
    }
}

#[test]
fn a_file_that_is_not_nccls_library_is_one_sentence_that_names_it() {
    for (command, path) in [("demo", "/nowhere/libnccl.so.2"), ("bench", env!("CARGO_MANIFEST_DIR"))] {
        let text = error(&[command, "--nccl", path], 1);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(path) && text.contains("give the path of a libnccl.so.2"), "{text}");
    }
    assert!(error(&["bench", "--nccl", "x", "--lib", "y"], 2).contains("cannot be used with"));
}

#[test]
fn an_error_of_the_settings_or_the_host_is_one_sentence_and_not_one_of_each_rank() {
    for (variable, value, words) in [
        ("NCCL_SOCKET_IFNAME", "=no-such-interface", "no-such-interface"),
        ("RAILWEAVE_OOB_IF", "=no-such-interface", "no interface of this host"),
        ("RAILWEAVE_LANES", "17", "allowed: a number from 1 to 16"),
        ("RAILWEAVE_RAILS", "203.0.113.1", "No usable port"),
    ] {
        for subcommand in ["demo", "bench", "topo"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
            let output = command.arg(subcommand).env(variable, value).output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(text.contains(variable) && text.contains(words), "{text}");
        }
    }
}

#[test]
fn values_that_are_not_allowed_are_refused_with_those_that_are() {
    assert!(error(&["demo", "--bucket", "0"], 1).contains("allowed: 1 and more"));
    assert!(error(&["demo", "--bytes", "lots"], 2).contains("such as 25MiB"));
    assert!(error(&["demo", "--ranks", "1"], 2).contains("2..=64"));
    assert!(error(&["bench", "--sizes", "2GiB"], 2).contains("allowed: 0 to 1 GiB"));
    assert!(error(&["bench", "--idle", "1"], 2).contains("--connections"));
    assert!(
        error(&["bench", "--connections", "2", "--idle", "1", "--processes", "2"], 2).contains("cannot be used with")
    );
    assert!(error(&["bench", "--api", "5"], 2).contains("6..=12"));
    assert!(error(&["bench", "--seconds", "nan"], 1).contains("allowed: 0.01 to 3600"));
}

#[test]
fn periods_and_speeds_that_are_not_allowed_are_refused_with_those_that_are() {
    for command in ["demo", "bench"] {
        assert!(error(&[command, "--every", "5ms"], 2).contains("allowed: 10ms to 60s"));
        assert!(error(&[command, "--every", "often"], 2).contains("such as 100ms or 1.5s"));
        assert!(error(&[command, "--shape", "80,0"], 2).contains("each 1 to 100000, such as 80,20"));
        assert!(error(&[command, "--shape", "80,20", "--then", "20,20"], 2).contains("such as 5s:20,20"));
        assert!(error(&[command, "--then", "1s:20,20"], 2).contains("--shape"));
        assert!(error(&[command, "--shape", "80,20", "--rails", "lo"], 2).contains("cannot be used with"));
        let text = error(&[command, "--shape", "80,20", "--then", "1s:20"], 1);
        assert!(text.contains("allowed: 2, one for each rail of --shape 80,20"), "{text}");
    }
    assert!(error(&["demo", "--shape", "80", "--seconds", "0"], 1).contains("allowed: 1 to 3600"));
    assert!(error(&["demo", "--seconds", "5"], 2).contains("--shape"));
    assert!(error(&["demo", "--shape", "80", "--bytes", "1MiB"], 2).contains("cannot be used with"));
    assert!(error(&["bench", "--connections", "1", "--every", "1s"], 2).contains("cannot be used with"));
    assert!(error(&["bench", "--pairs", "0"], 2).contains("1..=64"));
    assert!(error(&["bench", "--small", "1"], 2).contains("--pairs <COUNT>"));
    assert!(error(&["bench", "--small", "1", "--connections", "1"], 2).contains("cannot be used with"));
    assert!(error(&["bench", "--pairs", "2", "--small", "1001"], 2).contains("0..=1000"));
    assert!(error(&["bench", "--pairs", "2", "--raw"], 2).contains("cannot be used with"));
}

#[test]
fn the_process_of_a_rank_does_not_run_by_hand() {
    let text = error(&["rank-process"], 1);
    assert!(text.contains("only railweave itself may run this subcommand"), "{text}");
}

#[test]
fn help_shows_the_subcommands_and_hides_the_rank() {
    let help = String::from_utf8(railweave(&["--help"]).stdout).unwrap();
    assert!(help.contains("demo") && help.contains("bench") && !help.contains("rank-process"), "{help}");
}
