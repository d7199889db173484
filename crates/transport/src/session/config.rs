//! The configuration of sessions.

use std::sync::Arc;

use super::Prover;
use crate::Hello;

/// The configuration that all sessions of a process share. All times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The HELLO of this process; each session has its own wanted process and nonce.
    pub hello: Hello,
    /// The prover that has the key, if the process has one. If and only if it does, `hello` has [`Hello::KEYED`].
    pub prover: Option<Arc<dyn Prover>>,
    /// The time that HELLO and PROOF may take; for an opener, in all of its attempts together.
    pub handshake_ns: u64,
    /// The time that a peer may take to answer a PING.
    pub peer_timeout_ns: u64,
    /// The number of the first connection that an opener begins. It is 1; the simulation has others, so that numbers go
    /// round.
    pub first_connection: u32,
    /// The time for which an opener keeps a session without connections.
    pub idle_ns: u64,
    /// The time for which an acceptor keeps a session without connections. It only prevents strangers from keeping
    /// sessions forever.
    pub accepted_idle_ns: u64,
    /// The time for which an open connection outlives its peer or its session: its lanes still deliver what was sent
    /// before, and then report by themselves that the peer is gone.
    pub grace_ns: u64,
    /// The time for which a closed connection waits for its peer.
    pub linger_ns: u64,
    /// The first pause between two checks of a closed connection, and the longest: each pause is twice the one before.
    pub linger_pause_ns: (u64, u64),
}

impl SessionConfig {
    /// Returns the configuration of a process with this HELLO, with times that suit real networks.
    pub fn new(hello: Hello, prover: Option<Arc<dyn Prover>>, handshake_ns: u64, peer_timeout_ns: u64) -> Self {
        Self {
            hello,
            prover,
            handshake_ns,
            peer_timeout_ns,
            first_connection: 1,
            idle_ns: 1_000_000_000,
            accepted_idle_ns: 60_000_000_000,
            grace_ns: 1_000_000_000,
            linger_ns: 3_000_000_000,
            linger_pause_ns: (200_000, 10_000_000),
        }
    }
}
