//! `railweave-instructions in-process`: the process that is measured, which holds both ends of every connection.

mod ends;
pub(crate) mod many_connections;
pub(crate) mod message_loop;

use clap::{Args, Subcommand, ValueEnum};
use railweave_fake_ibverbs::FakeVerbs;
use railweave_nccl_host::profiler::{CommunicatorInfo, Profiler, ProfilerPlugin};
use railweave_nccl_host::{LoadError, LoadedNet, NetApi, NetError, Plugin, logger};
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
    /// The profiler that watches the messages
    #[arg(long, value_enum, default_value_t = Watch::Nobody)]
    watch: Watch,
    #[command(subcommand)]
    task: Task,
}

/// The profiler that watches messages, whose handles they get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watch {
    /// The one in the plugin's own library, as NCCL does it by default; it sleeps, and messages have no handles
    #[default]
    Nobody,
    /// Another one, that wants no events
    Masked,
    /// Another one, that wants all events
    Events,
    /// The one in the plugin's own library, which is awake if RAILWEAVE_TRACE is set
    Trace,
}

impl Watch {
    /// Returns its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Loads the profiler for a plugin in this file; `None` if the file has none.
    fn load(self, plugin: &Path) -> Result<Option<ProfilerPlugin>, LoadError> {
        match self {
            Self::Nobody | Self::Trace => Ok(ProfilerPlugin::load(plugin, None).ok()),
            Self::Masked => ProfilerPlugin::plain(0).map(Some),
            Self::Events => ProfilerPlugin::plain(i32::MAX).map(Some),
        }
    }
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
    let Arguments { net: Net { plugin, nccl }, fuse, watch, task } = arguments;
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
    let loaded = watch.load(plugin.path())?;
    let net = plugin.init_with(1, None, loaded.as_ref())?;
    let info = CommunicatorInfo { comm_id: 1, hosts: 2, ranks: 2, ..CommunicatorInfo::default() };
    let profiler = loaded.as_ref().map(|loaded| loaded.init(info)).transpose()?;
    let calls = profiler.as_ref().filter(|_| *watch != Watch::Nobody).map(Profiler::call);
    let device = if *fuse { fuse_all(&net)? } else { 0 };
    let results = match task {
        Task::Messages(settings) => {
            serde_json::to_string_pretty(&message_loop::run(&net, device, &fake, STALL, (settings, calls))?)
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
