//! A rank's record of a demonstration in which a rail is pulled, and the lead of rank 0: when the rail is pulled, and
//! when the demonstration has seen enough.

use railweave_bench::bootstrap::Link;
use railweave_nccl_host::Plugin;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The period of looks at the rails.
const LOOK: Duration = Duration::from_millis(1);

/// The part of the first round after which the rail is pulled.
const PULLED_AFTER: f64 = 1.0 / 3.0;

/// Rank 0 has not seen the rail carry data again.
const WAITS: u8 = 0;
/// It has.
const IS_BACK: u8 = 1;
/// It gave up waiting for that.
const OVERDUE: u8 = 2;

/// The part of a rank's job about the rail that is pulled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pull {
    /// The addresses of the rail's ends.
    pub(crate) addresses: Vec<String>,
    /// The time for which the rail is away.
    pub(crate) away: Duration,
    /// The ports of the ranks' relays; empty if there are none.
    pub(crate) relays: Vec<u16>,
}

/// A report of rank 0 to its parent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Turn {
    /// The rail is to be pulled now.
    Pull,
    /// The rail is to be given back now.
    GiveBack,
    /// The rail carries data again.
    Back,
}

/// The record of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The addresses of each rail's ends: the rank's own, and the peer's.
    pub(crate) rails: Vec<[String; 2]>,
    /// The looks that saw something new.
    pub(crate) points: Vec<Point>,
    /// The begin and the end of each collective, as in [`Point::at_us`].
    pub(crate) collectives: Vec<[u64; 2]>,
}

/// One look at the rails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The time in microseconds since 1970.
    pub(crate) at_us: u64,
    /// The bytes that each rail has carried to and from this rank so far: sent, and received.
    pub(crate) rails: Vec<[u64; 2]>,
}

/// The state that the rank shares with the thread that looks at the rails.
#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    /// Bytes of data whose collectives are done, and the number of their buckets.
    done_bytes: AtomicU64,
    buckets: AtomicU64,
    state: AtomicU8,
    record: Mutex<Record>,
}

/// Records until it is finished or dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pull: Pull,
    /// The longest wait for the rail's return.
    patience: Duration,
    /// True if all ranks know that rank 0 saw the rail's return.
    was_back: bool,
}

/// Returns the time in microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

