//! Threads that do jobs, and are waited for as long as they get something done.
#![allow(clippy::disallowed_types, reason = "the control thread gives its pools jobs here")]

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::signals;

/// The time between two checks of a pool's progress while it ends.
const PROGRESS_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The longest time between two checks that counts as waiting. If more has passed, this process was stopped, and its
/// threads with it.
const MOST_BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// The number of jobs that a pool was given, and the number of those that are done.
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

/// The jobs of a pool that no thread has begun.
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

/// The part of a pool that its threads share.
struct Shared<J> {
    todo: Mutex<Todo<J>>,
    work: Box<dyn Fn(J) + Send + Sync>,
    progress: Arc<Progress>,
}

/// Threads that take jobs from one queue, so that a job which lasts holds up no other while there are more threads.
pub(super) struct Pool<J> {
    name: &'static str,
    most: usize,
    jobs: Option<Sender<J>>,
    shared: Arc<Shared<J>>,
    pub(super) progress: Arc<Progress>,
    threads: Vec<JoinHandle<()>>,
}

impl<J: Send + 'static> Pool<J> {
    /// Starts the first thread of at most this many. Jobs that may wait are done when there are no others.
    pub(super) fn start(
        name: &'static str,
        most: usize,
        may_wait: fn(&J) -> bool,
        work: impl Fn(J) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (jobs, given) = mpsc::channel::<J>();
        let todo = Mutex::new(Todo { given, may_wait, first: VecDeque::new(), last: VecDeque::new() });
        let progress = Arc::<Progress>::default();
        let shared = Arc::new(Shared { todo, work: Box::new(work), progress: Arc::clone(&progress) });
        let mut pool = Self { name, most, jobs: Some(jobs), shared, progress, threads: Vec::new() };
        pool.add_thread()?;
        Ok(pool)
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let _blocked = signals::Blocked::all();
        let run = move || {
            // A thread that waits for a job keeps the lock, and the other idle ones wait for that.
            while let Some(job) = { shared.todo.lock().unwrap_or_else(PoisonError::into_inner).next() } {
                // Jobs report their bugs themselves. One that cannot be dropped must not end the thread.
                let _ = catch_unwind(AssertUnwindSafe(|| (shared.work)(job)));
                shared.progress.done.fetch_add(1, Ordering::Release);
            }
        };
        self.threads.push(std::thread::Builder::new().name(self.name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Adds a job, and a thread if all are busy and there may be more. Once the pool is finished, drops the job.
    pub(super) fn give(&mut self, job: J) {
        let Some(jobs) = &self.jobs else { return };
        self.progress.given.fetch_add(1, Ordering::Relaxed);
        if jobs.send(job).is_ok() && self.threads.len() < self.most && self.progress.left() > self.threads.len() as u64
        {
            // Without one more, the others do it.
            let _ = self.add_thread();
        }
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Lets the threads finish their jobs and joins them. If they finish none for `patience`, leaves them running and
    /// returns the number of unfinished jobs.
    pub(super) fn finish(&mut self, patience: Duration) -> Result<(), u64> {
        self.jobs = None;
        let (mut seen, mut waited, mut checked) = (self.progress.done(), Duration::ZERO, Instant::now());
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            waited += checked.elapsed().min(MOST_BETWEEN_CHECKS);
            checked = Instant::now();
            if self.progress.done() != seen {
                (seen, waited) = (self.progress.done(), Duration::ZERO);
            }
            if waited >= patience {
                self.threads.clear();
                return Err(self.progress.left());
            }
            std::thread::sleep(PROGRESS_CHECK_INTERVAL);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a thread whose jobs each wait for a message.
    fn gated() -> (Sender<()>, Pool<()>) {
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let wait = move |()| assert!(matches!(gate.lock().unwrap().recv(), Ok(()) | Err(mpsc::RecvError)));
        (go, Pool::start("test", 1, |()| false, wait).unwrap())
    }

    #[test]
    fn a_pool_that_gets_something_done_is_waited_for_and_one_that_does_not_is_left() {
        let patience = Duration::from_millis(500);
        let (go, mut pool) = gated();
        (0..10).for_each(|_| pool.give(()));
        let progress = Arc::clone(&pool.progress);
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
        assert_eq!(pool.finish(patience), Err(7));
        assert!(begin.elapsed() >= patience * 2, "it was left after {:?}", begin.elapsed());
        drop(keeper.join().unwrap());
        let (go, mut pool) = gated();
        pool.give(());
        go.send(()).unwrap();
        assert_eq!(pool.finish(Duration::from_secs(60)), Ok(()));
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

    #[test]
    fn a_job_that_lasts_holds_up_no_other_while_there_is_one_more_thread() {
        let (go, gate) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel::<bool>();
        let (gate, begun) = (Mutex::new(gate), Mutex::new(begun));
        let work = move |is_slow: bool| {
            begun.lock().unwrap().send(is_slow).unwrap();
            if is_slow {
                let _ = gate.lock().unwrap().recv();
            }
        };
        let mut pool = Pool::start("test", 2, |_: &bool| false, work).unwrap();
        pool.give(true);
        assert_eq!(has_begun.recv(), Ok(true));
        for count in 1..=20 {
            pool.give(false);
            assert_eq!(has_begun.recv(), Ok(false), "job {count}");
            assert!(pool.threads() <= 2);
        }
        pool.give(true);
        assert_eq!(has_begun.recv(), Ok(true));
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(pool.finish(Duration::from_secs(60)), Ok(()));
        assert_eq!(pool.progress.done(), 22);
    }

    #[test]
    fn a_job_that_panics_ends_no_thread() {
        let mut pool = Pool::start("test", 1, |_: &bool| false, |panics| assert!(!panics, "as it should")).unwrap();
        pool.give(true);
        pool.give(false);
        assert_eq!(pool.finish(Duration::from_secs(60)), Ok(()));
        assert_eq!(pool.progress.done(), 2);
        pool.give(false);
        assert_eq!(pool.progress.left(), 0, "it was dropped");
    }

    #[test]
    fn jobs_that_are_left_are_those_of_all_busy_threads_and_those_that_wait() {
        let (go, gate) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel::<()>();
        let (gate, begun) = (Mutex::new(gate), Mutex::new(begun));
        let work = move |is_held: bool| {
            // Some begin once the test is over.
            let _ = begun.lock().unwrap().send(());
            if is_held {
                let _ = gate.lock().unwrap().recv();
            }
        };
        let mut pool = Pool::start("test", 3, |_| false, work).unwrap();
        // One is done, three are begun, and three wait for a thread.
        pool.give(false);
        (0..6).for_each(|_| pool.give(true));
        assert_eq!(has_begun.iter().take(4).count(), 4);
        assert_eq!(pool.finish(Duration::ZERO), Err(6));
        drop(go);
    }

    #[test]
    fn a_job_that_comes_after_the_end_is_dropped() {
        let mut pool = Pool::start("test", 1, |_: &Arc<()>| false, drop).unwrap();
        assert_eq!(pool.finish(Duration::from_secs(60)), Ok(()));
        let job = Arc::new(());
        pool.give(Arc::clone(&job));
        assert_eq!(Arc::strong_count(&job), 1);
    }
}
