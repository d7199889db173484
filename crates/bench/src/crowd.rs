//! Many processes at once, each with connections to several others: the time to set them up and to tear them down, and
//! the resources that each process uses for them.
//!
//! Rank r's outgoing connections lead to ranks r + 1, r + 2 and so on, modulo the number of ranks and without r itself,
//! and start over after the last one. So every rank has the same number of connections each way, and the same number of
//! peers.

use crate::bootstrap::{BootstrapError, Link};
use crate::ends::{Ends, bytes_of, listen};
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::Held;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::net::{Handle, NetApi, NetError};
use std::time::{Duration, Instant};

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on all ranks.
    pub device: i32,
    /// The number of connections of each rank as sender, at least 1; each rank is the receiver of this many others too.
    pub connections: usize,
    /// The size of the one message that each connection carries, a multiple of 4.
    pub message_bytes: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results of one rank. The times are those of the slowest rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results<T> {
    /// From the first listen until every connection of every rank is set up.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all messages were checked.
    pub messages: Duration,
    /// From the first close until `finalize` has returned everywhere.
    pub teardown: Duration,
    /// The resources before the first listen.
    pub before: Held,
    /// The resources with every listen open, and no connection.
    pub listening: Held,
    /// The resources with every connection used once.
    pub connected: Held,
    /// The resources after `finalize`.
    pub after: Held,
    /// The value that `look` returned with every connection used once.
    pub seen: T,
}

/// The time that a rank sleeps if nothing moved: ranks that spin would take the processors from the measurement.
const REST: Duration = Duration::from_millis(1);

/// Runs the measurement; all ranks of `link` call this together. `progress` is called with each step as it begins;
/// `look` is called when all connections have been used; `finalize` ends the net.
///
/// # Errors
/// If a connection or a transfer fails, a message arrives changed, there is a single rank, or the number of connections
/// is 0.
pub fn run<N: NetApi, T>(
    net: N,
    link: &mut Link,
    settings: &Settings,
    mut progress: impl FnMut(&mut Link, &str),
    look: impl FnOnce() -> T,
    finalize: impl FnOnce(N) -> Result<(), NetError>,
) -> Result<Results<T>, CommunicatorError> {
    let Settings { device, connections, stall, .. } = *settings;
    if link.ranks() < 2 || connections == 0 {
        let what = format!("{connections} connections of each of {} ranks", link.ranks());
        return Err(CommunicatorError::Usage { what, allowed: "at least 1 connection and 2 ranks" });
    }
    let abort = link.abort_flag();
    let mut patience = Patience::new(link.rank(), stall, &abort).resting(REST);
    let outgoing = Messages::from(link.rank(), settings.message_bytes, connections);
    let incoming = Messages::room(settings.message_bytes, connections);
    progress(link, &format!("set-up of {} connections by each of {} ranks", connections, link.ranks()));
    link.barrier()?;
    let before = Held::now();
    let begin = Instant::now();
    let (listens, own) = listen(&net, device, connections)?;
    let handles = exchange(link, &own)?;
    let listening = Held::now();
    link.barrier()?;
    let ends = Ends::open(&net, device, listens, handles, &mut patience, |connects, accepts| {
        format!("connections: {connects} connects and {accepts} accepts are missing")
    })?;
    let set_up = link.slowest(begin.elapsed())?;
    progress(link, "one message on each");
    let begin = Instant::now();
    let ends = ends.register(&net, &outgoing, &incoming)?;
    link.barrier()?;
    ends.transfer(&net, &mut patience)?;
    for index in 0..connections {
        incoming.check(index..index + 1, sender(link, index))?;
    }
    let messages = link.slowest(begin.elapsed())?;
    let (connected, seen) = (Held::now(), look());
    progress(link, "teardown");
    link.barrier()?;
    let begin = Instant::now();
    ends.deregister(&net)?.close(&net)?;
    finalize(net)?;
    let teardown = link.slowest(begin.elapsed())?;
    Ok(Results { set_up, messages, teardown, before, listening, connected, after: Held::now(), seen })
}

/// Returns the distance from a rank to the receiver of its connection with this index: 1 to `ranks` - 1.
fn distance(ranks: usize, index: usize) -> usize {
    1 + index % (ranks - 1)
}

/// Returns the rank that receives on this rank's outgoing connection with this index.
fn receiver(link: &Link, index: usize) -> usize {
    (link.rank() + distance(link.ranks(), index)) % link.ranks()
}

/// Returns the rank that sends on this rank's incoming connection with this index.
fn sender(link: &Link, index: usize) -> usize {
    (link.rank() + link.ranks() - distance(link.ranks(), index)) % link.ranks()
}

/// Sends this rank's handles to all ranks, and returns those to connect to.
fn exchange(link: &mut Link, own: &[Handle]) -> Result<Box<[Handle]>, BootstrapError> {
    let all = link.all_gather(&bytes_of(own))?;
    let handle = |index: usize| {
        let rank = receiver(link, index);
        let (handles, _) = all[rank].as_chunks::<HANDLE_MAX_BYTES>();
        let garbled = || BootstrapError::Garbled { what: format!("the handles of rank {rank}") };
        handles.get(index).map(|bytes| Handle(*bytes)).ok_or_else(garbled)
    };
    (0..own.len()).map(handle).collect()
}
