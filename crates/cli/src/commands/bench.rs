//! `railweave bench`: latency, bandwidth and set-up time of any plugin, between two local processes.

use crate::job;
use crate::network::{Network, NetworkArguments};
use crate::output::{print, table};
use crate::size::Size;
use clap::Args;
use railweave_host::NetApi;
use railweave_host::bench::{Results, Settings, Times, run as measure};
use railweave_host::bootstrap::Link;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

/// Arguments of `railweave bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    network: NetworkArguments,
    /// The sizes of messages whose bandwidth is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,4KiB,64KiB,512KiB,1MiB,8MiB,64MiB")]
    sizes: Vec<Size>,
    /// Messages in flight, as NCCL keeps up to 8
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    in_flight: u32,
    /// About how long to measure latency, and the bandwidth of each size
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How many connections to set up for their time
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connects: u32,
    /// The device to use
    #[arg(long, value_name = "INDEX", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=255))]
    device: i32,
    /// Prints the results as JSON
    #[arg(long)]
    json: bool,
}

/// What each of the two ranks is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    network: Network,
    device: i32,
    sizes: Vec<usize>,
    in_flight: usize,
    seconds: f64,
    connects: usize,
}

/// What a rank tells its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// What begins.
    Phase(String),
    /// What came out.
    Done(Outcome),
}

/// What was measured; the form of `--json`.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    /// The name of the plugin.
    plugin: String,
    /// The file that it was loaded from.
    path: String,
    /// The version of the net API.
    api: u32,
    /// The name of the device.
    device: String,
    /// Half of a round trip of 8 bytes.
    latency: TimesOutcome,
    /// Set-up of one connection.
    connect: TimesOutcome,
    /// One entry for each size.
    bandwidth: Vec<BandwidthOutcome>,
}

/// Times in microseconds.
#[derive(Debug, Serialize, Deserialize)]
struct TimesOutcome {
    count: usize,
    median_us: f64,
    p99_us: f64,
}

/// The median bandwidth in one direction, in gigabits (10^9) per second.
#[derive(Debug, Serialize, Deserialize)]
struct BandwidthOutcome {
    bytes: usize,
    in_flight: usize,
    gigabits_per_second: f64,
}

/// Runs the benchmark and prints what it measured.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if !(0.01..=600.0).contains(&arguments.seconds) {
        return Err(format!("--seconds {} is not possible; allowed are 0.01 to 600", arguments.seconds).into());
    }
    let network = arguments.network.network()?;
    let job = job::Job::Bench(Job {
        network,
        device: arguments.device,
        sizes: arguments.sizes.iter().map(|size| size.0).collect(),
        in_flight: arguments.in_flight as usize,
        seconds: arguments.seconds,
        connects: arguments.connects as usize,
    });
    let ranks = arguments.network.spawn(2, &job)?;
    let show_phases = std::io::stderr().is_terminal();
    let mut outcome = None;
    arguments.network.supervise(ranks, |rank, body| match serde_json::from_slice(body) {
        Ok(Report::Phase(phase)) if rank == 0 && show_phases => eprintln!("measuring: {phase}"),
        Ok(Report::Done(done)) if rank == 0 => outcome = Some(done),
        _ => {}
    })?;
    let outcome = outcome.ok_or("rank 0 ended without results; this is a bug of railweave")?;
    if arguments.json {
        print(serde_json::to_string_pretty(&outcome)?)?;
    } else {
        show(&outcome)?;
    }
    Ok(())
}

/// A rank's part.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let (plugin, net) = job.network.start(link.rank())?;
    let device = net.properties(job.device)?.name;
    let settings = Settings {
        device: job.device,
        sizes: job.sizes.clone(),
        in_flight: job.in_flight,
        time: Duration::from_secs_f64(job.seconds),
        connects: job.connects,
        stall: job.network.stall(),
    };
    let results = measure(&net, link, &settings, |link, phase| {
        // A parent that is gone shows in the next exchange.
        let _ = report(link, &Report::Phase(phase.to_owned()));
    })?;
    net.finalize()?;
    let Results { latency, bandwidth, connect } = results;
    let bandwidth = bandwidth.into_iter().map(|at| BandwidthOutcome {
        bytes: at.bytes,
        in_flight: at.in_flight,
        gigabits_per_second: at.gigabits_per_second,
    });
    let outcome = Outcome {
        plugin: plugin.name().to_owned(),
        path: plugin.path().display().to_string(),
        api: plugin.version(),
        device,
        latency: latency.into(),
        connect: connect.into(),
        bandwidth: bandwidth.collect(),
    };
    report(link, &Report::Done(outcome))
}

fn report(link: &mut Link, report: &Report) -> Result<(), Box<dyn Error>> {
    Ok(link.report(&serde_json::to_vec(report)?)?)
}

impl From<Times> for TimesOutcome {
    fn from(times: Times) -> Self {
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        Self { count: times.count, median_us: us(times.median), p99_us: us(times.p99) }
    }
}

fn show(outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { plugin, path, api, device, latency, connect, bandwidth } = outcome;
    print(format_args!("{plugin} (net v{api}, device {device}), {path}"))?;
    let mut times = table(&["time", "median", "99th percentile", "count"], 1);
    let us = |us: f64| format!("{us:.1} µs");
    times.add_row(["8 bytes, one way", &us(latency.median_us), &us(latency.p99_us), &latency.count.to_string()]);
    times.add_row(["connection set-up", &us(connect.median_us), &us(connect.p99_us), &connect.count.to_string()]);
    print(times)?;
    let mut rates = table(&["message", "in flight", "Gb/s"], 0);
    for BandwidthOutcome { bytes, in_flight, gigabits_per_second } in bandwidth {
        rates.add_row([Size(*bytes).to_string(), in_flight.to_string(), format!("{gigabits_per_second:.3}")]);
    }
    print(rates)
}
