//! `railweave topo`: the ports, devices and rails of this machine; with `--listen` and `--peer`, their pairing with
//! another host's; with `--routes`, the routes that hosts without a switch need.

mod local;
mod routes;

use self::local::Topology;
use crate::environment;
use crate::network;
use crate::output::print;
use crate::topo::half::{Half, Own};
use crate::topo::table::Table;
use crate::topo::view::View;
use crate::topo::{svg, text};
use clap::Args;
use railweave_discovery::{Found, FoundFabric};
use railweave_fabric::Mode;
use railweave_identity::{Key, TCP, VERBS, hello};
use railweave_options::{Options, PortRange};
use railweave_transport::{Prover, SessionConfig};
use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The port of `--listen` if neither the user nor RAILWEAVE_CONTROL_PORT names one.
const DEFAULT_PORT: u16 = 27_272;

/// Arguments of `railweave topo`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Prints JSON: of this machine, of each pairing, or of the plan. With --listen, one line for each peer
    #[arg(long)]
    json: bool,
    /// Waits for peers and shows the pairing with each, until it is interrupted
    #[arg(long, conflicts_with_all = ["peer", "routes"])]
    listen: bool,
    /// The TCP port of --listen [default: the first of RAILWEAVE_CONTROL_PORT, otherwise 27272]
    #[arg(long, value_name = "PORT", requires = "listen", conflicts_with = "peer")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// A host on which `railweave topo --listen` runs; shows the pairing with it
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Vec<String>,
    /// Plans the routes, forwarding and firewall rules by which all these hosts reach each other without a switch, and
    /// checks them on this host; changes nothing
    #[arg(long, requires = "peer")]
    routes: bool,
    /// Writes the drawing to an SVG file; with --listen or several peers, that of the last one
    #[arg(long, value_name = "FILE", conflicts_with = "routes")]
    svg: Option<PathBuf>,
    /// The longest time for each step of the exchange with a peer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

/// Shows what the plugin would use here, or with a peer, in this environment.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let options = environment::options()?;
    let found = network::look(&options, &|text| eprintln!("railweave: warning: {text}"))?;
    let mut hello = hello(u8::from(found.mode != Mode::Ports), 0, false);
    let own = Own::new(&found, &options, &hello.host, hello.network)?;
    hello.fabrics = match found.fabric {
        FoundFabric::Tcp => TCP,
        FoundFabric::Verbs(_) => VERBS | if own.half().fallback.is_some() { TCP } else { 0 },
    };
    if !arguments.listen && arguments.peer.is_empty() {
        return show_local(arguments, &found, &options, own.half());
    }
    let key = options.key_file.value.as_deref().map(Key::read).transpose()?;
    if key.is_some() {
        hello.features |= railweave_transport::Hello::KEYED;
    }
    let prover = key.map(|key| Arc::new(key) as Arc<dyn Prover>);
    let limit = Duration::from_secs(arguments.timeout);
    let limit_ns = u64::try_from(limit.as_nanos())?;
    let config = SessionConfig::new(hello, prover, limit_ns, limit_ns);
    let bind = |ports: PortRange| Table::bind(ports, found.listens_on.as_deref(), config, limit);
    let range = options.control_port.value;
    let default = if range.first == 0 { DEFAULT_PORT } else { range.first };
    if arguments.listen {
        let port = arguments.port.unwrap_or(default);
        return listen(arguments, &own, bind(PortRange { first: port, last: port })?);
    }
    let mut table = bind(range)?;
    let mut halves = Vec::new();
    for peer in &arguments.peer {
        halves.push(table.meet(&own, addresses(peer, default)?).map_err(|error| format!("{peer}: {error}"))?);
    }
    if arguments.routes {
        return routes::run(&own, &halves, arguments.json);
    }
    let views: Vec<View> = halves.iter().map(|(here, there)| View::new(here, there, true)).collect();
    if arguments.json {
        match &views[..] {
            [view] => print(serde_json::to_string_pretty(view)?)?,
            views => print(serde_json::to_string_pretty(views)?)?,
        }
    } else {
        views.iter().try_for_each(text::show)?;
    }
    views.last().map_or(Ok(()), |view| draw(arguments.svg.as_deref(), || svg::pairing(view)))
}

fn show_local(arguments: &Arguments, found: &Found, options: &Options, half: &Half) -> Result<(), Box<dyn Error>> {
    let tcp = half.fallback.iter().flat_map(|device| &device.ports).map(|port| port.network().to_string());
    let topology = Topology::new(found, options, &half.host, tcp.collect());
    if arguments.json {
        print(serde_json::to_string_pretty(&topology)?)?;
    } else {
        local::show(&topology)?;
    }
    draw(arguments.svg.as_deref(), || local::svg(&topology))
}

fn listen(arguments: &Arguments, own: &Own, mut table: Table) -> Result<(), Box<dyn Error>> {
    eprintln!(
        "railweave: {} waits at port {} for `railweave topo --peer HOST{}`; Ctrl-C ends it",
        own.half().host,
        table.port(),
        if table.port() == DEFAULT_PORT { String::new() } else { format!(":{}", table.port()) }
    );
    table.serve(own, |here, there| {
        let view = View::new(here, there, false);
        if arguments.json {
            print(serde_json::to_string(&view)?)?;
        } else {
            text::show(&view)?;
            print("")?;
        }
        // The next peer's may be written again.
        if let Err(reason) = draw(arguments.svg.as_deref(), || svg::pairing(&view)) {
            eprintln!("railweave: {reason}");
        }
        Ok(())
    })
}

fn draw(file: Option<&Path>, drawing: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, drawing()).map_err(|error| {
        format!(
            "{}: the drawing cannot be written: {error}; give a file in a directory that you may write to",
            file.display()
        )
    })?;
    Ok(())
}

/// Returns the addresses of a peer that is given as `HOST` or `HOST:PORT`.
fn addresses(peer: &str, default_port: u16) -> Result<Vec<SocketAddr>, String> {
    let refusal = |reason: &dyn std::fmt::Display| {
        format!(
            "--peer {peer}: {reason}; allowed: a name or an address, with a port or without: node2, node2:5000, ::1, \
             [::1]:5000"
        )
    };
    let bare = peer.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(peer);
    let has_no_port = !peer.contains(':') || bare.parse::<std::net::Ipv6Addr>().is_ok();
    let resolved = if has_no_port { (bare, default_port).to_socket_addrs() } else { peer.to_socket_addrs() };
    let resolved: Vec<SocketAddr> = resolved.map_err(|error| refusal(&error))?.collect();
    if resolved.iter().any(|address| address.port() == 0) {
        return Err(refusal(&"nobody listens at port 0"));
    }
    Ok(resolved)
}
