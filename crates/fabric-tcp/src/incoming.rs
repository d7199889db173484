//! The receiving half of a lane: headers through a small buffer, large payloads straight into their destination.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{Ordering, fence};

use railweave_fabric::{ClosedAt, RailError};

use crate::failure::{LaneFailure, is_transient};
use crate::frame::{Body, Frame, FrameError, HEADER_BYTES, WriteFrame};
use crate::keys::{KeyError, KeyTable};
use crate::outgoing::Outgoing;
use crate::socket::Socket;

/// Size of the buffer for headers and small payloads.
const BUFFER_BYTES: usize = 16 << 10;
/// A payload with more than this many bytes to come goes straight to its destination. Fewer go through the buffer,
/// which costs a copy and saves a system call; it also places the last word of a CTS entry with an ordered store.
const DIRECT_BYTES: usize = 4 << 10;
/// A poll makes at most this many system calls, and no further one once it has received this many bytes.
const POLL_CALLS: usize = 16;
const POLL_BYTES: usize = 1 << 20;
/// After this many bytes, a poll ends if this end has something to send, so that a sender does not wait for its
/// acknowledgement until everything in flight has been read.
const PROMPT_BYTES: usize = 64 << 10;

/// The generic receives of a rail, over all its lanes.
pub(crate) struct Receives {
    /// Capacity of the pool.
    depth: u32,
    /// Posted and not consumed.
    posted: u32,
    /// Consumed, with a completion not yet handed out. They still take room in the pool, so that every completion has a
    /// place to wait.
    held: u32,
}

impl Receives {
    /// Makes an empty pool.
    pub(crate) fn new(depth: u32) -> Self {
        Self { depth, posted: 0, held: 0 }
    }

    /// Posts up to `count`. Returns the number that had room.
    pub(crate) fn post(&mut self, count: u32) -> u32 {
        let taken = count.min(self.depth - self.posted - self.held);
        self.posted += taken;
        taken
    }

    fn consume(&mut self) -> bool {
        let there = self.posted > 0;
        if there {
            self.posted -= 1;
            self.held += 1;
        }
        there
    }

    fn release(&mut self) {
        self.held -= 1;
    }
}

/// A write with an immediate that has been placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The immediate.
    pub(crate) immediate: u32,
    /// Bytes of the write.
    pub(crate) bytes: u32,
}

/// A write whose payload is arriving.
#[derive(Clone, Copy)]
struct Arriving {
    write: WriteFrame,
    /// Bytes of the payload already placed.
    done: u32,
}

impl Arriving {
    fn remaining(&self) -> usize {
        (self.write.length - self.done) as usize
    }

    /// Returns the address of the next byte. It cannot overflow, because the header was checked against the
    /// registration, except while lingering, when nothing is placed.
    fn next(&self) -> u64 {
        self.write.address.wrapping_add(u64::from(self.done))
    }
}

/// The receiving half of a lane.
pub(crate) struct Incoming {
    buffer: Box<[u8]>,
    /// The bounds of the buffer's unread part.
    start: usize,
    end: usize,
    arriving: Option<Arriving>,
    /// Completions not yet handed out. Never more than the rail's receives, so it never grows.
    arrivals: VecDeque<Arrival>,
    /// True if everything is read but nothing placed: the registrations are gone, and the peer only needs its
    /// acknowledgements.
    discards: bool,
}

/// The things that a rail lends a lane while it receives.
pub(crate) struct Surroundings<'a> {
    /// The source of the lane's bytes.
    pub(crate) socket: &'a Socket,
    /// The memory that the bytes may go to.
    pub(crate) keys: &'a KeyTable,
    /// The rail's generic receives.
    pub(crate) receives: &'a mut Receives,
}

