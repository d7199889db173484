//! The threads for calls that may block in a fabric: verbs calls may take seconds while the kernel looks up an address,
//! or waits for a queue pair's last packets. One sets connections up: a handshake goes there with a message and comes
//! back with its next actions. Another frees ended handshakes and connections, so that no set-up waits for that, and a
//! third ends the lanes of rails that failed and makes new ones, so that this waits for nobody.
#![allow(clippy::disallowed_types, reason = "the control thread and its workers exchange jobs here")]

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use mio::Waker;
use railweave_transport::RailWork;
use railweave_transport::progress::Step;

use super::clock::nanoseconds;
use super::jobs::Worker;
use super::numa::Placed;
use crate::comm::Route;
use crate::log;
use crate::network::AnyHandshake;

/// The time that the last `finalize` waits while a worker finishes no job.
const PATIENCE: Duration = Duration::from_secs(5);
/// A handshake and its next step.
pub(super) struct Task {
    pub(super) number: u64,
    pub(super) route: Route,
    /// False once nobody waits for the connection.
    pub(super) is_wanted: Arc<AtomicBool>,
    pub(super) handshake: Box<dyn AnyHandshake>,
    pub(super) step: Step,
    /// The NUMA node of the device.
    pub(super) node: Option<u32>,
    pub(super) given_ns: u64,
}

impl Task {
    /// Returns true for a retry: it may hold the thread for a second and fail again, so other work goes first.
    fn may_wait(&self) -> bool {
        matches!(self.step, Step::GoOn)
    }
}

/// A handshake that is back; `None` if a bug ended it.
pub(super) struct Done {
    pub(super) number: u64,
    pub(super) route: Route,
    pub(super) handshake: Option<Box<dyn AnyHandshake>>,
}

/// Work on a rail of an open connection.
pub(super) struct RailJob {
    pub(super) route: Route,
    pub(super) work: Box<dyn RailWork>,
}

/// Such work that is back. It goes on after the pause, if there is one; `None` if a bug ended it.
pub(super) struct RailDone {
    pub(super) route: Route,
    pub(super) work: Option<Box<dyn RailWork>>,
    pub(super) pause: Option<Duration>,
}

/// The thread for the rails of open connections.
struct RailThread {
    worker: Worker<RailJob>,
    done: Receiver<RailDone>,
    /// Work that goes on at these times.
    paused: Vec<(u64, RailJob)>,
}

/// The set-up thread.
struct SetupThread {
    worker: Worker<Task>,
    done: Receiver<Done>,
    /// True once the threads must end: waiting tasks are then freed instead of run.
    ending: Arc<AtomicBool>,
    /// The jobs done at the last check, and the time since when that number has not changed.
    seen: u64,
    since_ns: u64,
}

/// The threads, each started when it is first needed. Dropping this ends and joins them; one that finishes no job for
/// [`PATIENCE`] is left running.
pub(super) struct Workers {
    epoch: Instant,
    timeout_ns: u64,
    waker: Arc<Waker>,
    /// The number of tasks given to the set-up thread, which is also the next one's number.
    given_tasks: u64,
    /// The numbers of those not taken back yet.
    outstanding_tasks: BTreeSet<u64>,
    setup_thread: Option<SetupThread>,
    freeing_thread: Option<Worker<Box<dyn Send>>>,
    rail_thread: Option<RailThread>,
}

impl Workers {
    /// Starts no thread yet. A handshake gets `timeout` for each step; nanoseconds count from `epoch`.
    pub(super) fn new(epoch: Instant, timeout: Duration, waker: Arc<Waker>) -> Self {
        Self {
            epoch,
            timeout_ns: nanoseconds(timeout),
            waker,
            given_tasks: 0,
            outstanding_tasks: BTreeSet::new(),
            setup_thread: None,
            freeing_thread: None,
            rail_thread: None,
        }
    }

    /// Returns the set-up thread, and starts it when it is first needed.
    fn setup_thread(&mut self) -> io::Result<&mut SetupThread> {
        if self.setup_thread.is_none() {
            let (back, done) = mpsc::channel();
            let ending = Arc::<AtomicBool>::default();
            let (is_ending, waker) = (Arc::clone(&ending), Arc::clone(&self.waker));
            let (epoch, timeout_ns) = (self.epoch, self.timeout_ns);
            let worker = Worker::start("railweave-setup", Task::may_wait, move |task: Task| {
                if is_ending.load(Ordering::Relaxed) {
                    return drop(task);
                }
                // If the receiver is gone, this drops the handshake.
                let _ = back.send(task.run(epoch, timeout_ns));
                let _ = waker.wake();
            })?;
            self.setup_thread = Some(SetupThread { worker, done, ending, seen: 0, since_ns: 0 });
        }
        Ok(self.setup_thread.as_mut().expect("it was just made"))
    }

