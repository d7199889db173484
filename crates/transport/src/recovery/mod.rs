//! The recovery of rails: a connection goes on without a rail that fails, agrees with the peer on what had come, sends
//! the rest again, and brings the rail up again.
//!
//! Only the receiver of the data says what was placed, and only its sender decides how to send again. A rail that is
//! given up is fenced at both ends before that: its lanes end ([`railweave_fabric::Rail::end`]), so that nothing of
//! this incarnation can land later. docs/wire.md has the messages, docs/recovery-model.md the proof.
//!
//! The ends do no I/O: they return [`RecoveryAction`]s. Their caller sends messages, and does work that may block on
//! another thread.

mod fence;
mod given_up;
mod new_lanes;
mod outage;
mod pauses;
mod silence;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::time::Duration;

use railweave_fabric::{Part, RailId};

pub(crate) use self::fence::{Fence, Fenced};
pub use self::given_up::GivenUp;
pub(crate) use self::new_lanes::{Attempt, FirstPacket, Made, NewLanes, Remake, Unmade, port_of};
pub(crate) use self::outage::Outage;
pub(crate) use self::pauses::{Pauses, flap_time};
pub use self::silence::{Hearing, Hush};
pub(crate) use self::silence::{Oldest, Silences};
use crate::{Dial, Event, LaneRefused, Message, RailNews, Token};

/// A task that the recovery of a connection hands to its caller.
pub enum RecoveryAction {
    /// Send this to the peer, over the session.
    Send(Message),
    /// Do this work, on a thread that may block if the fabric may, and hand it to
    /// [`Recovers::handle_worked`].
    Work(Box<dyn RailWork>),
    /// Dial this lane, and hand the socket, or the reason why there is none, to
    /// [`Recovers::handle_lane_dialled`].
    Dial(Dial),
    /// The peer will dial the lanes of a rail with this token until the next such action, or the end of the connection:
    /// hand its sockets to [`Recovers::handle_lane`].
    Await(Token),
    /// Drop these lanes, which are of no use any more, on a thread that may block if the fabric may.
    Free(Box<dyn Send>),
    /// Something happened that is worth a line in a log.
    Event(Event),
}

/// Work on the lanes of a rail, which may block.
pub trait RailWork: Send {
    /// Does the work, or continues it, at this time of the caller's clock in nanoseconds. Returns the time to wait
    /// before it is called again, `None` once the work is done.
    fn run(&mut self, now_ns: u64) -> Option<Duration>;

    /// Returns true if it may block.
    fn may_block(&self) -> bool;

    /// Returns true if it may wait for other work. A fence may not: until it is done, the messages that its rail has
    /// lost are not sent again.
    fn may_wait(&self) -> bool;

    /// Returns true if its next step asks the kernel for the peer's port, which holds a thread for about a second if
    /// nobody answers there.
    fn seeks_peer(&self) -> bool;

    /// Returns the rail that it is for.
    fn rail(&self) -> RailId;

    /// Returns itself, for the end that it came from.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// The recovery of one end of a connection.
///
/// One thread at a time may use it, and no other call may be in progress on the end meanwhile.
pub trait Recovers {
    /// Does what the recovery of its rails has due, at this time in nanoseconds of the caller's clock. Called when
    /// [`crate::Fate::on_recovery`] says so, and at [`Self::recovery_timeout_ns`]. After this and the next five
    /// methods: [`Self::poll_recovery`] until it returns `None`.
    fn recover(&mut self, now_ns: u64);

    /// Handles a step of the peer in the recovery of a rail. A breach of the protocol breaks the connection.
    fn handle_rail_news(&mut self, news: RailNews, now_ns: u64);

    /// Handles work of [`RecoveryAction::Work`] that is done.
    fn handle_worked(&mut self, work: Box<dyn RailWork>, now_ns: u64);

    /// Handles the socket of a lane that was dialled for [`RecoveryAction::Dial`], or the reason why there is none.
    fn handle_lane_dialled(&mut self, dial: &Dial, socket: Result<OwnedFd, String>, now_ns: u64);

    /// Takes the socket of a lane that the peer dialled for a rail that comes up again; both numbers are as the peer
    /// sent them.
    ///
    /// # Errors
    /// If no such lane waits for a socket, or this one is unusable; it is closed.
    fn handle_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), LaneRefused>;

    /// Gives up the rails that use a part of this host that has failed, with this message; forever if the part is a
    /// device. Returns true if one of them was usable.
    fn handle_part_failed(&mut self, part: &Part, message: &str) -> bool;

    /// Checks that a lane of a rail that comes up again waits for a socket.
    ///
    /// # Errors
    /// If it does not.
    fn awaits_lane(&mut self, rail: u8, lane: u8) -> Result<(), LaneRefused>;

    /// Has rails that are down opened again soon: something says that their path may be back.
    fn hurry_recovery(&mut self, now_ns: u64);

    /// Looks for rails on which work is on its way that nothing answers, although the peer is alive, and gives them up
    /// once their time is over ([`crate::ConnectionConfig::rail_timeout`]). Called a few times in that time, until it
    /// says that nothing is on its way, and again once something was posted.
    fn look_for_silence(&mut self, hearing: Hearing) -> Hush;

    /// Returns when [`Self::recover`] must be called, in nanoseconds of the caller's clock; 0 for soon.
    fn recovery_timeout_ns(&self) -> Option<u64>;

    /// Returns the next task of the recovery.
    fn poll_recovery(&mut self) -> Option<RecoveryAction>;
}
