//! The threads for the rails of open connections: one makes new lanes, and several end those of rails that failed, so
//! that this waits for nobody.
#![allow(clippy::disallowed_types, reason = "the control thread and these threads exchange jobs here")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use mio::Waker;
use railweave_transport::RailWork;

use super::clock::nanoseconds;
use super::jobs::{Worker, finish};
use super::numa::Placed;
use crate::comm::Route;

/// The most fences at a time. Most of a fence is a pause of some milliseconds, and a port that fails has one for each
/// connection.
pub(super) const MOST_FENCES: usize = 8;

/// The connection of work on a rail.
#[derive(Clone)]
pub(super) struct RailOwner {
    pub(super) route: Route,
    /// False once it is closed, whatever has its route then.
    pub(super) is_open: Arc<AtomicBool>,
    /// The NUMA node of its device.
    pub(super) node: Option<u32>,
}

impl RailOwner {
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}

/// Work on a rail of an open connection.
pub(super) struct RailJob {
    pub(super) owner: RailOwner,
    pub(super) work: Box<dyn RailWork>,
}

/// Such work that is back. It goes on after the pause, if there is one; `None` if a bug ended it.
pub(super) struct RailDone {
    pub(super) owner: RailOwner,
    pub(super) work: Option<Box<dyn RailWork>>,
    pub(super) pause: Option<Duration>,
}

/// The threads.
pub(super) struct RailThreads {
    starter: RailStarter,
    /// Those that do what may not wait; each was started when the others were busy.
    fences: Vec<Worker<RailJob>>,
    lanes: Worker<RailJob>,
    pub(super) done: Receiver<RailDone>,
    /// The amount of work that was not taken back.
    pub(super) away: usize,
    /// Work that goes on at these times.
    pub(super) paused: Vec<(u64, RailJob)>,
}

/// Starts the threads.
struct RailStarter {
    /// True once they must end: waiting work is then freed instead of done.
    ending: Arc<AtomicBool>,
    back: Sender<RailDone>,
    waker: Arc<Waker>,
    epoch: Instant,
}

impl RailStarter {
    fn start(&self, name: &str) -> io::Result<Worker<RailJob>> {
        let (is_ending, back) = (Arc::clone(&self.ending), self.back.clone());
        let (waker, epoch) = (Arc::clone(&self.waker), self.epoch);
        Worker::start(
            name,
            |_| false,
            move |job: RailJob| {
                if is_ending.load(Ordering::Relaxed) {
                    return drop(job);
                }
                // If the receiver is gone, this drops the work.
                let _ = back.send(job.run(epoch));
                let _ = waker.wake();
            },
        )
    }
}

impl RailThreads {
    /// Starts the one for new lanes. Times count from `epoch`, and the thread that takes work back is woken.
    pub(super) fn start(waker: Arc<Waker>, epoch: Instant) -> io::Result<Self> {
        let (back, done) = mpsc::channel();
        let starter = RailStarter { ending: Arc::default(), back, waker, epoch };
        let lanes = starter.start("railweave-rail")?;
        Ok(Self { starter, fences: Vec::new(), lanes, done, away: 0, paused: Vec::new() })
    }

    /// Returns the mark that they must end.
    pub(super) fn ending(&self) -> &Arc<AtomicBool> {
        &self.starter.ending
    }

    /// Ends them as [`finish`] does, those for fences first. Returns the work left by each of the two kinds.
    pub(super) fn finish(&mut self, patience: Duration) -> impl Iterator<Item = u64> + use<> {
        let both = [finish(&mut self.fences, patience), self.lanes.finish(patience)];
        both.into_iter().filter_map(Result::err)
    }

    /// Returns the number of threads for fences.
    #[cfg(test)]
    pub(super) fn fences(&self) -> usize {
        self.fences.len()
    }

    /// Returns the thread for some work: for a fence the one with the least to do, or a new one if all are busy.
    pub(super) fn thread_for(&mut self, job: &RailJob) -> io::Result<&Worker<RailJob>> {
        if job.work.may_wait() {
            return Ok(&self.lanes);
        }
        let is_busy = |worker: &Worker<RailJob>| worker.progress.left() > 0;
        if self.fences.len() < MOST_FENCES && self.fences.iter().all(is_busy) {
            match self.starter.start("railweave-fence") {
                Ok(worker) => self.fences.push(worker),
                Err(error) if self.fences.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(self.fences.iter().min_by_key(|worker| worker.progress.left()).expect("one was just made"))
    }
}

impl RailJob {
    fn run(self, epoch: Instant) -> RailDone {
        let Self { owner, mut work } = self;
        if !owner.is_open() {
            // The control thread has its lanes freed.
            return RailDone { owner, work: Some(work), pause: None };
        }
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let _placed = Placed::on(owner.node);
            let pause = work.run(nanoseconds(epoch.elapsed()));
            (work, pause)
        }));
        match ran {
            Ok((work, pause)) => RailDone { owner, work: Some(work), pause },
            Err(_) => RailDone { owner, work: None, pause: None },
        }
    }
}
