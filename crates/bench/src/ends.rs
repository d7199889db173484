//! The ends of connections that lead one way: set up many at once, polled in turn as NCCL's service thread does.

use crate::bootstrap::{BootstrapError, Link};
use crate::error::CommunicatorError;
use crate::patience::Patience;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::net::{Comm, Handle, ListenComm, NetApi, NetError, RecvComm, SendComm};
use std::time::{Duration, Instant};

/// The ends that one of two ranks has.
#[derive(Debug)]
pub(crate) enum Ends {
    /// Of the rank that sends.
    Send(Vec<SendComm>),
    /// Of the rank that receives.
    Recv(Vec<RecvComm>),
}

impl Ends {
    /// Sets up `count` connections from rank `sender` to the other one; both ranks call this together. Also answers how
    /// long it took this rank from the first poll on.
    pub(crate) fn open<N: NetApi>(
        net: &N,
        link: &mut Link,
        device: i32,
        count: usize,
        sender: usize,
        patience: &mut Patience<'_>,
    ) -> Result<(Self, Duration), CommunicatorError> {
        if link.rank() == sender {
            let receiver = 1 - sender;
            let handles = link.all_gather(&[])?.swap_remove(receiver);
            let (handles, rest) = handles.as_chunks::<HANDLE_MAX_BYTES>();
            if handles.len() != count || !rest.is_empty() {
                return Err(BootstrapError::Garbled { what: format!("the handles of rank {receiver}") }.into());
            }
            // On the heap, because the plugin writes to them and they must not move.
            let mut handles: Box<[Handle]> = handles.iter().map(|bytes| Handle(*bytes)).collect();
            link.barrier()?;
            let begin = Instant::now();
            let what = format!("connect to rank {receiver}");
            let comms = all(count, patience, &what, |index| net.connect(device, &mut handles[index]))?;
            return Ok((Self::Send(comms), begin.elapsed()));
        }
        let mut handles = Vec::with_capacity(count * HANDLE_MAX_BYTES);
        let mut listens = Vec::with_capacity(count);
        for _ in 0..count {
            let mut handle = Handle::default();
            listens.push(Some(net.listen(device, &mut handle)?));
            handles.extend_from_slice(&handle.0);
        }
        link.all_gather(&handles)?;
        link.barrier()?;
        let begin = Instant::now();
        let what = format!("accept from rank {sender}");
        let comms = all(count, patience, &what, |index| accept(net, &mut listens[index]))?;
        Ok((Self::Recv(comms), begin.elapsed()))
    }

    /// Each end, for registrations.
    pub(crate) fn comms(&self) -> Vec<Comm<'_>> {
        match self {
            Self::Send(comms) => comms.iter().map(Comm::Send).collect(),
            Self::Recv(comms) => comms.iter().map(Comm::Recv).collect(),
        }
    }

    /// Closes all.
    pub(crate) fn close<N: NetApi>(self, net: &N) -> Result<(), NetError> {
        match self {
            Self::Send(comms) => comms.into_iter().try_for_each(|comm| net.close_send(comm)),
            Self::Recv(comms) => comms.into_iter().try_for_each(|comm| net.close_recv(comm)),
        }
    }
}

/// Sets up a connection in each direction between two ranks, first that from rank 0; both call this together.
pub(crate) fn open_each_way<N: NetApi>(
    net: &N,
    link: &mut Link,
    device: i32,
    patience: &mut Patience<'_>,
) -> Result<(SendComm, RecvComm), CommunicatorError> {
    let (mut to, mut from) = (None, None);
    for sender in [0, 1] {
        match Ends::open(net, link, device, 1, sender, patience)?.0 {
            Ends::Send(comms) => to = comms.into_iter().next(),
            Ends::Recv(comms) => from = comms.into_iter().next(),
        }
    }
    let (Some(to), Some(from)) = (to, from) else { unreachable!("each rank is sender once and receiver once") };
    Ok((to, from))
}

/// Sets up one connection of which this process has both ends.
pub(crate) fn open_both<N: NetApi>(
    net: &N,
    device: i32,
    patience: &mut Patience<'_>,
) -> Result<(SendComm, RecvComm), CommunicatorError> {
    let (mut send, mut recv) = open_many_both(net, device, 1, patience)?;
    let (Some(send), Some(recv)) = (send.pop(), recv.pop()) else { unreachable!("one of each was asked for") };
    Ok((send, recv))
}

/// Sets up `count` connections at once of which this process has both ends, in one thread.
pub(crate) fn open_many_both<N: NetApi>(
    net: &N,
    device: i32,
    count: usize,
    patience: &mut Patience<'_>,
) -> Result<(Vec<SendComm>, Vec<RecvComm>), CommunicatorError> {
    // On the heap, because the plugin writes to them and they must not move.
    let mut handles: Box<[Handle]> = (0..count).map(|_| Handle::default()).collect();
    let mut listens = Vec::with_capacity(count);
    for handle in &mut handles {
        listens.push(Some(net.listen(device, handle)?));
    }
    let mut sends: Vec<Option<SendComm>> = (0..count).map(|_| None).collect();
    let mut recvs: Vec<Option<RecvComm>> = (0..count).map(|_| None).collect();
    let (mut connected, mut accepted) = (0, 0);
    while connected < count || accepted < count {
        let before = connected + accepted;
        for index in 0..count {
            if sends[index].is_none() {
                sends[index] = net.connect(device, &mut handles[index])?;
                connected += usize::from(sends[index].is_some());
            }
            if recvs[index].is_none() {
                recvs[index] = accept(net, &mut listens[index])?;
                accepted += usize::from(recvs[index].is_some());
            }
        }
        patience.after_round(connected + accepted > before, || {
            format!(
                "connections of this process with itself: of {count} connects {connected} are done, of as many accepts \
                 {accepted}"
            )
        })?;
    }
    Ok((sends.into_iter().flatten().collect(), recvs.into_iter().flatten().collect()))
}

/// Polls `count` things in turn until each has answered.
pub(crate) fn all<T>(
    count: usize,
    patience: &mut Patience<'_>,
    what: &str,
    mut poll: impl FnMut(usize) -> Result<Option<T>, NetError>,
) -> Result<Vec<T>, CommunicatorError> {
    let mut answers: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let mut missing: Vec<usize> = (0..count).collect();
    while !missing.is_empty() {
        let before = missing.len();
        let mut failure = None;
        missing.retain(|index| {
            if failure.is_some() {
                return true;
            }
            match poll(*index) {
                Ok(answer) => answers[*index] = answer,
                Err(error) => failure = Some(error),
            }
            answers[*index].is_none()
        });
        if let Some(error) = failure {
            return Err(error.into());
        }
        let left = missing.len();
        patience.after_round(left < before, || format!("wait for {what}: {left} of {count} are missing"))?;
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Refuses what is for two ranks when there are others.
pub(crate) fn check_ranks(link: &Link, what: &str) -> Result<(), CommunicatorError> {
    if link.ranks() == 2 {
        return Ok(());
    }
    let what = format!("{what} between {} ranks", link.ranks());
    Err(CommunicatorError::Usage { what, allowed: "exactly 2 ranks" })
}

/// Polls a listen for its connection, and closes it at once when that is there, as NCCL does.
pub(crate) fn accept<N: NetApi>(net: &N, listen: &mut Option<ListenComm>) -> Result<Option<RecvComm>, NetError> {
    let Some(open) = listen.as_ref() else { return Ok(None) };
    let Some(comm) = net.accept(open)? else { return Ok(None) };
    listen.take().map_or(Ok(()), |listen| net.close_listen(listen))?;
    Ok(Some(comm))
}
