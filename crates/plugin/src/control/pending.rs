//! A connect that NCCL polls and the control thread ends.
#![allow(clippy::disallowed_types, reason = "connects are service threads' business")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_transport::Error;

use crate::comm::{Established, Route};

/// A connection that was set up, or why there is none.
pub(crate) type Outcome = Result<(Box<Established>, Route), Error>;

/// A connect that is under way: NCCL polls it, the control thread ends it.
#[derive(Default)]
pub(crate) struct PendingConnect {
    state: Mutex<Pending>,
}

#[derive(Default)]
enum Pending {
    #[default]
    Waiting,
    Over(Outcome),
    /// Nobody will ask any more.
    Abandoned,
}

impl PendingConnect {
    /// Gives the outcome to whoever polls; hands it back when nobody will.
    pub(crate) fn give(&self, outcome: Outcome) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if matches!(*state, Pending::Abandoned) {
            return Some(outcome);
        }
        *state = Pending::Over(outcome);
        None
    }

    /// The outcome, once there is one.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.replace(Pending::Waiting)
    }

    /// Whether the connection of this route is there, and nobody has polled since.
    pub(crate) fn has(&self, route: Route) -> bool {
        matches!(&*lock(&self.state), Pending::Over(Ok((_, known))) if *known == route)
    }

    /// Takes that connection back, and leaves an error in its place.
    pub(crate) fn take_back(&self, route: Route, error: Error) -> Option<Box<Established>> {
        let mut state = lock(&self.state);
        match &*state {
            Pending::Over(Ok((_, known))) if *known == route => {}
            _ => return None,
        }
        match std::mem::replace(&mut *state, Pending::Over(Err(error))) {
            Pending::Over(Ok((established, _))) => Some(established),
            _ => None,
        }
    }

    /// Tells that nobody will ask any more, and takes the outcome, if there is one.
    pub(crate) fn abandon(&self) -> Option<Outcome> {
        self.replace(Pending::Abandoned)
    }

    fn replace(&self, with: Pending) -> Option<Outcome> {
        match std::mem::replace(&mut *lock(&self.state), with) {
            Pending::Over(outcome) => Some(outcome),
            Pending::Waiting | Pending::Abandoned => None,
        }
    }
}

/// The connecting end of a connection, handed on. NCCL calls connect over and over until it has it. When nobody has
/// asked for two handshake times, nobody will: NCCL forgets the connects of a communicator that was aborted, and up to
/// v10 no `finalize` follows. The accepting end has no such limit: between listen and accept NCCL waits for other
/// ranks, for minutes where one of them compiles or loads a checkpoint.
pub(super) struct Unasked {
    pub(super) route: Route,
    pub(super) connect: Arc<PendingConnect>,
    /// One handshake time has passed while this thread ran: a process that stood still is not taken for one that
    /// waited.
    pub(super) was_seen: bool,
    pub(super) next_ns: u64,
}

fn lock(state: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
