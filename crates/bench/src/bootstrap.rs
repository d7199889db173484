//! The exchange between ranks before they are connected: each rank has a socket to the parent process, which relays.
//!
//! [`Link`] is a rank's end, [`Relay`] the parent's. If either process dies, the other sees the end of its socket, so
//! nothing waits for a dead process. A frame is a kind of one byte, a little-endian length of four bytes, and a body.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// From the parent: rank, ranks and the job; the first frame.
const START: u8 = 1;
/// From a rank: its contribution to an all-gather.
const GATHER: u8 = 2;
/// From the parent: the contributions of all ranks.
const GATHERED: u8 = 3;
/// From a rank: a report for the parent's program.
const REPORT: u8 = 4;
/// From a rank: the reason for its end.
const FAILED: u8 = 5;
/// From the parent: stop, for this reason.
const ABORT: u8 = 6;

/// The largest body; a longer one means that the stream is garbled.
const MAX_BODY_BYTES: usize = 64 << 20;
/// The time after which the parent gives up on a rank that does not read.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A frame's kind and body.
type Frame = (u8, Vec<u8>);
/// A rank and one of its frames, or `None` for the end of its socket.
type FromRank = (usize, Option<Frame>);

/// A rank's end of the socket to its parent.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    reporter: Reporter,
    frames: Receiver<Frame>,
    rank: usize,
    ranks: usize,
    job: Vec<u8>,
    abort: Arc<AtomicBool>,
    orphaned: Arc<AtomicBool>,
}

impl Link {
    /// Takes over the socket to the parent and waits for the first frame.
    ///
    /// # Errors
    /// If the parent is gone, or the other process is not a parent.
    pub fn open(mut stream: UnixStream) -> Result<Self, BootstrapError> {
        let (kind, body) = read_frame(&mut stream)?;
        let garbled = || BootstrapError::Garbled { what: "the first frame from the parent".to_owned() };
        let (head, job) = body.split_first_chunk::<8>().filter(|_| kind == START).ok_or_else(garbled)?;
        let (rank, ranks) = (number(head, 0), number(head, 4));
        let (sender, frames) = channel();
        let (abort, orphaned) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut reader = stream.try_clone()?;
        let (reader_abort, reader_orphaned) = (Arc::clone(&abort), Arc::clone(&orphaned));
        thread::Builder::new().name("bootstrap".to_owned()).spawn(move || {
            while let Ok((kind, body)) = read_frame(&mut reader) {
                if kind == ABORT {
                    reader_abort.store(true, Ordering::Relaxed);
                }
                if sender.send((kind, body)).is_err() {
                    return;
                }
            }
            reader_orphaned.store(true, Ordering::Relaxed);
            reader_abort.store(true, Ordering::Relaxed);
        })?;
        let reporter = Reporter(Arc::new(Mutex::new(stream.try_clone()?)));
        Ok(Self { stream, reporter, frames, rank, ranks, job: job.to_vec(), abort, orphaned })
    }

    /// Returns the number of this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the parent's job for every rank.
    #[must_use]
    pub fn job(&self) -> &[u8] {
        &self.job
    }

    /// Returns a flag that becomes true when the parent says stop or is gone.
    #[must_use]
    pub fn abort_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    /// Returns a flag that becomes true when the parent is gone.
    #[must_use]
    pub fn orphaned_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.orphaned)
    }

    /// Sends `mine` to all ranks and returns the contributions of all, in order of rank.
    ///
    /// # Errors
    /// If the parent is gone or says stop.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.reporter.send(GATHER, mine)?;
        match self.frames.recv() {
            Ok((GATHERED, body)) => unpack(&body, self.ranks)
                .ok_or_else(|| BootstrapError::Garbled { what: "the contributions of the ranks".to_owned() }),
            Ok((ABORT, reason)) => Err(BootstrapError::Aborted { reason: lossy(&reason) }),
            Ok((kind, _)) => Err(BootstrapError::Garbled { what: format!("a frame of kind {kind}") }),
            Err(_) => Err(BootstrapError::ParentGone),
        }
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// If [`Self::all_gather`] fails.
    pub fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.all_gather(&[]).map(drop)
    }

    /// Sends a number to all ranks and returns all numbers in order of rank.
    ///
    /// # Errors
    /// If [`Self::all_gather`] fails.
    pub fn gather_numbers(&mut self, mine: u64) -> Result<Vec<u64>, BootstrapError> {
        let garbled = || BootstrapError::Garbled { what: "a number of a rank".to_owned() };
        let numbers = self.all_gather(&mine.to_le_bytes())?;
        numbers.iter().map(|bytes| bytes[..].try_into().map(u64::from_le_bytes).map_err(|_| garbled())).collect()
    }

    /// Sends a time to all ranks and returns the longest.
    ///
    /// # Errors
    /// If [`Self::all_gather`] fails.
    pub fn slowest(&mut self, mine: Duration) -> Result<Duration, BootstrapError> {
        let nanos = self.gather_numbers(mine.as_nanos() as u64)?;
        Ok(Duration::from_nanos(nanos.into_iter().max().unwrap_or(0)))
    }

    /// Sends a report to the parent's program.
    ///
    /// # Errors
    /// If the parent is gone.
    pub fn report(&mut self, body: &[u8]) -> Result<(), BootstrapError> {
        self.reporter.report(body)
    }

    /// Returns a sender of reports for another thread of this rank.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Tells the parent why this rank ends.
    ///
    /// # Errors
    /// If the parent is gone.
    pub fn fail(&mut self, reason: &str) -> Result<(), BootstrapError> {
        self.reporter.send(FAILED, reason.as_bytes())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The shutdown also ends the reading thread, and the parent sees the end of the socket. It fails only if the
        // connection has already ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sends the reports of a rank to its parent, from any of the rank's threads.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<Mutex<UnixStream>>);

impl Reporter {
    /// Sends a report to the parent's program.
    ///
    /// # Errors
    /// If the parent is gone.
    pub fn report(&self, body: &[u8]) -> Result<(), BootstrapError> {
        self.send(REPORT, body)
    }

    /// Sends a frame, which no other thread's frame can interrupt.
    fn send(&self, kind: u8, body: &[u8]) -> Result<(), BootstrapError> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(write_frame(&mut *stream, kind, body)?)
    }
}

