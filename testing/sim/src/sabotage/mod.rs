//! Sabotage makes bugs at the edge of the protocol, where they show, to prove that the checkers find them
//! (docs/simulation.md). Everything posted, sent and reported may be changed on its way; the protocol is as it ships.

mod control;
mod kind;
mod plot;
mod reports;
mod saboteur;
mod writes;

pub use kind::{Rule, Sabotage};
pub(crate) use plot::Plot;
pub(crate) use saboteur::{Saboteur, SaboteurDomain};
