//! Mutants of the protocol and the policy (docs/simulation.md): cargo-mutants makes them from the source, and a few are
//! patches. The tests of both crates and a few hundred seeds of the simulation must notice each.

mod anticipated;
mod judge;
mod name;
mod patches;
mod results;

use crate::process::{status, target};
use crate::scratch::Scratch;
use crate::tools;
use clap::Args;
use judge::Judge;
use name::Name;
use results::{Results, Verdict};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The files and folders on which a verdict depends.
const JUDGED: [&str; 11] = [
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "crates/fabric",
    "crates/offers",
    "crates/policy",
    "crates/topology",
    "crates/transport",
    "testing/fabric-sim",
    "testing/patience",
    "testing/sim",
];

/// The most memory of a compiler or a test, in bytes: a mutant may ask for more and more.
const MOST_MEMORY: u64 = 8 << 30;

/// A mutant hangs if its tests take this many times as long as those of the unchanged tree, and longer than a busy
/// machine may take.
const TIMES: u32 = 5;
const SHORTEST_LIMIT: Duration = Duration::from_secs(60);

/// The exit codes of cargo-mutants after it has judged: all caught, some missed, some that hung. This chore ends with
/// the last two as well.
const JUDGED_ALL: [i32; 3] = [0, 2, 3];
const SOME_MISSED: u8 = 2;
const SOME_HUNG: u8 = 3;

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Test part K of N parts, counted from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Test this many, drawn by the seed
    #[arg(long, value_name = "N")]
    sample: Option<NonZeroUsize>,
    /// The seed of the sample
    #[arg(long, value_name = "S", default_value_t = 1, requires = "sample")]
    seed: u64,
    /// Test those whose names contain TEXT, even if their verdicts are known; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Test the bugs of testing/sim/mutants, none of which may be missed
    #[arg(long, conflicts_with_all = ["shard", "sample", "seed"])]
    anticipated: bool,
}

