//! The answer for one message: which rails carry it, and how much each.

use crate::MAX_RAILS;

/// How one message is shared between the rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// The bytes of each rail; their sum is the message. The rails' pieces follow each other in the message in index order.
    pub bytes: [u64; MAX_RAILS],
    /// The active rails, bit 0 for rail 0: those with bytes, or for a message of 0 bytes the one rail that says so. 0 only
    /// when no rail was usable.
    pub mask: u8,
}

/// One rail's part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The rail that carries it.
    pub rail: usize,
    /// Where it begins, in bytes from the start of the message: a multiple of 128.
    pub offset: u64,
    /// Its length in bytes; 0 only for a message of 0 bytes.
    pub bytes: u64,
}

impl Shares {
    /// The whole message on one rail.
    #[inline]
    pub(crate) fn whole(bytes: u64, rail: usize) -> Shares {
        let mut shares = Shares { bytes: [0; MAX_RAILS], mask: 1 << rail };
        shares.bytes[rail] = bytes;
        shares
    }

    /// The pieces of the active rails, in index order.
    #[inline]
    pub fn pieces(&self) -> Pieces {
        Pieces { shares: *self, offset: 0 }
    }

    /// The first active rail, which carries the completion record when one is needed; `None` when no rail was usable.
    #[inline]
    pub fn leader(&self) -> Option<usize> {
        (self.mask != 0).then(|| self.mask.trailing_zeros() as usize)
    }
}

/// The pieces of one message, from [`Shares::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces {
    /// What is left: the mask loses a rail with each piece.
    shares: Shares,
    offset: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let rail = self.shares.leader()?;
        self.shares.mask &= self.shares.mask - 1;
        let piece = Piece { rail, offset: self.offset, bytes: self.shares.bytes[rail] };
        self.offset += piece.bytes;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other() {
        let shares = Shares { bytes: [0, 256, 0, 100, 0, 0, 0, 0], mask: 0b1010 };
        let pieces: Vec<Piece> = shares.pieces().collect();
        assert_eq!(pieces, [Piece { rail: 1, offset: 0, bytes: 256 }, Piece { rail: 3, offset: 256, bytes: 100 }]);
        assert_eq!(shares.leader(), Some(1));
    }

    #[test]
    fn an_empty_message_has_one_empty_piece() {
        let pieces: Vec<Piece> = Shares::whole(0, 2).pieces().collect();
        assert_eq!(pieces, [Piece { rail: 2, offset: 0, bytes: 0 }]);
        assert_eq!(Shares::default().pieces().count(), 0);
        assert_eq!(Shares::default().leader(), None);
    }
}
