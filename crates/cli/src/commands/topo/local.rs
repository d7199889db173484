//! The ports, devices and rails of this machine, and the ports that are left out, with the reasons.

use crate::output::{print, table};
use crate::topo::half::interface;
use crate::topo::svg::{self, DeviceBox, HostBox, PortBox};
use crate::topo::view::subnet;
use railweave_discovery::Found;
use railweave_options::Options;
use railweave_topology::NetworkAddress;
use serde::Serialize;

/// The output of `--json`.
#[derive(Serialize)]
pub(crate) struct Topology {
    /// The host's name.
    pub(crate) host: String,
    /// The fabric in use.
    pub(crate) fabric: &'static str,
    /// The mode in which ports became devices.
    mode: &'static str,
    /// The devices as NCCL sees and numbers them.
    pub(crate) devices: Vec<Device>,
    /// The addresses by which TCP reaches peers that RDMA does not, if it may be used.
    tcp_addresses: Vec<String>,
    /// The ports that were found but are not used.
    pub(crate) left_out: Vec<LeftOut>,
    /// The address for control sessions if no port reaches the peer.
    out_of_band: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) speed_mbps: u32,
    pub(crate) rails: Vec<Rail>,
}

/// A port, which becomes a rail of each connection of its device.
#[derive(Serialize)]
pub(crate) struct Rail {
    pub(crate) port: String,
    /// The network interface of the address, if known.
    pub(crate) interface: Option<String>,
    pub(crate) address: String,
    pub(crate) subnet: String,
    pub(crate) link_layer: &'static str,
    pub(crate) speed_mbps: Option<u32>,
    /// The part of the device's traffic in Mbit/s.
    carries_mbps: f64,
    mtu: u32,
    /// The directory of the PCI device.
    pub(crate) pci: Option<String>,
    /// The number of the port on its adapter.
    adapter_port: u8,
    rail_id: Option<i16>,
    plane_id: Option<i16>,
    /// The share of the device's traffic, 0 to 1, if the other end is as fast.
    pub(crate) share: f64,
    lanes: u8,
    /// The ways to GPU memory.
    gpu_memory: Vec<&'static str>,
    /// On RDMA, the GIDs that its lanes may use, best first.
    gids: Vec<Gid>,
}

#[derive(Serialize)]
pub(crate) struct Gid {
    /// Its index in the port's table.
    index: u32,
    address: String,
    /// The RoCE version; `None` on InfiniBand.
    roce_version: Option<u8>,
    interface: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct LeftOut {
    pub(crate) name: String,
    pub(crate) reason: String,
}

impl Topology {
    /// Returns the topology of this host. `tcp_addresses` are those by which TCP may take RDMA's place.
    pub(crate) fn new(found: &Found, options: &Options, host: &str, tcp_addresses: Vec<String>) -> Self {
        let devices = found.devices.iter().map(|device| {
            let shares = found.shares(device, options.weights.value);
            let rails = device.ports.iter().zip(shares).enumerate();
            let rails = rails.map(|(place, (port, share))| {
                Rail::new(found, device.speed_mbps, *port, share, options.lanes.value.on(place))
            });
            Device { name: device.name.clone(), speed_mbps: device.speed_mbps, rails: rails.collect() }
        });
        let left_out = found.left_out.iter();
        let left_out = left_out.map(|port| LeftOut { name: port.name.clone(), reason: port.reason.clone() });
        Self {
            host: host.to_owned(),
            fabric: found.fabric_name(),
            mode: found.mode.name(),
            tcp_addresses,
            devices: devices.collect(),
            left_out: left_out.collect(),
            out_of_band: found.out_of_band.map(|found| found.address.to_string()),
        }
    }
}

impl Rail {
    /// Returns the name of the port with its interface, if that has another name.
    fn name(&self) -> String {
        match &self.interface {
            Some(interface) if !self.port.starts_with(interface.as_str()) => format!("{} ({interface})", self.port),
            _ => self.port.clone(),
        }
    }

    /// Returns the rail of the port with this index.
    fn new(found: &Found, device_mbps: u32, port: usize, share: f64, lanes: u8) -> Self {
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
            interface: interface(found, port),
            subnet: subnet(&NetworkAddress::from(facts), facts.prefix_len),
            carries_mbps: f64::from(device_mbps) * share,
            adapter_port: facts.port_number,
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

/// Prints the topology.
pub(crate) fn show(topology: &Topology) -> std::io::Result<()> {
    print(format_args!("host {}, mode {}", topology.host, topology.mode))?;
    for (number, device) in topology.devices.iter().enumerate() {
        print(format_args!("device {number}: {} over {}, {} Mbit/s", device.name, topology.fabric, device.speed_mbps))?;
        let mut rails = table(
            &["rail", "port", "address", "subnet", "PCI device", "Mbit/s", "MTU", "lanes", "share", "carries"],
            5,
        );
        for (rail, port) in device.rails.iter().enumerate() {
            let last = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
            rails.add_row([
                rail.to_string(),
                port.name(),
                port.address.clone(),
                port.subnet.clone(),
                port.pci.as_ref().map_or_else(|| "-".to_owned(), last),
                port.speed_mbps.map_or_else(|| "unknown".to_owned(), |speed| speed.to_string()),
                port.mtu.to_string(),
                port.lanes.to_string(),
                format!("{:.1} %", 100.0 * port.share),
                format!("{:.0} Mbit/s", port.carries_mbps),
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
    if !topology.tcp_addresses.is_empty() {
        let addresses = topology.tcp_addresses.join(", ");
        print(format_args!("TCP stands by for peers that RDMA does not reach: {addresses}"))?;
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

/// Returns the drawing.
pub(crate) fn svg(topology: &Topology) -> String {
    let port_box = |rail: &Rail| {
        let speed = rail.speed_mbps.map_or_else(|| "unknown".to_owned(), |speed| format!("{speed} Mbit/s"));
        let pci = rail.pci.as_ref().and_then(|path| path.rsplit('/').next()).unwrap_or("none");
        let lines = vec![
            format!("{} on {}", rail.address, rail.subnet),
            format!("{}, speed {speed}, MTU {}", rail.link_layer, rail.mtu),
            format!("adapter {pci}, port {}", rail.adapter_port),
            format!("carries {:.0} Mbit/s, {:.1} %", rail.carries_mbps, 100.0 * rail.share),
        ];
        PortBox::new(rail.name(), lines, None)
    };
    let device = |(number, device): (usize, &Device)| DeviceBox {
        title: format!("device {number}: {}, {} Mbit/s", device.name, device.speed_mbps),
        ports: device.rails.iter().map(port_box).collect(),
    };
    let mut devices: Vec<DeviceBox> = topology.devices.iter().enumerate().map(device).collect();
    if !topology.left_out.is_empty() {
        let port = |port: &LeftOut| PortBox::new(port.name.clone(), Vec::new(), Some(port.reason.clone()));
        let ports = topology.left_out.iter().map(port).collect();
        devices.push(DeviceBox { title: "not used".to_owned(), ports });
    }
    let title = format!("{} over {}, mode {}", topology.host, topology.fabric, topology.mode);
    svg::one_host(&title, &HostBox { title: topology.host.clone(), devices })
}
