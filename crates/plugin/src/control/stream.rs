//! A non-blocking socket of the control thread, with its input and its unsent output.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};

use crate::congestion::LaneCongestion;

/// Unsent bytes of a session after which its peer counts as stuck.
const MOST_UNSENT: usize = 4 << 20;

/// The time within which the peer's host acknowledges what a session says about rails that fail.
pub(super) const UNACKNOWLEDGED: Duration = Duration::from_secs(1);

/// A socket with its buffers.
pub(crate) struct Stream {
    socket: TcpStream,
    input: Vec<u8>,
    /// Bytes at the start of `input` that are consumed.
    consumed: usize,
    output: Vec<u8>,
}

/// Lets the kernel choose the source port once it knows the other end, so that one address has room for more than
/// 28,000 lanes. Without the option (before Linux 4.2) that number is the limit.
fn choose_port_late(socket: &Socket) {
    let yes: libc::c_int = 1;
    // SAFETY: the option takes an int, and its address and size are passed (ip(7), IP_BIND_ADDRESS_NO_PORT).
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const yes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Returns true if the error says that the peer has closed the socket.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Nothing is left in the socket for now.
    Open,
    /// The buffer holds as much as was asked for; there may be more in the socket.
    Full,
    /// The peer has closed; what it sent before is in the buffer.
    Closed,
}

impl Stream {
    pub(crate) fn new(socket: TcpStream) -> Self {
        let _ = socket.set_nodelay(true);
        Self { socket, input: Vec::new(), consumed: 0, output: Vec::new() }
    }

    /// Begins to dial `remote`, from `local` if given. The result shows once the socket is writable.
    pub(crate) fn dial(local: Option<IpAddr>, remote: SocketAddr) -> io::Result<Self> {
        let socket =
            Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        if let Some(local) = local {
            choose_port_late(&socket);
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        match socket.connect(&remote.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Self::new(TcpStream::from_std(socket.into())))
    }

    /// Returns the address of this end.
    pub(crate) fn local(&self) -> Option<IpAddr> {
        Some(self.socket.local_addr().ok()?.ip().to_canonical())
    }

    /// Has the kernel give the socket up once the peer's host has acknowledged nothing of what is on its way for
    /// [`UNACKNOWLEDGED`] (tcp(7), `TCP_USER_TIMEOUT`): its path is gone, and another may be there. The kernel answers
    /// for a process that stands still, as long as there is room for what it has not read. Without the option,
    /// heartbeats find out later.
    pub(crate) fn insist_on_acknowledgements(&self) {
        let _ = socket2::SockRef::from(&self.socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    }

    /// Returns the time within which the peer's host must acknowledge, if there is one.
    #[cfg(test)]
    pub(super) fn unacknowledged(&self) -> Option<Duration> {
        socket2::SockRef::from(&self.socket).tcp_user_timeout().unwrap()
    }

    /// Sets the congestion control. `inside_host`: both ends are on this host.
    pub(crate) fn set_congestion(&self, congestion: &LaneCongestion, inside_host: bool) -> io::Result<()> {
        congestion.set(&self.socket, inside_host)
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Returns true if a dialled socket is connected, false while that is not known.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads until nothing is left or the buffer holds `most` bytes; never more, so that the rest stays in the socket
    /// for its next owner.
    pub(crate) fn fill(&mut self, most: usize) -> io::Result<Fill> {
        let mut chunk = [0; 4096];
        self.input.drain(..std::mem::take(&mut self.consumed));
        while self.input.len() < most {
            let room = chunk.len().min(most - self.input.len());
            match self.socket.read(&mut chunk[..room]) {
                Ok(0) => return Ok(Fill::Closed),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Fill::Open),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Fill::Full)
    }

    pub(crate) fn input(&self) -> &[u8] {
        &self.input[self.consumed..]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.consumed >= self.input.len() {
            // Most sockets are quiet most of the time: they keep no memory.
            (self.input, self.consumed) = (Vec::new(), 0);
        }
    }

    /// Adds bytes to the output, and writes as much as the socket takes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.output.len() + bytes.len() > MOST_UNSENT {
            return Err(io::Error::other(format!(
                "the peer does not read: {} bytes wait to be sent",
                self.output.len()
            )));
        }
        self.output.extend_from_slice(bytes);
        self.flush()
    }

    /// Writes as much of the output as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        let result = loop {
            if sent == self.output.len() {
                break Ok(());
            }
            match self.socket.write(&self.output[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                // Not connected yet: the bytes go out once it is.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.output.drain(..sent);
        if self.output.is_empty() {
            self.output = Vec::new();
        }
        result
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent() > 0
    }

    /// Returns the number of unsent bytes.
    pub(crate) fn unsent(&self) -> usize {
        self.output.len()
    }

    /// Returns true if the peer has closed the socket, or it failed, and all bytes are read.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        match self.socket.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Removes the socket from the control thread's poll.
    pub(crate) fn deregister(&mut self, registry: &Registry) {
        let _ = registry.deregister(&mut self.socket);
    }

    /// Returns the socket itself. Nothing may be buffered.
    pub(crate) fn into_socket(self) -> OwnedFd {
        debug_assert!(self.input().is_empty() && self.output.is_empty(), "bytes would be lost with their buffer");
        OwnedFd::from(std::net::TcpStream::from(self.socket))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn what_came_before_a_reset_is_read_first() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut stream = Stream::new(TcpStream::from_std(socket));
        peer.write_all(b"READY").unwrap();
        socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peer);
        assert!(stream.fill(64).is_err(), "the peer has reset it");
        assert_eq!(stream.input(), b"READY");
    }
}
