//! The heads of scripts for the data path, and the sizes in them.

/// Returns the head of a script: see `Plan::read`.
pub(super) fn plan(flags: u8, rails: u8, lanes: u8) -> Vec<u8> {
    vec![flags, rails - 1, lanes - 1, 0, 0, 0]
}

pub(super) const ONE_SIDED: u8 = 1;
pub(super) const STRIPED: u8 = 2;
pub(super) const ADAPTIVE: u8 = 4;
pub(super) const NO_COUNTS: u8 = 8;

/// Returns the byte for a size of `count` KiB, 1 to 72: see `peer::size`.
pub(super) fn kib(count: u8) -> u8 {
    127 + count
}
