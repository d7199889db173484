//! `railweave demo`: the collectives of a training step between local processes, checked, with the traffic of each
//! rail.

mod pulled;
pub(crate) mod rank;
mod recorder;
mod slowed;
mod steered;
mod traced;

use crate::device::Fuse;
use crate::job::Part;
use crate::network::NetworkArguments;
use crate::output::{print, print_as, table};
use crate::over_time::{Period, say};
use crate::shape::Course;
use crate::size::Size;
use crate::span;
use crate::watch::{Prepared, Watch, WatchArguments};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pulled::{Pulling, Way};
use rank::{Job, OPERATIONS, Rail, Report, Summary, elements};
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use traced::Traces;

/// Arguments of `railweave demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    network: NetworkArguments,
    /// The number of processes, each of them one rank
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    #[arg(conflicts_with = "shape")]
    ranks: u32,
    /// The size of the whole data of each collective [default: 1GiB, or 64MiB with --quick]
    #[arg(long, value_name = "SIZE", conflicts_with = "shape")]
    bytes: Option<Size>,
    /// The size of one bucket; the default is PyTorch DDP's
    #[arg(long, value_name = "SIZE", default_value = "25MiB", conflicts_with = "shape")]
    bucket: Size,
    /// Sends straight from and to the users' buffers, as NCCL does with registered buffers
    #[arg(long, conflicts_with = "shape")]
    direct: bool,
    /// Moves less data, and leaves slowed rails out
    #[arg(long, conflicts_with = "shape")]
    quick: bool,
    /// Takes a rail away in the middle of the data, gives it back, and shows the traffic of each rail before, meanwhile
    /// and afterwards. As root its link goes down; otherwise its sockets are closed, which =sockets asks for too
    #[arg(long, value_name = "WAY", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(conflicts_with_all = ["ranks", "rails", "rank_command", "nccl", "fuse", "seconds", "steer"])]
    pull: Option<Option<Way>>,
    /// With --pull: the time for which the rail is away, such as 500ms
    #[arg(long, value_name = "TIME", value_parser = span::away, default_value = "2s", requires = "pull")]
    away: Duration,
    #[command(flatten)]
    watch: WatchArguments,
    /// Traces the ranks (docs/tracing.md), and makes a file of it for a viewer: *.pftrace for Perfetto's, *.json for
    /// Chrome's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// With --shape: the time of the traffic [default: 10, or 5 more than the last --then]
    #[arg(long, value_name = "SECONDS", requires = "shape")]
    seconds: Option<f64>,
    /// With --shape: in the middle of the traffic an order empties the first rail, as `railweave policy drain` does,
    /// and gives it back
    #[arg(long, requires = "shape")]
    steer: bool,
    #[command(flatten)]
    fuse: Fuse,
    /// Prints the results as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Results<'a> {
    plugin: &'a str,
    api: u32,
    ranks: usize,
    /// Each collective by its name.
    collectives: BTreeMap<&'static str, Collective>,
    /// The rails of each rank; empty if the plugin has no counters for them.
    rails: Vec<RankRail<'a>>,
    /// The traffic of each rank's rails; empty without `--every`.
    over_time: Vec<Period>,
    /// The part on rails that are slowed on purpose; `None` if it is left out.
    slowed: Option<slowed::Outcome>,
    /// The course of the rail that was pulled, if one was.
    pulled: Option<pulled::Outcome>,
}

#[derive(Serialize)]
struct Collective {
    /// The time of the slowest rank; the mean of all rounds.
    seconds: f64,
    /// The size of its whole data.
    bytes: usize,
    gigabytes_per_second: f64,
}

#[derive(Serialize)]
struct RankRail<'a> {
    rank: usize,
    #[serde(flatten)]
    rail: &'a Rail,
}

impl<'a> Results<'a> {
    fn new(summaries: &'a [Summary], bytes: usize, over_time: Vec<Period>) -> Self {
        let collectives = OPERATIONS.iter().enumerate().map(|(operation, name)| {
            let seconds = summaries.iter().map(|summary| summary.seconds[operation] / summary.rounds as f64);
            let seconds = seconds.fold(0.0, f64::max);
            let bytes = elements(bytes, summaries.len()) * size_of::<f32>();
            (*name, Collective { seconds, bytes, gigabytes_per_second: bytes as f64 / 1e9 / seconds.max(1e-9) })
        });
        let rails = summaries
            .iter()
            .enumerate()
            .flat_map(|(rank, summary)| summary.rails.iter().flatten().map(move |rail| RankRail { rank, rail }));
        Self {
            plugin: &summaries[0].plugin,
            api: summaries[0].api,
            ranks: summaries.len(),
            collectives: collectives.collect(),
            rails: rails.collect(),
            over_time,
            slowed: None,
            pulled: None,
        }
    }
}

