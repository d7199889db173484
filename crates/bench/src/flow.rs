//! Messages of one size, or small ones and large ones in turn, from one rank to another for a given time, for one pair
//! of ranks or several at once. Receives are posted ahead of their sends; both ends yield the processor when idle, as
//! NCCL's progress threads do.
//!
//! Rank 0 sends to rank 1, rank 2 to rank 3, and so on. When the time is over the sender sends one empty message for
//! each receive that may be waiting, which tells the receiver to stop.

use crate::bootstrap::{BootstrapError, Link};
use crate::ends::{Ends, bytes_of, listen};
use crate::error::CommunicatorError;
use crate::figures::MAX_BUFFER_BYTES;
use crate::numbers;
use crate::patience::Patience;
use railweave_abi::net::HANDLE_MAX_BYTES;
use railweave_nccl_host::connection::{Connection, StepShape};
use railweave_nccl_host::net::{Handle, MAX_PARTS, NetApi, Part, RecvComm, Request, SendComm};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on all ranks.
    pub device: i32,
    /// The size of a message in bytes, at least 1.
    pub message_bytes: usize,
    /// The number of messages of [`SMALL_BYTES`] before each message of `message_bytes`. They count among those in
    /// flight: with 7 or more of them, at most one of 8 in flight has `message_bytes`.
    pub small: usize,
    /// Messages in flight, 1 to 32; fewer for sizes at which this many would need more than 256 MiB.
    pub in_flight: usize,
    /// The time at the beginning that is not measured.
    pub warm_up: Duration,
    /// The time that is measured.
    pub time: Duration,
    /// True if every group of 4 bytes is written before it is sent, and checked when it has come.
    pub checked: bool,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Messages in flight.
    pub in_flight: usize,
    /// The messages of every size that this rank sent or received, without the empty ones at the end.
    pub messages: usize,
    /// On a receiver, the bytes that came in each [`BIN`] since the beginning, the warm-up included.
    pub bins: Vec<u64>,
    /// On a receiver, the rate in megabits (10^6) per second of the measured time, from the end of its first message of
    /// [`Settings::message_bytes`] to that of its last, small ones included; 0 if fewer than two of them came in it.
    pub megabits_per_second: f64,
    /// On a receiver, the longest time between two such messages that came one after the other in the measured time.
    pub longest_pause: Duration,
    /// On a receiver, every such time of at least [`PAUSE`], in order; no more than [`MAX_PAUSES`].
    pub pauses: Vec<Pause>,
}

/// A time in which no message came, although the one before it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its begin, since the beginning of the measurement.
    pub since: Duration,
    /// Its length.
    pub time: Duration,
}

/// The shortest time that counts as a pause of its own.
pub const PAUSE: Duration = Duration::from_millis(50);

/// The largest number of pauses that are kept; a flow with more of them is only slow.
pub const MAX_PAUSES: usize = 1000;

/// The length of a bin of [`Results`].
pub const BIN: Duration = Duration::from_millis(100);

/// The size of a small message in bytes: a flag or a counter that another message follows.
pub const SMALL_BYTES: usize = 8;

impl Settings {
    /// Returns the size of the message with this number, counted from 0.
    fn bytes_of(&self, index: usize) -> usize {
        if self.is_small(index) { SMALL_BYTES } else { self.message_bytes }
    }

    fn is_small(&self, index: usize) -> bool {
        index % (self.small + 1) != self.small
    }

    /// Returns the size of the largest message.
    fn largest(&self) -> usize {
        if self.small > 0 { self.message_bytes.max(SMALL_BYTES) } else { self.message_bytes }
    }
}

