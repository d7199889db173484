//! The depths of a rail's queues: each holds the longest chain that is ever posted at once.

use railweave_fabric::Role;

use crate::{MAX_BUFFERS, MAX_MESSAGE_BYTES, SLOTS};

/// The depths of the queues at one end of a rail.
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    /// The most receives that one lane can use.
    pub(crate) lane_receive: u32,
}

/// Every 32nd CTS of a lane is signalled.
pub(crate) const CTS_SIGNAL_EVERY: u32 = 32;

impl Depths {
    /// Returns the depths for one end of a rail of `lanes` lanes, in a connection of `rails` rails.
    pub(crate) fn new(role: Role, lanes: u8, rails: usize, striped: bool, max_write: u32) -> Self {
        match role {
            Role::Sender => {
                let writes = MAX_MESSAGE_BYTES.div_ceil(u64::from(max_write)) as u32;
                Self { send: (SLOTS as u32).max(longest_chain(writes)), receive: 0, lane_receive: 0 }
            }
            // A CTS that wraps around the end of the ring takes two writes, and of 32 CTS only the last is signalled. A
            // slot brings each lane at most one immediate of its own, and one for each part that another rail lost.
            Role::Receiver => {
                let slots = SLOTS as u32;
                let receive = slots * u32::from(immediates_of_slot(lanes, rails, striped));
                Self { send: 4 * CTS_SIGNAL_EVERY, receive, lane_receive: slots * rails as u32 }
            }
        }
    }
}

/// Returns the number of immediates that one slot may bring over a rail of `lanes` lanes, in a connection of `rails`
/// rails: its own, one on each lane if messages are striped, and one for each part that another rail lost.
pub(crate) fn immediates_of_slot(lanes: u8, rails: usize, striped: bool) -> u8 {
    (if striped { lanes } else { 1 }) + (rails as u8 - 1)
}

/// Returns the number of work requests in the longest chain for one slot on one lane, if one buffer takes at most
/// `writes` of them.
pub(crate) fn longest_chain(writes: u32) -> u32 {
    MAX_BUFFERS as u32 * writes + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_queue_holds_the_longest_group_and_its_record() {
        let depth = |max_write| Depths::new(Role::Sender, 1, 1, false, max_write).send;
        let cut = |max_write: u64| (0..MAX_MESSAGE_BYTES).step_by(max_write as usize).count();
        assert_eq!(depth(4 << 20) as usize, MAX_BUFFERS * cut(4 << 20) + 1);
        assert_eq!(depth(3 << 20) as usize, MAX_BUFFERS * cut(3 << 20) + 1, "the last write may be shorter");
        assert_eq!(depth(1 << 30) as usize, SLOTS, "each slot needs a write at least");
    }

    #[test]
    fn there_is_a_receive_for_each_immediate_of_all_slots() {
        let depths = |lanes, rails, striped| {
            let Depths { receive, lane_receive, .. } = Depths::new(Role::Receiver, lanes, rails, striped, 4096);
            (receive as usize, lane_receive as usize)
        };
        assert_eq!(depths(3, 1, false), (SLOTS, SLOTS), "one for each slot, on any of the lanes");
        assert_eq!(depths(3, 1, true), (3 * SLOTS, SLOTS), "one for each slot and lane");
        assert_eq!(depths(3, 4, false), (4 * SLOTS, 4 * SLOTS), "and those that other rails may lose");
        assert_eq!(depths(3, 4, true), (6 * SLOTS, 4 * SLOTS));
    }
}
