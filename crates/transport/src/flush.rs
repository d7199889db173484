//! Flushes: making the data that rails wrote into GPU memory visible to its owner.
//!
//! NCCL flushes buffers, not requests. So testing a receive records, by address, which rails wrote into its buffers,
//! and a flush reads one byte back through each of these rails.

use railweave_fabric::{Fabric, MAX_RAILS, PostError, Rail, RailId, RailSet, RemoteSlice};

use crate::rails::Rails;
use crate::work::WorkKind;
use crate::{Error, Incoming, Misuse};

/// The most flushes that may be outstanding at once.
pub(crate) const FLUSHES: usize = 32;

/// The number of buffers of tested receives whose rails are remembered for a flush.
const REMEMBERED: usize = 256;

#[derive(Clone, Copy, Default)]
struct FlushRequest {
    taken: bool,
    generation: u32,
    /// The rails on which it must still be posted.
    unposted: RailSet,
    outstanding: u32,
    targets: [RemoteSlice; MAX_RAILS],
}

/// The flushes of a receiving connection.
pub(crate) struct Flushes {
    requests: Box<[FlushRequest; FLUSHES]>,
    /// The address of a buffer, and the rails that last wrote into it.
    rails_of: Box<[(u64, RailSet); REMEMBERED]>,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            requests: Box::new([FlushRequest::default(); FLUSHES]),
            rails_of: Box::new([(0, RailSet::EMPTY); REMEMBERED]),
        }
    }

    /// Remembers which rails wrote into the buffer at `address`.
    #[inline]
    pub(crate) fn remember(&mut self, address: u64, mask: RailSet) {
        self.rails_of[remembered(address)] = (address, mask);
    }

    /// Begins a flush of the buffers that need one: those in GPU memory that are not empty. Returns `None` if no buffer
    /// needs one, or if no rail can flush. `flushing` has the rails that can.
    pub(crate) fn begin(&mut self, buffers: &[Incoming<'_>], flushing: RailSet) -> Result<Option<usize>, Error> {
        let mut unposted = RailSet::EMPTY;
        let mut targets = [RemoteSlice::default(); MAX_RAILS];
        for buffer in buffers.iter().filter(|buffer| buffer.size > 0 && !buffer.keys.host) {
            let (address, mask) = self.rails_of[remembered(buffer.address)];
            let known = address == buffer.address && !mask.is_empty();
            let mask = if known { mask & flushing } else { flushing };
            unposted |= mask;
            for rail in mask {
                targets[rail] = RemoteSlice { address: buffer.address, key: buffer.keys.remote[rail] };
            }
        }
        if unposted.is_empty() {
            return Ok(None);
        }
        let Some(index) = self.requests.iter().position(|flush| !flush.taken) else {
            return Err(Misuse::Flushes(FLUSHES).into());
        };
        let flush = &mut self.requests[index];
        let generation = flush.generation.wrapping_add(1) & 0xff_ffff;
        *flush = FlushRequest { taken: true, generation, unposted, outstanding: 0, targets };
        Ok(Some(index))
    }

    /// Posts a flush on those of its rails that have room. If a rail refuses for another reason, returns the rail and
    /// the reason.
    pub(crate) fn post<F: Fabric>(&mut self, index: usize, rails: &mut Rails<F>) -> Result<(), (RailId, PostError)> {
        let flush = &mut self.requests[index];
        for rail in flush.unposted {
            let id = WorkKind::Flush { request: index as u8, generation: flush.generation }.id();
            match rails.get_mut(rail).rail.post_flush(flush.targets[rail], id) {
                Ok(()) => {
                    flush.unposted.remove(rail);
                    flush.outstanding += 1;
                }
                Err(PostError::Full) => {}
                Err(error) => return Err((rail, error)),
            }
        }
        Ok(())
    }

    /// Notes that a rail is done with its part of a flush.
    pub(crate) fn handle_sent(&mut self, index: usize, generation: u32, rail: RailId) {
        let flush = &mut self.requests[index];
        assert!(flush.generation == generation && flush.outstanding > 0, "a flush on rail {rail} came back twice");
        flush.outstanding -= 1;
    }

    /// Returns true if this flush is in progress.
    pub(crate) fn is_in_progress(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|flush| flush.taken)
    }

    /// Ends a flush if every rail is done with it. Returns true if so.
    pub(crate) fn finish(&mut self, index: usize) -> bool {
        let flush = &mut self.requests[index];
        let done = flush.unposted.is_empty() && flush.outstanding == 0;
        flush.taken &= !done;
        done
    }
}

#[inline]
fn remembered(address: u64) -> usize {
    // Buffers are at least 4 KiB apart in NCCL's pipelines, and addresses that differ by a power of two must not
    // collide.
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % REMEMBERED
}
