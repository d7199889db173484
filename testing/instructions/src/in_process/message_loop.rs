//! Messages between two ends of one connection in one process and one thread, so that a tool that counts instructions
//! sees the whole cost of a message.
//!
//! The loop over the messages runs inside [`railweave_message_loop`], whose symbol stays in the program: callgrind
//! finds it by that name.

use crate::in_process::ends;
use clap::Args;
use railweave_bench::CommunicatorError;
use railweave_bench::pair::Pair;
use railweave_bench::patience::Patience;
use railweave_fake_ibverbs::{Counts, FakeVerbs};
use railweave_nccl_host::net::{NetApi, ProfilerHandle, Registration};
use railweave_nccl_host::profiler::{Call, Direction, OpShape};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The settings of the loop.
#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    /// The number of messages that the loop carries
    #[arg(long, value_name = "COUNT", default_value_t = 5120)]
    messages: usize,
    /// The size of a message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8)]
    bytes: usize,
    /// The receives posted ahead, and the limit of sends in flight, at least 1
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroUsize::MIN)]
    in_flight: NonZeroUsize,
}

/// The results of the loop.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Results {
    /// The time of the loop.
    seconds: f64,
    /// The work of all messages of the loop for each device, by its name.
    pub(crate) devices: BTreeMap<String, Counts>,
}

/// Connects this process with itself, carries some messages that are not counted, then those of the loop, and checks
/// that they arrived unchanged. `stall` is the longest time without any progress. With a profiler's `call`, each
/// message has its handle of a step that has begun.
pub(crate) fn run<N: NetApi>(
    net: &N,
    device: i32,
    fake: &FakeVerbs,
    stall: Duration,
    (settings, call): (&Settings, Option<Call<'_>>),
) -> Result<Results, Box<dyn Error>> {
    let Settings { messages, bytes, in_flight } = *settings;
    let in_flight = in_flight.get();
    let abort = AtomicBool::new(false);
    let mut patience = Patience::new(0, stall, &abort);
    // Before the connection, which may hold the handles until it is closed.
    let op = |direction| {
        let shape = OpShape { channel: 0, peer: 1, steps: messages, chunk_bytes: bytes, direction, in_flight: 1 };
        call.map(|call| call.proxy_op(call.group().parent(), shape)).inspect(|op| op.start_step(0))
    };
    let ops = [op(Direction::Send), op(Direction::Receive)];
    let handles = ops.each_ref().map(|op| op.as_ref().map_or(ProfilerHandle::NONE, |op| op.handle(0)));
    let mut ends = ends::both(net, device, 1, &mut patience)?;
    let (Some(to), Some(from)) = (ends.sends.pop(), ends.recvs.pop()) else {
        unreachable!("one of each was asked for")
    };
    let mut pair = Pair::new(net, 0, (to, from), 0, in_flight * bytes, patience)?;
    carry(&mut pair, WARM_UP_MESSAGES, bytes, (in_flight, handles))?;
    mark(&mut pair, messages.min(in_flight) * bytes);
    let mut result = Ok(());
    let before = fake.device_counts();
    let begin = Instant::now();
    railweave_message_loop(&mut || result = carry(&mut pair, messages, bytes, (in_flight, handles)));
    let seconds = begin.elapsed().as_secs_f64();
    let mut devices = fake.device_counts();
    result?;
    check(&mut pair, messages.min(in_flight) * bytes)?;
    pair.close()?;
    for (device, counts) in &mut devices {
        *counts = counts.since(&before.get(device).copied().unwrap_or_default());
    }
    Ok(Results { seconds, devices })
}

/// Runs the loop over the messages, which a tool finds by this name. It is called once.
#[allow(unsafe_code)] // no other function of this program or of its libraries has this name
#[unsafe(no_mangle)]
#[inline(never)]
fn railweave_message_loop(carry: &mut dyn FnMut()) {
    carry();
}

/// The messages of the warm-up, which trigger everything that is made on first use.
const WARM_UP_MESSAGES: usize = 100;

/// Carries `count` messages from this process to itself: receives are posted ahead of the sends, and the oldest of
/// each is tested, as NCCL's progress thread does.
fn carry<N: NetApi>(
    pair: &mut Pair<'_, N>,
    count: usize,
    bytes: usize,
    (in_flight, [to, from]): (usize, [ProfilerHandle; 2]),
) -> Result<(), CommunicatorError> {
    let (mut receives, mut sends) = (VecDeque::with_capacity(in_flight), VecDeque::with_capacity(in_flight));
    let (mut received, mut sent) = (0, 0);
    while received < count || sent < count {
        let mut moved = false;
        while receives.len() < in_flight && received + receives.len() < count {
            let place = (received + receives.len()) % in_flight;
            let Some(receive) = pair.try_receive_profiled(place * bytes, bytes, from)? else { break };
            receives.push_back(receive);
            moved = true;
        }
        if sends.len() < in_flight && sent + sends.len() < count {
            let place = (sent + sends.len()) % in_flight;
            if let Some(send) = pair.try_send_profiled(place * bytes, bytes, to)? {
                sends.push_back(send);
                moved = true;
            }
        }
        if pair.test_oldest(&mut receives)? {
            (received, moved) = (received + 1, true);
        }
        if pair.test_oldest(&mut sends)? {
            (sent, moved) = (sent + 1, true);
        }
        pair.patience.after_round(moved, || format!("{received} of {count} messages are received, {sent} are sent"))?;
    }
    Ok(())
}

/// Returns the first `bytes` of the send buffer and of the receive buffer; no transfer may be in progress.
fn buffers<'pair, N: NetApi>(pair: &'pair mut Pair<'_, N>, bytes: usize) -> (&'pair mut [u8], &'pair mut [u8]) {
    assert!(bytes <= pair.buffer_bytes, "bytes of the buffers");
    let start = |(start, _): (NonNull<u8>, Registration)| start.as_ptr();
    let (sent, received) = (start(pair.to.slot(0)), start(pair.from.slot(0)));
    // SAFETY: two buffers of at least this many bytes, which belong to this value, with no transfer in progress.
    #[allow(unsafe_code)]
    unsafe {
        (std::slice::from_raw_parts_mut(sent, bytes), std::slice::from_raw_parts_mut(received, bytes))
    }
}