/// Runs the measurement; all ranks of `link` call this together. `begin` is called when all connections are set up.
///
/// # Errors
/// If a connection or a transfer fails, a checked message arrives changed, the number of ranks is odd, or a message has
/// no bytes.
pub fn run<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    begin: impl FnOnce(&mut Link),
) -> Result<Results, CommunicatorError> {
    let Settings { device, message_bytes, stall, .. } = *settings;
    if !link.ranks().is_multiple_of(2) || message_bytes == 0 {
        let what = format!("a flow of messages of {message_bytes} bytes between {} ranks", link.ranks());
        return Err(CommunicatorError::Usage { what, allowed: "1 byte and more, and an even number of ranks" });
    }
    let in_flight = (MAX_BUFFER_BYTES / settings.largest()).clamp(1, settings.in_flight.max(1));
    let settings = &Settings { in_flight, ..settings.clone() };
    let abort = link.abort_flag();
    let mut patience = Patience::new(link.rank(), stall, &abort);
    let (rank, peer) = (link.rank(), link.rank() ^ 1);
    let sends = rank.is_multiple_of(2);
    let (listens, own) = listen(net, device, usize::from(!sends))?;
    let all = link.all_gather(&bytes_of(&own))?;
    let (handles, rest) = all[peer].as_chunks::<HANDLE_MAX_BYTES>();
    if handles.len() + own.len() != 1 || !rest.is_empty() {
        return Err(BootstrapError::Garbled { what: format!("the handles of rank {peer}") }.into());
    }
    let handles = handles.iter().map(|bytes| Handle(*bytes)).collect();
    let ends = Ends::open(net, device, listens, handles, &mut patience, |_, _| {
        format!("the connection between ranks {rank} and {peer}")
    })?;
    let shape = StepShape { slice_bytes: settings.largest().next_multiple_of(4), in_flight };
    // The memory is there before the time begins.
    let sends =
        ends.sends.into_iter().map(|comm| Connection::new(net, comm, peer, shape)).collect::<Result<Vec<_>, _>>()?;
    let recvs =
        ends.recvs.into_iter().map(|comm| Connection::new(net, comm, peer, shape)).collect::<Result<Vec<_>, _>>()?;
    link.barrier()?;
    begin(link);
    let since = Instant::now();
    let mut results = Results::default();
    for to in sends {
        results = send(net, &to, settings, since, &mut patience)?;
        // A rank that closes early could cut off data that its peer still waits for.
        link.barrier()?;
        to.close()?;
    }
    for from in recvs {
        results = receive(net, &from, settings, since, &mut patience)?;
        link.barrier()?;
        from.close()?;
    }
    Ok(results)
}

/// Sends messages until the time is over, then the empty ones.
fn send<N: NetApi>(
    net: &N,
    to: &Connection<'_, N, SendComm>,
    settings: &Settings,
    since: Instant,
    patience: &mut Patience<'_>,
) -> Result<Results, CommunicatorError> {
    let Settings { in_flight, .. } = *settings;
    let mut requests: VecDeque<Request> = VecDeque::with_capacity(in_flight);
    // The number of messages with bytes, once the last of them is posted.
    let mut last: Option<usize> = None;
    let (mut posted, mut filled) = (0, 0);
    loop {
        let mut moved = false;
        if last.is_none() && since.elapsed() >= settings.warm_up + settings.time {
            last = Some(posted);
        }
        let all = last.map(|last| last + in_flight);
        if requests.len() < in_flight && all != Some(posted) {
            let bytes = if last.is_none() { settings.bytes_of(posted) } else { 0 };
            let (slot, registration) = to.slot(posted);
            if settings.checked && filled == posted && bytes > 0 {
                // SAFETY: the slot has this many aligned numbers, because its size is a multiple of 4, and no transfer
                // uses it: at most `in_flight` requests are pending.
                let slot = unsafe { std::slice::from_raw_parts_mut(slot.cast::<f32>().as_ptr(), bytes / 4) };
                numbers::fill(slot, to.peer(), posted as u64, 0);
                filled += 1;
            }
            // SAFETY: the message lies inside the registered slot, which is not touched until the request is done.
            if let Some(request) = unsafe { net.isend(to.side(), slot, bytes, 0, registration) }? {
                requests.push_back(request);
                posted += 1;
                moved = true;
            }
        }
        if let Some(first) = requests.front() {
            // SAFETY: the request is dropped as soon as it is done.
            if unsafe { net.test(first, None) }? {
                requests.pop_front();
                moved = true;
            }
        }
        if requests.is_empty() && all == Some(posted) {
            return Ok(Results { in_flight, messages: posted - in_flight, ..Results::default() });
        }
        patience.after_round(moved, || format!("a flow: {posted} sends posted, {} not done", requests.len()))?;
    }
}

