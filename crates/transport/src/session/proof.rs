//! The proof that the other end of a session has the job's key, which comes between HELLO and everything else.
//!
//! The opener proves first, and the acceptor only to an opener that has proved it: both know what a proof is made of,
//! so a proof given away would let a stranger try keys at leisure.

use std::fmt;

use super::Side;

/// What an acceptor sends instead of its proof when the opener's was wrong, so that the opener can name the reason,
/// too.
pub(super) const NO_PROOF: [u8; 32] = [0; 32];

/// Proves that this process has the job's key, and knows the proofs of others that have it.
pub trait Prover: Send + Sync {
    /// The proof of the end at `side` of a session, made of both HELLOs as they were sent.
    fn proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32];

    /// Tells whether this is the proof of the end at `side`. Takes the same time whatever is wrong with it.
    fn is_proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool;
}

impl fmt::Debug for dyn Prover {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Prover(..)") // a secret: it must not reach a log
    }
}

/// Both HELLOs of a session, as they were sent, while a proof is awaited.
#[derive(Debug)]
pub(super) struct Hellos {
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

impl Hellos {
    pub(super) fn new(ours: Vec<u8>, theirs: Vec<u8>) -> Self {
        Self { ours, theirs }
    }

    /// The opener's and the acceptor's, seen from the end at `side`.
    fn in_order(&self, side: Side) -> (&[u8], &[u8]) {
        match side {
            Side::Opener => (&self.ours, &self.theirs),
            Side::Acceptor => (&self.theirs, &self.ours),
        }
    }

    /// The proof of this end, which is at `side`.
    pub(super) fn ours(&self, prover: &dyn Prover, side: Side) -> [u8; 32] {
        let (opener, acceptor) = self.in_order(side);
        prover.proof(side, opener, acceptor)
    }

    /// Tells whether `proof` is that of the peer of this end, which is at `side`.
    pub(super) fn is_theirs(&self, prover: &dyn Prover, side: Side, proof: &[u8; 32]) -> bool {
        let (opener, acceptor) = self.in_order(side);
        prover.is_proof(side.other(), opener, acceptor, proof)
    }
}
