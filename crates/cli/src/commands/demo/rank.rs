//! One rank's part of the demo: every collective over every bucket, every element checked.

use super::recorder::{Pull, Record, Recorder, Turn, now_us};
use crate::device::Fuse;
use crate::job::report;
use crate::network::{Network, Started};
use crate::over_time::{Seen, look};
use railweave_bench::bootstrap::{Link, Reporter};
use railweave_bench::communicator::{Mode, Settings};
use railweave_bench::numbers::{Mismatch, check, fill};
use railweave_bench::{Communicator, CommunicatorError};
use railweave_nccl_host::net::Handle;
use railweave_nccl_host::{LoadedNet, NetApi, RailCount};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::time::{Duration, Instant};

/// The job of each rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The plugin.
    pub(crate) network: Network,
    /// The size of the whole data of each collective in bytes.
    pub(crate) bytes: usize,
    /// Bytes of one bucket.
    pub(crate) bucket: usize,
    /// True if data goes straight from and to the user's buffers.
    pub(crate) direct: bool,
    /// The devices to fuse first.
    pub(crate) fuse: Fuse,
    /// The period in which the rails' traffic is reported, if it is.
    pub(crate) every: Option<Duration>,
    /// The rail that is pulled, if one is.
    pub(crate) pull: Option<Pull>,
}

/// A report of a rank to its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// A bucket of a collective is done and correct.
    Bucket {
        /// The index in [`OPERATIONS`].
        operation: usize,
        /// The bytes of the bucket.
        bytes: usize,
    },
    /// The traffic of the rank's rails.
    Seen(Seen),
    /// The port that the rank's plugin listens on, which its relay leads to.
    ListensOn(u16),
    /// The turn of the rail that is pulled; from rank 0 only.
    Turn(Turn),
    /// All collectives are done and correct.
    Done(Summary),
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The name of the plugin.
    pub(crate) plugin: String,
    /// The version of the net API.
    pub(crate) api: u32,
    /// The number of rounds, each of all [`OPERATIONS`] over all data: 1 unless a rail is pulled.
    pub(crate) rounds: usize,
    /// Seconds inside each of [`OPERATIONS`], in all rounds.
    pub(crate) seconds: [f64; OPERATIONS.len()],
    /// The traffic of each rail; `None` if the plugin has no such counters.
    pub(crate) rails: Option<Vec<Rail>>,
    /// The traffic of each rail over time, if one was pulled.
    pub(crate) record: Option<Record>,
}

/// The traffic of one rail of one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rail {
    /// The address of this rank's end.
    pub(crate) local: String,
    /// The address of the peer's end.
    pub(crate) remote: String,
    /// Bytes sent.
    pub(crate) sent: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// True if the rail can carry data at the end of the demo.
    pub(crate) usable: bool,
}

/// The collectives, in order.
pub(crate) const OPERATIONS: [&str; 5] = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send/recv"];

/// Bytes of one float32.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let devices = match job.fuse.fused(&net)? {
        Some(fused) => vec![fused],
        None => (0..net.devices()?).collect(),
    };
    let mode = if job.direct { Mode::Direct } else { Mode::Staged };
    let settings = Settings { devices, mode, stall: job.network.stall() };
    let (relay, reporter) = (job.pull.as_ref().and_then(|pull| pull.relays.get(link.rank()).copied()), link.reporter());
    let announce = |handle: &mut Handle| match relay {
        Some(relay) => announce_relay(handle, relay, &reporter),
        None => Ok(()),
    };
    let mut communicator = Communicator::connect_by(&net, link, settings, &announce)?;
    communicator.set_profiler(profiler.as_ref());
    let sampler = look(job.every, link, &plugin, Report::Seen)?;
    let round_bytes = job.bytes * OPERATIONS.len();
    let recorder = job.pull.as_ref().map(|pull| {
        let limits = (round_bytes, job.network.stall());
        Recorder::start(pull, &plugin, link, limits, Report::Turn)
    });
    let mut recorder = recorder.transpose()?;
    let bucket = elements(job.bucket.min(job.bytes), communicator.ranks());
    let mut buffers = Buffers { input: vec![0.0; bucket], output: vec![0.0; bucket] };
    let (mut seconds, mut rounds) = ([0.0; OPERATIONS.len()], 0);
    loop {
        buffers.round(&mut communicator, (job, link), (&mut seconds, rounds), recorder.as_ref())?;
        rounds += 1;
        let is_over = recorder.as_mut().map_or(Ok(true), |recorder| recorder.is_over(link))?;
        if is_over {
            break;
        }
    }
    drop(sampler);
    let record = recorder.map(Recorder::finish);
    let rails = plugin.rail_counters().map(|rails| rails.into_iter().map(Rail::from).collect());
    // A rank that closes early could cut off data that a slower one still waits for.
    link.barrier()?;
    communicator.close()?;
    net.finalize()?;
    let (plugin, api) = (plugin.name().to_owned(), plugin.version());
    report(link, &Report::Done(Summary { plugin, api, rounds, seconds, rails, record }))
}