impl Incoming {
    /// Makes one with room for `receive_depth` completions.
    pub(crate) fn new(receive_depth: u32) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            arriving: None,
            arrivals: VecDeque::with_capacity(receive_depth as usize),
            discards: false,
        }
    }

    /// Discards writes from now on: they are read, but not placed.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
    }

    /// Returns the next completion.
    pub(crate) fn poll_arrival(&mut self, receives: &mut Receives) -> Option<Arrival> {
        let arrival = self.arrivals.pop_front()?;
        receives.release();
        Some(arrival)
    }

    /// Reads what is available, within the limits of one poll. Returns the number of bytes; `None` if the peer has
    /// closed its end between two frames.
    pub(crate) fn receive(
        &mut self,
        around: &mut Surroundings<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<Option<usize>, LaneFailure> {
        let mut total = 0;
        for _ in 0..POLL_CALLS {
            let (asked, received) = self.read(around)?;
            match received {
                Ok(0) => return self.handle_end(),
                Ok(count) => {
                    self.handle_bytes(count, around, outgoing)?;
                    total += count;
                    let prompt = total >= PROMPT_BYTES && outgoing.wants_to_send();
                    if count < asked || total >= POLL_BYTES || prompt {
                        break;
                    }
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(LaneFailure::of_socket("receiving", &error)),
            }
        }
        Ok(Some(total))
    }

    /// Makes one system call. A payload with more than `DIRECT_BYTES` still to come goes straight to its destination,
    /// and only the bytes after it go to the buffer. Returns the number of bytes asked for, and the result.
    fn read(&mut self, around: &Surroundings<'_>) -> Result<(usize, io::Result<usize>), LaneFailure> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if let Some(arriving) = self.arriving.filter(|arriving| !self.discards && arriving.remaining() > DIRECT_BYTES) {
            // While a payload is arriving the buffer is empty: its bytes have been placed.
            let piece = arriving.remaining().min(POLL_BYTES);
            let destination = around
                .keys
                .destination(arriving.write.key, arriving.next(), piece)
                .map_err(refused(&arriving.write))?;
            let then = if piece == arriving.remaining() { &mut self.buffer[..] } else { &mut [] };
            let asked = piece + then.len();
            return Ok((asked, around.socket.receive(Some(&destination), then)));
        }
        let then = &mut self.buffer[self.end..];
        let asked = then.len();
        Ok((asked, around.socket.receive(None, then)))
    }

    /// Handles `count` bytes that `read` has received.
    fn handle_bytes(
        &mut self,
        count: usize,
        around: &mut Surroundings<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<(), LaneFailure> {
        let mut buffered = count;
        if let Some(arriving) =
            self.arriving.as_mut().filter(|arriving| !self.discards && arriving.remaining() > DIRECT_BYTES)
        {
            let direct = count.min(arriving.remaining());
            arriving.done += direct as u32;
            buffered -= direct;
        }
        self.end += buffered;
        loop {
            if let Some(mut arriving) = self.arriving {
                let bytes = &self.buffer[self.start..self.end];
                let bytes = &bytes[..bytes.len().min(arriving.remaining())];
                if !bytes.is_empty() && !self.discards {
                    let destination = around
                        .keys
                        .destination(arriving.write.key, arriving.next(), bytes.len())
                        .map_err(refused(&arriving.write))?;
                    destination.place(bytes);
                }
                self.start += bytes.len();
                arriving.done += bytes.len() as u32;
                self.arriving = Some(arriving);
                if arriving.remaining() > 0 {
                    return Ok(());
                }
                self.arriving = None;
                self.handle_placed(&arriving.write, around.receives, outgoing)?;
            }
            let Some((header, _)) = self.buffer[self.start..self.end].split_first_chunk::<HEADER_BYTES>() else {
                return Ok(());
            };
            let frame = Frame::decode(header).map_err(no_frame)?;
            self.start += HEADER_BYTES;
            outgoing.handle_acknowledged(frame.acknowledged).map_err(LaneFailure::of_lane)?;
            if let Body::Write(write) = frame.body {
                if write.length > 0 && !self.discards {
                    // Checks the whole range before the first byte, so that a write that does not fit changes nothing.
                    let checked = around.keys.destination(write.key, write.address, write.length as usize);
                    drop(checked.map_err(refused(&write))?);
                }
                self.arriving = Some(Arriving { write, done: 0 });
            }
        }
    }

    /// Handles a write whose bytes are all placed.
    fn handle_placed(
        &mut self,
        write: &WriteFrame,
        receives: &mut Receives,
        outgoing: &mut Outgoing,
    ) -> Result<(), LaneFailure> {
        // The bytes written by the kernel and by `place` become visible before anything that announces them to another
        // thread.
        fence(Ordering::Release);
        if let Some(immediate) = write.immediate.filter(|_| !self.discards) {
            if !receives.consume() {
                let error = RailError::NoReceive { immediate, bytes: write.length };
                return Err(LaneFailure::of_lane(error));
            }
            self.arrivals.push_back(Arrival { immediate, bytes: write.length });
        }
        if write.wants_acknowledgement {
            outgoing.owe_acknowledgement();
        }
        Ok(())
    }

    fn handle_end(&self) -> Result<Option<usize>, LaneFailure> {
        let inside = match &self.arriving {
            Some(arriving) => ClosedAt::Write { done: arriving.done, length: arriving.write.length },
            None if self.end > self.start => ClosedAt::Header(self.end - self.start),
            None => return Ok(None),
        };
        Err(LaneFailure::of_lane(RailError::PeerClosed(inside)))
    }
}

/// Makes the failure for a refused write of the peer.
fn refused(write: &WriteFrame) -> impl FnOnce(KeyError) -> LaneFailure {
    move |error| {
        let (bytes, address) = (write.length, write.address);
        LaneFailure::of_lane(RailError::WriteRefused { bytes, address, why: error.to_string() })
    }
}

fn no_frame(error: FrameError) -> LaneFailure {
    LaneFailure::of_lane(RailError::NoFrame { why: error.to_string() })
}
