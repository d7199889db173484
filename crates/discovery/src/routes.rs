//! The ways from this host's ports to a peer's addresses, as the kernel would choose them (RTM_GETROUTE, rtnetlink(7)).

use std::cell::Cell;
use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::time::Duration;

use railweave_fabric::{LinkLayer, PortFacts, Route};
use socket2::{Domain, Protocol, Socket, Type};

use crate::interface::Interface;

/// A kernel answers in microseconds. One that does not answer in this time says nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Numbers of linux/netlink.h and linux/rtnetlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
/// Lengths of `nlmsghdr` and `rtmsg`.
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;

/// The kernel's routes, as it has them now. They are unknown from the first question on that the kernel does not
/// answer: a caller has many, and each could take as long.
pub struct Routes {
    socket: Socket,
    interfaces: Vec<Interface>,
    /// The number of the last question.
    asked: Cell<u32>,
    /// True once a question got no answer.
    is_mute: Cell<bool>,
}

/// The kernel's answer about one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// There is no way.
    None,
    /// Packets leave by the interface with this index, towards a gateway or not.
    Leaves { interface: u32, gateway: Option<IpAddr> },
    /// The address is this host's own.
    Local,
}

impl Routes {
    /// Opens the kernel's routes; `None` if it does not show them to this process.
    pub fn open() -> Option<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(Self::over(socket, Interface::list().ok()?))
    }

    fn over(socket: Socket, interfaces: Vec<Interface>) -> Self {
        Self { socket, interfaces, asked: Cell::new(0), is_mute: Cell::new(false) }
    }

    /// Returns what the kernel says about the way from a port to an address. Packets of TCP take the way that their
    /// source address gives them. Those of RoCE leave by their port: the kernel looks up the way by source and port,
    /// and where it has none, an IPv4 address counts as a neighbour's. So a way without a gateway counts only if the
    /// source alone gives it too.
    pub fn route(&self, port: &PortFacts, to: IpAddr) -> Route {
        let to = to.to_canonical();
        let from = port.address.to_canonical();
        let own = self.interfaces.iter().find(|interface| interface.address == from);
        let Some(own) = own.filter(|_| port.link_layer != LinkLayer::InfiniBand && from.is_ipv4() == to.is_ipv4())
        else {
            return Route::Unknown;
        };
        let by_source = || match self.ask(to, from, None) {
            None => Route::Unknown,
            Some(Answer::Local) if port.link_layer == LinkLayer::Tcp => Route::Leaves,
            Some(Answer::Leaves { interface, .. }) if interface == own.index => Route::Leaves,
            Some(_) => Route::Elsewhere,
        };
        if port.link_layer == LinkLayer::Tcp {
            return by_source();
        }
        match self.ask(to, from, Some(own.index)) {
            None => Route::Unknown,
            Some(Answer::Leaves { interface, gateway }) if interface == own.index => match gateway {
                Some(_) => Route::Leaves,
                None => by_source(),
            },
            Some(_) => Route::Elsewhere,
        }
    }

    /// Returns the gateway to which packets of RoCE between these addresses go, the first of this host; `None` if they
    /// go to none, or the kernel does not say.
    pub fn gateway(&self, from: IpAddr, to: IpAddr) -> Option<IpAddr> {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let own = self.interfaces.iter().find(|interface| interface.address == from)?;
        match self.ask(to, from, Some(own.index)) {
            Some(Answer::Leaves { interface, gateway }) if interface == own.index => gateway,
            _ => None,
        }
    }

    /// Asks for the way to an address from a source address, by an interface if one is given. `None` if there is no
    /// answer.
    fn ask(&self, to: IpAddr, from: IpAddr, interface: Option<u32>) -> Option<Answer> {
        if self.is_mute.get() {
            return None;
        }
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        self.socket.send(&request(number, to, from, interface)).ok()?;
        // Not everything that arrives need be the answer.
        for _ in 0..16 {
            let mut bytes = [0; 4096];
            let length = match (&self.socket).read(&mut bytes) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let bytes = bytes.get(..length)?;
            if bytes.get(8..)?.first_chunk() == Some(&number.to_ne_bytes()) {
                return answer(bytes);
            }
        }
        self.is_mute.set(true);
        None
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns the bytes of a request. Netlink has the host's byte order.
fn request(number: u32, to: IpAddr, from: IpAddr, interface: Option<u32>) -> Vec<u8> {
    let mut attributes = Vec::new();
    let mut add = |kind: u16, value: &[u8]| {
        attributes.extend(((4 + value.len()) as u16).to_ne_bytes());
        attributes.extend(kind.to_ne_bytes());
        attributes.extend(value);
    };
    let bits = if to.is_ipv4() { 32 } else { 128 };
    add(RTA_DST, &octets(to));
    add(RTA_SRC, &octets(from));
    if let Some(interface) = interface {
        add(RTA_OIF, &interface.to_ne_bytes());
    }
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::new();
    bytes.extend(((HEADER_BYTES + ROUTE_BYTES + attributes.len()) as u32).to_ne_bytes());
    bytes.extend(RTM_GETROUTE.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family as u8, bits, bits]);
    bytes.extend([0; ROUTE_BYTES - 3]);
    bytes.extend(attributes);
    bytes
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from).or_else(v4)
}

