//! Many connections of this process with itself, both ends in one thread: what objects they take, what memory they
//! register, and how long they take to come and go.

use crate::ends::{all, open_many_both};
use crate::error::CommunicatorError;
use crate::patience::Patience;
use crate::process::resident_bytes;
use crate::stand_in::{OpenObjects, StandIn};
use railweave_nccl_host::memory::HostMemory;
use railweave_nccl_host::net::{Comm, NetApi, NetError, Part, RecvComm, Registration, Request, SendComm};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use.
    pub device: i32,
    /// How many connections.
    pub connections: usize,
    /// The size of the one message that each of them carries, in bytes.
    pub message_bytes: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// What was measured, of both ends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// From the first listen until every connection is there.
    pub set_up: Duration,
    /// From then until every connection has carried its message, and all were checked.
    pub messages: Duration,
    /// From the first close until the last has returned and, where that is known, nothing of the connections is open any more.
    pub tear_down: Duration,
    /// Memory in use by this process (its resident set) before the first listen and with every connection used once, in bytes.
    pub memory: [u64; 2],
    /// What the connections have open before anybody registers a message; none unless the devices are those of the stand-in
    /// for libibverbs, which counts it.
    pub objects: Option<OpenObjects>,
    /// What is left of it once all are closed.
    pub left: Option<OpenObjects>,
}

/// Connects this process with itself, carries one message over each connection, checks it, and closes all.
///
/// # Errors
/// As a communicator's calls; and when a message is not what was sent.
pub fn run<N: NetApi>(net: &N, settings: &Settings) -> Result<Results, CommunicatorError> {
    let abort = AtomicBool::new(false);
    let mut patience = Patience::new(0, settings.stall, &abort);
    let messages = Messages::new(settings);
    let stand_in = StandIn::loaded();
    let open = || stand_in.as_ref().map(StandIn::open);
    let (before, resident) = (open(), resident_bytes());
    let begin = Instant::now();
    let (sends, recvs) = open_many_both(net, settings.device, settings.connections, &mut patience)?;
    let set_up = begin.elapsed();
    let during = open();
    let begin = Instant::now();
    let registrations = register(net, &sends, &recvs, &messages)?;
    transfer(net, &sends, &recvs, &messages, &registrations, &mut patience)?;
    messages.check()?;
    let carried = begin.elapsed();
    let memory = [resident, resident_bytes()];
    deregister(net, &sends, &recvs, registrations)?;
    let begin = Instant::now();
    sends.into_iter().try_for_each(|comm| net.close_send(comm))?;
    recvs.into_iter().try_for_each(|comm| net.close_recv(comm))?;
    // A plugin may go on closing in a thread of its own.
    let is_closed =
        || open().zip(before).is_none_or(|(now, before)| difference(&now, &before) == OpenObjects::default());
    while !is_closed() && begin.elapsed() < settings.stall {
        std::thread::sleep(Duration::from_millis(1));
    }
    let tear_down = begin.elapsed();
    let since = |after: Option<OpenObjects>| after.zip(before).map(|(after, before)| difference(&after, &before));
    Ok(Results { set_up, messages: carried, tear_down, memory, objects: since(during), left: since(open()) })
}

/// What `after` has more than `before`.
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

/// What is sent and what is received: for each connection a message of its own in both.
struct Messages {
    sent: HostMemory,
    received: HostMemory,
    bytes: usize,
    count: usize,
}

impl Messages {
    /// What is received is nothing like what is sent, and every page is in use.
    fn new(settings: &Settings) -> Self {
        let (bytes, count) = (settings.message_bytes, settings.connections);
        let [sent, received] = [HostMemory::new(bytes * count), HostMemory::new(bytes * count)];
        let messages = Self { sent, received, bytes, count };
        for place in 0..bytes * count {
            // SAFETY: both have that many bytes, and nobody else uses them yet.
            unsafe {
                messages.sent.start().add(place).write(Self::byte(place));
                messages.received.start().add(place).write(!Self::byte(place));
            }
        }
        messages
    }

    fn byte(place: usize) -> u8 {
        (place % 251) as u8
    }

