//! `railweave-instructions in-process`: the process that is measured, which holds both ends of every connection.

mod ends;
pub(crate) mod many_connections;
pub(crate) mod message_loop;

use clap::{Args, Subcommand};
use railweave_fake_ibverbs::FakeVerbs;
use railweave_nccl_host::{LoadedNet, NetApi, NetError, Plugin, logger};
use std::env;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time without any progress.
const STALL: Duration = Duration::from_secs(30);

/// The arguments of `in-process`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    net: Net,
    /// Fuse all devices into one, and use that one instead of the first
    #[arg(long)]
    fuse: bool,
    #[command(subcommand)]
    task: Task,
}

/// The transport to measure.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Net {
    /// A plugin
    #[arg(long, value_name = "LIBRARY")]
    plugin: Option<PathBuf>,
    /// NCCL's own IB transport, in this library of NCCL
    #[arg(long, value_name = "LIBRARY")]
    nccl: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Carries messages over one connection
    Messages(message_loop::Settings),
    /// Sets up many connections and closes them
    Connections(many_connections::Settings),
}

/// Measures, and prints the results as JSON.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { net: Net { plugin, nccl }, fuse, task } = arguments;
    let mut out = only_for_results()?;
    let library =
        env::var_os("NCCL_IBVERBS_LIB").ok_or("NCCL_IBVERBS_LIB names no library; name the fake libibverbs")?;
    let fake = FakeVerbs::load(Path::new(&library))?;
    logger::set_sink(|line| {
        if line.level <= logger::WARN {
            eprintln!("{}", line.text.trim_end());
        }
    });
    let plugin = match (plugin, nccl) {
        (Some(library), _) => Plugin::load(library, None)?,
        (None, Some(library)) => railweave_bench::nccl::load(library)?,
        (None, None) => unreachable!("clap requires one of them"),
    };
    let net = plugin.init(1, None)?;
    let device = if *fuse { fuse_all(&net)? } else { 0 };
    let results = match task {
        Task::Messages(settings) => {
            serde_json::to_string_pretty(&message_loop::run(&net, device, &fake, STALL, settings)?)
        }
        Task::Connections(settings) => {
            serde_json::to_string_pretty(&many_connections::run(&net, device, &fake, STALL, settings)?)
        }
    };
    net.finalize()?;
    writeln!(out, "{}", results?)?;
    Ok(())
}

/// Fuses all devices that are not fused already, and returns the index of the new one.
fn fuse_all(net: &LoadedNet) -> Result<i32, NetError> {
    let mut members = Vec::new();
    for device in 0..net.devices()? {
        if net.properties(device)?.members.len() <= 1 {
            members.push(device);
        }
    }
    net.fuse(&members)
}

/// Returns standard output for results alone: after this call, the output of libraries in this process goes to standard
/// error.
fn only_for_results() -> io::Result<File> {
    let results = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(results))
}
