//! The ranks of `railweave bench --pairs` and of the demonstration on slowed rails: messages of each size from every
//! even rank to the next one, for a given time.

use crate::device::Device;
use crate::measurement::{Subject, done, look, phase};
use crate::network::{Network, Started};
use crate::over_time::{RailShare, shares};
use railweave_bench::bootstrap::Link;
use railweave_bench::flow::{Results, Settings, run};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::time::Duration;

/// The job of each rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The plugin.
    pub(crate) network: Network,
    /// Its device.
    pub(crate) device: Device,
    /// The sizes of messages in bytes, one after the other.
    pub(crate) sizes: Vec<usize>,
    /// The number of small messages before each message.
    pub(crate) small: usize,
    /// Messages in flight.
    pub(crate) in_flight: usize,
    /// The time that is measured at each size.
    pub(crate) seconds: f64,
    /// The time before it.
    pub(crate) warm_up: f64,
    /// True if every byte is checked.
    pub(crate) checked: bool,
    /// The period in which the rails' traffic is reported, if it is.
    pub(crate) every: Option<Duration>,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OfRank {
    /// The plugin and device.
    pub(crate) subject: Subject,
    /// One entry for each size.
    pub(crate) flows: Vec<Flow>,
}

/// The results of a rank at one size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// The messages that it sent or received.
    pub(crate) messages: usize,
    /// Messages in flight.
    pub(crate) in_flight: usize,
    /// On a receiver, the bytes that came in each [`BIN`](railweave_bench::flow::BIN).
    pub(crate) bins: Vec<u64>,
    /// On a receiver, the rate in the measured time.
    pub(crate) mbit_per_second: f64,
    /// On a receiver, the longest time between two large messages in that time, in milliseconds.
    pub(crate) longest_pause_ms: f64,
    /// On a receiver, the begin and the length of each pause of at least [`PAUSE`](railweave_bench::flow::PAUSE), in
    /// milliseconds; the begin counts from that of this size.
    pub(crate) pauses_ms: Vec<[f64; 2]>,
    /// The traffic of this rank as sender; empty if the plugin has no counters.
    pub(crate) rails: Vec<RailShare>,
}

/// Does the work of a rank.
pub(crate) fn work(job: &Job, link: &mut Link) -> Result<(), Box<dyn Error>> {
    let Started { plugin, net, profiler: _profiler } = job.network.start_rank((link.rank(), link.ranks()))?;
    let (device, name) = job.device.choose(&net)?;
    let mut sampler = None;
    let mut flows = Vec::with_capacity(job.sizes.len());
    for bytes in &job.sizes {
        let settings = Settings {
            device,
            message_bytes: *bytes,
            small: job.small,
            in_flight: job.in_flight,
            warm_up: Duration::from_secs_f64(job.warm_up),
            time: Duration::from_secs_f64(job.seconds),
            checked: job.checked,
            stall: job.network.stall(),
        };
        let counted = || plugin.rail_counters().unwrap_or_default();
        let before = counted();
        let results = run(&net, link, &settings, |link| {
            sampler.get_or_insert_with(|| look(job.every, link, &plugin));
            phase(link, &format!("bandwidth of {bytes} bytes"));
        })?;
        let Results { messages, in_flight, bins, megabits_per_second: mbit_per_second, longest_pause, pauses } =
            results;
        let in_ms = |time: Duration| time.as_secs_f64() * 1e3;
        let pauses_ms = pauses.iter().map(|pause| [in_ms(pause.since), in_ms(pause.time)]).collect();
        let (rails, longest_pause_ms) = (shares(&before, &counted()), in_ms(longest_pause));
        flows.push(Flow { messages, in_flight, bins, mbit_per_second, longest_pause_ms, pauses_ms, rails });
    }
    drop(sampler.transpose()?);
    net.finalize()?;
    done(link, OfRank { subject: Subject::new(&plugin, name), flows })
}
