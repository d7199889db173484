//! Completions as values, for tests and simulated worlds, which store them. The data path looks at each report once and
//! stores none.

use std::fmt;

use crate::{LaneId, Rail, RailError, Reports, WorkId};

/// One report of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// [`Reports::handle_sent`].
    Sent {
        /// Id of the work.
        id: WorkId,
    },
    /// [`Reports::handle_received`].
    Received {
        /// The lane that it arrived on.
        lane: LaneId,
        /// The immediate.
        immediate: u32,
        /// Length of this write in bytes.
        bytes: u32,
    },
    /// [`Reports::handle_failed`].
    Failed {
        /// The lane.
        lane: LaneId,
        /// The work, if the failure names one.
        id: Option<WorkId>,
        /// The failure.
        error: Box<RailError>,
    },
}

impl Completion {
    /// Passes it to `reports`.
    pub fn report(self, reports: &mut impl Reports) {
        match self {
            Self::Sent { id } => reports.handle_sent(id),
            Self::Received { lane, immediate, bytes } => reports.handle_received(lane, immediate, bytes),
            Self::Failed { lane, id, error } => reports.handle_failed(lane, id, error),
        }
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent { id } => write!(out, "sent {:#x}", id.0),
            Self::Received { lane, immediate, bytes } => {
                write!(out, "received {bytes} bytes, immediate {immediate:#010x}, lane {lane}")
            }
            Self::Failed { lane, error, .. } => write!(out, "lane {lane} failed: {error}"),
        }
    }
}

impl Reports for Vec<Completion> {
    fn handle_sent(&mut self, id: WorkId) {
        self.push(Completion::Sent { id });
    }

    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32) {
        self.push(Completion::Received { lane, immediate, bytes });
    }

    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>) {
        self.push(Completion::Failed { lane, id, error });
    }
}

/// Calls [`Rail::report`] once, for at most `most` completions, and returns them.
///
/// # Panics
/// When the rail reports more than `most`, or returns false although it reported any.
pub fn poll(rail: &mut impl Rail, most: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    let any = rail.report(most, &mut completions);
    assert!(completions.len() <= most, "a rail reported {} completions into room for {most}", completions.len());
    assert!(any || completions.is_empty(), "a rail said of {} completions that there were none", completions.len());
    completions
}
