//! `railweave status`: the processes that use Railweave here, from the files that they write.

mod people;
mod view;

use self::view::View;
use crate::environment;
use crate::host::Readings;
use crate::output::print;
use crate::span;
use clap::Args;
use railweave_telemetry::RunDir;
use std::error::Error;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

/// The time between the two readings that rates come from, unless `--every` says another.
const BETWEEN: Duration = Duration::from_millis(500);

/// Arguments of `railweave status`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Prints JSON (docs/telemetry.md); with --every, one line each time
    #[arg(long)]
    json: bool,
    /// Shows the status again and again, with the rates of this time, such as 1s, until it is interrupted; 10ms to 60s
    #[arg(long, value_name = "TIME", value_parser = span::period)]
    every: Option<Duration>,
    /// Shows all processes that are gone, and their connections as they were
    #[arg(long)]
    gone: bool,
    /// The number of each process's last events to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    events: usize,
    /// The folder of the files [default: RAILWEAVE_RUN_DIR, otherwise /dev/shm/railweave-UID of this user]
    #[arg(long, value_name = "FOLDER")]
    run_dir: Option<PathBuf>,
}

/// Shows the status, once or again and again.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let dir = match &arguments.run_dir {
        Some(path) => RunDir::named(Some(path)),
        None => environment::run_dir()?,
    };
    let between = arguments.every.unwrap_or(BETWEEN);
    let mut before = Readings::take(&dir)?;
    let mut last = None;
    loop {
        // There is no rate to wait for if nothing runs.
        if last.is_some() || before.has_running() {
            thread::sleep(between);
        }
        let now = Readings::take(&dir)?;
        let is_first = last.is_none();
        if let Some(last) = last.take() {
            before.advance(last, &now);
        }
        let view = View::new(&dir, &before, &now, SystemTime::now(), arguments.events);
        match (arguments.json, arguments.every) {
            (true, None) => print(serde_json::to_string_pretty(&view)?)?,
            (true, Some(_)) => print(serde_json::to_string(&view)?)?,
            (false, _) => {
                if !is_first {
                    print("")?;
                }
                people::show(&view, arguments.gone)?;
            }
        }
        if arguments.every.is_none() {
            return Ok(());
        }
        last = Some(now);
    }
}
