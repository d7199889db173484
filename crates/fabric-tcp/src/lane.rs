//! One lane: a socket with its two halves, and its state.

use std::time::{Duration, Instant};

use railweave_fabric::{ClosedAt, LaneId, LocalSlice, PostError, RailError, RailSpec, Reports, Write};

use crate::failure::LaneFailure;
use crate::incoming::{Incoming, Receives, Surroundings};
use crate::keys::KeyTable;
use crate::outgoing::Outgoing;
use crate::silence::Silence;
use crate::socket::Socket;

/// The maximum number of sending system calls in one poll, besides one for acknowledgements.
const POLL_SENDS: usize = 8;

/// The maximum number of bytes that a lane reads when it ends, so that a peer that goes on sending does not hold it up.
/// More than the kernel's buffer holds by default (tcp_rmem in tcp(7): 6 MiB), so that everything is read that had
/// arrived.
const END_BYTES: usize = 16 << 20;

/// The state of a lane.
enum State {
    /// It works.
    Open,
    /// The peer has closed its end between two frames. This is a failure only if work is outstanding or posted later.
    Closed,
    /// It has failed. Holds the failure until it is reported.
    Failed(Option<LaneFailure>),
}

/// One socket of a rail.
pub(crate) struct Lane {
    socket: Socket,
    outgoing: Outgoing,
    incoming: Incoming,
    state: State,
    silence: Silence,
    /// True if the connection is closing: failures are not reported.
    lingers: bool,
}

impl Lane {
    /// Makes a lane over a connected socket, and allocates all its memory.
    pub(crate) fn new(socket: Socket, spec: &RailSpec, peer_timeout: Option<Duration>) -> Self {
        Self {
            socket,
            outgoing: Outgoing::new(spec.send_depth),
            incoming: Incoming::new(spec.receive_depth),
            state: State::Open,
            silence: Silence::new(peer_timeout),
            lingers: false,
        }
    }

    /// Returns the number of writes that can be posted.
    pub(crate) fn room(&self) -> u32 {
        self.outgoing.room()
    }

