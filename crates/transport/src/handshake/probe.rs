//! A rail's proof that it carries data: before it counts, a whole packet must come through each of its lanes, both
//! ways.
//!
//! The fabric has connected the lanes, but only by what both ends said. A firewall, a wrong cable, a host in between
//! that does not forward, or a path that carries shorter packets only: all that shows when a packet of full size is
//! sent. It goes to the start of the memory that the peer reads once the connection is up, and writes the zeros that
//! are there.

use railweave_fabric::{LaneId, LocalSlice, PostError, Rail, RailError, RemoteSlice, Reports, WorkId, Write};

use crate::record::LONGEST_PACKET;

/// A write that has not come through is followed by another after this time, unless the user has set a long time for
/// all of them. The first packet after a lost one makes the peer ask for that at once, and once only, where the adapter
/// alone might wait for seconds.
const REPEAT_NS: u64 = 200_000_000;

/// The most writes of a lane.
const MOST_WRITES: u32 = 64;

/// A rail that has to carry its first packets.
pub(crate) struct Probe<R> {
    pub(crate) rail: R,
    write: Write,
    /// The writes of each lane, and those of all lanes that have not come through.
    writes: u32,
    missing: u32,
}

/// The number of writes that have come through, and the first failure.
#[derive(Default)]
struct Outcome {
    sent: u32,
    failed: Option<Box<RailError>>,
}

impl Reports for Outcome {
    fn handle_sent(&mut self, _id: WorkId) {
        self.sent += 1;
    }

    // The peer sends immediates only once the connection is up.
    fn handle_received(&mut self, _lane: LaneId, _immediate: u32, _bytes: u32) {}

    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, error: Box<RailError>) {
        self.failed.get_or_insert(error);
    }
}

/// Returns the time after which a write that has not come through is followed by another; together they have
/// `timeout_ns`.
pub(crate) fn repeat_ns(timeout_ns: u64) -> u64 {
    REPEAT_NS.max(timeout_ns / u64::from(MOST_WRITES - 1))
}

/// Returns the length of a whole packet between ports with these MTUs, in bytes.
pub(super) fn packet_bytes(mtus: [u32; 2]) -> u32 {
    mtus[0].min(mtus[1]).clamp(1, LONGEST_PACKET)
}

impl<R: Rail> Probe<R> {
    /// Returns the probe of a rail that writes from and to these places.
    pub(crate) fn new(rail: R, local: LocalSlice, remote: RemoteSlice) -> Self {
        let write = Write { local, remote, immediate: None, signalled: true, host: true, id: WorkId(0) };
        Self { rail, write, writes: 0, missing: 0 }
    }

    /// Returns the length of its packet in bytes.
    pub(super) fn packet_bytes(&self) -> u32 {
        self.write.local.length
    }

    /// Sends a packet on each lane.
    ///
    /// # Errors
    /// If a lane takes no work.
    pub(crate) fn send(&mut self) -> Result<(), PostError> {
        if self.writes >= MOST_WRITES {
            return Ok(());
        }
        self.writes += 1;
        for lane in (0..self.rail.lanes()).map(LaneId) {
            if self.rail.send_room(lane) > 0 {
                self.rail.post(lane, &[self.write])?;
                self.missing += 1;
            }
        }
        Ok(())
    }

    /// Returns true once every packet has come through. Those of a lane come through in order, so that none is on its
    /// way any more.
    ///
    /// # Errors
    /// If a lane has failed.
    pub(crate) fn has_carried(&mut self) -> Result<bool, Box<RailError>> {
        let mut outcome = Outcome::default();
        while self.missing > 0 && self.rail.report(16, &mut outcome) {
            self.missing = self.missing.saturating_sub(std::mem::take(&mut outcome.sent));
            if let Some(error) = outcome.failed {
                return Err(error);
            }
        }
        Ok(self.missing == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_repeated_until_the_end_of_their_time() {
        const SECOND_NS: u64 = 1_000_000_000;
        assert_eq!([1, 10, 12].map(|seconds| repeat_ns(seconds * SECOND_NS)), [REPEAT_NS; 3]);
        for seconds in [13, 60, 3600] {
            let timeout_ns = seconds * SECOND_NS;
            // The first goes out before its time begins.
            let last_ns = u64::from(MOST_WRITES - 1) * repeat_ns(timeout_ns);
            assert!(last_ns <= timeout_ns && timeout_ns - last_ns < REPEAT_NS, "{seconds}");
        }
    }
}
