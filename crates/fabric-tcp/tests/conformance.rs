//! The conformance suite over loopback sockets, IPv4 and IPv6: with the kernel's own buffers, and with buffers so small
//! that nearly every frame is sent and received in pieces.

mod pairs;

use std::net::{IpAddr, Ipv6Addr, TcpListener};

use pairs::{IPV4, Loopback};
use railweave_fabric::conformance::run_all;
use railweave_fabric_tcp::TcpConfig;

const IPV6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn over_both(config: TcpConfig, send_buffer: Option<i32>) {
    run_all(&mut Loopback { address: IPV4, config, send_buffer });
    match TcpListener::bind((IPV6, 0)) {
        Ok(_) => run_all(&mut Loopback { address: IPV6, config, send_buffer }),
        Err(error) => eprintln!("left out: this machine has no IPv6 ({IPV6}: {error})"),
    }
}

#[test]
fn with_ordinary_buffers() {
    over_both(TcpConfig::default(), None);
}

#[test]
fn with_tiny_send_buffers() {
    over_both(TcpConfig::default(), Some(4608));
}

#[test]
fn with_small_buffers_both_ways() {
    over_both(TcpConfig { socket_buffer: Some(64 << 10), ..TcpConfig::default() }, None);
}