/// An event of a rank that the parent sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank sends a report.
    Report {
        /// The rank.
        rank: usize,
        /// The report.
        body: Vec<u8>,
    },
    /// A rank says why it ends.
    Failed {
        /// The rank.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// A rank's socket has ended: the rank is done, or dead.
    Closed {
        /// The rank.
        rank: usize,
    },
}

/// The parent's end of all links.
#[derive(Debug)]
pub struct Relay {
    streams: Vec<UnixStream>,
    frames: Receiver<FromRank>,
    gathered: Vec<Option<Vec<u8>>>,
}

impl Relay {
    /// Starts to relay between `streams`, one per rank, and sends each rank its number and the job.
    ///
    /// # Errors
    /// If a socket cannot be set up, or no thread can be started.
    pub fn start(streams: Vec<UnixStream>, job: &[u8]) -> io::Result<Self> {
        let (sender, frames) = channel();
        let ranks = streams.len();
        for (rank, stream) in streams.iter().enumerate() {
            stream.set_write_timeout(Some(WRITE_LIMIT))?;
            let (mut reader, sender) = (stream.try_clone()?, sender.clone());
            thread::Builder::new()
                .name(format!("relay of rank {rank}"))
                .spawn(move || relay_rank(rank, &mut reader, &sender))?;
        }
        for (rank, mut stream) in streams.iter().enumerate() {
            let mut body = [rank, ranks].map(|number| (number as u32).to_le_bytes()).concat();
            body.extend_from_slice(job);
            // If the rank is already gone, the end of its socket reports that.
            let _ = write_frame(&mut stream, START, &body);
        }
        Ok(Self { streams, frames, gathered: vec![None; ranks] })
    }

