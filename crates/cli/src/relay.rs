//! A relay in front of a process on loopback: it passes the sockets of each address on to the same address of the
//! process, until it is told to fail at one of them.

use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The bytes that are passed on in one piece, at most.
const CHUNK_BYTES: usize = 256 << 10;

/// The attempts to find a port that is free at all addresses.
const TRIES: usize = 64;

/// The longest wait until a port is free that this relay had before.
const REOPEN_LIMIT: Duration = Duration::from_secs(5);

/// The relay of one process.
#[derive(Debug)]
pub(crate) struct Relay {
    port: u16,
    /// The port of the process, once it is known; 0 before.
    target: Arc<AtomicU16>,
    doors: Vec<Door>,
}

/// The relay's part at one address.
#[derive(Debug)]
struct Door {
    address: IpAddr,
    listener: Option<TcpListener>,
    /// The sockets that this door accepted and dialled; `None` while it fails.
    sockets: Arc<Mutex<Option<Vec<TcpStream>>>>,
    /// True if accepting has ended for good.
    is_closed: Arc<AtomicBool>,
}

impl Relay {
    /// Listens on one port at all of these addresses.
    ///
    /// # Errors
    /// If no port is free at all of them, or no thread can be started: a sentence.
    pub(crate) fn open(addresses: &[IpAddr]) -> Result<Self, String> {
        let listen_on = || -> io::Result<Vec<TcpListener>> {
            let mut port = 0;
            let mut listeners = Vec::new();
            for address in addresses {
                let listener = TcpListener::bind((*address, port))?;
                port = listener.local_addr()?.port();
                listeners.push(listener);
            }
            Ok(listeners)
        };
        let mut last = None;
        let listeners = (0..TRIES).find_map(|_| listen_on().map_err(|error| last = Some(error)).ok());
        let cannot = |error: &io::Error| format!("no port of loopback can be listened on: {error}");
        let Some(listeners) = listeners else { return Err(last.as_ref().map_or_else(String::new, cannot)) };
        let port = listeners.first().map_or(Ok(0), |first| first.local_addr().map(|address| address.port()));
        let port = port.map_err(|error| cannot(&error))?;
        let target = Arc::new(AtomicU16::new(0));
        let mut doors = Vec::new();
        for (address, listener) in addresses.iter().zip(listeners) {
            let (sockets, is_closed) = (Arc::new(Mutex::new(None)), Arc::default());
            let mut door = Door { address: *address, listener: None, sockets, is_closed };
            door.accept_from(listener, &target).map_err(|error| cannot(&error))?;
            doors.push(door);
        }
        Ok(Self { port, target, doors })
    }

    /// Returns the port that this relay listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Names the port of the process. Sockets that come before have nowhere to go, and are closed.
    pub(crate) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::Relaxed);
    }

    /// Closes all sockets at this address, and refuses new ones.
    ///
    /// # Errors
    /// If the kernel refuses it: a sentence.
    pub(crate) fn fail(&mut self, address: IpAddr) -> Result<(), String> {
        for door in self.doors.iter_mut().filter(|door| door.address == address) {
            door.fail().map_err(|error| format!("the relay at {address} cannot be closed: {error}"))?;
        }
        Ok(())
    }

    /// Accepts sockets at this address again.
    ///
    /// # Errors
    /// If its port was taken meanwhile: a sentence.
    pub(crate) fn mend(&mut self, address: IpAddr) -> Result<(), String> {
        let begin = Instant::now();
        for door in self.doors.iter_mut().filter(|door| door.address == address) {
            let listener = loop {
                match TcpListener::bind((address, self.port)) {
                    Err(_) if begin.elapsed() < REOPEN_LIMIT => thread::sleep(Duration::from_millis(5)),
                    bound => break bound,
                }
            };
            let opened = listener.and_then(|listener| door.accept_from(listener, &self.target));
            opened.map_err(|error| format!("the relay at {address}:{} cannot be opened again: {error}", self.port))?;
        }
        Ok(())
    }
}