    /// Returns true if the lane has failed.
    pub(crate) fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Returns true if further polls would achieve nothing.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_failed() || self.outgoing.is_drained()
    }

    /// Discards the peer's writes from now on, and reports no failures.
    pub(crate) fn linger(&mut self) {
        self.lingers = true;
        self.incoming.discard();
        if let State::Failed(failure) = &mut self.state {
            *failure = None;
        }
    }

    /// Posts a whole chain or none of it, and sends what the kernel takes immediately. The chain must fit.
    pub(crate) fn post(&mut self, chain: &[Write], keys: &KeyTable) -> Result<(), PostError> {
        match self.state {
            State::Open => {}
            State::Closed => {
                self.fail_closed();
                return Err(PostError::Broken);
            }
            State::Failed(_) => return Err(PostError::Broken),
        }
        for write in chain {
            check_source(write, keys)?;
        }
        for write in chain {
            self.outgoing.push(write);
        }
        // If sending fails, the next poll reports it.
        self.send(keys, 1);
        Ok(())
    }

    /// Receives, and sends what is waiting, within the limits of one poll. New acknowledgements wait for the next call:
    /// by then there may be a write to carry them.
    pub(crate) fn progress(&mut self, keys: &KeyTable, receives: &mut Receives) {
        if self.outgoing.owes() {
            self.send(keys, 1);
        }
        if matches!(self.state, State::Open) {
            let mut around = Surroundings { socket: &self.socket, keys, receives };
            match self.incoming.receive(&mut around, &mut self.outgoing) {
                Ok(Some(_)) => {}
                Ok(None) => self.state = State::Closed,
                Err(failure) => self.fail(failure),
            }
        }
        if matches!(self.state, State::Closed) && self.outgoing.is_outstanding() {
            self.fail_closed();
        }
        if self.outgoing.has_unsent() {
            self.send(keys, POLL_SENDS);
        }
        if self.outgoing.is_outstanding() && self.silence.is_due() {
            self.look_for_silence();
        }
    }

    /// Returns true if the kernel has not taken everything that the peer may be waiting for.
    pub(crate) fn owes(&self) -> bool {
        match self.state {
            State::Open => self.outgoing.wants_to_send(),
            // Outstanding writes cannot complete; the next poll reports this.
            State::Closed => self.outgoing.owes(),
            State::Failed(_) => false,
        }
    }

    /// Sends what is owed. Returns true if nothing is left.
    pub(crate) fn acknowledge(&mut self, keys: &KeyTable) -> bool {
        if self.owes() {
            self.send(keys, POLL_SENDS);
        }
        !self.owes()
    }

    /// Makes at most `most` reports: first the completions, then the failure, once. Returns the number of reports.
    pub(crate) fn collect(
        &mut self,
        lane: LaneId,
        most: usize,
        receives: &mut Receives,
        reports: &mut impl Reports,
    ) -> usize {
        for count in 0..most {
            if let Some(id) = self.outgoing.poll_completed() {
                reports.handle_sent(id);
            } else if let Some(arrival) = self.incoming.poll_arrival(receives) {
                reports.handle_received(lane, arrival.immediate, arrival.bytes);
            } else if let State::Failed(failure) = &mut self.state
                && let Some(LaneFailure(failure)) = failure.take()
            {
                reports.handle_failed(lane, failure.0, Box::new(failure.1));
            } else {
                return count;
            }
        }
        most
    }

    /// Reads what has arrived, sends nothing more, and reports the completions, but no failure.
    pub(crate) fn end(mut self, lane: LaneId, keys: &KeyTable, receives: &mut Receives, reports: &mut impl Reports) {
        let mut left = END_BYTES;
        let mut is_open = matches!(self.state, State::Open);
        self.state = State::Failed(None);
        loop {
            self.collect(lane, usize::MAX, receives, reports);
            if !is_open || left == 0 {
                return;
            }
            let mut around = Surroundings { socket: &self.socket, keys, receives };
            let received = self.incoming.receive(&mut around, &mut self.outgoing);
            // The peer has closed its end, or sends what it must not: the completions before that count.
            is_open = matches!(received, Ok(Some(1..)));
            left = left.saturating_sub(received.ok().flatten().unwrap_or(0));
        }
    }

    fn send(&mut self, keys: &KeyTable, calls: usize) {
        for _ in 0..calls {
            if self.is_failed() || !self.outgoing.wants_to_send() {
                return;
            }
            match self.outgoing.send(&self.socket, keys) {
                Ok(true) => {}
                Ok(false) => return,
                // The peer has closed and only acknowledgements are left: it no longer waits for them.
                Err(_) if matches!(self.state, State::Closed) => return self.outgoing.forgive_acknowledgements(),
                Err(failure) => return self.fail(failure),
            }
        }
    }

    /// Returns the time for which the peer's host has acknowledged nothing of what is on its way.
    pub(crate) fn silence(&mut self) -> Duration {
        match self.state {
            State::Open => self.silence.listen(Instant::now(), self.socket.heard_ago()),
            State::Closed | State::Failed(_) => Duration::ZERO,
        }
    }

    #[cold]
    fn look_for_silence(&mut self) {
        if let State::Open = self.state
            && let Some(silent) = self.silence.look(Instant::now(), self.socket.heard_ago())
        {
            self.fail(LaneFailure::of_lane(RailError::Silence(silent)));
        }
    }

    #[cold]
    fn fail_closed(&mut self) {
        let closed = ClosedAt::Rest(self.outgoing.unacknowledged());
        self.fail(LaneFailure::of_lane(RailError::PeerClosed(closed)));
    }

    #[cold]
    fn fail(&mut self, failure: LaneFailure) {
        self.socket.shutdown();
        self.state = State::Failed(Some(failure).filter(|_| !self.lingers));
    }
}

/// Checks that a write's source is registered.
fn check_source(write: &Write, keys: &KeyTable) -> Result<(), PostError> {
    let LocalSlice { address, length, key } = write.local;
    if length > 0
        && let Err(error) = keys.source(key, address, length as usize)
    {
        return Err(PostError::Invalid(format!("the source of a write of {length} bytes at {address:#x}: {error}")));
    }
    Ok(())
}
