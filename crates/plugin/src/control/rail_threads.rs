//! The threads for the rails of open connections: some make new lanes, and others end those of rails that failed, so
//! that this waits for nobody.
#![allow(clippy::disallowed_types, reason = "the control thread and these threads exchange jobs here")]

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use mio::Waker;
use railweave_fabric::RailId;
use railweave_transport::RailWork;

use super::clock::nanoseconds;
use super::jobs::Pool;
use super::numa::Placed;
use crate::comm::Route;

/// The most fences at a time. Most of a fence is a pause of some milliseconds, and a port that fails has one for each
/// connection.
pub(super) const MOST_FENCES: usize = 8;

/// The most rails whose lanes are made at a time, and of these the most that look for their peers' ports. So the other
/// steps, which are short, wait for no port that does not answer.
pub(super) const MOST_MAKERS: usize = 8;
const MOST_SEEKERS: usize = MOST_MAKERS - 1;

/// The time from which on a look for a peer's port is long: the kernel asks for a neighbour in vain for a second, and
/// finds one that answers in milliseconds.
const LONG_LOOK: Duration = Duration::from_millis(100);

/// The most rails whose long looks are kept in mind.
const MOST_SLOW: usize = 1024;

/// The age at which a fence that is not done is worth a line: milliseconds are usual.
const SLOW_FENCE_NS: u64 = 5_000_000_000;

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

    /// Returns true if both are the same connection.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.is_open, &other.is_open)
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
    pub(super) rail: RailId,
    pub(super) work: Option<Box<dyn RailWork>>,
    pub(super) pause: Option<Duration>,
    /// The time that it ran.
    took: Duration,
}

impl RailDone {
    /// Returns true if the work has found its peer's port: it goes on, and looks for nobody any more.
    fn has_found(&self) -> bool {
        self.pause.is_some() && self.work.as_ref().is_some_and(|work| !work.seeks_peer())
    }
}

/// A fence that is not done.
struct Fencing {
    owner: RailOwner,
    rail: RailId,
    given_ns: u64,
    is_told: bool,
}

impl Fencing {
    /// Returns the time at which it is worth a line; `None` if it has one, or no message waits for it any more.
    fn tell_ns(&self) -> Option<u64> {
        let is_due = !self.is_told && self.owner.is_open();
        is_due.then_some(self.given_ns.saturating_add(SLOW_FENCE_NS))
    }
}

/// The turns of new lanes that look for their peers' ports: one at a time of each rail of a session, and none beside
/// others of its session if the rail's last long look was in vain. So a peer whose ports do not answer, or that names
/// ports which nobody has, holds no more than one thread after the first look at each, and a rail whose port was found
/// last time waits for no other.
#[derive(Default)]
struct Turns {
    /// Those that have their turn.
    taken: Vec<(RailOwner, RailId)>,
    waiting: Vec<RailJob>,
    /// The sessions and rails whose ports took a long look in vain, and were not found since.
    slow: BTreeSet<(usize, usize)>,
}

impl Turns {
    /// Returns true if work on a rail of this session may begin.
    fn has_room(&self, session: usize, rail: RailId) -> bool {
        let is_slow = self.slow.contains(&(session, rail.index()));
        let in_its_way =
            |owner: &RailOwner, other: RailId| owner.route.session == session && (is_slow || other == rail);
        self.taken.len() < MOST_SEEKERS && !self.taken.iter().any(|(owner, other)| in_its_way(owner, *other))
    }

    /// Returns work that may begin; `None` if it waits for its turn.
    fn begin(&mut self, job: RailJob) -> Option<RailJob> {
        let rail = job.work.rail();
        if !self.has_room(job.owner.route.session, rail) {
            self.waiting.push(job);
            return None;
        }
        self.taken.push((job.owner.clone(), rail));
        Some(job)
    }

    /// Ends the turn of work that is back, if it had one. Returns the work that may begin then: that of slow rails
    /// of other sessions last, and that of the same rail after others of its kind.
    fn end(&mut self, done: &RailDone) -> Vec<RailJob> {
        let Some(place) = self.taken.iter().position(|(owner, rail)| *rail == done.rail && owner.is(&done.owner))
        else {
            return Vec::new();
        };
        self.taken.swap_remove(place);
        let ended = (done.owner.route.session, done.rail.index());
        if done.has_found() {
            self.slow.remove(&ended);
        } else if done.took >= LONG_LOOK {
            // Sessions that are over leave theirs.
            if self.slow.len() >= MOST_SLOW {
                self.slow.clear();
            }
            self.slow.insert(ended);
        }
        // Other rails of the session come first: one whose port answers again shows it by its first look.
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|job| {
            let one = (job.owner.route.session, job.work.rail().index());
            // Only a session that has found a port goes on before others, or it would keep its turn from them.
            let is_in_turn = one.0 == ended.0 && one != ended && done.has_found();
            let waits_last = self.slow.contains(&one) && !is_in_turn;
            (waits_last, one == ended)
        });
        waiting.into_iter().filter_map(|job| self.begin(job)).collect()
    }
}

