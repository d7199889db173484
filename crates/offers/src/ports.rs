//! The ports of an offer: those of the device, then others of the host.

use railweave_fabric::PortFacts;
use railweave_topology::{ChosenPort, DEFAULT_SPEED_MBPS, Device};
use railweave_transport::{MAX_OFFERED_PORTS, PortOffer};

/// The ports that an offer, or the answer to one, may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The indices of the device's ports, then of those that may stand in for them.
    pub ports: Vec<usize>,
    /// The number of the latter.
    pub others: usize,
}

/// Returns the ports that a device offers, as indices into the host's ports.
pub fn offered(device: &Device, ports: &[ChosenPort]) -> Offered {
    let is_like = |facts: &PortFacts| {
        device.ports.iter().any(|index| ports[*index].facts.link_layer == facts.link_layer)
            && (facts.pointers.cuda || !device.pointers.cuda)
            && (facts.pointers.dma_buf || !device.pointers.dma_buf)
            // NCCL flushes for a device that it was told to flush for.
            && (device.pointers.data_direct || !facts.pointers.data_direct)
    };
    let others = (0..ports.len()).filter(|index| !device.ports.contains(index));
    let others = others.filter(|index| is_like(&ports[*index].facts));
    let others: Vec<usize> = others.take(MAX_OFFERED_PORTS - device.ports.len()).collect();
    let count = others.len();
    Offered { ports: [device.ports.clone(), others].concat(), others: count }
}

/// Returns a port as an offer shows it. `lanes`: the number that this end asks for.
pub fn port_offer(port: &ChosenPort, lanes: u8) -> PortOffer {
    PortOffer {
        link_layer: port.facts.link_layer,
        prefix_len: port.facts.prefix_len,
        lanes,
        speed_mbps: speed(&port.facts),
        mtu: port.facts.mtu,
        rail_id: port.rail_id.unwrap_or(-1),
        plane_id: port.plane_id.unwrap_or(-1),
        address: port.facts.wire_address(),
    }
}

/// Returns the weight of a port that shares its adapter's link with other ports of the offer, in Mbit/s, if halves of a
/// link share evenly: each reports the speed of the whole.
pub fn weight_among_halves(ports: &[ChosenPort], index: usize, offered: &[usize]) -> Option<u32> {
    let on_adapter = offered.iter().filter(|other| ports[**other].is_on_adapter_of(&ports[index]));
    let speeds: Vec<u64> = on_adapter.map(|other| u64::from(speed(&ports[*other].facts))).collect();
    let mean = speeds.iter().sum::<u64>() / speeds.len().max(1) as u64;
    (speeds.len() > 1).then(|| u32::try_from(mean).unwrap_or(u32::MAX))
}

/// Returns a port's speed in Mbit/s, or the usual one if it is not known.
pub fn speed(port: &PortFacts) -> u32 {
    port.speed_mbps.unwrap_or(DEFAULT_SPEED_MBPS)
}
