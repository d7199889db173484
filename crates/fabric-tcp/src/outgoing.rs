//! The sending half of a lane: the ring of posted writes, and the acknowledgements that this end owes.
//!
//! A write takes three steps, each with a counter into the ring: it is posted (`tail` passes it); the kernel takes all
//! its bytes (`unsent` passes it); the peer acknowledges it and its completion is handed out (`head` passes it).

use railweave_fabric::{LocalSlice, RailError, WorkId, Write};

use crate::failure::{LaneFailure, is_transient};
use crate::frame::{Body, Frame, HEADER_BYTES, WriteFrame};
use crate::keys::KeyTable;
use crate::socket::{GATHER_FRAMES, Gather, Socket};

/// The maximum number of bytes in one system call, a few headers aside, so that one lane does not delay the others.
const BATCH_BYTES: usize = 1 << 20;

/// A posted write. Stored by value, so that nothing is allocated after set-up.
#[derive(Clone, Copy, Default)]
struct Posted {
    write: WriteFrame,
    local: LocalSlice,
    id: WorkId,
    /// The encoded header. Fixed once the kernel has taken its first byte.
    header: [u8; HEADER_BYTES],
    /// The acknowledgement inside `header`.
    carries: u64,
}

impl Posted {
    fn encode(&mut self, acknowledged: u64) {
        self.header = Frame { acknowledged, body: Body::Write(self.write) }.encode();
        self.carries = acknowledged;
    }

    fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.local.length as usize
    }
}

/// An acknowledgement that travels alone, because there is no write to carry it.
#[derive(Default)]
struct Notice {
    bytes: [u8; HEADER_BYTES],
    carries: u64,
    /// Bytes that the kernel has taken. 0 if no notice is partly sent.
    sent: usize,
}

/// The sending half of a lane.
pub(crate) struct Outgoing {
    ring: Box<[Posted]>,
    /// Writes by their number: the first whose room is not free again, the first that the kernel has not wholly taken,
    /// and the next to post. `head <= unsent <= tail <= head + ring.len()`.
    head: u64,
    unsent: u64,
    tail: u64,
    /// Bytes of the write at `unsent`, header included, that the kernel has taken.
    front_bytes: usize,
    /// Counts of signalled writes: posted, wholly taken by the kernel, acknowledged by the peer, handed out as
    /// complete. Each count is at most the one before.
    signalled: u64,
    signalled_sent: u64,
    acknowledged: u64,
    completed: u64,
    /// The number of writes posted after the last signalled one: so far, nothing will acknowledge them.
    trailing: u64,
    /// Counts of the peer's writes that want an acknowledgement: those placed here, and those acknowledged in a header
    /// that the kernel has wholly taken.
    placed: u64,
    confirmed: u64,
    notice: Notice,
}

