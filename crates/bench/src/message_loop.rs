//! Messages between two ends of one connection in one process and one thread, so that a tool that counts instructions
//! sees the whole cost of a message.
//!
//! The loop over the messages runs inside [`railweave_message_loop`], whose symbol stays in the program: `valgrind
//! --tool=callgrind --toggle-collect=railweave_message_loop` counts this loop and nothing else.

use crate::ends;
use crate::error::CommunicatorError;
use crate::fake_ibverbs::{DeviceWork, FakeVerbs};
use crate::figures::MAX_BUFFER_BYTES;
use crate::pair::Pair;
use crate::patience::Patience;
use railweave_nccl_host::net::{NetApi, Registration};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The settings of the loop.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use.
    pub device: i32,
    /// The size of a message in bytes.
    pub bytes: usize,
    /// The number of messages that the loop carries.
    pub messages: usize,
    /// The receives posted ahead, and the limit of sends in flight, 1 to 32; fewer if this many messages would need
    /// more than 256 MiB.
    pub in_flight: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results of the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// Messages that the loop carried.
    pub messages: usize,
    /// Messages in flight.
    pub in_flight: usize,
    /// The time of the loop.
    pub took: Duration,
    /// The work of the fake libibverbs for all messages, device by device; `None` over any other network, because
    /// nothing else counts it.
    pub work: Option<Vec<DeviceWork>>,
}

/// Connects this process with itself, carries some messages that are not counted, then those of the loop, and checks
/// that they arrived unchanged.
///
/// # Errors
/// If a connection or a transfer fails.
pub fn run<N: NetApi>(net: &N, settings: &Settings) -> Result<Results, CommunicatorError> {
    let Settings { device, bytes, messages, stall, .. } = *settings;
    let in_flight = (MAX_BUFFER_BYTES / bytes.max(1)).clamp(1, settings.in_flight.max(1));
    let abort = AtomicBool::new(false);
    let mut patience = Patience::new(0, stall, &abort);
    let ends = ends::open_both(net, device, &mut patience)?;
    let mut pair = Pair::new(net, 0, ends, 0, in_flight * bytes, patience)?;
    pair.carry(WARM_UP_MESSAGES, bytes, in_flight)?;
    pair.mark(messages.min(in_flight) * bytes);
    let mut result = Ok(());
    let fake = FakeVerbs::loaded();
    let before = fake.as_ref().map(FakeVerbs::work);
    let begin = Instant::now();
    railweave_message_loop(&mut || result = pair.carry(messages, bytes, in_flight));
    let took = begin.elapsed();
    let after = fake.as_ref().map(FakeVerbs::work);
    result?;
    pair.check(messages.min(in_flight) * bytes)?;
    pair.close()?;
    let work = after.zip(before).map(|(after, before)| DeviceWork::between(&before, after));
    Ok(Results { messages, in_flight, took, work })
}

/// Runs the loop over the messages, which a tool finds by this name. It is called once.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn railweave_message_loop(carry: &mut dyn FnMut()) {
    carry();
}

/// The messages of the warm-up, which trigger everything that is made on first use.
const WARM_UP_MESSAGES: usize = 100;

impl<N: NetApi> Pair<'_, N> {
    /// Carries `count` messages from this process to itself: receives are posted ahead of the sends, and the oldest of
    /// each is tested, as NCCL's progress thread does.
    fn carry(&mut self, count: usize, bytes: usize, in_flight: usize) -> Result<(), CommunicatorError> {
        let (mut receives, mut sends) = (VecDeque::with_capacity(in_flight), VecDeque::with_capacity(in_flight));
        let (mut received, mut sent) = (0, 0);
        while received < count || sent < count {
            let mut moved = false;
            while receives.len() < in_flight && received + receives.len() < count {
                let place = (received + receives.len()) % in_flight;
                let Some(receive) = self.try_receive(place * bytes, bytes)? else { break };
                receives.push_back(receive);
                moved = true;
            }
            if sends.len() < in_flight && sent + sends.len() < count {
                let place = (sent + sends.len()) % in_flight;
                if let Some(send) = self.try_send(place * bytes, bytes)? {
                    sends.push_back(send);
                    moved = true;
                }
            }
            if self.test_oldest(&mut receives)? {
                (received, moved) = (received + 1, true);
            }
            if self.test_oldest(&mut sends)? {
                (sent, moved) = (sent + 1, true);
            }
            self.patience
                .after_round(moved, || format!("{received} of {count} messages are received, {sent} are sent"))?;
        }
        Ok(())
    }

    /// Returns the first `bytes` of the send buffer and of the receive buffer; no transfer may be in progress.
    fn buffers(&mut self, bytes: usize) -> (&mut [u8], &mut [u8]) {
        assert!(bytes <= self.buffer_bytes, "bytes of the buffers");
        let start = |(start, _): (NonNull<u8>, Registration)| start.as_ptr();
        let (sent, received) = (start(self.to.slot(0)), start(self.from.slot(0)));
        // SAFETY: two buffers of at least this many bytes, which belong to this value, with no transfer in progress.
        unsafe { (std::slice::from_raw_parts_mut(sent, bytes), std::slice::from_raw_parts_mut(received, bytes)) }
    }

    /// Fills the send buffer with known bytes, and the receive buffer with others.
    fn mark(&mut self, bytes: usize) {
        let (sent, received) = self.buffers(bytes);
        for (index, (sent, received)) in sent.iter_mut().zip(received).enumerate() {
            *sent = (index % 251) as u8;
            *received = !*sent;
        }
    }

    fn check(&mut self, bytes: usize) -> Result<(), CommunicatorError> {
        let (sent, received) = self.buffers(bytes);
        match sent.iter().zip(received.iter()).position(|(sent, received)| sent != received) {
            Some(place) => Err(CommunicatorError::WrongByte { place, sent: sent[place], received: received[place] }),
            None => Ok(()),
        }
    }
}
