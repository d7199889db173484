//! Many connections at once between two ranks: the time to set them up, their memory, and their cost while idle.
//!
//! All of them lead from rank 0 to rank 1, so that rank 0's figures are those of sending ends alone, and rank 1's those
//! of receiving ends.

use crate::bootstrap::Link;
use crate::ends::{self, Ends};
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::{ThreadTime, descriptors, left_alone, resident_bytes};
use railweave_nccl_host::net::NetApi;
use std::time::{Duration, Instant};

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on both ranks.
    pub device: i32,
    /// The number of connections.
    pub connections: usize,
    /// The size of the one message that each connection carries, a multiple of 4.
    pub message_bytes: usize,
    /// The time to leave the connections idle afterwards; zero omits that measurement.
    pub idle: Duration,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results of one rank. The times are those of the slower rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// From the first listen until every connection is set up.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all messages were checked.
    pub messages: Duration,
    /// Memory in use by this process (its resident set) before the first listen, in bytes. It includes the messages'
    /// own memory.
    pub memory_before: u64,
    /// Memory in use with every connection used once, in bytes.
    pub memory_after: u64,
    /// Open descriptors before the first listen.
    pub descriptors_before: usize,
    /// Open descriptors with every connection set up.
    pub descriptors_after: usize,
    /// The processor time of each thread of this process while the connections were idle.
    pub idle: Vec<ThreadTime>,
}

/// Runs the measurement; both ranks of `link` call this together. `progress` is called with each step as it begins.
///
/// # Errors
/// If a connection or a transfer fails, a message arrives changed, or there are not exactly two ranks.
pub fn run<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    mut progress: impl FnMut(&mut Link, &str),
) -> Result<Results, CommunicatorError> {
    ends::check_ranks(link, "a measurement of many connections")?;
    let abort = link.abort_flag();
    let mut patience = Patience::new(link.rank(), settings.stall, &abort);
    let (bytes, count) = (settings.message_bytes, settings.connections);
    let (sends, recvs) = if link.rank() == 0 { (count, 0) } else { (0, count) };
    let (outgoing, incoming) = (Messages::from(0, bytes, sends), Messages::room(bytes, recvs));
    progress(link, &format!("set-up of {count} connections"));
    let (memory_before, descriptors_before) = (resident_bytes(), descriptors());
    link.barrier()?;
    let begin = Instant::now();
    let (ends, _) = Ends::between(net, link, settings.device, count, 0, &mut patience)?;
    let set_up = link.slowest(begin.elapsed())?;
    let descriptors_after = descriptors();
    progress(link, "one message on each");
    let begin = Instant::now();
    let ends = ends.register(net, &outgoing, &incoming)?;
    link.barrier()?;
    ends.transfer(net, &mut patience)?;
    incoming.check(0..recvs, 0)?;
    let messages = link.slowest(begin.elapsed())?;
    let memory_after = resident_bytes();
    let mut idle = Vec::new();
    if !settings.idle.is_zero() {
        progress(link, &format!("{} s without any call", settings.idle.as_secs_f64()));
        link.barrier()?;
        idle = left_alone(settings.idle);
    }
    link.barrier()?;
    ends.deregister(net)?.close(net)?;
    Ok(Results { set_up, messages, memory_before, memory_after, descriptors_before, descriptors_after, idle })
}
