//! The benchmark: latency, bandwidth and the time of connection set-up between two ranks, for any plugin.
//!
//! Receives are posted ahead of their sends, as in NCCL. The first rounds are a warm-up and are not counted; the
//! reported figure is a median, with the 99th percentile if single events are timed.

use crate::bootstrap::{BootstrapError, Link};
use crate::ends::{self, Ends};
use crate::error::CommunicatorError;
use crate::figures::{Bandwidth, LATENCY_BYTES, MAX_BUFFER_BYTES, Times, WARM_UP_ROUNDS, for_a_time};
use crate::patience::Patience;
use railweave_nccl_host::connection::{Connection, StepShape};
use railweave_nccl_host::net::{NetApi, NetError, Part, ProfilerHandle, RecvComm, Request, SendComm};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The settings of the benchmark.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use on both ranks.
    pub device: i32,
    /// The sizes of messages for bandwidth, in bytes.
    pub sizes: Vec<usize>,
    /// Messages in flight for bandwidth, 1 to 32; fewer for sizes at which this many would need more than 256 MiB.
    pub in_flight: usize,
    /// The approximate time of each measurement: of the latency, and of the bandwidth at each size.
    pub time: Duration,
    /// The approximate time to send each size before its bandwidth is measured; a traffic shaper in the path lets
    /// a burst pass first.
    pub warm_up: Duration,
    /// The number of connections whose set-up is timed.
    pub connects: usize,
    /// The longest time without any progress before an error.
    pub stall: Duration,
}

/// The results.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Half of a round trip of 8 bytes, until its send and its receive are done; each receive is posted once the
    /// previous one is done.
    pub latency: Times,
    /// Half of a round trip of 8 bytes, until the reply has arrived; four receives are posted ahead.
    pub latency_ahead: Times,
    /// The bandwidth at each size.
    pub bandwidth: Vec<Bandwidth>,
    /// From the first poll of connect and accept until both sides have their connection.
    pub connect: Times,
}

/// A step of the benchmark; each begins when the one before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The time of connection set-up.
    Connects,
    /// Both measurements of latency.
    Latency,
    /// The bandwidth at one size.
    Bandwidth {
        /// The size of a message in bytes.
        bytes: usize,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connects => f.write_str("connection set-up"),
            Self::Latency => f.write_str("latency"),
            Self::Bandwidth { bytes } => write!(f, "bandwidth of {bytes} bytes"),
        }
    }
}

/// The receives posted ahead of their sends in the second measurement of latency.
const RECEIVES_AHEAD: usize = 4;
/// The number of repetitions of a bandwidth measurement; the result is their median.
const REPETITIONS: usize = 7;
/// The number of connections set up first as a warm-up.
const WARM_UP_CONNECTS: usize = 2;

/// Runs the benchmark; both ranks of `link` call this together and get the same results. `progress` is called with each
/// step as it begins.
///
/// # Errors
/// If a connection or a transfer fails, or there are not exactly two ranks.
pub fn run<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    mut progress: impl FnMut(&mut Link, Step),
) -> Result<Results, CommunicatorError> {
    ends::check_ranks(link, "a benchmark")?;
    let abort = link.abort_flag();
    progress(link, Step::Connects);
    let connect = connect_times(net, link, settings, &abort)?;
    let mut pair = Pair::connect(net, link, settings, &abort)?;
    progress(link, Step::Latency);
    let latency = pair.latency(link, settings.time, 1)?;
    let latency_ahead = pair.latency(link, settings.time, RECEIVES_AHEAD)?;
    let mut bandwidth = Vec::with_capacity(settings.sizes.len());
    for bytes in &settings.sizes {
        progress(link, Step::Bandwidth { bytes: *bytes });
        bandwidth.push(pair.bandwidth(link, settings, *bytes)?);
    }
    link.barrier()?;
    pair.close()?;
    Ok(Results { latency, latency_ahead, bandwidth, connect })
}

