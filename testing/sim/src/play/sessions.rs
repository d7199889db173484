//! The sessions of all processes: their ends, and the sockets between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use railweave_transport::progress::OfferWait;
use railweave_transport::{
    Hello, Offer, PROTOCOL_VERSION, ProcessId, Prover, Session, SessionConfig, Side as SessionSide,
};

use crate::faults::Faults;
use crate::sabotage::{Plot, Sabotage};

/// The time for which a session without connections is kept, by the opener's end and by the acceptor's.
const IDLE_NS: u64 = 400_000;
const ACCEPTED_IDLE_NS: u64 = 30_000_000;

/// The time that HELLO and PROOF may take, over all addresses.
const HANDSHAKE_NS: u64 = 30_000_000;

/// The time for which a closed end waits for its peer, and the pause between two of its polls.
pub(super) const LINGER_LIMIT_NS: u64 = 4_000_000;
const LINGER_STEP_NS: u64 = 20_000;

/// The time for which an address is dialled for a session that has lost its socket, in short, and with patience. Both
/// are longer than a slow socket takes: a peer's time is not many times that here.
const REDIAL_NS: (u64, u64) = (4_000_000, 4_000_000);

/// The pauses between rounds of such dials, and between looks for an opener.
const PAUSES_NS: (u64, u64) = (50_000, 2_000_000);

/// One end of a session.
pub(super) struct SessionEnd {
    pub(super) process: usize,
    pub(super) protocol: Session,
    /// Its socket, if it has one.
    pub(super) socket: Option<usize>,
    /// The process that it was opened to; `None` at the acceptor's end.
    pub(super) wanted: Option<usize>,
    /// Connections that wait for it to come up.
    pub(super) waiting: Vec<usize>,
    /// Its connections, by their numbers.
    pub(super) connections: BTreeMap<u32, usize>,
    /// The offers that wait for their places, by their connections' numbers.
    pub(super) offers: BTreeMap<u32, (Offer, OfferWait)>,
    /// The time at which its timer expires.
    pub(super) timer_ns: Option<u64>,
    /// True while its actions are carried out.
    pub(super) is_driven: bool,
    /// The addresses that it has dialled.
    pub(super) dialled: Vec<SocketAddr>,
    /// True once one of its dials has failed.
    pub(super) has_failed_dial: bool,
}

/// A socket between two ends of a session: the opener's and the acceptor's.
pub(super) struct Socket {
    pub(super) ends: [Option<usize>; 2],
    /// The time at which the last frame arrives, at each end.
    pub(super) last_ns: [u64; 2],
    /// True once something has arrived, at each end.
    pub(super) has_spoken: [bool; 2],
    /// True once it has stopped carrying anything.
    pub(super) is_dead: bool,
}

/// The sessions of all processes.
#[derive(Default)]
pub(super) struct Sessions {
    /// The key of each process, 0 for none.
    keys: Vec<u8>,
    pub(super) configs: Vec<Arc<SessionConfig>>,
    pub(super) ends: Vec<SessionEnd>,
    pub(super) sockets: Vec<Socket>,
    /// The opener's end of the session from one process to another, as long as new connections may use it.
    pub(super) current: BTreeMap<(usize, usize), usize>,
    /// The times until which no socket comes up between two processes, the lower one first.
    pub(super) away_until_ns: BTreeMap<(usize, usize), u64>,
    nonces: u64,
}

/// A prover whose proofs are not secret. They tell keys and roles apart, which is all that the simulation needs.
struct Sum {
    key: u8,
    takes_any: bool,
}

