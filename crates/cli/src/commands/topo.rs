//! `railweave topo`: the ports, devices and rails of this machine, and the ports that are left out, with the reasons.

use crate::environment;
use crate::network;
use crate::output::{print, table};
use clap::Args;
use railweave_discovery::Found;
use railweave_options::Options;
use serde::Serialize;
use std::error::Error;

/// Arguments of `railweave topo`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Prints the topology as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Topology {
    /// The fabric in use.
    fabric: &'static str,
    /// The devices as NCCL sees and numbers them.
    devices: Vec<Device>,
    /// The ports that were found but are not used.
    left_out: Vec<LeftOut>,
    /// The address for control sessions if no port reaches the peer.
    out_of_band: Option<String>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    speed_mbps: u32,
    rails: Vec<Rail>,
}

/// A port, which becomes a rail of each connection of its device.
#[derive(Serialize)]
struct Rail {
    port: String,
    address: String,
    link_layer: &'static str,
    speed_mbps: Option<u32>,
    mtu: u32,
    /// The directory of the PCI device.
    pci: Option<String>,
    rail_id: Option<i16>,
    plane_id: Option<i16>,
    /// The share of the device's traffic, 0 to 1, if the other end is as fast.
    share: f64,
    lanes: u8,
    /// The ways to GPU memory.
    gpu_memory: Vec<&'static str>,
    /// On RDMA, the GIDs that its lanes may use, best first.
    gids: Vec<Gid>,
}

#[derive(Serialize)]
struct Gid {
    /// Its index in the port's table.
    index: u32,
    address: String,
    /// The RoCE version; `None` on InfiniBand.
    roce_version: Option<u8>,
    interface: Option<String>,
}

#[derive(Serialize)]
struct LeftOut {
    name: String,
    reason: String,
}

impl Topology {
    fn new(found: &Found, options: &Options) -> Self {
        let devices = found.devices.iter().map(|device| {
            let shares = found.shares(device, options.weights.value);
            let rails = device.ports.iter().zip(shares).enumerate();
            let rails =
                rails.map(|(place, (port, share))| Rail::new(found, *port, share, options.lanes.value.on(place)));
            Device { name: device.name.clone(), speed_mbps: device.speed_mbps, rails: rails.collect() }
        });
        let left_out = found.left_out.iter();
        let left_out = left_out.map(|port| LeftOut { name: port.name.clone(), reason: port.reason.clone() });
        Self {
            fabric: found.fabric_name(),
            devices: devices.collect(),
            left_out: left_out.collect(),
            out_of_band: found.out_of_band.map(|found| found.address.to_string()),
        }
    }
}

impl Rail {
    /// Returns the rail of the port with this index.
    fn new(found: &Found, port: usize, share: f64, lanes: u8) -> Self {
        let chosen = &found.ports[port];
        let facts = &chosen.facts;
        let gids = found.gids(port).iter().map(|gid| Gid {
            index: gid.index,
            address: format!("{}/{}", gid.address(), gid.prefix_len),
            roce_version: gid.version,
            interface: gid.interface.clone(),
        });
        Self {
            port: facts.name.clone(),
            address: format!("{}/{}", facts.address, facts.prefix_len),
            link_layer: facts.link_layer.name(),
            speed_mbps: facts.speed_mbps,
            mtu: facts.mtu,
            pci: facts.pci_path.as_ref().map(|path| path.display().to_string()),
            rail_id: chosen.rail_id,
            plane_id: chosen.plane_id,
            share,
            lanes,
            gpu_memory: [("peer memory", facts.pointers.cuda), ("dma-buf", facts.pointers.dma_buf)]
                .into_iter()
                .filter_map(|(name, is_there)| is_there.then_some(name))
                .collect(),
            gids: gids.collect(),
        }
    }
}

/// Shows what the plugin would use here, with this environment.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let options = environment::options()?;
    let topology = Topology::new(&network::look(&options)?, &options);
    if arguments.json {
        return Ok(print(serde_json::to_string_pretty(&topology)?)?);
    }
    show(&topology)?;
    Ok(())
}

fn show(topology: &Topology) -> std::io::Result<()> {
    for (number, device) in topology.devices.iter().enumerate() {
        print(format_args!("device {number}: {} over {}, {} Mbit/s", device.name, topology.fabric, device.speed_mbps))?;
        let mut rails = table(&["rail", "port", "address", "PCI device", "Mbit/s", "MTU", "lanes", "share"], 4);
        for (rail, port) in device.rails.iter().enumerate() {
            let last = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
            rails.add_row([
                rail.to_string(),
                port.port.clone(),
                port.address.clone(),
                port.pci.as_ref().map_or_else(|| "-".to_owned(), last),
                port.speed_mbps.map_or_else(|| "unknown".to_owned(), |speed| speed.to_string()),
                port.mtu.to_string(),
                port.lanes.to_string(),
                format!("{:.1} %", 100.0 * port.share),
            ]);
        }
        print(rails)?;
        for port in device.rails.iter().filter(|port| !port.gids.is_empty()) {
            show_rdma(port)?;
        }
    }
    if let Some(address) = &topology.out_of_band {
        print(format_args!("control sessions use {address} if no rail's address reaches the peer"))?;
    }
    for port in &topology.left_out {
        print(format_args!("left out: {}: {}", port.name, port.reason))?;
    }
    Ok(())
}

/// Shows the properties that only an RDMA port has: its GIDs and its ways to GPU memory.
fn show_rdma(port: &Rail) -> std::io::Result<()> {
    let gid = |gid: &Gid| {
        let version = gid.roce_version.map(|version| format!("RoCE v{version}"));
        let notes: Vec<String> = version.into_iter().chain(gid.interface.clone()).collect();
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
        format!("{} is {}{notes}", gid.index, gid.address)
    };
    let gids: Vec<String> = port.gids.iter().map(gid).collect();
    let memory = if port.gpu_memory.is_empty() { "none".to_owned() } else { port.gpu_memory.join(" and ") };
    print(format_args!("{}: {}; GID {}; way to GPU memory: {memory}", port.port, port.link_layer, gids.join(", GID ")))
}
