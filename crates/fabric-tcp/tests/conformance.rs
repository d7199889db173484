//! The conformance suite over loopback sockets: with the kernel's own buffers, and with buffers so small that nearly
//! every frame is sent and received in pieces.

mod pairs;

use pairs::Loopback;
use railweave_fabric::conformance::run_all;
use railweave_fabric_tcp::TcpConfig;

#[test]
fn with_ordinary_buffers() {
    run_all(&mut Loopback { config: TcpConfig::default(), send_buffer: None });
}

#[test]
fn with_tiny_send_buffers() {
    run_all(&mut Loopback { config: TcpConfig::default(), send_buffer: Some(4608) });
}

#[test]
fn with_small_buffers_both_ways() {
    let config = TcpConfig { socket_buffer: Some(64 << 10), ..TcpConfig::default() };
    run_all(&mut Loopback { config, send_buffer: None });
}
