//! Joins the trace files of a job's processes to one timeline, draws it for viewers, and sums it up.
//!
//! [`Rank::read`] reads the files of one process, and [`Timeline::join`] puts the ranks of a run on one clock.
//! [`write_perfetto`] and [`write_chrome`] draw it, and [`Summary::of`] sums it up. Nothing here opens a file. Files
//! may be damaged or hostile: whatever is in them, nothing here panics, and the memory is within a small multiple of
//! their bytes.
#![forbid(unsafe_code)]

mod chrome;
mod clock;
mod draw;
mod perfetto;
mod proto;
mod rank;
mod read;
mod runs;
mod summary;
mod timeline;

pub use chrome::write_chrome;
pub use perfetto::write_perfetto;
pub use rank::{Asked, Connection, Event, Facts, Missing, Piece, Rail, Rank, Request};
pub use summary::{
    CollectiveDelays, HostSummary, LateRail, Of, PeerDelays, RailUse, RankName, Stragglers, Summary, Wait, Why,
};
pub use timeline::{Choice, Host, NoSuchRun, Timeline};
