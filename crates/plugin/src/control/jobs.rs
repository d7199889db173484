//! Threads that do one job after another, and are waited for as long as they get something done.
#![allow(clippy::disallowed_types, reason = "the control thread gives its workers jobs here")]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::signals;

/// The time between two checks of a worker's progress while it ends.
const PROGRESS_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The longest time between two checks that counts as waiting. If more has passed, this process was stopped, and its
/// worker with it.
const MOST_BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// The number of jobs that a worker was given, and the number of those that are done.
#[derive(Default)]
pub(super) struct Progress {
    given: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    pub(super) fn left(&self) -> u64 {
        self.given.load(Ordering::Relaxed).saturating_sub(self.done())
    }
}

/// The jobs that wait for a thread.
struct Todo<J> {
    given: Receiver<J>,
    may_wait: fn(&J) -> bool,
    first: VecDeque<J>,
    last: VecDeque<J>,
}

impl<J> Todo<J> {
    fn sort(&mut self, job: J) {
        let queue = if (self.may_wait)(&job) { &mut self.last } else { &mut self.first };
        queue.push_back(job);
    }

    /// Returns the next job: the oldest that must not wait, otherwise the oldest. Blocks until there is one. `None`: no
    /// more will come.
    fn next(&mut self) -> Option<J> {
        while let Ok(job) = self.given.try_recv() {
            self.sort(job);
        }
        let known = self.first.pop_front().or_else(|| self.last.pop_front());
        known.or_else(|| self.given.recv().ok())
    }
}

/// A thread that does one job after another.
pub(super) struct Worker<J> {
    jobs: Option<Sender<J>>,
    pub(super) progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> Worker<J> {
    /// Starts the thread. Jobs that may wait are done when there are no others.
    pub(super) fn start(
        name: &str,
        may_wait: fn(&J) -> bool,
        mut work: impl FnMut(J) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, given) = mpsc::channel::<J>();
        let mut todo = Todo { given, may_wait, first: VecDeque::new(), last: VecDeque::new() };
        let progress = Arc::<Progress>::default();
        let counted = Arc::clone(&progress);
        let _blocked = signals::Blocked::all();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(job) = todo.next() {
                work(job);
                counted.done.fetch_add(1, Ordering::Release);
            }
        })?;
        Ok(Self { jobs: Some(jobs), progress, thread: Some(thread) })
    }

    /// Adds a job. Returns it if the thread is gone.
    pub(super) fn give(&self, job: J) -> Result<(), J> {
        self.progress.given.fetch_add(1, Ordering::Relaxed);
        match &self.jobs {
            Some(jobs) => jobs.send(job).map_err(|SendError(job)| job),
            None => Err(job),
        }
    }

    /// Lets the thread finish its jobs and joins it: [`finish`].
    pub(super) fn finish(&mut self, patience: Duration) -> Result<(), u64> {
        finish(std::slice::from_mut(self), patience)
    }
}

/// Lets threads finish their jobs and joins them. If they finish none for `patience`, leaves them running and returns
/// the number of unfinished jobs.
pub(super) fn finish<J>(workers: &mut [Worker<J>], patience: Duration) -> Result<(), u64> {
    workers.iter_mut().for_each(|worker| worker.jobs = None);
    let done = |workers: &[Worker<J>]| workers.iter().map(|worker| worker.progress.done()).sum::<u64>();
    let runs = |worker: &Worker<J>| worker.thread.as_ref().is_some_and(|thread| !thread.is_finished());
    let (mut seen, mut waited, mut checked) = (done(workers), Duration::ZERO, Instant::now());
    while workers.iter().any(runs) {
        waited += checked.elapsed().min(MOST_BETWEEN_CHECKS);
        checked = Instant::now();
        if done(workers) != seen {
            (seen, waited) = (done(workers), Duration::ZERO);
        }
        if waited >= patience {
            workers.iter_mut().for_each(|worker| worker.thread = None);
            return Err(workers.iter().map(|worker| worker.progress.left()).sum());
        }
        std::thread::sleep(PROGRESS_CHECK_INTERVAL);
    }
    // A panic was already caught and logged.
    workers.iter_mut().filter_map(|worker| worker.thread.take()).for_each(|thread| drop(thread.join()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a worker whose jobs each wait for a message.
    fn gated() -> (Sender<()>, Worker<()>) {
        let (go, gate) = mpsc::channel::<()>();
        let worker = Worker::start(
            "test",
            |()| false,
            move |()| {
                let _ = gate.recv();
            },
        )
        .unwrap();
        (go, worker)
    }

    #[test]
    fn a_worker_that_gets_something_done_is_waited_for_and_one_that_does_not_is_left() {
        let patience = Duration::from_millis(500);
        let (go, mut worker) = gated();
        (0..10).for_each(|_| worker.give(()).unwrap());
        let progress = Arc::clone(&worker.progress);
        let keeper = std::thread::spawn(move || {
            // Three jobs, each after half of the patience, which together take longer than it. Then none.
            for done in 1..=3 {
                std::thread::sleep(patience / 2);
                go.send(()).unwrap();
                while progress.done() < done {
                    std::thread::yield_now();
                }
            }
            go
        });
        let begin = Instant::now();
        assert_eq!(worker.finish(patience), Err(7));
        assert!(begin.elapsed() >= patience * 2, "it was left after {:?}", begin.elapsed());
        drop(keeper.join().unwrap());
        let (go, mut worker) = gated();
        worker.give(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(worker.finish(Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn what_may_wait_is_done_when_there_is_nothing_else() {
        let (jobs, given) = mpsc::channel();
        let may_wait = |job: &u32| job % 2 == 1;
        let mut todo = Todo { given, may_wait, first: VecDeque::new(), last: VecDeque::new() };
        [1, 3, 2, 4].into_iter().for_each(|job| jobs.send(job).unwrap());
        assert_eq!([todo.next(), todo.next(), todo.next()], [Some(2), Some(4), Some(1)]);
        [5, 6].into_iter().for_each(|job| jobs.send(job).unwrap());
        drop(jobs);
        assert_eq!([todo.next(), todo.next(), todo.next(), todo.next()], [Some(6), Some(3), Some(5), None]);
    }
}
