//! The slow path of sending: messages wait in their slot until all its buffers are filled, and go out as chains of
//! writes.

use railweave_fabric::{Fabric, LaneId, LocalSlice, MAX_RAILS, Rail, RailId, RailSet, RemoteSlice, Write};
use railweave_policy::Shares;

use super::filling::Part;
use super::meter::Meter;
use super::{SendConnection, SendRequest, lane_of, stripes};
use crate::measured::Measured;
use crate::requests::{Posted, Source};
use crate::work::WorkKind;
use crate::{Error, GRANULE, Immediate, MAX_BUFFERS, MAX_MESSAGE_BYTES, Misuse, Outgoing, Slot, Truncated, record};

impl<F: Fabric> SendConnection<F> {
    /// Takes any message. It waits in its slot until all the slot's buffers are filled.
    pub(super) fn isend_any(&mut self, message: &Outgoing<'_>) -> Result<Option<SendRequest>, Error> {
        if message.size > MAX_MESSAGE_BYTES {
            return Err(Misuse::MessageTooLong { size: message.size, peer: self.core.peer().to_owned() }.into());
        }
        if self.filling.count == 0 && !self.open_slot()? {
            return self.no_room();
        }
        let filling = &mut *self.filling;
        let unfilled = |index: &usize| filling.filled & 1 << index == 0;
        let tagged = |index: &usize| filling.entries[*index].tag == message.tag;
        let Some(buffer) = (0..filling.count).filter(unfilled).find(tagged) else {
            return self.no_room();
        };
        let Some(request) = self.progress.requests.find_free(self.head) else {
            return self.no_room();
        };
        let receive = filling.entries[buffer].size;
        let size = message.size.min(receive);
        filling.parts[buffer] =
            Part { address: message.address, size, local: message.keys.local, host: message.keys.host, request };
        let filled = filling.filled | 1 << buffer;
        if filled.count_ones() as usize == filling.count && !self.post_slot()? {
            return self.no_room();
        }
        // The message is certain to go out only from here on: a retry redoes everything above.
        self.filling.filled = filled;
        let source = Source { address: message.address, size, keys: message.keys.local };
        self.progress.requests.take(request, &source);
        if size < message.size {
            self.note_truncated(message.tag, message.size, receive);
        }
        Ok(Some(SendRequest(request)))
    }

    /// Notes that a message was truncated to its receive, unless an earlier one of the connection was.
    #[cold]
    #[inline(never)]
    fn note_truncated(&mut self, tag: u32, message: u64, receive: u64) {
        if !self.truncation_reported {
            self.truncation_reported = true;
            self.truncated = Some(Truncated { tag, message, receive });
        }
    }

    fn open_slot(&mut self) -> Result<bool, Error> {
        let slot = self.head.slot();
        // The receiver may have opened the slot again before the completions of its last use arrive here.
        if self.progress.requests.is_owed(self.head) {
            return Ok(false);
        }
        let filling = &mut *self.filling;
        match self.cts.take(slot, &mut filling.entries) {
            Ok(0) => {
                if self.waited != self.head {
                    self.waited = self.head;
                    self.core.steering().count_wait();
                }
                Ok(false)
            }
            Ok(count) => {
                filling.count = count;
                filling.filled = 0;
                // Until the slot is posted, every message is for one of its buffers.
                self.core.fast.close();
                Ok(true)
            }
            Err(error) => Err(self.core.fail(error)),
        }
    }

    /// Posts the slot, whose buffers are all filled. Returns false if there is no room.
    fn post_slot(&mut self) -> Result<bool, Error> {
        let Some(posted) = self.post_chains()? else {
            return Ok(false);
        };
        let filling = &mut *self.filling;
        let requests = filling.parts[..filling.count].iter().map(|part| part.request);
        self.progress.requests.post(self.head, &posted, requests);
        filling.count = 0;
        self.core.fast.open();
        self.head = self.head.next();
        Ok(true)
    }

    /// Posts chains of plain writes that end in a write-with-immediate, and the record on the leader if the immediate
    /// cannot hold the sizes. Returns the signalled writes that were posted, `None` if there is no room.
    fn post_chains(&mut self) -> Result<Option<Posted>, Error> {
        let count = self.filling.count;
        let pieces = |size: u64| size.div_ceil(self.max_write).max(1) as u32;
        let longest = self.filling.parts[..count].iter().map(|part| pieces(part.size)).sum::<u32>() + 1;
        for rail in self.core.rails.usable() {
            let connected = self.core.rails.get(rail);
            let LaneId(lane) = lane_of(self.head, connected.lanes);
            let mut lanes = if self.config.striped { 0..connected.lanes } else { lane..lane + 1 };
            if lanes.any(|lane| connected.rail.send_room(LaneId(lane)) < longest) {
                return Ok(None);
            }
        }

        self.progress.meter.look();
        let mut shares = [Shares::default(); MAX_BUFFERS];
        let mut mask = RailSet::EMPTY;
        for (share, part) in shares.iter_mut().zip(&self.filling.parts[..count]) {
            self.progress.meter.split(part.size, self.core.rails.usable(), share);
            if Meter::<F::Clock>::measures(part.size) {
                for piece in share.pieces() {
                    self.progress.meter.posted(&self.core.rails.get(piece.rail).side, piece.bytes);
                }
            }
            mask |= if part.size == 0 { RailSet::EMPTY } else { share.mask };
        }
        if mask.is_empty() {
            mask = shares[0].mask;
        }
        let total = self.filling.parts[0].size;
        let adaptive = self.config.adaptive_routing_above.is_some_and(|above| total > above);
        let in_record =
            count > 1 || adaptive || !self.peer_counts_bytes || shares[0].bytes.iter().any(|b| *b > self.max_write);
        let size_q = if in_record { self.layout.all_ones() } else { self.layout.size_q(total) };
        let in_record = size_q == self.layout.all_ones();
        let longest = self.filling.parts[..count].iter().map(|part| part.size).max().unwrap_or(0);
        let measured = self.progress.meter.begin_several(self.head, longest);
        let slot = self.head.slot();
        if in_record {
            self.fill_record(slot);
        }
        let immediate = self.layout.encode(Immediate { slot, mask, size_q });
        let all_lanes = self.config.striped && stripes(size_q, self.layout.all_ones());
        let leader = mask.first();

        self.shares.note_group(self.head, &shares[..count], mask);
        let mut writes = [0; MAX_RAILS];
        for rail in mask {
            let count = self.core.rails.get(rail).lanes;
            let (first_lane, lanes) = if all_lanes { (0, count) } else { (lane_of(self.head, count).0, 1) };
            if measured != Measured::NOT {
                self.give(rail, &shares, lanes);
            }
            for lane in 0..lanes {
                // A rail that was given up just now has its whole part sent again elsewhere.
                if !self.core.rails.usable().contains(rail) {
                    break;
                }
                let bytes = self.build_chain(&shares, rail, lane, lanes);
                let record = in_record && Some(rail) == leader && lane == 0;
                self.end_chain(rail, slot, record, in_record, immediate);
                let connected = self.core.rails.get_mut(rail);
                if let Err(error) = connected.rail.post(LaneId(first_lane + lane), &self.chain) {
                    self.core.post_failed(rail, error, &mut self.progress)?;
                }
                let counters = &self.core.rails.get(rail).side.info.counters;
                counters.count_data(self.chain.len() as u64, bytes);
                writes[rail] += 1;
            }
        }
        Ok(Some(Posted { mask, writes, measured, in_record }))
    }

