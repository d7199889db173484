//! Many connections of this process with itself, both ends in one thread: their objects, the memory that they register,
//! and the time to set them up and to tear them down.

use crate::in_process::ends;
use clap::Args;
use railweave_bench::messages::Messages;
use railweave_bench::patience::Patience;
use railweave_bench::process::resident_bytes;
use railweave_fake_ibverbs::{FakeVerbs, Open};
use railweave_nccl_host::net::NetApi;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The size of each connection's message in bytes.
const MESSAGE_BYTES: usize = 4 << 10;

/// The settings of the measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    /// The number of connections
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    connections: usize,
}

/// The results, of both ends together.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Results {
    /// From the first listen until every connection is set up.
    pub(crate) set_up_s: f64,
    /// From then until every connection has carried its message, and all messages were checked.
    pub(crate) messages_s: f64,
    /// From the first close until the last has returned and no object of the connections is open.
    pub(crate) teardown_s: f64,
    /// Growth of the process's resident memory, with every connection used once, divided by the connections.
    pub(crate) bytes_per_connection: f64,
    /// The open objects of the connections before any message is registered.
    pub(crate) objects: Open,
}

/// Connects this process with itself, carries one message over each connection, checks it, and closes all connections.
/// `stall` is the longest time without any progress.
pub(crate) fn run<N: NetApi>(
    net: &N,
    device: i32,
    fake: &FakeVerbs,
    stall: Duration,
    settings: &Settings,
) -> Result<Results, Box<dyn Error>> {
    let abort = AtomicBool::new(false);
    let mut patience = Patience::new(0, stall, &abort);
    let count = settings.connections;
    let (outgoing, incoming) = (Messages::from(0, MESSAGE_BYTES, count), Messages::room(MESSAGE_BYTES, count));
    let (before, resident) = (fake.open(), resident_bytes());
    let begin = Instant::now();
    let ends = ends::both(net, device, count, &mut patience)?;
    let set_up_s = begin.elapsed().as_secs_f64();
    let objects = of_connections(&fake.open(), &before);
    let begin = Instant::now();
    let ends = ends.register(net, &outgoing, &incoming)?;
    ends.transfer(net, &mut patience)?;
    incoming.check(0..count, 0)?;
    let messages_s = begin.elapsed().as_secs_f64();
    let bytes_per_connection = (resident_bytes() as f64 - resident as f64) / count.max(1) as f64;
    let ends = ends.deregister(net)?;
    let begin = Instant::now();
    ends.close(net)?;
    // A plugin may continue to close in a thread of its own.
    loop {
        let left_over = of_connections(&fake.open(), &before);
        if left_over == Open::default() {
            break;
        }
        if begin.elapsed() > stall {
            return Err(format!("objects of closed connections are still open after {stall:?}: {left_over:?}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let teardown_s = begin.elapsed().as_secs_f64();
    Ok(Results { set_up_s, messages_s, teardown_s, bytes_per_connection, objects })
}

/// Returns the objects in `after` beyond those in `before`, without those that all connections of a device share.
fn of_connections(after: &Open, before: &Open) -> Open {
    Open {
        queue_pairs: after.queue_pairs.saturating_sub(before.queue_pairs),
        completion_queues: after.completion_queues.saturating_sub(before.completion_queues),
        shared_receive_queues: after.shared_receive_queues.saturating_sub(before.shared_receive_queues),
        regions: after.regions.saturating_sub(before.regions),
        region_bytes: after.region_bytes.saturating_sub(before.region_bytes),
        work_places: after.work_places.saturating_sub(before.work_places),
        completion_places: after.completion_places.saturating_sub(before.completion_places),
        ..Open::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{Faults, alone};
    use railweave_bench::CommunicatorError;
    use railweave_fake_ibverbs::build;
    use std::sync::atomic::Ordering::SeqCst;

    /// Measures five connections over the net in memory, which have no objects of libibverbs.
    fn measure(net: &impl NetApi) -> Result<Results, Box<dyn Error>> {
        let fake = FakeVerbs::load(&build()).unwrap();
        run(net, 0, &fake, Duration::from_secs(60), &Settings { connections: 5 })
    }

    #[test]
    fn every_connection_carries_its_message_and_is_closed() {
        let (net, world) = alone(Faults::default());
        assert_eq!(measure(&net).unwrap().objects, Open::default());
        assert_eq!((world.messages.load(SeqCst), world.open.load(SeqCst)), (5, 0));
    }

    #[test]
    fn a_message_that_changes_on_its_way_is_noticed() {
        let (net, _) = alone(Faults { flip_bit: Some(3), ..Faults::default() });
        let error = measure(&net).unwrap_err().downcast::<CommunicatorError>().unwrap();
        assert!(matches!(*error, CommunicatorError::WrongData { connections: 5, .. }), "{error}");
    }

    #[test]
    fn objects_open_before_are_not_the_connections() {
        let before = Open { queue_pairs: 1, region_bytes: 4096, ..Open::default() };
        let after = Open { queue_pairs: 3, region_bytes: 8192, regions: 1, domains: 1, ..Open::default() };
        let expected = Open { queue_pairs: 2, region_bytes: 4096, regions: 1, ..Open::default() };
        assert_eq!(of_connections(&after, &before), expected);
    }
}
