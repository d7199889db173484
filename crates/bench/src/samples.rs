//! Samples of the rails' counters while a rank works, taken by a thread of their own, and the rates and shares that
//! follow from them.

use railweave_nccl_host::RailCount;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A period in which a rank sends fewer bytes than this has no traffic: the short answers of a measurement are none.
const QUIET_BYTES: u64 = 1024;

/// The traffic of one rail in some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The address of this rank's end.
    pub local: String,
    /// The address of the peer's end.
    pub remote: String,
    /// Message bytes that were handed to the rail; some may still be on their way.
    pub bytes: u64,
    /// The rate in megabits (10^6) per second; 0 if no time has passed.
    pub megabits_per_second: f64,
    /// The part of all bytes, 0 to 1; 0 if there are none.
    pub share: f64,
}

/// Returns the traffic of each rail that `after` counts, which was read `time` after `before`. A rail that is not in
/// `before`, or whose counter has become smaller, counts from 0; one that is not in `after` is left out.
#[must_use]
pub fn traffic(before: &[RailCount], after: &[RailCount], time: Duration) -> Vec<Traffic> {
    let sent = |rail: &RailCount| {
        let earlier = before.iter().find(|other| (&other.local, &other.remote) == (&rail.local, &rail.remote));
        let earlier = earlier.map_or(0, |earlier| earlier.data_bytes);
        rail.data_bytes.checked_sub(earlier).unwrap_or(rail.data_bytes)
    };
    let all: u64 = after.iter().map(sent).sum();
    let of = |rail: &RailCount| {
        let bytes = sent(rail);
        let megabits_per_second = if time.is_zero() { 0.0 } else { bytes as f64 * 8.0 / 1e6 / time.as_secs_f64() };
        let (local, remote) = (rail.local.clone(), rail.remote.clone());
        Traffic { local, remote, bytes, megabits_per_second, share: bytes as f64 / all.max(1) as f64 }
    };
    after.iter().map(of).collect()
}

/// The message of a [`Sampler`].
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// The first one.
    Begin {
        /// True if the plugin has counters; otherwise no other message follows.
        counted: bool,
    },
    /// The traffic of each rail in one period, which was not quiet.
    Period(Vec<Traffic>),
}

