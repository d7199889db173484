//! One rank's part of the demo: every collective over every bucket, every element checked.

use crate::device::Fuse;
use crate::job::report;
use crate::network::Network;
use crate::over_time::{Seen, look};
use railweave_bench::bootstrap::Link;
use railweave_bench::communicator::{Mode, Settings};
use railweave_bench::numbers::{Mismatch, check, fill};
use railweave_bench::{Communicator, CommunicatorError};
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
    /// Seconds inside each of [`OPERATIONS`].
    pub(crate) seconds: [f64; OPERATIONS.len()],
    /// The traffic of each rail; `None` if the plugin has no such counters.
    pub(crate) rails: Option<Vec<Rail>>,
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
    let (plugin, net) = job.network.start_rank(link.rank())?;
    let devices = match job.fuse.fused(&net)? {
        Some(fused) => vec![fused],
        None => (0..net.devices()?).collect(),
    };
    let mode = if job.direct { Mode::Direct } else { Mode::Staged };
    let mut communicator = Communicator::connect(&net, link, Settings { devices, mode, stall: job.network.stall() })?;
    let sampler = look(job.every, link, &plugin, Report::Seen)?;
    let ranks = communicator.ranks();
    let bucket = elements(job.bucket.min(job.bytes), ranks);
    let mut buffers = Buffers { input: vec![0.0; bucket], output: vec![0.0; bucket] };
    let mut seconds = [0.0; OPERATIONS.len()];
    for (operation, seconds) in seconds.iter_mut().enumerate() {
        let mut first = 0;
        while first * ELEMENT_BYTES < job.bytes {
            let length = bucket.min(elements(job.bytes - first * ELEMENT_BYTES, ranks));
            let took = buffers.run(&mut communicator, operation, first, length).map_err(|error| {
                format!("{} of elements {first} to {}: {error}", OPERATIONS[operation], first + length)
            })?;
            *seconds += took.as_secs_f64();
            first += length;
            report(link, &Report::Bucket { operation, bytes: length * ELEMENT_BYTES })?;
        }
    }
    drop(sampler);
    let rails = plugin.rail_counters().map(|rails| rails.into_iter().map(Rail::from).collect());
    // A rank that closes early could cut off data that a slower one still waits for.
    link.barrier()?;
    communicator.close()?;
    net.finalize()?;
    report(link, &Report::Done(Summary { plugin: plugin.name().to_owned(), api: plugin.version(), seconds, rails }))
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
    /// Runs one collective on `length` elements with the indices from `first` on, and checks the whole result. No two
    /// elements of the demo have the same index and operation, so stale data cannot pass. Returns the time inside the
    /// collective.
    fn run(
        &mut self,
        communicator: &mut Communicator<'_, LoadedNet>,
        operation: usize,
        first: usize,
        length: usize,
    ) -> Result<Duration, StepError> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let (input, output) = (&mut self.input[..length], &mut self.output[..length]);
        let (block, round) = (length / ranks, operation as u64);
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
                let took = begin.elapsed();
                check(output, 0..ranks, round, first)?;
                Ok(took)
            }
            1 => {
                fill(&mut input[..block], rank, round, first);
                let begin = Instant::now();
                communicator.all_gather(&input[..block], output)?;
                let took = begin.elapsed();
                blocks(output, 0)?;
                Ok(took)
            }
            2 => {
                fill(output, rank, round, first);
                let begin = Instant::now();
                let own = communicator.reduce_scatter(output)?;
                let took = begin.elapsed();
                check(&output[own.clone()], 0..ranks, round, first + own.start)?;
                Ok(took)
            }
            3 => {
                fill(input, rank, round, first);
                let begin = Instant::now();
                communicator.all_to_all(input, output)?;
                let took = begin.elapsed();
                blocks(output, rank * block)?;
                Ok(took)
            }
            _ => {
                let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                fill(input, rank, round, first);
                let begin = Instant::now();
                communicator.send_recv(to, input, from, output)?;
                let took = begin.elapsed();
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