    /// Notes what the slot that is being posted gives a rail, in this many signalled writes.
    fn give(&mut self, rail: RailId, shares: &[Shares; MAX_BUFFERS], writes: u8) {
        let measured = shares[..self.filling.count].iter().zip(&self.filling.parts);
        let measured = measured.filter(|(_, part)| Meter::<F::Clock>::measures(part.size));
        let (mut bytes, mut pieces) = (0, 0);
        for (share, _) in measured.filter(|(share, _)| share.bytes[rail] > 0) {
            bytes += share.bytes[rail];
            pieces += 1;
        }
        self.progress.meter.give(self.head, rail, bytes, pieces, writes);
    }

    /// Builds the plain writes of one lane in `self.chain`. Returns the sum of their bytes.
    fn build_chain(&mut self, shares: &[Shares; MAX_BUFFERS], rail: RailId, lane: u8, lanes: u8) -> u64 {
        self.chain.clear();
        let mut total = 0;
        let filling = &*self.filling;
        let buffers = filling.parts.iter().zip(&filling.entries).zip(shares).take(filling.count);
        for ((part, entry), share) in buffers {
            let Some(piece) = share.pieces().find(|piece| piece.rail == rail) else {
                continue;
            };
            let (mut offset, mut left) = lane_part(piece.offset, piece.bytes, lane, lanes);
            total += left;
            while left > 0 {
                let length = left.min(self.max_write);
                self.chain.push(Write {
                    local: LocalSlice {
                        address: part.address.wrapping_add(offset),
                        length: length as u32,
                        key: part.local[rail],
                    },
                    remote: RemoteSlice { address: entry.address + offset, key: entry.keys[rail] },
                    host: part.host,
                    // A write that is refused is named by its id.
                    id: WorkKind::Data(self.head).id(),
                    ..Write::default()
                });
                offset += length;
                left -= length;
            }
        }
        total
    }

    /// Ends a lane's chain with the signalled write-with-immediate.
    fn end_chain(&mut self, rail: RailId, slot: Slot, record: bool, in_record: bool, immediate: u32) {
        if in_record || self.chain.is_empty() {
            self.chain.push(Write::default());
        }
        let last = self.chain.last_mut().expect("a write was pushed");
        if record {
            last.local = LocalSlice {
                address: self.records.region.address() + record::offset(slot) as u64,
                length: record::RECORD_BYTES as u32,
                key: self.record_keys[rail],
            };
            last.remote = RemoteSlice {
                address: self.peer_records.wrapping_add(record::offset(slot) as u64),
                key: self.peer_record_keys[rail],
            };
            last.host = true;
        }
        last.immediate = Some(immediate);
        last.signalled = true;
        last.id = WorkKind::Data(self.head).id();
    }

    /// Prepares the record of the slot that is being posted.
    fn fill_record(&self, slot: Slot) {
        let sizes = self.filling.parts.map(|part| part.size);
        self.records.fill(slot, &sizes[..self.filling.count]);
    }
}

/// Returns offset and bytes of the part of a rail's piece that lane `lane` of `lanes` carries. Parts are multiples of
/// 128 bytes, except the last.
fn lane_part(offset: u64, bytes: u64, lane: u8, lanes: u8) -> (u64, u64) {
    let each = bytes.div_ceil(u64::from(lanes)).next_multiple_of(GRANULE);
    let start = (each * u64::from(lane)).min(bytes);
    (offset + start, (bytes - start).min(each))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lanes_share_a_piece_in_units(offset in 0u64..1 << 20, bytes in 0u64..1 << 22, lanes in 1u8..=16) {
            let mut at = offset;
            for lane in 0..lanes {
                let (start, length) = lane_part(offset, bytes, lane, lanes);
                if length > 0 {
                    prop_assert_eq!(start, at);
                    let ends = start + length == offset + bytes;
                    prop_assert!(ends || length % GRANULE == 0);
                }
                at += length;
            }
            prop_assert_eq!(at, offset + bytes);
        }
    }
}
