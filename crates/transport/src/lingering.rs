//! Closed ends that linger, as the thread that drives their session handles them.

use std::ops::DerefMut;

use crate::{ConnectionEnd, Session};

/// An end that its application has closed, and that its caller keeps until the session says
/// [`crate::SessionAction::Over`].
#[derive(Debug)]
pub struct Lingering<E>(E);

impl<E: DerefMut<Target: ConnectionEnd>> Lingering<E> {
    /// Closes the open connection of this end. What arrives is discarded from now on, so it is before the peer is told
    /// BYE, and what has been received, that the end begins to linger.
    ///
    /// # Panics
    /// In debug builds, if the session does not know the connection as open.
    pub fn begin(mut end: E, session: &mut Session, connection: u32, now_ns: u64) -> Self {
        let received = end.received();
        end.start_linger();
        let was_open = session.close(connection, received, now_ns);
        debug_assert!(was_open, "only an open connection is closed");
        Self(end)
    }

    /// Handles [`crate::SessionAction::Linger`]: lets the end send what is left, and tells the session if that was all.
    pub fn linger(&mut self, session: &mut Session, connection: u32, now_ns: u64) {
        session.handle_lingered(connection, self.0.linger(), now_ns);
    }
}