    /// Gives a task to the set-up thread. Returns its number.
    pub(super) fn give(&mut self, mut task: Task) -> Result<u64, String> {
        let (now_ns, number) = (task.given_ns, self.given_tasks);
        task.number = number;
        let thread = self.setup_thread().map_err(|error| format!("the set-up thread cannot be started: {error}"))?;
        if thread.worker.progress.left() == 0 {
            thread.since_ns = now_ns;
        }
        if let Err(task) = thread.worker.give(task) {
            self.free(Box::new(task.handshake));
            return Err("a bug in Railweave ended the set-up thread; please report it".to_owned());
        }
        self.given_tasks += 1;
        self.outstanding_tasks.insert(number);
        Ok(number)
    }

    /// Returns the number of the next task given to the set-up thread.
    pub(super) fn next_task_number(&self) -> u64 {
        self.given_tasks
    }

    /// Returns the number of the oldest task on the set-up thread; if none is there, the number of the next task.
    pub(super) fn oldest_task_number(&self) -> u64 {
        self.outstanding_tasks.first().copied().unwrap_or(self.given_tasks)
    }

    /// Returns true if the set-up thread has been in one job for a handshake timeout.
    pub(super) fn is_stuck(&mut self, now_ns: u64) -> bool {
        let timeout_ns = self.timeout_ns;
        self.setup_thread.as_mut().is_some_and(|thread| {
            let done = thread.worker.progress.done();
            if done != thread.seen || thread.worker.progress.left() == 0 {
                (thread.seen, thread.since_ns) = (done, now_ns);
            }
            now_ns >= thread.since_ns.saturating_add(timeout_ns)
        })
    }

    pub(super) fn take_done(&mut self) -> Option<Done> {
        let done = self.setup_thread.as_ref()?.done.try_recv().ok()?;
        self.outstanding_tasks.remove(&done.number);
        Some(done)
    }

    /// Returns the thread for rails, and starts it when it is first needed.
    fn rail_thread(&mut self) -> io::Result<&mut RailThread> {
        if self.rail_thread.is_none() {
            let (back, done) = mpsc::channel();
            let (waker, epoch) = (Arc::clone(&self.waker), self.epoch);
            let worker = Worker::start(
                "railweave-rail",
                |_| false,
                move |job: RailJob| {
                    // If the receiver is gone, this drops the work.
                    let _ = back.send(job.run(epoch));
                    let _ = waker.wake();
                },
            )?;
            self.rail_thread = Some(RailThread { worker, done, paused: Vec::new() });
        }
        Ok(self.rail_thread.as_mut().expect("it was just made"))
    }

    /// Has work on a rail done.
    ///
    /// # Errors
    /// If there is no thread that would do it: the reason.
    pub(super) fn give_rail(&mut self, job: RailJob) -> Result<(), String> {
        let (reason, job) = match self.rail_thread() {
            Ok(thread) => match thread.worker.give(job) {
                Ok(()) => return Ok(()),
                Err(job) => ("a bug in Railweave ended the rail thread; please report it".to_owned(), job),
            },
            Err(error) => (format!("the rail thread cannot be started: {error}"), job),
        };
        self.free(Box::new(job.work));
        Err(reason)
    }

    /// Has work on a rail go on after a pause.
    pub(super) fn give_rail_again(&mut self, job: RailJob, pause: Duration) {
        let at_ns = nanoseconds(self.epoch.elapsed() + pause);
        if let Some(thread) = &mut self.rail_thread {
            thread.paused.push((at_ns, job));
        }
    }

    /// Returns the time at which paused work on a rail goes on.
    pub(super) fn next_rail_ns(&self) -> Option<u64> {
        self.rail_thread.as_ref()?.paused.iter().map(|(at_ns, _)| *at_ns).min()
    }