/// Tests the chosen mutants whose verdicts are not known yet, with `--only` all chosen ones. Prints the names of those
/// that are missed or time out, and the number of each verdict. Ends with 2 if one was missed, otherwise with 3 if one
/// timed out.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    limit_memory()?;
    let _lock = lock(&folder())?;
    let scratch = Scratch::new(folder().join("tree"))?;
    let tool = tools::MUTANTS.require()?;
    let all = list(&tool, &scratch, arguments.shard.as_deref())?;
    let bugs =
        if arguments.anticipated { anticipated::find(&scratch, &all, &arguments.only)? } else { BTreeMap::new() };
    let patches = if arguments.anticipated { patches::all(&arguments.only)? } else { Vec::new() };
    let wanted = if arguments.anticipated { bugs.keys().cloned().collect() } else { arguments.choose(all) };
    if wanted.is_empty() && patches.is_empty() {
        return Err("there is no such mutant".to_owned());
    }
    let mut results = Results::read(folder().join("results"), &stamp(&scratch)?)?;
    let is_open = |name: &&String| !arguments.only.is_empty() || !results.has(name);
    let open: Vec<&String> = wanted.iter().filter(is_open).collect();
    println!(
        "{} mutants, of which {} are known, and {} patches",
        wanted.len(),
        wanted.len() - open.len(),
        patches.len()
    );
    let mut verdicts = Vec::new();
    if !open.is_empty() || !patches.is_empty() {
        let judge = Judge::of(&scratch)?;
        let limit = (judge.pass(&scratch)? * TIMES).max(SHORTEST_LIMIT);
        if !open.is_empty() {
            let judged = try_out(&tool, &scratch, &open, limit, &results.last());
            results.collect()?;
            judged?;
        }
        verdicts = patches::run(&scratch, &judge, limit, &patches)?;
    }
    for (name, words) in &bugs {
        let verdict = results.verdict(name).map_or("not judged", Verdict::name);
        println!("{verdict}: {words}: {name}");
    }
    verdicts.extend(wanted.iter().filter_map(|name| results.verdict(name)));
    tell(&results, &wanted);
    let is_judged = verdicts.len() == wanted.len() + patches.len();
    // A bug that does not compile has not been made.
    let is_made = !arguments.anticipated || !verdicts.contains(&Verdict::Unviable);
    Ok(if !is_judged || !is_made {
        ExitCode::FAILURE
    } else if verdicts.contains(&Verdict::Missed) {
        ExitCode::from(SOME_MISSED)
    } else if verdicts.contains(&Verdict::Timeout) {
        ExitCode::from(SOME_HUNG)
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns the folder of the tree's copy and the results.
fn folder() -> PathBuf {
    target().join("mutants")
}

/// Returns a lock on this folder, which lasts until the process ends: a second run would change the copy that the first
/// one uses.
fn lock(folder: &Path) -> Result<File, String> {
    let path = folder.join("lock");
    let cannot = |error| format!("cannot open {}: {error}", path.display());
    fs::create_dir_all(folder).map_err(cannot)?;
    let file = File::create(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(format!("another cargo xtask mutants uses {}: wait until it has ended", folder.display()))
        }
        Err(TryLockError::Error(error)) => Err(format!("cannot lock {}: {error}", path.display())),
    }
}

/// Returns the stamp of results: the judged files, the compiler and cargo-mutants. Results are valid as long as it is
/// the same.
fn stamp(scratch: &Scratch) -> Result<String, String> {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.arg("-vV");
    let (code, compiler) = judge::output(command)?;
    if code != Some(0) {
        return Err(format!("the compiler does not say its version: {compiler}"));
    }
    Ok(format!("{}\ncargo-mutants {}\n{compiler}", scratch.fingerprint(&JUDGED)?, tools::MUTANTS.version))
}

impl Arguments {
    /// Chooses among all mutants. A sample draws by name, without its place: changes elsewhere in a file do not change
    /// it, and a mutant that is new or gone changes it by one.
    fn choose(&self, mut all: Vec<String>) -> BTreeSet<String> {
        if !self.only.is_empty() {
            all.retain(|name| self.only.iter().any(|text| name.contains(text)));
        }
        if let Some(sample) = self.sample {
            // Several may have the same name; then their order in the file distinguishes them.
            let mut counts = BTreeMap::new();
            let mut lots: Vec<(u64, String)> = Vec::new();
            for name in all {
                let unplaced = Name::parse(&name).map_or_else(|| name.clone(), Name::unplaced);
                let count: &mut u64 = counts.entry(unplaced.clone()).or_default();
                let bytes = [unplaced.as_bytes(), &self.seed.to_le_bytes(), &count.to_le_bytes()].concat();
                *count += 1;
                lots.push((hash(&bytes), name));
            }
            lots.sort();
            all = lots.into_iter().take(sample.get()).map(|(_, name)| name).collect();
        }
        all.into_iter().collect()
    }
}

/// Returns the 64 bits of FNV-1a: the same in every release of Rust.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Limits the memory of programs that this process starts from now on.
fn limit_memory() -> Result<(), String> {
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    let current = Some(maximum.map_or(MOST_MEMORY, |most| most.min(MOST_MEMORY)));
    setrlimit(Resource::As, Rlimit { current, maximum }).map_err(|error| format!("cannot limit memory: {error}"))
}

/// Returns the names of all mutants, or those of one shard.
fn list(tool: &Path, scratch: &Scratch, shard: Option<&str>) -> Result<Vec<String>, String> {
    let mut command = scratch.command(tool);
    command.args(["mutants", "--list", "--colors", "never"]);
    if let Some(shard) = shard {
        command.args(["--sharding", "round-robin", "--shard", shard]);
    }
    let output = command.output().map_err(|error| format!("cannot run {}: {error}", tool.display()))?;
    if !output.status.success() {
        return Err(format!("cargo-mutants lists nothing: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Makes cargo-mutants try these, each for at most `limit`, and leave its findings in `output`.
fn try_out(tool: &Path, scratch: &Scratch, names: &[&String], limit: Duration, output: &Path) -> Result<(), String> {
    let mut command = scratch.command(tool);
    // Its own baseline run would leave out the simulation.
    command.args(["mutants", "--in-place", "--baseline", "skip", "--timeout", &limit.as_secs().to_string()]);
    command.args(["--caught", "--unviable", "--output"]).arg(output);
    // Deleted fields pass its filter of names (cargo-mutants 27.1), so others in the same files are tried too.
    let files: BTreeSet<&str> = names.iter().filter_map(|name| Some(name.split_once(':')?.0)).collect();
    for file in files {
        command.args(["--file", file]);
    }
    for name in names {
        command.args(["--re", &format!("^{}$", regex_lite::escape(name))]);
    }
    match status(command)?.code() {
        Some(code) if JUDGED_ALL.contains(&code) => Ok(()),
        _ => Err(format!("cargo-mutants has not judged all; its logs are in {}", output.display())),
    }
}

/// Prints the verdicts of the chosen mutants.
fn tell(results: &Results, wanted: &BTreeSet<String>) {
    let among = |name: &str| wanted.contains(name);
    for verdict in [Verdict::Missed, Verdict::Timeout] {
        results.of(verdict, among).for_each(|name| println!("{}: {name}", verdict.name()));
    }
    let count = |verdict| format!("{} {}", results.of(verdict, among).count(), verdict.name());
    println!("{}", Verdict::ALL.map(count).join(", "));
    println!(
        "to repeat one: cargo xtask mutants --only 'NAME'; its log and diff are then in {}",
        results.last().display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{cargo, root};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Line::try_parse_from(std::iter::once(&"").chain(words)).map(|line| line.arguments)
    }

    fn chosen(words: &[&str]) -> BTreeSet<String> {
        choose(words, mutants(0))
    }

    fn choose(words: &[&str], all: Vec<String>) -> BTreeSet<String> {
        parse(words).unwrap().choose(all)
    }

    /// Returns a hundred mutants, four in each function, all moved by this many lines.
    fn mutants(lines: usize) -> Vec<String> {
        let name = |number| format!("src/a.rs:{}:9: replace > with < in function_{}", number + lines, number / 4);
        (0..100).map(name).collect()
    }

    #[test]
    fn a_sample_depends_on_its_seed_and_on_names() {
        let (first, other) = (chosen(&["--sample", "10"]), chosen(&["--sample", "10", "--seed", "2"]));
        assert_eq!((first.len(), other.len()), (10, 10));
        assert_eq!(first, chosen(&["--seed", "1", "--sample", "10"]));
        assert_ne!(first, other);
        assert!(first.is_subset(&chosen(&["--sample", "20"])), "a larger sample has a smaller one in it");
        let unplaced = |names: BTreeSet<String>| -> Vec<String> {
            let mut names: Vec<String> =
                names.iter().filter_map(|name| Name::parse(name)).map(Name::unplaced).collect();
            names.sort();
            names
        };
        let moved = choose(&["--sample", "10"], mutants(7));
        assert_eq!(unplaced(first), unplaced(moved), "an inserted line changes no sample");
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8, "FNV-1a, as its authors publish it");
    }

    #[test]
    fn only_those_with_a_text_are_wanted() {
        assert_eq!(chosen(&["--only", "a.rs:7"]).len(), 11);
        assert_eq!(chosen(&["--only", "a.rs:7:", "--only", "a.rs:12:"]).len(), 2);
        assert_eq!(chosen(&[]).len(), 100);
        for refused in
            [&["--sample", "all"][..], &["--sample", "0"], &["--seed", "2"], &["--anticipated", "--seed", "2"]]
        {
            assert!(parse(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn verdicts_depend_on_every_package_of_the_tests() {
        let judged = ["railweave-transport", "railweave-policy", "railweave-sim"];
        let mut tree = cargo(&["tree", "--offline", "--prefix", "none", "--edges", "all", "--format", "{p}"]);
        tree.args(judged.iter().flat_map(|name| ["--package", name]));
        let (code, said) = judge::output(tree).unwrap();
        assert_eq!(code, Some(0), "{said}");
        let root = format!("({}/", root().display());
        let folders: BTreeSet<&str> = said
            .lines()
            .filter_map(|line| line.split_once(&root)?.1.split_once(')'))
            .map(|(folder, _)| folder)
            .collect();
        assert!(folders.contains("crates/transport"), "{said}");
        let missing: Vec<&&str> = folders.iter().filter(|folder| !JUDGED.contains(folder)).collect();
        assert!(missing.is_empty(), "JUDGED lacks {missing:?}");
    }

    #[test]
    fn a_second_run_is_refused_while_the_first_one_lasts() {
        let folder = std::env::temp_dir().join(format!("railweave-mutants-{}", std::process::id()));
        let first = lock(&folder).unwrap();
        let error = lock(&folder).unwrap_err();
        assert!(error.starts_with("another cargo xtask mutants uses"), "{error}");
        // Closing is too little: a process that another test has forked, and that has not started its program yet, has
        // the file open too, and with it the lock (flock(2)).
        first.unlock().unwrap();
        lock(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