/// Sets up connections from rank 1 to rank 0, one after the other, and times them; a time is that of the slower side.
fn connect_times<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    abort: &AtomicBool,
) -> Result<Times, CommunicatorError> {
    let mut patience = Patience::new(link.rank(), settings.stall, abort);
    let mut times = Vec::with_capacity(settings.connects);
    for round in 0..WARM_UP_CONNECTS + settings.connects.max(1) {
        let (ends, took) = Ends::between(net, link, settings.device, 1, 1, &mut patience)?;
        let took = link.slowest(took)?;
        ends.close(net)?;
        if round >= WARM_UP_CONNECTS {
            times.push(took);
        }
    }
    Ok(Times::of(times))
}

/// A connection in each direction, with a registered buffer on each side.
#[derive(Debug)]
pub struct Pair<'a, N: NetApi> {
    net: &'a N,
    rank: usize,
    /// The connection to the peer; its slot 0 is the send buffer.
    pub to: Connection<'a, N, SendComm>,
    /// The connection from the peer; its slot 0 is the receive buffer.
    pub from: Connection<'a, N, RecvComm>,
    /// The size of each of the two buffers.
    pub buffer_bytes: usize,
    /// The patience of all loops.
    pub patience: Patience<'a>,
}

impl<'a, N: NetApi> Pair<'a, N> {
    /// Takes over the ends of `rank` of the connections to and from `peer`, with `buffer_bytes` on each side.
    ///
    /// # Errors
    /// If a buffer cannot be registered.
    pub fn new(
        net: &'a N,
        rank: usize,
        (to, from): (SendComm, RecvComm),
        peer: usize,
        buffer_bytes: usize,
        patience: Patience<'a>,
    ) -> Result<Self, NetError> {
        let shape = StepShape { slice_bytes: buffer_bytes, in_flight: 1 };
        let to = Connection::new(net, to, peer, shape);
        let from = Connection::new(net, from, peer, shape);
        Ok(Self { net, rank, to: to?, from: from?, buffer_bytes, patience: patience.spinning() })
    }

    fn connect(
        net: &'a N,
        link: &mut Link,
        settings: &Settings,
        abort: &'a Arc<AtomicBool>,
    ) -> Result<Self, CommunicatorError> {
        let largest = settings.sizes.iter().copied().max().unwrap_or(0).max(LATENCY_BYTES);
        let wanted = largest.saturating_mul(settings.in_flight).min(MAX_BUFFER_BYTES).max(largest);
        let mut patience = Patience::new(link.rank(), settings.stall, abort);
        let ends = ends::open_each_way(net, link, settings.device, &mut patience)?;
        Ok(Self::new(net, link.rank(), ends, 1 - link.rank(), wanted, patience)?)
    }

    fn latency(&mut self, link: &mut Link, time: Duration, ahead: usize) -> Result<Times, CommunicatorError> {
        self.ping_pong(WARM_UP_ROUNDS, ahead)?;
        let trips = for_a_time(link, time, |rounds| self.ping_pong(rounds, ahead))?;
        Ok(Times::shared(link, Times::of(trips.into_iter().map(|trip| trip / 2).collect()))?)
    }

    /// Makes `rounds` round trips from rank 0, which times each of them, with `ahead` receives posted ahead of the
    /// peer's sends.
    fn ping_pong(&mut self, rounds: usize, ahead: usize) -> Result<Vec<Duration>, CommunicatorError> {
        let mut times = Vec::with_capacity(rounds);
        let mut expected = VecDeque::new();
        for _ in 0..ahead.min(rounds) {
            expected.push_back(self.post_receive(0, LATENCY_BYTES)?);
        }
        for round in 0..rounds {
            let more = round + ahead < rounds;
            let begin = Instant::now();
            if self.rank == 0 {
                let sent = self.post_send(0, LATENCY_BYTES)?;
                if ahead == 1 {
                    expected.push_back(sent);
                    self.finish_all(&mut expected)?;
                    times.push(begin.elapsed());
                } else {
                    self.finish_first(&mut expected)?;
                    times.push(begin.elapsed());
                    self.finish(&sent, "the end of an 8-byte send")?;
                }
                if more {
                    expected.push_back(self.post_receive(0, LATENCY_BYTES)?);
                }
                continue;
            }
            self.finish_first(&mut expected)?;
            // If other receives are already posted, the next one can wait until the reply is sent.
            if more && ahead == 1 {
                expected.push_back(self.post_receive(0, LATENCY_BYTES)?);
            }
            let sent = self.post_send(0, LATENCY_BYTES)?;
            if more && ahead > 1 {
                expected.push_back(self.post_receive(0, LATENCY_BYTES)?);
            }
            self.finish(&sent, "the end of an 8-byte send")?;
        }
        Ok(times)
    }

