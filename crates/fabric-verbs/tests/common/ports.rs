//! The ports of a machine, as far as the library knows them: without the kernel's files, and with the default rules.

use std::sync::Arc;

use railweave_fabric::{LinkLayer, PointerSupport, PortFacts};
use railweave_fabric_verbs::gid::{GidRules, eligible};
use railweave_fabric_verbs::sys::{self, Functions};
use railweave_fabric_verbs::{Device, Engine, GidTable, Mlx5, VerbsPort, takes_dma_bufs};

/// Opens every device. Returns the ports that are active and have a GID; if `has_engines`, with their devices' Data
/// Direct engines.
pub(crate) fn ports(functions: &Arc<Functions>, has_engines: bool) -> Vec<VerbsPort> {
    let mlx5 = Mlx5::new(functions.name());
    let mut ports = Vec::new();
    for device in Device::open_all(functions).unwrap() {
        let device = device.unwrap_or_else(|(name, error)| panic!("{name} cannot be opened: {error}"));
        let attributes = device.attributes().unwrap();
        let takes_dma_bufs = takes_dma_bufs(&device);
        let engine = match has_engines && takes_dma_bufs {
            true => mlx5.engine(&device, &attributes).unwrap(),
            false => None,
        };
        let pointers = PointerSupport { cuda: false, dma_buf: takes_dma_bufs, data_direct: engine.is_some() };
        let numbers = 1..=attributes.phys_port_cnt;
        ports.extend(numbers.filter_map(|number| port(&device, number, pointers, engine.clone())));
    }
    ports
}

fn port(device: &Arc<Device>, number: u8, pointers: PointerSupport, engine: Option<Engine>) -> Option<VerbsPort> {
    let attributes = device.port_attributes(number).unwrap();
    if attributes.state != sys::PORT_ACTIVE {
        return None;
    }
    let link_layer = match attributes.link_layer {
        sys::LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
        _ => LinkLayer::Roce,
    };
    let table = GidTable {
        device: Arc::clone(device),
        port: number,
        link_layer,
        rules: GidRules::default(),
        addresses: Arc::new(Vec::new),
        versions: Arc::new(|_| None),
        filter: None,
    };
    let gids = eligible(&table.read(attributes.gid_tbl_len), link_layer, &table.rules);
    let best = gids.first()?;
    let facts = PortFacts {
        name: device.name().to_owned(),
        device: device.name().to_owned(),
        link_layer,
        address: best.address(),
        prefix_len: best.prefix_len,
        speed_mbps: None,
        mtu: 4096,
        pci_path: None,
        bus_id: None,
        guid: 0,
        port_number: number,
        pointers,
    };
    Some(VerbsPort { facts, device: Arc::clone(device), number, attributes, gids, table, engine })
}
