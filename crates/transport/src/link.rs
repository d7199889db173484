//! The word from outside that a peer is gone or an adapter failed.

use std::sync::OnceLock;

use crate::Error;

/// What the rest of the process knows about a connection's peer and adapters, told to the data path without a lock.
#[derive(Debug, Default)]
pub struct Link {
    lost: OnceLock<Error>,
    failed: OnceLock<Error>,
}

impl Link {
    /// Says that the peer is gone, and why. Requests that are stuck fail with this, but for flushes, which need no
    /// peer; the first word counts.
    pub fn set_lost(&self, error: Error) {
        let _ = self.lost.set(error);
    }

    /// Says that something of this end's adapters failed for good, and why. All requests that are stuck fail with this;
    /// the first word counts, and more than that of a peer that is gone.
    pub fn set_failed(&self, error: Error) {
        let _ = self.failed.set(error);
    }

    /// Why what needs the peer cannot be done any more, if so.
    #[inline]
    pub fn lost(&self) -> Option<&Error> {
        self.failed().or_else(|| self.lost.get())
    }

    /// Why nothing can be done any more, if so.
    #[inline]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_that_failed_says_more_than_a_peer_that_is_gone() {
        let (lost, failed) = (Error::peer("it is gone"), Error::local("it failed"));
        let link = Link::default();
        assert_eq!((link.lost(), link.failed()), (None, None));
        link.set_lost(lost.clone());
        link.set_lost(failed.clone());
        assert_eq!((link.lost(), link.failed()), (Some(&lost), None));
        link.set_failed(failed.clone());
        assert_eq!((link.lost(), link.failed()), (Some(&failed), Some(&failed)));
    }
}