/// Receives messages until all of the empty ones have come.
fn receive<N: NetApi>(
    net: &N,
    from: &Connection<'_, N, RecvComm>,
    settings: &Settings,
    since: Instant,
    patience: &mut Patience<'_>,
) -> Result<Results, CommunicatorError> {
    let Settings { in_flight, .. } = *settings;
    let mut requests: VecDeque<Request> = VecDeque::with_capacity(in_flight);
    let (mut posted, mut done, mut arrivals) = (0, 0, Arrivals::default());
    loop {
        let mut moved = false;
        // The first empty message says that `in_flight` - 1 more follow.
        let all = (done > arrivals.messages).then_some(arrivals.messages + in_flight);
        if requests.len() < in_flight && all.is_none_or(|all| posted < all) {
            let (data, registration) = from.slot(posted);
            let part = Part { data, bytes: settings.bytes_of(posted), tag: 0, registration };
            // SAFETY: the message lies inside the registered slot, which is not touched until the request is done.
            if let Some(request) = unsafe { net.irecv(from.side(), &[part], false) }? {
                requests.push_back(request);
                posted += 1;
                moved = true;
            }
        }
        let mut sizes = [0; MAX_PARTS];
        if let Some(first) = requests.front()
            // SAFETY: the request is dropped as soon as it is done.
            && unsafe { net.test(first, Some(&mut sizes)) }?
        {
            requests.pop_front();
            moved = true;
            let (bytes, expected) = (i64::from(sizes[0]), if all.is_none() { settings.bytes_of(done) } else { 0 });
            if bytes != expected as i64 && bytes != 0 {
                return Err(CommunicatorError::WrongSize { peer: from.peer(), index: done, bytes, expected });
            }
            if bytes != 0 {
                if settings.checked {
                    check(from, done, expected)?;
                }
                arrivals.add(settings, since.elapsed());
            }
            done += 1;
        }
        if done == arrivals.messages + in_flight {
            let Arrivals { messages, bins, window } = arrivals;
            let megabits_per_second = window.megabits_per_second();
            let Window { longest_pause, pauses, .. } = window;
            return Ok(Results { in_flight, messages, bins, megabits_per_second, longest_pause, pauses });
        }
        patience.after_round(moved, || format!("a flow: {posted} receives posted, {done} done"))?;
    }
}

/// Checks the message with this number, which has just come.
fn check<N: NetApi>(
    from: &Connection<'_, N, RecvComm>,
    index: usize,
    message_bytes: usize,
) -> Result<(), CommunicatorError> {
    let (slot, _) = from.slot(index);
    // SAFETY: the slot has this many aligned numbers, because its size is a multiple of 4, and the plugin is done with
    // it.
    let slot = unsafe { std::slice::from_raw_parts(slot.cast::<f32>().as_ptr(), message_bytes / 4) };
    // The sender's numbers are those of its receiver, which is this rank.
    let own = from.peer() ^ 1;
    numbers::check(slot, own..own + 1, index as u64, 0)
        .map_err(|mismatch| CommunicatorError::WrongData { connections: 1, mismatch })
}

/// The messages that came.
#[derive(Debug, Default)]
struct Arrivals {
    messages: usize,
    /// The bytes that came in each [`BIN`].
    bins: Vec<u64>,
    window: Window,
}

