//! The rails of one message, as a profiler or a trace sees them between two calls.

use railweave_fabric::RailSet;

/// The rails that carry a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carriers {
    /// The rails that were given a part of it. A receiver learns them from the first sign of the message.
    pub active: RailSet,
    /// Those whose part has not been placed yet, as far as this end knows.
    pub missing: RailSet,
}