    /// Finishes the oldest of these receives.
    fn finish_first(&mut self, requests: &mut VecDeque<Request>) -> Result<(), CommunicatorError> {
        match requests.pop_front() {
            Some(first) => self.finish(&first, "a receive of 8 bytes"),
            None => Ok(()),
        }
    }

    /// Finishes requests in any order: some plugins move a transfer only inside the test of that transfer.
    fn finish_all(&mut self, requests: &mut VecDeque<Request>) -> Result<(), CommunicatorError> {
        while let Some(request) = requests.pop_front() {
            // SAFETY: a request that is done is not put back.
            let done = unsafe { self.net.test(&request, None) }?;
            if !done {
                requests.push_back(request);
            }
            let undone = requests.len();
            self.patience.after_round(done, || format!("a round trip of 8 bytes: {undone} requests are not done"))?;
        }
        Ok(())
    }

    fn bandwidth(
        &mut self,
        link: &mut Link,
        settings: &Settings,
        bytes: usize,
    ) -> Result<Bandwidth, CommunicatorError> {
        let in_flight = (self.buffer_bytes / bytes.max(1)).clamp(1, settings.in_flight.max(1));
        self.burst(in_flight, bytes, in_flight)?;
        let mut one = self.time_of_one(in_flight, bytes, in_flight)?;
        if !settings.warm_up.is_zero() {
            let count = shared_count(link, settings.warm_up, one, in_flight)?;
            one = self.time_of_one(count, bytes, in_flight)?;
        }
        let count = shared_count(link, settings.time / REPETITIONS as u32, one, in_flight)?;
        let mut rates = Vec::with_capacity(REPETITIONS);
        for _ in 0..REPETITIONS {
            link.barrier()?;
            let begin = Instant::now();
            self.burst(count, bytes, in_flight)?;
            let nanos = link.gather_numbers(begin.elapsed().as_nanos() as u64)?[0];
            rates.push((bytes * count) as f64 * 8.0 / nanos.max(1) as f64);
        }
        rates.sort_by(f64::total_cmp);
        Ok(Bandwidth { bytes, in_flight, gigabits_per_second: rates[REPETITIONS / 2] })
    }

    /// Sends a burst and returns its average time per message.
    fn time_of_one(&mut self, count: usize, bytes: usize, in_flight: usize) -> Result<Duration, CommunicatorError> {
        let begin = Instant::now();
        self.burst(count, bytes, in_flight)?;
        Ok(begin.elapsed() / count as u32)
    }

    /// Sends `count` messages from rank 0; rank 1 receives them and replies to the last with a small one.
    fn burst(&mut self, count: usize, bytes: usize, in_flight: usize) -> Result<(), CommunicatorError> {
        if self.rank == 0 {
            let answer = self.post_receive(0, LATENCY_BYTES)?;
            self.stream(count, in_flight, |pair, slot| pair.try_send(slot * bytes, bytes))?;
            return self.finish(&answer, "the reply to a burst");
        }
        self.stream(count, in_flight, |pair, slot| pair.try_receive(slot * bytes, bytes))?;
        let answer = self.post_send(0, LATENCY_BYTES)?;
        self.finish(&answer, "the end of the reply to a burst")
    }

    /// Posts `count` requests, at most `in_flight` at a time, and tests them in order, as NCCL's progress thread does.
    fn stream(
        &mut self,
        count: usize,
        in_flight: usize,
        post: impl Fn(&Self, usize) -> Result<Option<Request>, NetError>,
    ) -> Result<(), CommunicatorError> {
        let mut requests = VecDeque::with_capacity(in_flight);
        let (mut posted, mut done) = (0, 0);
        while done < count {
            let mut moved = false;
            if posted < count
                && requests.len() < in_flight
                && let Some(request) = post(self, posted % in_flight)?
            {
                requests.push_back(request);
                posted += 1;
                moved = true;
            }
            if self.test_oldest(&mut requests)? {
                done += 1;
                moved = true;
            }
            self.patience.after_round(moved, || format!("a burst: {posted} of {count} posted, {done} done"))?;
        }
        Ok(())
    }

