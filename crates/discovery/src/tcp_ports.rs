//! The addresses of this host that can be rails. This module collects facts and makes the obvious exclusions; filters,
//! order and pairing belong to topology.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use railweave_fabric::{Discovery, LeftOut, LinkLayer, PointerSupport, PortFacts, SettingId};

use crate::interface::Interface;
use crate::sysfs::NetDevice;

/// The MTU of an interface for which sysfs has none: that of ordinary Ethernet.
const DEFAULT_MTU: u32 = 1500;
const LOOPBACK_MTU: u32 = 65_536;

/// Sorts the addresses of [`Interface::list`] into ports and those left out, with their interfaces' facts from sysfs.
/// `root` is `/`; tests pass a tree of their own.
///
/// Loopback addresses are left out; a caller that needs one by name adds [`loopback_port`].
pub(crate) fn discover(root: &Path, interfaces: &[Interface]) -> Discovery {
    let mut found = Discovery::default();
    let mut usable = Vec::new();
    for interface in interfaces {
        match reason_against(root, interface, interfaces) {
            Some(reason) => {
                let name = format!("{}@{}", interface.device(), interface.address);
                found.left_out.push(LeftOut { name, reason });
            }
            None => usable.push(interface),
        }
    }
    let mut addresses: BTreeMap<&str, usize> = BTreeMap::new();
    for interface in &usable {
        *addresses.entry(interface.device()).or_default() += 1;
    }
    for interface in usable {
        let device = interface.device();
        let name = match addresses.get(device) {
            Some(1) => device.to_owned(),
            _ => format!("{device}@{}", interface.address),
        };
        found.ports.push(port(root, interface, name));
    }
    found
}

/// Returns a port for a loopback address, through which no packet leaves this host: `127.0.0.0/8` and `::1`. No
/// interface needs to list it; the kernel answers for all of `127.0.0.0/8`. For trials of several rails on one machine.
pub(crate) fn loopback_port(address: IpAddr) -> PortFacts {
    PortFacts {
        name: format!("lo@{address}"),
        device: "lo".to_owned(),
        link_layer: LinkLayer::Tcp,
        address,
        prefix_len: if address.is_ipv4() { 8 } else { 128 },
        speed_mbps: None,
        mtu: LOOPBACK_MTU,
        pci_path: None,
        bus_id: None,
        guid: 0,
        port_number: 1,
        pointers: PointerSupport::default(),
    }
}

fn reason_against(root: &Path, interface: &Interface, all: &[Interface]) -> Option<String> {
    let device = interface.device();
    let sysfs = NetDevice { root, name: device };
    if interface.is_loopback || interface.address.is_loopback() {
        return Some(format!(
            "a loopback address reaches only this host; to use it, name it: {}={}",
            SettingId::Rails,
            interface.address
        ));
    }
    if !interface.is_up || sysfs.is_down() {
        return Some(format!("the interface is down; `ip link show {device}` says more"));
    }
    if sysfs.is_virtual_bridge() {
        return Some(
            "a bridge for containers or virtual machines; other hosts have bridges with the same address".to_owned(),
        );
    }
    let IpAddr::V6(v6) = interface.address else { return None };
    if v6.is_unicast_link_local() {
        return Some("an IPv6 link-local address; give the interface an IPv4 or a global IPv6 address".to_owned());
    }
    let ipv4 = all.iter().find(|other| other.device() == device && other.address.is_ipv4())?;
    Some(format!("the interface's IPv4 address {} is used", ipv4.address))
}

