//! The threads for calls that may block in a fabric: verbs calls may take seconds while the kernel looks up an address,
//! or waits for a queue pair's last packets. One sets connections up: a handshake goes there with a message and comes
//! back with its next actions. Up to four others free ended handshakes, connections and lanes, so that no set-up waits
//! for that. Those for the rails of open connections are in `rail_threads.rs`.
#![allow(clippy::disallowed_types, reason = "the control thread and its workers exchange jobs here")]

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use mio::Waker;
use railweave_fabric::RailId;
use railweave_transport::progress::Step;

use super::clock::nanoseconds;
use super::jobs::Pool;
use super::numa::Placed;
use super::rail_threads::{RailDone, RailJob, RailThreads};
use crate::comm::Route;
use crate::log;
use crate::network::AnyHandshake;

/// The time that the last `finalize` waits while a worker finishes no job.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most destructions at a time: one that hangs should not keep the memory of all others, and one may take seconds.
const MOST_FREEING: usize = 4;

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

/// The set-up thread.
struct SetupThread {
    pool: Pool<Task>,
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
    freeing_thread: Option<Pool<Box<dyn Send>>>,
    rail_threads: Option<RailThreads>,
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
            rail_threads: None,
        }
    }

    /// Returns the set-up thread, and starts it when it is first needed.
    fn setup_thread(&mut self) -> io::Result<&mut SetupThread> {
        if self.setup_thread.is_none() {
            let (back, done) = mpsc::channel();
            let ending = Arc::<AtomicBool>::default();
            let (is_ending, waker) = (Arc::clone(&ending), Arc::clone(&self.waker));
            let (epoch, timeout_ns) = (self.epoch, self.timeout_ns);
            let pool = Pool::start("railweave-setup", 1, Task::may_wait, move |task: Task| {
                if is_ending.load(Ordering::Relaxed) {
                    return drop(task);
                }
                // If the receiver is gone, this drops the handshake.
                let _ = back.send(task.run(epoch, timeout_ns));
                let _ = waker.wake();
            })?;
            self.setup_thread = Some(SetupThread { pool, done, ending, seen: 0, since_ns: 0 });
        }
        Ok(self.setup_thread.as_mut().expect("it was just made"))
    }

    /// Gives a task to the set-up thread. Returns its number.
    pub(super) fn give(&mut self, mut task: Task) -> Result<u64, String> {
        let (now_ns, number) = (task.given_ns, self.given_tasks);
        task.number = number;
        let thread = self.setup_thread().map_err(|error| format!("the set-up thread cannot be started: {error}"))?;
        if thread.pool.progress.left() == 0 {
            thread.since_ns = now_ns;
        }
        thread.pool.give(task);
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
            let done = thread.pool.progress.done();
            if done != thread.seen || thread.pool.progress.left() == 0 {
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

    /// Has work on a rail done.
    ///
    /// # Errors
    /// If there is no thread that would do it: the reason.
    pub(super) fn give_rail(&mut self, job: RailJob) -> Result<(), String> {
        if self.rail_threads.is_none() {
            match RailThreads::start(&self.waker, self.epoch) {
                Ok(threads) => self.rail_threads = Some(threads),
                Err(error) => {
                    self.free(Box::new(job.work));
                    return Err(format!(
                        "a thread for rails cannot be started: {error}; raise the limits of processes (ulimit -u, \
                         pids.max of the cgroup) or of memory"
                    ));
                }
            }
        }
        if let Some(threads) = &mut self.rail_threads {
            threads.give(job);
        }
        Ok(())
    }

    /// Has work on a rail go on after a pause.
    pub(super) fn give_rail_again(&mut self, job: RailJob, pause: Duration) {
        let at_ns = nanoseconds(self.epoch.elapsed() + pause);
        if let Some(threads) = &mut self.rail_threads {
            threads.paused.push((at_ns, job));
        }
    }

    /// Frees the work on rails that waits for its time or its turn, and whose connection is closed.
    pub(super) fn cancel_rails(&mut self) {
        self.free_waiting(|job| !job.owner.is_open());
    }

    fn free_waiting(&mut self, is_freed: impl Fn(&RailJob) -> bool) {
        let waiting = self.rail_threads.as_mut().map(|threads| threads.take_waiting(is_freed));
        for job in waiting.into_iter().flatten() {
            self.free(Box::new(job.work));
        }
    }

    /// Returns true if work on a rail is not done, or was not taken back.
    pub(super) fn has_rail_work(&self) -> bool {
        self.rail_threads.as_ref().is_some_and(|threads| threads.away > 0 || !threads.paused.is_empty())
    }

    /// Returns the time at which [`Self::take_rail_done`] and [`Self::take_slow_fences`] have something to do.
    pub(super) fn next_rail_ns(&self) -> Option<u64> {
        self.rail_threads.as_ref()?.next_ns()
    }

    /// Returns each fence of an open connection once whose kernel takes far longer than usual.
    pub(super) fn take_slow_fences(&mut self, now_ns: u64) -> Vec<(Route, RailId)> {
        self.rail_threads.as_mut().map(|threads| threads.take_slow_fences(now_ns)).unwrap_or_default()
    }

    /// Returns the next work on a rail that is back. Lets paused work go on whose time has come.
    pub(super) fn take_rail_done(&mut self) -> Option<RailDone> {
        let now_ns = nanoseconds(self.epoch.elapsed());
        let threads = self.rail_threads.as_mut()?;
        let due: Vec<RailJob> =
            threads.paused.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).map(|(_, job)| job).collect();
        due.into_iter().for_each(|job| threads.give(job));
        threads.take_done()
    }

    /// Drops `over`, on a freeing thread if its fabric may block.
    pub(super) fn free(&mut self, over: Box<dyn Send>) {
        // Without a set-up thread no fabric blocks.
        if self.setup_thread.is_none() {
            return drop(over);
        }
        if self.freeing_thread.is_none() {
            // If the thread cannot be started, `over` is dropped here.
            self.freeing_thread = Pool::start("railweave-free", MOST_FREEING, |_| false, drop).ok();
        }
        if let Some(thread) = &mut self.freeing_thread {
            thread.give(over);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let endings = self.setup_thread.iter().map(|thread| &thread.ending);
        for ending in endings.chain(self.rail_threads.iter().map(|threads| &threads.ending)) {
            ending.store(true, Ordering::Relaxed);
        }
        if let Some(thread) = &mut self.setup_thread
            && let Err(left) = thread.pool.finish(PATIENCE)
        {
            log::warn(&format!(
                "finalize no longer waits for a call of the kernel that sets up a connection and has not returned \
                 for 5 s; set-ups left to it: {left}; look at the kernel log, and at the port's link"
            ));
        }
        self.free_waiting(|_| true);
        for threads in self.rail_threads.iter_mut() {
            let [fences, lanes] = threads.finish(PATIENCE);
            for (verb, left) in [("ended", fences), ("made", lanes)].into_iter().filter(|(_, left)| *left > 0) {
                log::warn(&format!(
                    "finalize no longer waits for the kernel, which has not {verb} the queue pairs of a rail for 5 s; \
                     such work left to it: {left}; look at the kernel log, and at the port's link"
                ));
            }
        }
        while let Some(done) = self.take_done() {
            if let Some(handshake) = done.handshake {
                self.free(Box::new(handshake));
            }
        }
        while let Some(done) = self.rail_threads.as_mut().and_then(RailThreads::take_done) {
            if let Some(work) = done.work {
                self.free(Box::new(work));
            }
        }
        if let Some(thread) = &mut self.freeing_thread
            && let Err(left) = thread.finish(PATIENCE)
        {
            log::warn(&format!(
                "finalize no longer waits for the kernel, which has not destroyed a connection's queue pairs for 5 s; \
                 ends of connections and of rails left to it: {left}; look at the kernel log, and at the port's link"
            ));
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
mod tests {
    use std::any::Any;
    use std::sync::mpsc::Sender;

    use railweave_patience::until;
    use railweave_transport::RailWork;

    use super::*;
    use crate::control::rail_threads::{MOST_FENCES, RailOwner};
    use crate::control::test_errands::{Errand, Hold, threads};

    /// Work on a rail that says its name when it is done, and on which thread it is dropped.
    struct Said {
        name: &'static str,
        may_wait: bool,
        done: Sender<&'static str>,
        dropped: Sender<String>,
    }

    impl RailWork for Said {
        fn run(&mut self, _now_ns: u64) -> Option<Duration> {
            let _ = self.done.send(self.name);
            None
        }

        fn may_block(&self) -> bool {
            true
        }

        fn may_wait(&self) -> bool {
            self.may_wait
        }

        fn seeks_peer(&self) -> bool {
            self.may_wait
        }

        fn rail(&self) -> RailId {
            RailId::new(0).unwrap()
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    impl Drop for Said {
        fn drop(&mut self) {
            let _ = self.dropped.send(std::thread::current().name().unwrap_or_default().to_owned());
        }
    }

    impl Workers {
        /// Starts the set-up thread, as a fabric that may block does.
        pub(in crate::control) fn begin_setups(&mut self) {
            self.setup_thread().unwrap();
        }

        /// Returns the amount of work on rails that was not taken back, without work that is paused.
        pub(in crate::control) fn rail_work_away(&self) -> usize {
            self.rail_threads.as_ref().map_or(0, |threads| threads.away)
        }

        /// Returns the sessions of the new lanes that wait for their turn.
        pub(in crate::control) fn sessions_waiting(&self) -> Vec<usize> {
            self.rail_threads.as_ref().map(RailThreads::sessions_waiting).unwrap_or_default()
        }
    }

    /// The threads, with new lanes in the making whose work lasts until [`Self::open`].
    struct Site {
        workers: Workers,
        _poll: mio::Poll,
        gate: Hold,
        done: (Sender<&'static str>, Receiver<&'static str>),
        dropped: (Sender<String>, Receiver<String>),
    }

    impl Site {
        fn new() -> Self {
            let (mut workers, poll) = threads();
            let gate = close_gate(&mut workers, true);
            Self { workers, _poll: poll, gate, done: mpsc::channel(), dropped: mpsc::channel() }
        }

        fn job(&self, name: &'static str, may_wait: bool, owner: &RailOwner) -> RailJob {
            let (done, dropped) = (self.done.0.clone(), self.dropped.0.clone());
            RailJob { owner: owner.clone(), work: Box::new(Said { name, may_wait, done, dropped }) }
        }

        fn give(&mut self, name: &'static str, may_wait: bool, owner: &RailOwner) {
            self.workers.give_rail(self.job(name, may_wait, owner)).unwrap();
        }

        fn open(&self) {
            self.gate.let_go_on();
        }

        /// Waits until new lanes have had their turn after the gate's. Returns the name of work that is done.
        fn wait_for_lanes(&mut self) -> &'static str {
            until("the lanes have had their turn", || {
                let (away, waiting) = (self.workers.rail_work_away(), self.workers.sessions_waiting().len());
                assert!(away > waiting, "the lanes wait for nobody");
                self.workers.take_rail_done().and_then(|_| self.done.1.try_recv().ok())
            })
        }
    }

    /// Keeps a thread for rails busy until it is let go on.
    fn close_gate(workers: &mut Workers, may_wait: bool) -> Hold {
        let (work, gate) = Errand::new(may_wait, None);
        let (owner, _) = owner();
        workers.give_rail(RailJob { owner, work }).unwrap();
        gate.wait_until_begun();
        gate
    }

    /// Returns the owner of some work, and the mark that it is open.
    fn owner() -> (RailOwner, Arc<AtomicBool>) {
        let is_open = Arc::new(AtomicBool::new(true));
        (RailOwner { route: Route { session: 2, connection: 1 }, is_open: Arc::clone(&is_open), node: None }, is_open)
    }

    #[test]
    fn fences_do_not_wait_for_new_lanes() {
        let (mut site, (owner, _)) = (Site::new(), owner());
        for (name, may_wait) in [("lanes", true), ("fence", false), ("other fence", false)] {
            site.give(name, may_wait, &owner);
        }
        let mut done: Vec<_> = site.done.1.iter().take(2).collect();
        done.sort_unstable();
        assert_eq!(done, ["fence", "other fence"]);
        site.open();
        assert_eq!(site.wait_for_lanes(), "lanes");
    }

    #[test]
    fn a_fence_that_takes_long_is_told_once() {
        let (mut site, (owner, _)) = (Site::new(), owner());
        let gate = close_gate(&mut site.workers, false);
        let due_ns = site.workers.next_rail_ns().expect("there is a fence");
        assert_eq!(site.workers.take_slow_fences(due_ns - 1), []);
        assert_eq!(site.workers.take_slow_fences(due_ns), [(owner.route, RailId::new(0).unwrap())]);
        assert_eq!((site.workers.take_slow_fences(u64::MAX), site.workers.next_rail_ns()), (Vec::new(), None));
        gate.let_go_on();
        while site.workers.take_rail_done().is_none() {
            std::thread::yield_now();
        }
        let gate = close_gate(&mut site.workers, false);
        gate.let_go_on();
        while site.workers.take_rail_done().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(site.workers.take_slow_fences(u64::MAX), [], "it is done");
        let (closed, is_open) = self::owner();
        let (work, gate) = Errand::new(false, None);
        site.workers.give_rail(RailJob { owner: closed, work }).unwrap();
        gate.wait_until_begun();
        is_open.store(false, Ordering::Relaxed);
        let told = site.workers.take_slow_fences(u64::MAX);
        assert_eq!((told, site.workers.next_rail_ns()), (Vec::new(), None), "no message waits for it");
        gate.let_go_on();
        site.open();
    }

    #[test]
    fn fences_without_a_thread_of_their_own_go_before_new_lanes() {
        let (mut site, (owner, _)) = (Site::new(), owner());
        site.workers.rail_threads.iter_mut().for_each(RailThreads::end_fences);
        for (name, may_wait) in [("lanes", true), ("fence", false)] {
            site.give(name, may_wait, &owner);
        }
        assert_eq!(site.done.1.recv(), Ok("fence"));
        site.open();
        assert_eq!(site.wait_for_lanes(), "lanes");
    }

    #[test]
    fn a_few_fences_at_a_time_wait_for_no_others() {
        for busy in [MOST_FENCES - 1, MOST_FENCES] {
            let (mut site, (owner, _)) = (Site::new(), owner());
            let gates: Vec<_> = (0..busy).map(|_| close_gate(&mut site.workers, false)).collect();
            site.give("one more", false, &owner);
            let fences = site.workers.rail_threads.as_ref().map(RailThreads::fences);
            assert!(fences <= Some(MOST_FENCES), "{fences:?}");
            if busy == MOST_FENCES {
                // Whichever of them is the first to be done.
                gates.last().unwrap().let_go_on();
                assert_eq!(site.done.1.recv(), Ok("one more"), "it comes after another");
            } else {
                assert_eq!(site.done.1.recv(), Ok("one more"), "while the others go on");
            }
            site.open();
        }
    }

    #[test]
    fn work_for_a_closed_connection_is_not_done_and_its_lanes_come_back() {
        let (mut site, (closed, is_open)) = (Site::new(), owner());
        site.give("waits for its turn", true, &closed);
        let paused = site.job("paused", true, &closed);
        site.workers.give_rail_again(paused, Duration::from_secs(3600));
        is_open.store(false, Ordering::Relaxed);
        site.workers.cancel_rails();
        for _ in 0..2 {
            assert_eq!(site.dropped.1.recv().as_deref(), Ok("railweave-free"), "what has not begun is freed at once");
        }
        assert_eq!(site.workers.next_rail_ns(), None);
        site.give("fence", false, &closed);
        let back = until("it is back", || site.workers.take_rail_done());
        assert!(back.work.is_some() && !back.owner.is_open());
        assert_eq!(site.done.1.try_iter().count(), 0, "it was not done");
        site.open();
    }

    #[test]
    fn lanes_that_are_left_over_at_the_end_are_freed_off_the_control_thread_and_at_once() {
        let (mut site, (owner, _)) = (Site::new(), owner());
        let paused = site.job("paused", true, &owner);
        site.workers.give_rail_again(paused, Duration::from_secs(3600));
        for name in ["one", "another"] {
            site.give(name, true, &owner);
        }
        let ending = Arc::clone(&site.workers.rail_threads.as_ref().unwrap().ending);
        let gate = site.gate;
        let opener = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            gate.let_go_on();
        });
        drop(site.workers);
        opener.join().unwrap();
        assert_eq!(site.done.1.try_iter().count(), 0, "nothing that waited was begun");
        let mut threads: Vec<_> = site.dropped.1.try_iter().collect();
        threads.sort();
        assert_eq!(threads, ["railweave-free"; 3]);
    }
}