/// The threads.
pub(super) struct RailThreads {
    epoch: Instant,
    /// True once they must end: waiting work is then freed instead of done.
    pub(super) ending: Arc<AtomicBool>,
    /// Those that do what may not wait; `None` if there are none.
    fences: Option<Pool<RailJob>>,
    lanes: Pool<RailJob>,
    turns: Turns,
    fencing: Vec<Fencing>,
    done: Receiver<RailDone>,
    /// The amount of work that was not taken back.
    pub(super) away: usize,
    /// Work that goes on at these times.
    pub(super) paused: Vec<(u64, RailJob)>,
}

impl RailThreads {
    /// Starts the first of each kind. Times count from `epoch`, and the thread that takes work back is woken.
    ///
    /// # Errors
    /// If no thread can be started. Without any for fences, those for new lanes do them first.
    pub(super) fn start(waker: &Arc<Waker>, epoch: Instant) -> io::Result<Self> {
        let (back, done) = mpsc::channel();
        let ending = Arc::<AtomicBool>::default();
        let start = |name, most| {
            let (is_ending, back, waker) = (Arc::clone(&ending), back.clone(), Arc::clone(waker));
            let work = move |job: RailJob| {
                if is_ending.load(Ordering::Relaxed) {
                    return drop(job);
                }
                // If the receiver is gone, this drops the work.
                let _ = back.send(job.run(epoch));
                let _ = waker.wake();
            };
            Pool::start(name, most, |job| job.work.may_wait(), work)
        };
        let lanes = start("railweave-rail", MOST_MAKERS)?;
        let fences = start("railweave-fence", MOST_FENCES).ok();
        let (turns, fencing, paused) = (Turns::default(), Vec::new(), Vec::new());
        Ok(Self { epoch, ending, fences, lanes, turns, fencing, done, away: 0, paused })
    }

    /// Has work done.
    pub(super) fn give(&mut self, job: RailJob) {
        self.away += 1;
        let is_fence = !job.work.may_wait();
        if is_fence {
            let (owner, rail, given_ns) = (job.owner.clone(), job.work.rail(), nanoseconds(self.epoch.elapsed()));
            self.fencing.push(Fencing { owner, rail, given_ns, is_told: false });
        }
        let job = if job.work.seeks_peer() { self.turns.begin(job) } else { Some(job) };
        match (job, &mut self.fences) {
            (Some(job), Some(fences)) if is_fence => fences.give(job),
            (Some(job), _) => self.lanes.give(job),
            (None, _) => {}
        }
    }

    /// Takes work back that is done.
    pub(super) fn take_done(&mut self) -> Option<RailDone> {
        let done = self.done.try_recv().ok()?;
        self.away = self.away.saturating_sub(1);
        self.fencing.retain(|one| one.rail != done.rail || !one.owner.is(&done.owner));
        for next in self.turns.end(&done) {
            self.lanes.give(next);
        }
        Some(done)
    }

    /// Takes the work for which this is true of that which waits for its time or its turn.
    pub(super) fn take_waiting(&mut self, is_taken: impl Fn(&RailJob) -> bool) -> Vec<RailJob> {
        let mut taken: Vec<_> = self.turns.waiting.extract_if(.., |job| is_taken(job)).collect();
        self.away = self.away.saturating_sub(taken.len());
        taken.extend(self.paused.extract_if(.., |(_, job)| is_taken(job)).map(|(_, job)| job));
        taken
    }

    /// Returns each fence of an open connection once whose kernel takes far longer than usual.
    pub(super) fn take_slow_fences(&mut self, now_ns: u64) -> Vec<(Route, RailId)> {
        let slow = self.fencing.iter_mut().filter(|one| one.tell_ns().is_some_and(|tell_ns| now_ns >= tell_ns));
        slow.map(|one| {
            one.is_told = true;
            (one.owner.route, one.rail)
        })
        .collect()
    }

