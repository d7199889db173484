//! The messages between the process of one rank and its parent.

use railweave_bench::bootstrap::Link;
use serde::{Deserialize, Serialize};
use std::error::Error;

/// The hidden subcommand that a rank's process runs.
pub(crate) const SUBCOMMAND: &str = "rank-process";

/// The command that a rank works for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// `demo`.
    Demo,
    /// `bench`.
    Bench,
    /// `bench --connections`.
    Connections,
    /// `bench --processes`.
    Crowd,
    /// `bench --pairs`, and `demo` over slowed rails.
    Flow,
    /// `bench --sweep`.
    Sweep,
}

/// Sends a report to the parent.
pub(crate) fn report(link: &mut Link, report: &impl Serialize) -> Result<(), Box<dyn Error>> {
    Ok(link.report(&serde_json::to_vec(report)?)?)
}