impl Outgoing {
    /// Makes a ring for `depth` writes.
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            ring: vec![Posted::default(); depth as usize].into(),
            head: 0,
            unsent: 0,
            tail: 0,
            front_bytes: 0,
            signalled: 0,
            signalled_sent: 0,
            acknowledged: 0,
            completed: 0,
            trailing: 0,
            placed: 0,
            confirmed: 0,
            notice: Notice::default(),
        }
    }

    /// Returns the number of writes that can still be posted.
    pub(crate) fn room(&self) -> u32 {
        (self.ring.len() as u64 - (self.tail - self.head)) as u32
    }

    /// Returns true if there is work that is not known to be complete.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.acknowledged < self.signalled || self.trailing > 0
    }

    /// Returns the number of signalled writes that wait for the peer's acknowledgement.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.signalled - self.acknowledged
    }

    /// Returns true if nothing is left to send and no acknowledgement is left to come. Unsignalled writes at the end
    /// count as done once the kernel has taken them.
    pub(crate) fn is_drained(&self) -> bool {
        self.acknowledged == self.signalled && !self.wants_to_send()
    }

    /// Returns true if [`Self::send`] has anything to do.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.has_unsent() || self.owes()
    }

    /// Returns true if a posted write, or the rest of a notice, is unsent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent < self.tail || self.notice.sent > 0
    }

    /// Returns true if the kernel has not taken all owed acknowledgements.
    pub(crate) fn owes(&self) -> bool {
        self.confirmed < self.placed
    }

    /// Appends a write. There must be room.
    pub(crate) fn push(&mut self, write: &Write) {
        let frame = WriteFrame {
            immediate: write.immediate,
            wants_acknowledgement: write.signalled,
            length: write.local.length,
            key: write.remote.key,
            address: write.remote.address,
        };
        let at = self.index(self.tail);
        self.ring[at] = Posted { write: frame, local: write.local, id: write.id, ..Posted::default() };
        self.tail += 1;
        if write.signalled {
            self.signalled += 1;
            self.trailing = 0;
        } else {
            self.trailing += 1;
        }
    }

    /// Counts a placed write of the peer that wants an acknowledgement.
    pub(crate) fn owe_acknowledgement(&mut self) {
        self.placed += 1;
    }

    /// Drops the owed acknowledgements; for a peer that no longer waits for them.
    pub(crate) fn forgive_acknowledgements(&mut self) {
        self.confirmed = self.placed;
        self.notice.sent = 0;
    }

    /// Handles the peer's statement that it has placed `count` signalled writes since the lane began.
    pub(crate) fn handle_acknowledged(&mut self, count: u64) -> Result<(), RailError> {
        if count < self.acknowledged || count > self.signalled_sent {
            let (before, sent) = (self.acknowledged, self.signalled_sent);
            return Err(RailError::WrongAcknowledgement { count, before, sent });
        }
        self.acknowledged = count;
        Ok(())
    }

    /// Returns the next complete signalled write. Frees its room and that of the unsignalled ones before it.
    pub(crate) fn poll_completed(&mut self) -> Option<WorkId> {
        if self.completed == self.acknowledged {
            return None;
        }
        loop {
            let posted = &self.ring[self.index(self.head)];
            self.head += 1;
            if posted.write.wants_acknowledgement {
                self.completed += 1;
                return Some(posted.id);
            }
        }
    }

    /// Makes one system call with as much as fits. Returns true if the kernel took all of it.
    pub(crate) fn send(&mut self, socket: &Socket, keys: &KeyTable) -> Result<bool, LaneFailure> {
        let end = self.tail.min(self.unsent + GATHER_FRAMES as u64);
        for at in self.unsent..end {
            if at > self.unsent || self.front_bytes == 0 {
                let index = self.index(at);
                self.ring[index].encode(self.placed);
            }
        }
        let notice_first = self.notice.sent > 0;
        if !notice_first {
            let frame = Frame { acknowledged: self.placed, body: Body::Acknowledgement };
            self.notice.bytes = frame.encode();
            self.notice.carries = self.placed;
        }
        let mut gather = Gather::new();
        let mut carried = self.confirmed;
        if notice_first {
            gather.push(&self.notice.bytes[self.notice.sent..]);
            carried = self.notice.carries;
        }
        let mut whole = true;
        for at in self.unsent..end {
            let posted = &self.ring[self.index(at)];
            let done = if at == self.unsent { self.front_bytes } else { 0 };
            let payload_done = done.saturating_sub(HEADER_BYTES);
            let payload_left = posted.local.length as usize - payload_done;
            let piece = payload_left.min(BATCH_BYTES - gather.bytes().min(BATCH_BYTES));
            if payload_left > 0 && piece == 0 {
                whole = false;
                break;
            }
            // Pins the payload first: a header must not leave if its payload cannot follow.
            let source = match payload_left {
                0 => None,
                _ => match keys.source(posted.local.key, posted.local.address + payload_done as u64, piece) {
                    Ok(source) => Some(source),
                    Err(_) if at > self.unsent => {
                        whole = false;
                        break;
                    }
                    Err(error) => {
                        let gone = RailError::SourceGone { why: error.to_string() };
                        return Err(LaneFailure::of_work(posted.id, gone));
                    }
                },
            };
            if done < HEADER_BYTES {
                gather.push(&posted.header[done..]);
            }
            carried = carried.max(posted.carries);
            if let Some(source) = source {
                gather.push_source(source);
            }
            if piece < payload_left {
                whole = false;
                break;
            }
        }
        if !notice_first && whole && end == self.tail && carried < self.placed {
            gather.push(&self.notice.bytes);
        }
        let asked = gather.bytes();
        let sent = match socket.send(&gather) {
            Ok(sent) => sent,
            Err(error) if is_transient(&error) => return Ok(false),
            Err(error) => return Err(LaneFailure::of_socket("sending", &error)),
        };
        drop(gather);
        self.advance(sent);
        Ok(sent == asked)
    }

    /// Handles `count` more bytes taken by the kernel.
    fn advance(&mut self, mut count: usize) {
        if self.notice.sent > 0 {
            count -= self.advance_notice(count);
        }
        while count > 0 && self.unsent < self.tail {
            let at = self.index(self.unsent);
            let posted = &self.ring[at];
            let taken = count.min(posted.frame_bytes() - self.front_bytes);
            self.front_bytes += taken;
            count -= taken;
            if self.front_bytes >= HEADER_BYTES {
                self.confirmed = self.confirmed.max(posted.carries);
            }
            if self.front_bytes == posted.frame_bytes() {
                self.signalled_sent += u64::from(posted.write.wants_acknowledgement);
                self.unsent += 1;
                self.front_bytes = 0;
            }
        }
        if count > 0 {
            self.advance_notice(count);
        }
    }

    fn advance_notice(&mut self, count: usize) -> usize {
        let taken = count.min(HEADER_BYTES - self.notice.sent);
        self.notice.sent += taken;
        if self.notice.sent == HEADER_BYTES {
            self.confirmed = self.confirmed.max(self.notice.carries);
            self.notice.sent = 0;
        }
        taken
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        (count % self.ring.len() as u64) as usize
    }
}