fn port(root: &Path, interface: &Interface, name: String) -> PortFacts {
    let device = interface.device();
    let sysfs = NetDevice { root, name: device };
    let pci_path = sysfs.pci_path();
    PortFacts {
        name,
        device: device.to_owned(),
        link_layer: LinkLayer::Tcp,
        address: interface.address,
        prefix_len: interface.prefix_len,
        speed_mbps: sysfs.speed_mbps(),
        mtu: sysfs.mtu().unwrap_or(DEFAULT_MTU),
        bus_id: pci_path.as_deref().and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        pci_path,
        guid: 0,
        port_number: 1,
        pointers: PointerSupport::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn up(name: &str, address: &str, prefix_len: u8) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        Interface { name: name.to_owned(), index: 1, address, prefix_len, is_up: true, is_loopback: name == "lo" }
    }

    fn names(found: &Discovery) -> Vec<&str> {
        found.ports.iter().map(|port| port.name.as_str()).collect()
    }

    fn reason<'a>(found: &'a Discovery, name: &str) -> &'a str {
        &found.left_out.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no {name} in {found:?}")).reason
    }

    #[test]
    fn facts_come_from_sysfs() {
        let tree = Tree::new();
        tree.interface("eth0", &[("speed", "100000\n"), ("mtu", "9000\n"), ("operstate", "up\n")]).device(
            "net",
            "eth0",
            "pci0000:00/0000:00:01.0/0000:3b:00.0",
        );
        let found = discover(tree.root(), &[up("eth0", "10.0.0.1", 24)]);
        let expected = PortFacts {
            name: "eth0".to_owned(),
            device: "eth0".to_owned(),
            link_layer: LinkLayer::Tcp,
            address: "10.0.0.1".parse().unwrap(),
            prefix_len: 24,
            speed_mbps: Some(100_000),
            mtu: 9000,
            pci_path: Some("/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0".into()),
            bus_id: Some("0000:3b:00.0".to_owned()),
            guid: 0,
            port_number: 1,
            pointers: PointerSupport::default(),
        };
        assert_eq!(found, Discovery { ports: vec![expected], left_out: vec![] });
    }

    #[test]
    fn what_sysfs_does_not_say_is_unknown() {
        let tree = Tree::new();
        tree.interface("veth1", &[("speed", "-1\n"), ("operstate", "unknown\n")]);
        tree.interface("old0", &[("speed", "4294967295\n")]);
        tree.interface("usb0", &[]).device("net", "usb0", "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0");
        tree.interface("vio0", &[]).device("net", "vio0", "pci0000:00/0000:00:03.0/virtio1");
        let all = [
            up("veth1", "10.0.0.1", 24),
            up("old0", "10.0.1.1", 24),
            up("usb0", "10.0.2.1", 24),
            up("vio0", "10.0.3.1", 24),
            up("gone0", "10.0.4.1", 24),
        ];
        let found = discover(tree.root(), &all);
        assert_eq!(names(&found), ["veth1", "old0", "usb0", "vio0", "gone0"]);
        assert!(found.ports.iter().all(|port| port.speed_mbps.is_none() && port.mtu == 1500));
        let paths: Vec<_> = found.ports.iter().map(|port| port.pci_path.as_deref()).collect();
        let virtio = Path::new("/sys/devices/pci0000:00/0000:00:03.0");
        assert_eq!(paths, [None, None, None, Some(virtio), None]);
    }

    #[test]
    fn several_addresses_of_one_interface_are_told_apart() {
        let tree = Tree::new();
        tree.interface("eth0", &[]).interface("eth1", &[]);
        let all = [up("eth0", "10.0.0.1", 24), up("eth0:1", "10.0.1.1", 24), up("eth1", "10.0.2.1", 24)];
        let found = discover(tree.root(), &all);
        assert_eq!(names(&found), ["eth0@10.0.0.1", "eth0@10.0.1.1", "eth1"]);
        assert_eq!(found.ports[1].device, "eth0");
    }

    #[test]
    fn ipv6_is_used_where_there_is_no_ipv4() {
        let tree = Tree::new();
        let all = [
            up("eth0", "10.0.0.1", 24),
            up("eth0", "2001:db8::1", 64),
            up("eth1", "2001:db8:1::1", 64),
            up("eth1", "fe80::1", 64),
        ];
        let found = discover(tree.root(), &all);
        assert_eq!(names(&found), ["eth0", "eth1"]);
        assert_eq!(found.ports[1].prefix_len, 64);
        assert!(reason(&found, "eth0@2001:db8::1").contains("IPv4 address 10.0.0.1 is used"));
        assert!(reason(&found, "eth1@fe80::1").contains("link-local"));
    }

    #[test]
    fn interfaces_that_lead_nowhere_are_left_out_with_the_reason() {
        let tree = Tree::new();
        tree.interface("eth2", &[("operstate", "down\n")]).interface("eth3", &[("operstate", "up\n")]);
        let mut unplugged = up("eth3", "10.0.3.1", 24);
        unplugged.is_up = false;
        let all = [up("lo", "127.0.0.1", 8), up("lo", "::1", 128), up("eth2", "10.0.2.1", 24), unplugged];
        let found = discover(tree.root(), &all);
        assert!(found.ports.is_empty());
        assert!(reason(&found, "lo@127.0.0.1").contains("rails=127.0.0.1"));
        assert!(reason(&found, "lo@::1").contains("rails=::1"));
        assert!(reason(&found, "eth2@10.0.2.1").contains("down"));
        assert!(reason(&found, "eth3@10.0.3.1").contains("down"));
    }

    #[test]
    fn bridges_are_left_out_unless_they_stand_for_a_real_interface() {
        let tree = Tree::new();
        tree.interface("vnet0", &[]).interface("eth0", &[]).device("net", "eth0", "pci0000:00/0000:00:1f.6");
        tree.interface("cni0", &[]).directory("sys/class/net/cni0/bridge").directory("sys/class/net/cni0/brif/vnet0");
        tree.interface("br0", &[]).directory("sys/class/net/br0/bridge").directory("sys/class/net/br0/brif/eth0");
        let all = [
            up("docker0", "172.17.0.1", 16),
            up("virbr0", "192.168.122.1", 24),
            up("br-0123456789ab", "172.18.0.1", 16),
            up("cni0", "10.244.0.1", 24),
            up("br0", "10.0.0.1", 24),
            up("br-lan", "10.0.1.1", 24),
        ];
        let found = discover(tree.root(), &all);
        assert_eq!(names(&found), ["br0", "br-lan"]);
        for name in ["docker0@172.17.0.1", "virbr0@192.168.122.1", "br-0123456789ab@172.18.0.1", "cni0@10.244.0.1"] {
            assert!(reason(&found, name).contains("bridge"));
        }
    }

    #[test]
    fn loopback_addresses_can_be_asked_for() {
        let port = loopback_port("127.0.0.2".parse().unwrap());
        assert_eq!((port.name.as_str(), port.prefix_len, port.mtu), ("lo@127.0.0.2", 8, 65_536));
        assert_eq!(loopback_port("::1".parse().unwrap()).prefix_len, 128);
    }

    #[test]
    fn this_host_can_be_discovered() {
        let found = discover(Path::new("/"), &Interface::list().unwrap());
        assert!(found.left_out.iter().any(|port| port.name == "lo@127.0.0.1"));
    }
}
