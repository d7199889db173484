//! The proof that the other end of a session has the job's key, which comes between HELLO and everything else.
//!
//! The opener proves first, and the acceptor proves only to an opener that has done so. Everything in a proof except
//! the key is public, so a stranger who got one could try keys against it at leisure.

use std::fmt;

use super::Side;

/// The answer of an acceptor to a wrong proof, instead of its own, so that the opener can name the reason too.
pub(super) const NO_PROOF: [u8; 32] = [0; 32];

/// The means to prove that this process has the job's key, and to check the proofs of others.
pub trait Prover: Send + Sync {
    /// Returns the proof of the end at `side` of a session, made from both HELLOs as they were sent.
    fn proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32];

    /// Returns true if this is the proof of the end at `side`. Takes the same time whatever is wrong with it.
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

    /// Returns the opener's and the acceptor's HELLO, for the end at `side`.
    fn in_order(&self, side: Side) -> (&[u8], &[u8]) {
        match side {
            Side::Opener => (&self.ours, &self.theirs),
            Side::Acceptor => (&self.theirs, &self.ours),
        }
    }

    /// Returns the proof of this end, which is at `side`.
    pub(super) fn ours(&self, prover: &dyn Prover, side: Side) -> [u8; 32] {
        let (opener, acceptor) = self.in_order(side);
        prover.proof(side, opener, acceptor)
    }

    /// Returns true if `proof` is the peer's. This end is at `side`.
    pub(super) fn is_theirs(&self, prover: &dyn Prover, side: Side, proof: &[u8; 32]) -> bool {
        let (opener, acceptor) = self.in_order(side);
        prover.is_proof(side.other(), opener, acceptor, proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proof that shows what it was made from.
    struct Shown;

    impl Shown {
        fn of(side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32] {
            let mut proof = [u8::from(side == Side::Opener); 32];
            proof[1..][..4].copy_from_slice(opener_hello);
            proof[5..][..4].copy_from_slice(acceptor_hello);
            proof
        }
    }

    impl Prover for Shown {
        fn proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32] {
            Self::of(side, opener_hello, acceptor_hello)
        }

        fn is_proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool {
            Self::of(side, opener_hello, acceptor_hello) == *proof
        }
    }

    #[test]
    fn both_ends_prove_over_the_same_hellos_and_each_in_its_own_role() {
        let hellos = || Hellos::new(b"ours".to_vec(), b"them".to_vec());
        for (side, peer, opener, acceptor) in
            [(Side::Opener, Side::Acceptor, b"ours", b"them"), (Side::Acceptor, Side::Opener, b"them", b"ours")]
        {
            let (ours, theirs) = (Shown::of(side, opener, acceptor), Shown::of(peer, opener, acceptor));
            assert_eq!(hellos().ours(&Shown, side), ours);
            assert!(hellos().is_theirs(&Shown, side, &theirs));
            assert!(!hellos().is_theirs(&Shown, side, &ours), "its own proof may come back to it");
        }
    }

    #[test]
    fn a_prover_is_not_shown_in_messages() {
        let prover: &dyn Prover = &Shown;
        assert_eq!(format!("{prover:?}"), "Prover(..)");
    }
}
