//! What a session is told at its beginning.

use std::sync::Arc;

use super::Prover;
use crate::Hello;

/// What the sessions of a process have in common. All times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// What this process says of itself; the wanted process and the nonce are each session's own.
    pub hello: Hello,
    /// What has the key, where the process has one. [`Hello::KEYED`] says the same.
    pub prover: Option<Arc<dyn Prover>>,
    /// How long HELLO and PROOF may take; with an opener, all of its tries together.
    pub handshake_ns: u64,
    /// How long a peer may take to answer a PING.
    pub peer_timeout_ns: u64,
    /// How long a session without connections is kept by its opener.
    pub idle_ns: u64,
    /// How long it is kept by the other end, which only needs to see to it that strangers do not keep sessions for
    /// ever.
    pub accepted_idle_ns: u64,
    /// How long an open connection whose peer or session is gone has until it is lost: its lanes carry what was sent
    /// before, and say themselves that the peer is gone.
    pub grace_ns: u64,
    /// How long a closed connection waits for its peer.
    pub linger_ns: u64,
    /// The first pause between two looks at a closed connection, and the longest, to which it grows.
    pub linger_pause_ns: (u64, u64),
}

impl SessionConfig {
    /// With the times that suit real networks, for a process that says this of itself.
    pub fn new(hello: Hello, prover: Option<Arc<dyn Prover>>, handshake_ns: u64, peer_timeout_ns: u64) -> Self {
        Self {
            hello,
            prover,
            handshake_ns,
            peer_timeout_ns,
            idle_ns: 1_000_000_000,
            accepted_idle_ns: 60_000_000_000,
            grace_ns: 1_000_000_000,
            linger_ns: 3_000_000_000,
            linger_pause_ns: (200_000, 10_000_000),
        }
    }
}
