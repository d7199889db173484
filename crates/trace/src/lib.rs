//! The trace files of a job's processes: what happened when, as each process noted it.
//!
//! A process that is traced writes files of its own into one folder. Each is a line with the format's name, then
//! frames ([`Frame`]): the facts by which numbers get names, what happened now and then, and the [`Record`]s of its
//! threads, which are what happened often. Nothing here draws or sums up; the crate `railweave-timeline` does.
//!
//! Times are nanoseconds of the host's monotonic clock (CLOCK_MONOTONIC of clock_gettime(2)), which all processes of a
//! host share. [`Frame::PeerClock`] tells how the clocks of two hosts differ.

mod bound;
mod file;
mod frame;
mod record;
mod write;

pub use bound::MOST_SAMPLED;
pub use file::{ReadError, TraceFile};
pub use frame::{
    Communicator, Connection, Ended, Frame, Happened, Name, PeerClock, Process, Rail, RailSample, Records, Sample,
    Setup, Thread,
};
pub use record::{Coll, Kind, Op, P2p, RECORD_BYTES, Record, What, Words};
pub use write::{EarlierFiles, Writer, Written, is_trace};
