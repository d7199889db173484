//! `railweave bench`: latency, bandwidth and set-up time of any plugin, between two local processes.

use crate::commands::connections;
use crate::job;
use crate::network::{Network, NetworkArguments};
use crate::output::{print, table};
use crate::size::Size;
use clap::Args;
use railweave_host::NetApi;
use railweave_host::Plugin;
use railweave_host::bench::{Bandwidth, Results, Settings, Times, run as measure};
use railweave_host::bootstrap::Link;
use railweave_host::raw::{self, RawResults, RawSettings};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::IsTerminal;
use std::net::IpAddr;
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
    /// Also measures plain TCP sockets over the same rails, the limit of what a plugin over TCP can reach
    #[arg(long)]
    raw: bool,
    /// Instead of all else: sets up so many connections at once, sends a checked message over each, and tells time and
    /// memory
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Option<u32>,
    /// With --connections: then leaves them alone for so long and tells what each thread did meanwhile
    #[arg(long, value_name = "SECONDS", requires = "connections", value_parser = clap::value_parser!(u64).range(1..=60))]
    idle: Option<u64>,
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
    raw: bool,
}

/// What a rank tells its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// What begins.
    Phase(String),
    /// What came out.
    Done(Box<Outcome>),
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
    /// Half of a round trip of 8 bytes, until its send and its receive are done.
    latency: TimesOutcome,
    /// Half of a round trip of 8 bytes, until the answer has come, with four receives posted ahead.
    latency_ahead: TimesOutcome,
    /// Set-up of one connection.
    connect: TimesOutcome,
    /// One entry for each size.
    bandwidth: Vec<BandwidthOutcome>,
    /// Plain sockets over the same rails, with `--raw`.
    raw: Option<RawOutcome>,
}

/// What plain sockets reach.
#[derive(Debug, Serialize, Deserialize)]
struct RawOutcome {
    /// The two ends of each rail.
    rails: Vec<(IpAddr, IpAddr)>,
    /// Half of a round trip of 8 bytes on the first rail.
    latency: TimesOutcome,
    /// All rails together, one entry for each size.
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
    if let Some(count) = arguments.connections {
        let many = connections::Wanted {
            device: arguments.device,
            connections: count as usize,
            idle_s: arguments.idle.unwrap_or(0),
            json: arguments.json,
        };
        return connections::run(&arguments.network, &many);
    }
    let network = arguments.network.network()?;
    let job = job::Job::Bench(Job {
        network,
        device: arguments.device,
        sizes: arguments.sizes.iter().map(|size| size.0).collect(),
        in_flight: arguments.in_flight as usize,
        seconds: arguments.seconds,
        connects: arguments.connects as usize,
        raw: arguments.raw,
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
    let raw = if job.raw { Some(raw(job, link, &plugin)?) } else { None };
    net.finalize()?;
    let Results { latency, latency_ahead, bandwidth, connect } = results;
    let outcome = Outcome {
        plugin: plugin.name().to_owned(),
        path: plugin.path().display().to_string(),
        api: plugin.version(),
        device,
        latency: latency.into(),
        latency_ahead: latency_ahead.into(),
        connect: connect.into(),
        bandwidth: bandwidth.into_iter().map(BandwidthOutcome::from).collect(),
        raw,
    };
    report(link, &Report::Done(Box::new(outcome)))
}

/// Plain sockets over the rails that the plugin used, in rank 0's order.
fn raw(job: &Job, link: &mut Link, plugin: &Plugin) -> Result<RawOutcome, Box<dyn Error>> {
    let counted = plugin.rail_counters().unwrap_or_default();
    let mut rails = Vec::new();
    for rail in counted {
        rails.push((rail.local.parse::<IpAddr>()?, rail.remote.parse::<IpAddr>()?));
    }
    report(link, &Report::Phase("plain sockets".to_owned()))?;
    let of_rank_0 = link.all_gather(&serde_json::to_vec(&rails)?)?.swap_remove(0);
    let rails: Vec<(IpAddr, IpAddr)> = serde_json::from_slice(&of_rank_0)?;
    if rails.is_empty() {
        return Err("--raw needs to know the rails, which only Railweave's own plugin tells; leave --raw out".into());
    }
    let mine =
        |(first, second): &(IpAddr, IpAddr)| if link.rank() == 0 { (*first, *second) } else { (*second, *first) };
    let settings = RawSettings {
        rails: rails.iter().map(mine).collect(),
        sizes: job.sizes.clone(),
        in_flight: job.in_flight,
        time: Duration::from_secs_f64(job.seconds),
        stall: job.network.stall(),
    };
    let RawResults { latency, bandwidth } = raw::run(link, &settings)?;
    let bandwidth = bandwidth.into_iter().map(BandwidthOutcome::from).collect();
    Ok(RawOutcome { rails, latency: latency.into(), bandwidth })
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

impl From<Bandwidth> for BandwidthOutcome {
    fn from(at: Bandwidth) -> Self {
        let Bandwidth { bytes, in_flight, gigabits_per_second } = at;
        Self { bytes, in_flight, gigabits_per_second }
    }
}

fn show(outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { plugin, path, api, device, latency, latency_ahead, connect, bandwidth, raw } = outcome;
    print(format_args!("{plugin} (net v{api}, device {device}), {path}"))?;
    let mut times = table(&["time", "median", "99th percentile", "count"], 1);
    let mut add = |what: &str, times_of: &TimesOutcome| {
        let us = |us: f64| format!("{us:.1} µs");
        times.add_row([what, &us(times_of.median_us), &us(times_of.p99_us), &times_of.count.to_string()]);
    };
    add("8 bytes, one way, send and receive done", latency);
    add("8 bytes, one way, 4 receives posted ahead", latency_ahead);
    if let Some(raw) = raw {
        add("8 bytes, one way, plain socket", &raw.latency);
    }
    add("connection set-up", connect);
    print(times)?;
    let mut rates = match raw {
        Some(_) => table(&["message", "in flight", "Gb/s", "plain sockets Gb/s", "ratio"], 0),
        None => table(&["message", "in flight", "Gb/s"], 0),
    };
    for (index, BandwidthOutcome { bytes, in_flight, gigabits_per_second: rate }) in bandwidth.iter().enumerate() {
        let mut row = vec![Size(*bytes).to_string(), in_flight.to_string(), format!("{rate:.3}")];
        if let Some(plain) = raw.as_ref().and_then(|raw| raw.bandwidth.get(index)) {
            let plain = plain.gigabits_per_second;
            row.extend([format!("{plain:.3}"), format!("{:.2}", rate / plain)]);
        }
        rates.add_row(row);
    }
    print(rates)?;
    if let Some(raw) = raw {
        let ratio = latency_ahead.median_us / raw.latency.median_us;
        let rails: Vec<String> = raw.rails.iter().map(|(a, b)| format!("{a} - {b}")).collect();
        print(format_args!(
            "latency with receives posted ahead: {ratio:.2} x a plain socket; rails: {}",
            rails.join(", ")
        ))?;
    }
    Ok(())
}