impl Arrivals {
    /// Counts the next message, which came at `now`, the time since the beginning.
    fn add(&mut self, settings: &Settings, now: Duration) {
        let (bytes, is_small) = (settings.bytes_of(self.messages), settings.is_small(self.messages));
        let bin = (now.as_nanos() / BIN.as_nanos()) as usize;
        self.bins.resize((bin + 1).max(self.bins.len()), 0);
        self.bins[bin] += bytes as u64;
        if now >= settings.warm_up && now < settings.warm_up + settings.time {
            self.window.add(now, bytes, is_small);
        }
        self.messages += 1;
    }
}

/// The messages that came in the measured time.
#[derive(Debug, Default)]
struct Window {
    /// The times of the first and the last message that is not small.
    first: Option<Duration>,
    last: Duration,
    /// The bytes that came after the first of them, until the last.
    bytes: usize,
    /// The bytes that came after the last.
    small_bytes: usize,
    longest_pause: Duration,
    pauses: Vec<Pause>,
}

impl Window {
    fn add(&mut self, now: Duration, bytes: usize, is_small: bool) {
        self.small_bytes += bytes;
        if is_small {
            return;
        }
        if self.first.is_some() {
            self.bytes += self.small_bytes;
            let pause = Pause { since: self.last, time: now.saturating_sub(self.last) };
            self.longest_pause = self.longest_pause.max(pause.time);
            if pause.time >= PAUSE && self.pauses.len() < MAX_PAUSES {
                self.pauses.push(pause);
            }
        } else {
            self.first = Some(now);
        }
        (self.last, self.small_bytes) = (now, 0);
    }

    fn megabits_per_second(&self) -> f64 {
        let time = self.last.saturating_sub(self.first.unwrap_or_default());
        if time.is_zero() { 0.0 } else { self.bytes as f64 * 8.0 / 1e6 / time.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_between_the_first_and_the_last_message() {
        let mut window = Window::default();
        assert_eq!(window.megabits_per_second().to_bits(), 0.0_f64.to_bits());
        for ms in [1000, 1030, 1200] {
            window.add(Duration::from_millis(ms), 1_000_000, false);
        }
        assert!((window.megabits_per_second() - 80.0).abs() < 1e-9);
        assert_eq!(window.longest_pause, Duration::from_millis(170));
        let pause = Pause { since: Duration::from_millis(1030), time: Duration::from_millis(170) };
        assert_eq!(window.pauses, [pause], "30 ms are none");
    }

    #[test]
    fn the_warm_up_counts_in_bins_only_and_small_messages_between_large_ones_only() {
        let settings = Settings {
            device: 0,
            message_bytes: 1_000_000,
            small: 1,
            in_flight: 1,
            warm_up: Duration::from_secs(1),
            time: Duration::from_secs(1),
            checked: false,
            stall: Duration::from_secs(1),
        };
        let mut arrivals = Arrivals::default();
        let mut come = |millis: &[u64]| {
            millis.iter().for_each(|millis| arrivals.add(&settings, Duration::from_millis(*millis)));
            let rate = arrivals.window.megabits_per_second();
            (arrivals.bins.iter().map(|bytes| *bytes as usize).sum::<usize>(), (rate * 1e6).round() as u64)
        };
        // Every other one is small, and the first.
        assert_eq!(come(&[0, 10, 990, 999, 1000, 1000]), (3 * 1_000_008, 0));
        assert_eq!(come(&[1200, 1500]).1, 16_000_128);
        assert_eq!(come(&[1600, 1990]).1, 16_161_745);
        assert_eq!(come(&[1999, 2000, 2001, 2500]), (7 * 1_000_008, 16_161_745));
        assert_eq!((arrivals.bins.len(), arrivals.bins[0], arrivals.bins[12]), (26, 1_000_008, 8));
    }
}
