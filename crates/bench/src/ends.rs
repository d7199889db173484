//! The ends of many connections: set up all at once, polled in turn as NCCL's service thread does, with one message on
//! each.

use crate::bootstrap::{BootstrapError, Link};
use crate::error::CommunicatorError;
use crate::messages::Messages;
use crate::patience::Patience;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::net::{
    Comm, Handle, ListenComm, NetApi, NetError, Part, RecvComm, Registration, Request, SendComm,
};
use std::time::{Duration, Instant};

/// This process's ends of some connections, of either kind or of both.
#[derive(Debug)]
pub struct Ends {
    /// The sending ends.
    pub sends: Vec<SendComm>,
    /// The receiving ends.
    pub recvs: Vec<RecvComm>,
}

impl Ends {
    /// Sets up `count` connections from rank `sender` of two ranks to the other; both call this together. Also returns
    /// this rank's time from the first poll on.
    pub(crate) fn between<N: NetApi>(
        net: &N,
        link: &mut Link,
        device: i32,
        count: usize,
        sender: usize,
        patience: &mut Patience<'_>,
    ) -> Result<(Self, Duration), CommunicatorError> {
        let (peer, sends) = (1 - link.rank(), link.rank() == sender);
        let (listens, own) = listen(net, device, if sends { 0 } else { count })?;
        let all = link.all_gather(&bytes_of(&own))?;
        let (bytes, rest) = all[peer].as_chunks::<HANDLE_MAX_BYTES>();
        if bytes.len() + own.len() != count || !rest.is_empty() {
            return Err(BootstrapError::Garbled { what: format!("the handles of rank {peer}") }.into());
        }
        let handles = bytes.iter().map(|bytes| Handle(*bytes)).collect();
        link.barrier()?;
        let begin = Instant::now();
        let what = if sends { "connect to" } else { "accept from" };
        let ends = Self::open(net, device, listens, handles, patience, |connects, accepts| {
            format!("wait for {what} rank {peer}: {} of {count} are missing", connects + accepts)
        })?;
        Ok((ends, begin.elapsed()))
    }

    /// Polls the connects to all `handles` and the accepts of all `listens` in turn until every connection is set up.
    /// `stuck` describes the wait, from the numbers of connects and of accepts that are missing.
    ///
    /// # Errors
    /// If the plugin returns an error, or nothing moves for too long.
    pub fn open<N: NetApi>(
        net: &N,
        device: i32,
        listens: Vec<ListenComm>,
        // These are on the heap, because the plugin writes to them and they must not move.
        mut handles: Box<[Handle]>,
        patience: &mut Patience<'_>,
        stuck: impl Fn(usize, usize) -> String,
    ) -> Result<Self, CommunicatorError> {
        let mut listens: Vec<Option<ListenComm>> = listens.into_iter().map(Some).collect();
        let mut sends: Vec<Option<SendComm>> = handles.iter().map(|_| None).collect();
        let mut recvs: Vec<Option<RecvComm>> = listens.iter().map(|_| None).collect();
        loop {
            let mut moved = false;
            for (send, handle) in sends.iter_mut().zip(&mut handles).filter(|(send, _)| send.is_none()) {
                *send = net.connect(device, handle)?;
                moved |= send.is_some();
            }
            for (recv, listen) in recvs.iter_mut().zip(&mut listens).filter(|(recv, _)| recv.is_none()) {
                *recv = accept(net, listen)?;
                moved |= recv.is_some();
            }
            let connects = sends.iter().filter(|send| send.is_none()).count();
            let accepts = recvs.iter().filter(|recv| recv.is_none()).count();
            if connects + accepts == 0 {
                let (sends, recvs) = (sends.into_iter().flatten().collect(), recvs.into_iter().flatten().collect());
                return Ok(Self { sends, recvs });
            }
            patience.after_round(moved, || stuck(connects, accepts))?;
        }
    }

    /// Registers one of the `outgoing` messages on each sending end, and one of the `incoming` on each receiving one.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn register<'a, N: NetApi>(
        self,
        net: &N,
        outgoing: &'a Messages,
        incoming: &'a Messages,
    ) -> Result<RegisteredEnds<'a>, NetError> {
        let register = |comm: Comm<'_>, messages: &Messages, index: usize| {
            // SAFETY: the messages' memory outlives the connections, whose close ends the registrations at the latest.
            // After an error the connections stay open, but then the rank's process is about to end.
            unsafe { net.reg_mr(comm, messages.start(index), messages.bytes()) }
        };
        let sends = self.sends.iter().enumerate().map(|(index, comm)| register(Comm::Send(comm), outgoing, index));
        let sends = sends.collect::<Result<_, _>>()?;
        let recvs = self.recvs.iter().enumerate().map(|(index, comm)| register(Comm::Recv(comm), incoming, index));
        let recvs = recvs.collect::<Result<_, _>>()?;
        Ok(RegisteredEnds { ends: self, outgoing, incoming, sends, recvs })
    }

    /// Closes all connections.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn close<N: NetApi>(self, net: &N) -> Result<(), NetError> {
        self.sends.into_iter().try_for_each(|comm| net.close_send(comm))?;
        self.recvs.into_iter().try_for_each(|comm| net.close_recv(comm))
    }
}

/// Ends with a registered message on each.
#[derive(Debug)]
pub struct RegisteredEnds<'a> {
    ends: Ends,
    outgoing: &'a Messages,
    incoming: &'a Messages,
    sends: Vec<Registration>,
    recvs: Vec<Registration>,
}

