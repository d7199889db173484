//! The suite's source of rails.

use std::sync::Arc;

use crate::{Fabric, RailSpec};

/// A source of connected rails: a fabric's tests implement it for the suite.
pub trait Harness {
    /// The fabric.
    type Fabric: Fabric;

    /// Makes two domains, and a connected rail with one end in each.
    fn pair(&mut self, near: &RailSpec, far: &RailSpec) -> Pair<Self::Fabric>;

    /// Runs between polls: a simulated world advances its clock here.
    fn settle(&mut self) {}

    /// Returns the number of polls of both ends after which a case gives up waiting.
    fn patience(&self) -> u32 {
        3_000_000
    }

    /// Returns the number of polls of both ends after which everything that can happen has happened.
    fn quiet(&self) -> u32 {
        300
    }
}

/// One end of a rail.
pub struct End<F: Fabric> {
    /// The domain of its memory.
    pub domain: Arc<F::Domain>,
    /// The rail.
    pub rail: F::Rail,
}

/// Both ends of a rail.
pub struct Pair<F: Fabric> {
    /// The end with the first specification.
    pub near: End<F>,
    /// The other end.
    pub far: End<F>,
}
