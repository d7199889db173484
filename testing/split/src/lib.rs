//! Judges how the protocol splits messages, in simulated worlds whose rails have rates that are known
//! (docs/simulation.md).

#![forbid(unsafe_code)]

mod draw;
mod flow;
mod host;
mod judge;
mod stage;
mod table;
mod traffic;

pub use draw::{Class, Drawn, Flight, Jump, QUANTUM};
pub use flow::{After, Load, Message};
pub use judge::{Verdict, WINDOW, band, judge, judge_and_keep, rate};
pub use stage::{Split, Stage};
pub use table::{LEAST, LEAST_ALONE, LEAST_OF_99, MOST, Table};
