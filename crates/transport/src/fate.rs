//! Reports by the rest of the process that a peer is gone or an adapter failed.

use std::sync::OnceLock;

use crate::Error;

/// Cells, each set once: by two of them a connection's data path learns without a lock that its peer is gone or an
/// adapter failed, and by the third the rest of the process learns that the connection is broken.
#[derive(Debug, Default)]
pub struct Fate {
    lost: OnceLock<Error>,
    failed: OnceLock<Error>,
    broken: OnceLock<Error>,
}

impl Fate {
    /// Reports that the peer is gone, and why. Requests that are stuck fail with this error, except flushes, which need
    /// no peer. Only the first report counts.
    pub fn set_lost(&self, error: Error) {
        let _ = self.lost.set(error);
    }

    /// Reports that an adapter of this end, or a part of one, failed for good, and why. All requests that are stuck
    /// fail with this error, even if the peer is gone too. Only the first report counts.
    pub fn set_failed(&self, error: Error) {
        let _ = self.failed.set(error);
    }

    /// Notes that the connection is broken. Only the first reason counts.
    pub(crate) fn set_broken(&self, error: Error) {
        let _ = self.broken.set(error);
    }

    /// Returns the reason why the connection is broken, which every call on it returns; `None` while it works.
    pub fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    /// Returns the reason why nothing that needs the peer can succeed; `None` until one is reported.
    #[inline]
    pub fn lost(&self) -> Option<&Error> {
        self.failed().or_else(|| self.lost.get())
    }

    /// Returns the reason why nothing at all can succeed; `None` until one is reported.
    #[inline]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_adapter_takes_precedence_over_a_lost_peer() {
        let (lost, failed) = (Error::peer("it is gone"), Error::local("it failed"));
        let fate = Fate::default();
        assert_eq!((fate.lost(), fate.failed()), (None, None));
        fate.set_lost(lost.clone());
        fate.set_lost(failed.clone());
        assert_eq!((fate.lost(), fate.failed()), (Some(&lost), None));
        fate.set_failed(failed.clone());
        assert_eq!((fate.lost(), fate.failed()), (Some(&failed), Some(&failed)));
        assert_eq!(fate.broken(), None, "nothing was stuck yet");
    }
}
