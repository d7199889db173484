//! The result for one message: the rails that carry it, and the bytes of each.

use railweave_fabric::{MAX_RAILS, RailId, RailSet, RailSetIter};

/// The shares of the rails in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// The bytes of each rail; their sum is the message's size. In the message, the rails' pieces follow each other in
    /// index order.
    pub bytes: [u64; MAX_RAILS],
    /// The active rails: those with bytes, or for a message of 0 bytes the one rail that carries its immediate. Empty
    /// only if no rail was usable.
    pub mask: RailSet,
}

/// One rail's part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The rail that carries it.
    pub rail: RailId,
    /// Its offset in the message in bytes: a multiple of 128.
    pub offset: u64,
    /// Its length in bytes; 0 only for a message of 0 bytes.
    pub bytes: u64,
}

impl Shares {
    /// Returns the shares of a message that one rail carries whole.
    #[inline]
    pub(crate) fn whole(bytes: u64, rail: RailId) -> Shares {
        let mut shares = Shares { bytes: [0; MAX_RAILS], mask: RailSet::only(rail) };
        shares.bytes[rail] = bytes;
        shares
    }

    /// Returns the pieces of the active rails, in index order.
    #[inline]
    pub fn pieces(&self) -> Pieces {
        Pieces { bytes: self.bytes, rails: self.mask.iter(), offset: 0 }
    }
}

/// The pieces of one message, from [`Shares::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces {
    bytes: [u64; MAX_RAILS],
    /// The rails whose pieces were not returned yet.
    rails: RailSetIter,
    /// The offset of the next piece.
    offset: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let rail = self.rails.next()?;
        let piece = Piece { rail, offset: self.offset, bytes: self.bytes[rail] };
        self.offset += piece.bytes;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(number: usize) -> RailId {
        RailId::new(number).expect("a rail's number")
    }

    #[test]
    fn pieces_follow_each_other() {
        let shares = Shares { bytes: [0, 256, 0, 100, 0, 0, 0, 0], mask: RailSet::from_bits(0b1010) };
        let pieces: Vec<Piece> = shares.pieces().collect();
        assert_eq!(
            pieces,
            [Piece { rail: rail(1), offset: 0, bytes: 256 }, Piece { rail: rail(3), offset: 256, bytes: 100 }]
        );
    }

    #[test]
    fn an_empty_message_has_one_empty_piece() {
        let pieces: Vec<Piece> = Shares::whole(0, rail(2)).pieces().collect();
        assert_eq!(pieces, [Piece { rail: rail(2), offset: 0, bytes: 0 }]);
        assert_eq!(Shares::default().pieces().count(), 0);
    }
}
