//! A model of the agreement of two ends after a rail has failed: the fence of both ends, the answer, repairs, CTS that
//! are written again, new incarnations, and closes. A search plays it in every order of steps (docs/recovery-model.md).
//!
//! The protocol does not have this recovery yet. The model shows that its rules hold, and that each of them is needed.

#![forbid(unsafe_code)]

mod answer;
pub mod config;
pub mod configurations;
mod cts;
pub mod mutation;
mod network;
pub mod property;
mod receiver;
pub mod recovery;
mod reduce;
pub mod refutations;
pub mod search;
mod sender;
mod session;
pub mod set;
mod slots;
pub mod state;
pub mod step;
mod turn;
