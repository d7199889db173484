//! The line of writes before a port's wire, and their turns.

use std::collections::VecDeque;

use railweave_fabric::LaneId;

/// The parts of a byte: in a nanosecond, a wire of n kbit/s carries n of them.
const BYTE: u64 = 8_000_000;

/// A port's wire, and the path behind it. It takes the place of the rates and delays in [`Faults`](crate::Faults),
/// which are those of each end alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The rate in kbit/s, at least 1.
    pub rate_kbps: u64,
    /// The bytes of one end that pass before another end has its turn, as between the queue pairs of an adapter. 0:
    /// whole writes pass in the order in which they were posted.
    pub quantum: u32,
    /// The one-way delay behind the wire, in nanoseconds.
    pub delay_ns: u64,
    /// The mean of what chance adds to the delay of each write. Those of one lane stay in order.
    pub jitter_ns: u64,
    /// The time from the landing of a write to its acknowledgement.
    pub ack_delay_ns: u64,
}

/// A write that waits for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) end: usize,
    pub(super) lane: LaneId,
    /// The parts of its bytes that are not out yet.
    left: u64,
}

/// A wire with what waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) wire: Wire,
    /// The writes of each end that has some, in the order of their turns. The first is served. A wire without a quantum
    /// has one queue for all ends.
    queues: VecDeque<VecDeque<Waiting>>,
    /// The parts that the present turn may still take, if somebody else waits.
    turn: u64,
    /// The time up to which the first write is served.
    pub(super) at_ns: u64,
    /// The number of the present plan; events of earlier ones are out of date.
    pub(crate) plan: u64,
}

impl Line {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, queues: VecDeque::new(), turn: 0, at_ns: 0, plan: 0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Changes the wire. What waits for it stays.
    pub(super) fn change(&mut self, now_ns: u64, wire: Wire) {
        self.serve(now_ns);
        self.wire = wire;
    }

    /// Adds a write. Returns true if the time of the next event may have changed.
    pub(super) fn add(&mut self, now_ns: u64, end: usize, lane: LaneId, bytes: u64) -> bool {
        let waiting = Waiting { end, lane, left: bytes * BYTE };
        let is_own = |queue: &&mut VecDeque<Waiting>| queue.front().is_some_and(|first| first.end == end);
        let own = match self.wire.quantum {
            0 => self.queues.front_mut(),
            _ => self.queues.iter_mut().find(is_own),
        };
        if let Some(queue) = own {
            queue.push_back(waiting);
            return false;
        }
        match self.queues.len() {
            0 => self.at_ns = now_ns,
            1 => {
                self.serve(now_ns);
                self.turn = self.full_turn();
            }
            _ => {}
        }
        self.queues.push_back(VecDeque::from([waiting]));
        self.queues.len() <= 2
    }

    fn full_turn(&self) -> u64 {
        u64::from(self.wire.quantum) * BYTE
    }

    /// Serves the first write up to a time. Returns the parts that there was time for beyond its end, or that of its
    /// turn.
    fn serve(&mut self, now_ns: u64) -> u64 {
        let served = (now_ns - self.at_ns) * self.wire.rate_kbps;
        self.at_ns = now_ns;
        self.take(served)
    }

    fn take(&mut self, parts: u64) -> u64 {
        let is_shared = self.queues.len() > 1;
        let Some(first) = self.queues.front_mut().and_then(VecDeque::front_mut) else { return 0 };
        let most = if is_shared { first.left.min(self.turn) } else { first.left };
        let taken = parts.min(most);
        first.left -= taken;
        self.turn = self.turn.saturating_sub(taken);
        parts - taken
    }

    /// Serves the first write up to a time at which it is through, or its turn ends. Returns it if it is through.
    pub(super) fn finish(&mut self, now_ns: u64) -> Option<Waiting> {
        let beyond = self.serve(now_ns);
        let mut queue = self.queues.pop_front()?;
        let through = if queue.front().is_some_and(|first| first.left == 0) { queue.pop_front() } else { None };
        if !queue.is_empty() {
            self.queues.push_back(queue);
        }
        self.turn = self.full_turn();
        // An event is up to a nanosecond late; the next write has begun by then.
        self.take(beyond);
        through
    }

    /// Returns the time at which the first write is through, or its turn ends.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let first = self.queues.front()?.front()?;
        let parts = if self.queues.len() > 1 { first.left.min(self.turn) } else { first.left };
        Some(self.at_ns + parts.div_ceil(self.wire.rate_kbps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: LaneId = LaneId::FIRST;

    /// Returns a wire that carries a byte in a nanosecond.
    fn line(quantum: u32) -> Line {
        Line::new(Wire { rate_kbps: BYTE, quantum, delay_ns: 0, jitter_ns: 0, ack_delay_ns: 0 })
    }

    /// Lets everything pass. Returns the end of each write, and the time at which it is through.
    fn pass(line: &mut Line) -> Vec<(usize, u64)> {
        let mut through = Vec::new();
        while let Some(at_ns) = line.next_ns() {
            through.extend(line.finish(at_ns).map(|waiting| (waiting.end, at_ns)));
        }
        through
    }

    #[test]
    fn whole_writes_pass_in_their_order_and_ends_in_turns() {
        let posts = [(1, 30_000), (1, 100), (2, 10_000)];
        for (quantum, passed) in
            [(0, [(1, 30_000), (1, 30_100), (2, 40_100)]), (8_000, [(2, 26_000), (1, 40_000), (1, 40_100)])]
        {
            let mut line = line(quantum);
            posts.iter().for_each(|(end, bytes)| _ = line.add(0, *end, FIRST, *bytes));
            assert_eq!(pass(&mut line), passed, "quantum {quantum}");
        }
    }

    #[test]
    fn a_rate_that_changes_also_changes_the_write_on_the_wire() {
        for quantum in [0, 8_000] {
            let mut line = line(quantum);
            line.add(10, 1, FIRST, 1_000);
            line.change(510, Wire { rate_kbps: BYTE / 10, ..line.wire });
            assert_eq!(pass(&mut line), [(1, 510 + 5_000)]);
        }
    }

    #[test]
    fn nothing_is_lost_by_rounding_to_nanoseconds() {
        let mut line = line(0);
        line.wire.rate_kbps = BYTE * 7 / 3;
        (0..700).for_each(|_| _ = line.add(0, 1, FIRST, 100));
        assert_eq!(pass(&mut line).last(), Some(&(1, 30_001)), "the rate is rounded down");
    }

    #[test]
    fn an_end_that_joins_has_its_turn_after_a_quantum() {
        let mut line = line(1_000);
        line.add(0, 1, FIRST, 50_000);
        line.add(20_000, 2, FIRST, 500);
        assert_eq!(pass(&mut line), [(2, 21_500), (1, 50_500)]);
    }
}
