//! A connected, non-blocking TCP socket: this crate's interface to the kernel.
#![allow(unsafe_code)] // sendmsg, recvmsg, poll and setsockopt

use std::io;
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::pinned::{Destination, Source};

/// The maximum number of frames, each a header and a payload, in one sending system call.
pub(crate) const GATHER_FRAMES: usize = 16;
const GATHER_PIECES: usize = 2 * GATHER_FRAMES + 1;

/// The options that [`Socket::open`] sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketOptions {
    /// Size of the kernel's buffers in bytes, per direction.
    pub(crate) buffer: Option<u32>,
    /// Time without an answer after which the kernel ends an idle connection, or `Silence` a busy one.
    pub(crate) peer_timeout: Option<Duration>,
    /// The IPv4 TOS byte or IPv6 traffic class.
    pub(crate) traffic_class: Option<u8>,
}

/// The socket of a lane.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    local: SocketAddr,
    remote: SocketAddr,
}

/// Offsets in the kernel's `struct tcp_info` (linux/tcp.h), in 32-bit words. `libc` has only its first part; an older
/// kernel fills in less.
mod tcp_info {
    pub(super) const UNACKED: usize = 6;
    pub(super) const LAST_ACK_RECV: usize = 14;
    /// Since Linux 4.6.
    pub(super) const NOTSENT_BYTES: usize = 36;
    /// Since Linux 5.4.
    pub(super) const SND_WND: usize = 57;
    pub(super) const WORDS: usize = 58;
}

