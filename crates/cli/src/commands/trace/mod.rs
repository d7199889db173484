//! `railweave trace`: the traces of a job's processes as one file for a viewer, or summed up.

mod found;
mod people;
mod target;

use self::found::Found;
use self::target::Target;
use crate::output::{print, print_as, printable};
use clap::{Args, Subcommand, ValueEnum};
use railweave_timeline::{Choice, Summary, Timeline, write_chrome, write_perfetto};
use railweave_trace::is_trace;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The most warnings that are shown.
const MOST_WARNINGS: usize = 20;

/// Arguments of `railweave trace`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Folders with traces, which jobs with RAILWEAVE_TRACE=FOLDER write, or their files
    #[arg(required = true, value_name = "FOLDER")]
    sources: Vec<PathBuf>,
    /// The file to make: *.pftrace for Perfetto's viewer, *.json for Chrome's; - for standard output
    #[arg(long, short, required = true, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The format of the file [default: by its ending; perfetto for standard output]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The run, if the folders have several: 1 is the newest; all for all of them on one timeline
    #[arg(long, value_name = "N", value_parser = choice, default_value = "1")]
    run: Choice,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Shows the longest waits, the use of each rail, and who keeps others waiting
    Summary(SummaryArguments),
}

#[derive(Args, Debug)]
struct SummaryArguments {
    /// Folders with traces, which jobs with RAILWEAVE_TRACE=FOLDER write, or their files
    #[arg(required = true, value_name = "FOLDER")]
    sources: Vec<PathBuf>,
    /// Prints JSON (docs/tracing.md)
    #[arg(long)]
    json: bool,
    /// The number of the longest waits, and of each kind of stragglers
    #[arg(short, value_name = "N", default_value_t = 10)]
    number: usize,
    /// Shows the rails of each connection, even if there are many, rather than their sums for each pair of hosts
    #[arg(long)]
    rails: bool,
    /// The run, if the folders have several: 1 is the newest; all for all of them on one timeline
    #[arg(long, value_name = "N", value_parser = choice, default_value = "1")]
    run: Choice,
}

/// The format of a file for a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Perfetto's packets, for <https://ui.perfetto.dev>
    Perfetto,
    /// The Trace Event Format in JSON, for chrome://tracing and others
    Chrome,
}

/// Parses the choice of a run.
fn choice(text: &str) -> Result<Choice, String> {
    match text.parse() {
        Ok(1) => Ok(Choice::Newest),
        Ok(number) if number > 0 => Ok(Choice::Number(number)),
        _ if text == "all" => Ok(Choice::All),
        _ => Err(format!("{text:?} is no run; allowed: 1 for the newest one, 2 for the one before it, …, or all")),
    }
}

/// Makes the file, or shows the summary.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if let Some(Action::Summary(arguments)) = &arguments.action {
        let timeline = timeline(find(&arguments.sources)?, arguments.run)?;
        let summary = Summary::of(&timeline, arguments.number);
        return print_as(&summary, arguments.json, |summary| people::show(summary, arguments.number, arguments.rails));
    }
    let found = find(&arguments.sources)?;
    let path = arguments.output.as_deref().unwrap_or(Path::new("-"));
    if found.has(path) || path.to_str().is_some_and(is_trace) {
        return Err(format!(
            "{} is one of the traces, or has their ending (.rwtrace); name another file, such as job.pftrace",
            shown(path)
        )
        .into());
    }
    match Output::begin(path, arguments.format)?.finish(found, arguments.run)? {
        Some(sentence) => Ok(print(sentence)?),
        None => Ok(()),
    }
}

/// A file for a viewer, in the making.
pub(crate) struct Output {
    path: PathBuf,
    format: Format,
    target: Target,
}

impl Output {
    /// Begins a file in this format, or else in the one that its ending says.
    ///
    /// # Errors
    /// If the ending says none, or the file cannot be made: a sentence.
    fn begin(path: &Path, format: Option<Format>) -> Result<Self, String> {
        let format = format.map_or_else(|| Format::of(path), Ok)?;
        Ok(Self { path: path.to_owned(), format, target: Target::new(path)? })
    }

    /// Begins a file in the format that its ending says.
    ///
    /// # Errors
    /// If the ending says none, or the file cannot be made: a sentence.
    pub(crate) fn by_ending(path: &Path) -> Result<Self, String> {
        Self::begin(path, None)
    }

    /// Makes the file of all traces in a folder. Returns a sentence about it.
    ///
    /// # Errors
    /// If there is none, or the file cannot be written.
    pub(crate) fn finish_with(self, folder: &Path) -> Result<String, Box<dyn Error>> {
        Ok(self.finish(find(&[folder.to_owned()])?, Choice::All)?.unwrap_or_default())
    }

    /// Makes the file. Returns a sentence about it, unless it is standard output.
    fn finish(self, found: Found, choice: Choice) -> Result<Option<String>, Box<dyn Error>> {
        let Self { path, format, mut target } = self;
        let timeline = timeline(found, choice)?;
        let written = match format {
            Format::Perfetto => write_perfetto(&timeline, &mut target),
            Format::Chrome => write_chrome(&timeline, &mut target),
        };
        let is_stdout = path == Path::new("-");
        written.and_then(|()| target.finish()).map_err(|error| match is_stdout {
            true => format!("standard output cannot be written: {error}"),
            false => format!(
                "{} cannot be written: {error}; try a folder with more room, or --output - for a pipe",
                shown(&path)
            ),
        })?;
        if is_stdout {
            return Ok(None);
        }
        let viewer = match format {
            Format::Perfetto => "https://ui.perfetto.dev",
            Format::Chrome => "chrome://tracing",
        };
        Ok(Some(printable(&format!("{}: {}; open it in {viewer}", path.display(), people::extent(&timeline)))))
    }
}

impl Format {
    /// Returns the format of a file by its ending.
    fn of(path: &Path) -> Result<Self, String> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        match ending {
            _ if path == Path::new("-") => Ok(Self::Perfetto),
            Some("pftrace" | "perfetto-trace") => Ok(Self::Perfetto),
            Some("json") => Ok(Self::Chrome),
            _ => Err(format!(
                "the ending of {} says no format; allowed: .pftrace and .perfetto-trace for Perfetto's viewer, .json \
                 for Chrome's; or name the format with --format",
                shown(path)
            )),
        }
    }
}

fn shown(path: &Path) -> String {
    printable(&format!("\"{}\"", path.display()))
}

fn find(sources: &[PathBuf]) -> Result<Found, String> {
    Found::find(sources).map_err(|error| printable(&error))
}

/// Reads the traces, and warns of all that they lack.
fn timeline(mut found: Found, choice: Choice) -> Result<Timeline, Box<dyn Error>> {
    let ranks = found.read();
    warn(&found.skipped);
    if ranks.is_empty() {
        return Err("none of the trace files can be read; see above, and try those of another run".into());
    }
    let timeline = Timeline::join(ranks, choice)?;
    warn(&timeline.warnings);
    Ok(timeline)
}

fn warn(sentences: &[String]) {
    let mut errors = io::stderr().lock();
    // Standard error may be gone, with the terminal.
    for sentence in sentences.iter().take(MOST_WARNINGS) {
        let _ = writeln!(errors, "railweave: {}", printable(sentence));
    }
    let more = sentences.len().saturating_sub(MOST_WARNINGS);
    if more > 0 {
        let _ = writeln!(errors, "railweave: {more} more warnings; trace summary --json has all of them");
    }
}
