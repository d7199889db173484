//! Virtual devices: NCCL asks for one over several devices, and decides which (`NCCL_NET_MERGE_LEVEL`,
//! `NCCL_NET_FORCE_MERGE`).

use std::fmt;

use railweave_fabric::{LinkLayer, MAX_RAILS};

use crate::device::joined;
use crate::{ChosenPort, Device};

/// The reason why devices cannot be fused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFused {
    /// The number of members is 0, or more than the rails of a connection.
    Count(usize),
    /// There is no device with this index; the number of devices follows.
    Missing(usize, usize),
    /// A member, by its name, has several ports already.
    Several(String),
    /// A member, by its name, is named twice.
    Twice(String),
    /// Two members, by their names, have unlike link layers.
    LinkLayers([(String, LinkLayer); 2]),
}

impl fmt::Display for NotFused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => {
                write!(out, "{count} devices cannot be fused; allowed: 1 to {MAX_RAILS}; name fewer of them")
            }
            Self::Missing(index, count) => {
                write!(out, "device {index} does not exist; allowed: 0 to {}", count.saturating_sub(1))
            }
            Self::Several(name) => {
                write!(out, "device {name} has several ports already; fuse devices of one port each")
            }
            Self::Twice(name) => write!(out, "device {name} is named twice; name each device once"),
            Self::LinkLayers([(name, layer), (other, others)]) => write!(
                out,
                "{name} is {} and {other} is {}, and no connection has both; fuse devices of one kind \
                 (NCCL_NET_FORCE_MERGE names groups)",
                layer.name(),
                others.name()
            ),
        }
    }
}

impl std::error::Error for NotFused {}

/// Returns the device over the ports of `members`, which are indices into `devices`. As in NCCL's own transport (seen
/// with 2.32), the order in which they are named makes no difference: members of lower planes come first, and in one
/// plane those of lower indices. The device's identity (PCI device, guid, port number) is that of its first member.
///
/// # Errors
/// If the members cannot be rails of one connection.
pub fn virtual_device(ports: &[ChosenPort], devices: &[&Device], members: &[usize]) -> Result<Device, NotFused> {
    let mut members = members.to_vec();
    let plane = |member: usize| devices.get(member).and_then(|device| device.plane_id);
    members.sort_by_key(|&member| (plane(member), member));
    if !(1..=MAX_RAILS).contains(&members.len()) {
        return Err(NotFused::Count(members.len()));
    }
    let mut joined_ports: Vec<usize> = Vec::with_capacity(members.len());
    for &member in &members {
        let device = devices.get(member).ok_or(NotFused::Missing(member, devices.len()))?;
        let &[port] = device.ports.as_slice() else {
            return Err(NotFused::Several(device.name.clone()));
        };
        if joined_ports.contains(&port) {
            return Err(NotFused::Twice(device.name.clone()));
        }
        joined_ports.push(port);
        let kind = |port: usize| (ports[port].facts.name.clone(), ports[port].facts.link_layer);
        let kinds = [kind(joined_ports[0]), kind(port)];
        if kinds[0].1 != kinds[1].1 {
            return Err(NotFused::LinkLayers(kinds));
        }
    }
    let first = devices[members[0]];
    let device = joined(ports, joined_ports, first.guid, first.port_number);
    let plane_id = if members.len() > 1 { virtual_plane(ports, &device.ports) } else { device.plane_id };
    Ok(Device { plane_id, ..device })
}

/// The bit of a plane id that says that it is that of a virtual device.
const VIRTUAL_PLANE: i16 = 1 << 14;

/// Returns the plane id of a virtual device, in which each plane of the host has a bit; `None` if there are more planes
/// than bits, where NCCL's own transport (2.30, `net_ib/init.cc`) refuses to start. NCCL lets no device of one plane
/// connect with one of another, so it keeps virtual devices apart from ports.
fn virtual_plane(ports: &[ChosenPort], members: &[usize]) -> Option<i16> {
    // Bit 0 is for ports without a plane, the others are in the order of the ports.
    let mut planes = vec![None];
    for port in ports {
        if !planes.contains(&port.plane_id) {
            planes.push(port.plane_id);
        }
    }
    members.iter().try_fold(VIRTUAL_PLANE, |id, member| {
        let place = planes.iter().position(|plane| *plane == ports[*member].plane_id)?;
        // The last bit below that of virtual devices stays free, as in NCCL's own transport.
        (place < VIRTUAL_PLANE.trailing_zeros() as usize - 1).then(|| id | 1 << place)
    })
}

#[cfg(test)]
mod tests {
    use railweave_fabric::{Mode, PointerSupport, PortFacts};

    use super::*;
    use crate::devices;
    use crate::test_ports::{chosen, facts};

    fn port(name: &str, link_layer: LinkLayer, speed_mbps: Option<u32>, rail_id: Option<i16>) -> ChosenPort {
        let facts = PortFacts {
            link_layer,
            speed_mbps,
            pci_path: Some(format!("/sys/devices/pci0000:00/{name}").into()),
            guid: 7,
            pointers: PointerSupport { cuda: true, dma_buf: name != "c", data_direct: name == "b" },
            ..facts(name)
        };
        ChosenPort { rail_id, plane_id: Some(3), ..chosen(facts) }
    }

