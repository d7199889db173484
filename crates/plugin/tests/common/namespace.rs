//! Scenarios in their own namespaces, in which any user is root: a network to build and break, or other process ids.

use super::process::TESTS_FAILED;
use std::env;
use std::process::Command;

/// The variable that is set inside the namespaces.
const INSIDE: &str = "RAILWEAVE_TEST_INSIDE";

/// Runs `body` in a process with a user namespace and this other one (unshare(1): `--net`, `--pid`), by starting this
/// test's program again. Skips it with a message if users may not create namespaces.
pub(crate) fn in_namespace(kind: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", kind, "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not create namespaces (unshare {kind})");
        return;
    }
    let own = env::current_exe().expect("a test knows its own program");
    let status = unshare().arg(own).args(env::args_os().skip(1)).env(INSIDE, "1").status().expect("unshare runs");
    // The inner process printed the reason to the same output.
    let followed = if status.code() == Some(TESTS_FAILED) { railweave_patience::FOLLOWED } else { "" };
    assert!(status.success(), "{followed}in its namespace: {status}");
}

/// Waits until this interface has a carrier, which the kernel notes some time after both ends of its cable are up.
pub(crate) fn until_carrier(interface: &str) {
    railweave_patience::until("a carrier", || {
        let output = Command::new("ip").args(["-oneline", "link", "show", "dev", interface]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).contains("state UP").then_some(())
    });
}

/// Runs ip(8) with these words. Returns true if it succeeded.
pub(crate) fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}
