//! Folders of other users, and disks that are full. These need root.

use crate::host::{Scratch, can_mount, error, is_root, said};
use railweave_telemetry::{Policy, RailState};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65_534;

/// Returns the command as user 65,534 runs it, who may not be able to start the program where it lies.
fn as_nobody(scratch: &Scratch, words: &[&str]) -> Command {
    let program = scratch.path().join("railweave");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_railweave"), &program).unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    command.args(scratch.command(words).get_args()).current_dir("/").uid(NOBODY).gid(NOBODY);
    command
}

#[test]
fn nobody_but_root_gives_orders_in_the_folder_of_another_user() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("other-user");
    scratch.made();
    for (mode, reason) in [(0o700, "Permission denied"), (0o755, "belongs to user 0, and this is user 65534")] {
        fs::set_permissions(scratch.run_dir().path(), Permissions::from_mode(mode)).unwrap();
        for words in [&["show"][..], &["drain", "eth1"], &["drain", "eth1", "--dry-run"], &["history"]] {
            let error = error(&as_nobody(&scratch, words).output().unwrap());
            assert!(error.contains(reason), "{error}");
        }
    }
    chown(scratch.run_dir().path(), Some(NOBODY), None).unwrap();
    said(&as_nobody(&scratch, &["drain", "eth1"]).output().unwrap(), 0);
    scratch.said(&["drain", "eth2"]);
    let text = said(&as_nobody(&scratch, &["show"]).output().unwrap(), 0);
    assert!(text.contains("drained: eth1 (operator)") && text.contains("drained: eth2 (operator)"), "{text}");
    said(&as_nobody(&scratch, &["clear", "--all"]).output().unwrap(), 0);
    assert_eq!(scratch.file(), None);
    let history = said(&as_nobody(&scratch, &["history"]).output().unwrap(), 0);
    assert_eq!(history.lines().count(), 4, "{history}");
}

#[test]
fn root_makes_no_folder_that_is_not_its_own() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("not-own");
    for words in [&["drain", "eth1"][..], &["drain", "eth1", "--dry-run"]] {
        let output = scratch.command(words).env_remove("RAILWEAVE_RUN_DIR").output().unwrap();
        let error = error(&output);
        assert!(error.contains("is missing; allowed: the folder of a job; try once a job runs"), "{error}");
        assert!(!scratch.run_dir().path().exists());
    }
    chown(scratch.path(), Some(NOBODY), None).unwrap();
    said(&as_nobody(&scratch, &["drain", "eth1"]).env_remove("RAILWEAVE_RUN_DIR").output().unwrap(), 0);
    assert_eq!(fs::metadata(scratch.run_dir().path()).unwrap().uid(), NOBODY);
    scratch.said(&["drain", "eth2"]);
}

#[test]
fn a_telemetry_file_of_somebody_else_is_not_read() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("foreign-file");
    let _process = scratch.publish(1, Policy::Adaptive, RailState::Up);
    assert_ne!(scratch.json(&["show"])["rails"], serde_json::json!([]));
    chown(scratch.run_dir().file_of([1; 16]), Some(NOBODY), None).unwrap();
    let json = scratch.json(&["show"]);
    assert_eq!(json["rails"], serde_json::json!([]));
    assert!(json["damaged"][0].as_str().unwrap().contains("belongs to user 65534"), "{json}");
}

#[test]
fn a_lock_of_root_leaves_the_folder_to_its_owner() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("locks");
    chown(scratch.made().path(), Some(NOBODY), None).unwrap();
    scratch.said(&["drain", "eth1"]);
    let lock = scratch.run_dir().path().join("agent.lock");
    assert_eq!(fs::metadata(lock).unwrap().uid(), NOBODY);
    said(&as_nobody(&scratch, &["drain", "eth2"]).output().unwrap(), 0);
    assert!(scratch.file().unwrap().contains("# drained eth2\n"));
}

#[test]
fn an_order_that_has_no_room_leaves_the_last_ones() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new("full");
    let folder = scratch.path().join("disk");
    fs::create_dir(&folder).unwrap();
    // One page for data, which the file in place has, so that the next one has none.
    let script = "mount -t tmpfs -o size=4k,mode=700 none \"$0\" && export RAILWEAVE_RUN_DIR=\"$0/run\" && \
                  mkdir -m 700 \"$0/run\" && \"$1\" policy drain eth1 && ! \"$1\" policy drain eth2 && \
                  cat \"$0/run/policy\" && ls \"$0/run\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&folder).arg(env!("CARGO_BIN_EXE_railweave"));
    let output = command.output().unwrap();
    let text = said(&output, 0);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("the orders are as they were") && errors.lines().count() == 1, "{errors}");
    assert!(text.contains("the order is carried out, but the file \"history\" "), "{text}");
    assert!(text.contains("# drained eth1\n") && !text.contains("# drained eth2"), "{text}");
    assert!(!text.contains("policy.new"), "{text}");
}
