//! The ways in which the completions of a slot's writes are measured.

/// The kind of measurement of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured(u8);

impl Measured {
    /// It is not measured.
    pub(crate) const NOT: Self = Self(0);
    /// It holds one message that was long enough to be split, and one write on each active rail.
    pub(crate) const PLAIN: Self = Self(1);
    /// It is measured, but none of its messages was long enough to be split.
    pub(crate) const WHOLE: u8 = 2;
    /// Its rails may have several messages, or several writes, each.
    pub(crate) const SEVERAL: u8 = 4;
    /// Its time goes into the histograms of the rails.
    pub(crate) const SAMPLE: u8 = 8;

    /// Returns this kind with more of the bits above.
    pub(crate) fn with(self, bits: u8) -> Self {
        Self(self.0 | bits)
    }

    /// Returns true if one of these bits is set.
    pub(crate) fn is(self, bits: u8) -> bool {
        self.0 & bits != 0
    }
}