impl Recorder {
    /// Starts to look at the rails. `all_bytes` is the size of a round; `wrap` makes a report for the parent.
    ///
    /// # Errors
    /// If the plugin has no counters, or no thread can be started.
    pub(crate) fn start<R: Serialize + 'static>(
        pull: &Pull,
        plugin: &Plugin,
        link: &Link,
        (all_bytes, patience): (usize, Duration),
        wrap: fn(Turn) -> R,
    ) -> Result<Self, Box<dyn Error>> {
        if plugin.rail_counters().is_none() {
            return Err("--pull needs Railweave's plugin: this one has no counters for rails".into());
        }
        let shared = Arc::new(Shared::default());
        let reporter = link.reporter();
        let report = move |turn| {
            // If the parent is gone, the rank's next exchange fails.
            let _ = serde_json::to_vec(&wrap(turn)).map(|body| reporter.report(&body));
        };
        let leader = (link.rank() == 0).then(|| Leader {
            report: Box::new(report),
            pull: pull.clone(),
            pulled_after: all_bytes as f64 * PULLED_AFTER,
            patience,
            begin: Instant::now(),
            stage: Stage::Before { ripe: None },
        });
        let (plugin, of_thread) = (plugin.clone(), Arc::clone(&shared));
        let thread = Builder::new().name("recorder".to_owned()).spawn(move || look(&plugin, &of_thread, leader))?;
        Ok(Self { shared, thread: Some(thread), pull: pull.clone(), patience, was_back: false })
    }

    /// Notes a collective that is done, with its begin and its end.
    pub(crate) fn note(&self, bytes: usize, took: [u64; 2]) {
        self.shared.record.lock().unwrap_or_else(PoisonError::into_inner).collectives.push(took);
        self.shared.buckets.fetch_add(1, Ordering::Relaxed);
        self.shared.done_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns true if a whole round was done after the rail's return; all ranks call this together after each round.
    ///
    /// # Errors
    /// If the rail does not return.
    pub(crate) fn is_over(&mut self, link: &mut Link) -> Result<bool, Box<dyn Error>> {
        let states = link.gather_numbers(u64::from(self.shared.state.load(Ordering::Relaxed)))?;
        let state = states.first().map_or(WAITS, |state| *state as u8);
        if state == OVERDUE {
            let rail = self.pull.addresses.join(" - ");
            let waited = self.patience;
            return Err(format!("rail {rail} carried nothing in the {waited:?} after it was given back").into());
        }
        Ok(std::mem::replace(&mut self.was_back, state == IS_BACK))
    }

    /// Ends the record and returns it.
    pub(crate) fn finish(mut self) -> Record {
        self.stop();
        std::mem::take(&mut *self.shared.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, the panic is on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The work of the thread.
fn look(plugin: &Plugin, shared: &Shared, mut leader: Option<Leader>) {
    let mut last: Vec<[u64; 2]> = Vec::new();
    while !shared.ends.load(Ordering::Relaxed) {
        let counters = plugin.rail_counters().unwrap_or_default();
        let rails: Vec<[u64; 2]> = counters.iter().map(|rail| [rail.data_bytes, rail.received_bytes]).collect();
        if rails != last {
            let mut record = shared.record.lock().unwrap_or_else(PoisonError::into_inner);
            record.rails = counters.iter().map(|rail| [rail.local.clone(), rail.remote.clone()]).collect();
            record.points.push(Point { at_us: now_us(), rails: rails.clone() });
            last = rails;
        }
        if let Some(leader) = &mut leader {
            let of_rail = counters.iter().filter(|rail| leader.pull.addresses.contains(&rail.local));
            let carried = of_rail.map(|rail| rail.data_bytes + rail.received_bytes).sum();
            leader.step(shared, carried, Instant::now());
        }
        std::thread::sleep(LOOK);
    }
}

/// The lead of rank 0.
struct Leader {
    report: Box<dyn Fn(Turn) + Send>,
    pull: Pull,
    /// The bytes after which the rail is pulled.
    pulled_after: f64,
    patience: Duration,
    begin: Instant,
    stage: Stage,
}

enum Stage {
    /// The rail is not pulled yet; once the bytes have moved, this is the time when it is.
    Before { ripe: Option<Instant> },
    /// It is pulled since then.
    Away { since: Instant },
    /// It was given back then, when it had carried this many bytes.
    GivenBack { since: Instant, carried: u64 },
    /// It carries data again, or it took too long.
    Over,
}

impl Leader {
    /// Goes on to the next stage if its time has come. The rail has carried this many bytes.
    fn step(&mut self, shared: &Shared, carried: u64, now: Instant) {
        match self.stage {
            Stage::Before { ripe: None } if shared.done_bytes.load(Ordering::Relaxed) as f64 >= self.pulled_after => {
                // In the middle of a collective: between two of them nothing is on its way.
                let buckets = shared.buckets.load(Ordering::Relaxed).max(1);
                let half = (now - self.begin) / (2 * buckets as u32);
                self.stage = Stage::Before { ripe: Some(now + half) };
            }
            Stage::Before { ripe: Some(ripe) } if now >= ripe => {
                (self.report)(Turn::Pull);
                self.stage = Stage::Away { since: now };
            }
            Stage::Away { since } if now - since >= self.pull.away => {
                (self.report)(Turn::GiveBack);
                self.stage = Stage::GivenBack { since: now, carried };
            }
            Stage::GivenBack { carried: before, .. } if carried > before => {
                (self.report)(Turn::Back);
                shared.state.store(IS_BACK, Ordering::Relaxed);
                self.stage = Stage::Over;
            }
            Stage::GivenBack { since, .. } if now - since >= self.patience => {
                shared.state.store(OVERDUE, Ordering::Relaxed);
                self.stage = Stage::Over;
            }
            _ => {}
        }
    }
}
