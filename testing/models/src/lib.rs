//! Models of the state that threads share without a lock, in every order that the memory model allows
//! (docs/fuzzing.md).
//!
//! The files that ship are compiled here with loom's types in place of the standard library's; `tests/models.rs` runs
//! the models. A model that tries only some of the orders says so.

#[path = "../../../crates/transport/src/debt.rs"]
#[allow(dead_code, unreachable_pub)] // the models use only some of its functions, which its crate exports
mod debt;
#[path = "../../../crates/fabric-tcp/src/entry.rs"]
mod entry;
#[path = "../../../crates/plugin/src/forks.rs"]
#[allow(dead_code)] // as above
mod forks;
#[path = "../../../crates/plugin/src/comm/owing.rs"]
mod owing;
#[path = "../../../crates/plugin/src/per_process.rs"]
mod per_process;
#[path = "../../../crates/plugin/src/shares.rs"]
mod shares;
#[path = "../../../crates/transport/src/steering.rs"]
#[allow(dead_code, unreachable_pub)] // as above
mod steering;
#[path = "../../../crates/transport/src/turn.rs"]
#[allow(dead_code, unreachable_pub)] // as above
mod turn;

pub mod connections;
pub mod orders;
pub mod process;
pub mod registrations;
mod sync;
pub mod turns;
