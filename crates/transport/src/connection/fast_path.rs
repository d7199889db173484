//! The fast path of an end: the messages that take it.

/// The messages that take an end's fast path: those shorter than a limit, so that one comparison finds most of them.
pub(crate) struct FastPath {
    /// The present limit in bytes; 0 while no message takes the fast path.
    below: u64,
    /// The limit in bytes when open.
    limit: u64,
    is_open: bool,
    has_rails: bool,
}

impl FastPath {
    /// Returns the fast path of messages below `limit` bytes, open.
    pub(crate) fn new(limit: u64) -> Self {
        Self { below: limit, limit, is_open: true, has_rails: true }
    }

    /// Returns true if a message of `bytes` bytes may take the fast path.
    #[inline(always)]
    pub(crate) fn takes(&self, bytes: u64) -> bool {
        bytes < self.below
    }

    /// Keeps all messages off the fast path until [`Self::open`].
    pub(crate) fn close(&mut self) {
        self.is_open = false;
        self.below = 0;
    }

    /// Lets messages take the fast path again, unless it has ended, or there is no rail.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
        self.set_rails(self.has_rails);
    }

    /// Notes if there is a rail for the messages.
    pub(crate) fn set_rails(&mut self, has_rails: bool) {
        self.has_rails = has_rails;
        self.below = if self.is_open && has_rails { self.limit } else { 0 };
    }

    /// Keeps all messages off the fast path forever.
    pub(super) fn end(&mut self) {
        (self.below, self.limit) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(path: &FastPath) -> [bool; 4] {
        [0, 999, 1000, 1001].map(|bytes| path.takes(bytes))
    }

    #[test]
    fn the_fast_path_takes_messages_below_its_limit_while_it_is_open() {
        let mut path = FastPath::new(1000);
        assert_eq!(taken(&path), [true, true, false, false]);
        path.close();
        assert_eq!(taken(&path), [false; 4]);
        path.open();
        assert_eq!(taken(&path), [true, true, false, false]);
    }

    #[test]
    fn without_a_rail_nothing_takes_the_fast_path() {
        let mut path = FastPath::new(1000);
        path.set_rails(false);
        assert_eq!(taken(&path), [false; 4]);
        path.open();
        assert_eq!(taken(&path), [false; 4]);
        path.close();
        path.set_rails(true);
        assert_eq!(taken(&path), [false; 4], "it is closed");
        path.open();
        assert_eq!(taken(&path), [true, true, false, false]);
    }

    #[test]
    fn a_fast_path_that_has_ended_never_opens_again() {
        let mut path = FastPath::new(1000);
        path.end();
        assert_eq!(taken(&path), [false; 4]);
        path.open();
        assert_eq!(taken(&path), [false; 4]);
    }
}
