//! The devices that NCCL sees: one for each port, each adapter, or each group of ports.

use std::path::PathBuf;

use railweave_fabric::{LinkLayer, Mode, PointerSupport};

use crate::ChosenPort;
use crate::chosen::pci_device;

/// The speed assumed for a port of unknown speed, in Mbit/s; NCCL assumes the same.
pub const DEFAULT_SPEED_MBPS: u32 = 10_000;

/// The longest name of a device, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// A device as NCCL sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Unique and stable name of at most [`MAX_NAME_BYTES`]: the port's name, or the names joined by `+`.
    pub name: String,
    /// Indices of its ports among the chosen ones, at least one.
    pub ports: Vec<usize>,
    /// The sum of its ports' speeds in Mbit/s; an unknown speed counts as [`DEFAULT_SPEED_MBPS`]. At most `i32::MAX`,
    /// because NCCL's field is an `int`.
    pub speed_mbps: u32,
    /// The first port's PCI device; `None` for a virtual interface.
    pub pci_path: Option<PathBuf>,
    /// The identifier of the first port's adapter on RDMA; the device's index on TCP or if the adapter has none. NCCL
    /// lets devices of equal guid share one adapter's bandwidth.
    pub guid: u64,
    /// The first port's number, plus one for each earlier device on the same PCI device: NCCL treats devices of equal
    /// guid and number as the same port.
    pub port_number: u8,
    /// The kinds of memory that all its ports support; `data_direct` is true if it is true for any of them.
    pub pointers: PointerSupport,
    /// NCCL's rail id if all its ports have the same, otherwise `None`.
    pub rail_id: Option<i16>,
    /// NCCL's plane id if all its ports have the same, otherwise `None`.
    pub plane_id: Option<i16>,
}

/// Returns the devices made of `ports`, in the order of their first ports; none if there are no ports.
pub fn devices(ports: &[ChosenPort], mode: Mode) -> Vec<Device> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        match groups.iter_mut().find(|group| ports[group[0]].is_fused_with(port, mode)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    let mut made: Vec<Device> = Vec::new();
    for members in groups {
        let device = device(ports, members, &made);
        made.push(device);
    }
    made
}

fn device(ports: &[ChosenPort], members: Vec<usize>, earlier: &[Device]) -> Device {
    let first = &ports[members[0]];
    let is_rdma = first.facts.link_layer != LinkLayer::Tcp && first.facts.guid != 0;
    let guid = if is_rdma { first.facts.guid } else { earlier.len() as u64 };
    let port_number = port_number(first, earlier);
    joined(ports, members, guid, port_number)
}

/// Returns the device of `members`, at least one, with this identity.
pub(crate) fn joined(ports: &[ChosenPort], members: Vec<usize>, guid: u64, port_number: u8) -> Device {
    let of = |index: &usize| &ports[*index];
    let first = of(&members[0]);
    let names: Vec<&str> = members.iter().map(|index| of(index).facts.name.as_str()).collect();
    let speeds = members.iter().map(|index| of(index).facts.speed_mbps.filter(|&speed| speed > 0));
    let speed_mbps = speeds.fold(0, |sum: u32, speed| sum.saturating_add(speed.unwrap_or(DEFAULT_SPEED_MBPS)));
    let mut pointers = first.facts.pointers;
    for member in members.iter().map(of) {
        pointers.cuda &= member.facts.pointers.cuda;
        pointers.dma_buf &= member.facts.pointers.dma_buf;
        pointers.data_direct |= member.facts.pointers.data_direct;
    }
    Device {
        name: bounded_name(names.join("+")),
        speed_mbps: speed_mbps.min(i32::MAX as u32),
        pci_path: first.facts.pci_path.clone(),
        guid,
        port_number,
        pointers,
        rail_id: first.rail_id.filter(|_| members.iter().all(|index| of(index).rail_id == first.rail_id)),
        plane_id: first.plane_id.filter(|_| members.iter().all(|index| of(index).plane_id == first.plane_id)),
        ports: members,
    }
}

/// Returns the port's number, plus one for each earlier device on the same PCI device, as in NCCL's own transport. On
/// an adapter with several ports, each is often a PCI function of its own, with port number 1. Functions of one adapter
/// on different PCI buses may be the same port (both halves of a split link), so they share a number.
fn port_number(port: &ChosenPort, earlier: &[Device]) -> u8 {
    let own = port.facts.port_number;
    let place = pci_device(port.facts.pci_path.as_deref());
    // Devices of TCP have unlike guids.
    if port.facts.link_layer == LinkLayer::Tcp || place.is_none() {
        return own;
    }
    let neighbours = earlier.iter().filter(|device| pci_device(device.pci_path.as_deref()) == place).count();
    own.saturating_add(u8::try_from(neighbours).unwrap_or(u8::MAX))
}

