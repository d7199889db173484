//! The fabric's own name, which its parts give as theirs.

/// The TCP fabric.
#[derive(Clone, Copy, Debug)]
pub struct Tcp;