impl RegisteredEnds<'_> {
    /// Receives and sends one message on every connection.
    ///
    /// # Errors
    /// If the plugin returns an error, or nothing moves for too long.
    pub fn transfer<N: NetApi>(&self, net: &N, patience: &mut Patience<'_>) -> Result<(), CommunicatorError> {
        let mut unposted: Vec<usize> = (0..self.recvs.len()).collect();
        let mut unsent: Vec<usize> = (0..self.sends.len()).collect();
        let mut requests: Vec<Request> = Vec::new();
        while !(unposted.is_empty() && unsent.is_empty() && requests.is_empty()) {
            let before = (unposted.len(), unsent.len(), requests.len());
            let mut started = Vec::new();
            begin(&mut unposted, &mut started, |index| {
                let (data, bytes) = (self.incoming.start(index), self.incoming.bytes());
                let part = Part { data, bytes, tag: 0, registration: self.recvs[index] };
                // SAFETY: the message lies inside its registration and stays until the connection is closed.
                unsafe { net.irecv(&self.ends.recvs[index], &[part], false) }
            })?;
            begin(&mut unsent, &mut started, |index| {
                let (data, bytes) = (self.outgoing.start(index), self.outgoing.bytes());
                // SAFETY: as for a receive.
                unsafe { net.isend(&self.ends.sends[index], data, bytes, 0, self.sends[index]) }
            })?;
            for request in std::mem::take(&mut requests) {
                // SAFETY: a request that is done is not kept.
                if !unsafe { net.test(&request, None) }? {
                    requests.push(request);
                }
            }
            let moved = (unposted.len(), unsent.len(), requests.len()) != before;
            requests.append(&mut started);
            patience.after_round(moved, || {
                let (receives, sends, undone) = (unposted.len(), unsent.len(), requests.len());
                format!(
                    "messages: {receives} receives are not posted, {sends} sends have no receive yet, {undone} \
                     requests are not done"
                )
            })?;
        }
        Ok(())
    }

    /// Ends all registrations.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn deregister<N: NetApi>(self, net: &N) -> Result<Ends, NetError> {
        let sends = self.ends.sends.iter().map(Comm::Send).zip(self.sends);
        let recvs = self.ends.recvs.iter().map(Comm::Recv).zip(self.recvs);
        // SAFETY: made in `register` for this connection.
        sends.chain(recvs).try_for_each(|(comm, registration)| unsafe { net.dereg_mr(comm, registration) })?;
        Ok(self.ends)
    }
}

/// Tries to begin each request of `pending`; those that cannot begin yet stay in it.
fn begin(
    pending: &mut Vec<usize>,
    started: &mut Vec<Request>,
    mut try_one: impl FnMut(usize) -> Result<Option<Request>, NetError>,
) -> Result<(), NetError> {
    for index in std::mem::take(pending) {
        match try_one(index)? {
            Some(request) => started.push(request),
            None => pending.push(index),
        }
    }
    Ok(())
}

/// Sets up a connection in each direction between two ranks, the one from rank 0 first; both call this together.
pub(crate) fn open_each_way<N: NetApi>(
    net: &N,
    link: &mut Link,
    device: i32,
    patience: &mut Patience<'_>,
) -> Result<(SendComm, RecvComm), CommunicatorError> {
    let (first, _) = Ends::between(net, link, device, 1, 0, patience)?;
    let (second, _) = Ends::between(net, link, device, 1, 1, patience)?;
    let mut sends = first.sends.into_iter().chain(second.sends);
    let mut recvs = first.recvs.into_iter().chain(second.recvs);
    let (Some(to), Some(from)) = (sends.next(), recvs.next()) else {
        unreachable!("each rank is the sender once and the receiver once")
    };
    Ok((to, from))
}

/// Listens for `count` connections; also returns the handles for the connecting side.
///
/// # Errors
/// If the plugin returns an error.
pub fn listen<N: NetApi>(net: &N, device: i32, count: usize) -> Result<(Vec<ListenComm>, Box<[Handle]>), NetError> {
    let mut handles: Box<[Handle]> = (0..count).map(|_| Handle::default()).collect();
    let listens = handles.iter_mut().map(|handle| net.listen(device, handle)).collect::<Result<_, _>>()?;
    Ok((listens, handles))
}

/// Returns the bytes of all handles, one after the other.
pub(crate) fn bytes_of(handles: &[Handle]) -> Vec<u8> {
    handles.iter().flat_map(|handle| handle.0).collect()
}

/// Returns an error unless there are exactly two ranks.
pub(crate) fn check_ranks(link: &Link, what: &str) -> Result<(), CommunicatorError> {
    if link.ranks() == 2 {
        return Ok(());
    }
    let what = format!("{what} between {} ranks", link.ranks());
    Err(CommunicatorError::Usage { what, allowed: "exactly 2 ranks" })
}

/// Polls a listen for its connection, and closes the listen as soon as the connection exists, as NCCL does.
fn accept<N: NetApi>(net: &N, listen: &mut Option<ListenComm>) -> Result<Option<RecvComm>, NetError> {
    let Some(open) = listen.as_ref() else { return Ok(None) };
    let Some(comm) = net.accept(open)? else { return Ok(None) };
    listen.take().map_or(Ok(()), |listen| net.close_listen(listen))?;
    Ok(Some(comm))
}
