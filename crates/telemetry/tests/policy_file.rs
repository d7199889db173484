//! Railweave's policy file: the page's example holds, and each kind of trouble is said once, next to a file that works.

mod common;

use common::Scratch;
use railweave_telemetry::{
    LARGEST_POLICY, Order, Policy, PolicyFile, RunDir, Steering, Subject, create_seed_policy, sweep,
};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const WRITTEN: u64 = 1_790_000_000;

const SUBJECT: Subject = Subject {
    job: "4711",
    rank: Some(3),
    peer_host: "node3",
    peer_rank: Some(9),
    device: "mlx5_0+mlx5_1",
    rails: &["mlx5_0", "mlx5_1"],
};

/// Returns the time this many seconds after the file was written.
fn after(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(WRITTEN + seconds)
}

fn text(rules: &str) -> String {
    format!("railweave-policy 1\nwritten {WRITTEN}\nttl 30\n{rules}\n")
}

/// Puts a file in place as an agent does.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn quiet(policy: &mut PolicyFile, now: SystemTime) {
    assert_eq!(policy.poll(now), None);
}

/// Polls, which must say one sentence with these words and then no more.
fn says(policy: &mut PolicyFile, now: SystemTime, words: &str) {
    let sentence = policy.poll(now).unwrap_or_else(|| panic!("nothing is said of {words}"));
    let name = format!("\"{}\" ", policy.path().display());
    assert!(sentence.starts_with(&name) && sentence.contains(words), "{sentence}");
    assert!(
        sentence.contains("allowed: ") && sentence.contains("; try ") && sentence.lines().count() == 1,
        "{sentence}"
    );
    (0..3).for_each(|_| quiet(policy, now));
}

/// A policy that has read a good file.
fn good(scratch: &Scratch) -> PolicyFile {
    let path = scratch.path("policy");
    put(&path, &text("peer=node3 -> weights 80,20"));
    let mut policy = PolicyFile::new(&path);
    quiet(&mut policy, after(0));
    assert_eq!(weights(&policy), Some([80, 20, 0, 0, 0, 0, 0, 0]));
    assert!(policy.exists() && policy.is_in_force());
    policy
}

fn weights(policy: &PolicyFile) -> Option<[u32; 8]> {
    policy.decide(&SUBJECT)?.weights
}

#[test]
fn the_example_of_the_page_holds() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, example) = page.split_once("```\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let scratch = Scratch::new("example");
    let path = scratch.path("policy");
    put(&path, example);
    let mut policy = PolicyFile::new(&path);
    quiet(&mut policy, after(3));
    let order = |subject: Subject| policy.decide(&subject);
    let all = Order { policy: Some(Policy::Adaptive), ..Order::default() };
    assert_eq!(weights(&policy), Some([80, 20, 0, 0, 0, 0, 0, 0]));
    assert_eq!(order(Subject { rails: &["mlx5_2", "mlx5_3"], ..SUBJECT }).unwrap().drained, 0b01);
    assert_eq!(order(Subject { rank: Some(8), ..SUBJECT }).unwrap().drained, 0b10);
    let other = Subject { rank: Some(8), device: "mlx5_0", ..SUBJECT };
    assert_eq!(order(other), Some(all));
    assert_eq!(order(Subject { peer_host: "node91", ..other }).unwrap().policy, Some(Policy::Speed));
}

#[test]
fn orders_end_with_the_file_and_polls_are_rarer() {
    let scratch = Scratch::new("end");
    let mut policy = good(&scratch);
    assert_eq!(policy.next_poll(), Duration::from_millis(10));
    fs::remove_file(policy.path()).unwrap();
    quiet(&mut policy, after(1));
    assert_eq!((weights(&policy), policy.exists(), policy.is_in_force()), (None, false, false));
    assert_eq!(policy.next_poll(), Duration::from_secs(1));
    assert_eq!(policy.revision(), 2);
}

