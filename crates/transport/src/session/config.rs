//! The configuration of sessions.

use std::net::IpAddr;
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
    /// The time for which a peer may be silent. It is asked after an eighth of it, and another socket is looked for if
    /// it does not answer within a quarter. After half of it open connections are asked if their rails carry anything.
    pub peer_timeout_ns: u64,
    /// The time for which the rails of a connection must carry nothing before a sign that the peer's process has ended
    /// counts.
    pub proof_ns: u64,
    /// The time for which an address is dialled when the session has lost its socket: in short, and with patience. The
    /// first is longer than a round trip between any two hosts that train together; the second leaves time for the
    /// kernel to repeat a packet that was lost, after a second.
    pub redial_ns: (u64, u64),
    /// The first pause between two rounds of such dials, and the longest: each pause is twice the one before.
    pub redial_pause_ns: (u64, u64),
    /// The first pause between two looks of an acceptor for the opener of a session that has lost its socket, and the
    /// longest: each pause is twice the one before.
    pub check_pause_ns: (u64, u64),
    /// The addresses of this host from which such a session may be dialled.
    pub own: Vec<IpAddr>,
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
            proof_ns: 1_000_000_000,
            redial_ns: (300_000_000, 1_500_000_000),
            redial_pause_ns: (100_000_000, 1_000_000_000),
            check_pause_ns: (200_000_000, 5_000_000_000),
            own: Vec::new(),
            first_connection: 1,
            idle_ns: 1_000_000_000,
            accepted_idle_ns: 60_000_000_000,
            grace_ns: 1_000_000_000,
            linger_ns: 3_000_000_000,
            linger_pause_ns: (200_000, 10_000_000),
        }
    }
}
