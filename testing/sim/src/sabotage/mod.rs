//! Sabotage: bugs that show at the edge of the protocol, made there, so that the simulation can show that its checkers
//! find them (docs/simulation.md). What is posted, sent and reported is changed on its way; the protocol is as it
//! ships.

mod control;
mod kind;
mod plot;
mod reports;
mod saboteur;
mod writes;

pub use kind::Sabotage;
pub(crate) use plot::Plot;
pub(crate) use saboteur::{Saboteur, SaboteurDomain};