/// A thread that reads counters at regular times. Dropping it ends the thread, after a last sample of the time since
/// the one before if that is at least half a period.
#[derive(Debug)]
pub struct Sampler {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts to call `read` once in each period of `every`, and hands each sample to `send`, the first at once. Rates
    /// are those of the time that has really passed. If the thread is late, the next period is shorter, but at least
    /// half as long: a message that is handed over in a shorter one would seem to have any rate.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        every: Duration,
        read: impl Fn() -> Option<Vec<RailCount>> + Send + 'static,
        mut send: impl FnMut(Sample) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let (begin, first) = (Instant::now(), read());
        send(Sample::Begin { counted: first.is_some() });
        let Some(mut before) = first else { return Ok(Self { stop: None, thread: None }) };
        let thread = Builder::new().name("samples".to_owned()).spawn(move || {
            let (mut since, mut due) = (begin, begin + every);
            loop {
                let wait = due.saturating_duration_since(Instant::now());
                let ends = !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
                let now = Instant::now();
                if ends && now - since < every / 2 {
                    return;
                }
                let Some(after) = read() else { return };
                let rails = traffic(&before, &after, now - since);
                if rails.iter().map(|rail| rail.bytes).sum::<u64>() >= QUIET_BYTES {
                    send(Sample::Period(rails));
                }
                if ends {
                    return;
                }
                (before, since) = (after, now);
                while due < now + every / 2 {
                    due += every;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panics only if `read` or `send` does, and then the panic is on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_patience::until;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    fn count(local: &str, data_bytes: u64) -> RailCount {
        RailCount {
            local: local.to_owned(),
            remote: "peer".to_owned(),
            data_bytes,
            data_writes: 0,
            cts_writes: 0,
            received_bytes: 0,
            connections: 1,
            usable: true,
        }
    }

    fn figures(rails: &[Traffic]) -> Vec<(&str, u64, f64, f64)> {
        rails.iter().map(|rail| (&*rail.local, rail.bytes, rail.megabits_per_second, rail.share)).collect()
    }

    #[test]
    fn a_period_after_a_late_sample_has_at_least_half_of_its_length() {
        const EVERY: Duration = Duration::from_millis(20);
        let (reads, periods) = (AtomicU64::new(0), Arc::new(Mutex::new(Vec::new())));
        let read = move || {
            let number = reads.fetch_add(1, Ordering::Relaxed);
            // Every other one takes nearly a period.
            std::thread::sleep(EVERY * 19 / 20 * (number % 2) as u32);
            Some(vec![count("a", number * 10_000_000)])
        };
        let seen = Arc::clone(&periods);
        let sampler = Sampler::start(EVERY, read, move |sample| {
            if let Sample::Period(rails) = sample {
                seen.lock().unwrap().push(rails[0].bytes as f64 * 8e-6 / rails[0].megabits_per_second);
            }
        });
        until("periods", || (periods.lock().unwrap().len() >= 10).then_some(()));
        drop(sampler.unwrap());
        // All but the last, which ends with the measurement.
        let periods = &periods.lock().unwrap()[..10];
        assert!(periods.iter().all(|seconds| *seconds >= 0.0099), "{periods:?}");
    }

    #[test]
    fn rates_and_shares_are_of_the_bytes_since_the_sample_before() {
        let (before, after) = ([count("a", 1000), count("b", 50)], [count("a", 1_001_000), count("b", 250_050)]);
        let rails = traffic(&before, &after, Duration::from_millis(100));
        assert_eq!(figures(&rails), [("a", 1_000_000, 80.0, 0.8), ("b", 250_000, 20.0, 0.2)]);
        let still = traffic(&after, &after, Duration::from_millis(100));
        assert_eq!(figures(&still), [("a", 0, 0.0, 0.0), ("b", 0, 0.0, 0.0)]);
    }

    #[test]
    fn counters_that_come_go_or_begin_again_have_no_absurd_rates() {
        let (before, after) = (
            [count("a", 1000), count("gone", 7), count("again", 900)],
            [count("a", 1000), count("new", 300), count("again", 100)],
        );
        let rails = traffic(&before, &after, Duration::from_secs(1));
        assert_eq!(figures(&rails), [("a", 0, 0.0, 0.0), ("new", 300, 0.0024, 0.75), ("again", 100, 0.0008, 0.25)]);
        assert_eq!(traffic(&before, &[], Duration::from_secs(1)), []);
        assert_eq!(figures(&traffic(&[], &[count("a", 9)], Duration::ZERO)), [("a", 9, 0.0, 1.0)]);
    }

    #[test]
    fn a_sampler_reports_periods_with_traffic_only_and_ends_when_dropped() {
        let (sent, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (reads, sees) = (Arc::clone(&sent), Arc::clone(&seen));
        let read = move || Some(vec![count("a", reads.load(Ordering::Relaxed))]);
        let sampler =
            Sampler::start(Duration::from_millis(10), read, move |sample| sees.lock().unwrap().push(sample)).unwrap();
        assert_eq!(*seen.lock().unwrap(), [Sample::Begin { counted: true }]);
        for total in [5000, 12_000] {
            // Two short answers are no traffic.
            sent.fetch_add(8, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(30));
            sent.store(total, Ordering::Relaxed);
            let bytes = || -> u64 {
                let seen = seen.lock().unwrap();
                let periods = seen.iter().filter_map(|sample| match sample {
                    Sample::Period(rails) => Some(rails[0].bytes),
                    Sample::Begin { .. } => None,
                });
                periods.sum()
            };
            until("a sample of the traffic", || (bytes() >= total - 16).then_some(()));
        }
        drop(sampler);
        assert_eq!(seen.lock().unwrap().len(), 3);
        assert_eq!(Arc::strong_count(&seen), 1, "the thread has ended");
    }

    #[test]
    fn a_plugin_without_counters_is_reported_once() {
        let (told, heard) = channel();
        let sampler = Sampler::start(Duration::from_millis(10), || None, move |sample| told.send(sample).unwrap());
        drop(sampler.unwrap());
        assert_eq!(heard.iter().collect::<Vec<_>>(), [Sample::Begin { counted: false }]);
    }
}