    fn place(&self, memory: &HostMemory, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "a message of this memory");
        // SAFETY: the memory holds `count` messages.
        unsafe { memory.start().add(index * self.bytes) }
    }

    fn check(&self) -> Result<(), CommunicatorError> {
        // SAFETY: the memory has that many bytes, and every transfer is over.
        let received = unsafe { std::slice::from_raw_parts(self.received.start().as_ptr(), self.bytes * self.count) };
        let wrong = received.iter().enumerate().find(|(place, byte)| **byte != Self::byte(*place));
        wrong.map_or(Ok(()), |(place, byte)| {
            Err(CommunicatorError::WrongByte { place, sent: Self::byte(place), received: *byte })
        })
    }
}

/// The registration of each connection's message, at the sending and at the receiving end.
type Registrations = Vec<(Registration, Registration)>;

fn register<N: NetApi>(
    net: &N,
    sends: &[SendComm],
    recvs: &[RecvComm],
    messages: &Messages,
) -> Result<Registrations, NetError> {
    let each = sends.iter().zip(recvs).enumerate();
    each.map(|(index, (send, recv))| {
        // SAFETY: the messages' memory outlives the connections, which end the registrations at the latest.
        unsafe {
            let sent = net.reg_mr(Comm::Send(send), messages.place(&messages.sent, index), messages.bytes)?;
            let received = net.reg_mr(Comm::Recv(recv), messages.place(&messages.received, index), messages.bytes)?;
            Ok((sent, received))
        }
    })
    .collect()
}

/// Posts each connection's receive, then sends and tests all in turn until all are done.
fn transfer<N: NetApi>(
    net: &N,
    sends: &[SendComm],
    recvs: &[RecvComm],
    messages: &Messages,
    registrations: &Registrations,
    patience: &mut Patience<'_>,
) -> Result<(), CommunicatorError> {
    let count = sends.len();
    let receives: Vec<Request> = all(count, patience, "room for a receive", |index| {
        let (data, registration) = (messages.place(&messages.received, index), registrations[index].1);
        // SAFETY: the message lies inside its registration and stays until the connection is closed.
        unsafe { net.irecv(&recvs[index], &[Part { data, bytes: messages.bytes, tag: 0, registration }], false) }
    })?;
    let mut started: Vec<Option<Request>> = (0..count).map(|_| None).collect();
    all(2 * count, patience, "the end of a message", |which| {
        let index = which / 2;
        if which % 2 == 1 {
            // SAFETY: `all` asks no more once the answer was yes.
            return Ok(unsafe { net.test(&receives[index], None) }?.then_some(()));
        }
        if let Some(request) = &started[index] {
            // SAFETY: as above.
            return Ok(unsafe { net.test(request, None) }?.then_some(()));
        }
        let (start, registration) = (messages.place(&messages.sent, index), registrations[index].0);
        // SAFETY: as for a receive.
        started[index] = unsafe { net.isend(&sends[index], start, messages.bytes, 0, registration) }?;
        Ok(None)
    })?;
    Ok(())
}

fn deregister<N: NetApi>(
    net: &N,
    sends: &[SendComm],
    recvs: &[RecvComm],
    registrations: Registrations,
) -> Result<(), NetError> {
    for ((send, recv), (sent, received)) in sends.iter().zip(recvs).zip(registrations) {
        // SAFETY: made in `register` for these ends.
        unsafe {
            net.dereg_mr(Comm::Send(send), sent)?;
            net.dereg_mr(Comm::Recv(recv), received)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_open_before_is_not_the_connections() {
        let before = OpenObjects { queue_pairs: 1, region_bytes: 4096, ..OpenObjects::default() };
        let after = OpenObjects { queue_pairs: 3, region_bytes: 8192, regions: 1, ..OpenObjects::default() };
        let expected = OpenObjects { queue_pairs: 2, region_bytes: 4096, regions: 1, ..OpenObjects::default() };
        assert_eq!(difference(&after, &before), expected);
    }

    #[test]
    fn a_message_that_is_not_what_was_sent_is_found() {
        let settings = Settings { device: 0, connections: 3, message_bytes: 10, stall: Duration::ZERO };
        let messages = Messages::new(&settings);
        assert!(messages.check().is_err());
        for place in 0..30 {
            // SAFETY: the memory has 30 bytes, and nobody else uses them.
            unsafe { messages.received.start().add(place).write(Messages::byte(place)) };
        }
        messages.check().unwrap();
        // SAFETY: as above.
        unsafe { messages.received.start().add(17).write(0) };
        assert!(matches!(messages.check(), Err(CommunicatorError::WrongByte { place: 17, .. })));
    }
}
