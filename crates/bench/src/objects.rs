//! Many connections of this process with itself, both ends in one thread: their objects, the memory that they register,
//! and the time to set them up and to tear them down.

use crate::ends::Ends;
use crate::error::CommunicatorError;
use crate::fake_ibverbs::{FakeVerbs, OpenObjects};
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::resident_bytes;
use railweave_nccl_host::net::NetApi;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use.
    pub device: i32,
    /// The number of connections.
    pub connections: usize,
    /// The size of the one message that each of them carries, a multiple of 4.
    pub message_bytes: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results, of both ends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// From the first listen until every connection is set up.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all messages were checked.
    pub messages: Duration,
    /// From the first close until the last has returned and, if that is known, no object of the connections is open.
    pub teardown: Duration,
    /// Memory in use by this process (its resident set) in bytes, before the first listen and with every connection
    /// used once.
    pub memory: [u64; 2],
    /// The open objects of the connections before any message is registered; `None` unless the devices are those of the
    /// fake libibverbs, which counts them.
    pub objects: Option<OpenObjects>,
    /// The objects left open once all connections are closed.
    pub left_over: Option<OpenObjects>,
}

/// Connects this process with itself, carries one message over each connection, checks it, and closes all connections.
///
/// # Errors
/// If a connection or a transfer fails, or a message arrives changed.
pub fn run<N: NetApi>(net: &N, settings: &Settings) -> Result<Results, CommunicatorError> {
    let abort = AtomicBool::new(false);
    let mut patience = Patience::new(0, settings.stall, &abort);
    let (bytes, count) = (settings.message_bytes, settings.connections);
    let (outgoing, incoming) = (Messages::from(0, bytes, count), Messages::room(bytes, count));
    let fake = FakeVerbs::loaded();
    let open = || fake.as_ref().map(FakeVerbs::open);
    let (before, resident) = (open(), resident_bytes());
    let begin = Instant::now();
    let ends = Ends::both(net, settings.device, count, &mut patience)?;
    let set_up = begin.elapsed();
    let during = open();
    let begin = Instant::now();
    let ends = ends.register(net, &outgoing, &incoming)?;
    ends.transfer(net, &mut patience)?;
    incoming.check(0..count, 0)?;
    let messages = begin.elapsed();
    let memory = [resident, resident_bytes()];
    let ends = ends.deregister(net)?;
    let begin = Instant::now();
    ends.close(net)?;
    // A plugin may continue to close in a thread of its own.
    let is_closed =
        || open().zip(before).is_none_or(|(now, before)| difference(&now, &before) == OpenObjects::default());
    while !is_closed() && begin.elapsed() < settings.stall {
        std::thread::sleep(Duration::from_millis(1));
    }
    let teardown = begin.elapsed();
    let since = |after: Option<OpenObjects>| after.zip(before).map(|(after, before)| difference(&after, &before));
    Ok(Results { set_up, messages, teardown, memory, objects: since(during), left_over: since(open()) })
}

/// Returns the objects in `after` beyond those in `before`.
fn difference(after: &OpenObjects, before: &OpenObjects) -> OpenObjects {
    OpenObjects {
        queue_pairs: after.queue_pairs.saturating_sub(before.queue_pairs),
        completion_queues: after.completion_queues.saturating_sub(before.completion_queues),
        shared_receive_queues: after.shared_receive_queues.saturating_sub(before.shared_receive_queues),
        regions: after.regions.saturating_sub(before.regions),
        region_bytes: after.region_bytes.saturating_sub(before.region_bytes),
        work_places: after.work_places.saturating_sub(before.work_places),
        completion_places: after.completion_places.saturating_sub(before.completion_places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_open_before_are_not_the_connections() {
        let before = OpenObjects { queue_pairs: 1, region_bytes: 4096, ..OpenObjects::default() };
        let after = OpenObjects { queue_pairs: 3, region_bytes: 8192, regions: 1, ..OpenObjects::default() };
        let expected = OpenObjects { queue_pairs: 2, region_bytes: 4096, regions: 1, ..OpenObjects::default() };
        assert_eq!(difference(&after, &before), expected);
    }
}
