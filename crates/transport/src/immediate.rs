//! The 32 bits that travel with the last write of a rail: the slot, the active rails, and the size in units of 128
//! bytes.

use railweave_fabric::RailSet;

use crate::{GRANULE, Slot};

/// The layout of the bits on a connection with a given number of rails: `[7:0]` slot, `[8+n-1:8]` active rails,
/// `[31:8+n]` size_q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateLayout {
    /// The lowest bit of size_q.
    shift: u32,
    all_ones: u32,
}

/// The fields of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The slot.
    pub slot: Slot,
    /// The rails that carry part of the slot's data.
    pub mask: RailSet,
    /// The whole message in units of 128 bytes, rounded up; all ones if the completion record has the size.
    pub size_q: u32,
}

impl ImmediateLayout {
    /// Returns the layout for a connection of `rails` rails.
    ///
    /// # Panics
    /// If `rails` is not 1 to 8.
    pub fn new(rails: usize) -> Self {
        assert!((1..=railweave_fabric::MAX_RAILS).contains(&rails), "a connection has 1 to 8 rails, not {rails}");
        let shift = 8 + rails as u32;
        Self { shift, all_ones: u32::MAX >> shift }
    }

    /// Returns the size_q that stands for sizes in the completion record.
    #[inline]
    pub fn all_ones(self) -> u32 {
        self.all_ones
    }

    /// Returns the size_q of a message, all ones if the message is too large for it.
    #[inline]
    pub fn size_q(self, bytes: u64) -> u32 {
        bytes.div_ceil(GRANULE).min(u64::from(self.all_ones)) as u32
    }

    /// Encodes an immediate.
    #[inline]
    pub fn encode(self, immediate: Immediate) -> u32 {
        u32::from(immediate.slot.number()) | u32::from(immediate.mask.bits()) << 8 | immediate.size_q << self.shift
    }

    /// Decodes only the slot of an immediate.
    #[inline]
    pub(crate) fn slot(bits: u32) -> Slot {
        Slot::new(bits as u8)
    }

    /// Returns true if an immediate says that all `bytes` bytes of its message came with it, over the rail in `alone`.
    #[inline]
    pub(crate) fn says_whole(self, bits: u32, alone: RailSet, bytes: u32) -> bool {
        let units = units(bytes);
        units < self.all_ones && bits & !0xff == units << self.shift | u32::from(alone.bits()) << 8
    }

    /// Decodes an immediate. Every 32-bit value can be decoded; the receiver must check that the fields make sense.
    #[inline]
    pub fn decode(self, bits: u32) -> Immediate {
        Immediate {
            slot: Self::slot(bits),
            mask: RailSet::from_bits((bits >> 8) as u8 & (0xff >> (16 - self.shift))),
            size_q: bits >> self.shift,
        }
    }
}

/// Returns a size of at most 1 GiB in units of 128 bytes, rounded up.
#[inline]
pub(crate) fn units(bytes: u32) -> u32 {
    bytes.wrapping_add(GRANULE as u32 - 1) / GRANULE as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_rails_leave_22_bits_for_the_size() {
        let layout = ImmediateLayout::new(2);
        let bits = layout.encode(Immediate { slot: Slot::new(0xab), mask: RailSet::from_bits(0b10), size_q: 0x3_0001 });
        assert_eq!(bits, 0xab | 0b10 << 8 | 0x3_0001 << 10);
        assert_eq!(layout.all_ones(), (1 << 22) - 1);
    }

    #[test]
    fn sizes_round_up_to_units_and_overflow_to_all_ones() {
        let layout = ImmediateLayout::new(8);
        assert_eq!(layout.all_ones(), 0xffff);
        for (bytes, size_q) in [(0, 0), (1, 1), (128, 1), (129, 2), (0xfffe * 128, 0xfffe), (0xfffe * 128 + 1, 0xffff)]
        {
            assert_eq!(layout.size_q(bytes), size_q, "{bytes} bytes");
        }
        assert_eq!(layout.size_q(u64::MAX), 0xffff);
    }

    #[test]
    fn a_size_that_only_a_record_can_hold_is_never_whole() {
        let layout = ImmediateLayout::new(8);
        let alone = RailSet::from_bits(1);
        let says = |bytes| {
            let size_q = layout.size_q(u64::from(bytes));
            layout.says_whole(layout.encode(Immediate { slot: Slot::new(3), mask: alone, size_q }), alone, bytes)
        };
        assert_eq!([0xfffe * 128, 0xfffe * 128 + 1, 0xffff * 128].map(says), [true, false, false]);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(rails in 1usize..=8, bits: u32) {
            let layout = ImmediateLayout::new(rails);
            let parts = layout.decode(bits);
            prop_assert_eq!(layout.encode(parts), bits);
            prop_assert!(parts.size_q <= layout.all_ones());
            prop_assert!(parts.mask.is_within(RailSet::first_of(rails)));
        }

        #[test]
        fn a_whole_message_is_known_by_its_immediate(rails in 1usize..=8, bits: u32, rail in 0usize..8, bytes: u32) {
            let layout = ImmediateLayout::new(rails);
            let alone = RailSet::from_bits(1 << (rail % rails));
            let size_q = layout.size_q(u64::from(bytes));
            let whole = Immediate { slot: Slot::new(bits as u8), mask: alone, size_q };
            let says = |immediate| layout.says_whole(layout.encode(immediate), alone, bytes);
            prop_assert_eq!(says(whole), size_q != layout.all_ones());
            let others = [Immediate { mask: RailSet::EMPTY, ..whole }, Immediate { size_q: size_q ^ 1, ..whole }];
            prop_assert_eq!(others.map(says), [false, false]);
            let is_whole = layout.decode(bits) == whole && size_q < layout.all_ones();
            prop_assert_eq!(layout.says_whole(bits, alone, bytes), is_whole);
        }
    }
}
