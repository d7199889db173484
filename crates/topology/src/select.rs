//! The choice and the order of ports. Ports that are not used are listed with the reason.

use std::collections::HashSet;
use std::fmt;

use railweave_fabric::{Discovery, LeftOut, MAX_RAILS, Mode, PortFacts, SettingId};

use crate::chosen::ChosenPort;

/// The maximum number of ports that [`NoUsablePort`] lists.
const MOST_LISTED: usize = 16;

/// The maximum number of devices, the same as in NCCL's own transport (`MAX_IB_DEVS`).
const MAX_DEVICES: usize = 32;

/// The user's choices for a port that the list includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Index of the list's item that names the port; `None` if the list gives no order.
    pub order: Option<usize>,
    /// The group that the item belongs to; `None` if the list has no groups.
    pub group: Option<usize>,
    /// The item's rail id, never negative.
    pub rail: Option<i16>,
    /// The item's plane id, never negative.
    pub plane: Option<i16>,
}

/// The order of ports if the user's list gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// By [`PortFacts::bus_id`], as NCCL's own transport sorts, so that indices agree with it and between hosts; then
    /// the machine's own order. Ports without a bus id come last.
    Pci,
    /// The machine's own order.
    Machine,
}

/// The user's list; returns `None` for a port that it excludes.
pub type Filter<'a> = &'a dyn Fn(&PortFacts) -> Option<Selected>;

/// The ports of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The ports in use, at least one, in the order of devices and of rails.
    pub ports: Vec<ChosenPort>,
    /// The others: those that the fabric left out, then those that the list and the limits left out.
    pub left_out: Vec<LeftOut>,
}

/// No port is left, because of the configuration or of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct NoUsablePort {
    /// All ports that were found.
    pub left_out: Vec<LeftOut>,
    /// The names of those that only the list excludes.
    pub not_listed: Vec<String>,
}

impl fmt::Display for NoUsablePort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left_out, not_listed } = self;
        if left_out.is_empty() {
            return write!(
                out,
                "No usable port: this machine shows none at all; bring an interface up and give it an address \
                 (`ip address` lists them), or name an address of this host in {}",
                SettingId::Rails
            );
        }
        out.write_str("No usable port: ")?;
        for seen in left_out.iter().take(MOST_LISTED) {
            write!(out, "{} left out: {}; ", seen.name, seen.reason)?;
        }
        if left_out.len() > MOST_LISTED {
            write!(out, "and {} more; ", left_out.len() - MOST_LISTED)?;
        }
        if not_listed.is_empty() {
            return out.write_str("fix the reason given for at least one of them");
        }
        let shown: Vec<&str> = not_listed.iter().take(MOST_LISTED).map(String::as_str).collect();
        write!(out, "allow a usable one in the list ({}), or unset the list to use all", shown.join(", "))
    }
}

impl std::error::Error for NoUsablePort {}

/// Picks and orders the ports of one fabric. Without a filter, all ports are used.
///
/// The order is that of the list, if it gives one; then `order`.
///
/// # Errors
/// If no port is left.
pub fn select(
    found: Discovery,
    filter: Option<Filter<'_>>,
    mode: Mode,
    order: Order,
) -> Result<Selection, NoUsablePort> {
    let Discovery { mut ports, mut left_out } = found;
    make_names_unique(&mut ports);
    let (mut candidates, mut not_listed) = (Vec::new(), Vec::new());
    for facts in ports {
        let Some(selected) = filter.map_or(Some(Selected::default()), |filter| filter(&facts)) else {
            not_listed.push(facts.name.clone());
            left_out.push(leave_out(&facts, "the list of rails excludes it".to_owned()));
            continue;
        };
        let Selected { order, group, rail, plane } = selected;
        candidates.push((order, ChosenPort { facts, group, rail_id: rail, plane_id: plane }));
    }
    // The sort is stable: the machine's own order decides between equals.
    candidates.sort_by_key(|(listed, port)| {
        let place = match order {
            Order::Pci => bus_place(port.facts.bus_id.as_deref()),
            Order::Machine => (false, 0),
        };
        (listed.unwrap_or(usize::MAX), place)
    });
    let mut ports: Vec<ChosenPort> = Vec::new();
    for (_, port) in candidates {
        let mates = ports.iter().filter(|other| other.is_fused_with(&port, mode)).count();
        let limit = if mates >= MAX_RAILS {
            format!("a device has at most {MAX_RAILS} ports")
        } else if ports.len() >= MAX_DEVICES {
            format!("NCCL takes at most {MAX_DEVICES} devices")
        } else {
            ports.push(port);
            continue;
        };
        let reason = format!("{limit}; {} says which come first", SettingId::Rails);
        left_out.push(leave_out(&port.facts, reason));
    }
    if ports.is_empty() {
        return Err(NoUsablePort { left_out, not_listed });
    }
    Ok(Selection { ports, left_out })
}

