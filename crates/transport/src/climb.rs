//! The climb of a connect: its attempts, by the steps of the ladder.

use std::collections::BTreeSet;
use std::net::IpAddr;

use railweave_fabric::Step;

use crate::{Error, Event, Handshake, KnownWays};

/// The attempts that begin at one step: each takes the time of its first packets, and other pairs of a step are worth
/// two more of that. Where cables are crossed, the second attempt usually has the right ones.
const MOST_AT_A_STEP: u32 = 3;

/// The attempts of one connect to reach its peer. Each begins at a step of the ladder; the acceptor takes the first
/// step from there on that gives a rail.
#[derive(Clone, Debug, Default)]
pub struct Climb {
    first_step: Step,
    /// The attempts before this one that have failed at the step at which this one begins.
    failed_at_step: u32,
    /// The ways over which its own attempts have left rails out, whatever that cost.
    failed: BTreeSet<[IpAddr; 2]>,
    /// The number of them when the attempt began.
    known: usize,
    /// The error of the first attempt that failed: later ones only add that there is no other way.
    error: Option<Error>,
    /// True if it was begun without ways that had failed for others.
    avoids: bool,
    /// True if it has begun again with them.
    has_begun_again: bool,
}

/// The end of an attempt without a connection.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The step of the ladder in its ANSWER, if that has come.
    pub step: Option<Step>,
    /// [`Handshake::next_step`].
    pub next_step: Option<Step>,
    /// Its error.
    pub error: Error,
}

impl Failed {
    /// Returns the end of an attempt whose handshake has failed with this error.
    pub fn new(handshake: &(impl Handshake + ?Sized), error: Error) -> Self {
        Self { step: handshake.step(), next_step: handshake.next_step(), error }
    }
}

impl Climb {
    /// Returns the first step of the ladder that the acceptor may take.
    pub fn first_step(&self) -> Step {
        self.first_step
    }

    /// Returns the error of the first attempt that failed.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Begins an attempt. Returns the ways that it must not try, each by an address of this host and one of the peer's.
    pub fn begin(&mut self, ways: &mut KnownWays, now_ns: u64) -> Vec<[IpAddr; 2]> {
        let avoided = ways.avoided(now_ns);
        self.known = self.failed.len();
        self.avoids |= self.error.is_none() && !self.has_begun_again && !avoided.is_empty();
        self.failed.iter().copied().chain(avoided).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Notes an event of an attempt that has taken this time.
    pub fn handle_event(&mut self, ways: &mut KnownWays, event: &Event, took_ns: u64, now_ns: u64) {
        let Event::RailLeftOut { name, reason, .. } = event else { return };
        if let (Ok(local), Ok(remote)) = (name.local.parse(), name.remote.parse()) {
            self.failed.insert([local, remote]);
            ways.note_failed([local, remote], reason, took_ns, now_ns);
        }
    }

    /// Handles an attempt that has failed. `has_tcp` is true if TCP may carry the connection, and the peer has it too.
    ///
    /// * If ways have failed, the next attempt begins at the same step without them: its other pairs may carry. After
    ///   three attempts there it begins at the next step.
    /// * Before TCP, and before the end, the ways that were avoided from the beginning get their turn: the ladder is
    ///   climbed once more with them.
    ///
    /// # Errors
    /// If there is no other attempt: the error of the first.
    pub fn go_on(&mut self, ways: &mut KnownWays, failed: Failed, has_tcp: bool) -> Result<(), Error> {
        let Failed { step, next_step, error } = failed;
        let error = self.error.get_or_insert(error).clone();
        let has_failed_ways = self.failed.len() > self.known;
        if let (Some(step), Some(_)) = (step, next_step) {
            let failed_at_step = if step == self.first_step { self.failed_at_step + 1 } else { 1 };
            if has_failed_ways && failed_at_step < MOST_AT_A_STEP {
                (self.first_step, self.failed_at_step) = (step, failed_at_step);
                return Ok(());
            }
        }
        match next_step.filter(|step| *step > self.first_step) {
            Some(Step::Tcp) if self.avoids && !self.has_begun_again => {
                ways.forget();
                *self = Self { has_begun_again: true, ..Self::default() };
            }
            Some(step) if step != Step::Tcp || has_tcp => (self.first_step, self.failed_at_step) = (step, 0),
            _ => return Err(error),
        }
        Ok(())
    }
}
