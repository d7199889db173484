//! Breaches of the protocol by a peer on the rails of a connection.

use railweave_fabric::SettingId;

use crate::{Immediate, MAX_BUFFERS, MAX_MESSAGE_BYTES, Slot};

/// A breach of the protocol on a rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An immediate is wrong, in itself or because it contradicts an earlier one.
    #[error(
        "immediate {bits:#010x} (slot {}, mask {:#b}, size_q {:#x}): {fault}", .said.slot, .said.mask, .said.size_q
    )]
    Immediate {
        /// The immediate.
        bits: u32,
        /// Its fields.
        said: Immediate,
        /// Its fault.
        fault: ImmediateFault,
    },
    /// An immediate came to the sending end.
    #[error("an immediate came to the sending end ({bits:#010x}, {bytes} bytes)")]
    ToSender {
        /// The immediate.
        bits: u32,
        /// The length of its write.
        bytes: u32,
    },
    /// A message about the recovery of a rail is wrong.
    #[error("a message about the recovery of the rail is wrong: {0}")]
    Rail(RailFault),
}

/// The fault of a message about the recovery of a rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailFault {
    /// It is about a rail, or an incarnation, that this connection does not have.
    #[error("this connection has no such rail, or no such incarnation of it")]
    Unknown,
    /// It came at the wrong time, or from the wrong end.
    #[error("it came out of turn")]
    OutOfTurn,
    /// RAIL_OFFERs come faster than any pause allows.
    #[error("its lanes are offered again and again without a pause")]
    Hasty,
    /// RAIL_STATE answers for other slots than RAIL_DOWN asked about.
    #[error("RAIL_STATE answers for other slots than RAIL_DOWN asked about")]
    OtherSlots,
    /// The wrong number of lanes was opened.
    #[error("{lanes} lanes were opened, and the rail has {agreed}")]
    WrongLanes {
        /// The number of lanes.
        lanes: usize,
        /// The number that was agreed on.
        agreed: u8,
    },
    /// The end points of lanes that are sockets are no addresses.
    #[error(
        "the end points of its sockets must be zero, or all the one address of the peer's port; the peer runs another \
         version, or is no Railweave"
    )]
    NoAddress,
    /// RAIL_DOWN names a receive that was never posted.
    #[error("RAIL_DOWN names receive {sequence:#x}, which was never posted")]
    NeverPosted {
        /// The number of the receive.
        sequence: u32,
    },
    /// RAIL_DOWN contradicts what the immediates of a slot have said.
    #[error("RAIL_DOWN says mask {mask:#b} and size {size:?} for receive {sequence:#x}, its immediates said otherwise")]
    Contradiction {
        /// The number of the receive.
        sequence: u32,
        /// The mask.
        mask: u8,
        /// The size.
        size: Option<u32>,
    },
    /// RAIL_DOWN says that parts have come which this end has not acknowledged.
    #[error("RAIL_DOWN says that the parts {placed:#b} of receive {sequence:#x} have come, and not all of them have")]
    NotPlaced {
        /// The number of the receive.
        sequence: u32,
        /// The parts, one bit for each rail.
        placed: u8,
    },
    /// This end does not recover rails.
    #[error(
        "the peer has lost the rail and wants to go on without it, but recovery is switched off here; set \
         RAILWEAVE_RECOVERY to the same value on every host"
    )]
    Off,
}

/// The fault of an immediate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImmediateFault {
    /// Its slot has no open receive.
    #[error("the slot has no open receive")]
    NoReceive,
    /// It names a rail that does not exist.
    #[error("the mask names a rail that this connection does not have")]
    UnknownRail,
    /// It does not name its own rail.
    #[error("the mask lacks the rail that it came on")]
    OwnRailMissing,
    /// Rails of one slot name different rails.
    #[error("an earlier immediate of the slot had another mask")]
    OtherMask,
    /// Rails of one slot say different sizes.
    #[error("an earlier immediate of the slot had another size_q")]
    OtherSize,
    /// Its rail, or its lane, has already sent all its immediates for the slot.
    #[error("the rail has already sent an immediate for this slot")]
    SpokenBefore,
    /// It repeats a part that is not missing.
    #[error("it repeats a part that is not missing")]
    NotMissing,
    /// The record that it announces is not there.
    #[error("no completion record was written for the slot")]
    NoRecord,
    /// A grouped receive got one size instead of a record.
    #[error("a grouped receive needs a completion record")]
    GroupWithoutRecord,
    /// Its size contradicts the number of bytes that arrived.
    #[error(
        "size_q contradicts the {arrived} bytes that arrived (an adapter that does not report byte counts needs {}=0)",
        SettingId::ByteCounts
    )]
    OtherBytes {
        /// The number of bytes that arrived.
        arrived: u64,
    },
    /// The record says more than the buffers hold.
    #[error("sizes {sizes:?} exceed the buffers' {capacities:?}")]
    TooLong {
        /// Bytes of each message, as the record says.
        sizes: Vec<u64>,
        /// Bytes of each buffer.
        capacities: Vec<u64>,
    },
}

