//! The stages of an end of a connection, from its handshake to its end.

use std::rc::Rc;

use railweave_transport::progress::Progress;
use railweave_transport::{Lingering, Session};

use super::comm::{Comm, End};

/// The stage that an end has reached.
pub(super) enum Stage<H, C, A, const O: bool> {
    Waiting,
    Handshake(H, Progress),
    Up(Rc<Comm<C, O>>, Box<A>),
    /// The application has closed it, and may keep its memory; the control thread has not handled that yet.
    Closing(Box<C>, Option<Box<A>>),
    Lingering(Lingering<Box<C>>),
    Over,
}

impl<H, C, A, const O: bool> Stage<H, C, A, O> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Handshake(..) => "handshake",
            Self::Up(..) => "up",
            Self::Closing(..) => "closing",
            Self::Lingering(_) => "lingering",
            Self::Over => "over",
        }
    }
}

impl<H, C: End<O>, A, const O: bool> Stage<H, C, A, O> {
    /// Closes an end for its application, whose memory goes first if `memory_first`, and otherwise when the end begins
    /// to linger. Returns true if it was up; the control thread must then be told.
    pub(super) fn close(&mut self, memory_first: bool) -> bool {
        let Self::Up(comm, app) = std::mem::replace(self, Self::Over) else { return false };
        let app = if memory_first { None } else { Some(app) };
        if let Some(end) = comm.close() {
            *self = Self::Closing(end, app);
        }
        true
    }

    /// Lets an end linger that its application has closed, and tells the session, if there is one.
    pub(super) fn begin_linger(&mut self, session: &mut Session, connection: u32, now_ns: u64) {
        match std::mem::replace(self, Self::Over) {
            Self::Closing(end, app) => {
                *self = Self::Lingering(Lingering::begin(end, session, connection, now_ns));
                drop(app);
            }
            other => *self = other,
        }
    }

    /// Lets a closed end linger on.
    pub(super) fn linger(&mut self, session: &mut Session, connection: u32, now_ns: u64) {
        if let Self::Lingering(closed) = self {
            closed.linger(session, connection, now_ns);
        }
    }
}
