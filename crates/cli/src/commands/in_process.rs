//! `railweave bench --in-process`: messages of this process to itself, for tools that count instructions.

use crate::device::Device;
use crate::measurement::Subject;
use crate::network::NetworkArguments;
use crate::output::{only_for_results, table};
use crate::size::{self, Size};
use clap::Args;
use railweave_bench::fake_ibverbs::DeviceWork;
use railweave_bench::message_loop::{Results, Settings, run as carry};
use serde::Serialize;
use std::error::Error;
use std::io::Write;

/// Arguments of `railweave bench --in-process`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InProcessArguments {
    /// Only measures messages between two ends in this process and one thread, with the loop over the messages in the
    /// function railweave_message_loop, which callgrind counts alone with --toggle-collect=railweave_message_loop
    #[arg(long, conflicts_with_all = ["sizes", "seconds", "warm_up", "connects", "raw", "rank_command"])]
    pub(crate) in_process: bool,
    /// With --in-process: the number of messages that the loop carries
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, requires = "in_process")]
    #[arg(conflicts_with = "connections", value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// With --in-process: the size of a message
    #[arg(long, value_name = "SIZE", default_value = "8", requires = "in_process", conflicts_with = "connections")]
    #[arg(value_parser = size::of_message)]
    bytes: Size,
}

/// The form of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of messages that the loop carried.
    messages: usize,
    /// The size of a message.
    message_bytes: usize,
    /// Messages in flight.
    in_flight: usize,
    /// The time of the loop.
    seconds: f64,
    /// The work of each device; `None` unless the devices are those of the fake libibverbs, which counts it.
    devices: Option<Vec<DeviceOutcome>>,
}

/// The work of one device for one message, for both ends together.
#[derive(Debug, Serialize)]
struct DeviceOutcome {
    /// The device's name.
    device: String,
    /// Work requests posted to send queues.
    sends: f64,
    /// The writes with an immediate among them.
    sends_with_immediate: f64,
    /// Receives posted.
    receives: f64,
    /// Completions polled.
    completions: f64,
}

/// Runs the loop and prints the results.
pub(crate) fn run(
    arguments: &InProcessArguments,
    network: &NetworkArguments,
    device: &Device,
    in_flight: usize,
    json: bool,
) -> Result<(), Box<dyn Error>> {
    network.set_variables()?;
    let mut out = only_for_results()?;
    let network = network.network()?;
    let (plugin, net) = network.start("")?;
    let (index, name) = device.choose(&net)?;
    let (bytes, messages, stall) = (arguments.bytes.0, arguments.messages as usize, network.stall());
    let Results { messages, in_flight, took, work } =
        carry(&net, &Settings { device: index, bytes, messages, in_flight, stall })?;
    net.finalize()?;
    let subject = Subject::new(&plugin, name);
    let seconds = took.as_secs_f64();
    let devices = work.map(|work| work.into_iter().map(|work| DeviceOutcome::of(work, messages)).collect());
    let outcome = Outcome { subject, messages, message_bytes: bytes, in_flight, seconds, devices };
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&outcome)?)?;
        return Ok(());
    }
    writeln!(out, "{}", outcome.subject)?;
    writeln!(
        out,
        "{messages} messages of {}, {in_flight} in flight, from this process to itself: {:.3} µs each, all arrived \
         unchanged",
        arguments.bytes,
        seconds * 1e6 / messages as f64,
    )?;
    if let Some(devices) = &outcome.devices {
        let mut rows = table(&["for each message", "work requests", "with immediate", "receives", "completions"], 1);
        for DeviceOutcome { device, sends, sends_with_immediate, receives, completions } in devices {
            let numbers = [sends, sends_with_immediate, receives, completions];
            rows.add_row([device.clone()].into_iter().chain(numbers.map(|number| format!("{number:.2}"))));
        }
        writeln!(out, "{rows}")?;
    }
    Ok(())
}

impl DeviceOutcome {
    /// Returns one message's share of the work for `messages`.
    fn of(work: DeviceWork, messages: usize) -> Self {
        let each = |count: u64| count as f64 / messages as f64;
        let DeviceWork { device, sends, sends_with_immediate, receives, completions } = work;
        Self {
            device,
            sends: each(sends),
            sends_with_immediate: each(sends_with_immediate),
            receives: each(receives),
            completions: each(completions),
        }
    }
}
