//! Collectives as plans: the slices to move, their order, and the slices that each waits for. A plan is plain data, so
//! that a test can check it without a plugin.
//!
//! All lengths and offsets are in elements of float32. Every rank has the same number of slices in a ring, with empty
//! ones at the end of short chunks, so that the n-th slice sent is the n-th slice received; NCCL does the same.

use std::ops::Range;

/// One of the user's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The buffer that is only read.
    Input,
    /// The buffer that is written.
    Output,
}

/// The use of received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Put it in its place in the output.
    Store,
    /// Add it to the data in its place in the output.
    Add,
}

/// A slice to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendSlice {
    /// Its start.
    pub(crate) offset: usize,
    /// Its length.
    pub(crate) length: usize,
    /// The number of slices of the stream named by [`SendStream::after`] that must be received first.
    pub(crate) needs: usize,
}

/// A slice to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvSlice {
    /// Its place in the output.
    pub(crate) offset: usize,
    /// Its length.
    pub(crate) length: usize,
    /// The use of the data.
    pub(crate) action: Action,
}

/// The slices to send over one connection, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendStream {
    /// The index of the connection among those that send.
    pub(crate) connection: usize,
    /// The buffer to send from.
    pub(crate) place: Place,
    /// The slices.
    pub(crate) slices: Vec<SendSlice>,
    /// The index in [`Plan::receives`] of the stream that feeds this one. If it is `None`, `needs` has no meaning.
    pub(crate) after: Option<usize>,
}

/// The slices to receive over one connection, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecvStream {
    /// The index of the connection among those that receive.
    pub(crate) connection: usize,
    /// The slices.
    pub(crate) slices: Vec<RecvSlice>,
}

/// One rank's part in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The streams that it sends.
    pub(crate) sends: Vec<SendStream>,
    /// The streams that it receives.
    pub(crate) receives: Vec<RecvStream>,
}

/// A rank's place in the ring of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// This rank, below `ranks`.
    pub(crate) rank: usize,
    /// The number of ranks, at least 2.
    pub(crate) ranks: usize,
}

impl Ring {
    /// Adds a reduce-scatter, then an all-gather, over `chunks`, one for each rank: afterwards every rank has every
    /// sum.
    pub(crate) fn all_reduce(self, plan: &mut Plan, connection: usize, chunks: &[Range<usize>], slice: usize) {
        self.steps(plan, connection, chunks, slice, 0, 2 * (self.ranks - 1), self.ranks - 1);
    }

    /// Adds an all-gather: every rank starts with its own chunk in place and ends with all chunks.
    pub(crate) fn all_gather(self, plan: &mut Plan, connection: usize, chunks: &[Range<usize>], slice: usize) {
        self.steps(plan, connection, chunks, slice, 0, self.ranks - 1, 0);
    }

    /// Adds a reduce-scatter: every rank starts with all chunks and ends with the sum of its own; the other chunks then
    /// hold partial sums.
    pub(crate) fn reduce_scatter(self, plan: &mut Plan, connection: usize, chunks: &[Range<usize>], slice: usize) {
        self.steps(plan, connection, chunks, slice, 1, self.ranks - 1, self.ranks - 1);
    }

    /// Adds `steps` steps around the ring, of which the first `adds` add and the others store. In step s this rank
    /// sends chunk rank - s - shift to the next rank, and receives the chunk before that from the previous rank.
    #[allow(clippy::too_many_arguments, reason = "called only from the three functions above, which name the numbers")]
    fn steps(
        self,
        plan: &mut Plan,
        connection: usize,
        chunks: &[Range<usize>],
        slice: usize,
        shift: usize,
        steps: usize,
        adds: usize,
    ) {
        let Self { rank, ranks } = self;
        assert!(ranks >= 2 && rank < ranks && chunks.len() == ranks && slice > 0, "a ring of at least two ranks");
        let longest = chunks.iter().map(Range::len).max().unwrap_or(0);
        let per_chunk = longest.div_ceil(slice).max(1);
        let mut sends = Vec::with_capacity(steps * per_chunk);
        let mut receives = Vec::with_capacity(steps * per_chunk);
        for step in 0..steps {
            let sent = &chunks[(rank + 2 * ranks - step % ranks - shift) % ranks];
            let received = &chunks[(rank + 2 * ranks - step % ranks - shift - 1) % ranks];
            let action = if step < adds { Action::Add } else { Action::Store };
            for index in 0..per_chunk {
                let (offset, length) = part(sent, index, slice);
                // The data sent in one step was received in the step before, slice by slice.
                let needs = if step == 0 { 0 } else { (step - 1) * per_chunk + index + 1 };
                sends.push(SendSlice { offset, length, needs });
                let (offset, length) = part(received, index, slice);
                receives.push(RecvSlice { offset, length, action });
            }
        }
        plan.sends.push(SendStream {
            connection,
            place: Place::Output,
            slices: sends,
            after: Some(plan.receives.len()),
        });
        plan.receives.push(RecvStream { connection, slices: receives });
    }
}

