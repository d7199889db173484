//! The table of weights: the agent that its design prints steers with it, and each kind of trouble is said once, next
//! to a table that works.

mod common;

use common::{Scratch, python};
use railweave_telemetry::{
    CreateError, MOST_RANKS, SEED_POLICY_MAGIC, SeedPolicy, Steering, Subject, create_seed_policy,
};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Something that makes another kind of file at a path.
type Make<'a> = &'a dyn Fn(&Path);

/// Returns the bytes of a table.
fn table(entries: &[(f32, u32)]) -> Vec<u8> {
    let mut bytes = SEED_POLICY_MAGIC.to_le_bytes().to_vec();
    bytes.extend((entries.len() as u32).to_le_bytes());
    for (weight, version) in entries {
        bytes.extend(weight.to_le_bytes());
        bytes.extend(version.to_le_bytes());
    }
    bytes
}

/// Writes into a file that is there, as agents do: no new file, no truncation.
fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Writes a weight as the design's agent does: first the weight, then the version.
fn set_weight(path: &Path, rank: u64, weight: f32) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let at = 8 + rank * 8;
    file.write_all_at(&weight.to_le_bytes(), at).unwrap();
    let mut version = [0; 4];
    file.read_exact_at(&mut version, at + 4).unwrap();
    file.write_all_at(&(u32::from_le_bytes(version) + 1).to_le_bytes(), at + 4).unwrap();
}

/// Polls, which must say nothing.
fn quiet(policy: &mut SeedPolicy) {
    assert_eq!(policy.poll(), None);
}

/// Polls, which must say one sentence with these words and then no more.
fn says(policy: &mut SeedPolicy, words: &str) {
    let sentence = policy.poll().unwrap_or_else(|| panic!("nothing is said of {words}"));
    let name = format!("\"{}\" ", policy.path().display());
    assert!(sentence.starts_with(&name) && sentence.contains(words), "{sentence}");
    assert!(
        sentence.contains("allowed: ") && sentence.contains("; try ") && sentence.lines().count() == 1,
        "{sentence}"
    );
    (0..3).for_each(|_| quiet(policy));
}

/// A table with the weights 0.25 and 1, and the policy that has read it.
fn good(scratch: &Scratch) -> SeedPolicy {
    let path = scratch.path("policy");
    fs::write(&path, table(&[(0.25, 1), (1.0, 0)])).unwrap();
    let mut policy = SeedPolicy::new(&path);
    quiet(&mut policy);
    assert_eq!((policy.weight(0), policy.weight(1), policy.weight(2)), (Some(0.25), Some(1.0), None));
    assert!(policy.exists());
    policy
}

fn still_good(policy: &SeedPolicy) {
    assert_eq!((policy.weight(0), policy.weight(1)), (Some(0.25), Some(1.0)));
}

/// The function is the design's, as printed there.
const AGENT: &str = r#"
import mmap, struct, sys

SHM_PATH = sys.argv[1]
MAGIC = 0x4D504942

def set_weight(rank, weight):
    with open(SHM_PATH, "r+b") as f:
        mm = mmap.mmap(f.fileno(), 0)
        # header: magic(4) + nranks(4)
        offset = 8 + rank * 8  # entry: weight(4) + version(4)
        mm[offset:offset+4] = struct.pack('f', weight)
        ver = struct.unpack('I', mm[offset+4:offset+8])[0]
        mm[offset+4:offset+8] = struct.pack('I', ver + 1)
        mm.close()
"#;

#[test]
fn the_agent_of_the_design_steers_unmodified() {
    let scratch = Scratch::new("agent");
    let path = scratch.path("mpib_policy");
    create_seed_policy(&path, 4).unwrap();
    let mut policy = SeedPolicy::new(&path);
    quiet(&mut policy);
    assert_eq!((policy.ranks(), policy.weight(0)), (4, None), "nobody has set it");
    for (number, weight) in [0.0, 1.0, 0.5].into_iter().enumerate() {
        let Some(_) = python(&format!("{AGENT}\nset_weight(0, {weight:?})\nset_weight(3, 0.25)\n"), &path) else {
            return;
        };
        quiet(&mut policy);
        assert_eq!(policy.weight(0), Some(weight));
        assert_eq!((policy.weight(1), policy.weight(3)), (None, Some(0.25)));
        assert_eq!(policy.revision(), 1 + 1 + number as u64);
    }
}

#[test]
fn a_table_that_is_made_steers_nothing_until_a_weight_is_set() {
    let scratch = Scratch::new("made");
    let path = scratch.path("table");
    create_seed_policy(&path, 2).unwrap();
    assert_eq!(fs::read(&path).unwrap(), table(&[(0.0, 0); 2]));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing else is left behind");
    let mut policy = SeedPolicy::new(&path);
    quiet(&mut policy);
    assert_eq!(policy.weight(1), None);
    set_weight(&path, 1, 0.0);
    quiet(&mut policy);
    assert_eq!((policy.weight(0), policy.weight(1)), (None, Some(0.0)));
    // Without a version, as somebody may write it by hand.
    overwrite(&path, 8, &0.75_f32.to_le_bytes());
    quiet(&mut policy);
    assert_eq!(policy.weight(0), Some(0.75));
}