/// The fault of a CTS entry from the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CtsViolation {
    /// The entries of a slot whose receive is not complete are no longer in the ring.
    #[error(
        "the CTS entries of slot {slot} are gone although its receive is not complete; the peer breaks the protocol or \
         memory was overwritten"
    )]
    Gone {
        /// The slot.
        slot: Slot,
    },
    /// A slot has a wrong number of buffers.
    #[error(
        "the CTS entry for slot {slot} names {buffers} buffers; allowed: 1 to {MAX_BUFFERS}; the peer breaks the \
         protocol or memory was overwritten"
    )]
    Buffers {
        /// The slot.
        slot: Slot,
        /// The number of buffers that it names.
        buffers: usize,
    },
    /// It is not the next entry that is expected, or its buffer is invalid.
    #[error(
        "a CTS entry does not fit: slot {slot} (expected {expected_slot}), buffer {buffer} of {buffers} (expected \
         {expected_buffer} of {expected_buffers}), {size} bytes at {address:#x} (at most {MAX_MESSAGE_BYTES}); the \
         peer breaks the protocol or memory was overwritten"
    )]
    Misfit {
        /// Its slot.
        slot: Slot,
        /// The slot that is expected next.
        expected_slot: Slot,
        /// The buffer's number in its receive.
        buffer: u8,
        /// Buffers of the receive, as it says.
        buffers: u8,
        /// The buffer's number that is expected next.
        expected_buffer: usize,
        /// Buffers of the receive, as its first entry says.
        expected_buffers: usize,
        /// The buffer's length.
        size: u64,
        /// Its first byte.
        address: u64,
    },
}

#[cfg(test)]
mod tests {
    use railweave_fabric::RailSet;

    use super::*;

    #[test]
    fn sentences_name_the_immediate_and_what_is_wrong() {
        let said = Immediate { slot: Slot::new(7), mask: RailSet::from_bits(0b11), size_q: 8 };
        let about = |fault| Violation::Immediate { bits: 0x2307, said, fault }.to_string();
        let head = "immediate 0x00002307 (slot 7, mask 0b11, size_q 0x8): ";
        for (fault, words) in [
            (ImmediateFault::NoReceive, "the slot has no open receive"),
            (ImmediateFault::UnknownRail, "the mask names a rail that this connection does not have"),
            (ImmediateFault::OwnRailMissing, "the mask lacks the rail that it came on"),
            (ImmediateFault::OtherMask, "an earlier immediate of the slot had another mask"),
            (ImmediateFault::OtherSize, "an earlier immediate of the slot had another size_q"),
            (ImmediateFault::SpokenBefore, "the rail has already sent an immediate for this slot"),
            (ImmediateFault::NoRecord, "no completion record was written for the slot"),
            (ImmediateFault::GroupWithoutRecord, "a grouped receive needs a completion record"),
            (
                ImmediateFault::TooLong { sizes: vec![1, 9], capacities: vec![4, 4] },
                "sizes [1, 9] exceed the buffers' [4, 4]",
            ),
        ] {
            assert_eq!(about(fault), format!("{head}{words}"));
        }
        let bytes = about(ImmediateFault::OtherBytes { arrived: 5 });
        let words = "size_q contradicts the 5 bytes that arrived (an adapter that does not report byte counts needs ";
        assert!(bytes.starts_with(&format!("{head}{words}")), "{bytes}");
        let lost = Violation::ToSender { bits: 1, bytes: 8 };
        assert_eq!(lost.to_string(), "an immediate came to the sending end (0x00000001, 8 bytes)");
    }
}
