//! Many processes at once, each with connections to several others: how long they take to come up and to go, and what
//! each process takes for them.
//!
//! Rank r sends to the ranks after it, one after the other and round again, and receives from those before it. So every
//! rank has as many connections each way, and to as many others.

use crate::bootstrap::{BootstrapError, Link};
use crate::ends::{Ends, bytes_of, listen};
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::Held;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::net::{Handle, NetApi, NetError};
use std::time::{Duration, Instant};

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on all ranks.
    pub device: i32,
    /// How many connections each rank has as their sender, at least 1; as their receiver it has as many.
    pub connections: usize,
    /// The size of the one message that each of them carries, a multiple of 4.
    pub message_bytes: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// What one rank measured. The times are those of the slowest rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results<T> {
    /// From the first listen until every connection of every rank is there.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all were checked.
    pub messages: Duration,
    /// From the first close until `finalize` has returned everywhere.
    pub teardown: Duration,
    /// Before the first listen.
    pub before: Held,
    /// With every listen there, and no connection.
    pub listening: Held,
    /// With every connection used once.
    pub connected: Held,
    /// After `finalize`.
    pub after: Held,
    /// What `look` returned with every connection used once.
    pub seen: T,
}

/// How long a rank rests when nothing moved: ranks that spin would take the processors from what is measured.
const REST: Duration = Duration::from_millis(1);

/// All ranks of `link` call this together. `progress` is told what begins; `look` is asked when all is there;
/// `finalize` is the end of the net.
///
/// # Errors
/// As a communicator's calls; when a message is not what was sent; and when there is one rank only, or no connection.
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
    progress(link, "the end of all");
    link.barrier()?;
    let begin = Instant::now();
    ends.deregister(&net)?.close(&net)?;
    finalize(net)?;
    let teardown = link.slowest(begin.elapsed())?;
    Ok(Results { set_up, messages, teardown, before, listening, connected, after: Held::now(), seen })
}

/// How far a rank is from the one that it has its connection of this number to: 1 to `ranks` - 1.
fn distance(ranks: usize, index: usize) -> usize {
    1 + index % (ranks - 1)
}

/// Who receives this rank's connection of this number.
fn receiver(link: &Link, index: usize) -> usize {
    (link.rank() + distance(link.ranks(), index)) % link.ranks()
}

/// Who sends on the connection of this number that this rank receives.
fn sender(link: &Link, index: usize) -> usize {
    (link.rank() + link.ranks() - distance(link.ranks(), index)) % link.ranks()
}

/// Gives the own handles to all ranks, and returns those to connect to.
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
