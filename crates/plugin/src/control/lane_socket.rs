//! The state of a socket that will become a lane, and of an accepted socket that has not said what it is.

use std::net::SocketAddr;

use railweave_transport::{Dial, LANE_PROOF_BYTES, LanePreface, Preface, Redials};

use super::stream::{Fill, Stream, is_closed};
use crate::comm::Route;

/// The acceptor's answer to a lane that it takes.
pub(super) const LANE_TAKEN: [u8; 8] = *b"RWLNTKN1";

/// An accepted socket that has not said what it is.
pub(super) struct Inbound {
    pub(super) stream: Stream,
    pub(super) address: SocketAddr,
    pub(super) accepted_ns: u64,
    pub(super) deadline_ns: u64,
}

/// A lane that this side dials.
pub(super) struct LaneDial {
    pub(super) stream: Stream,
    pub(super) route: Route,
    pub(super) dial: Dial,
    pub(super) proof: [u8; LANE_PROOF_BYTES],
    pub(super) remote: SocketAddr,
    pub(super) presented: bool,
    pub(super) redials: Redials,
    pub(super) deadline_ns: u64,
}

/// A lane that will be dialled again because the peer closed it without an answer, or did not answer: if strangers
/// flood the peer, its kernel drops connections that do not fit into the queue.
pub(super) struct LaneRedial {
    pub(super) route: Route,
    pub(super) dial: Dial,
    pub(super) port: u16,
    pub(super) redials: Redials,
    pub(super) at_ns: u64,
}

/// The failure of a dialled lane.
pub(super) struct Broken {
    pub(super) reason: String,
    /// True if the peer has closed the socket without an answer.
    pub(super) is_closed: bool,
}

impl LaneDial {
    /// Advances as far as possible. Returns true once the peer has taken the lane.
    pub(super) fn advance(&mut self) -> Result<bool, Broken> {
        let (local, remote) = (self.dial.local, self.remote);
        let broken = |error: std::io::Error| Broken {
            reason: format!("{local} cannot reach {remote}: {error}"),
            is_closed: is_closed(&error),
        };
        if !self.presented {
            if !self.stream.is_connected().map_err(broken)? {
                return Ok(false);
            }
            let Dial { token, rail, lane, .. } = self.dial;
            let (rail, lane) = (rail.index() as u8, lane.0);
            let lane = LanePreface { token, rail, lane, proof: self.proof };
            self.stream.send(&Preface::Lane(lane).encode()).map_err(broken)?;
            self.presented = true;
        }
        self.stream.flush().map_err(broken)?;
        let filled = self.stream.fill(LANE_TAKEN.len()).map_err(broken)?;
        if self.stream.input() == LANE_TAKEN && !self.stream.has_unsent() {
            self.stream.consume(LANE_TAKEN.len());
            return Ok(true);
        }
        if filled == Fill::Closed || self.stream.input().len() == LANE_TAKEN.len() {
            let reason = format!(
                "{remote} did not take the lane from {local}: the peer gave the connection up, or is not Railweave"
            );
            return Err(Broken { reason, is_closed: self.stream.input().is_empty() });
        }
        Ok(false)
    }
}
