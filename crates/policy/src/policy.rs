//! The trait of all policies.

use railweave_fabric::{RailId, RailSet};

use crate::Shares;

/// A policy: it decides for each message of a connection which rails carry how many of its bytes.
///
/// All times are ticks of the fabric's clock. A message is either asked for with [`Self::whole`], and counted with
/// [`Self::count_whole`] once it is sent, or split with [`Self::split`].
pub trait Policy {
    /// Returns the rail of a message of `bytes` bytes that travels whole, as most do, and of which the policy wants to
    /// know no more. `None`: call [`Self::split`].
    fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId>;

    /// Counts a message of `bytes` bytes that was sent over the rail from [`Self::whole`].
    fn count_whole(&mut self, bytes: u64);

    /// Splits a message of `bytes` bytes between the rails in `usable`, at `now`, and writes the result into `shares`,
    /// which must be empty ([`Shares::default`]).
    ///
    /// The size of every piece is a multiple of 128 bytes, except that of the last active rail, which ends the message.
    /// A message of 0 bytes activates one rail. The mask is empty only if `usable` is.
    fn split(&mut self, now: u64, bytes: u64, usable: RailSet, shares: &mut Shares);

    /// Notes at `now` that a piece of a message from [`Self::split`] is posted on a rail. Returns the bytes that are in
    /// flight there, as far as the policy knows.
    fn posted(&mut self, now: u64, rail: RailId, bytes: u64) -> u64;

    /// Notes at `now` that a rail has completed what a message of [`Self::split`] gave it. Returns the bytes that are
    /// still in flight there, as far as the policy knows.
    fn sent(&mut self, now: u64, rail: RailId, sent: &Sent) -> u64;
}

/// The pieces of a slot that one rail has completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// The time at which they were posted.
    pub posted: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of pieces, one for each message of the slot.
    pub pieces: u32,
    /// True if they belong to a message that was long enough to be split.
    pub is_split: bool,
}
