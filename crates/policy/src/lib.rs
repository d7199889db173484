//! The bytes of a message that each rail gets.
//!
//! [`Split`] turns weights into shares: it decides for each message how many bytes every rail carries, so that in the
//! long run the bytes follow the weights, whatever the sizes of the messages. [`Shares`] is its result for one message.
//! Both are pure: no clock, no allocation, no floating point.
//!
//! This crate does not decide the weights (the user or the rails' speeds do), and it moves no bytes (the transport
//! does, exactly as told).

#![forbid(unsafe_code)]

mod shares;
mod split;

pub use shares::{Piece, Pieces, Shares};
pub use split::Split;

/// The size of every piece is a multiple of this many bytes, except that of the last piece of the message: NCCL's LL128
/// protocol needs aligned pieces of 128 bytes that arrive whole.
pub const GRANULE: u64 = 128;
