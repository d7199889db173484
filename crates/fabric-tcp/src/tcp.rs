//! The fabric's type, in a module of its own because the other modules name it.

/// The TCP fabric.
#[derive(Clone, Copy, Debug)]
pub struct Tcp;
