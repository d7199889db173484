//! Work on rails that tests hold up, and tests of its way to the threads for rails and back.
#![allow(clippy::disallowed_types, reason = "a test has no fast path")]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use railweave_fabric::RailId;
use railweave_patience::{until, until_freed};
use railweave_transport::RailWork;

use super::rail_threads::{MOST_MAKERS, RailJob, RailOwner};
use super::worker::Workers;
use crate::comm::Route;

/// Far longer than any test takes.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// The time that is given to a thread that should wait and does not. One that waits as it should never fails a test.
const HEAD_START: Duration = Duration::from_millis(100);

/// Work on a rail that lasts until its [`Hold`] lets it go on.
pub(super) struct Errand {
    rail: RailId,
    may_wait: bool,
    seeks_peer: bool,
    pause: Option<Duration>,
    begun: Sender<()>,
    goes_on: Receiver<()>,
    freed: Sender<String>,
}

/// A test's hold on such work. Without it the work goes on.
pub(super) struct Hold {
    begun: Receiver<()>,
    go_on: Sender<()>,
    freed: Receiver<String>,
}

impl Errand {
    /// Returns new lanes if it may wait, otherwise a fence. It is to be called again after the pause, if there is one.
    pub(super) fn new(may_wait: bool, pause: Option<Duration>) -> (Box<Self>, Hold) {
        let ((begun, has_begun), (go_on, goes_on), (freed, freed_on)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let rail = RailId::new(0).unwrap();
        let work = Box::new(Self { rail, may_wait, seeks_peer: may_wait, pause, begun, goes_on, freed });
        (work, Hold { begun: has_begun, go_on, freed: freed_on })
    }

    /// Returns new lanes of a rail that have found their peer's port.
    pub(super) fn that_found(rail: RailId) -> Box<Self> {
        let mut work = Self::on(rail);
        work.seeks_peer = false;
        work
    }

    /// Returns new lanes of a rail, never begun.
    pub(super) fn on(rail: RailId) -> Box<Self> {
        let (mut work, _) = Self::idle();
        work.rail = rail;
        work
    }

    /// Returns such work that is done, or never begun.
    pub(super) fn idle() -> (Box<Self>, Hold) {
        Self::new(true, None)
    }
}

impl Hold {
    pub(super) fn wait_until_begun(&self) {
        until("the work begins", || match self.begun.try_recv() {
            Err(TryRecvError::Disconnected) => panic!("the work is gone, and has not begun"),
            begun => begun.ok(),
        });
    }

    pub(super) fn let_go_on(&self) {
        self.go_on.send(()).unwrap();
    }

    /// Returns the name of the thread that drops the work, while the control thread does its own.
    pub(super) fn freed_on(&self, mut turn: impl FnMut()) -> String {
        let mut name = None;
        until_freed("the work is dropped", || {
            turn();
            name = self.freed.try_recv().ok();
            name.is_some()
        });
        name.unwrap()
    }
}

impl RailWork for Errand {
    fn run(&mut self, _now_ns: u64) -> Option<Duration> {
        let _ = self.begun.send(());
        let _ = self.goes_on.recv();
        self.pause
    }

    fn may_block(&self) -> bool {
        true
    }

    fn may_wait(&self) -> bool {
        self.may_wait
    }

    fn seeks_peer(&self) -> bool {
        self.seeks_peer
    }

    fn rail(&self) -> RailId {
        self.rail
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let _ = self.freed.send(std::thread::current().name().unwrap_or_default().to_owned());
    }
}

/// Returns the threads of a fabric that may block, and the poll of the thread that takes work back.
pub(super) fn threads() -> (Workers, Poll) {
    let poll = Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
    let mut workers = Workers::new(Instant::now(), Duration::from_secs(60), waker);
    workers.begin_setups();
    (workers, poll)
}

/// Those threads, and a connection.
struct Site {
    workers: Workers,
    poll: Poll,
    is_open: Arc<AtomicBool>,
}

impl Site {
    fn new() -> Self {
        let (workers, poll) = threads();
        Self { workers, poll, is_open: Arc::new(AtomicBool::new(true)) }
    }

    fn job(&self, work: Box<dyn RailWork>) -> RailJob {
        let route = Route { session: 2, connection: 1 };
        RailJob { owner: RailOwner { route, is_open: Arc::clone(&self.is_open), node: None }, work }
    }

    /// Gives work that has begun when this returns.
    fn begin(&mut self, may_wait: bool) -> Hold {
        let (work, hold) = Errand::new(may_wait, None);
        self.workers.give_rail(self.job(work)).unwrap();
        hold.wait_until_begun();
        hold
    }