    /// Returns the next time at which there is something to do: paused work goes on, or a fence is slow.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let slow = self.fencing.iter().filter_map(Fencing::tell_ns);
        self.paused.iter().map(|(at_ns, _)| *at_ns).chain(slow).min()
    }

    /// Ends them as [`Pool::finish`] does. Returns the fences and the new lanes that were left to them.
    pub(super) fn finish(&mut self, patience: Duration) -> [u64; 2] {
        let fences = self.fences.as_mut().map_or(Ok(()), |fences| fences.finish(patience));
        [fences, self.lanes.finish(patience)].map(|left| left.err().unwrap_or(0))
    }

    /// Returns the number of threads for fences.
    #[cfg(test)]
    pub(super) fn fences(&self) -> usize {
        self.fences.as_ref().map_or(0, Pool::threads)
    }

    /// Returns the sessions of the new lanes that wait for their turn.
    #[cfg(test)]
    pub(super) fn sessions_waiting(&self) -> Vec<usize> {
        self.turns.waiting.iter().map(|job| job.owner.route.session).collect()
    }

    /// Lets fences have no thread of their own.
    #[cfg(test)]
    pub(super) fn end_fences(&mut self) {
        self.fences = None;
    }
}

impl RailJob {
    fn run(self, epoch: Instant) -> RailDone {
        let Self { owner, mut work } = self;
        let rail = work.rail();
        if !owner.is_open() {
            // The control thread has its lanes freed.
            return RailDone { owner, rail, work: Some(work), pause: None, took: Duration::ZERO };
        }
        let began = Instant::now();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let _placed = Placed::on(owner.node);
            let pause = work.run(nanoseconds(epoch.elapsed()));
            (work, pause)
        }));
        let took = began.elapsed();
        match ran {
            Ok((work, pause)) => RailDone { owner, rail, work: Some(work), pause, took },
            Err(_) => RailDone { owner, rail, work: None, pause: None, took },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::test_errands::Errand;

    fn owner(session: usize, connection: u32) -> RailOwner {
        let is_open = Arc::new(AtomicBool::new(true));
        RailOwner { route: Route { session, connection }, is_open, node: None }
    }

    fn rail(number: usize) -> RailId {
        RailId::new(number).unwrap()
    }

    fn job(owner: &RailOwner, number: usize) -> RailJob {
        RailJob { owner: owner.clone(), work: Errand::on(rail(number)) }
    }

    /// Returns new lanes that still look for their port after a look of this time.
    fn in_vain(owner: &RailOwner, number: usize, took: Duration) -> RailDone {
        let RailJob { owner, work } = job(owner, number);
        RailDone { owner, rail: rail(number), work: Some(work), pause: Some(Duration::ZERO), took }
    }

    /// Returns new lanes that have found their port.
    fn found(owner: &RailOwner, number: usize) -> RailDone {
        let work: Box<dyn RailWork> = Errand::that_found(rail(number));
        RailDone { work: Some(work), ..in_vain(owner, number, Duration::ZERO) }
    }

    /// Returns the rails of work.
    fn rails(jobs: &[RailJob]) -> Vec<usize> {
        jobs.iter().map(|job| job.work.rail().index()).collect()
    }

    #[test]
    fn only_the_new_lanes_that_have_the_turn_of_their_rail_end_it() {
        let [first, second] = [1, 2].map(|connection| owner(2, connection));
        let mut turns = Turns::default();
        assert!(turns.begin(job(&first, 0)).is_some());
        assert!(turns.begin(job(&second, 0)).is_none(), "it waits");
        for (other, number) in [(&first, 1), (&second, 0), (&owner(2, 1), 0)] {
            let other = in_vain(other, number, LONG_LOOK);
            assert!(turns.end(&other).is_empty() && turns.slow.is_empty(), "rail {} is not theirs", other.rail);
        }
        let next = turns.end(&in_vain(&first, 0, LONG_LOOK - Duration::from_nanos(1)));
        assert!(turns.slow.is_empty(), "a look that is refused at once holds nobody up");
        assert!(next.len() == 1 && next[0].owner.is(&second));
        assert!(turns.end(&found(&second, 0)).is_empty() && turns.taken.is_empty());
    }

    #[test]
    fn a_rail_that_can_be_connected_waits_for_no_port_that_does_not_answer() {
        let [first, second] = [1, 2].map(|connection| owner(2, connection));
        let mut turns = Turns::default();
        assert!(turns.begin(job(&first, 1)).is_some());
        assert!(turns.begin(job(&second, 1)).is_none());
        assert!(turns.begin(job(&first, 0)).is_some(), "it is another rail");
        assert!(turns.end(&found(&first, 0)).is_empty());
        assert_eq!(rails(&turns.end(&in_vain(&first, 1, LONG_LOOK))), [1], "the other connection's look");
        assert!(turns.begin(job(&first, 1)).is_none());
        assert!(turns.begin(job(&first, 0)).is_some() && turns.begin(job(&second, 0)).is_none());
        assert_eq!(rails(&turns.end(&in_vain(&second, 1, Duration::ZERO))), [0; 0], "its port was not found");
        assert_eq!(rails(&turns.end(&found(&first, 0))), [1, 0], "both may begin");
        assert_eq!(rails(&turns.end(&found(&first, 1))), [0; 0]);
        assert!(turns.slow.is_empty(), "its port answers again");
    }

    #[test]
    fn a_rail_that_is_back_waits_for_one_look_at_each_rail_that_is_not() {
        let [first, second] = [1, 2].map(|connection| owner(2, connection));
        let mut turns = Turns::default();
        turns.slow.extend([(2, 0), (2, 1)]);
        assert!(turns.begin(job(&first, 1)).is_some());
        assert!(
            [(&second, 1), (&first, 0), (&second, 0)]
                .map(|(owner, rail)| turns.begin(job(owner, rail)))
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(rails(&turns.end(&in_vain(&first, 1, LONG_LOOK))), [0]);
        assert_eq!(rails(&turns.end(&found(&first, 0))), [1, 0]);
    }

    #[test]
    fn a_rail_that_was_found_last_time_waits_for_one_look_of_other_sessions() {
        let owners: Vec<_> = (0..40).map(|session| owner(session, 0)).collect();
        let mut turns = Turns::default();
        turns.slow.extend((0..40).map(|session| (session, 0)));
        owners.iter().for_each(|owner| drop(turns.begin(job(owner, 0))));
        let [first, second] = [1, 2].map(|connection| owner(50, connection));
        assert!(turns.begin(job(&first, 0)).is_none() && turns.begin(job(&second, 0)).is_none(), "all turns are taken");
        let sessions = |jobs: Vec<RailJob>| jobs.iter().map(|job| job.owner.route.session).collect::<Vec<_>>();
        assert_eq!(sessions(turns.end(&in_vain(&owners[0], 0, LONG_LOOK))), [50]);
        assert_eq!(sessions(turns.end(&found(&first, 0))), [50], "the next connection over it");
        assert_eq!(sessions(turns.end(&found(&second, 0))), [MOST_SEEKERS], "the oldest of those that are slow");
    }

    #[test]
    fn rails_of_sessions_that_are_over_do_not_pile_up() {
        let mut turns = Turns::default();
        for session in 0..MOST_SLOW + 10 {
            let owner = owner(session, 0);
            assert!(turns.begin(job(&owner, 0)).is_some());
            turns.end(&in_vain(&owner, 0, LONG_LOOK));
            assert!((1..=MOST_SLOW).contains(&turns.slow.len()));
        }
    }

    #[test]
    fn ports_that_do_not_answer_leave_a_thread_to_the_other_steps() {
        let owners: Vec<_> = (0..=MOST_SEEKERS).map(|session| owner(session, 0)).collect();
        let mut turns = Turns::default();
        assert!(owners[1..].iter().all(|owner| turns.begin(job(owner, 0)).is_some()));
        assert!(turns.begin(job(&owners[0], 0)).is_none());
        assert_eq!(turns.end(&in_vain(&owners[1], 0, LONG_LOOK)).len(), 1);
        assert_eq!(turns.taken.len(), MOST_SEEKERS);
    }

    #[test]
    fn sessions_whose_ports_do_not_answer_take_turns() {
        // Two rails of one connection, or one rail of two connections.
        for (connections, rails) in [(1, 2), (2, 1)] {
            let count = MOST_SEEKERS + 1;
            let owners: Vec<_> = (0..count).flat_map(|session| [1, 2].map(|number| owner(session, number))).collect();
            let mut turns = Turns::default();
            turns.slow.extend((0..count).flat_map(|session| (0..rails).map(move |rail| (session, rail))));
            let (mut looking, mut looks) = (Vec::new(), vec![0; count]);
            for rail in 0..rails {
                for owner in owners.chunks(2).flat_map(|owners| &owners[..connections]) {
                    looking.extend(turns.begin(job(owner, rail)));
                }
            }
            for _ in 0..10 * count {
                let RailJob { owner, work } = looking.remove(0);
                looks[owner.route.session] += 1;
                let rail = work.rail().index();
                looking.extend(turns.end(&in_vain(&owner, rail, LONG_LOOK)));
                // Its pause is over before the next look is.
                looking.extend(turns.begin(job(&owner, rail)));
            }
            assert!(looks.iter().all(|looks| *looks >= 5), "{looks:?}");
        }
    }
}
