//! `railweave topo --routes`: each host's commands by which all reach each other without a switch, and what of it this
//! host has already. Nothing is changed.

use crate::output::print;
use crate::topo::half::{Half, Own};
use crate::topo::plan::{HostPlan, Plan, PlanHost, PlanPort, PlannedRoute, plan};
use railweave_discovery::Routes;
use railweave_fabric::Route;
use serde::Serialize;
use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;

/// The state of a command's effect on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// It is so already.
    Ok,
    /// It is not so.
    Missing,
    /// This host cannot tell.
    Unchecked,
}

/// A command of the plan.
#[derive(Debug, Serialize)]
struct Line {
    command: String,
    status: Status,
    /// The reason why it is needed, or why it is not checked.
    note: String,
}

/// The commands of a host.
#[derive(Debug, Serialize)]
struct HostLines {
    host: String,
    /// True for the host on which this runs.
    is_here: bool,
    lines: Vec<Line>,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Output {
    hosts: Vec<HostLines>,
    /// The pairs of hosts between which no cables lead.
    apart: Vec<[String; 2]>,
    /// True if every two hosts share a subnet.
    is_complete: bool,
}

/// Prints the plan for this host and its peers.
pub(crate) fn run(own: &Own, halves: &[(Half, Half)], json: bool) -> Result<(), Box<dyn Error>> {
    let all: Vec<&Half> = std::iter::once(own.half()).chain(halves.iter().map(|(_, there)| there)).collect();
    let names = names(&all.iter().map(|half| half.host.as_str()).collect::<Vec<_>>());
    let hosts: Vec<PlanHost> = all.iter().zip(&names).map(|(half, name)| plan_host(half, name)).collect();
    let plan = plan(&hosts);
    let output = Output::new(own, &all, &hosts, &plan, &Firewall::read());
    if json { Ok(print(serde_json::to_string_pretty(&output)?)?) } else { Ok(show(&output)?) }
}

/// Returns names for hosts that say these: with a number where two say the same.
fn names(said: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for own in said {
        let is_taken = |name: &String| names.contains(name) || said.contains(&name.as_str());
        let is_single = said.iter().filter(|other| other == &own).count() == 1;
        let numbered = (1..).map(|number| format!("{own} ({number})")).find(|name| !is_taken(name));
        let name = if is_single { (*own).to_owned() } else { numbered.unwrap_or_default() };
        names.push(name);
    }
    names
}

fn plan_host(half: &Half, name: &str) -> PlanHost {
    let mut ports: Vec<PlanPort> = Vec::new();
    for port in half.devices.iter().flat_map(|device| &device.ports) {
        if ports.iter().all(|other| other.network != port.network()) {
            let (network, prefix_len) = (port.network(), port.offer.prefix_len);
            ports.push(PlanPort { network, prefix_len, interface: port.interface.clone() });
        }
    }
    PlanHost { name: name.to_owned(), ports }
}

impl Output {
    fn new(own: &Own, all: &[&Half], hosts: &[PlanHost], plan: &Plan, firewall: &Firewall) -> Self {
        let lines = |(number, planned): (usize, &HostPlan)| {
            let is_here = number == 0;
            let host = &hosts[number];
            let mut lines: Vec<Line> =
                planned.routes.iter().map(|route| route_line(route, host, is_here.then_some(own))).collect();
            lines.extend(forwarding_lines(planned, host, all[number].forwards));
            lines.extend(firewall_lines(planned, host, is_here.then_some(firewall)));
            HostLines { host: host.name.clone(), is_here, lines }
        };
        Self {
            hosts: plan.hosts.iter().enumerate().map(lines).collect(),
            apart: plan.apart.iter().map(|pair| pair.map(|host| hosts[host].name.clone())).collect(),
            is_complete: plan.is_complete,
        }
    }
}

/// Returns the command of a route. `own` is this host, if the route is its.
fn route_line(route: &PlannedRoute, host: &PlanHost, own: Option<&Own>) -> Line {
    let port = &host.ports[route.port];
    let family = if route.via.is_ipv4() { "" } else { "-6 " };
    let device = port.interface.as_ref().map_or_else(String::new, |name| format!(" dev {name}"));
    let command =
        format!("ip {family}route replace {}/{} via {}{device}", route.to.address(), route.prefix_len, route.via);
    let (status, note) = match own {
        None => (Status::Unchecked, "run this there to check it".to_owned()),
        Some(own) => {
            let targets: Vec<Ipv6Addr> =
                route.reaches.iter().map(|address| railweave_offers::mapped(*address)).collect();
            let half = own.towards(&targets);
            let ports = half.devices.iter().flat_map(|device| &device.ports);
            let known = ports.filter(|known| known.network() == port.network);
            let answers: Vec<Route> = known.flat_map(|port| targets.iter().map(|target| port.route(*target))).collect();
            match &answers[..] {
                [] => (Status::Unchecked, "the port is not known".to_owned()),
                all if all.iter().all(|it| *it == Route::Leaves) => {
                    let routes = Routes::open();
                    let from = port.network.address();
                    let gateway = |to: &IpAddr| routes.as_ref().and_then(|routes| routes.gateway(from, *to));
                    let other = route.reaches.iter().map(gateway).find(|gateway| *gateway != Some(route.via));
                    match other {
                        None => (Status::Ok, "packets leave by this port".to_owned()),
                        Some(None) => (Status::Missing, "packets leave by this port, but to no gateway".to_owned()),
                        Some(Some(other)) => {
                            (Status::Missing, format!("packets leave by this port, but towards {other}"))
                        }
                    }
                }
                all if all.contains(&Route::Elsewhere) => {
                    (Status::Missing, "packets do not leave by this port".to_owned())
                }
                _ => (Status::Unchecked, "the kernel does not say".to_owned()),
            }
        }
    };
    Line { command, status, note }
}

fn forwarding_lines(planned: &HostPlan, host: &PlanHost, forwards: Option<bool>) -> Vec<Line> {
    let is_v4 = |(port, _): &(usize, usize)| host.ports[*port].network.address().is_ipv4();
    let mut lines = Vec::new();
    if planned.passes.iter().any(is_v4) {
        let status = forwards.map_or(Status::Unchecked, |is_on| if is_on { Status::Ok } else { Status::Missing });
        let note = "it forwards between its neighbours; a file in /etc/sysctl.d keeps it after a restart".to_owned();
        lines.push(Line { command: "sysctl -w net.ipv4.ip_forward=1".to_owned(), status, note });
    }
    if !planned.passes.iter().all(is_v4) {
        let note = "it forwards between its neighbours; a kernel that forwards takes no router advertisements, so if \
                    the default route comes from one, set net.ipv6.conf.INTERFACE.accept_ra=2 before"
            .to_owned();
        let command = "sysctl -w net.ipv6.conf.all.forwarding=1".to_owned();
        lines.push(Line { command, status: Status::Unchecked, note });
    }
    lines
}

/// Returns the rules by which a host's firewall lets packets of others through. `firewall` is that of this host.
fn firewall_lines(planned: &HostPlan, host: &PlanHost, firewall: Option<&Firewall>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (into, out) in &planned.passes {
        let ports = [&host.ports[*into], &host.ports[*out]];
        let tool = if ports[0].network.address().is_ipv4() { "iptables" } else { "ip6tables" };
        let [from, to] = ports.map(|port| port.interface.clone());
        // Without its name, the interface is that of the port's address.
        let named = |interface: Option<String>, port: &PlanPort| {
            interface.unwrap_or_else(|| format!("INTERFACE-OF-{}", port.network.address()))
        };
        let (from, to) = (named(from, ports[0]), named(to, ports[1]));
        for chain in ["FORWARD", "DOCKER-USER"] {
            let (status, note) = match firewall {
                None if chain == "DOCKER-USER" => (Status::Unchecked, "only if Docker runs there"),
                None => (Status::Unchecked, "run this there to check it"),
                Some(_) if tool == "ip6tables" => (Status::Unchecked, "IPv6 rules are not read"),
                Some(firewall) => match firewall.status(chain, &from, &to) {
                    Some(answer) => answer,
                    None => continue,
                },
            };
            let command = format!("{tool} -I {chain} -i {from} -o {to} -j ACCEPT");
            lines.push(Line { command, status, note: note.to_owned() });
        }
    }
    lines
}

/// The rules of this host's firewall about packets of others, as far as they can be read.
struct Firewall {
    /// The lines of `iptables -S` for both chains; `None` if they cannot be read.
    forward: Option<String>,
    docker: Option<String>,
    /// True if there is no tool.
    has_no_tool: bool,
    /// True if nftables, as firewalld uses it, has rules of its own for packets of others; `None` if the program nft
    /// does not show its rules.
    has_own_nft: Option<bool>,
}

impl Firewall {
    fn read() -> Self {
        let rules = |chain: &str| Command::new("iptables").args(["-S", chain]).output();
        let text = |chain: &str| {
            let output = rules(chain).ok().filter(|output| output.status.success())?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let has_no_tool = rules("FORWARD").is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        let nft = Command::new("nft").args(["list", "ruleset"]).output().ok();
        let nft = nft.filter(|output| output.status.success());
        let has_own_nft = nft.map(|output| forwards_by_nft(&String::from_utf8_lossy(&output.stdout)));
        Self { forward: text("FORWARD"), docker: text("DOCKER-USER"), has_no_tool, has_own_nft }
    }

    /// Returns the state of a chain for packets between two interfaces; `None` if it is of no account.
    fn status(&self, chain: &str, from: &str, to: &str) -> Option<(Status, &'static str)> {
        // Rules above the one that lets the packets through may take them first.
        let accepts = |rules: &str| {
            let first = rules.lines().find(|line| decides(line) || accepts_all(line, chain, from, to));
            first.is_some_and(|line| accepts_all(line, chain, from, to))
        };
        if chain == "DOCKER-USER" {
            let rules = self.docker.as_ref()?;
            let note = "Docker drops what it does not know, which looks like a dead cable";
            return Some(if accepts(rules) { (Status::Ok, ACCEPTED) } else { (Status::Missing, note) });
        }
        let Some(rules) = &self.forward else {
            let note = if self.has_no_tool { "there is no iptables here" } else { "root may read the rules" };
            return Some((Status::Unchecked, note));
        };
        if self.has_own_nft == Some(true) {
            let note = "nftables (firewalld) has rules of its own for packets of others: nft list ruleset";
            return Some((Status::Unchecked, note));
        }
        let is_open = rules.lines().any(|line| line.trim() == "-P FORWARD ACCEPT");
        let decides_itself = rules.lines().any(decides);
        // Docker's own chain comes before the policy that Docker sets.
        let (status, note) = match &self.docker {
            _ if accepts(rules) => (Status::Ok, ACCEPTED),
            _ if is_open && !decides_itself => (Status::Ok, "the chain lets everything through"),
            Some(docker) if accepts(&docker.replace("DOCKER-USER", "FORWARD")) => {
                (Status::Ok, "a rule of Docker's chain lets these packets through")
            }
            _ if is_open => (Status::Missing, "rules of the chain may drop packets of others"),
            _ => (Status::Missing, "the chain drops packets of others"),
        };
        if status == Status::Ok && self.has_own_nft.is_none() {
            let note = "unknown: iptables lets these packets through, but rules of nftables (firewalld) may drop them, \
                        and the program nft is missing here or fails";
            return Some((Status::Unchecked, note));
        }
        Some((status, note))
    }
}

/// The note of a chain that needs no rule.
const ACCEPTED: &str = "a rule lets these packets through";

/// The targets of iptables after which packets go on to the next rule, as after no target (iptables-extensions(8)), and
/// those that keep no packet from its way.
const PASSING: [&str; 24] = [
    "ACCEPT",
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TEE",
    "TOS",
    "TRACE",
    "TTL",
];

/// Returns true if a line of `iptables -S` may keep packets from the rules below it: it drops them, or another chain
/// decides.
fn decides(line: &str) -> bool {
    let target = line.split_whitespace().skip_while(|word| !["-j", "-g"].contains(word)).nth(1);
    target.is_some_and(|target| !PASSING.contains(&target))
}

/// Returns true if a line of `iptables -S` lets all packets between two interfaces through.
fn accepts_all(line: &str, chain: &str, from: &str, to: &str) -> bool {
    let mut words = line.split_whitespace();
    if (words.next(), words.next()) != (Some("-A"), Some(chain)) {
        return false;
    }
    loop {
        match (words.next(), words.next()) {
            (Some("-i"), Some(interface)) if interface == from => {}
            (Some("-o"), Some(interface)) if interface == to => {}
            // Any other condition may leave some of them out.
            (option, target) => return (option, target, words.next()) == (Some("-j"), Some("ACCEPT"), None),
        }
    }
}

/// Returns true if rules of nftables decide about packets of others, apart from those that iptables shows too.
fn forwards_by_nft(ruleset: &str) -> bool {
    let mut is_iptables = false;
    ruleset.lines().any(|line| {
        if let Some(table) = line.strip_prefix("table ") {
            let mut words = table.split_whitespace();
            let (family, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            // The tables of iptables itself, which keeps its rules in nftables.
            is_iptables =
                ["ip", "ip6"].contains(&family) && ["filter", "mangle", "nat", "raw", "security"].contains(&name);
        }
        line.contains("hook forward") && !is_iptables
    })
}

fn show(output: &Output) -> std::io::Result<()> {
    if output.is_complete {
        print("every two hosts share a subnet: they connect without any of this, which only adds ways round")?;
    }
    for [one, other] in &output.apart {
        print(format_args!(
            "no cables lead from {one} to {other}, not even through other hosts: give them a common subnet"
        ))?;
    }
    for host in &output.hosts {
        let here = if host.is_here { " (this host)" } else { "" };
        print(format_args!("\n{}{here}", host.host))?;
        if host.lines.is_empty() {
            print("  nothing is needed")?;
        }
        for Line { command, status, note } in &host.lines {
            let status = match status {
                Status::Ok => "ok",
                Status::Missing => "missing",
                Status::Unchecked => "?",
            };
            print(format_args!("  {status:<8}{command}    # {note}"))?;
        }
    }
    print("\nnothing was changed: run the missing commands as root on the host that they stand under")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firewall(forward: &str, docker: Option<&str>) -> Firewall {
        let docker = docker.map(str::to_owned);
        Firewall { forward: Some(forward.to_owned()), docker, has_no_tool: false, has_own_nft: Some(false) }
    }

    #[test]
    fn the_firewalls_rules_are_told_from_those_that_are_missing() {
        let status =
            |firewall: &Firewall, chain: &str| firewall.status(chain, "eth0", "eth1").map(|(status, _)| status);
        let open = firewall("-P FORWARD ACCEPT\n", None);
        assert_eq!((status(&open, "FORWARD"), status(&open, "DOCKER-USER")), (Some(Status::Ok), None));
        let closed = firewall("-P FORWARD DROP\n", None);
        assert_eq!(status(&closed, "FORWARD"), Some(Status::Missing));
        let dropping = firewall("-P FORWARD ACCEPT\n-A FORWARD -i eth0 -j DROP\n", None);
        assert_eq!(status(&dropping, "FORWARD"), Some(Status::Missing));
        let ruled = firewall("-P FORWARD DROP\n-A FORWARD -i eth0 -o eth1 -j ACCEPT\n", None);
        assert_eq!(status(&ruled, "FORWARD"), Some(Status::Ok));
        assert_eq!(ruled.status("FORWARD", "eth1", "eth0").unwrap().0, Status::Missing, "the other direction");
        let docker = firewall("-P FORWARD DROP\n", Some("-A DOCKER-USER -i eth0 -o eth1 -j ACCEPT\n"));
        assert_eq!((status(&docker, "FORWARD"), status(&docker, "DOCKER-USER")), (Some(Status::Ok), Some(Status::Ok)));
        let bare = firewall("-P FORWARD ACCEPT\n", Some("-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n"));
        assert_eq!(status(&bare, "DOCKER-USER"), Some(Status::Missing));
        let unknown = Firewall { forward: None, docker: None, has_no_tool: true, has_own_nft: Some(false) };
        assert_eq!(status(&unknown, "FORWARD"), Some(Status::Unchecked));
        // Rules above it come first.
        let rule = "-A FORWARD -i eth0 -o eth1 -j ACCEPT\n";
        for (above, expected) in [
            ("-A FORWARD -j DROP\n", Status::Missing),
            ("-A FORWARD -j LIBVIRT_FWI\n", Status::Missing),
            ("-A FORWARD -m comment -g KUBE-FORWARD\n", Status::Missing),
            ("-A FORWARD -i eth3 -j ACCEPT\n", Status::Ok),
            ("-A FORWARD -m conntrack --ctstate INVALID\n", Status::Ok),
            ("-A FORWARD -j MARK --set-xmark 0x1/0xffffffff\n", Status::Ok),
            ("-A FORWARD -j CT --notrack\n", Status::Ok),
            ("-A FORWARD -j LOG --log-prefix x\n", Status::Ok),
            ("-A FORWARD -j NFLOG --nflog-group 1\n", Status::Ok),
            ("-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\n", Status::Ok),
            ("-A FORWARD -j NFQUEUE --queue-num 0\n", Status::Missing),
            ("-A FORWARD -j MARKED\n", Status::Missing),
        ] {
            let below = firewall(&format!("-P FORWARD ACCEPT\n{above}{rule}"), None);
            assert_eq!(status(&below, "FORWARD"), Some(expected), "{above}");
        }
    }

    #[test]
    fn a_rule_that_lets_more_through_than_is_needed_is_enough() {
        for (rule, expected) in [
            ("-A FORWARD -j ACCEPT", Status::Ok),
            ("-A FORWARD -i eth0 -j ACCEPT", Status::Ok),
            ("-A FORWARD -o eth1 -j ACCEPT", Status::Ok),
            ("-A FORWARD -i eth1 -j ACCEPT", Status::Missing),
            ("-A FORWARD -o eth0 -j ACCEPT", Status::Missing),
            ("-A FORWARD -s 10.0.0.0/24 -i eth0 -j ACCEPT", Status::Missing),
            ("-A FORWARD -p tcp -j ACCEPT", Status::Missing),
            ("-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", Status::Missing),
            ("-A FORWARD -j DROP\n-A FORWARD -j ACCEPT", Status::Missing),
            ("-A INPUT -j ACCEPT", Status::Missing),
        ] {
            let forward = firewall(&format!("-P FORWARD DROP\n{rule}\n"), None);
            assert_eq!(forward.status("FORWARD", "eth0", "eth1").unwrap().0, expected, "{rule}");
            let docker = firewall("-P FORWARD DROP\n", Some(&rule.replace("FORWARD", "DOCKER-USER")));
            assert_eq!(docker.status("DOCKER-USER", "eth0", "eth1").unwrap().0, expected, "{rule} for Docker");
        }
    }

    #[test]
    fn without_the_program_nft_nothing_is_known_to_let_packets_through() {
        for (rules, expected) in [("-P FORWARD ACCEPT\n", Status::Unchecked), ("-P FORWARD DROP\n", Status::Missing)] {
            let unseen = Firewall { has_own_nft: None, ..firewall(rules, None) };
            let (status, note) = unseen.status("FORWARD", "eth0", "eth1").unwrap();
            assert_eq!((status, note.contains("the program nft")), (expected, expected == Status::Unchecked), "{note}");
        }
    }

    #[test]
    fn rules_of_nftables_that_iptables_does_not_show_are_seen() {
        let of = |table: &str| {
            format!("table {table} {{\n\tchain c {{\n\t\ttype filter hook forward priority 0;\n\t}}\n}}\n")
        };
        assert!(forwards_by_nft(&of("inet firewalld")));
        assert!(forwards_by_nft(&(of("ip filter") + &of("inet mine"))));
        assert!(forwards_by_nft(&of("ip filter2")));
        assert!(forwards_by_nft(&of("inet filter")));
        for table in ["ip filter", "ip6 filter", "ip mangle", "ip6 mangle", "ip raw", "ip security"] {
            assert!(!forwards_by_nft(&of(table)), "{table}");
        }
        assert!(!forwards_by_nft("table inet mine {\n\tchain c { type filter hook input priority 0; }\n}\n"));
        let firewall = Firewall { has_own_nft: Some(true), ..firewall("-P FORWARD ACCEPT\n", None) };
        assert_eq!(firewall.status("FORWARD", "eth0", "eth1").unwrap().0, Status::Unchecked);
    }

    #[test]
    fn hosts_of_one_name_get_numbers() {
        assert_eq!(names(&["a", "b"]), ["a", "b"]);
        assert_eq!(names(&["vm", "vm", "vm (1)"]), ["vm (2)", "vm (3)", "vm (1)"]);
    }

    #[test]
    fn commands_name_the_subnet_the_next_hop_and_the_interface() {
        let port = |interface: Option<&str>| PlanPort {
            network: railweave_topology::NetworkAddress::new([10, 0, 0, 1].into(), 24),
            prefix_len: 24,
            interface: interface.map(str::to_owned),
        };
        let host = |interface| PlanHost { name: "a".into(), ports: vec![port(interface), port(Some("eth1"))] };
        let route = PlannedRoute {
            to: railweave_topology::NetworkAddress::new([10, 0, 1, 0].into(), 24),
            prefix_len: 24,
            via: [10, 0, 0, 2].into(),
            port: 0,
            reaches: Vec::new(),
        };
        let command = |interface| route_line(&route, &host(interface), None).command;
        assert_eq!(command(Some("eth0")), "ip route replace 10.0.1.0/24 via 10.0.0.2 dev eth0");
        assert_eq!(command(None), "ip route replace 10.0.1.0/24 via 10.0.0.2");
        let passes = HostPlan { routes: Vec::new(), passes: [(0, 1)].into() };
        let lines = firewall_lines(&passes, &host(Some("eth0")), None);
        assert_eq!(lines[0].command, "iptables -I FORWARD -i eth0 -o eth1 -j ACCEPT");
        assert_eq!(lines[1].command, "iptables -I DOCKER-USER -i eth0 -o eth1 -j ACCEPT");
        assert_eq!(forwarding_lines(&passes, &host(None), Some(true))[0].status, Status::Ok);
        assert_eq!(forwarding_lines(&passes, &host(None), Some(false))[0].status, Status::Missing);
        assert!(forwarding_lines(&HostPlan::default(), &host(None), Some(false)).is_empty());
    }
}