    /// Gives new lanes of another connection, on this session.
    fn give_on(&mut self, session: usize) -> Hold {
        let (work, hold) = Errand::idle();
        let owner = RailOwner { route: Route { session, connection: 1 }, is_open: Arc::new(true.into()), node: None };
        self.workers.give_rail(RailJob { owner, work }).unwrap();
        hold
    }

    fn wait_until_woken(&mut self) {
        let mut events = Events::with_capacity(1);
        until("the control thread is woken", || {
            let _ = self.poll.poll(&mut events, Some(Duration::ZERO));
            (!events.is_empty()).then_some(())
        });
    }
}

#[test]
fn work_wakes_the_control_thread_when_it_is_back_and_counts_until_it_is_taken() {
    let mut site = Site::new();
    for may_wait in [false, true] {
        assert!(!site.workers.has_rail_work());
        let hold = site.begin(may_wait);
        assert!(site.workers.has_rail_work(), "it is being done");
        hold.let_go_on();
        site.wait_until_woken();
        assert!(site.workers.has_rail_work(), "it was not taken back");
        let done = site.workers.take_rail_done().expect("it is back before anybody is woken");
        assert!(done.work.is_some() && !site.workers.has_rail_work());
    }
}

#[test]
fn paused_work_counts_until_it_is_done_or_its_connection_is_closed() {
    let mut site = Site::new();
    drop(site.begin(true));
    until("the first is back", || site.workers.take_rail_done());
    let ((soon, soon_hold), (late, late_hold)) = (Errand::idle(), Errand::idle());
    let (soon, late) = (site.job(soon), site.job(late));
    site.workers.give_rail_again(soon, Duration::ZERO);
    assert!(site.workers.has_rail_work(), "it is paused");
    assert!(site.workers.take_rail_done().is_none(), "it goes on, and is not back");
    soon_hold.wait_until_begun();
    assert!(site.workers.has_rail_work(), "it is being done");
    soon_hold.let_go_on();
    until("it is back", || site.workers.take_rail_done());
    assert!(!site.workers.has_rail_work());
    site.workers.give_rail_again(late, HOUR);
    site.is_open.store(false, Ordering::Relaxed);
    site.workers.cancel_rails();
    assert!(!site.workers.has_rail_work());
    assert_eq!(late_hold.freed_on(|| ()), "railweave-free");
}

#[test]
fn new_lanes_wait_for_others_of_their_session_and_not_for_those_of_a_few_others() {
    let mut site = Site::new();
    let first = site.give_on(2);
    first.wait_until_begun();
    let second = site.give_on(2);
    let others: Vec<_> = (3..=MOST_MAKERS).map(|session| site.give_on(session)).collect();
    others.iter().for_each(Hold::wait_until_begun);
    let late = site.give_on(MOST_MAKERS + 1);
    let (mut short, short_hold) = Errand::idle();
    short.seeks_peer = false;
    site.workers.give_rail(site.job(short)).unwrap();
    short_hold.wait_until_begun();
    assert!(second.begun.try_recv().is_err() && late.begun.try_recv().is_err(), "they wait for their turns");
    for (over, next, waiting) in [(&others[0], &late, &[2][..]), (&first, &second, &[])] {
        assert!(second.begun.try_recv().is_err(), "another of its session has its turn");
        over.let_go_on();
        until("it is back", || site.workers.take_rail_done());
        assert_eq!(site.workers.sessions_waiting(), waiting, "the next has its turn");
        next.wait_until_begun();
    }
}

#[test]
fn the_end_waits_for_work_on_rails_in_progress() {
    for may_wait in [false, true] {
        let mut site = Site::new();
        let hold = site.begin(may_wait);
        let may_end = Arc::new(AtomicBool::new(false));
        let is_let_go = Arc::clone(&may_end);
        let keeper = std::thread::spawn(move || {
            std::thread::sleep(HEAD_START);
            is_let_go.store(true, Ordering::Relaxed);
            hold.let_go_on();
        });
        drop(site.workers);
        assert!(may_end.load(Ordering::Relaxed), "may wait: {may_wait}");
        keeper.join().unwrap();
    }
}

#[test]
fn lanes_that_are_back_at_the_end_are_freed_off_the_control_thread() {
    for may_wait in [false, true] {
        let mut site = Site::new();
        let hold = site.begin(may_wait);
        hold.let_go_on();
        site.wait_until_woken();
        drop(site.workers);
        assert_eq!(hold.freed_on(|| ()), "railweave-free", "may wait: {may_wait}");
    }
}

#[test]
fn the_end_waits_for_what_is_being_freed() {
    struct Slow(Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            std::thread::sleep(HEAD_START);
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (mut site, is_freed) = (Site::new(), Arc::new(AtomicBool::new(false)));
    site.workers.free(Box::new(Slow(Arc::clone(&is_freed))));
    drop(site.workers);
    assert!(is_freed.load(Ordering::Relaxed));
}
