//! The parts of receives that rails have lost, or have brought before they ended.

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

use crate::Slot;

/// A receive of which a rail has lost a part, or has brought one and has ended since.
pub(super) struct Called {
    pub(super) slot: Slot,
    /// The parts that were lost so far, and those of them that have not come again.
    pub(super) lost: RailSet,
    pub(super) missing: RailSet,
    /// The rail that has brought each lost part; `None` for one that has not come again.
    pub(super) through: [Option<RailId>; MAX_RAILS],
    /// The lost parts that have come, and cannot be made visible to the GPU.
    pub(super) hidden: RailSet,
    /// The parts that a rail had brought before its lanes ended, which has made them visible to the GPU.
    pub(super) shown: RailSet,
    /// The exact size of its message, `None` if the completion record has the sizes: once a part was lost, the bytes
    /// that came are not summed up.
    pub(super) size: Option<u32>,
    /// True if the application has its data, so that parts count as seen that have not come, and its sizes do not
    /// matter.
    pub(super) is_taken: bool,
}

impl Called {
    /// Returns a receive of which nothing is lost.
    pub(super) fn new(slot: Slot) -> Self {
        Self {
            slot,
            lost: RailSet::EMPTY,
            missing: RailSet::EMPTY,
            through: [None; MAX_RAILS],
            hidden: RailSet::EMPTY,
            shown: RailSet::EMPTY,
            size: None,
            is_taken: false,
        }
    }

    /// Notes parts that are to come again.
    pub(super) fn lose(&mut self, parts: RailSet) {
        self.lost |= parts;
        self.missing |= parts;
        parts.iter().for_each(|part| self.through[part] = None);
    }

    /// Returns the rail that has brought a part; `None` if none has yet.
    pub(super) fn carrier(&self, part: RailId) -> Option<RailId> {
        if self.lost.contains(part) { self.through[part] } else { Some(part) }
    }
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