/// Returns a sort key for NCCL's order (`ncclIbCompareDevs` in 2.30's `net_ib/init.cc`): ports without a bus id come
/// last, the others by the number in their bus id, without colons and points, up to the first character that is not a
/// hexadecimal digit.
fn bus_place(bus_id: Option<&str>) -> (bool, i64) {
    let digits: String = bus_id
        .unwrap_or_default()
        .chars()
        .filter(|c| !matches!(c, ':' | '.'))
        .take_while(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    // NCCL's strtol(3) saturates at `i64::MAX`, and returns 0 if there are no digits.
    let number = u64::from_str_radix(&digits, 16).map_or(0, |number| i64::try_from(number).unwrap_or(i64::MAX));
    (bus_id.is_none(), number)
}

/// Appends `#2`, `#3` and so on to names that an earlier port has.
fn make_names_unique(ports: &mut [PortFacts]) {
    // A made-up name must not be another port's real name.
    let mut taken: HashSet<String> = ports.iter().map(|port| port.name.clone()).collect();
    let mut seen = HashSet::new();
    for port in ports {
        if !seen.insert(port.name.clone()) {
            let fresh = (2..).map(|count| format!("{}#{count}", port.name)).find(|name| !taken.contains(name));
            port.name = fresh.unwrap_or_default();
            taken.insert(port.name.clone());
            seen.insert(port.name.clone());
        }
    }
}

fn leave_out(facts: &PortFacts, reason: String) -> LeftOut {
    let name = if facts.name.contains('@') { facts.name.clone() } else { format!("{}@{}", facts.name, facts.address) };
    LeftOut { name, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ports::facts;

    fn port(name: &str, pci: Option<&str>) -> PortFacts {
        let pci_path = Some("/sys/devices/pci0000:00/0000:00:01.0".into());
        PortFacts { pci_path, bus_id: pci.map(str::to_owned), ..facts(name) }
    }

    fn found(ports: &[(&str, Option<&str>)]) -> Discovery {
        Discovery { ports: ports.iter().map(|(name, pci)| port(name, *pci)).collect(), left_out: vec![] }
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.ports.iter().map(|port| port.facts.name.as_str()).collect()
    }

    /// Makes a filter from a list of whole names.
    fn list(items: &'static [&'static str]) -> impl Fn(&PortFacts) -> Option<Selected> {
        |port| {
            let order = items.iter().position(|item| *item == port.device);
            order.map(|order| Selected { order: Some(order), ..Selected::default() })
        }
    }

    #[test]
    fn order_is_by_pci_address_then_the_machines() {
        let all = found(&[
            ("veth1", None),
            ("b", Some("0001:01:00.0")),
            ("c", Some("0000:81:00.1")),
            ("d", Some("0000:81:00.0")),
            ("function", Some("0000:81:01.2")),
            ("domain", Some("10000:01:00.0")),
            ("odd", Some("mlx5_core.sf.4")),
            ("long", Some("ffffffffffffffff:00:00.0")),
            ("a", Some("0000:81:00.0")),
            ("veth0", None),
        ]);
        let selection = select(all, None, Mode::Ports, Order::Pci).unwrap();
        assert_eq!(names(&selection), ["odd", "d", "a", "c", "function", "b", "domain", "long", "veth1", "veth0"]);
        assert!(selection.left_out.is_empty());
    }

    #[test]
    fn the_machines_order_can_be_kept() {
        let all = [("b", Some("0000:02:00.0")), ("veth", None), ("a", Some("0000:01:00.0"))];
        let kept = select(found(&all), None, Mode::Ports, Order::Machine).unwrap();
        assert_eq!(names(&kept), ["b", "veth", "a"]);
        let listed = select(found(&all), Some(&list(&["a", "b"])), Mode::Ports, Order::Machine).unwrap();
        assert_eq!(names(&listed), ["a", "b"]);
    }

    #[test]
    fn an_include_list_gives_the_order() {
        let all = [("eth0", Some("0000:01:00.0")), ("eth1", Some("0000:02:00.0")), ("eth2", None)];
        let chosen = select(found(&all), Some(&list(&["eth2", "eth0"])), Mode::Fused, Order::Pci).unwrap();
        assert_eq!(names(&chosen), ["eth2", "eth0"]);
        assert_eq!(chosen.left_out.len(), 1);
        assert_eq!(chosen.left_out[0].name, "eth1@10.0.0.1");
        assert!(chosen.left_out[0].reason.contains("list of rails"));
    }

    #[test]
    fn ports_of_one_item_and_of_an_exclude_list_go_by_pci_address() {
        let all = [("eth1", Some("0000:02:00.0")), ("eth0", Some("0000:01:00.0")), ("lo", None)];
        for order in [Some(0), None] {
            let filter = |port: &PortFacts| {
                (port.name != "lo").then_some(Selected { order, group: None, rail: Some(3), plane: Some(32767) })
            };
            let chosen = select(found(&all), Some(&filter), Mode::Fused, Order::Pci).unwrap();
            assert_eq!(names(&chosen), ["eth0", "eth1"]);
            assert!(chosen.ports.iter().all(|port| port.rail_id == Some(3) && port.plane_id == Some(32767)));
        }
    }

    #[test]
    fn names_become_unique() {
        let all = found(&[("a", None), ("a", None), ("a#2", None), ("a", None), ("b", None)]);
        assert_eq!(names(&select(all, None, Mode::Ports, Order::Pci).unwrap()), ["a", "a#3", "a#2", "a#4", "b"]);
    }

    #[test]
    fn what_is_past_the_limit_is_left_out() {
        let many: Vec<String> = (0..33).map(|index| format!("eth{index}")).collect();
        let all: Vec<_> = many.iter().map(|name| (name.as_str(), None)).collect();
        for (mode, most) in [(Mode::Fused, 8), (Mode::Mesh, 8), (Mode::Ports, 32)] {
            let within = select(found(&all[..most]), None, mode, Order::Pci).unwrap();
            assert_eq!((within.ports.len(), within.left_out.len()), (most, 0));
            let beyond = select(found(&all[..most + 1]), None, mode, Order::Pci).unwrap();
            assert_eq!((beyond.ports.len(), beyond.left_out.len()), (most, 1));
            assert_eq!(beyond.left_out[0].name, format!("eth{most}@10.0.0.1"));
            assert!(beyond.left_out[0].reason.contains(&format!("at most {most}")));
        }
    }

    #[test]
    fn no_port_is_an_error_that_lists_what_was_seen() {
        let mut all = found(&[("eth0", None)]);
        all.left_out.push(LeftOut { name: "docker0@172.17.0.1".to_owned(), reason: "a bridge".to_owned() });
        let text = select(all, Some(&list(&["ib0"])), Mode::Ports, Order::Pci).unwrap_err().to_string();
        let whole = "No usable port: docker0@172.17.0.1 left out: a bridge; eth0@10.0.0.1 left out: the list of rails \
                     excludes it; allow a usable one in the list (eth0), or unset the list to use all";
        assert_eq!(text, whole);
        let down = LeftOut { name: "eth1@10.0.1.1".to_owned(), reason: "the interface is down".to_owned() };
        let seen = Discovery { ports: vec![], left_out: vec![down] };
        let text = select(seen, Some(&list(&["eth1"])), Mode::Ports, Order::Pci).unwrap_err().to_string();
        assert!(
            text.ends_with(
                "eth1@10.0.1.1 left out: the interface is down; fix the reason given for at least one of them"
            ),
            "the list is not to blame: {text}"
        );
        let text = select(found(&[]), None, Mode::Ports, Order::Pci).unwrap_err().to_string();
        assert!(text.contains("none at all") && text.contains("in rails"), "{text}");
    }

    #[test]
    fn a_long_list_of_unusable_ports_is_cut() {
        let left_out = vec![LeftOut { name: "x".to_owned(), reason: "y".to_owned() }; 20];
        let text = NoUsablePort { left_out, not_listed: vec![] }.to_string();
        assert_eq!(text.matches("x left out: y").count(), 16);
        assert!(text.contains("and 4 more"), "{text}");
    }
}
