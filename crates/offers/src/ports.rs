//! The ports of an offer: those of the device, then others of the host.

use railweave_fabric::PortFacts;
use railweave_topology::{ChosenPort, DEFAULT_SPEED_MBPS, Device};
use railweave_transport::{MAX_OFFERED_PORTS, PortOffer};

/// The ports that an offer, or the answer to one, may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The indices of the device's ports, then of those that may take their place.
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

/// Returns the place in its own device of a port of an offer: of the device itself, or of the one among `found`, the
/// devices that discovery made.
pub fn place_in_device<'a>(offered: &Offered, place: usize, found: impl IntoIterator<Item = &'a Device>) -> usize {
    if place < offered.ports.len() - offered.others {
        return place;
    }
    let index = offered.ports[place];
    found.into_iter().find_map(|device| device.ports.iter().position(|port| *port == index)).unwrap_or(0)
}

/// Returns the weight of a port that shares its link with other ports of the offer, in Mbit/s, if halves of a link
/// share evenly: each reports the speed of the whole.
pub fn weight_among_halves(ports: &[ChosenPort], index: usize, offered: &[usize]) -> Option<u32> {
    let own = &ports[index];
    // No port shares a link with itself.
    let halves = offered.iter().filter(|other| ports[**other].shares_link_with(own));
    let speeds: Vec<u64> = halves.map(|other| u64::from(speed(&ports[*other].facts))).collect();
    let mean = (speeds.iter().sum::<u64>() + u64::from(speed(&own.facts))) / (speeds.len() as u64 + 1);
    (!speeds.is_empty()).then_some(mean as u32)
}

