//! The control port: it listens on one socket for all addresses, or on one for each address that the user names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use railweave_options::PortRange;
use railweave_transport::Error;
use socket2::{Domain, Protocol, Socket, Type};

use crate::forks;

/// Attempts with another port of the kernel's choice, when a port that is free on one address is taken on another.
const TRIES: usize = 16;

/// One TCP port, on one socket or several.
pub(super) struct ControlPort {
    sockets: Vec<TcpListener>,
    /// The socket to accept from first next time.
    next: usize,
    number: u16,
    /// The addresses that it listens on.
    addresses: Vec<IpAddr>,
}

impl ControlPort {
    /// Binds the first free port of the range: on these addresses, or, if `None`, on all addresses of this host (both
    /// families if it has IPv6, otherwise IPv4 only).
    ///
    /// # Errors
    /// If none is free.
    pub(super) fn bind(ports: PortRange, addresses: Option<&[IpAddr]>) -> Result<Self, Error> {
        let mut last = None;
        for port in ports.first..=ports.last {
            let tries = if port == 0 && addresses.is_some() { TRIES } else { 1 };
            for _ in 0..tries {
                let bound = match addresses {
                    Some(addresses) => Self::bind_each(addresses, port),
                    None => Self::bind_all(port),
                };
                match bound {
                    Ok(bound) => return Ok(bound),
                    Err(error) => last = Some(error),
                }
            }
        }
        let reason = last.map_or_else(|| "the range is empty".to_owned(), |error| error.to_string());
        Err(Error::local(format!(
            "no control port can be bound: RAILWEAVE_CONTROL_PORT={ports}: {reason}; each process needs a \
             port of its own: give a range with at least one free port per process of this host, or 0 for any free \
             port"
        )))
    }

    fn bind_all(port: u16) -> io::Result<Self> {
        match Self::bind_each(&[Ipv6Addr::UNSPECIFIED.into()], port) {
            // If the host has IPv6, the socket takes both families: a port in use is not retried for IPv4.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                Self::bind_each(&[Ipv4Addr::UNSPECIFIED.into()], port)
            }
            result => result,
        }
    }

    fn bind_each(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let mut bound = Self { sockets: Vec::new(), next: 0, number: port, addresses: addresses.to_vec() };
        for address in addresses {
            let address = SocketAddr::new(*address, bound.number);
            let named = |error: io::Error| match address.ip().is_unspecified() {
                true => error,
                false => io::Error::new(error.kind(), format!("{}: {error}", address.ip())),
            };
            let socket = listen_on(address).map_err(named)?;
            bound.number = socket.local_addr()?.port();
            bound.sockets.push(socket);
        }
        forks::close_in_children(bound.sockets.iter().map(AsRawFd::as_raw_fd));
        Ok(bound)
    }

    /// Returns the port's number.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the number for peers that look if this process is still there, at the address that its packets come
    /// from: one of its own, or the first of loopback. 0 if the port does not listen on all of these.
    pub(super) fn number_for_checks(&self, own: &[IpAddr]) -> u16 {
        let hears = |address: &IpAddr| self.addresses.contains(address);
        let is_first =
            |address: &IpAddr| [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(address);
        let hears_all = self.addresses.iter().any(IpAddr::is_unspecified)
            || self.addresses.iter().all(is_first)
            || !own.is_empty() && own.iter().all(hears);
        if hears_all { self.number } else { 0 }
    }

    /// Registers all sockets with the poll under this token.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.sockets.iter_mut().try_for_each(|socket| registry.register(socket, token, Interest::READABLE))
    }

    /// Accepts the next connection from any of the sockets, which take turns.
    pub(super) fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        for _ in 0..self.sockets.len() {
            let socket = &self.sockets[self.next];
            self.next = (self.next + 1) % self.sockets.len();
            match socket.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Drop for ControlPort {
    fn drop(&mut self) {
        forks::keep_in_children(self.sockets.iter().map(AsRawFd::as_raw_fd));
    }
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A port from a range may be one that the previous job has just left.
    if address.port() != 0 {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(TcpListener::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: PortRange = PortRange { first: 0, last: 0 };

    fn addresses(port: &ControlPort) -> Vec<String> {
        port.sockets.iter().map(|socket| socket.local_addr().unwrap().ip().to_string()).collect()
    }

    #[test]
    fn one_socket_listens_for_all_addresses_or_one_for_each() {
        let everywhere = ControlPort::bind(ANY, None).unwrap();
        assert_eq!(everywhere.sockets.len(), 1);
        assert!(everywhere.sockets[0].local_addr().unwrap().ip().is_unspecified());
        let two = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])];
        let mut port = ControlPort::bind(ANY, Some(&two)).unwrap();
        assert_eq!(addresses(&port), ["127.0.0.1", "127.0.0.2"]);
        assert!(port.sockets.iter().all(|socket| socket.local_addr().unwrap().port() == port.number()));
        assert_eq!(port.accept().map(|_| ()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_crowd_at_one_address_keeps_nobody_at_another_waiting() {
        let two = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])];
        let mut port = ControlPort::bind(ANY, Some(&two)).unwrap();
        let dial = |address: IpAddr| std::net::TcpStream::connect((address, port.number())).unwrap();
        let _dialled: Vec<_> = [two[0], two[0], two[0], two[0], two[1]].map(dial).into();
        let reached = |socket: TcpStream| socket.local_addr().unwrap().ip();
        let first: Vec<_> = (0..2).map(|_| reached(port.accept().unwrap().0)).collect();
        assert!(first.contains(&two[1]), "{first:?}");
    }

    #[test]
    fn a_port_that_is_taken_on_one_address_is_passed_over_on_all() {
        // The next port after one of the kernel's choice is usually free; any other pair would do as well.
        let taken = (0..100).find_map(|_| {
            let taken = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
            let next = taken.local_addr().unwrap().port().checked_add(1)?;
            drop(std::net::TcpListener::bind(("127.0.0.1", next)).ok()?);
            Some((taken, next))
        });
        let (taken, next) = taken.unwrap();
        let first = taken.local_addr().unwrap().port();
        let two = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])];
        let error = ControlPort::bind(PortRange { first, last: first }, Some(&two)).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(": Address already in use"), "{error}");
        if let Ok(port) = ControlPort::bind(PortRange { first, last: next }, Some(&two)) {
            assert_eq!((port.number(), port.sockets.len()), (next, 2));
        }
    }

    #[test]
    fn an_address_of_another_host_is_refused_in_words() {
        let error = ControlPort::bind(ANY, Some(&[IpAddr::from([203, 0, 113, 1])])).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains("203.0.113.1: ") && error.to_string().contains("RAILWEAVE_CONTROL_PORT"),
            "{error}"
        );
    }
}