impl Prover for Sum {
    fn proof(&self, side: SessionSide, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32] {
        let sum = |bytes: &[u8]| bytes.iter().fold(7u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
        let mut proof = [self.key; 32];
        proof[0] = 1 + u8::from(side == SessionSide::Opener);
        proof[1] = sum(opener_hello);
        proof[2] = sum(acceptor_hello);
        proof
    }

    fn is_proof(&self, side: SessionSide, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool {
        self.takes_any || self.proof(side, opener_hello, acceptor_hello) == *proof
    }
}

impl Sessions {
    /// Prepares the sessions of processes with these keys, 0 for none.
    pub(super) fn new(keys: &[u8], faults: &Faults, plot: &Plot) -> Self {
        let config = |(process, key): (usize, &u8)| {
            let hello = Hello {
                protocol_min: PROTOCOL_VERSION,
                protocol_max: PROTOCOL_VERSION,
                features: if *key == 0 { 0 } else { Hello::KEYED },
                mode: 1,
                fabrics: 2,
                network: process as u64,
                process: ProcessId([process as u8 + 1; 16]),
                wanted: ProcessId::default(),
                nonce: [0; 32],
                pid: process as u32,
                rank: process as i32,
                world: keys.len() as i32,
                host: format!("node{process}"),
                build: "sim".to_owned(),
                control_port: 7,
            };
            let sum = Sum { key: *key, takes_any: plot.is(Sabotage::KeyIgnored) };
            let prover = (*key != 0).then(|| Arc::new(sum) as Arc<dyn Prover>);
            let mut config = SessionConfig::new(hello, prover, HANDSHAKE_NS, faults.peer_timeouts_ns[process % 2]);
            (config.idle_ns, config.accepted_idle_ns) = (IDLE_NS, ACCEPTED_IDLE_NS);
            config.first_connection = faults.first_connection;
            config.grace_ns = plot.grace_ns(faults.grace_ns);
            (config.linger_ns, config.linger_pause_ns) = (LINGER_LIMIT_NS, (LINGER_STEP_NS, LINGER_STEP_NS));
            (config.proof_ns, config.redial_ns) = (faults.proof_ns(), REDIAL_NS);
            (config.redial_pause_ns, config.check_pause_ns) = (PAUSES_NS, PAUSES_NS);
            Arc::new(config)
        };
        Self { keys: keys.to_vec(), configs: keys.iter().enumerate().map(config).collect(), ..Self::default() }
    }

    /// Adds an end of a session; returns its number.
    pub(super) fn add(
        &mut self,
        process: usize,
        protocol: Session,
        socket: Option<usize>,
        wanted: Option<usize>,
    ) -> usize {
        self.ends.push(SessionEnd {
            process,
            protocol,
            socket,
            wanted,
            waiting: Vec::new(),
            connections: BTreeMap::new(),
            offers: BTreeMap::new(),
            timer_ns: None,
            is_driven: false,
            dialled: Vec::new(),
            has_failed_dial: false,
        });
        self.ends.len() - 1
    }

    /// Returns true if the socket of a session's end has stopped carrying anything.
    pub(super) fn is_dead(&self, end: usize) -> bool {
        self.ends[end].socket.is_some_and(|socket| self.sockets[socket].is_dead)
    }

    /// Returns the connections that are on a socket, or wait for its session.
    pub(super) fn served(&self, socket: usize) -> Vec<usize> {
        let ends = self.sockets[socket].ends.iter().flatten().map(|end| &self.ends[*end]);
        let owners = ends.filter(|end| end.socket == Some(socket));
        owners.flat_map(|end| end.waiting.iter().chain(end.connections.values())).copied().collect()
    }

    /// Returns true if no socket comes up between two processes at this time.
    pub(super) fn is_away(&self, one: usize, other: usize, now_ns: u64) -> bool {
        self.away_until_ns.get(&(one.min(other), one.max(other))).is_some_and(|until_ns| now_ns < *until_ns)
    }

    /// Returns true if two processes have different keys, or one alone has a key.
    pub(super) fn keys_differ(&self, one: usize, other: usize) -> bool {
        self.keys[one] != self.keys[other]
    }

    /// Returns true if this socket carries a session that one process has opened to another.
    pub(super) fn is_open(&self, socket: usize, from: usize, to: usize) -> bool {
        let Socket { ends, is_dead, .. } = &self.sockets[socket];
        let opener = ends[0].map(|end| &self.ends[end]);
        !is_dead
            && opener.is_some_and(|end| (end.process, end.wanted) == (from, Some(to)))
            && ends.iter().flatten().all(|end| self.ends[*end].socket == Some(socket))
    }

    /// Returns the next nonce.
    pub(super) fn nonce(&mut self) -> [u8; 32] {
        self.nonces += 1;
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&self.nonces.to_le_bytes());
        nonce
    }
}
