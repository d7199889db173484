//! The parts of receives that rails have lost.

use railweave_fabric::RailSet;

use crate::Slot;

/// A receive of which a rail has lost a part.
pub(super) struct Called {
    pub(super) slot: Slot,
    /// The parts that were lost so far, and those of them that have not come again.
    pub(super) lost: RailSet,
    pub(super) missing: RailSet,
    /// The rails that have brought lost parts.
    pub(super) through: RailSet,
    /// The exact size of its message, `None` if the completion record has the sizes: once a part was lost, the bytes
    /// that came are not summed up.
    pub(super) size: Option<u32>,
    /// True if the application has its data, so that parts count as seen that have not come, and its sizes do not
    /// matter.
    pub(super) is_taken: bool,
}

/// The judgement on the parts of a receive that a rail was to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// These parts of the receive have come. `is_last` is true if the receive is complete only now.
    Seen {
        /// The parts.
        parts: RailSet,
        /// True if the slot then has all its immediates.
        is_last: bool,
    },
    /// A part that its sender knows as placed has not come, or cannot be made visible.
    Lost,
}
