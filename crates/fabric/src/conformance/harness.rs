//! How the suite gets the rails of a fabric.

use std::sync::Arc;

use crate::{Fabric, RailSpec};

/// How the suite gets rails of a fabric.
pub trait Harness {
    /// The fabric.
    type Fabric: Fabric;

    /// Two new domains, and in each an end of a new rail, connected.
    fn pair(&mut self, near: &RailSpec, far: &RailSpec) -> Pair<Self::Fabric>;

    /// Called between polls: a simulated world advances its clock here.
    fn settle(&mut self) {}

    /// After how many polls of both ends a case that waits for something gives up.
    fn patience(&self) -> u32 {
        3_000_000
    }

    /// After how many polls of both ends everything that could happen has happened.
    fn quiet(&self) -> u32 {
        300
    }
}

/// One end of a rail.
pub struct End<F: Fabric> {
    /// Where its memory is registered.
    pub domain: Arc<F::Domain>,
    /// The rail.
    pub rail: F::Rail,
}

/// Both ends of a rail.
pub struct Pair<F: Fabric> {
    /// The end whose specification was given first.
    pub near: End<F>,
    /// The other.
    pub far: End<F>,
}
