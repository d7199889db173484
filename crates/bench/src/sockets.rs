//! The raw limit of TCP between two ranks: plain sockets, a sender and a receiver that spin as the benchmark of a
//! plugin does, the same sizes, and buffers used in turn. Compare a plugin over TCP with this, from the same run.

use crate::bootstrap::{BootstrapError, Link};
use crate::error::RAN_OUT;
use crate::figures::{Bandwidth, LATENCY_BYTES, MAX_BUFFER_BYTES, Times, WARM_UP_ROUNDS, for_a_time};
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of parts of a stream's time: the first [`WARM_UP_WINDOWS`] are a warm-up, and the result is the median of
/// the others.
const WINDOWS: usize = 9;
const WARM_UP_WINDOWS: usize = 2;
/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The addresses of this rank and of the peer on each rail, in the same order on both ranks.
    pub rails: Vec<(IpAddr, IpAddr)>,
    /// The sizes of messages for bandwidth, in bytes.
    pub sizes: Vec<usize>,
    /// The number of buffers used in turn; fewer for sizes at which this many would need more than 256 MiB.
    pub in_flight: usize,
    /// The congestion control of the sockets between hosts; the kernel's own choice if `None`.
    pub congestion: Option<String>,
    /// The congestion control of the sockets with both ends on this host; the kernel's own choice if `None`.
    pub congestion_inside_host: Option<String>,
    /// The approximate time of each measurement: of the latency, and of the bandwidth at each size.
    pub time: Duration,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Half of a round trip of 8 bytes on the first rail.
    pub latency: Times,
    /// The bandwidth of all rails together at each size: one stream on each, all at once.
    pub bandwidth: Vec<Bandwidth>,
}

/// The reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// The exchange between the ranks failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A socket failed.
    #[error("raw sockets: {what}: {error}; check the rails' addresses")]
    Socket {
        /// The step that failed.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// Nothing moved for too long.
    #[error("{RAN_OUT}raw sockets: {0} stalled; check that the other rank still runs")]
    Stalled(String),
}

fn socket(what: &str) -> impl FnOnce(io::Error) -> SocketsError + '_ {
    move |error| SocketsError::Socket { what: what.to_owned(), error }
}

/// Runs the measurement; both ranks of `link` call this together and get the same results. Rank 0 sends.
///
/// # Errors
/// If a rail cannot be connected, or the other rank is gone.
pub fn run(link: &mut Link, settings: &Settings) -> Result<Results, SocketsError> {
    let abort = link.abort_flag();
    let mut first = connect(link, settings, 1, &abort)?;
    let latency = latency(link, &mut first, settings, &abort)?;
    drop(first);
    let mut bandwidth = Vec::new();
    for bytes in &settings.sizes {
        let mut streams = connect(link, settings, usize::MAX, &abort)?;
        bandwidth.push(stream(link, &mut streams, *bytes, settings, &abort)?);
        link.barrier()?;
    }
    Ok(Results { latency, bandwidth })
}

/// Connects one socket for each of the first `most` rails, from rank 0 to rank 1's address. The kernel chooses rank 0's
/// address by its routes.
fn connect(
    link: &mut Link,
    settings: &Settings,
    most: usize,
    abort: &AtomicBool,
) -> Result<Vec<TcpStream>, SocketsError> {
    let Settings { rails, congestion, congestion_inside_host, stall, .. } = settings;
    let (rails, stall) = (&rails[..most.min(rails.len())], *stall);
    let listeners: Vec<TcpListener> = match link.rank() {
        1 => rails.iter().map(|(local, _)| TcpListener::bind((*local, 0))).collect::<Result<_, _>>(),
        _ => Ok(Vec::new()),
    }
    .map_err(socket("listening"))?;
    let ports: Vec<u8> = listeners
        .iter()
        .flat_map(|listener| listener.local_addr().map_or(0, |address| address.port()).to_le_bytes())
        .collect();
    let ports = link.all_gather(&ports)?.swap_remove(1);
    let mut streams = Vec::new();
    if link.rank() == 0 {
        for ((_, remote), port) in rails.iter().zip(ports.chunks_exact(2)) {
            let address = SocketAddr::new(*remote, u16::from_le_bytes([port[0], port[1]]));
            streams.push(TcpStream::connect_timeout(&address, stall).map_err(socket("connecting"))?);
        }
    } else {
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(socket("listening"))?;
            let begin = Instant::now();
            streams.push(loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(socket("accepting")(error)),
                }
                check(begin, stall, abort, "accepting")?;
                std::thread::sleep(Duration::from_millis(1));
            });
        }
    }
    for (stream, (_, remote)) in streams.iter().zip(rails) {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(socket("setting options"))?;
        if let Some(name) = if is_here(*remote) { congestion_inside_host } else { congestion } {
            let set = SockRef::from(stream).set_tcp_congestion(name.as_bytes());
            set.map_err(socket("setting the congestion control"))?;
        }
    }
    Ok(streams)
}