/// The shortest time between two lines of progress if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The size of the whole data of each collective if the user slows the rails, and has one pulled.
const SLOWED_BYTES: usize = 16 << 20;
/// The speeds of the rails that the demo slows on its own, in Mbit/s.
const SLOWED: &str = "80,20";
/// The time of the traffic on them.
const SLOWED_TIME: Duration = Duration::from_secs(6);
/// The time of the traffic on rails that the user slows, if nothing else is asked for.
const SHAPE_TIME: Duration = Duration::from_secs(10);
/// The time of that traffic after the last change of speeds.
const TIME_AFTER_CHANGE: Duration = Duration::from_secs(5);

/// Runs the demo; returns an error if any result is wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let Some(file) = &arguments.trace else { return demonstrate(arguments) };
    let traces = Traces::prepare(file)?;
    let network = arguments.network.traced(traces.folder());
    demonstrate(&Arguments { network, ..arguments.clone() })?;
    say(arguments.json, traces.finish()?)?;
    Ok(())
}

/// Runs the demo, traced or not.
fn demonstrate(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let course = arguments.watch.course()?;
    let Some(course) = course.filter(|_| arguments.pull.is_none()) else { return collectives(arguments) };
    let seconds = arguments.seconds.unwrap_or_else(|| match course.last_change() {
        Duration::ZERO => SHAPE_TIME.as_secs_f64(),
        last => (last + TIME_AFTER_CHANGE).as_secs_f64(),
    });
    if !(1.0..=3600.0).contains(&seconds) {
        return Err(format!("--seconds {seconds} is not possible; allowed: 1 to 3600").into());
    }
    let prepared = Prepared::new(&arguments.network, Some(&course), arguments.json)?;
    let outcome = slowed::run(prepared, arguments.slowed(&course, Duration::from_secs_f64(seconds)))
        .map_err(|error| format!("the demo failed: {error}"))?;
    print_as(&outcome, arguments.json, slowed::Outcome::show)
}

impl Arguments {
    /// Returns the request for traffic on slowed rails.
    fn slowed<'a>(&self, course: &'a Course, time: Duration) -> slowed::Wanted<'a> {
        let every = self.watch.every(true);
        slowed::Wanted { course, fuse: self.fuse.clone(), time, every, steers: self.steer, json: self.json }
    }
}

/// Shows the default split on slowed rails, unless the user chose rails, a split or less data. If this machine cannot
/// slow rails, says why.
fn slowed_part(arguments: &Arguments) -> Result<Option<slowed::Outcome>, Box<dyn Error>> {
    if arguments.quick || arguments.pull.is_some() || !arguments.fuse.is_empty() || !arguments.network.is_open() {
        return Ok(None);
    }
    let course = Course::steady(SLOWED.parse()?);
    match Prepared::new(&arguments.network, Some(&course), arguments.json) {
        Ok(prepared) => slowed::run(prepared, arguments.slowed(&course, SLOWED_TIME)).map(Some),
        Err(reason) => {
            say(arguments.json, format!("Left out: {reason}."))?;
            Ok(None)
        }
    }
}

