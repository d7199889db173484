//! A connect that NCCL polls and the control thread completes.
#![allow(clippy::disallowed_types, reason = "service threads connect; the data path does not")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_transport::Error;

use crate::comm::{Established, Route};

/// A connection that was set up, or the error.
pub(crate) type Outcome = Result<(Box<Established>, Route), Error>;

/// A connect in progress: NCCL polls it, the control thread completes it.
#[derive(Default)]
pub(crate) struct PendingConnect {
    state: Mutex<Pending>,
}

#[derive(Default)]
enum Pending {
    #[default]
    Waiting,
    Over(Outcome),
    /// NCCL will not poll again.
    Abandoned,
}

impl PendingConnect {
    /// Stores the outcome for the next poll. Returns it if the connect was abandoned.
    pub(crate) fn give(&self, outcome: Outcome) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if matches!(*state, Pending::Abandoned) {
            return Some(outcome);
        }
        *state = Pending::Over(outcome);
        None
    }

    /// Takes the outcome, once there is one.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.replace(Pending::Waiting)
    }

    /// Returns true if the connection of this route is ready and was not taken yet.
    pub(crate) fn has(&self, route: Route) -> bool {
        matches!(&*lock(&self.state), Pending::Over(Ok((_, known))) if *known == route)
    }

    /// Takes back the connection of this route, if it was not taken, and leaves an error in its place.
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

    /// Abandons the connect: NCCL will not poll again. Returns the outcome, if there is one.
    pub(crate) fn abandon(&self) -> Option<Outcome> {
        self.replace(Pending::Abandoned)
    }

    /// Returns true if NCCL will not poll again.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(&*lock(&self.state), Pending::Abandoned)
    }

    fn replace(&self, with: Pending) -> Option<Outcome> {
        match std::mem::replace(&mut *lock(&self.state), with) {
            Pending::Over(outcome) => Some(outcome),
            Pending::Waiting | Pending::Abandoned => None,
        }
    }
}

/// The connecting end of a ready connection. NCCL calls connect repeatedly until it gets the connection. If it has not
/// called for two handshake timeouts, it never will: NCCL forgets the connects of an aborted communicator, and up to
/// v10 no `finalize` follows. The accepting end has no such limit: between listen and accept NCCL waits for other
/// ranks, for minutes if one of them compiles or loads a checkpoint.
pub(super) struct UnclaimedConnect {
    pub(super) route: Route,
    pub(super) connect: Arc<PendingConnect>,
    /// True once a handshake timeout has passed while this thread ran: a process that was stopped has not waited.
    pub(super) was_seen: bool,
    pub(super) next_ns: u64,
}

fn lock(state: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