/// Reads an answer. `None` if it is none.
fn answer(bytes: &[u8]) -> Option<Answer> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER_BYTES..)?;
    if kind == NLMSG_ERROR {
        let code = i32::from_ne_bytes(*body.first_chunk()?).wrapping_neg();
        // Other errors say nothing about the way.
        let is_no_way = matches!(code, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::ENETDOWN);
        return is_no_way.then_some(Answer::None);
    }
    if kind != RTM_NEWROUTE {
        return None;
    }
    let (mut interface, mut gateway) = (None, None);
    let mut attributes = body.get(ROUTE_BYTES..)?;
    while let Some(head) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = attributes.get(4..length)?;
        match u16::from_ne_bytes([head[2], head[3]]) {
            RTA_OIF => interface = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
            RTA_GATEWAY => gateway = Some(address(value)?),
            // A gateway of another family follows the number of its family.
            RTA_VIA => gateway = Some(address(value.get(2..)?)?),
            _ => {}
        }
        // Attributes begin at multiples of four bytes.
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    match body[7] {
        RTN_LOCAL => Some(Answer::Local),
        RTN_UNICAST => interface.map(|interface| Answer::Leaves { interface, gateway }),
        _ => Some(Answer::None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::tcp_ports::loopback_port;

    #[test]
    fn the_kernel_answers_about_loopback() {
        let routes = Routes::open().expect("this kernel shows its routes");
        let port = loopback_port(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(routes.route(&port, IpAddr::from([127, 0, 0, 2])), Route::Leaves);
        let roce = PortFacts { link_layer: LinkLayer::Roce, ..port.clone() };
        assert_eq!(routes.route(&roce, IpAddr::from([127, 0, 0, 2])), Route::Elsewhere, "no packet leaves by it");
        assert_eq!(routes.route(&port, "::1".parse().unwrap()), Route::Unknown, "another family");
        let not_here = PortFacts { address: "192.0.2.1".parse().unwrap(), ..port.clone() };
        assert_eq!(routes.route(&not_here, IpAddr::from([127, 0, 0, 2])), Route::Unknown);
        let infiniband = PortFacts { link_layer: LinkLayer::InfiniBand, ..port };
        assert_eq!(routes.route(&infiniband, IpAddr::from([127, 0, 0, 2])), Route::Unknown);
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_asked_once() {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        kernels.set_nonblocking(true).unwrap();
        let mut routes = Routes::over(OwnedFd::from(ours).into(), Interface::list().unwrap());
        let port = loopback_port(IpAddr::from([127, 0, 0, 1]));
        let mut bytes = [0; 4096];
        for round in 0..3 {
            assert_eq!(routes.route(&port, IpAddr::from([127, 0, 0, 2])), Route::Unknown);
            assert_eq!(routes.gateway(port.address, IpAddr::from([127, 0, 0, 2])), None);
            assert_eq!(kernels.recv(&mut bytes).is_ok(), round == 0, "questions in round {round}");
            assert!(kernels.recv(&mut bytes).is_err(), "a second question in round {round}");
        }
        routes = Routes::open().expect("this kernel shows its routes");
        assert_eq!(routes.route(&port, IpAddr::from([127, 0, 0, 2])), Route::Leaves, "others are asked again");
    }

    #[test]
    fn an_answer_to_another_question_does_not_count() {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        let routes = Routes::over(OwnedFd::from(ours).into(), Interface::list().unwrap());
        let kernel = std::thread::spawn(move || {
            let mut question = [0; 4096];
            kernels.recv(&mut question).unwrap();
            let number = u32::from_ne_bytes(*question[8..].first_chunk().unwrap());
            for (code, number) in [(libc::ENETUNREACH, number - 1), (libc::EINVAL, number)] {
                let mut reply = message(NLMSG_ERROR, &code.wrapping_neg().to_ne_bytes());
                reply[8..12].copy_from_slice(&number.to_ne_bytes());
                kernels.send(&reply).unwrap();
            }
        });
        let port = loopback_port(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(routes.route(&port, IpAddr::from([127, 0, 0, 2])), Route::Unknown, "EINVAL says nothing");
        kernel.join().unwrap();
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn answers_are_read_and_cut_ones_refused() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        let route = |kind: u8, attributes: &[Vec<u8>]| {
            let mut body = vec![0; ROUTE_BYTES];
            body[7] = kind;
            body.extend(attributes.concat());
            message(RTM_NEWROUTE, &body)
        };
        let out = attribute(RTA_OIF, &3_u32.to_ne_bytes());
        let gateway = attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        let direct = Some(Answer::Leaves { interface: 3, gateway: None });
        assert_eq!(answer(&route(RTN_UNICAST, std::slice::from_ref(&out))), direct);
        let both = route(RTN_UNICAST, &[out.clone(), gateway]);
        let to = |gateway: &str| Some(Answer::Leaves { interface: 3, gateway: Some(gateway.parse().unwrap()) });
        assert_eq!(answer(&both), to("10.0.0.1"));
        let via: Vec<u8> = (libc::AF_INET6 as u16)
            .to_ne_bytes()
            .into_iter()
            .chain("fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets())
            .collect();
        assert_eq!(answer(&route(RTN_UNICAST, &[out.clone(), attribute(RTA_VIA, &via)])), to("fe80::1"));
        assert_eq!(answer(&route(RTN_LOCAL, &[out])), Some(Answer::Local));
        // Type 7 is RTN_UNREACHABLE.
        assert_eq!(answer(&route(7, &[])), Some(Answer::None));
        assert_eq!(answer(&route(RTN_UNICAST, &[])), None);
        for length in 0..both.len() {
            let _ = answer(&both[..length]);
        }
        let error = |code: i32| message(NLMSG_ERROR, &(-code).to_ne_bytes());
        assert_eq!(answer(&error(libc::ENETUNREACH)), Some(Answer::None));
        assert_eq!(answer(&error(libc::EINVAL)), None);
        assert_eq!(answer(&[]), None);
    }
}
