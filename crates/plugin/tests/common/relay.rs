//! A relay between a plugin and the control port that it dials: it sees each socket and message, and may hold it back.

use super::in_time;
use railweave_nccl_host::net::Handle as HandleBytes;
use railweave_transport::{Frame, Handle, Message, PREFACE_BYTES};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

/// A listener in place of a control port.
pub(crate) struct Relay {
    listener: TcpListener,
    handle: Handle,
    control_port: u16,
}

/// A socket that was dialled, and its preface.
pub(crate) struct Dialled {
    pub(crate) socket: TcpStream,
    pub(crate) preface: [u8; PREFACE_BYTES],
}

impl Relay {
    /// Makes a relay for the control port of a handle.
    pub(crate) fn before(handle: &HandleBytes) -> Self {
        let mut handle = Handle::decode(&handle.0).expect("the plugin's own handle");
        // Each rail's lanes are dialled at the rail's own address, so the relay listens on every address.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port is free");
        let own = listener.local_addr().expect("a listener has an address").port();
        let control_port = std::mem::replace(&mut handle.control_port, own);
        Self { listener, handle, control_port }
    }

    /// Returns a handle that leads to this relay.
    pub(crate) fn handle(&self) -> HandleBytes {
        HandleBytes(self.handle.encode())
    }

    /// Accepts the next socket.
    pub(crate) fn accept(&self) -> Dialled {
        let (mut socket, _) = self.listener.accept().expect("the plugin dials");
        socket.set_read_timeout(Some(railweave_patience::LIMIT)).expect("a timeout can be set");
        let mut preface = [0; PREFACE_BYTES];
        in_time(socket.read_exact(&mut preface), "a preface");
        Dialled { socket, preface }
    }

    /// Dials the control port as this socket's dialler would have, and sends the same preface.
    pub(crate) fn dial(&self, dialled: &Dialled) -> TcpStream {
        let address = dialled.socket.local_addr().expect("a connected socket has an address").ip();
        self.present(address, &dialled.preface)
    }

    /// Dials the control port and sends this preface.
    pub(crate) fn present(&self, address: IpAddr, preface: &[u8]) -> TcpStream {
        let mut socket = TcpStream::connect((address, self.control_port)).expect("the control port listens");
        socket.set_read_timeout(Some(railweave_patience::LIMIT)).expect("a timeout can be set");
        socket.write_all(preface).expect("the control port reads");
        socket
    }
}

impl Dialled {
    /// Passes everything between the two sockets, in both directions, until they are closed.
    pub(crate) fn pass(self, theirs: TcpStream) {
        let clone = |socket: &TcpStream| socket.try_clone().expect("a socket can be cloned");
        let (from, to) = (clone(&self.socket), clone(&theirs));
        thread::spawn(move || pass(from, to));
        thread::spawn(move || pass(theirs, self.socket));
    }

    /// Passes a session's frames in both directions, each after `see` has seen its message.
    pub(crate) fn pass_frames(self, theirs: TcpStream, see: impl FnMut(&Message) + Send + Clone + 'static) {
        let clone = |socket: &TcpStream| socket.try_clone().expect("a socket can be cloned");
        let (from, to, also) = (clone(&self.socket), clone(&theirs), see.clone());
        thread::spawn(move || pass_frames(from, to, also));
        thread::spawn(move || pass_frames(theirs, self.socket, see));
    }
}

/// Copies until one end is closed. Ignores errors.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    from.set_read_timeout(None).expect("a timeout can be unset");
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn pass_frames(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&Message)) {
    from.set_read_timeout(None).expect("a timeout can be unset");
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        input.extend_from_slice(&chunk[..count]);
        while let Some((frame, length)) = Frame::decode(&input).expect("the plugin keeps to the protocol") {
            see(&frame.message);
            if to.write_all(&input[..length]).is_err() {
                return;
            }
            input.drain(..length);
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
