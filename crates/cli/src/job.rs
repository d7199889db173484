//! The process of one rank: what it is told to do, and the way to it.

use crate::commands::{bench, connections, crowd, demo, sweep};
use railweave_bench::bootstrap::Link;
use railweave_bench::ranks;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::process::ExitCode;

/// The hidden subcommand that a rank's process runs.
pub(crate) const SUBCOMMAND: &str = "rank-process";

/// What a rank does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Its part of the demo.
    Demo(demo::rank::Job),
    /// Its part of the benchmark.
    Bench(bench::Job),
    /// Its part of `bench --connections`.
    Connections(connections::Job),
    /// Its part of `bench --processes`.
    Crowd(crowd::Job),
    /// Its part of `bench --sweep`.
    Sweep(sweep::Job),
}

/// The whole life of a rank's process.
pub(crate) fn serve() -> ExitCode {
    ranks::serve(|link| -> Result<(), Box<dyn Error>> {
        match serde_json::from_slice(link.job())? {
            Job::Demo(job) => demo::rank::work(&job, link),
            Job::Bench(job) => bench::work(&job, link),
            Job::Connections(job) => connections::work(&job, link),
            Job::Crowd(job) => crowd::work(&job, link),
            Job::Sweep(job) => sweep::work(&job, link),
        }
    })
}

/// Tells the parent something.
pub(crate) fn report(link: &mut Link, report: &impl Serialize) -> Result<(), Box<dyn Error>> {
    Ok(link.report(&serde_json::to_vec(report)?)?)
}