impl Plan {
    /// Adds a send of `range` of the input over a connection, in slices.
    pub(crate) fn send(&mut self, connection: usize, range: &Range<usize>, slice: usize) {
        let slices = parts(range, slice).map(|(offset, length)| SendSlice { offset, length, needs: 0 }).collect();
        self.sends.push(SendStream { connection, place: Place::Input, slices, after: None });
    }

    /// Adds a receive of `range` of the output over a connection, in slices.
    pub(crate) fn receive(&mut self, connection: usize, range: &Range<usize>, slice: usize) {
        let action = Action::Store;
        let slices = parts(range, slice).map(|(offset, length)| RecvSlice { offset, length, action }).collect();
        self.receives.push(RecvStream { connection, slices });
    }

    /// Returns true if all slices lie inside buffers of these lengths and wait for streams that exist.
    #[must_use]
    pub(crate) fn fits(&self, input: usize, output: usize) -> bool {
        let inside =
            |offset: usize, length: usize, limit: usize| offset.checked_add(length).is_some_and(|end| end <= limit);
        let sends = self.sends.iter().all(|stream| {
            let limit = if stream.place == Place::Input { input } else { output };
            stream.after.is_none_or(|after| after < self.receives.len())
                && stream.slices.iter().all(|slice| inside(slice.offset, slice.length, limit))
        });
        let mut receives = self.receives.iter().flat_map(|stream| &stream.slices);
        sends && receives.all(|slice| inside(slice.offset, slice.length, output))
    }
}

/// The alignment of the boundaries of chunks, in elements: 128 bytes, as in NCCL.
const CHUNK_ALIGN: usize = 32;

/// Cuts `range` into `count` chunks of about the same size; the last ones may be shorter or empty.
#[must_use]
pub(crate) fn chunks(range: &Range<usize>, count: usize) -> Vec<Range<usize>> {
    let size = range.len().div_ceil(count.max(1)).next_multiple_of(CHUNK_ALIGN);
    let border = |index: usize| (range.start + index * size).min(range.end);
    (0..count).map(|index| border(index)..border(index + 1)).collect()
}

/// Returns the offset and length of slice `index` of a chunk; empty beyond its end.
fn part(chunk: &Range<usize>, index: usize, slice: usize) -> (usize, usize) {
    let start = (chunk.start + index * slice).min(chunk.end);
    (start, slice.min(chunk.end - start))
}

/// Returns the slices of a chunk, at least one, which may be empty: a message of no bytes is a message too.
fn parts(chunk: &Range<usize>, slice: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..chunk.len().div_ceil(slice).max(1)).map(move |index| part(chunk, index, slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range_once_and_in_order() {
        for (length, count) in [(0, 3), (1, 2), (31, 4), (1000, 3), (4096, 4)] {
            let chunks = chunks(&(7..7 + length), count);
            assert_eq!(chunks.len(), count);
            assert_eq!((chunks[0].start, chunks[count - 1].end), (7, 7 + length));
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn each_rank_receives_exactly_what_the_rank_before_it_sends() {
        for ranks in 2..6 {
            let chunks = chunks(&(0..1000), ranks);
            let plans: Vec<Plan> = (0..ranks)
                .map(|rank| {
                    let mut plan = Plan::default();
                    Ring { rank, ranks }.all_reduce(&mut plan, 0, &chunks, 100);
                    Ring { rank, ranks }.all_gather(&mut plan, 0, &chunks, 100);
                    Ring { rank, ranks }.reduce_scatter(&mut plan, 0, &chunks, 100);
                    assert!(plan.fits(0, 1000) && !plan.fits(0, 999));
                    plan
                })
                .collect();
            for rank in 0..ranks {
                let (sender, receiver) = (&plans[rank], &plans[(rank + 1) % ranks]);
                for (sends, receives) in sender.sends.iter().zip(&receiver.receives) {
                    let sent: Vec<_> = sends.slices.iter().map(|slice| (slice.offset, slice.length)).collect();
                    let received: Vec<_> = receives.slices.iter().map(|slice| (slice.offset, slice.length)).collect();
                    assert_eq!(sent, received);
                }
            }
        }
    }

    #[test]
    fn a_slice_is_forwarded_only_after_that_slice_came() {
        let chunks = chunks(&(0..1000), 3);
        let mut plan = Plan::default();
        Ring { rank: 1, ranks: 3 }.all_reduce(&mut plan, 0, &chunks, 100);
        for slice in plan.sends[0].slices.iter().filter(|slice| slice.needs > 0) {
            let fed_by = plan.receives[0].slices[slice.needs - 1];
            assert_eq!((fed_by.offset, fed_by.length), (slice.offset, slice.length));
        }
    }
}