    /// Returns the next work on a rail that is back. Lets paused work go on whose time has come.
    pub(super) fn take_rail_done(&mut self) -> Option<RailDone> {
        let now_ns = nanoseconds(self.epoch.elapsed());
        let paused = &mut self.rail_thread.as_mut()?.paused;
        let due: Vec<RailJob> = paused.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).map(|(_, job)| job).collect();
        for job in due {
            // If the thread is gone, the next work that it is given tells.
            let _ = self.give_rail(job);
        }
        self.rail_thread.as_ref()?.done.try_recv().ok()
    }

    /// Drops `over`, on the freeing thread if its fabric may block.
    pub(super) fn free(&mut self, over: Box<dyn Send>) {
        // Without a set-up thread no fabric blocks.
        if self.setup_thread.is_none() {
            return drop(over);
        }
        if self.freeing_thread.is_none() {
            // If the thread cannot be started, `over` is dropped here.
            self.freeing_thread = Worker::start("railweave-free", |_| false, drop).ok();
        }
        if let Some(thread) = &self.freeing_thread {
            // If the thread is gone, this drops `over`.
            let _ = thread.give(over);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(thread) = &mut self.setup_thread {
            thread.ending.store(true, Ordering::Relaxed);
            if let Err(left) = thread.worker.finish(PATIENCE) {
                log::warn(&format!(
                    "finalize no longer waits for a call of the kernel that sets up a connection and has not returned \
                     for 5 s; set-ups left to it: {left}; look at the kernel log, and at the port's link"
                ));
            }
        }
        let paused = self.rail_thread.as_mut().map(|thread| std::mem::take(&mut thread.paused));
        for (_, job) in paused.into_iter().flatten() {
            self.free(Box::new(job.work));
        }
        if let Some(thread) = &mut self.rail_thread
            && let Err(left) = thread.worker.finish(PATIENCE)
        {
            log::warn(&format!(
                "finalize no longer waits for the kernel, which has not ended or made the queue pairs of a rail \
                 for 5 s; such work left to it: {left}; look at the kernel log, and at the port's link"
            ));
        }
        while let Some(done) = self.take_done() {
            if let Some(handshake) = done.handshake {
                self.free(Box::new(handshake));
            }
        }
        while let Some(done) = self.rail_thread.as_ref().and_then(|thread| thread.done.try_recv().ok()) {
            if let Some(work) = done.work {
                self.free(Box::new(work));
            }
        }
        if let Some(thread) = &mut self.freeing_thread
            && let Err(left) = thread.finish(PATIENCE)
        {
            log::warn(&format!(
                "finalize no longer waits for the kernel, which has not destroyed a connection's queue pairs for 5 s; \
                 closed ends of connections left to it: {left}; look at the kernel log, and at the port's link"
            ));
        }
    }
}

impl RailJob {
    fn run(self, epoch: Instant) -> RailDone {
        let Self { route, mut work } = self;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let pause = work.run(nanoseconds(epoch.elapsed()));
            (work, pause)
        }));
        match ran {
            Ok((work, pause)) => RailDone { route, work: Some(work), pause },
            Err(_) => RailDone { route, work: None, pause: None },
        }
    }
}

impl Task {
    fn run(self, epoch: Instant, timeout_ns: u64) -> Done {
        let Self { number, route, is_wanted, mut handshake, step, node, given_ns } = self;
        if !is_wanted.load(Ordering::Relaxed) {
            return Done { number, route, handshake: Some(handshake) };
        }
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let _placed = Placed::on(node);
            step.take_away(handshake.get_mut(), given_ns, nanoseconds(epoch.elapsed()), timeout_ns);
            handshake
        }));
        Done { number, route, handshake: handled.ok() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::any::Any;
    use std::sync::mpsc::Sender;

    use railweave_fabric::RailId;

    use super::*;

    /// Work that says on which thread it is dropped.
    pub(in crate::control) struct DroppedOn(pub(in crate::control) Sender<String>);

    impl RailWork for DroppedOn {
        fn run(&mut self, _now_ns: u64) -> Option<Duration> {
            None
        }

        fn may_block(&self) -> bool {
            true
        }

        fn rail(&self) -> RailId {
            RailId::new(0).unwrap()
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    impl Drop for DroppedOn {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().unwrap_or_default().to_owned());
        }
    }

    impl Workers {
        /// Starts the set-up thread, as a fabric that may block does.
        pub(in crate::control) fn begin_setups(&mut self) {
            self.setup_thread().unwrap();
        }
    }

    #[test]
    fn lanes_that_are_left_over_at_the_end_are_freed_on_the_freeing_thread() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let mut workers = Workers::new(Instant::now(), Duration::from_secs(60), waker);
        workers.begin_setups();
        let (dropped, thread_names) = mpsc::channel();
        let job = || RailJob { route: Route { session: 2, connection: 1 }, work: Box::new(DroppedOn(dropped.clone())) };
        // One is done, and one waits for its time.
        workers.give_rail(job()).unwrap();
        workers.give_rail_again(job(), Duration::from_secs(3600));
        drop(workers);
        assert_eq!(thread_names.try_iter().collect::<Vec<_>>(), ["railweave-free", "railweave-free"]);
    }
}