    /// Returns the next event, or `None` if no rank sent anything for `silence`.
    pub fn next_event(&mut self, silence: Duration) -> Option<Event> {
        loop {
            let (rank, frame) = match self.frames.recv_timeout(silence) {
                Ok(frame) => frame,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            match frame {
                Some((GATHER, body)) => self.gather(rank, body),
                Some((REPORT, body)) => return Some(Event::Report { rank, body }),
                Some((FAILED, reason)) => return Some(Event::Failed { rank, reason: lossy(&reason) }),
                Some((kind, _)) => {
                    return Some(Event::Failed {
                        rank,
                        reason: format!("it sent a frame of kind {kind}, which is unknown"),
                    });
                }
                None => return Some(Event::Closed { rank }),
            }
        }
    }

    /// Tells all ranks to stop.
    pub fn abort(&mut self, reason: &str) {
        for mut stream in &self.streams {
            // This fails only for a rank that is gone, or that has not read for `WRITE_LIMIT`.
            let _ = write_frame(&mut stream, ABORT, reason.as_bytes());
        }
    }

    fn gather(&mut self, rank: usize, body: Vec<u8>) {
        self.gathered[rank] = Some(body);
        if self.gathered.iter().any(Option::is_none) {
            return;
        }
        let packed = pack(self.gathered.iter_mut().filter_map(Option::take));
        for mut stream in &self.streams {
            // If the rank is gone, the end of its socket reports that.
            let _ = write_frame(&mut stream, GATHERED, &packed);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for stream in &self.streams {
            // This fails only if the connection has already ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn relay_rank(rank: usize, reader: &mut UnixStream, sender: &Sender<FromRank>) {
    while let Ok(frame) = read_frame(reader) {
        if sender.send((rank, Some(frame))).is_err() {
            return;
        }
    }
    // This fails only if the relay was dropped.
    let _ = sender.send((rank, None));
}

fn write_frame(stream: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    assert!(body.len() <= MAX_BODY_BYTES, "a frame of {} bytes", body.len());
    let mut frame = Vec::with_capacity(5 + body.len());
    frame.push(kind);
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(body);
    stream.write_all(&frame)
}

fn read_frame(stream: &mut UnixStream) -> io::Result<Frame> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let length = number(&head, 1);
    if length > MAX_BODY_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((head[0], body))
}

/// Returns the four bytes at `offset` as a little-endian number.
fn number(bytes: &[u8], offset: usize) -> usize {
    bytes[offset..offset + 4].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn pack(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    parts.fold(Vec::new(), |mut packed, part| {
        packed.extend_from_slice(&(part.len() as u32).to_le_bytes());
        packed.extend_from_slice(&part);
        packed
    })
}

fn unpack(mut packed: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let (head, rest) = packed.split_at_checked(4)?;
        let (part, rest) = rest.split_at_checked(number(head, 0))?;
        parts.push(part.to_vec());
        packed = rest;
    }
    packed.is_empty().then_some(parts)
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// An error between a rank and its parent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BootstrapError {
    /// The socket failed.
    #[error("the socket to the parent process failed: {reason}; look for the parent's error")]
    Socket {
        /// The kernel's message.
        reason: String,
    },
    /// The parent ended.
    #[error("the parent process is gone; start the whole command again")]
    ParentGone,
    /// The parent says stop.
    #[error("the parent process stopped this rank: {reason}")]
    Aborted {
        /// The reason.
        reason: String,
    },
    /// Invalid bytes.
    #[error("{what} cannot be understood; all ranks must run the same program")]
    Garbled {
        /// The source of the bytes.
        what: String,
    },
}

impl From<io::Error> for BootstrapError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => Self::ParentGone,
            _ => Self::Socket { reason: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_patience::until;

    /// Waits for the next event.
    fn next(relay: &mut Relay) -> Event {
        until("an event", || relay.next_event(Duration::from_secs(1)))
    }

    fn pairs(count: usize) -> (Vec<UnixStream>, Vec<UnixStream>) {
        (0..count).map(|_| UnixStream::pair().unwrap()).unzip()
    }

    #[test]
    fn each_rank_gets_the_contributions_of_all_in_order() {
        let (ours, theirs) = pairs(3);
        let mut relay = Relay::start(ours, b"job").unwrap();
        thread::scope(|scope| {
            for stream in theirs {
                scope.spawn(|| {
                    let mut link = Link::open(stream).unwrap();
                    assert_eq!((link.ranks(), link.job()), (3, &b"job"[..]));
                    for round in 0..50_usize {
                        let mine = vec![link.rank() as u8; round * link.rank()];
                        let all = link.all_gather(&mine).unwrap();
                        let expected: Vec<_> = (0..3).map(|rank| vec![rank as u8; round * rank]).collect();
                        assert_eq!(all, expected);
                    }
                    link.report(&[7]).unwrap();
                });
            }
            let mut events: Vec<_> = (0..6).map(|_| next(&mut relay)).collect();
            events.sort_by_key(|event| format!("{event:?}"));
            assert_eq!(events[..3], [0, 1, 2].map(|rank| Event::Closed { rank }));
            assert_eq!(events[3..], [0, 1, 2].map(|rank| Event::Report { rank, body: vec![7] }));
        });
    }

    #[test]
    fn a_rank_that_waits_learns_that_the_parent_says_stop_or_is_gone() {
        for gone in [false, true] {
            let (ours, mut theirs) = pairs(2);
            let mut relay = Relay::start(ours, b"").unwrap();
            let mut link = Link::open(theirs.remove(0)).unwrap();
            let abort = link.abort_flag();
            let waits = thread::spawn(move || (link.barrier().unwrap_err(), link));
            drop(theirs);
            assert_eq!(next(&mut relay), Event::Closed { rank: 1 });
            if gone {
                drop(relay);
            } else {
                relay.abort("rank 1 is dead");
            }
            let (error, link) = waits.join().unwrap();
            until("the word to stop", || abort.load(Ordering::Relaxed).then_some(()));
            assert_eq!(link.orphaned_flag().load(Ordering::Relaxed), gone);
            match error {
                BootstrapError::Aborted { reason } => assert!(!gone && reason == "rank 1 is dead"),
                error => assert!(gone, "{error}"),
            }
        }
    }

    #[test]
    fn silence_returns_none_and_garbage_ends_a_rank() {
        let (ours, theirs) = pairs(1);
        let mut relay = Relay::start(ours, b"").unwrap();
        assert_eq!(relay.next_event(Duration::from_millis(20)), None);
        (&theirs[0]).write_all(&[GATHER, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(next(&mut relay), Event::Closed { rank: 0 });
        assert_eq!(unpack(&[1, 0, 0, 0], 1), None);
        assert_eq!(unpack(&[1, 0, 0, 0, 9, 9], 1), None);
        assert_eq!(unpack(&pack([vec![1], vec![]].into_iter()), 2), Some(vec![vec![1], vec![]]));
    }
}
