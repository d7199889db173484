//! `railweave-view observe`: the process that asks one side, in a namespace where a host's files are /sys.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use railweave_nccl_host::net::NetApi;
use railweave_nccl_host::{LoadedNet, NetError, Plugin, logger};

use crate::answer::{Answer, Device, Fused, REFUSED, fields};

/// The arguments of `observe`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// A group of devices to fuse, by their names and commas; may be repeated
    #[arg(long = "fuse", value_name = "NAMES")]
    groups: Vec<String>,
    /// Fuse also the devices of each PCI device, and those without any
    #[arg(long)]
    fuse_adapters: bool,
}

/// The side to ask.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Side {
    /// A plugin
    #[arg(long, value_name = "LIBRARY")]
    plugin: Option<PathBuf>,
    /// NCCL's own IB transport, in this library of NCCL
    #[arg(long, value_name = "LIBRARY")]
    nccl: Option<PathBuf>,
}

/// Asks, and prints the answer as JSON.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    observe(arguments).map_err(|error| error.to_string())
}

fn observe(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut out = only_for_results()?;
    logger::set_sink(|line| {
        if line.level <= logger::WARN {
            eprintln!("{}", line.text.trim_end());
        }
    });
    let plugin = match (&arguments.side.plugin, &arguments.side.nccl) {
        (Some(library), _) => Plugin::load(library, None)?,
        (None, Some(library)) => railweave_bench::nccl::load(library)?,
        (None, None) => unreachable!("clap requires one of them"),
    };
    let answer = match plugin.init(1, None) {
        Ok(net) => {
            let answer = ask(&net, arguments)?;
            net.finalize()?;
            answer
        }
        Err(NetError::Call { code, .. }) => Answer { init: Some(code.to_string()), ..Answer::default() },
        Err(error) => return Err(error.into()),
    };
    writeln!(out, "{}", serde_json::to_string(&answer)?)?;
    out.flush()?;
    // NCCL's transport has threads that nothing ends.
    std::process::exit(0);
}

fn ask(net: &LoadedNet, arguments: &Arguments) -> Result<Answer, NetError> {
    let devices = (0..net.devices()?).map(|device| Ok(fields(&net.properties(device)?)));
    let devices = devices.collect::<Result<Vec<Device>, NetError>>()?;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    if arguments.fuse_adapters {
        let mut adapters: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, device) in devices.iter().enumerate() {
            adapters.entry(&device["pciPath"]).or_default().push(index);
        }
        groups.extend(adapters.into_values().filter(|members| members.len() > 1));
        groups.sort();
    }
    let index = |name: &str| devices.iter().position(|device| device["name"] == name);
    groups.extend(arguments.groups.iter().filter_map(|names| names.split(',').map(index).collect()));
    let mut fused = Vec::new();
    for group in groups {
        let of = group.iter().map(|index| devices[*index]["name"].clone()).collect();
        let members: Vec<i32> = group.iter().filter_map(|index| i32::try_from(*index).ok()).collect();
        let device = match net.fuse(&members) {
            Ok(device) => fields(&net.properties(device)?),
            Err(NetError::Call { code, .. }) => Device::from([(REFUSED.to_owned(), code.to_string())]),
            Err(error) => return Err(error),
        };
        fused.push(Fused { of, device });
    }
    Ok(Answer { init: None, devices, fused })
}

/// Returns standard output for results alone: after this call, the output of libraries in this process goes to standard
/// error.
fn only_for_results() -> io::Result<File> {
    let results = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(results))
}
