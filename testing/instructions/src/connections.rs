//! The cost of many connections over RDMA, ours next to that of NCCL's own IB transport (docs/performance.md).
//!
//! Both ends are in one process, over the fake libibverbs, which imitates one adapter after another.

use crate::in_process::many_connections::Results;
use crate::tools::{self, Tools, Transport};
use clap::Args;
use railweave_fake_ibverbs::Open;
use std::fs;
use std::path::{Path, PathBuf};
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
    let bench = Bench { program: tools::program()?, fake: tools::fake()?, folder: &tools.folder, count: *count };
    let mut rows = Vec::new();
    for profile in profiles {
        rows.push(Row {
            profile,
            transport: "Railweave",
            cost: bench.measure(profile, Transport::Railweave(&tools.plugin))?,
        });
        eprintln!("measured Railweave over {profile}");
        if let Some(nccl) = &tools.nccl {
            rows.push(Row { profile, transport: "NCCL", cost: bench.measure(profile, Transport::Nccl(nccl))? });
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

/// The program and the fake libibverbs, with the number of connections.
struct Bench<'a> {
    program: PathBuf,
    fake: PathBuf,
    /// The folder for the machine's description.
    folder: &'a Path,
    count: u32,
}

impl Bench<'_> {
    fn measure(&self, profile: &str, transport: Transport<'_>) -> Result<Results, String> {
        let Self { program, fake, folder, count } = self;
        let machine = folder.join("connections-machine");
        // If several GIDs fit, NCCL reads their versions from sysfs, which does not have these devices; so only one
        // fits. It is also the address that Railweave dials.
        let gids = "gid.0 = ['fe80::1', 'roce1', 1]\ngid.1 = ['127.0.0.1', 'roce2', 1]\n";
        write(&machine, &format!("[[device]]\nname = 'sim0'\nprofile = '{profile}'\n[[device.port]]\n{gids}"))?;
        let mut command = Command::new(program);
        transport.measured_by(&mut command, fake, &machine, false);
        command.args(["connections", "--connections", &count.to_string()]);
        let output = command.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        if !output.status.success() {
            let words = tools::last_words(&output.stderr);
            return Err(format!("{} over {profile} failed: {words}", transport.library().display()));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("the results over {profile} cannot be read: {error}"))
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// One line of the table.
struct Row<'a> {
    profile: &'a str,
    transport: &'a str,
    cost: Results,
}

/// Returns the rows in Markdown, as docs/performance.md shows them: objects per connection, both ends together.
fn table(rows: &[Row<'_>], count: u32) -> String {
    let mut text = "\
| adapter | transport | QP | CQ | SRQ | MR | registered | work requests | completions | memory | set-up | teardown |
|---|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for Row { profile, transport, cost } in rows {
        let Results { set_up_s, teardown_s, bytes_per_connection, objects, .. } = cost;
        let Open { queue_pairs, completion_queues, shared_receive_queues, regions, .. } = *objects;
        let counts = [queue_pairs, completion_queues, shared_receive_queues, regions];
        let counts = counts.map(|all| format!(" {:.2} |", f64::from(all) / f64::from(count))).concat();
        let each = |all: u64| all as f64 / f64::from(count);
        text += &format!(
            "| {profile} | {transport} |{counts} {:.1} KiB | {:.0} | {:.0} | {:.1} KiB | {set_up_s:.2} s | \
             {teardown_s:.2} s |\n",
            each(objects.region_bytes) / 1024.0,
            each(objects.work_places),
            each(objects.completion_places),
            bytes_per_connection / 1024.0,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_cost_of_one_connection() {
        let objects = Open {
            queue_pairs: 20,
            completion_queues: 20,
            shared_receive_queues: 5,
            regions: 40,
            region_bytes: 40960,
            work_places: 1000,
            completion_places: 2000,
            ..Open::default()
        };
        let (set_up_s, messages_s, teardown_s) = (1.5, 1.0, 0.25);
        let cost = Results { set_up_s, messages_s, teardown_s, bytes_per_connection: 2048.0, objects };
        let text = table(&[Row { profile: "ionic", transport: "NCCL", cost }], 10);
        let line = "| ionic | NCCL | 2.00 | 2.00 | 0.50 | 4.00 | 4.0 KiB | 100 | 200 | 2.0 KiB | 1.50 s | 0.25 s |\n";
        assert!(text.ends_with(line), "{text}");
        let cells: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [13; 3]);
    }
}
