//! `railweave bench --connections`: many connections at once, their memory, and their cost while idle.

use crate::device::Device;
use crate::job::Part;
use crate::measurement::{self, Subject, done, phase};
use crate::network::{Network, NetworkArguments, Started};
use crate::output::{print, print_as, table};
use crate::size::Size;
use railweave_bench::bootstrap::Link;
use railweave_bench::connections::{Results, Settings, run as measure};
use railweave_bench::process::ThreadTime;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::time::Duration;

/// The size of each connection's message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The user's request.
pub(crate) struct Wanted {
    pub(crate) device: Device,
    pub(crate) connections: usize,
    pub(crate) idle_s: u64,
    pub(crate) json: bool,
}

/// The job of each of the two ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    network: Network,
    device: Device,
    connections: usize,
    idle_s: u64,
}

/// The results of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct OfRank {
    subject: Subject,
    set_up_s: f64,
    messages_s: f64,
    side: Side,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of connections.
    connections: usize,
    /// The size of each connection's message.
    message_bytes: usize,
    /// From the first listen until every connection was set up on both sides.
    set_up_s: f64,
    /// From then until every connection had carried its message, and all messages were checked.
    messages_s: f64,
    /// The sending side, then the receiving one.
    sides: Vec<Side>,
}

/// One side of the connections.
#[derive(Debug, Serialize, Deserialize)]
struct Side {
    /// The growth of the process's resident memory in bytes, divided by the number of connections.
    bytes_per_connection: f64,
    /// The process's resident memory before the first listen, in bytes.
    memory_before: u64,
    /// The process's resident memory with every connection used once, in bytes.
    memory_after: u64,
    /// The number of descriptors that the connections opened, divided by the number of connections.
    descriptors_per_connection: f64,
    /// The processor time of each thread while the connections were idle, with `--idle`.
    idle: Vec<Idle>,
}

/// The processor time of one thread.
#[derive(Debug, Serialize, Deserialize)]
struct Idle {
    thread: String,
    ran_ms: f64,
    watched_s: f64,
    /// The time that the thread ran, as a percentage of one core.
    percent: f64,
}

/// Runs the measurement and prints the results.
pub(crate) fn run(network: &NetworkArguments, wanted: Wanted) -> Result<(), Box<dyn Error>> {
    let Wanted { device, connections, idle_s, json } = wanted;
    let job = Job { network: network.network()?, device, connections, idle_s };
    let [sender, receiver]: [OfRank; 2] = measurement::run(network, Part::Connections, &job)?;
    let OfRank { subject, set_up_s, messages_s, side } = sender;
    let sides = vec![side, receiver.side];
    let outcome = Outcome { subject, connections, message_bytes: MESSAGE_BYTES, set_up_s, messages_s, sides };
    print_as(&outcome, json, show)
}

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler: _profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let (device, name) = job.device.choose(&net)?;
    let settings = Settings {
        device,
        connections: job.connections,
        message_bytes: MESSAGE_BYTES,
        idle: Duration::from_secs(job.idle_s),
        stall: job.network.stall(),
    };
    let results = measure(&net, link, &settings, phase)?;
    net.finalize()?;
    let outcome = OfRank {
        subject: Subject::new(&plugin, name),
        set_up_s: results.set_up.as_secs_f64(),
        messages_s: results.messages.as_secs_f64(),
        side: Side::of(&results, job.connections),
    };
    done(link, outcome)
}

impl Side {
    fn of(results: &Results, connections: usize) -> Self {
        let each = |before: u64, after: u64| (after as f64 - before as f64) / connections.max(1) as f64;
        Self {
            bytes_per_connection: each(results.memory_before, results.memory_after),
            memory_before: results.memory_before,
            memory_after: results.memory_after,
            descriptors_per_connection: each(results.descriptors_before as u64, results.descriptors_after as u64),
            idle: results.idle.iter().map(Idle::of).collect(),
        }
    }
}

impl Idle {
    fn of(thread: &ThreadTime) -> Self {
        let (ran, watched) = (thread.ran.as_secs_f64(), thread.watched.as_secs_f64());
        let percent = 100.0 * ran / watched.max(1e-9);
        Self { thread: thread.name.clone(), ran_ms: ran * 1e3, watched_s: watched, percent }
    }
}

const SIDES: [&str; 2] = ["sending", "receiving"];

fn show(outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { subject, connections, message_bytes, set_up_s, messages_s, sides } = outcome;
    print(subject)?;
    print(format_args!(
        "{connections} connections at once: {set_up_s:.3} s until all are set up, then {messages_s:.3} s for a checked \
         message of {} on each",
        Size(*message_bytes)
    ))?;
    let mut memory = table(&["side", "memory per connection", "descriptors per connection"], 1);
    for (name, side) in SIDES.iter().zip(sides) {
        let kib = format!("{:.1} KiB", side.bytes_per_connection / 1024.0);
        memory.add_row([(*name).to_owned(), kib, format!("{:.2}", side.descriptors_per_connection)]);
    }
    print(memory)?;
    if sides.iter().all(|side| side.idle.is_empty()) {
        return Ok(());
    }
    let mut idle = table(&["side", "thread", "ran", "in", "of a core"], 2);
    for (name, side) in SIDES.iter().zip(sides) {
        for thread in &side.idle {
            idle.add_row([
                (*name).to_owned(),
                thread.thread.clone(),
                format!("{:.3} ms", thread.ran_ms),
                format!("{:.1} s", thread.watched_s),
                format!("{:.4} %", thread.percent),
            ]);
        }
    }
    print(idle)
}
