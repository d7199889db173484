//! Many processes at once, each with connections to several others: how long they take to come up and to go, and what
//! each process takes for them.
//!
//! Rank r sends to the ranks after it, one after the other and round again, and receives from those before it. So every
//! rank has as many connections each way, and to as many others.

use crate::bootstrap::{BootstrapError, Link};
use crate::ends::accept;
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use crate::process::Held;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::net::{
    Comm, Handle, ListenComm, NetApi, NetError, Part, RecvComm, Registration, Request, SendComm,
};
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
    /// What `look` answered with every connection used once.
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
    let (mut listens, own) = listen(&net, device, connections)?;
    let mut handles = exchange(link, &own)?;
    let listening = Held::now();
    link.barrier()?;
    let (sends, recvs) = connect(&net, device, &mut listens, &mut handles, &mut patience)?;
    let set_up = link.slowest(begin.elapsed())?;
    progress(link, "one message on each");
    let begin = Instant::now();
    let ends = Ends::register(&net, sends, recvs, &outgoing, &incoming)?;
    link.barrier()?;
    ends.transfer(&net, &outgoing, &incoming, &mut patience)?;
    for index in 0..connections {
        incoming.check(index..index + 1, sender(link, index))?;
    }
    let messages = link.slowest(begin.elapsed())?;
    let (connected, seen) = (Held::now(), look());
    progress(link, "the end of all");
    link.barrier()?;
    let begin = Instant::now();
    ends.close(&net)?;
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

/// Listens for every connection, and answers with the bytes of all handles too.
fn listen<N: NetApi>(net: &N, device: i32, connections: usize) -> Result<(Vec<Option<ListenComm>>, Vec<u8>), NetError> {
    let mut listens = Vec::with_capacity(connections);
    let mut handles = Vec::with_capacity(connections * HANDLE_MAX_BYTES);
    for _ in 0..connections {
        let mut handle = Handle::default();
        listens.push(Some(net.listen(device, &mut handle)?));
        handles.extend_from_slice(&handle.0);
    }
    Ok((listens, handles))
}

/// Tells all ranks the own handles, and answers those to connect to. They are on the heap, because the plugin writes to
/// them and they must not move.
fn exchange(link: &mut Link, own: &[u8]) -> Result<Box<[Handle]>, BootstrapError> {
    let all = link.all_gather(own)?;
    let handle = |index: usize| {
        let rank = receiver(link, index);
        let (handles, _) = all[rank].as_chunks::<HANDLE_MAX_BYTES>();
        let garbled = || BootstrapError::Garbled { what: format!("the handles of rank {rank}") };
        handles.get(index).map(|bytes| Handle(*bytes)).ok_or_else(garbled)
    };
    (0..own.len() / HANDLE_MAX_BYTES).map(handle).collect()
}

/// Polls all connects and accepts in turn until every connection is there.
fn connect<N: NetApi>(
    net: &N,
    device: i32,
    listens: &mut [Option<ListenComm>],
    handles: &mut [Handle],
    patience: &mut Patience<'_>,
) -> Result<(Vec<SendComm>, Vec<RecvComm>), CommunicatorError> {
    let mut sends: Vec<Option<SendComm>> = handles.iter().map(|_| None).collect();
    let mut recvs: Vec<Option<RecvComm>> = listens.iter().map(|_| None).collect();
    loop {
        let mut moved = false;
        for (send, handle) in sends.iter_mut().zip(handles.iter_mut()).filter(|(send, _)| send.is_none()) {
            *send = net.connect(device, handle)?;
            moved |= send.is_some();
        }
        for (recv, listen) in recvs.iter_mut().zip(listens.iter_mut()).filter(|(recv, _)| recv.is_none()) {
            *recv = accept(net, listen)?;
            moved |= recv.is_some();
        }
        let to = sends.iter().filter(|send| send.is_none()).count();
        let from = recvs.iter().filter(|recv| recv.is_none()).count();
        if to + from == 0 {
            return Ok((sends.into_iter().flatten().collect(), recvs.into_iter().flatten().collect()));
        }
        patience.after_round(moved, || format!("connections: {to} connects and {from} accepts are missing"))?;
    }
}

