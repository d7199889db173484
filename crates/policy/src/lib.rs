//! The bytes of a message that each rail gets.
//!
//! A [`Policy`] decides for each message how many bytes every rail carries; [`Shares`] is the result. There are four,
//! and [`Splitter`] is the one in force:
//!
//! | policy | the bytes follow |
//! |---|---|
//! | `adaptive` | the rates at which the rails carry what they are given ([`Adaptive`]); the default |
//! | `static` | the user's weights ([`Weighted`]) |
//! | `speed` | the speeds that the ports report ([`Weighted`]) |
//! | `agent` | the weights in a file that a program outside the job writes ([`Weighted`]) |
//!
//! `adaptive` is the default because reported speeds are often wrong where it matters: two ports of one adapter share a
//! PCIe slot, a plane is congested, a cable has fallen back to half its rate. Measured rates include all of this.
//!
//! Everything is pure: no clock (the caller passes the time), no allocation, no floating point. This crate moves no
//! bytes; the transport does, exactly as told.

#![forbid(unsafe_code)]

mod adaptive;
mod policy;
mod shares;
mod splitter;
mod weighted;

pub use adaptive::{Adaptive, MEASURED_FROM};
pub use policy::{Policy, Sent};
pub use shares::{Piece, Pieces, Shares};
pub use splitter::{Order, Splitter};
pub use weighted::Weighted;

/// The size of every piece is a multiple of this many bytes, except that of the last piece of the message: NCCL's LL128
/// protocol needs aligned pieces of 128 bytes that arrive whole.
pub const GRANULE: u64 = 128;