impl Door {
    /// Starts to accept.
    fn accept_from(&mut self, listener: TcpListener, target: &Arc<AtomicU16>) -> io::Result<()> {
        self.listener = Some(listener.try_clone()?);
        *lock(&self.sockets) = Some(Vec::new());
        self.is_closed = Arc::default();
        let (address, target) = (self.address, Arc::clone(target));
        let (sockets, is_closed) = (Arc::clone(&self.sockets), Arc::clone(&self.is_closed));
        thread::Builder::new().name("relay".to_owned()).spawn(move || {
            for socket in listener.incoming() {
                if is_closed.load(Ordering::Relaxed) {
                    return;
                }
                // A socket that cannot be passed on is closed, as by a process that is gone.
                let _ = socket.and_then(|socket| pass_on(socket, address, target.load(Ordering::Relaxed), &sockets));
            }
        })?;
        Ok(())
    }

    fn fail(&mut self) -> io::Result<()> {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            // This ends the thread that accepts, and its descriptor is the last one.
            SockRef::from(&listener).shutdown(Shutdown::Both)?;
        }
        for socket in lock(&self.sockets).take().into_iter().flatten() {
            // Both fail only for a socket that has already ended. What it has not sent yet is lost.
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Both);
        }
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // This fails only for a listener that has already ended.
        let _ = self.fail();
    }
}

type Sockets = Arc<Mutex<Option<Vec<TcpStream>>>>;

fn lock(sockets: &Mutex<Option<Vec<TcpStream>>>) -> std::sync::MutexGuard<'_, Option<Vec<TcpStream>>> {
    sockets.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Dials the process at this address, and passes everything between the two sockets.
fn pass_on(socket: TcpStream, address: IpAddr, target: u16, sockets: &Sockets) -> io::Result<()> {
    // The process sees the dialler's own address.
    let from = SocketAddr::new(socket.peer_addr()?.ip(), 0);
    let to = socket2::Socket::new(socket2::Domain::for_address(from), socket2::Type::STREAM, None)?;
    to.bind(&from.into())?;
    to.connect(&SocketAddr::new(address, target).into())?;
    let to = TcpStream::from(to);
    socket.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let (there, back) = ((socket.try_clone()?, to.try_clone()?), (to.try_clone()?, socket.try_clone()?));
    {
        let mut open = lock(sockets);
        // The relay has failed meanwhile.
        let Some(open) = open.as_mut() else { return Ok(()) };
        open.extend([socket, to]);
    }
    for (from, to) in [there, back] {
        thread::Builder::new().name("relayed".to_owned()).spawn(move || pass(from, to))?;
    }
    Ok(())
}

/// Passes bytes in one direction until either socket ends.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    // This fails only for a socket that has already ended.
    let _ = to.shutdown(Shutdown::Write);
}

/// The first two addresses of loopback, which every Linux host has.
pub(crate) const LOOPBACK: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that returns everything that it gets.
    fn echo() -> u16 {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                thread::spawn(move || pass(socket.try_clone().unwrap(), socket));
            }
        });
        port
    }

    fn exchange(mut socket: &TcpStream) -> io::Result<()> {
        socket.write_all(b"some bytes")?;
        socket.read_exact(&mut [0; 10])
    }

    #[test]
    fn a_relay_fails_at_one_address_until_it_is_mended() {
        let mut relay = Relay::open(&LOOPBACK).unwrap();
        relay.lead_to(echo());
        let dial = |address, port| TcpStream::connect((address, port));
        let port = relay.port();
        let [first, second] = LOOPBACK.map(|address| dial(address, port).unwrap());
        for socket in [&first, &second] {
            exchange(socket).unwrap();
        }
        relay.fail(LOOPBACK[1]).unwrap();
        exchange(&first).unwrap();
        exchange(&second).unwrap_err();
        assert_eq!(dial(LOOPBACK[1], port).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        relay.mend(LOOPBACK[1]).unwrap();
        exchange(&second).unwrap_err();
        exchange(&dial(LOOPBACK[1], port).unwrap()).unwrap();
        exchange(&first).unwrap();
    }
}
