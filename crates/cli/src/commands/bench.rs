//! `railweave bench`: latency, bandwidth and set-up time of any plugin, between two local processes.

use crate::commands::{connections, crowd, pairs, sweep};
use crate::device::Device;
use crate::environment;
use crate::job::Part;
use crate::measurement::{self, Subject, done, look, phase};
use crate::network::{Network, NetworkArguments, Started};
use crate::output::{print, print_as, table};
use crate::over_time::{Period, RailShare, shares};
use crate::shape::Shape;
use crate::size::{self, Size};
use crate::watch::{Prepared, WatchArguments};
use clap::Args;
use railweave_bench::bootstrap::Link;
use railweave_bench::figures::{Bandwidth, Times};
use railweave_bench::pair::{Results, Settings, Step, run as measure};
use railweave_bench::sockets;
use railweave_nccl_host::{Plugin, RailCount};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

/// Arguments of `railweave bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    network: NetworkArguments,
    /// The sizes of the messages for bandwidth
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size::of_message)]
    #[arg(default_value = "8,4KiB,64KiB,512KiB,1MiB,8MiB,64MiB")]
    sizes: Vec<Size>,
    /// The number of messages in flight; NCCL keeps up to 8
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    in_flight: u32,
    /// The approximate time of each measurement: of the latency, and of the bandwidth at each size
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The approximate time to send each size before its bandwidth is measured; needed if a traffic shaper is in the
    /// path, which lets more through at first
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warm_up: f64,
    /// The number of connections whose set-up is timed
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connects: u32,
    #[command(flatten)]
    device: Device,
    /// Also measures plain TCP sockets over the same rails: the limit of a plugin over TCP
    #[arg(long)]
    raw: bool,
    /// Only sets up this many connections at once, sends a checked message over each, and shows time and memory
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    #[arg(conflicts_with_all = ["every", "shape"])]
    connections: Option<u32>,
    /// With --connections: leaves them idle for this long afterwards, and shows the processor time of each thread
    #[arg(long, value_name = "SECONDS", requires = "connections")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    idle: Option<u64>,
    /// With --connections: starts this many processes at once, opens the connections of each to the processes after it,
    /// and shows the resources of each
    #[arg(long, value_name = "COUNT", requires = "connections", conflicts_with = "idle")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=1000))]
    processes: Option<u32>,
    /// Only sends messages of each size from this many processes to as many others at once, over the same rails, and
    /// shows their bandwidths
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    #[arg(conflicts_with_all = ["connections", "sweep", "raw", "connects"])]
    pairs: Option<u32>,
    /// With --pairs: checks every byte of every message
    #[arg(long, requires = "pairs")]
    check: bool,
    /// With --pairs: sends this many messages of 8 bytes before each message of a size; they count among those in
    /// flight
    #[arg(long, value_name = "COUNT", requires = "pairs", default_value_t = 0)]
    #[arg(conflicts_with_all = ["connections", "sweep"])]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    small: u32,
    #[command(flatten)]
    watch: WatchArguments,
    #[command(flatten)]
    sweep: sweep::SweepArguments,
    /// Prints the results as JSON
    #[arg(long)]
    json: bool,
}

/// The job of each of the two ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    network: Network,
    device: Device,
    sizes: Vec<usize>,
    in_flight: usize,
    seconds: f64,
    warm_up: f64,
    connects: usize,
    raw: bool,
    every: Option<Duration>,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Output {
    #[serde(flatten)]
    outcome: Outcome,
    /// The speeds of slowed rails in Mbit/s, at the beginning; with `--shape`.
    shape: Option<Shape>,
    /// The traffic of each rank's rails while bandwidth is measured; empty without `--every`.
    over_time: Vec<Period>,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// Half of a round trip of 8 bytes, until its send and its receive are done.
    latency: TimesOutcome,
    /// Half of a round trip of 8 bytes, until the reply has arrived, with four receives posted ahead.
    latency_ahead: TimesOutcome,
    /// Set-up of one connection.
    connect: TimesOutcome,
    /// One entry for each size.
    bandwidth: Vec<BandwidthOutcome>,
    /// Plain sockets over the same rails, with `--raw`.
    raw: Option<RawOutcome>,
}

