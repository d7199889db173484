//! Helpers of the scenarios. They load the built library as NCCL does and call it through its tables; nothing here
//! looks inside the plugin.
#![allow(clippy::disallowed_types, reason = "tests are not the data path")]
#![allow(dead_code, unused_imports, reason = "each file of scenarios uses a part of this")]

mod buffer;
mod heap;
mod logs;
mod namespace;
mod pair;
mod process;
mod random;
mod refused;
mod relay;
mod stranger;
pub(crate) mod traces;

pub(crate) use buffer::Buffer;
pub(crate) use heap::{heap_bytes, until_heap_is_freed};
pub(crate) use logs::{info_lines, trace_lines, warnings, warnings_with};
pub(crate) use namespace::{in_namespace, ip, until_carrier};
pub(crate) use pair::{Pair, Received, accept, connect, listen};
pub(crate) use process::{Peer, UNSET, alone, each, run_dir, with_peer};
pub(crate) use railweave_patience::{in_time, until, until_freed, until_within};
pub(crate) use random::{Random, noise};
pub(crate) use refused::init_refused;
pub(crate) use relay::Relay;
pub(crate) use stranger::{OUR_VERSIONS, Stranger};

use railweave_nccl_host::{LoadedNet, Plugin};
use std::path::PathBuf;

/// Two rails between a process and itself, or another one on this machine.
pub(crate) const TWO_RAILS: (&str, &str) = ("RAILWEAVE_RAILS", "127.0.0.1/32,127.0.0.2/32");

/// One rail.
pub(crate) const ONE_RAIL: (&str, &str) = ("RAILWEAVE_RAILS", "127.0.0.1/32");

/// Returns the path of the library under test: the one named by RAILWEAVE_TEST_LIB, otherwise the one that cargo built
/// for these tests.
pub(crate) fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("RAILWEAVE_TEST_LIB") {
        return path.into();
    }
    // Integration tests depend on the package's library, so cargo builds every crate type of it next to them.
    let tests = std::env::current_exe().expect("a test knows its own program");
    let path = tests.with_file_name("libnccl_net_railweave.so");
    assert!(
        path.exists(),
        "{} is not there; run `cargo build -p railweave-plugin` or `cargo xtask test`",
        path.display()
    );
    path
}

/// Loads the library with this version of the API, or with the newest.
pub(crate) fn load(version: Option<u32>) -> Plugin {
    logs::keep();
    Plugin::load(&library(), version).expect("the library loads")
}

/// Loads the library and starts it for one communicator.
pub(crate) fn start() -> (Plugin, LoadedNet) {
    let plugin = load(None);
    let net = plugin.init(1, None).expect("init succeeds");
    (plugin, net)
}

/// Returns the number of this process's open descriptors, without that of its telemetry file, which the control thread
/// opens at some time.
pub(crate) fn descriptors() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").filter_map(Result::ok);
    let is_telemetry = |path: PathBuf| {
        // The file is renamed once it is complete, and may have been removed.
        let name = path.to_string_lossy().into_owned();
        [".railweave", ".new"].iter().any(|ending| name.trim_end_matches(" (deleted)").ends_with(ending))
    };
    let others = entries.filter(|entry| !std::fs::read_link(entry.path()).is_ok_and(is_telemetry));
    // One of them is open for the listing itself.
    others.count() - 1
}

/// The variable with the file for the results of measurements.
const TABLE: &str = "RAILWEAVE_TEST_TABLE";

/// Returns true if measurements are wanted.
pub(crate) fn measures() -> bool {
    std::env::var_os(TABLE).is_some()
}

/// Adds a line to the results of measurements.
pub(crate) fn report(line: &str) {
    let path = std::env::var_os(TABLE).expect("measurements are wanted");
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("it can be written");
    std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).expect("it can be written");
}

/// Returns the number of this process's control threads.
pub(crate) fn control_threads() -> usize {
    let list = || -> Vec<_> {
        let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
        tasks.filter_map(|task| Some(task.ok()?.path())).collect()
    };
    // While a thread ends, a listing may miss others. Two listings in a row that agree are taken as complete.
    let (mut tasks, mut again) = (list(), list());
    while tasks != again {
        (tasks, again) = (again, list());
    }
    let stats = tasks.iter().filter_map(|task| std::fs::read_to_string(task.join("stat")).ok());
    stats.filter(|stat| stat.contains("(railweave-ctl)") && !is_ending(stat)).count()
}

/// Returns true if the thread with this `stat` is exiting: it is still listed for a moment after it was joined.
fn is_ending(stat: &str) -> bool {
    // proc_pid_stat(5): flags is the seventh field after the name. PF_EXITING is from the kernel's
    // include/linux/sched.h.
    const PF_EXITING: u64 = 4;
    let flags = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_EXITING != 0)
}
