//! `railweave bench --pairs`: several pairs of processes over the same rails at once, and the bandwidth of each.

use crate::commands::flow::{Flow, Job, OfRank};
use crate::device::Device;
use crate::job::Part;
use crate::measurement::{self, Subject};
use crate::network::NetworkArguments;
use crate::output::{print, print_as, table};
use crate::over_time::{Period, RailShare};
use crate::shape::Shape;
use crate::size::Size;
use crate::watch::{Prepared, WatchArguments};
use railweave_bench::flow::SMALL_BYTES;
use serde::Serialize;
use std::error::Error;

/// The user's request.
pub(crate) struct Wanted {
    pub(crate) device: Device,
    pub(crate) pairs: usize,
    pub(crate) sizes: Vec<usize>,
    pub(crate) small: usize,
    pub(crate) in_flight: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up: f64,
    /// True if every byte is checked.
    pub(crate) checked: bool,
    pub(crate) json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of senders, and of receivers.
    pairs: usize,
    /// The number of messages of 8 bytes before each message of a size.
    small: usize,
    /// One entry for each size.
    bandwidth: Vec<OfSize>,
    /// The speeds of slowed rails in Mbit/s, at the beginning; with `--shape`.
    shape: Option<Shape>,
    /// The traffic of each rank's rails; empty without `--every`.
    over_time: Vec<Period>,
}

/// A time in which a receiver got no message of a size.
#[derive(Debug, Serialize)]
struct PauseOf {
    pair: usize,
    /// Its begin in seconds since 1970, by this host's clock.
    unix_seconds: f64,
    ms: f64,
}

/// The results of all pairs at one size.
#[derive(Debug, Serialize)]
struct OfSize {
    bytes: usize,
    in_flight: usize,
    /// The sum of all pairs.
    gigabits_per_second: f64,
    /// The rate of each pair.
    pair_mbit_per_second: Vec<f64>,
    /// The longest time between two messages of this size that came one after the other, over all receivers.
    longest_pause_ms: f64,
    /// Every such time of 50 ms and more, in order of receivers and of time.
    pauses: Vec<PauseOf>,
    /// The share of each rail in the bytes of all senders, the warm-up included; empty if the plugin has no counters.
    rails: Vec<RailShare>,
}

/// Runs the measurement and prints the results.
pub(crate) fn run(network: &NetworkArguments, watch: &WatchArguments, wanted: Wanted) -> Result<(), Box<dyn Error>> {
    let Wanted { device, pairs, sizes, small, in_flight, seconds, warm_up, checked, json } = wanted;
    let course = watch.course()?;
    let every = watch.every(course.is_some());
    let Prepared { network, mut watch } = Prepared::new(network, course.as_ref(), json)?;
    let job = Job { network: network.network()?, device, sizes, small, in_flight, seconds, warm_up, checked, every };
    let ranks: Vec<OfRank> = measurement::watched(&network, 2 * pairs, Part::Flow, &job, &mut watch)?;
    let watch_begins = watch.begins().to_vec();
    let over_time = watch.finish()?;
    let of_size = |(index, bytes): (usize, &usize)| {
        let of_pairs = ranks.chunks(2).map(|pair| (&pair[0].flows[index], &pair[1].flows[index]));
        let rates: Vec<f64> = of_pairs.clone().map(|(_, receiver)| receiver.mbit_per_second).collect();
        let without_rate = rates.iter().filter(|rate| **rate <= 0.0).count();
        if without_rate > 0 {
            eprintln!(
                "railweave: {without_rate} of {pairs} receivers got fewer than two messages of {} in the {seconds} s \
                 that are measured; a rate needs two, and is shown as 0 for fewer; try a longer --seconds",
                Size(*bytes)
            );
        }
        OfSize {
            bytes: *bytes,
            in_flight: ranks[0].flows[index].in_flight,
            gigabits_per_second: rates.iter().sum::<f64>() / 1000.0,
            pair_mbit_per_second: rates,
            longest_pause_ms: of_pairs.clone().map(|(_, receiver)| receiver.longest_pause_ms).fold(0.0, f64::max),
            pauses: pauses(of_pairs.clone().map(|(_, receiver)| receiver), watch_begins.get(index).copied()),
            rails: RailShare::together(of_pairs.flat_map(|(sender, _)| &sender.rails)),
        }
    };
    let bandwidth = job.sizes.iter().enumerate().map(of_size).collect();
    // If the speeds changed, no sum of them is that of a size.
    let sum = course.as_ref().filter(|course| course.changes.is_empty()).map(|course| course.first.sum());
    let Some(OfRank { subject, .. }) = ranks.into_iter().next() else { unreachable!("there are at least two ranks") };
    let outcome = Outcome { subject, pairs, small, bandwidth, shape: course.map(|course| course.first), over_time };
    print_as(&outcome, json, |outcome| show(outcome, sum))
}

/// Returns the pauses of receivers whose traffic began at this time; none if nobody knows when.
fn pauses<'a>(receivers: impl Iterator<Item = &'a Flow>, begin: Option<f64>) -> Vec<PauseOf> {
    let Some(begin) = begin else { return Vec::new() };
    let of_receiver = |(pair, receiver): (usize, &'a Flow)| {
        let pause = move |[since_ms, ms]: &[f64; 2]| PauseOf { pair, unix_seconds: begin + since_ms / 1e3, ms: *ms };
        receiver.pauses_ms.iter().map(pause)
    };
    receivers.enumerate().flat_map(of_receiver).collect()
}

/// Shows the results for people. `sum` is that of the speeds of slowed rails in Mbit/s.
fn show(outcome: &Outcome, sum: Option<f64>) -> std::io::Result<()> {
    print(&outcome.subject)?;
    let count = outcome.pairs;
    let all = format!("{count} {} Gb/s", if count == 1 { "pair" } else { "pairs" });
    let mut header = vec!["message".to_owned(), "in flight".to_owned(), all];
    header.extend(sum.map(|sum| format!("of {sum} Mbit/s")));
    header.extend(
        ["slowest pair Gb/s", "fastest pair Gb/s", "longest pause ms", "share of each rail"].map(str::to_owned),
    );
    let mut rates = table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    for of_size in &outcome.bandwidth {
        let OfSize {
            bytes, in_flight, gigabits_per_second: rate, pair_mbit_per_second, longest_pause_ms, rails, ..
        } = of_size;
        let least = pair_mbit_per_second.iter().copied().fold(f64::INFINITY, f64::min);
        let most = pair_mbit_per_second.iter().copied().fold(0.0, f64::max);
        let shares: Vec<String> = rails.iter().map(|rail| format!("{:.1} %", rail.share * 100.0)).collect();
        let message = match outcome.small {
            0 => Size(*bytes).to_string(),
            small => format!("{small} x {}, {}", Size(SMALL_BYTES), Size(*bytes)),
        };
        let mut row = vec![message, in_flight.to_string(), format!("{rate:.3}")];
        row.extend(sum.map(|sum| format!("{:.1} %", rate * 1000.0 * 100.0 / sum)));
        row.extend([format!("{:.3}", least / 1000.0), format!("{:.3}", most / 1000.0)]);
        row.extend([format!("{longest_pause_ms:.1}"), shares.join(", ")]);
        rates.add_row(row);
    }
    print(rates)
}
