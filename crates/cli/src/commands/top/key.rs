//! The names of rows, by which a selection or a fold outlives a look.

use crate::host::{Job, JobRail, Peer};
use std::path::PathBuf;

/// A job, one of its peers, or a rail to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) user: u32,
    pub(super) run_dir: PathBuf,
    /// The job's id; empty if it is not known.
    pub(super) job: String,
    /// The peer's host and the device.
    pub(super) peer: Option<(String, String)>,
    /// The number of the rail, and its port; empty if it is not known.
    pub(super) rail: Option<(u8, String)>,
}

impl Key {
    pub(super) fn of_job(job: &Job) -> Self {
        let (run_dir, name) = (job.run_dir.clone(), job.job.clone().unwrap_or_default());
        Self { user: job.user, run_dir, job: name, peer: None, rail: None }
    }

    pub(super) fn with_peer(&self, peer: &Peer) -> Self {
        Self { peer: Some((peer.host.clone(), peer.device.clone())), ..self.clone() }
    }

    pub(super) fn with_rail(&self, rail: &JobRail) -> Self {
        Self { rail: Some((rail.number, rail.port.clone().unwrap_or_default())), ..self.clone() }
    }

    /// Returns the row above in the tree; `None` for a job.
    pub(super) fn parent(&self) -> Option<Self> {
        match (&self.peer, &self.rail) {
            (_, Some(_)) => Some(Self { rail: None, ..self.clone() }),
            (Some(_), None) => Some(Self { peer: None, ..self.clone() }),
            (None, None) => None,
        }
    }
}