#[test]
fn nothing_that_is_there_is_touched() {
    let scratch = Scratch::new("exclusive");
    let (file, target, link) = (scratch.path("file"), scratch.path("target"), scratch.path("link"));
    fs::write(&file, "precious").unwrap();
    symlink(&target, &link).unwrap();
    for path in [&file, &link] {
        let error = create_seed_policy(path, 4).unwrap_err();
        assert!(matches!(error, CreateError::Exists(_)), "{error}");
        assert!(error.to_string().contains("is there already"), "{error}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(!target.exists());
    for ranks in [0, MOST_RANKS + 1] {
        assert!(matches!(create_seed_policy(&scratch.path("new"), ranks), Err(CreateError::Ranks(_))));
    }
    create_seed_policy(&scratch.path("new"), MOST_RANKS).unwrap();
    assert!(matches!(create_seed_policy(&scratch.path("no/folder"), 1), Err(CreateError::Io { .. })));
}

#[test]
fn the_weights_end_with_the_file_and_polls_are_rarer() {
    let scratch = Scratch::new("end");
    let mut policy = good(&scratch);
    assert_eq!(policy.next_poll(), Duration::from_millis(10));
    fs::remove_file(policy.path()).unwrap();
    quiet(&mut policy);
    assert_eq!((policy.weight(0), policy.exists(), policy.ranks()), (None, false, 0));
    assert_eq!(policy.next_poll(), Duration::from_secs(1));
    // It comes back.
    fs::write(policy.path(), table(&[(0.5, 1)])).unwrap();
    quiet(&mut policy);
    assert_eq!((policy.weight(0), policy.weight(1)), (Some(0.5), None));
}

#[test]
fn a_table_that_is_replaced_by_another_counts() {
    let scratch = Scratch::new("another");
    let mut policy = good(&scratch);
    let other = scratch.path("other");
    fs::write(&other, table(&[(0.0, 0), (0.5, 1)])).unwrap();
    fs::rename(&other, policy.path()).unwrap();
    quiet(&mut policy);
    assert_eq!((policy.weight(0), policy.weight(1)), (None, Some(0.5)));
}

#[test]
fn each_weight_that_is_wrong_leaves_the_last_good_one() {
    for weight in [f32::NAN, -0.1, 1.1, f32::INFINITY, f32::NEG_INFINITY] {
        let scratch = Scratch::new("weight");
        let mut policy = good(&scratch);
        set_weight(policy.path(), 0, weight);
        overwrite(policy.path(), 16, &0.75_f32.to_le_bytes());
        says(
            &mut policy,
            "for rank 0; allowed: 0 (all on the first rail) to 1 (all on the second); try 0.5 (the rank's last good \
             weight holds; said once)",
        );
        assert_eq!((policy.weight(0), policy.weight(1)), (Some(0.25), Some(0.75)), "{weight}");
        // Another one is not said again, and a good one counts.
        set_weight(policy.path(), 1, weight);
        quiet(&mut policy);
        set_weight(policy.path(), 0, 0.125);
        quiet(&mut policy);
        assert_eq!((policy.weight(0), policy.weight(1)), (Some(0.125), Some(0.75)), "{weight}");
    }
}

#[test]
fn a_table_that_is_cut_off_leaves_the_last_good_weights() {
    for size in [0, 7, 8, 15, 16, 23] {
        let scratch = Scratch::new("cut");
        let mut policy = good(&scratch);
        OpenOptions::new().write(true).open(policy.path()).unwrap().set_len(size).unwrap();
        says(&mut policy, &format!("has {size} bytes, too few"));
        still_good(&policy);
        let mut new = SeedPolicy::new(policy.path());
        let rest = if size < 8 { "it orders nothing" } else { "ranks that are cut off keep the weights that they had" };
        says(&mut new, &format!("({rest}; said once)"));
    }
    let scratch = Scratch::new("cut-new");
    let path = scratch.path("policy");
    fs::write(&path, &table(&[(0.25, 1), (0.5, 1)])[..20]).unwrap();
    let mut policy = SeedPolicy::new(&path);
    says(&mut policy, "has 20 bytes, too few for its 2 ranks");
    assert_eq!((policy.weight(0), policy.weight(1)), (Some(0.25), None));
}

/// The advice is a command that `railweave policy init` does not refuse.
#[test]
fn no_table_is_advised_that_cannot_be_made() {
    let scratch = Scratch::new("advice");
    let path = scratch.path("policy");
    let says = |bytes: &[u8], words: &str| {
        fs::write(&path, bytes).unwrap();
        says(&mut SeedPolicy::new(&path), words);
    };
    let head = |ranks: u32| [SEED_POLICY_MAGIC.to_le_bytes(), ranks.to_le_bytes()].concat();
    says(&head(MOST_RANKS), "then `railweave policy init --ranks 65536` (");
    says(&head(MOST_RANKS + 1), "too few for its 65537 ranks; allowed: 8 bytes, and 8 for each rank; try removing it");
    says(&head(MOST_RANKS + 1), "then `railweave policy init` (");
    says(&head(7)[..7], "has 7 bytes, too few for a table;");
    says(&head(7)[..7], "then `railweave policy init` (");

    let table = scratch.path("table");
    fs::write(&table, self::table(&[(0.5, 1)])).unwrap();
    for (rank, words) in [(MOST_RANKS - 1, "--ranks 65536`"), (MOST_RANKS, "try a rule with peer=node3")] {
        let mut steering = Steering::new(scratch.path("none"), &table);
        assert!(steering.poll(UNIX_EPOCH).is_empty());
        let rails = &["eth0", "eth1"];
        let subject = Subject { peer_host: "node3", peer_rank: Some(rank), rails, ..Subject::default() };
        assert_eq!(steering.decide(&subject), None);
        let said = steering.poll(UNIX_EPOCH).concat();
        assert!(said.contains(words), "{said}");
        assert_eq!(steering.decide(&subject), None);
        assert!(steering.poll(UNIX_EPOCH).is_empty(), "it is said once");
        // And once more for another table.
        fs::rename(&table, scratch.path("moved")).unwrap();
        assert!(steering.poll(UNIX_EPOCH).is_empty());
        fs::rename(scratch.path("moved"), &table).unwrap();
        assert!(steering.poll(UNIX_EPOCH).is_empty());
        assert_eq!(steering.decide(&subject), None);
        assert_eq!(steering.poll(UNIX_EPOCH), [said]);
    }
}

#[test]
fn other_contents_leave_the_last_good_weights() {
    let scratch = Scratch::new("magic");
    let mut policy = good(&scratch);
    overwrite(policy.path(), 0, b"abcd");
    says(&mut policy, "begins with 0x64636261; allowed: 0x4d504942");
    still_good(&policy);
    fs::remove_file(policy.path()).unwrap();
    quiet(&mut policy);
    fs::write(policy.path(), "abcdefgh").unwrap();
    says(&mut policy, "begins with 0x64636261");
    assert_eq!(policy.weight(0), None, "there was no good one since the file was gone");
    fs::write(policy.path(), table(&[(7.0, 1), (0.5, 1)])).unwrap();
    says(
        &mut policy,
        "for rank 0; allowed: 0 (all on the first rail) to 1 (all on the second); try 0.5 (the rank has no weight",
    );
}

#[test]
fn other_kinds_of_files_leave_the_last_good_weights() {
    let make: [(&str, Make<'_>); 4] = [
        ("is a symbolic link", &|path| {
            fs::write(path.with_extension("target"), table(&[(0.5, 1)])).unwrap();
            symlink(path.with_extension("target"), path).unwrap();
        }),
        ("is not a regular file", &|path| fs::create_dir(path).unwrap()),
        // A pipe without a writer would block an ordinary open.
        ("is not a regular file", &|path| {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        }),
        ("is not a regular file", &|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
    ];
    for (words, make) in make {
        let scratch = Scratch::new("kinds");
        let mut policy = good(&scratch);
        fs::remove_file(policy.path()).unwrap();
        make(policy.path());
        says(&mut policy, words);
        still_good(&policy);
        assert!(policy.exists());
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    let scratch = Scratch::new("owner");
    let mut policy = good(&scratch);
    let other = scratch.path("other");
    fs::write(&other, table(&[(0.5, 1)])).unwrap();
    if std::os::unix::fs::chown(&other, Some(12_345), None).is_err() {
        return eprintln!("skipped: only root can give a file away");
    }
    fs::rename(&other, policy.path()).unwrap();
    says(&mut policy, "belongs to user 12345");
    still_good(&policy);
    for (user, ranks) in [(12_345, 1), (12_346, 0)] {
        let mut of_user = SeedPolicy::of_user(policy.path(), user);
        assert_eq!((of_user.poll().is_none(), of_user.ranks()), (ranks == 1, ranks), "{user}");
    }
}

#[test]
fn a_table_of_too_many_ranks_is_read_up_to_the_bound() {
    let scratch = Scratch::new("ranks");
    let path = scratch.path("policy");
    let mut bytes = table(&[(0.5, 1), (0.25, 1)]);
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let mut policy = SeedPolicy::new(&path);
    says(&mut policy, "too few for its 4294967295 ranks");
    assert_eq!((policy.ranks(), policy.weight(1)), (MOST_RANKS, Some(0.25)));
    // A huge file: only the bound is read.
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    says(&mut policy, "of which the first 65536 are read; allowed: up to 65536; try fewer (the other ranks are not");
    assert_eq!((policy.ranks(), policy.weight(1), policy.weight(MOST_RANKS)), (MOST_RANKS, Some(0.25), None));
}
