//! How much of a message each rail gets.
//!
//! [`Split`] turns weights into shares: for each message it says how many bytes every rail carries, so that in the long
//! run the bytes follow the weights whatever the sizes of the messages are. [`Shares`] is its answer for one message.
//! Both are pure: no clock, no allocation, no floating point.
//!
//! What this crate is not: it does not decide the weights (the user, the rails' speeds or the agent do), and it moves
//! no bytes (the transport does, exactly as told).

#![forbid(unsafe_code)]

mod shares;
mod split;

pub use shares::{Piece, Pieces, Shares};
pub use split::Split;

/// What every piece is a multiple of, in bytes, except the one that ends the message: NCCL's LL128 protocol relies on
/// pieces of 128 bytes that arrive whole.
pub const GRANULE: u64 = 128;