impl Socket {
    /// Takes over a connected socket. The error names the step that failed.
    pub(crate) fn open(fd: OwnedFd, options: &SocketOptions) -> Result<Self, (&'static str, io::Error)> {
        let stream = TcpStream::from(fd);
        // A dual-stack listener reports IPv4 peers by mapped addresses.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let local = plain(stream.local_addr().map_err(|error| ("getsockname", error))?);
        let remote = plain(stream.peer_addr().map_err(|error| ("getpeername", error))?);
        let socket = Self { stream, local, remote };
        socket.stream.set_nonblocking(true).map_err(|error| ("O_NONBLOCK", error))?;
        socket.stream.set_nodelay(true).map_err(|error| ("TCP_NODELAY", error))?;
        if let Some(bytes) = options.buffer {
            let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
            socket.set("SO_SNDBUF", libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
            socket.set("SO_RCVBUF", libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
        }
        if let Some(timeout) = options.peer_timeout {
            // For a lane without bytes in flight; `Silence` watches the others.
            let probes = 4;
            let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).max(2);
            socket.set("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
            // Half of the time without probes, then four probes in the other half; the kernel accepts at most 32767 s.
            let half = seconds / 2;
            socket.set("TCP_KEEPIDLE", libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, half.clamp(1, 32767))?;
            socket.set("TCP_KEEPINTVL", libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, (half / probes).clamp(1, 32767))?;
            socket.set("TCP_KEEPCNT", libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
        }
        if let Some(class) = options.traffic_class {
            let class = i32::from(class);
            // This sets the class of IPv4 packets on dual-stack sockets too.
            if local.is_ipv6() {
                socket.set("IPV6_TCLASS", libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class)?;
            } else {
                socket.set("IP_TOS", libc::IPPROTO_IP, libc::IP_TOS, class)?;
            }
        }
        Ok(socket)
    }

    /// Returns this end's address.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's address.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns true if the peer has closed or reset the connection, even if unread bytes come first.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let mut look = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: the kernel reads and writes this one entry; with a timeout of 0 it does not wait.
        let told = unsafe { libc::poll(&raw mut look, 1, 0) };
        // poll(2) reports POLLERR and POLLHUP, after a reset, without being asked.
        told > 0
    }

    /// Hands the gathered bytes to the kernel. Returns the number that it took.
    pub(crate) fn send(&self, gather: &Gather<'_>) -> io::Result<usize> {
        let mut message = empty_message();
        message.msg_iov = gather.pieces.as_ptr().cast_mut();
        message.msg_iovlen = gather.count as _;
        // SAFETY: the descriptor is open while `self` exists; the message points at `count` initialised pieces, each of
        // which borrows or pins its bytes until `gather` is dropped; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives into `first`, if given, and the bytes after that into `then`. Returns the number of bytes; 0 if the
    /// peer has closed its end.
    pub(crate) fn receive(&self, first: Option<&Destination<'_>>, then: &mut [u8]) -> io::Result<usize> {
        let (start, length) = first.map_or((then.as_mut_ptr(), 0), Destination::raw);
        let mut pieces = [piece(start, length), piece(then.as_mut_ptr(), then.len())];
        let mut message = empty_message();
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the descriptor is open while `self` exists; the first piece is empty, or registered memory that stays
        // pinned during the call and that anybody may write to; the second is borrowed for writing.
        let received = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the time since the peer's host was heard; `None` if no bytes are in flight to it, if only its closed
    /// window holds them back, or if the kernel does not say. The system call costs as much as one that receives
    /// nothing.
    pub(crate) fn heard_ago(&self) -> Option<Duration> {
        let mut info = [0u32; tcp_info::WORDS];
        // If the kernel does not report the window, it counts as open.
        info[tcp_info::SND_WND] = 1;
        let mut size = size_of_val(&info) as libc::socklen_t;
        // SAFETY: the descriptor is open; the kernel writes at most `size` bytes of plain numbers into the array.
        let result = unsafe {
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
            libc::getsockopt(self.stream.as_raw_fd(), level, option, info.as_mut_ptr().cast(), &raw mut size)
        };
        // Without a route, even bytes that the window has room for stay unsent.
        let in_flight = info[tcp_info::UNACKED] > 0 || info[tcp_info::NOTSENT_BYTES] > 0;
        // The kernel probes a closed window less and less often, so the peer's host answers less and less often.
        let counts = result == 0 && in_flight && info[tcp_info::SND_WND] > 0;
        counts.then(|| Duration::from_millis(u64::from(info[tcp_info::LAST_ACK_RECV])))
    }

    /// Tells the peer that nothing more will come, and stops receiving.
    pub(crate) fn shutdown(&self) {
        // Fails only if the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn set(&self, name: &'static str, level: i32, option: i32, value: i32) -> Result<(), (&'static str, io::Error)> {
        let size = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the descriptor is open; the value is an i32 on the stack, and its size is given with it.
        let result =
            unsafe { libc::setsockopt(self.stream.as_raw_fd(), level, option, (&raw const value).cast(), size) };
        if result == 0 { Ok(()) } else { Err((name, io::Error::last_os_error())) }
    }
}

/// Pieces of memory that one [`Socket::send`] sends, in order.
pub(crate) struct Gather<'a> {
    pieces: [libc::iovec; GATHER_PIECES],
    count: usize,
    sources: [Option<Source<'a>>; GATHER_FRAMES],
    pinned: usize,
    bytes: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// Makes an empty one.
    pub(crate) fn new() -> Self {
        Self {
            pieces: [piece(std::ptr::null_mut(), 0); GATHER_PIECES],
            count: 0,
            sources: [const { None }; GATHER_FRAMES],
            pinned: 0,
            bytes: 0,
            borrowed: PhantomData,
        }
    }

    /// Adds bytes of this process.
    ///
    /// # Panics
    /// When there is no room: see [`GATHER_FRAMES`].
    pub(crate) fn push(&mut self, bytes: &'a [u8]) {
        self.add(piece(bytes.as_ptr().cast_mut(), bytes.len()));
    }

    /// Adds registered memory, and keeps it pinned until `self` is dropped.
    ///
    /// # Panics
    /// Like [`Self::push`].
    pub(crate) fn push_source(&mut self, source: Source<'a>) {
        let (start, length) = source.raw();
        self.add(piece(start, length));
        self.sources[self.pinned] = Some(source);
        self.pinned += 1;
    }

    /// Returns the number of bytes in all pieces.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, piece: libc::iovec) {
        self.pieces[self.count] = piece;
        self.count += 1;
        self.bytes += piece.iov_len;
    }
}

fn piece(start: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: length }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: all zero is a valid `msghdr`: null pointers with lengths of 0 (and padding on some systems).
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn option(socket: &Socket, level: i32, option: i32) -> i32 {
        let (mut value, mut size) = (0i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the descriptor is open; value and size are on the stack, and the size is that of the value.
        let result = unsafe {
            libc::getsockopt(socket.stream.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut size)
        };
        assert_eq!(result, 0);
        value
    }

    #[test]
    fn options_are_set() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let options = SocketOptions {
            buffer: Some(20_000),
            peer_timeout: Some(Duration::from_secs(40)),
            traffic_class: Some(0x68),
        };
        let socket = Socket::open(stream.into(), &options).unwrap();
        assert_eq!(option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF), 40_000);
        assert_eq!(option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF), 40_000);
        assert_eq!(option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 20);
        assert_eq!(option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 5);
        assert_eq!(option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 4);
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_TOS), 0x68);
        assert_eq!(socket.remote(), listener.local_addr().unwrap());
    }

    #[test]
    fn ipv4_on_a_listener_of_both_families_is_ipv4() {
        let Ok(listener) = TcpListener::bind("[::]:0") else {
            return eprintln!("left out: this machine has no IPv6");
        };
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let dialled = TcpStream::connect(address).unwrap();
        let options = SocketOptions { buffer: None, peer_timeout: None, traffic_class: Some(0x68) };
        let socket = Socket::open(listener.accept().unwrap().0.into(), &options).unwrap();
        assert_eq!((socket.local(), socket.remote()), (address, dialled.local_addr().unwrap()));
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_TOS), 0x68);
    }

    #[test]
    fn a_socket_that_is_not_connected_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = SocketOptions { buffer: None, peer_timeout: None, traffic_class: None };
        let (step, _) = Socket::open(listener.into(), &options).unwrap_err();
        assert_eq!(step, "getpeername");
    }
}
