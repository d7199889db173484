//! Pairs of rails over loopback sockets.
#![allow(dead_code, unreachable_pub, reason = "each file of tests uses a part of this")]

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use railweave_fabric::conformance::{End, Harness, Pair};
use railweave_fabric::{Domain, LaneId, PendingRail, RailSpec};
use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain, TcpRail};

/// A source of pairs over a loopback address.
pub struct Loopback {
    /// The address.
    pub address: IpAddr,
    /// Configuration of both domains.
    pub config: TcpConfig,
    /// Size of each socket's send buffer in bytes, set before the rail gets the socket; `None` keeps the kernel's.
    pub send_buffer: Option<i32>,
}

impl Harness for Loopback {
    type Fabric = Tcp;

    fn pair(&mut self, near: &RailSpec, far: &RailSpec) -> Pair<Tcp> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..near.lanes {
            let (one, other) = sockets_at(self.address);
            for socket in [&one, &other] {
                if let Some(bytes) = self.send_buffer {
                    set_send_buffer(socket, bytes);
                }
            }
            ours.push(one);
            theirs.push(other);
        }
        Pair { near: end(self.config, near, ours), far: end(self.config, far, theirs) }
    }

    fn settle(&mut self) {
        std::thread::yield_now();
    }
}

/// The IPv4 loopback address.
pub const IPV4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns two sockets that are connected to each other.
pub fn sockets() -> (TcpStream, TcpStream) {
    sockets_at(IPV4)
}

fn sockets_at(address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Makes an end over these sockets, with a domain of its own.
pub fn end(config: TcpConfig, spec: &RailSpec, sockets: Vec<TcpStream>) -> End<Tcp> {
    let domain = TcpDomain::new(config);
    let rail = rail(&domain, spec, sockets);
    End { domain, rail }
}

/// Makes a rail over these sockets.
pub fn rail(domain: &Arc<TcpDomain>, spec: &RailSpec, sockets: Vec<TcpStream>) -> TcpRail {
    let mut pending = domain.open_rail(spec).unwrap();
    for (lane, socket) in sockets.into_iter().enumerate() {
        pending.attach(LaneId(lane as u8), socket.into()).unwrap();
    }
    pending.into_rail().unwrap()
}

fn set_send_buffer(socket: &TcpStream, bytes: i32) {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open; the value is on the stack, and its size is given with it.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const bytes).cast(), size)
    };
    assert_eq!(result, 0);
}
