//! Many connections at once between two ranks: how long they take to come up, what memory they take, and what they cost
//! while nobody uses them.
//!
//! All of them lead from rank 0 to rank 1, so that what one rank takes is what that kind of end takes.

use crate::bootstrap::Link;
use crate::ends::{self, Ends, all};
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::{ThreadTime, descriptors, left_alone, resident_bytes};
use railweave_nccl_host::net::{NetApi, NetError, Part, Registration, Request};
use std::time::{Duration, Instant};

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on both ranks.
    pub device: i32,
    /// How many connections.
    pub connections: usize,
    /// The size of the one message that each of them carries, a multiple of 4.
    pub message_bytes: usize,
    /// How long to leave them alone afterwards; nothing of it is measured when this is zero.
    pub idle: Duration,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// What one rank measured. The times are those of the slower rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// From the first listen until every connection is there.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all were checked.
    pub messages: Duration,
    /// Memory in use by this process (its resident set) before the first listen, in bytes. The messages' own memory is in it.
    pub memory_before: u64,
    /// Memory in use with every connection used once, in bytes.
    pub memory_after: u64,
    /// Open descriptors before the first listen.
    pub descriptors_before: usize,
    /// Open descriptors with every connection there.
    pub descriptors_after: usize,
    /// What each thread of this process took while the connections were left alone.
    pub idle: Vec<ThreadTime>,
}

/// Both ranks of `link` call this together. `progress` is told what begins.
///
/// # Errors
/// As a communicator's calls; when a message is not what was sent; and when there are not exactly two ranks.
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
    let messages = if link.rank() == 0 { Messages::from(0, bytes, count) } else { Messages::room(bytes, count) };
    progress(link, &format!("set-up of {} connections", settings.connections));
    let (memory_before, descriptors_before) = (resident_bytes(), descriptors());
    link.barrier()?;
    let begin = Instant::now();
    let (ends, _) = Ends::open(net, link, settings.device, settings.connections, 0, &mut patience)?;
    let set_up = link.slowest(begin.elapsed())?;
    let descriptors_after = descriptors();
    progress(link, "one message on each");
    let begin = Instant::now();
    let registrations = register(net, &ends, &messages)?;
    link.barrier()?;
    transfer(net, &ends, &messages, &registrations, &mut patience)?;
    if link.rank() == 1 {
        messages.check(0..count, 0)?;
    }
    let carried = link.slowest(begin.elapsed())?;
    let memory_after = resident_bytes();
    let mut idle = Vec::new();
    if !settings.idle.is_zero() {
        progress(link, &format!("{} s without any call", settings.idle.as_secs_f64()));
        link.barrier()?;
        idle = left_alone(settings.idle);
    }
    link.barrier()?;
    deregister(net, &ends, registrations)?;
    ends.close(net)?;
    Ok(Results { set_up, messages: carried, memory_before, memory_after, descriptors_before, descriptors_after, idle })
}

/// Registers each connection's message for it.
fn register<N: NetApi>(net: &N, ends: &Ends, messages: &Messages) -> Result<Vec<Registration>, NetError> {
    // SAFETY: the messages' memory outlives the connections, which end the registrations at the latest.
    let register = |(index, comm)| unsafe { net.reg_mr(comm, messages.start(index), messages.bytes()) };
    ends.comms().into_iter().enumerate().map(register).collect()
}

/// Starts the message of every connection, then tests all until all are done.
fn transfer<N: NetApi>(
    net: &N,
    ends: &Ends,
    messages: &Messages,
    registrations: &[Registration],
    patience: &mut Patience<'_>,
) -> Result<(), CommunicatorError> {
    let requests: Vec<Request> = match ends {
        Ends::Send(comms) => all(comms.len(), patience, "a receive for a send", |index| {
            let (start, registration) = (messages.start(index), registrations[index]);
            // SAFETY: the message lies inside its registration and stays until the connection is closed.
            unsafe { net.isend(&comms[index], start, messages.bytes(), 0, registration) }
        })?,
        Ends::Recv(comms) => all(comms.len(), patience, "room for a receive", |index| {
            let registration = registrations[index];
            let part = Part { data: messages.start(index), bytes: messages.bytes(), tag: 0, registration };
            // SAFETY: as for a send.
            unsafe { net.irecv(&comms[index], &[part], false) }
        })?,
    };
    all(requests.len(), patience, "the end of a message", |index| {
        // SAFETY: `all` asks no more once the answer was yes.
        Ok(unsafe { net.test(&requests[index], None) }?.then_some(()))
    })?;
    Ok(())
}

fn deregister<N: NetApi>(net: &N, ends: &Ends, registrations: Vec<Registration>) -> Result<(), NetError> {
    ends.comms().into_iter().zip(registrations).try_for_each(|(comm, registration)| {
        // SAFETY: made in `register` for this connection.
        unsafe { net.dereg_mr(comm, registration) }
    })
}