/// Runs the collectives, and then the part on slowed rails.
fn collectives(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let course = arguments.watch.course()?;
    let usual = match &course {
        Some(_) => SLOWED_BYTES,
        None if arguments.quick => 64 << 20,
        None => 1 << 30,
    };
    let bytes = arguments.bytes.map_or(usual, |size| size.0);
    for (name, size) in [("--bytes", bytes), ("--bucket", arguments.bucket.0)] {
        if size == 0 {
            return Err(format!("{name} 0 is not possible; allowed: 1 and more, such as 25MiB").into());
        }
    }
    let ranks = arguments.ranks as usize;
    let mut pulling = None;
    let mut network_arguments = arguments.network.clone();
    if let Some(way) = arguments.pull {
        let wanted = (way, arguments.away, course.as_ref());
        let (network, made) = Pulling::prepare(&arguments.network, wanted, ranks, arguments.json)?;
        (network_arguments, pulling) = (network, Some(made));
    }
    let (network, bucket, direct) = (network_arguments.network()?, arguments.bucket.0, arguments.direct);
    let (fuse, every) = (arguments.fuse.clone(), arguments.watch.every(course.is_some()));
    let job = Job { network, bytes, bucket, direct, fuse, every, pull: pulling.as_ref().map(Pulling::job) };
    let begin = Instant::now();
    let processes = network_arguments.spawn(ranks, Part::Demo, &job)?;
    let slowed = pulling.as_ref().and_then(Pulling::slowed).zip(course);
    let mut watch = Watch::new(arguments.json, slowed);
    let mut progress = Progress::new(bytes * OPERATIONS.len() * ranks);
    let mut summaries: Vec<Option<Summary>> = (0..ranks).map(|_| None).collect();
    let result = network_arguments.supervise(processes, |rank, body| {
        let report = match serde_json::from_slice(body) {
            Ok(report) => report,
            Err(error) => return eprintln!("railweave: cannot read a report of rank {rank}: {error}"),
        };
        if let Some(pulling) = &mut pulling {
            progress.bar.suspend(|| pulling.take(rank, &report));
        }
        match report {
            Report::Bucket { operation, bytes } => progress.advance(operation, bytes),
            Report::Seen(seen) => progress.bar.suspend(|| watch.take(rank, seen)),
            Report::Done(summary) => summaries[rank] = Some(summary),
            Report::ListensOn(_) | Report::Turn(_) => {}
        }
    });
    progress.finish();
    result.map_err(|error| format!("the demo failed: {error}"))?;
    let summaries: Option<Vec<Summary>> = summaries.into_iter().collect();
    let mut summaries =
        summaries.ok_or("the demo failed: a rank ended without a summary; this is a bug of railweave")?;
    let records: Vec<_> = summaries.iter_mut().filter_map(|summary| summary.record.take()).collect();
    let pulled = pulling.map(|pulling| pulling.finish(&records)).transpose();
    let pulled = pulled.map_err(|error| format!("the demo failed: {error}"))?;
    let mut results = Results { pulled, ..Results::new(&summaries, bytes, watch.finish()?) };
    let slowed = || slowed_part(arguments).map_err(|error| format!("the demo failed: {error}"));
    if arguments.json {
        results.slowed = slowed()?;
        return Ok(print(serde_json::to_string_pretty(&results)?)?);
    }
    show(&results, &summaries)?;
    print(format_args!(
        "Passed: {ranks} ranks ran {} collectives of {} over {} (net v{}); every element was checked ({:.1} s).",
        OPERATIONS.len() * summaries[0].rounds,
        Size(bytes),
        summaries[0].plugin,
        summaries[0].api,
        begin.elapsed().as_secs_f64(),
    ))?;
    if let Some(pulled) = &results.pulled {
        print(pulled.sentence())?;
    }
    match slowed()? {
        Some(slowed) => Ok(slowed.show()?),
        None => Ok(()),
    }
}

/// Shows the progress of the ranks: a bar on a terminal, otherwise an occasional line.
struct Progress {
    bar: ProgressBar,
    last_line: Option<Instant>,
}

impl Progress {
    fn new(bytes: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes as u64), target);
        let template = "{msg:14} {bar:40} {percent:>3}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
        // If the template does not parse, the bar keeps its default style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message("set-up");
        Self { bar, last_line: (!terminal).then(Instant::now) }
    }

    fn advance(&mut self, operation: usize, bytes: usize) {
        let name = OPERATIONS.get(operation).copied().unwrap_or_default();
        self.bar.set_message(name);
        // Nobody knows the number of rounds before.
        if self.bar.length().is_some_and(|length| self.bar.position() + bytes as u64 > length) {
            self.bar.inc_length(bytes as u64);
        }
        self.bar.inc(bytes as u64);
        if let Some(last) = &mut self.last_line
            && last.elapsed() >= LINE_INTERVAL
        {
            *last = Instant::now();
            let all = self.bar.length().unwrap_or(1).max(1);
            eprintln!("{name}: {}% of all collectives done", self.bar.position() * 100 / all);
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn show(results: &Results<'_>, summaries: &[Summary]) -> std::io::Result<()> {
    let mut times = table(&["collective", "time", "data", "GB/s"], 1);
    for name in OPERATIONS {
        let Collective { seconds, bytes, gigabytes_per_second } = &results.collectives[name];
        let (time, rate) = (format!("{seconds:.2} s"), format!("{gigabytes_per_second:.2}"));
        times.add_row([name.to_owned(), time, Size(*bytes).to_string(), rate]);
    }
    print(times)?;
    let mut rails = table(&["rank", "local", "remote", "sent", "share", "Gb/s", "received", "state"], 3);
    let mut counted = false;
    for (rank, summary) in summaries.iter().enumerate() {
        let sent: u64 = summary.rails.iter().flatten().map(|rail| rail.sent).sum();
        let seconds: f64 = summary.seconds.iter().sum();
        for rail in summary.rails.iter().flatten() {
            counted = true;
            rails.add_row([
                rank.to_string(),
                rail.local.clone(),
                rail.remote.clone(),
                Size(rail.sent as usize).to_string(),
                format!("{:.1} %", rail.sent as f64 * 100.0 / sent.max(1) as f64),
                format!("{:.2}", rail.sent as f64 * 8.0 / 1e9 / seconds.max(1e-9)),
                Size(rail.received as usize).to_string(),
                if rail.usable { "up" } else { "down" }.to_owned(),
            ]);
        }
    }
    if let Some(pulled) = &results.pulled {
        return pulled.show();
    }
    if counted {
        return print(rails);
    }
    print("The plugin has no counters for rails; Railweave's plugin exports them as railweaveRailCounters_v1.")
}
