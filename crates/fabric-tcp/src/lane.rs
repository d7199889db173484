//! One lane: a socket with its two halves, and what has become of it.

use std::time::{Duration, Instant};

use railweave_fabric::{ClosedAt, LaneId, LocalSlice, PostError, RailError, RailSpec, Reports, Write};

use crate::failure::LaneFailure;
use crate::incoming::{Incoming, Receives, Surroundings};
use crate::keys::KeyTable;
use crate::outgoing::Outgoing;
use crate::silence::Silence;
use crate::socket::Socket;

/// Most system calls that send, in one poll.
const POLL_SENDS: usize = 8;

/// What has become of a lane.
enum State {
    /// It works.
    Open,
    /// The peer has closed its end between two frames. A failure only if anything is outstanding or posted later.
    Closed,
    /// It is dead. Holds the failure until it is handed out.
    Failed(Option<LaneFailure>),
}

/// One socket of a rail.
pub(crate) struct Lane {
    socket: Socket,
    outgoing: Outgoing,
    incoming: Incoming,
    state: State,
    silence: Silence,
    /// Failures are nobody's concern any more.
    lingers: bool,
}

impl Lane {
    /// A lane over a connected socket. All its memory is taken here.
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

    /// Writes that can be posted.
    pub(crate) fn room(&self) -> u32 {
        self.outgoing.room()
    }

    /// Whether the lane is dead.
    pub(crate) fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Whether nothing more would be gained by polling.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_failed() || self.outgoing.is_drained()
    }

    /// From now on writes of the peer are thrown away, and failures are silent.
    pub(crate) fn linger(&mut self) {
        self.lingers = true;
        self.incoming.discard();
        if let State::Failed(failure) = &mut self.state {
            *failure = None;
        }
    }

    /// Posts a chain for which there is room, all or nothing, and sends what the kernel takes at once.
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
        // A failure now is reported by the next poll, as any other.
        self.send(keys, 1);
        Ok(())
    }

    /// Receives, and sends what is waiting, within the bounds of one poll. Acknowledgements for what is received now
    /// wait for the next call: by then there may be a write that carries them.
    pub(crate) fn progress(&mut self, keys: &KeyTable, receives: &mut Receives) {
        if self.outgoing.owes() {
            self.send(keys, 1);
        }
        if matches!(self.state, State::Open) {
            let mut around = Surroundings { socket: &self.socket, keys, receives };
            match self.incoming.receive(&mut around, &mut self.outgoing) {
                Ok(true) => {}
                Ok(false) => self.state = State::Closed,
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

    /// Whether the kernel does not have all that the peer may be waiting for.
    pub(crate) fn owes(&self) -> bool {
        match self.state {
            State::Open => self.outgoing.wants_to_send(),
            // What was posted fails; the next poll says so.
            State::Closed => self.outgoing.owes(),
            State::Failed(_) => false,
        }
    }

    /// Sends what is owed; whether nothing is left.
    pub(crate) fn acknowledge(&mut self, keys: &KeyTable) -> bool {
        if self.owes() {
            self.send(keys, POLL_SENDS);
        }
        !self.owes()
    }

    /// Reports what is complete, and at the very end the failure, once; at most `most`. Answers how many.
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

    fn send(&mut self, keys: &KeyTable, calls: usize) {
        for _ in 0..calls {
            if self.is_failed() || !self.outgoing.wants_to_send() {
                return;
            }
            match self.outgoing.send(&self.socket, keys) {
                Ok(true) => {}
                Ok(false) => return,
                // The peer has closed, and only acknowledgements were left: it does not wait for them any more.
                Err(_) if matches!(self.state, State::Closed) => return self.outgoing.forgive_acknowledgements(),
                Err(failure) => return self.fail(failure),
            }
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

/// Whether a write's source is registered.
fn check_source(write: &Write, keys: &KeyTable) -> Result<(), PostError> {
    let LocalSlice { address, length, key } = write.local;
    if length > 0
        && let Err(error) = keys.source(key, address, length as usize)
    {
        return Err(PostError::Invalid(format!("the source of a write of {length} bytes at {address:#x}: {error}")));
    }
    Ok(())
}
