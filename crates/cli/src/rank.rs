//! The process of one rank.

use crate::commands::{bench, connections, crowd, demo, flow, sweep};
use crate::job::Part;
use railweave_bench::ranks;
use serde_json::{Value, from_slice, from_value};
use std::error::Error;
use std::process::ExitCode;

/// Runs a rank's process from start to end.
pub(crate) fn serve() -> ExitCode {
    ranks::serve(|link| -> Result<(), Box<dyn Error>> {
        let (part, job): (Part, Value) = from_slice(link.job())?;
        match part {
            Part::Demo => demo::rank::work(&from_value(job)?, link),
            Part::Bench => bench::work(&from_value(job)?, link),
            Part::Connections => connections::work(&from_value(job)?, link),
            Part::Crowd => crowd::work(&from_value(job)?, link),
            Part::Flow => flow::work(&from_value(job)?, link),
            Part::Sweep => sweep::work(&from_value(job)?, link),
        }
    })
}