/// All connections of one rank, with their messages' memory registered.
struct Ends {
    sends: Vec<(SendComm, Registration)>,
    recvs: Vec<(RecvComm, Registration)>,
}

impl Ends {
    fn register<N: NetApi>(
        net: &N,
        sends: Vec<SendComm>,
        recvs: Vec<RecvComm>,
        outgoing: &Messages,
        incoming: &Messages,
    ) -> Result<Self, NetError> {
        let register = |comm: Comm<'_>, messages: &Messages, index: usize| {
            // SAFETY: the messages' memory outlives the connections, which end the registrations at the latest.
            unsafe { net.reg_mr(comm, messages.start(index), messages.bytes()) }
        };
        let mut ends = Self { sends: Vec::with_capacity(sends.len()), recvs: Vec::with_capacity(recvs.len()) };
        for (index, comm) in sends.into_iter().enumerate() {
            let registration = register(Comm::Send(&comm), outgoing, index)?;
            ends.sends.push((comm, registration));
        }
        for (index, comm) in recvs.into_iter().enumerate() {
            let registration = register(Comm::Recv(&comm), incoming, index)?;
            ends.recvs.push((comm, registration));
        }
        Ok(ends)
    }

    /// Receives and sends one message on every connection.
    fn transfer<N: NetApi>(
        &self,
        net: &N,
        outgoing: &Messages,
        incoming: &Messages,
        patience: &mut Patience<'_>,
    ) -> Result<(), CommunicatorError> {
        let mut unposted: Vec<usize> = (0..self.recvs.len()).collect();
        let mut unsent: Vec<usize> = (0..self.sends.len()).collect();
        let mut requests: Vec<Request> = Vec::new();
        while !(unposted.is_empty() && unsent.is_empty() && requests.is_empty()) {
            let before = (unposted.len(), unsent.len(), requests.len());
            let mut started = Vec::new();
            let post = |index: usize| {
                let (comm, registration) = &self.recvs[index];
                let (data, bytes) = (incoming.start(index), incoming.bytes());
                let part = Part { data, bytes, tag: 0, registration: *registration };
                // SAFETY: the message lies inside its registration and stays until the connection is closed.
                unsafe { net.irecv(comm, &[part], false) }
            };
            begin(&mut unposted, &mut started, post)?;
            let send = |index: usize| {
                let (comm, registration) = &self.sends[index];
                // SAFETY: as for a receive.
                unsafe { net.isend(comm, outgoing.start(index), outgoing.bytes(), 0, *registration) }
            };
            begin(&mut unsent, &mut started, send)?;
            for request in std::mem::take(&mut requests) {
                // SAFETY: one that was done is not kept.
                if !unsafe { net.test(&request, None) }? {
                    requests.push(request);
                }
            }
            let moved = (unposted.len(), unsent.len(), requests.len()) != before;
            requests.append(&mut started);
            patience.after_round(moved, || {
                let (sends, undone) = (unsent.len(), requests.len());
                format!("messages: {sends} found no receive yet, {undone} requests are not done")
            })?;
        }
        Ok(())
    }

    fn close<N: NetApi>(self, net: &N) -> Result<(), NetError> {
        for (comm, registration) in self.sends {
            // SAFETY: made in `register` for this connection.
            unsafe { net.dereg_mr(Comm::Send(&comm), registration) }?;
            net.close_send(comm)?;
        }
        for (comm, registration) in self.recvs {
            // SAFETY: as above.
            unsafe { net.dereg_mr(Comm::Recv(&comm), registration) }?;
            net.close_recv(comm)?;
        }
        Ok(())
    }
}

/// Tries to begin what is `left`, and keeps there what cannot begin yet.
fn begin(
    left: &mut Vec<usize>,
    started: &mut Vec<Request>,
    mut try_one: impl FnMut(usize) -> Result<Option<Request>, NetError>,
) -> Result<(), NetError> {
    for index in std::mem::take(left) {
        match try_one(index)? {
            Some(request) => started.push(request),
            None => left.push(index),
        }
    }
    Ok(())
}