/// Makes a handle lead to this rank's relay, and tells the relay where it leads.
fn announce_relay(handle: &mut Handle, relay: u16, reporter: &Reporter) -> Result<(), String> {
    let mut own = railweave_transport::Handle::decode(&handle.0).map_err(|error| error.to_string())?;
    let port = std::mem::replace(&mut own.control_port, relay);
    handle.0 = own.encode();
    let report = serde_json::to_vec(&Report::ListensOn(port)).map_err(|error| error.to_string())?;
    reporter.report(&report).map_err(|error| error.to_string())
}

/// Returns the number of elements in `bytes`, rounded up so that they divide evenly among the ranks.
pub(crate) fn elements(bytes: usize, ranks: usize) -> usize {
    bytes.div_ceil(ELEMENT_BYTES).next_multiple_of(ranks)
}

/// The buffers of one bucket.
struct Buffers {
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Buffers {
    /// Runs every collective over every bucket, and adds to the time inside each.
    fn round(
        &mut self,
        communicator: &mut Communicator<'_, LoadedNet>,
        (job, link): (&Job, &mut Link),
        (seconds, round): (&mut [f64; OPERATIONS.len()], usize),
        recorder: Option<&Recorder>,
    ) -> Result<(), Box<dyn Error>> {
        let (ranks, bucket) = (communicator.ranks(), self.input.len());
        for (operation, seconds) in seconds.iter_mut().enumerate() {
            let mut first = 0;
            while first * ELEMENT_BYTES < job.bytes {
                let length = bucket.min(elements(job.bytes - first * ELEMENT_BYTES, ranks));
                let (took, end_us) = self.run(communicator, (operation, round), first, length).map_err(|error| {
                    format!("{} of elements {first} to {}: {error}", OPERATIONS[operation], first + length)
                })?;
                *seconds += took.as_secs_f64();
                first += length;
                let bytes = length * ELEMENT_BYTES;
                if let Some(recorder) = recorder {
                    recorder.note(bytes, [end_us.saturating_sub(took.as_micros() as u64), end_us]);
                }
                report(link, &Report::Bucket { operation, bytes })?;
            }
        }
        Ok(())
    }

    /// Runs one collective on `length` elements with the indices from `first` on, and checks the whole result. No two
    /// elements of the demo have the same index, operation and round, so stale data cannot pass. Returns the time
    /// inside the collective, and its end in microseconds since 1970.
    fn run(
        &mut self,
        communicator: &mut Communicator<'_, LoadedNet>,
        (operation, round): (usize, usize),
        first: usize,
        length: usize,
    ) -> Result<(Duration, u64), StepError> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let (input, output) = (&mut self.input[..length], &mut self.output[..length]);
        let (block, round) = (length / ranks, (round * OPERATIONS.len() + operation) as u64);
        let blocks = |output: &[f32], place: usize| {
            let each = output.chunks(block.max(1)).enumerate();
            each.into_iter().try_for_each(|(source, block)| check(block, source..source + 1, round, first + place))
        };
        // Every element of the output is NaN until it is overwritten, so that a missing part is noticed.
        output.fill(f32::NAN);
        match operation {
            0 => {
                fill(output, rank, round, first);
                let begin = Instant::now();
                communicator.all_reduce(output)?;
                let took = (begin.elapsed(), now_us());
                check(output, 0..ranks, round, first)?;
                Ok(took)
            }
            1 => {
                fill(&mut input[..block], rank, round, first);
                let begin = Instant::now();
                communicator.all_gather(&input[..block], output)?;
                let took = (begin.elapsed(), now_us());
                blocks(output, 0)?;
                Ok(took)
            }
            2 => {
                fill(output, rank, round, first);
                let begin = Instant::now();
                let own = communicator.reduce_scatter(output)?;
                let took = (begin.elapsed(), now_us());
                check(&output[own.clone()], 0..ranks, round, first + own.start)?;
                Ok(took)
            }
            3 => {
                fill(input, rank, round, first);
                let begin = Instant::now();
                communicator.all_to_all(input, output)?;
                let took = (begin.elapsed(), now_us());
                blocks(output, rank * block)?;
                Ok(took)
            }
            _ => {
                let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                fill(input, rank, round, first);
                let begin = Instant::now();
                communicator.send_recv(to, input, from, output)?;
                let took = (begin.elapsed(), now_us());
                check(output, from..from + 1, round, first)?;
                Ok(took)
            }
        }
    }
}

/// The reason why a bucket failed.
#[derive(Debug)]
enum StepError {
    Communicator(CommunicatorError),
    Wrong(Mismatch),
}

impl std::fmt::Display for StepError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Communicator(error) => error.fmt(f),
            Self::Wrong(mismatch) => write!(f, "the result is wrong: {mismatch}"),
        }
    }
}

impl From<CommunicatorError> for StepError {
    fn from(error: CommunicatorError) -> Self {
        Self::Communicator(error)
    }
}

impl From<Mismatch> for StepError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Wrong(mismatch)
    }
}

impl From<RailCount> for Rail {
    fn from(count: RailCount) -> Self {
        let RailCount { local, remote, data_bytes, received_bytes, usable, .. } = count;
        Self { local, remote, sent: data_bytes, received: received_bytes, usable }
    }
}
