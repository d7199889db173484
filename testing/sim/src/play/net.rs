//! The fabric that games are played on.

use crate::sabotage::Saboteur;
use crate::witness::Sim;

/// The simulated fabric, in the hands of a saboteur, who does nothing unless a sabotage is tried.
pub(super) type Net<const ONE_SIDED: bool> = Saboteur<Sim<ONE_SIDED>>;