/// Returns a port's speed in Mbit/s, or the usual one if it is not known.
pub fn speed(port: &PortFacts) -> u32 {
    port.speed_mbps.unwrap_or(DEFAULT_SPEED_MBPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ports::chosen;
    use railweave_fabric::{LinkLayer, Mode, PointerSupport};

    /// A port of the adapter 7.
    fn on_pci(pci: &str, speed_mbps: u32) -> ChosenPort {
        let port = chosen("10.0.0.1");
        let facts = PortFacts { pci_path: Some(pci.into()), guid: 7, speed_mbps: Some(speed_mbps), ..port.facts };
        ChosenPort { facts, ..port }
    }

    /// The places of the ports that a device of the first port offers after it.
    fn others(ports: &[ChosenPort]) -> Vec<usize> {
        let found = railweave_topology::devices(ports, Mode::Ports);
        let offered = offered(&found[0], ports);
        assert_eq!((offered.ports[0], offered.others), (0, offered.ports.len() - 1));
        offered.ports[1..].to_vec()
    }

    #[test]
    fn a_device_offers_the_other_ports_of_its_kind_that_take_the_same_memory() {
        let with = |cuda, dma_buf, data_direct| {
            let port = chosen("10.0.0.1");
            let pointers = PointerSupport { cuda, dma_buf, data_direct };
            ChosenPort { facts: PortFacts { pointers, ..port.facts }, ..port }
        };
        for (own, other, is_offered) in [
            (with(false, false, false), with(false, false, false), true),
            (with(false, false, false), with(true, true, false), true),
            (with(true, false, false), with(false, true, false), false),
            (with(true, false, false), with(true, false, false), true),
            (with(false, true, false), with(true, false, false), false),
            (with(false, true, false), with(false, true, false), true),
            (with(false, false, false), with(false, false, true), false),
            (with(false, false, true), with(false, false, false), true),
            (with(false, false, true), with(false, false, true), true),
        ] {
            let ports = [own, other];
            assert_eq!(others(&ports).len(), usize::from(is_offered), "{ports:?}");
        }
        let of = |link_layer| {
            let port = chosen("10.0.0.1");
            ChosenPort { facts: PortFacts { link_layer, ..port.facts }, ..port }
        };
        assert_eq!(others(&[of(LinkLayer::Roce), of(LinkLayer::InfiniBand), of(LinkLayer::Roce)]), [2]);
        // A fused device may be of both kinds.
        let [roce, infiniband] = [LinkLayer::Roce, LinkLayer::InfiniBand].map(of);
        let fused = railweave_topology::devices(&[roce.clone(), infiniband.clone()], Mode::Fused);
        assert_eq!(offered(&fused[0], &[roce.clone(), infiniband, roce]).ports, [0, 1, 2]);
    }

    #[test]
    fn an_offer_has_room_for_sixteen_ports() {
        let ports: Vec<_> = (0..20).map(|port| chosen(&format!("10.0.{port}.1"))).collect();
        assert_eq!(others(&ports), (1..16).collect::<Vec<_>>());
    }

    #[test]
    fn an_offer_shows_a_port_as_it_was_found() {
        let port = chosen("10.0.0.1");
        let expected = PortOffer {
            link_layer: LinkLayer::Roce,
            prefix_len: 24,
            lanes: 3,
            speed_mbps: 100_000,
            mtu: 4096,
            rail_id: -1,
            plane_id: -1,
            address: "::ffff:10.0.0.1".parse().unwrap(),
        };
        assert_eq!(port_offer(&port, 3), expected);
        let of_rail = ChosenPort { rail_id: Some(0), plane_id: Some(1), ..port.clone() };
        assert_eq!(port_offer(&of_rail, 3), PortOffer { rail_id: 0, plane_id: 1, ..expected });
        let unknown = ChosenPort { facts: PortFacts { speed_mbps: None, ..port.facts.clone() }, ..port };
        assert_eq!(port_offer(&unknown, 3).speed_mbps, DEFAULT_SPEED_MBPS);
    }

    #[test]
    fn halves_of_a_link_share_evenly_and_cables_of_their_own_by_speed() {
        let halves = [on_pci("0000:01:00.0", 200_000), on_pci("0002:01:00.0", 100_000)];
        assert_eq!([0, 1].map(|index| weight_among_halves(&halves, index, &[0, 1])), [Some(150_000); 2]);
        assert_eq!(weight_among_halves(&halves, 0, &[0]), None, "the other is not offered");
        let three = [200_000, 100_000, 30_000].iter().zip(["0000", "0002", "0004"]);
        let three: Vec<_> = three.map(|(speed, domain)| on_pci(&format!("{domain}:01:00.0"), *speed)).collect();
        assert_eq!(weight_among_halves(&three, 1, &[0, 1, 2]), Some(110_000));
        let cables = [on_pci("0000:01:00.0", 200_000), on_pci("0000:01:00.1", 100_000)];
        assert_eq!([0, 1].map(|index| weight_among_halves(&cables, index, &[0, 1])), [None; 2]);
        let both = [
            on_pci("0000:01:00.0", 200_000),
            on_pci("0000:01:00.1", 100_000),
            on_pci("0002:01:00.0", 200_000),
            on_pci("0002:01:00.1", 100_000),
        ];
        let weights = [0, 1, 2, 3].map(|index| weight_among_halves(&both, index, &[0, 1, 2, 3]));
        assert_eq!(weights, [200_000, 100_000, 200_000, 100_000].map(Some), "each with the half on the other bus");
    }

    #[test]
    fn a_port_has_one_place_whichever_device_offers_it() {
        let grouped: Vec<ChosenPort> =
            [("10.0.0.1", 0), ("10.0.1.1", 0), ("10.0.2.1", 1), ("10.0.3.1", 1), ("10.0.4.1", 1)]
                .map(|(address, group)| ChosenPort { group: Some(group), ..chosen(address) })
                .into();
        let found = railweave_topology::devices(&grouped, Mode::Fused);
        let places = |device: usize| {
            let offered = offered(&found[device], &grouped);
            (0..5).map(|place| (offered.ports[place], place_in_device(&offered, place, &found))).collect::<Vec<_>>()
        };
        assert_eq!(places(0), [(0, 0), (1, 1), (2, 0), (3, 1), (4, 2)]);
        assert_eq!(places(1), [(2, 0), (3, 1), (4, 2), (0, 0), (1, 1)]);
        let offered = offered(&found[0], &grouped);
        assert_eq!(place_in_device(&offered, 3, &found[..1]), 0, "no device was found with it");
        // A virtual device is not among those that were found.
        let found = railweave_topology::devices(&grouped, Mode::Ports);
        let fused = railweave_topology::virtual_device(&grouped, &found.iter().collect::<Vec<_>>(), &[1, 3]).unwrap();
        let offered = super::offered(&fused, &grouped);
        assert_eq!([0, 1, 2].map(|place| place_in_device(&offered, place, &found)), [0, 1, 0]);
    }
}
