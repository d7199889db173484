//! `railweave bench --sweep`: all sizes of messages in both directions at once, with every byte checked.

use crate::device::Device;
use crate::job::Part;
use crate::measurement::{self, Subject, done, phase};
use crate::network::{Network, NetworkArguments, Started};
use crate::output::{print, print_as, table};
use crate::size::Size;
use clap::Args;
use railweave_bench::bootstrap::Link;
use railweave_bench::sweep::{Settings, run as sweep};
use serde::{Deserialize, Serialize};
use std::error::Error;

/// Arguments of `railweave bench --sweep`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArguments {
    /// Only sends messages of all kinds of sizes up to this one [default: 16MiB]: alone, truncated, grouped and many at
    /// once, in both directions, with every byte checked
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "16MiB", value_parser = of_sweep)]
    #[arg(conflicts_with_all = ["sizes", "in_flight", "seconds", "warm_up", "connects", "raw", "connections"])]
    #[arg(conflicts_with_all = ["every", "shape"])]
    sweep: Option<Size>,
    /// With --sweep: the source of the data, of the random sizes and of the order of tests
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "sweep")]
    seed: u64,
}

/// The user's request, which is sent to both ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    device: Device,
    max_bytes: usize,
    seed: u64,
}

/// The job of each of the two ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    network: Network,
    wanted: Wanted,
}

/// The results of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct OfRank {
    subject: Subject,
    phases: Vec<Phase>,
    first_mismatch: Option<String>,
}

/// The output of `--json`: both directions together.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    max_bytes: usize,
    seed: u64,
    /// Sums over all phases.
    messages: usize,
    bytes: usize,
    mismatches: usize,
    /// The first mismatch of each rank that has one.
    first_mismatches: Vec<String>,
    phases: Vec<Phase>,
}

/// The results of one phase.
#[derive(Debug, Serialize, Deserialize)]
struct Phase {
    name: String,
    messages: usize,
    bytes: usize,
    mismatches: usize,
    /// The seconds of the slower rank.
    seconds: f64,
}

impl SweepArguments {
    /// Returns the request; `None` without `--sweep`.
    pub(crate) fn wanted(&self, device: &Device) -> Option<Wanted> {
        let Self { sweep, seed } = *self;
        sweep.map(|largest| Wanted { device: device.clone(), max_bytes: largest.0, seed })
    }
}

/// Runs the sweep and prints the results; returns an error if any message arrived changed.
pub(crate) fn run(network: &NetworkArguments, wanted: Wanted, json: bool) -> Result<(), Box<dyn Error>> {
    let job = Job { network: network.network()?, wanted: wanted.clone() };
    let ranks: [OfRank; 2] = measurement::run(network, Part::Sweep, &job)?;
    let outcome = Outcome::of(wanted, ranks);
    print_as(&outcome, json, show)?;
    Ok(outcome.verdict()?)
}

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler: _profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let (device, name) = job.wanted.device.choose(&net)?;
    let Wanted { max_bytes, seed, .. } = job.wanted;
    let results = sweep(&net, link, &Settings { device, max_bytes, seed, stall: job.network.stall() }, phase)?;
    net.finalize()?;
    let phases = results.phases.iter().map(|phase| Phase {
        name: phase.name.to_owned(),
        messages: phase.messages,
        bytes: phase.bytes,
        mismatches: phase.mismatches,
        seconds: phase.took.as_secs_f64(),
    });
    let (subject, phases) = (Subject::new(&plugin, name), phases.collect());
    done(link, OfRank { subject, phases, first_mismatch: results.first_mismatch })
}