#[test]
fn a_heartbeat_changes_no_order_and_a_rule_does() {
    let scratch = Scratch::new("heartbeat");
    let mut policy = good(&scratch);
    let revision = policy.revision();
    put(policy.path(), &text("peer=node3 -> weights 80,20").replace("ttl 30", "ttl 300"));
    quiet(&mut policy, after(100));
    assert_eq!((policy.revision(), weights(&policy).is_some()), (revision, true));
    put(policy.path(), &text("peer=node3 -> weights 70,20"));
    quiet(&mut policy, after(0));
    assert_eq!(policy.revision(), revision + 1);
    // Written in place: the size or the time tells.
    fs::write(policy.path(), text("peer=node3 -> weights 7,2")).unwrap();
    quiet(&mut policy, after(0));
    assert_eq!(weights(&policy).unwrap()[0], 7);
}

#[test]
fn a_stale_file_orders_nothing_until_it_is_written_again() {
    let scratch = Scratch::new("stale");
    let mut policy = good(&scratch);
    quiet(&mut policy, after(30));
    assert!(weights(&policy).is_some());
    says(&mut policy, after(31), "orders nothing: it was written 31 s ago; allowed: up to its ttl of 30 s");
    assert_eq!((weights(&policy), policy.is_in_force(), policy.exists()), (None, false, true));
    put(policy.path(), &text("peer=node3 -> weights 80,20").replace("ttl 30", "ttl 60"));
    quiet(&mut policy, after(31));
    assert!(weights(&policy).is_some());
    says(&mut policy, after(61), "61 s ago");
    put(policy.path(), "railweave-policy 1\nttl forever\nany -> weights 1,2");
    quiet(&mut policy, after(1_000_000));
    assert_eq!(weights(&policy), Some([1, 2, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn a_file_from_the_future_orders_nothing() {
    let scratch = Scratch::new("future");
    let mut policy = good(&scratch);
    let before = |seconds| UNIX_EPOCH + Duration::from_secs(WRITTEN - seconds);
    quiet(&mut policy, before(60));
    assert!(weights(&policy).is_some());
    says(&mut policy, before(61), "61 s in the future");
    assert_eq!(weights(&policy), None);
    quiet(&mut policy, after(0));
    assert!(weights(&policy).is_some());
}

#[test]
fn a_file_that_is_wrong_leaves_the_last_good_one() {
    let long = format!("# {}", "x".repeat(LARGEST_POLICY as usize));
    let many = "any -> policy speed\n".repeat(4097);
    for (wrong, words) in [
        (text("peer=node3 -> weights 90,x"), "line 4: weights: \"90,x\" is not a list of weights"),
        (String::new(), "line 1: the first line: \"\" is missing"),
        ("railweave-policy 9\n".to_owned(), "a version that is not known; allowed: railweave-policy 1"),
        (text(&long), "allowed: up to 1048576"),
        (text(&many), "is one too many; allowed: up to 4096 rules"),
    ] {
        let scratch = Scratch::new("wrong");
        let mut policy = good(&scratch);
        put(policy.path(), &wrong);
        says(&mut policy, after(1), words);
        assert_eq!(weights(&policy), Some([80, 20, 0, 0, 0, 0, 0, 0]));
        // Written again and as wrong, it is not said again; the last good one ends with its own time.
        put(policy.path(), &wrong);
        quiet(&mut policy, after(2));
        says(&mut policy, after(31), "31 s ago");
        assert_eq!(weights(&policy), None);
        put(policy.path(), &text("any -> weights 1").replace("ttl 30", "ttl 40"));
        quiet(&mut policy, after(32));
        assert_eq!(weights(&policy), Some([1, 0, 0, 0, 0, 0, 0, 0]));
    }
    let scratch = Scratch::new("binary");
    let mut policy = good(&scratch);
    fs::write(policy.path(), [0xff; 40]).unwrap();
    says(&mut policy, after(1), "is not text in UTF-8");
    assert!(weights(&policy).is_some());
}

#[test]
fn a_file_that_nobody_should_trust_orders_nothing() {
    let scratch = Scratch::new("trust");
    let path = scratch.path("policy");
    put(&scratch.path("real"), &text("any -> weights 1"));
    symlink(scratch.path("real"), &path).unwrap();
    let mut policy = PolicyFile::new(&path);
    says(&mut policy, after(0), "is a symbolic link; allowed: a regular file");
    assert_eq!((weights(&policy), policy.exists()), (None, true));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    says(&mut policy, after(0), "is not a regular file");
    fs::remove_dir(&path).unwrap();
    fs::rename(scratch.path("real"), &path).unwrap();
    quiet(&mut policy, after(0));
    assert!(weights(&policy).is_some());
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        says(&mut policy, after(0), "belongs to user 12345");
    }
}

#[test]
fn what_is_wrong_again_and_again_is_said_once_a_minute() {
    let scratch = Scratch::new("again");
    let path = scratch.path("policy");
    let mut policy = PolicyFile::new(&path);
    let mut said = 0;
    // Files of different sizes, so that none of them is mistaken for the one before.
    for second in 0..100_usize {
        put(&path, &format!("railweave-policy 1\nttl forever\nany -> weights 1\n# {}\n", "x".repeat(second)));
        said += usize::from(policy.poll(after(second as u64)).is_some());
        put(&path, "railweave-policy 1\nttl forever\nany");
        said += usize::from(policy.poll(after(second as u64)).is_some());
    }
    assert_eq!(said, 2);
    fs::remove_file(&path).unwrap();
    quiet(&mut policy, after(100));
    put(&path, "railweave-policy 1\nttl forever\nany");
    says(&mut policy, after(100), "; allowed: ");
}

#[test]
fn what_is_wrong_in_ever_new_ways_is_said_five_times_a_minute() {
    let scratch = Scratch::new("ever-new");
    let path = scratch.path("policy");
    let mut policy = PolicyFile::new(&path);
    let mut said = Vec::new();
    for second in 0..60 {
        put(&path, &format!("railweave-policy 1\nttl forever\nany -> weights {}\n", "x".repeat(second + 1)));
        said.extend(policy.poll(after(second as u64)));
    }
    assert_eq!(said.len(), 5, "{said:?}");
    // The last of them is said in the next minute, because it still holds.
    says(&mut policy, after(60), &format!("\"{}\"", "x".repeat(60)));
    assert_eq!(weights(&policy), None);
    put(&path, "railweave-policy 1\nttl forever\nany -> weights 1\n");
    quiet(&mut policy, after(61));
}

#[test]
fn a_file_that_is_stale_again_and_again_is_named_five_times_a_minute() {
    let scratch = Scratch::new("stale-again");
    let path = scratch.path("policy");
    let mut policy = PolicyFile::new(&path);
    let mut said = 0;
    for second in (0..120).step_by(4) {
        let written = after(second).duration_since(UNIX_EPOCH).unwrap().as_secs();
        put(&path, &format!("railweave-policy 1\nwritten {written}\nttl 1\nany -> weights 1\n"));
        quiet(&mut policy, after(second));
        said += usize::from(policy.poll(after(second + 2)).is_some());
    }
    assert_eq!(said, 10);
}

#[test]
fn a_file_in_a_folder_of_others_orders_nothing() {
    let scratch = Scratch::new("folder-of-others");
    let path = scratch.path("open/policy");
    fs::create_dir(scratch.path("open")).unwrap();
    put(&path, &text("any -> weights 1"));
    fs::set_permissions(scratch.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut policy = PolicyFile::new(&path);
    says(&mut policy, after(0), "is in a folder that may be written by others (mode 0777)");
    assert_eq!((weights(&policy), policy.next_poll()), (None, Duration::from_secs(1)));
    fs::set_permissions(scratch.path("open"), fs::Permissions::from_mode(0o700)).unwrap();
    quiet(&mut policy, after(0));
    assert!(weights(&policy).is_some());
    assert_eq!(policy.next_poll(), Duration::from_millis(10));
}

#[test]
fn railweaves_own_file_wins_over_the_table() {
    let scratch = Scratch::new("both");
    let (own, seed) = (scratch.path("policy"), scratch.path("table"));
    let mut steering = Steering::new(&own, &seed);
    let poll = |steering: &mut Steering| steering.poll(after(0));
    assert_eq!(poll(&mut steering), [""; 0]);
    assert_eq!((steering.decide(&SUBJECT), steering.next_poll()), (None, Duration::from_secs(1)));
    create_seed_policy(&seed, 10).unwrap();
    let table = fs::OpenOptions::new().write(true).open(&seed).unwrap();
    table.write_all_at(&0.25_f32.to_le_bytes(), 8 + 9 * 8).unwrap();
    assert_eq!(poll(&mut steering), [""; 0]);
    assert_eq!(steering.decide(&SUBJECT).unwrap().weights, Some([750_000, 250_000, 0, 0, 0, 0, 0, 0]));
    assert_eq!(steering.decide(&Subject { peer_rank: Some(8), ..SUBJECT }), None, "it was never set");
    assert_eq!(steering.decide(&Subject { rails: &["mlx5_0"], ..SUBJECT }), None, "there is no second rail");
    let revision = steering.revision();
    put(&own, &text("peer=node3 rail=1 -> drain"));
    assert_eq!(poll(&mut steering), [""; 0]);
    assert!(steering.revision() > revision);
    assert_eq!(steering.decide(&SUBJECT), Some(Order { drained: 0b10, ..Order::default() }));
    // No rule fits.
    assert!(steering.decide(&Subject { peer_host: "node4", ..SUBJECT }).unwrap().weights.is_some());
    // A rank that is not in the table is said once.
    for rank in [Some(10), Some(11), None] {
        assert_eq!(steering.decide(&Subject { peer_host: "node5", peer_rank: rank, ..SUBJECT }), None);
    }
    let said = poll(&mut steering);
    assert!(
        said.len() == 1 && said[0].contains("does not steer rank 10 on node5; allowed: ranks below 10"),
        "{said:?}"
    );
    assert_eq!(poll(&mut steering), [""; 0]);
}

#[test]
fn a_run_dir_is_made_private_and_others_are_refused() {
    let scratch = Scratch::new("run-dir");
    let dir = RunDir::named(Some(&scratch.path("run")));
    dir.make().unwrap();
    dir.make().unwrap();
    let mode = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(dir.policy_file(), scratch.path("run/policy"));
    mode(0o755);
    dir.make().unwrap();
    let refused = |path: &Path, words: &str| {
        let error = RunDir::named(Some(path)).make().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("; allowed: ") && error.contains("; try ") && error.lines().count() == 1, "{error}");
    };
    mode(0o770);
    refused(dir.path(), "may be written by others (mode 0770)");
    mode(0o702);
    refused(dir.path(), "may be written by others (mode 0702)");
    symlink(dir.path(), scratch.path("link")).unwrap();
    refused(&scratch.path("link"), "is a symbolic link");
    fs::write(scratch.path("file"), "").unwrap();
    refused(&scratch.path("file"), "is not a folder");
    refused(&scratch.path("no/folder"), "cannot be made");
    if std::os::unix::fs::chown(dir.path(), Some(12_345), None).is_ok() {
        refused(dir.path(), "belongs to user 12345");
    }
    let own = RunDir::named(None);
    assert!(own.path().to_str().unwrap().starts_with("/dev/shm/railweave-"));
}

#[test]
fn only_old_files_of_ours_are_swept() {
    let scratch = Scratch::new("sweep");
    let dir = scratch.run_dir();
    let hex = |digit: &str, ending: &str| scratch.path("run").join(digit.repeat(32) + ending);
    let now = SystemTime::now();
    let old = now - Duration::from_secs(24 * 3600 + 1);
    let make = |path: &Path, time| fs::File::create(path).unwrap().set_modified(time).unwrap();
    let removed = [hex("a", ".railweave"), hex("b", ".new")];
    let kept = [
        hex("c", ".railweave.old"),
        hex("A", ".railweave"),
        hex("ab", ".railweave"),
        scratch.path("run/policy"),
        scratch.path("run/notes.railweave"),
    ];
    removed.iter().chain(&kept).for_each(|path| make(path, old));
    make(&hex("d", ".railweave"), now - Duration::from_secs(3600));
    make(&scratch.path("target"), old);
    symlink(scratch.path("target"), hex("e", ".railweave")).unwrap();
    let others = hex("f", ".railweave");
    make(&others, old);
    let is_others = std::os::unix::fs::chown(&others, Some(12_345), None).is_ok();
    assert_eq!(sweep(&dir, now).unwrap(), if is_others { 2 } else { 3 });
    assert!(removed.iter().all(|path| !path.exists()));
    assert!(kept.iter().all(|path| path.exists()) && hex("d", ".railweave").exists());
    assert!(scratch.path("target").exists() && hex("e", ".railweave").is_symlink());
    assert_eq!(others.exists(), is_others);
    assert_eq!(sweep(&RunDir::named(Some(&scratch.path("missing"))), now).unwrap(), 0);
}
