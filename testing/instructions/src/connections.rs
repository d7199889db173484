//! The cost of many connections over RDMA, ours next to that of NCCL's own IB transport (docs/performance.md).
//!
//! Both ends are in one process, over the fake libibverbs, which plays one adapter after another.

use crate::tools::{Tools, without_settings};
use clap::Args;
use serde::Deserialize;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The most files that one connection keeps open: those of NCCL's transport, with its listening socket.
const FILES_PER_CONNECTION: u64 = 8;

/// The arguments of `connections`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tools: Tools,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// The fake libibverbs' profile of an adapter; may be repeated
    #[arg(long = "profile", value_name = "NAME", default_values = ["connectx-7", "ionic"])]
    profiles: Vec<String>,
}

/// Measures, and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let Arguments { tools, count, profiles } = arguments;
    allow_files(u64::from(*count) * FILES_PER_CONNECTION);
    fs::create_dir_all(&tools.folder).map_err(|error| format!("cannot make {}: {error}", tools.folder.display()))?;
    let bench = Bench { tools, count: *count };
    let mut rows = Vec::new();
    for profile in profiles {
        rows.push(Row { profile, transport: "Railweave", cost: bench.measure(profile, "--lib", &tools.plugin)? });
        eprintln!("measured Railweave over {profile}");
        if let Some(nccl) = &tools.nccl {
            rows.push(Row { profile, transport: "NCCL", cost: bench.measure(profile, "--nccl", nccl)? });
            eprintln!("measured NCCL over {profile}");
        }
    }
    print!("{}", table(&rows, *count));
    Ok(())
}

/// Lets this process, and those that it starts, have this many files open, or as many as the hard limit allows.
fn allow_files(files: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(files, |most| most.min(files));
    if limit.current.is_some_and(|now| now < wanted) {
        limit.current = Some(wanted);
        // If this fails, a later call runs out of files, and its error names the limit.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The program that measures, with the number of connections.
struct Bench<'a> {
    tools: &'a Tools,
    count: u32,
}

impl Bench<'_> {
    fn measure(&self, profile: &str, option: &str, library: &Path) -> Result<Cost, String> {
        let Tools { program, fake, folder, .. } = self.tools;
        let machine = folder.join("connections-machine");
        // If several GIDs fit, NCCL reads their versions from sysfs, which does not have these devices; so only one
        // fits. It is also the address that Railweave dials.
        let gids = "gid.0 = ['fe80::1', 'roce1', 1]\ngid.1 = ['127.0.0.1', 'roce2', 1]\n";
        write(&machine, &format!("[[device]]\nname = 'sim0'\nprofile = '{profile}'\n[[device.port]]\n{gids}"))?;
        let mut command = Command::new(program);
        without_settings(&mut command);
        command.args(["bench", "--json", "--in-process", "--connections", &self.count.to_string()]);
        command.arg(option).arg(library);
        command.env("NCCL_IBVERBS_LIB", fake).env("RAILWEAVE_TEST_MACHINE", &machine);
        if option == "--lib" {
            command.env("RAILWEAVE_FABRIC", "verbs");
        }
        let output = command.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let last: Vec<&str> = words.lines().rev().take(5).collect();
            return Err(format!("{} over {profile} failed: {}", library.display(), last.join("; ")));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("the bench over {profile} printed no result: {error}"))
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The bench's result: times in seconds, and the bytes of memory that a connection takes.
#[derive(Debug, Deserialize)]
struct Cost {
    set_up_s: f64,
    teardown_s: f64,
    bytes_per_connection: f64,
    objects: Option<Objects>,
}

/// The objects of libibverbs of all connections together, and the bytes and entries in them.
#[derive(Debug, Deserialize)]
struct Objects {
    queue_pairs: u64,
    completion_queues: u64,
    shared_receive_queues: u64,
    regions: u64,
    region_bytes: u64,
    work_places: u64,
    completion_places: u64,
}

/// One line of the table.
struct Row<'a> {
    profile: &'a str,
    transport: &'a str,
    cost: Cost,
}

/// Returns the rows in Markdown, as docs/performance.md shows them: objects per connection, both ends together.
fn table(rows: &[Row<'_>], count: u32) -> String {
    let mut text = "\
| adapter | transport | QP | CQ | SRQ | MR | registered | work requests | completions | memory | set-up | teardown |
|---|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for Row { profile, transport, cost } in rows {
        let each = |count_of: fn(&Objects) -> u64| {
            cost.objects.as_ref().map(|objects| count_of(objects) as f64 / f64::from(count))
        };
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        let kib = |bytes: f64| format!("{:.1} KiB", bytes / 1024.0);
        text += &format!(
            "| {profile} | {transport} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} s | {:.2} s |\n",
            number(each(|objects| objects.queue_pairs)),
            number(each(|objects| objects.completion_queues)),
            number(each(|objects| objects.shared_receive_queues)),
            number(each(|objects| objects.regions)),
            each(|objects| objects.region_bytes).map_or_else(String::new, kib),
            each(|objects| objects.work_places).map_or_else(String::new, |places| format!("{places:.0}")),
            each(|objects| objects.completion_places).map_or_else(String::new, |places| format!("{places:.0}")),
            kib(cost.bytes_per_connection),
            cost.set_up_s,
            cost.teardown_s,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_cost_of_one_connection() {
        let json = r#"{"set_up_s": 1.5, "teardown_s": 0.25, "bytes_per_connection": 2048.0, "connections": 10,
            "objects": {"queue_pairs": 20, "completion_queues": 20, "shared_receive_queues": 5, "regions": 40,
            "region_bytes": 40960, "work_places": 1000, "completion_places": 2000}}"#;
        let row = |json| Row { profile: "ionic", transport: "NCCL", cost: serde_json::from_str(json).unwrap() };
        let text = table(&[row(json)], 10);
        let line = "| ionic | NCCL | 2.00 | 2.00 | 0.50 | 4.00 | 4.0 KiB | 100 | 200 | 2.0 KiB | 1.50 s | 0.25 s |\n";
        assert!(text.ends_with(line), "{text}");
        let cells: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [13; 3]);
    }
}