impl Outcome {
    fn of(Wanted { max_bytes, seed, .. }: Wanted, [first, second]: [OfRank; 2]) -> Self {
        let both = |(one, other): (Phase, Phase)| Phase {
            name: one.name,
            messages: one.messages + other.messages,
            bytes: one.bytes + other.bytes,
            mismatches: one.mismatches + other.mismatches,
            seconds: one.seconds.max(other.seconds),
        };
        let phases: Vec<Phase> = first.phases.into_iter().zip(second.phases).map(both).collect();
        let sum = |of: fn(&Phase) -> usize| phases.iter().map(of).sum();
        let (messages, bytes, mismatches) =
            (sum(|phase| phase.messages), sum(|phase| phase.bytes), sum(|phase| phase.mismatches));
        let told = [first.first_mismatch, second.first_mismatch].into_iter().zip(0..);
        let first_mismatches = told.filter_map(|(wrong, rank)| Some(format!("rank {rank}, {}", wrong?))).collect();
        Self { subject: first.subject, max_bytes, seed, messages, bytes, mismatches, first_mismatches, phases }
    }

    fn verdict(&self) -> Result<(), String> {
        let Self { messages, mismatches, first_mismatches, seed, .. } = self;
        if *mismatches == 0 {
            return Ok(());
        }
        Err(format!(
            "{mismatches} of {messages} messages are not exactly what was sent, so the plugin, or something below it, \
             changes data: {}; --seed {seed} repeats the same messages",
            first_mismatches.join("; ")
        ))
    }
}

fn show(outcome: &Outcome) -> std::io::Result<()> {
    print(&outcome.subject)?;
    let mut phases = table(&["phase", "messages", "bytes", "seconds", "mismatches"], 1);
    for Phase { name, messages, bytes, mismatches, seconds } in &outcome.phases {
        let seconds = format!("{seconds:.2}");
        phases.add_row([name, &messages.to_string(), &bytes.to_string(), &seconds, &mismatches.to_string()]);
    }
    print(phases)?;
    let Outcome { messages, bytes, mismatches, max_bytes, seed, .. } = outcome;
    let verdict = if *mismatches == 0 { "every byte arrived unchanged" } else { "messages are NOT what was sent" };
    let (bytes, largest) = (Size(*bytes), Size(*max_bytes));
    print(format_args!("{messages} messages up to {largest}, {bytes} in all, seed {seed}: {verdict}"))
}

/// The range of a sweep's largest size. At the upper limit, a rank needs about four times that size in memory: its own
/// noise, the peer's noise, and the buffers of two receives.
const ALLOWED: [Size; 2] = [Size(1 << 10), Size(256 << 20)];

fn of_sweep(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let [least, most] = ALLOWED;
    if (least.0..=most.0).contains(&size.0) {
        return Ok(size);
    }
    Err(format!("a sweep up to {size} is not possible; allowed: {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rank(mismatches: usize) -> OfRank {
        let subject = r#"{"plugin": "p", "path": "/p.so", "api": 12, "device": "d"}"#;
        let phase = Phase { name: "alone".to_owned(), messages: 10, bytes: 100, mismatches, seconds: 1.0 };
        let first_mismatch = (mismatches > 0).then(|| "phase alone: byte 3".to_owned());
        OfRank { subject: serde_json::from_str(subject).unwrap(), phases: vec![phase], first_mismatch }
    }

    #[test]
    fn a_mismatch_of_either_rank_is_an_error_with_its_rank_and_seed() {
        let wanted: Wanted =
            serde_json::from_str(r#"{"device": {"device": 0, "fuse": []}, "max_bytes": 1024, "seed": 5}"#).unwrap();
        let outcome = |ranks: [usize; 2]| Outcome::of(wanted.clone(), ranks.map(of_rank));
        assert_eq!(outcome([0, 0]).verdict(), Ok(()));
        let error = outcome([0, 2]).verdict().unwrap_err();
        assert!(error.starts_with("2 of 20 messages are not exactly what was sent"), "{error}");
        assert!(error.contains("rank 1, phase alone: byte 3") && error.contains("--seed 5"), "{error}");
        assert_eq!(outcome([1, 2]).first_mismatches.len(), 2);
        for (text, allowed) in [("1KiB", true), ("256MiB", true), ("1023", false), ("257MiB", false), ("x", false)] {
            assert_eq!(of_sweep(text).is_ok(), allowed, "{text}");
        }
    }
}
