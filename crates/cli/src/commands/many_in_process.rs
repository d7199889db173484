//! `railweave bench --in-process --connections`: many connections of this process with itself, and their objects.

use crate::device::Device;
use crate::measurement::Subject;
use crate::network::NetworkArguments;
use crate::output::{only_for_results, table};
use crate::size::Size;
use railweave_bench::fake_ibverbs::OpenObjects;
use railweave_bench::objects::{Results, Settings, run as measure};
use serde::Serialize;
use std::error::Error;
use std::io::Write;

/// The size of each connection's message.
const MESSAGE_BYTES: usize = 4 << 10;

/// The form of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    subject: Subject,
    /// The number of connections.
    connections: usize,
    /// The size of each connection's message.
    message_bytes: usize,
    /// From the first listen until every connection was set up.
    set_up_s: f64,
    /// From then until every connection had carried its message, and all messages were checked.
    messages_s: f64,
    /// From the first close until the last had returned and, if that is known, no object of the connections was open.
    teardown_s: f64,
    /// Growth of the process's resident memory, divided by the connections.
    bytes_per_connection: f64,
    /// The open objects of the connections, both ends together; `None` unless the devices are those of the fake
    /// libibverbs.
    objects: Option<Objects>,
    /// The objects left open once all connections were closed.
    left_over: Option<Objects>,
}

/// Objects of libibverbs.
#[derive(Debug, Serialize)]
struct Objects {
    queue_pairs: u64,
    completion_queues: u64,
    shared_receive_queues: u64,
    regions: u64,
    region_bytes: u64,
    work_places: u64,
    completion_places: u64,
}

impl From<OpenObjects> for Objects {
    fn from(objects: OpenObjects) -> Self {
        let OpenObjects {
            queue_pairs,
            completion_queues,
            shared_receive_queues,
            regions,
            region_bytes,
            work_places,
            completion_places,
        } = objects;
        Self {
            queue_pairs,
            completion_queues,
            shared_receive_queues,
            regions,
            region_bytes,
            work_places,
            completion_places,
        }
    }
}

/// Runs the measurement and prints the results.
pub(crate) fn run(
    network: &NetworkArguments,
    device: &Device,
    connections: usize,
    json: bool,
) -> Result<(), Box<dyn Error>> {
    network.set_variables()?;
    let mut out = only_for_results()?;
    let network = network.network()?;
    let (plugin, net) = network.start("")?;
    let (index, name) = device.choose(&net)?;
    let settings = Settings { device: index, connections, message_bytes: MESSAGE_BYTES, stall: network.stall() };
    let Results { set_up, messages, teardown, memory, objects, left_over } = measure(&net, &settings)?;
    net.finalize()?;
    let outcome = Outcome {
        subject: Subject::new(&plugin, name),
        connections,
        message_bytes: MESSAGE_BYTES,
        set_up_s: set_up.as_secs_f64(),
        messages_s: messages.as_secs_f64(),
        teardown_s: teardown.as_secs_f64(),
        bytes_per_connection: (memory[1] as f64 - memory[0] as f64) / connections.max(1) as f64,
        objects: objects.map(Objects::from),
        left_over: left_over.map(Objects::from),
    };
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&outcome)?)?;
        return Ok(());
    }
    let Outcome { subject, set_up_s, messages_s, teardown_s, bytes_per_connection, .. } = &outcome;
    writeln!(out, "{subject}")?;
    writeln!(
        out,
        "{connections} connections of this process with itself: {set_up_s:.3} s until all are set up, {messages_s:.3} \
         s for a checked message of {} on each, {teardown_s:.3} s until all are closed; {:.1} KiB of memory each",
        Size(MESSAGE_BYTES),
        bytes_per_connection / 1024.0
    )?;
    if let Some(objects) = &outcome.objects {
        let mut rows = table(&["both ends of each connection", "count"], 1);
        for (name, count) in [
            ("queue pairs", objects.queue_pairs),
            ("completion queues", objects.completion_queues),
            ("shared receive queues", objects.shared_receive_queues),
            ("memory regions", objects.regions),
            ("registered bytes", objects.region_bytes),
            ("places for work requests", objects.work_places),
            ("places for completions", objects.completion_places),
        ] {
            rows.add_row([name.to_owned(), format!("{:.2}", count as f64 / connections.max(1) as f64)]);
        }
        writeln!(out, "{rows}")?;
    }
    Ok(())
}