    /// Tests the first of these requests, and removes it if it is done.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn test_oldest(&self, requests: &mut VecDeque<Request>) -> Result<bool, NetError> {
        let Some(first) = requests.front() else { return Ok(false) };
        // SAFETY: the request is dropped as soon as it is done.
        let done = unsafe { self.net.test(first, None) }?;
        if done {
            requests.pop_front();
        }
        Ok(done)
    }

    /// Closes both connections.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn close(self) -> Result<(), NetError> {
        self.to.close().and(self.from.close())
    }

    /// Tries to send the `bytes` of the buffer from `offset` on; `None` if there is no receive for them yet.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Panics
    /// If the bytes are not inside the buffer.
    pub fn try_send(&self, offset: usize, bytes: usize) -> Result<Option<Request>, NetError> {
        self.try_send_profiled(offset, bytes, ProfilerHandle::NONE)
    }

    /// As [`Self::try_send`], with a profiler's handle of the message.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Panics
    /// If the bytes are not inside the buffer.
    pub fn try_send_profiled(
        &self,
        offset: usize,
        bytes: usize,
        profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError> {
        let (start, registration) = self.to.slot(0);
        assert!(offset + bytes <= self.buffer_bytes, "a message inside the buffer");
        // SAFETY: the message lies inside the registered buffer, whose content nothing else reads or writes here.
        unsafe { self.net.isend_profiled(self.to.side(), start.add(offset), bytes, 0, registration, profiler) }
    }

    /// Tries to receive `bytes` into the buffer from `offset` on; `None` if the plugin has no room for one more
    /// request.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Panics
    /// If the bytes are not inside the buffer.
    pub fn try_receive(&self, offset: usize, bytes: usize) -> Result<Option<Request>, NetError> {
        self.try_receive_profiled(offset, bytes, ProfilerHandle::NONE)
    }

    /// As [`Self::try_receive`], with a profiler's handle of the message.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Panics
    /// If the bytes are not inside the buffer.
    pub fn try_receive_profiled(
        &self,
        offset: usize,
        bytes: usize,
        profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError> {
        let (start, registration) = self.from.slot(0);
        assert!(offset + bytes <= self.buffer_bytes, "a message inside the buffer");
        // SAFETY: the offset lies inside the buffer or at its end.
        let part = Part { data: unsafe { start.add(offset) }, bytes, tag: 0, registration };
        // SAFETY: the message lies inside the registered buffer. Receives posted ahead may share bytes of it, but
        // nothing here reads its content.
        unsafe { self.net.irecv_profiled(self.from.side(), &[part], false, &[profiler]) }
    }

    fn post_send(&mut self, offset: usize, bytes: usize) -> Result<Request, CommunicatorError> {
        loop {
            let request = self.try_send(offset, bytes)?;
            self.patience.after_round(request.is_some(), || "a send that finds no receive".to_owned())?;
            if let Some(request) = request {
                return Ok(request);
            }
        }
    }

    fn post_receive(&mut self, offset: usize, bytes: usize) -> Result<Request, CommunicatorError> {
        loop {
            let request = self.try_receive(offset, bytes)?;
            self.patience.after_round(request.is_some(), || "a receive that cannot be posted".to_owned())?;
            if let Some(request) = request {
                return Ok(request);
            }
        }
    }

    fn finish(&mut self, request: &Request, what: &str) -> Result<(), CommunicatorError> {
        loop {
            // SAFETY: every request is finished once.
            let done = unsafe { self.net.test(request, None) }?;
            self.patience.after_round(done, || format!("wait for {what}"))?;
            if done {
                return Ok(());
            }
        }
    }
}

/// Returns the number of messages of a burst that fit into `time` if each takes `one`, at least `in_flight`. Rank 0
/// decides.
fn shared_count(link: &mut Link, time: Duration, one: Duration, in_flight: usize) -> Result<usize, BootstrapError> {
    let count = rounds_in(time, one).clamp(in_flight, 1 << 22);
    Ok(link.gather_numbers(count as u64)?[0] as usize)
}

fn rounds_in(time: Duration, one: Duration) -> usize {
    (time.as_secs_f64() / one.as_secs_f64().max(1e-9)) as usize
}
