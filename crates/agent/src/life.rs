//! The presence of a process.

/// The presence of a process as a reader judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    Running,
    /// It may run, but has not written for long: it is stopped, or hangs.
    Silent,
    Gone,
    /// It belongs to another container or host.
    Unknown,
}

impl Life {
    pub(crate) const ALL: [Self; 4] = [Self::Running, Self::Silent, Self::Gone, Self::Unknown];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent => "silent",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }
}