    fn machine() -> Vec<ChosenPort> {
        vec![
            port("a", LinkLayer::Roce, Some(100_000), Some(1)),
            port("b", LinkLayer::Roce, None, Some(1)),
            port("c", LinkLayer::Roce, Some(25_000), Some(2)),
            port("ib", LinkLayer::InfiniBand, Some(400_000), None),
        ]
    }

    fn fused(members: &[usize]) -> Result<Device, NotFused> {
        let ports = machine();
        let made = devices(&ports, Mode::Ports);
        virtual_device(&ports, &made.iter().collect::<Vec<_>>(), members)
    }

    #[test]
    fn a_virtual_device_is_its_first_member_with_all_their_ports_and_speeds() {
        let expected = Device {
            name: "a+b+c".to_owned(),
            ports: vec![0, 1, 2],
            speed_mbps: 135_000,
            pci_path: Some("/sys/devices/pci0000:00/a".into()),
            guid: 7,
            port_number: devices(&machine(), Mode::Ports)[0].port_number,
            pointers: PointerSupport { cuda: true, dma_buf: false, data_direct: true },
            rail_id: None,
            plane_id: Some(0x4002),
        };
        assert_eq!(fused(&[0, 1, 2]).unwrap(), expected);
        assert_eq!(fused(&[1, 0, 2]).unwrap(), expected, "the order in the request makes no difference");
        assert_eq!(fused(&[0, 1]).unwrap().rail_id, Some(1), "a rail that all members share");
        assert_eq!(fused(&[3]).unwrap(), devices(&machine(), Mode::Ports)[3], "one member alone");
    }

    /// Returns the names and plane ids of virtual devices, on a machine whose ports a, b and so on have these planes.
    fn in_planes(planes: &[Option<i16>], requests: &[&[usize]]) -> Vec<(String, Option<i16>)> {
        let letters = ('a'..='z').map(String::from);
        let port = |(name, plane_id): (String, &Option<i16>)| ChosenPort {
            plane_id: *plane_id,
            ..port(&name, LinkLayer::Roce, None, None)
        };
        let ports: Vec<_> = letters.zip(planes).map(port).collect();
        let made = devices(&ports, Mode::Ports);
        let made: Vec<&Device> = made.iter().collect();
        let name_and_plane = |members: &&[usize]| {
            let device = virtual_device(&ports, &made, members).unwrap();
            (device.name, device.plane_id)
        };
        requests.iter().map(name_and_plane).collect()
    }

    /// Each of these was seen in NCCL 2.32.3 (docs/nccl-view.md), except that it does not start with too many planes.
    #[test]
    fn members_are_sorted_by_plane_and_planes_are_bits() {
        let named = |all: &[(&str, i16)]| -> Vec<(String, Option<i16>)> {
            all.iter().map(|(name, plane)| ((*name).to_owned(), Some(*plane))).collect()
        };
        let none = in_planes(&[None, None, None], &[&[0, 1], &[1, 0], &[2, 0, 1]]);
        assert_eq!(none, named(&[("a+b", 0x4001), ("a+b", 0x4001), ("a+b+c", 0x4001)]));
        let descending = in_planes(&[Some(9), Some(5), Some(7)], &[&[0, 1], &[1, 0], &[0, 1, 2]]);
        assert_eq!(descending, named(&[("b+a", 0x4006), ("b+a", 0x4006), ("b+c+a", 0x400e)]));
        let some = in_planes(&[Some(9), None, Some(7)], &[&[0, 1], &[2, 0, 1]]);
        assert_eq!(some, named(&[("b+a", 0x4003), ("b+c+a", 0x4007)]));
        let ties = in_planes(&[Some(9), Some(5), Some(9), Some(5)], &[&[2, 0, 3, 1]]);
        assert_eq!(ties, named(&[("b+d+a+c", 0x4006)]));
        let many: Vec<_> = (0..14).map(Some).collect();
        let last = in_planes(&many[..12], &[&[0, 11]]);
        assert_eq!(last, named(&[("a+l", 0x5002)]), "twelve planes of the user's");
        assert_eq!(in_planes(&many, &[&[0, 12], &[0, 11], &[13]])[0].1, None, "the thirteenth has no bit");
        assert_eq!(in_planes(&many, &[&[13]]), named(&[("n", 13)]), "a port alone keeps its own");
    }

    #[test]
    fn members_that_cannot_be_rails_of_one_connection_are_refused_by_name() {
        for (members, sentence) in [
            (&[][..], "0 devices cannot be fused; allowed: 1 to 8"),
            (&[0; 9][..], "9 devices cannot be fused; allowed: 1 to 8"),
            (&[0, 4][..], "device 4 does not exist; allowed: 0 to 3"),
            (&[0, 1, 0][..], "device a is named twice"),
            (&[2, 3][..], "c is RoCE and ib is InfiniBand"),
        ] {
            let refused = fused(members).unwrap_err().to_string();
            assert!(refused.contains(sentence), "{members:?}: {refused}");
        }
        let ports = machine();
        let mut made = devices(&ports, Mode::Ports);
        made.push(fused(&[0, 1]).unwrap());
        let refused = virtual_device(&ports, &made.iter().collect::<Vec<_>>(), &[2, 4]).unwrap_err().to_string();
        assert_eq!(refused, "device a+b has several ports already; fuse devices of one port each");
    }
}