/// The results of plain sockets.
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
    /// The share of each rail, the warm-up included; empty if the plugin has no counters, and for plain sockets.
    rails: Vec<RailShare>,
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if !(0.01..=3600.0).contains(&arguments.seconds) {
        return Err(format!("--seconds {} is not possible; allowed: 0.01 to 3600", arguments.seconds).into());
    }
    if !(0.0..=600.0).contains(&arguments.warm_up) {
        return Err(format!("--warm-up {} is not possible; allowed: 0 to 600", arguments.warm_up).into());
    }
    if let (Some(processes), Some(connections)) = (arguments.processes, arguments.connections) {
        let (processes, connections) = (processes as usize, connections as usize);
        let wanted = crowd::Wanted { device: arguments.device.clone(), processes, connections, json: arguments.json };
        return crowd::run(&arguments.network, wanted);
    }
    if let Some(count) = arguments.connections {
        let many = connections::Wanted {
            device: arguments.device.clone(),
            connections: count as usize,
            idle_s: arguments.idle.unwrap_or(0),
            json: arguments.json,
        };
        return connections::run(&arguments.network, many);
    }
    if let Some(wanted) = arguments.sweep.wanted(&arguments.device) {
        return sweep::run(&arguments.network, wanted, arguments.json);
    }
    if let Some(count) = arguments.pairs {
        let wanted = pairs::Wanted {
            device: arguments.device.clone(),
            pairs: count as usize,
            checked: arguments.check,
            sizes: arguments.sizes.iter().map(|size| size.0).collect(),
            small: arguments.small as usize,
            in_flight: arguments.in_flight as usize,
            seconds: arguments.seconds,
            warm_up: arguments.warm_up,
            json: arguments.json,
        };
        return pairs::run(&arguments.network, &arguments.watch, wanted);
    }
    let course = arguments.watch.course()?;
    let Prepared { network: arguments_inside, mut watch } =
        Prepared::new(&arguments.network, course.as_ref(), arguments.json)?;
    let network = arguments_inside.network()?;
    let job = Job {
        network,
        device: arguments.device.clone(),
        sizes: arguments.sizes.iter().map(|size| size.0).collect(),
        in_flight: arguments.in_flight as usize,
        seconds: arguments.seconds,
        warm_up: arguments.warm_up,
        connects: arguments.connects as usize,
        raw: arguments.raw,
        every: arguments.watch.every(course.is_some()),
    };
    let outcomes: Vec<Outcome> = measurement::watched(&arguments_inside, 2, Part::Bench, &job, &mut watch)?;
    let over_time = watch.finish()?;
    let Some(outcome) = outcomes.into_iter().next() else { unreachable!("two ranks have two results") };
    // If the speeds changed, no sum of them is that of a size.
    let sum = course.as_ref().filter(|course| course.changes.is_empty()).map(|course| course.first.sum());
    let shape = course.map(|course| course.first);
    print_as(&Output { outcome, shape, over_time }, arguments.json, |output| show(&output.outcome, sum))
}

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler: _profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let (device, name) = job.device.choose(&net)?;
    let settings = Settings {
        device,
        sizes: job.sizes.clone(),
        in_flight: job.in_flight,
        time: Duration::from_secs_f64(job.seconds),
        warm_up: Duration::from_secs_f64(job.warm_up),
        connects: job.connects,
        stall: job.network.stall(),
    };
    // The counters when each size began.
    let mut before = Vec::new();
    let mut sampler = None;
    let results = measure(&net, link, &settings, |link, step| {
        if matches!(step, Step::Bandwidth { .. }) {
            before.push(plugin.rail_counters().unwrap_or_default());
            sampler.get_or_insert_with(|| look(job.every, link, &plugin));
        }
        phase(link, &step.to_string());
    })?;
    drop(sampler.transpose()?);
    before.push(plugin.rail_counters().unwrap_or_default());
    let raw = if job.raw { Some(raw(job, link, &plugin)?) } else { None };
    net.finalize()?;
    let Results { latency, latency_ahead, bandwidth, connect } = results;
    let outcome = Outcome {
        subject: Subject::new(&plugin, name),
        latency: latency.into(),
        latency_ahead: latency_ahead.into(),
        connect: connect.into(),
        bandwidth: bandwidth.into_iter().zip(before.windows(2)).map(of_size).collect(),
        raw,
    };
    done(link, outcome)
}

