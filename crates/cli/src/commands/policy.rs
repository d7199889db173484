//! `railweave policy`: the files that steer jobs.

use crate::output::print;
use clap::{Args, Subcommand};
use railweave_telemetry::{MOST_RANKS, SEED_POLICY_PATH, create_seed_policy};
use std::error::Error;
use std::path::PathBuf;

/// Arguments of `railweave policy`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Makes the table of weights that agents of MPIB write (docs/policy.md); touches none that is there
    Init {
        /// The number of ranks of the table: those of the largest job
        #[arg(long, value_name = "N", default_value_t = 1024)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
        ranks: u32,
        /// The path of the table: jobs look at the default only
        #[arg(long, value_name = "FILE", default_value = SEED_POLICY_PATH)]
        path: PathBuf,
    },
}

/// Does what the arguments say.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let Action::Init { ranks, path } = &arguments.action;
    create_seed_policy(path, *ranks)?;
    let shown = path.display();
    Ok(print(format_args!(
        "made {shown} for {ranks} ranks; it steers nothing until an agent sets a weight, and no more once it is removed"
    ))?)
}
