//! Runs every file of the corpus through its target: findings stay fixed, and seeds stay good.

use std::fs;
use std::path::{Path, PathBuf};

use railweave_fuzz::TARGETS;
use railweave_fuzz::seeds::seeds;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn replay(target: &str) {
    let folder = corpus(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no inputs", folder.display());
    for file in files {
        // The name is in the test's output, which shows when the test fails.
        eprintln!("{}", file.display());
        railweave_fuzz::run(target, &fs::read(&file).unwrap());
    }
}

macro_rules! replays {
    ($($target:ident),*) => {
        $( #[test] fn $target() { replay(stringify!($target)); } )*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($target)),*]);
        }
    };
}

replays!(wire, handshake, session, send, receive, tcp_lane, options, telemetry, trace, policy_file, seed_policy);

#[test]
fn the_corpus_holds_every_seed() {
    for seed in seeds() {
        let file = corpus(seed.target).join(seed.name);
        let same = fs::read(&file).is_ok_and(|bytes| bytes == seed.bytes);
        assert!(same, "{} is not the seed; write it with: cargo run -p railweave-fuzz --example seeds", file.display());
    }
}

#[test]
fn the_corpus_stays_small() {
    let sizes = TARGETS.iter().flat_map(|target| fs::read_dir(corpus(target.name)).unwrap());
    let bytes: u64 = sizes.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 200 * 1024, "the corpus is {bytes} bytes");
}
