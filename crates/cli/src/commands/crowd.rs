//! `railweave bench --processes`: many processes at once, each with connections to several others, and the resources
//! that each uses for them.

use crate::device::Device;
use crate::environment;
use crate::job::Part;
use crate::measurement::{self, Subject, done, phase};
use crate::network::{Network, NetworkArguments, Started};
use crate::output::{print, print_as, table};
use crate::size::Size;
use railweave_bench::bootstrap::Link;
use railweave_bench::crowd::{Results, Settings, run as measure};
use railweave_bench::process::Held;
use railweave_nccl_host::{LoadedNet, RailCount};
use railweave_options::Fabric;
use serde::{Deserialize, Serialize};
use std::error::Error;

/// The size of each connection's message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The user's request.
pub(crate) struct Wanted {
    pub(crate) device: Device,
    pub(crate) processes: usize,
    pub(crate) connections: usize,
    pub(crate) json: bool,
}

/// The job of each rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    network: Network,
    device: Device,
    connections: usize,
}

/// The results of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct OfRank {
    subject: Subject,
    set_up_s: f64,
    messages_s: f64,
    teardown_s: f64,
    lanes: Option<f64>,
    sessions: Option<f64>,
    threads: f64,
    descriptors: f64,
    bytes: f64,
    left_over: f64,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of processes.
    processes: usize,
    /// The number of connections of each process as sender; each process was the receiver of this many others too.
    connections: usize,
    /// The size of each connection's message.
    message_bytes: usize,
    /// From the first listen until every connection was set up on both sides.
    set_up_s: f64,
    /// From then until every connection had carried its message, and all messages were checked.
    messages_s: f64,
    /// From the first close until everything was finalized everywhere.
    teardown_s: f64,
    /// The resources of the connections of one process.
    each: Each,
}

/// The growth of a process's resources between its first listen and the time when every connection was used once.
#[derive(Debug, Serialize)]
struct Each {
    /// Lanes, over TCP, if the plugin reports them.
    lanes: Option<Spread>,
    /// Control sessions, if the lanes are known: the sockets opened after the last listen, less the lanes.
    sessions: Option<Spread>,
    threads: Spread,
    descriptors: Spread,
    /// Resident memory.
    bytes: Spread,
    /// Descriptors and threads that were left over at the end.
    left_over: Spread,
}

/// The spread of one number over all processes.
#[derive(Debug, Serialize)]
struct Spread {
    least: f64,
    mean: f64,
    most: f64,
}

/// Runs the measurement and prints the results.
pub(crate) fn run(network: &NetworkArguments, wanted: Wanted) -> Result<(), Box<dyn Error>> {
    let Wanted { device, processes, connections, json } = wanted;
    let job = Job { network: network.network()?, device, connections };
    let ranks: Vec<OfRank> = measurement::run_all(network, processes, Part::Crowd, &job)?;
    let spread = |of: fn(&OfRank) -> f64| Spread::of(ranks.iter().map(of).collect());
    let known = |of: fn(&OfRank) -> Option<f64>| ranks.iter().map(of).collect::<Option<Vec<_>>>().map(Spread::of);
    let each = Each {
        lanes: known(|rank| rank.lanes),
        sessions: known(|rank| rank.sessions),
        threads: spread(|rank| rank.threads),
        descriptors: spread(|rank| rank.descriptors),
        bytes: spread(|rank| rank.bytes),
        left_over: spread(|rank| rank.left_over),
    };
    let Some(OfRank { subject, set_up_s, messages_s, teardown_s, .. }) = ranks.into_iter().next() else {
        unreachable!("there are at least two ranks");
    };
    let message_bytes = MESSAGE_BYTES;
    let outcome = Outcome { subject, processes, connections, message_bytes, set_up_s, messages_s, teardown_s, each };
    print_as(&outcome, json, show)
}

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler: _profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let (device, name) = job.device.choose(&net)?;
    let settings =
        Settings { device, connections: job.connections, message_bytes: MESSAGE_BYTES, stall: job.network.stall() };
    let results = measure(net, link, &settings, phase, || plugin.rail_counters(), LoadedNet::finalize)?;
    let lanes = match &results.seen {
        Some(rails) => lanes(rails)?,
        None => None,
    };
    let outcome = OfRank::new(Subject::new(&plugin, name), &results, lanes);
    done(link, outcome)
}

/// Returns the number of lanes of all connections. `None` unless the fabric is TCP, where every lane is a socket, and
/// all rails have the same number of lanes.
fn lanes(rails: &[RailCount]) -> Result<Option<usize>, String> {
    let options = environment::options()?;
    let each = options.lanes.value.on(0);
    let is_known = options.fabric.value == Fabric::Tcp && (1..8).all(|rail| options.lanes.value.on(rail) == each);
    let uses: u32 = rails.iter().map(|rail| rail.connections).sum();
    Ok(is_known.then_some(uses as usize * usize::from(each)))
}

impl OfRank {
    fn new<T>(subject: Subject, results: &Results<T>, lanes: Option<usize>) -> Self {
        let Results { set_up, messages, teardown, before, listening, connected, after, .. } = results;
        let more = |of: fn(&Held) -> f64| of(connected) - of(before);
        let opened = connected.sockets as f64 - listening.sockets as f64;
        let left_over = |of: fn(&Held) -> usize| of(after).saturating_sub(of(before)) as f64;
        Self {
            subject,
            set_up_s: set_up.as_secs_f64(),
            messages_s: messages.as_secs_f64(),
            teardown_s: teardown.as_secs_f64(),
            lanes: lanes.map(|lanes| lanes as f64),
            sessions: lanes.map(|lanes| opened - lanes as f64),
            threads: more(|held| held.threads as f64),
            descriptors: more(|held| held.descriptors as f64),
            bytes: more(|held| held.memory as f64),
            left_over: left_over(|held| held.descriptors) + left_over(|held| held.threads),
        }
    }
}

impl Spread {
    fn of(numbers: Vec<f64>) -> Self {
        let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        Self { least, mean, most: numbers.into_iter().fold(f64::NEG_INFINITY, f64::max) }
    }
}

fn show(outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { subject, processes, connections, message_bytes, set_up_s, messages_s, teardown_s, each } = outcome;
    print(subject)?;
    print(format_args!(
        "{processes} processes with {connections} connections each as sender, {} in all: {set_up_s:.3} s until all are \
         set up, then {messages_s:.3} s for a checked message of {} on each, then {teardown_s:.3} s until all are \
         closed",
        processes * connections,
        Size(*message_bytes)
    ))?;
    let mut rows = table(&["each process uses", "least", "mean", "most"], 1);
    let mut add = |what: &str, spread: &Spread, scale: f64| {
        let text = |number: f64| format!("{:.1}", number / scale);
        rows.add_row([what.to_owned(), text(spread.least), text(spread.mean), text(spread.most)]);
    };
    if let (Some(sessions), Some(lanes)) = (&each.sessions, &each.lanes) {
        add("sessions", sessions, 1.0);
        add("lanes", lanes, 1.0);
    }
    add("threads", &each.threads, 1.0);
    add("descriptors", &each.descriptors, 1.0);
    add("memory, KiB", &each.bytes, 1024.0);
    add("descriptors and threads left at the end", &each.left_over, 1.0);
    print(rows)
}