/// Returns true if an address is one of this host's: a socket can be bound to it.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn check(since: Instant, stall: Duration, abort: &AtomicBool, what: &str) -> Result<(), SocketsError> {
    if abort.load(Ordering::Relaxed) || since.elapsed() > stall {
        return Err(SocketsError::Stalled(what.to_owned()));
    }
    Ok(())
}

fn latency(
    link: &mut Link,
    streams: &mut [TcpStream],
    settings: &Settings,
    abort: &AtomicBool,
) -> Result<Times, SocketsError> {
    let Some(stream) = streams.first_mut() else {
        return Ok(Times::of(Vec::new()));
    };
    let begins = link.rank() == 0;
    let mut rounds = |count: usize| ping_pong(stream, begins, count, settings.stall, abort);
    rounds(WARM_UP_ROUNDS)?;
    let trips = for_a_time(link, settings.time, rounds)?;
    let median = Times::of(trips.into_iter().map(|trip| trip / 2).collect());
    Ok(Times::shared(link, median)?)
}

fn ping_pong(
    stream: &mut TcpStream,
    begins: bool,
    count: usize,
    stall: Duration,
    abort: &AtomicBool,
) -> Result<Vec<Duration>, SocketsError> {
    let mut message = [0; LATENCY_BYTES];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        if begins {
            move_all(LATENCY_BYTES, stall, abort, |done| stream.write(&message[done..]))?;
        }
        move_all(LATENCY_BYTES, stall, abort, |done| stream.read(&mut message[done..]))?;
        if begins {
            times.push(begin.elapsed());
        } else {
            move_all(LATENCY_BYTES, stall, abort, |done| stream.write(&message[done..]))?;
        }
    }
    Ok(times)
}

/// Spins until `count` bytes have moved.
fn move_all(
    count: usize,
    stall: Duration,
    abort: &AtomicBool,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> Result<(), SocketsError> {
    let mut done = 0;
    let mut idle: Option<Instant> = None;
    let mut spins = 0_u32;
    while done < count {
        match step(done) {
            Ok(0) => return Err(socket("moving bytes")(ErrorKind::UnexpectedEof.into())),
            Ok(moved) => {
                done += moved;
                idle = None;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                spins = spins.wrapping_add(1);
                // The clock is read rarely, because that costs as much as an empty read.
                if spins.is_multiple_of(4096) {
                    check(*idle.get_or_insert_with(Instant::now), stall, abort, "moving bytes")?;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(socket("moving bytes")(error)),
        }
    }
    Ok(())
}

/// Runs one stream on each rail, all at once, for the given time.
fn stream(
    link: &mut Link,
    streams: &mut [TcpStream],
    bytes: usize,
    settings: &Settings,
    abort: &AtomicBool,
) -> Result<Bandwidth, SocketsError> {
    let in_flight = (MAX_BUFFER_BYTES / bytes.max(1)).clamp(1, settings.in_flight.max(1));
    let mut buffer = vec![1_u8; bytes.max(1) * in_flight];
    // Rank 0 sends a little longer than rank 1 measures, so that the end is not counted.
    let window = settings.time / (WINDOWS - WARM_UP_WINDOWS) as u32;
    let mut positions = vec![0; streams.len()];
    link.barrier()?;
    let begin = Instant::now();
    let sends = link.rank() == 0;
    let end = if sends { window * (WINDOWS as u32 + 1) } else { window * WINDOWS as u32 };
    let (mut rates, mut total) = (Vec::new(), 0_u64);
    let mut since = (begin, 0_u64);
    let mut moved_at = begin;
    loop {
        let now = Instant::now();
        if now.duration_since(begin) >= end {
            break;
        }
        if now.duration_since(since.0) >= window {
            rates.push((total - since.1) as f64 * 8.0 / now.duration_since(since.0).as_nanos() as f64);
            since = (now, total);
        }
        let mut moved = 0;
        for (stream, position) in streams.iter_mut().zip(&mut positions) {
            // Each call stops at the end of the message, as in a plugin that moves messages.
            let rest = bytes.max(1) - *position % bytes.max(1);
            let range = *position..*position + rest;
            let step = if sends { stream.write(&buffer[range]) } else { stream.read(&mut buffer[range]) };
            match step {
                Ok(count) => {
                    moved += count;
                    *position = (*position + count) % buffer.len();
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // The receiver ends first.
                Err(error) if sends && matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
                Err(error) => return Err(socket("streaming")(error)),
            }
        }
        total += moved as u64;
        if moved > 0 {
            moved_at = now;
        } else {
            check(moved_at, settings.stall, abort, "a stream")?;
        }
    }
    let mut counted: Vec<f64> = rates.into_iter().skip(WARM_UP_WINDOWS).collect();
    counted.sort_by(f64::total_cmp);
    let median = counted.get(counted.len() / 2).copied().unwrap_or(0.0);
    let gigabits_per_second = f64::from_bits(link.gather_numbers(median.to_bits())?[1]);
    Ok(Bandwidth { bytes, in_flight, gigabits_per_second })
}