/// Fills the send buffer with known bytes, and the receive buffer with others.
fn mark<N: NetApi>(pair: &mut Pair<'_, N>, bytes: usize) {
    let (sent, received) = buffers(pair, bytes);
    for (index, (sent, received)) in sent.iter_mut().zip(received).enumerate() {
        *sent = (index % 251) as u8;
        *received = !*sent;
    }
}

/// Fails if a byte did not arrive as it was sent.
fn check<N: NetApi>(pair: &mut Pair<'_, N>, bytes: usize) -> Result<(), String> {
    let (sent, received) = buffers(pair, bytes);
    match sent.iter().zip(received.iter()).position(|(sent, received)| sent != received) {
        Some(place) => Err(format!(
            "a message arrived changed: byte {place} of those in flight was sent as {:#04x} and received as {:#04x}; a \
             plugin must move exact bytes",
            sent[place], received[place]
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{Faults, alone};
    use railweave_fake_ibverbs::build;
    use std::sync::atomic::Ordering::SeqCst;

    /// Carries messages, four in flight, over the net in memory; the fake libibverbs has no work.
    fn carry(net: &impl NetApi, bytes: usize, messages: usize) -> Result<Results, Box<dyn Error>> {
        let fake = FakeVerbs::load(&build()).unwrap();
        let in_flight = NonZeroUsize::new(4).unwrap();
        run(net, 0, &fake, Duration::from_secs(2), (&Settings { messages, bytes, in_flight }, None))
    }

    #[test]
    fn all_messages_are_carried_and_everything_is_closed() {
        for (bytes, messages) in [(0, 1), (8, 3), (1001, 50)] {
            let (net, world) = alone(Faults::default());
            let results = carry(&net, bytes, messages).unwrap();
            assert!(results.seconds > 0.0 && results.devices.is_empty(), "{results:?}");
            assert_eq!(world.messages.load(SeqCst), WARM_UP_MESSAGES + messages);
            assert_eq!((world.largest.load(SeqCst), world.open.load(SeqCst)), (bytes, 0));
        }
    }

    #[test]
    fn a_message_that_changes_on_its_way_is_noticed() {
        // The last of its slot; an earlier one is overwritten by later ones.
        let (net, world) = alone(Faults { flip_bit: Some(WARM_UP_MESSAGES + 47), ..Faults::default() });
        let error = carry(&net, 64, 50).unwrap_err().to_string();
        assert!(error.contains("arrived changed: byte 224 of those in flight"), "{error}");
        assert_eq!(world.open.load(SeqCst), 0, "closed nevertheless");
    }

    #[test]
    fn messages_that_do_not_arrive_and_calls_that_fail_end_the_run() {
        let kind = |error: Box<dyn Error>| *error.downcast::<CommunicatorError>().unwrap();
        let (net, world) = alone(Faults { lose_from: Some(WARM_UP_MESSAGES + 10), ..Faults::default() });
        let error = kind(carry(&net, 64, 50).unwrap_err());
        assert!(matches!(error, CommunicatorError::Stalled { .. }), "{error}");
        assert!(error.to_string().contains("10 of 50 messages are received"), "{error}");
        assert_eq!(world.open.load(SeqCst), 0);
        let (net, world) = alone(Faults { fail: Some(WARM_UP_MESSAGES + 10), ..Faults::default() });
        let error = kind(carry(&net, 64, 50).unwrap_err());
        assert!(matches!(error, CommunicatorError::Net(_)), "{error}");
        assert_eq!(world.open.load(SeqCst), 0);
    }
}
