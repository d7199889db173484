//! Receives into GPU memory that may have to be flushed, and the pieces of them that the fence of a rail reads back.

use railweave_fabric::{Fabric, Rail, RailId, RailSet, RemoteSlice};

use super::RecvConnection;
use crate::SLOTS;
use crate::sequence::Slot;
use crate::slots::{Receive, State};

/// The most pieces of GPU memory that a fence makes visible: as many as receives may be out.
const MOST_FLUSHES: usize = SLOTS;

/// Pieces of GPU memory for a fence to read back.
pub(super) struct Places {
    pub(super) places: Vec<RemoteSlice>,
    /// True if they are registered until the fence has ended. Then all receives that are posted meanwhile become
    /// visible too.
    pub(super) is_sure: bool,
    /// True if there are none, although receives may have to be flushed yet.
    pub(super) is_blind: bool,
}

impl<F: Fabric> RecvConnection<F> {
    /// Remembers which rails wrote into a slot's GPU buffers: NCCL flushes buffers, not requests.
    pub(super) fn remember_rails(&mut self, slot: Slot) {
        let hidden = self.inbox.slots.take_hidden(slot);
        let receive = self.inbox.slots.get(slot);
        let buffers = receive.addresses.iter().zip(receive.sizes).take(usize::from(receive.count));
        for (address, size) in buffers.filter(|(address, _)| **address != 0) {
            // An empty message has placed nothing.
            let (mask, gone) = if size > 0 { (receive.expected, hidden) } else { (RailSet::EMPTY, RailSet::EMPTY) };
            self.inbox.flushes.remember(*address, mask, gone);
            if size > 0 && !receive.optional {
                self.inbox.flushes.note_tested(slot, mask);
            }
        }
    }

    /// Returns pieces of GPU memory to read back, so that everything that a rail has placed there becomes visible. They
    /// are those of receives and flushes in progress, which stay registered: these do not end before the fence does.
    /// If there are none, and the rail has a part in a tested receive that may have to be flushed yet, it is a piece of
    /// the last receive that was tested, whose memory may be gone by now.
    pub(super) fn placed_by(&self, rail: RailId) -> Places {
        if !self.core.rails.find(rail).is_some_and(|connected| connected.rail.flushes()) {
            return Places { places: Vec::new(), is_sure: true, is_blind: false };
        }
        let pieces = |receive: &Receive| {
            let entries = self.cts.entries(receive.first_entry, receive.count).enumerate();
            let addresses = receive.addresses;
            // The entries of a receive that was tested may have been overwritten.
            let is_its = move |index: usize, address: u64| address != 0 && addresses[index] == address;
            let of_gpu = entries.filter(move |(index, entry)| is_its(*index, entry.address) && entry.size > 0);
            of_gpu.map(move |(_, entry)| RemoteSlice { address: entry.address, key: entry.keys[rail] })
        };
        let (slots, flushes) = (&self.inbox.slots, &self.inbox.flushes);
        let newest_first = (1..=SLOTS as u32).map(|count| slots.get(self.head.before(count).slot()));
        let is_used = |receive: &&Receive| matches!(receive.state, State::Open | State::Complete);
        let used = newest_first.filter(|receive| receive.flushable).filter(is_used);
        let mut placed: Vec<RemoteSlice> = used.flat_map(pieces).chain(flushes.targets(rail)).collect();
        if placed.is_empty() {
            let is_needed = flushes.has_unflushed(rail);
            let tested = flushes.last_tested().filter(|_| is_needed).map(|slot| slots.get(slot));
            let is_tested = |receive: &&Receive| receive.flushable && receive.state == State::Free;
            let places: Vec<_> = tested.filter(is_tested).into_iter().flat_map(pieces).take(1).collect();
            return Places { is_blind: is_needed && places.is_empty(), places, is_sure: false };
        }
        placed.sort_unstable_by_key(|slice: &RemoteSlice| slice.address);
        placed.dedup();
        placed.truncate(MOST_FLUSHES);
        Places { places: placed, is_sure: true, is_blind: false }
    }
}
