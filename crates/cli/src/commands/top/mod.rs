//! `railweave top`: jobs, peers and rails on a screen that follows them, with their events, and orders by key.
//!
//! [`Board`](board::Board) is everything that the screen shows, without a terminal: looks and keys go in, and
//! [`draw`](screen::draw) writes it into the cells of a frame, which tests compare with pictures in text.

mod board;
mod columns;
mod describe;
mod events;
mod hands;
mod history;
mod input;
mod key;
mod keys;
mod looks;
mod plain;
mod rows;
mod screen;
mod session;
mod sheet;
mod steerer;
mod style;
mod terminal;

#[cfg(test)]
mod tests;

use self::looks::Looks;
use self::style::Look;
use crate::span;
use clap::Args;
use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// The time between two looks, on a screen and without one, unless `--every` says another.
const EVERY: Duration = Duration::from_millis(500);
const EVERY_PLAIN: Duration = Duration::from_secs(1);

/// Arguments of `railweave top`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The time between two looks, 10ms to 60s [default: 500ms; without a terminal 1s]
    #[arg(long, value_name = "TIME", value_parser = span::period, overrides_with = "every")]
    every: Option<Duration>,
    /// Ends after this number of looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Writes a line for each rail and event, as without a terminal
    #[arg(long)]
    plain: bool,
    /// Draws with ASCII alone, as in a locale without UTF-8
    #[arg(long)]
    ascii: bool,
    /// A folder of jobs' files; may be given again [default: RAILWEAVE_RUN_DIR, otherwise /dev/shm/railweave-UID of
    /// this user, and as root those of all users]
    #[arg(long, value_name = "FOLDER")]
    run_dir: Vec<PathBuf>,
}

/// Shows the jobs until the user has seen enough.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let looks = Looks::new(&arguments.run_dir)?;
    let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
    if arguments.plain || is_dumb || !std::io::stdout().is_terminal() {
        return plain::run(looks, arguments.every.unwrap_or(EVERY_PLAIN), arguments.count);
    }
    let look = Look::new(variable, arguments.ascii);
    session::run(looks, arguments.every.unwrap_or(EVERY), arguments.count, look)
}