/// Cuts a name that is too long, and appends a checksum of the whole name, so that cut names stay different.
fn bounded_name(name: String) -> String {
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    // FNV-1a: short, and the same on every host and in every version.
    let sum = name.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let tail = format!("~{sum:08x}");
    let room = MAX_NAME_BYTES - tail.len();
    let kept = (0..=room).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    // Cuts between members, unless the first is too long by itself.
    let kept = name[..kept].rfind('+').unwrap_or(kept);
    format!("{}{tail}", &name[..kept])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ports::{chosen, facts};
    use railweave_fabric::PortFacts;

    fn tcp(name: &str, speed_mbps: Option<u32>) -> ChosenPort {
        chosen(PortFacts { speed_mbps, ..facts(name) })
    }

    fn rdma(name: &str, pci: &str, guid: u64, port_number: u8) -> ChosenPort {
        let mut port = tcp(name, Some(100_000));
        port.facts.link_layer = LinkLayer::Roce;
        port.facts.pci_path = Some(format!("/sys/devices/pci0000:00/{pci}").into());
        port.facts.guid = guid;
        port.facts.port_number = port_number;
        port.facts.pointers = PointerSupport { cuda: true, dma_buf: true, data_direct: false };
        port
    }

    fn ids(devices: &[Device]) -> Vec<(u64, u8)> {
        devices.iter().map(|device| (device.guid, device.port_number)).collect()
    }

    #[test]
    fn each_port_is_a_device() {
        let made = devices(&[tcp("eth0", Some(25_000)), tcp("eth1", None), tcp("eth2", Some(0))], Mode::Ports);
        let shown: Vec<_> = made.iter().map(|d| (d.name.as_str(), d.ports.as_slice(), d.speed_mbps)).collect();
        assert_eq!(shown, [("eth0", &[0][..], 25_000), ("eth1", &[1][..], 10_000), ("eth2", &[2][..], 10_000)]);
        assert_eq!(ids(&made), [(0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn all_ports_are_one_device() {
        let mut second = rdma("mlx5_1", "0000:02:00.0", 8, 1);
        (second.facts.pointers.dma_buf, second.facts.pointers.data_direct) = (false, true);
        let ports = [rdma("mlx5_0", "0000:01:00.0", 7, 2), second];
        let made = devices(&ports, Mode::Fused);
        let expected = Device {
            name: "mlx5_0+mlx5_1".to_owned(),
            ports: vec![0, 1],
            speed_mbps: 200_000,
            pci_path: Some("/sys/devices/pci0000:00/0000:01:00.0".into()),
            guid: 7,
            port_number: 2,
            pointers: PointerSupport { cuda: true, dma_buf: false, data_direct: true },
            rail_id: None,
            plane_id: None,
        };
        assert_eq!(made, [expected]);
        assert!(devices(&[], Mode::Fused).is_empty());
        assert!(devices(&[], Mode::Ports).is_empty());
    }

    #[test]
    fn halves_of_a_link_are_told_from_ports_with_cables_of_their_own() {
        // A DGX Spark with two cables: each function has port number 1.
        let spark = ["0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1"].map(|pci| rdma(pci, pci, 7, 1));
        for (port, half) in [(0, 2), (1, 3), (2, 0), (3, 1)] {
            let halves = (0..4).filter(|other| spark[port].shares_link_with(&spark[*other]));
            assert_eq!(halves.collect::<Vec<_>>(), [half], "of {}", spark[port].facts.name);
        }
        for (other, why) in [
            (rdma("mlx5_3", "0002:01:00.0", 7, 2), "another port of the adapter"),
            (rdma("mlx5_4", "0002:01:00.0", 8, 1), "another adapter"),
            (tcp("eth0", None), "another fabric"),
        ] {
            assert!(!spark[0].shares_link_with(&other), "{why}");
        }
    }

    fn names(devices: &[Device]) -> Vec<&str> {
        devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn each_group_of_the_list_is_a_device() {
        let port = |name: &str, group| ChosenPort { group: Some(group), ..rdma(name, "0000:01:00.0", 7, 1) };
        let ports = [port("a", 0), port("b", 1), port("c", 0), port("d", 1), port("e", 2)];
        for mode in [Mode::Fused, Mode::Mesh] {
            assert_eq!(names(&devices(&ports, mode)), ["a+c", "b+d", "e"]);
        }
        assert_eq!(devices(&ports, Mode::Fused)[1].ports, [1, 3]);
    }

    #[test]
    fn each_adapter_is_a_device() {
        let ports = [
            rdma("a", "0000:01:00.0", 7, 1),
            rdma("b", "0000:02:00.0", 8, 1),
            rdma("half", "0002:01:00.0", 7, 1),
            rdma("b2", "0000:02:00.0", 8, 2),
        ];
        assert_eq!(names(&devices(&ports, Mode::Adapters)), ["a+half", "b+b2"]);
        let on = |name: &str, pci: &str| {
            let mut port = tcp(name, None);
            port.facts.pci_path = Some(format!("/sys/devices/pci0000:00/{pci}").into());
            port
        };
        let interfaces =
            [on("eth0", "0000:01:00.0"), on("eth1", "0000:01:00.1"), tcp("veth0", None), tcp("veth1", None)];
        assert_eq!(names(&devices(&interfaces, Mode::Adapters)), ["eth0+eth1", "veth0", "veth1"]);
    }

    #[test]
    fn ports_of_one_pci_device_have_different_numbers() {
        let functions = [rdma("a", "0000:01:00.0", 7, 1), rdma("b", "0000:01:00.1", 7, 1)];
        assert_eq!(ids(&devices(&functions, Mode::Ports)), [(7, 1), (7, 2)]);
        let ports = [rdma("a", "0000:01:00.0", 7, 1), rdma("a2", "0000:01:00.0", 7, 2)];
        assert_eq!(ids(&devices(&ports, Mode::Ports)), [(7, 1), (7, 3)], "NCCL counts such a port twice");
        let halves = [rdma("a", "0000:01:00.0", 7, 1), rdma("b", "0002:01:00.0", 7, 1)];
        assert_eq!(ids(&devices(&halves, Mode::Ports)), [(7, 1), (7, 1)]);
        let adapters = [rdma("a", "0000:01:00.0", 7, 1), rdma("b", "0000:01:00.1", 8, 1)];
        assert_eq!(ids(&devices(&adapters, Mode::Ports)), [(7, 1), (8, 2)], "whatever their guids");
        let apart = [rdma("a", "0000:01:02.0", 7, 1), rdma("b", "0000:01:03.0", 7, 1), rdma("c", "0000:01:02.0", 7, 1)];
        assert_eq!(ids(&devices(&apart, Mode::Ports)), [(7, 1), (7, 1), (7, 2)], "virtual functions kept apart");
        let nameless = [rdma("a", "0000:01:00.0", 0, 1), rdma("b", "0000:02:00.0", 0, 1)];
        assert_eq!(ids(&devices(&nameless, Mode::Ports)), [(0, 1), (1, 1)]);
    }

    #[test]
    fn rail_and_plane_hold_only_when_all_ports_agree() {
        let with = |rail_id, plane_id| ChosenPort { rail_id, plane_id, ..tcp("eth0", None) };
        let fused = |ports: &[ChosenPort]| {
            let device = devices(ports, Mode::Fused).remove(0);
            (device.rail_id, device.plane_id)
        };
        assert_eq!(fused(&[with(Some(1), Some(2)), with(Some(1), Some(2))]), (Some(1), Some(2)));
        assert_eq!(fused(&[with(Some(1), Some(2)), with(Some(3), Some(2))]), (None, Some(2)));
        assert_eq!(fused(&[with(Some(1), None), with(None, Some(0))]), (None, None));
    }

    #[test]
    fn speeds_do_not_overflow() {
        let made = devices(&[tcp("a", Some(u32::MAX - 1)), tcp("b", Some(u32::MAX - 1))], Mode::Fused);
        assert_eq!(made[0].speed_mbps, i32::MAX as u32);
    }

    #[test]
    fn long_names_are_cut_between_members_and_stay_different() {
        let fused = |last: &str| {
            let mut ports: Vec<_> = (0..7).map(|index| tcp(&format!("eth{index}@10.20.30.4{index}"), None)).collect();
            ports.push(tcp(last, None));
            devices(&ports, Mode::Fused).remove(0).name
        };
        let (one, other) = (fused("x"), fused("y"));
        assert!(one.starts_with("eth0@10.20.30.40+eth1@10.20.30.41+eth2@10.20.30.42~"), "{one}");
        assert!(one.len() <= MAX_NAME_BYTES);
        assert_ne!(one, other);
        assert_eq!(one, fused("x"));
        let longest = "n".repeat(MAX_NAME_BYTES);
        assert_eq!(bounded_name(longest.clone()), longest);
        let wide = bounded_name("é".repeat(40));
        assert!(wide.len() <= MAX_NAME_BYTES && wide.starts_with("éé"), "{wide}");
    }
}
