//! The reasons why rails are given up.

use std::fmt;
use std::time::Duration;

use railweave_fabric::{LaneId, PostError, RailError};

/// The reason why an end gave a rail up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// A lane of it failed.
    Lane {
        /// The lane.
        lane: LaneId,
        /// The reason.
        error: RailError,
    },
    /// It refused work although it had room, and no completion said why.
    Post(PostError),
    /// A part of this host that it uses failed, with this message.
    Part(String),
    /// Nothing that was on its way over it was answered for this time, although the peer is alive.
    Silent(Duration),
    /// The peer has given it up.
    Peer,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane { lane, error } => write!(out, "lane {lane}: {error}"),
            Self::Post(error) => error.fmt(out),
            Self::Part(message) => out.write_str(message),
            Self::Silent(time) => write!(
                out,
                "for {:.3} s it has answered nothing that is on its way, although the peer is alive; look at its \
                 cable, at the switches in between, and at their firewalls",
                time.as_secs_f64()
            ),
            Self::Peer => out.write_str("the peer has given it up; its log says why"),
        }
    }
}