/// Measures plain sockets over the rails that the plugin used, in rank 0's order.
fn raw(job: &Job, link: &mut Link, plugin: &Plugin) -> Result<RawOutcome, Box<dyn Error>> {
    let counted = plugin.rail_counters().unwrap_or_default();
    let mut rails = Vec::new();
    for rail in counted {
        rails.push((rail.local.parse::<IpAddr>()?, rail.remote.parse::<IpAddr>()?));
    }
    phase(link, "plain sockets");
    let of_rank_0 = link.all_gather(&serde_json::to_vec(&rails)?)?.swap_remove(0);
    let rails: Vec<(IpAddr, IpAddr)> = serde_json::from_slice(&of_rank_0)?;
    if rails.is_empty() {
        return Err("--raw needs the rails, which only Railweave's own plugin reports; leave --raw out".into());
    }
    let mine =
        |(first, second): &(IpAddr, IpAddr)| if link.rank() == 0 { (*first, *second) } else { (*second, *first) };
    let congestion = environment::options()?.tcp_congestion.value;
    let settings = sockets::Settings {
        rails: rails.iter().map(mine).collect(),
        congestion: congestion.name(false).map(str::to_owned),
        congestion_inside_host: congestion.name(true).map(str::to_owned),
        sizes: job.sizes.clone(),
        in_flight: job.in_flight,
        time: Duration::from_secs_f64(job.seconds),
        stall: job.network.stall(),
    };
    let sockets::Results { latency, bandwidth } = sockets::run(link, &settings)?;
    let bandwidth = bandwidth.into_iter().map(BandwidthOutcome::from).collect();
    Ok(RawOutcome { rails, latency: latency.into(), bandwidth })
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
        Self { bytes, in_flight, gigabits_per_second, rails: Vec::new() }
    }
}

/// Returns the results at one size, with the counters before and after it.
fn of_size((at, counters): (Bandwidth, &[Vec<RailCount>])) -> BandwidthOutcome {
    BandwidthOutcome { rails: shares(&counters[0], &counters[1]), ..at.into() }
}

/// Shows the results for people. `sum` is that of the speeds of slowed rails in Mbit/s.
fn show(outcome: &Outcome, sum: Option<f64>) -> std::io::Result<()> {
    let Outcome { subject, latency, latency_ahead, connect, bandwidth, raw } = outcome;
    print(subject)?;
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
    let mut header = vec!["message".to_owned(), "in flight".to_owned(), "Gb/s".to_owned()];
    header.extend(sum.map(|sum| format!("of {sum} Mbit/s")));
    if raw.is_some() {
        header.extend(["plain sockets Gb/s".to_owned(), "ratio".to_owned()]);
    }
    let mut rates = table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    for (index, BandwidthOutcome { bytes, in_flight, gigabits_per_second: rate, .. }) in bandwidth.iter().enumerate() {
        let mut row = vec![Size(*bytes).to_string(), in_flight.to_string(), format!("{rate:.3}")];
        row.extend(sum.map(|sum| format!("{:.1} %", rate * 1000.0 * 100.0 / sum)));
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
