//! The core that both ends of a connection share: it polls the rails and keeps the first error.

mod fast_path;
mod recovering;

use std::sync::Arc;

use railweave_fabric::{Fabric, LaneId, Part, PostError, Rail, RailError, RailId, RailSet, Reports, WorkId, Write};

pub(crate) use self::fast_path::FastPath;
use crate::fate::Fate;
use crate::rail_info::RailInfo;
use crate::rails::{ConnectedRail, POLL_BATCH, RailSide, Rails};
use crate::recovery::{GivenUp, Outage, Silences, flap_time};
use crate::steering::Steering;
use crate::violation::Violation;
use crate::work::WorkKind;
use crate::{Cause, ConnectionConfig, Error, Order, Received};

// tidy: Core's methods call each other across files: recovering.rs has the rails that fail and come back, which ends
// the connection if none is left.
/// The common part of both ends of a connection: its rails, its state, and the peer.
pub(crate) struct Core<F: Fabric> {
    pub(crate) rails: Rails<F>,
    /// The rail that last completed something: it is polled first.
    pub(crate) recent: RailId,
    /// The messages that take this end's fast path: none once the connection is broken.
    pub(crate) fast: FastPath,
    state: State,
    fate: Arc<Fate>,
    steering: Arc<Steering>,
    /// The number of changes of the steering that this end has followed.
    followed: u32,
    /// The number of the fate's news that this end has heeded.
    heeded: u32,
    /// The number of the last probe that this end has posted on a rail, 0 for none.
    probe: u32,
    /// The rails on which it is out; none if there was none to post it on.
    probed: RailSet,
    peer: String,
    /// True if the connection goes on without rails that fail.
    recovers: bool,
    /// The rails with new lanes over which this end posts nothing yet, because the peer's may not be connected.
    quiet: RailSet,
    outage: Outage,
    /// The rails whose devices have failed for good, and the message about the last of them.
    gone: RailSet,
    gone_why: String,
    /// The silences of its rails.
    pub(crate) silences: Silences,
    /// The rails that were given up, and why, until the recovery takes their lanes.
    given_up: Vec<(RailId, GivenUp)>,
    /// The last work that was refused.
    refused: Option<WorkId>,
}

/// The state of a connection.
enum State {
    Open,
    /// It is broken, for this reason, which every later call returns.
    Broken(Error),
}

/// A report that ends the connection, or at least a rail.
pub(crate) enum Fatal {
    /// A lane failed.
    Failed { lane: LaneId, id: Option<WorkId>, error: Box<RailError> },
    /// The peer broke the protocol.
    Broke(Violation),
}

/// The result of draining all rails.
struct Drained {
    /// True if there was any report.
    moved: bool,
    /// The first report that ends the connection, and its rail.
    fatal: Option<(RailId, Box<Fatal>)>,
}

impl Fatal {
    /// Keeps `fatal` if it is the first report that ends the connection or a rail. A breach of the protocol comes
    /// before the failure of a lane, which may end only its rail.
    #[cold]
    pub(crate) fn keep(place: &mut Option<Box<Self>>, fatal: impl FnOnce() -> Self) {
        match place {
            None => *place = Some(Box::new(fatal())),
            Some(kept) if matches!(**kept, Self::Failed { .. }) => {
                let fatal = fatal();
                if matches!(fatal, Self::Broke(_)) {
                    **kept = fatal;
                }
            }
            Some(_) => {}
        }
    }
}

/// The outstanding requests of one end, which the rails' reports change.
pub(crate) trait Outstanding {
    /// Returns the [`Reports`] to which the rail of this side reports.
    fn reports<'a, F: Fabric>(&'a mut self, side: &'a mut RailSide) -> impl Reports;

    /// Returns the place that holds the first report that ends the connection, until [`Core`] takes it after the poll.
    /// The place lies next to the state that reports change: anywhere else it costs each poll 2 instructions or more.
    fn fatal(&mut self) -> &mut Option<Box<Fatal>>;

    /// Notes that a post was refused although there was room: a part of it may have gone out.
    fn handle_refused(&mut self) {}

    /// Ends the sends that the peer, which has closed its end, had received. Returns true if there were any.
    fn handle_received_there(&mut self, received: &Received) -> bool {
        let _ = received;
        false
    }
}

impl<F: Fabric> Core<F> {
    /// Returns the core of a connection over these rails. Its messages below `fast_below` bytes may take the fast path.
    pub(crate) fn new(
        rails: Rails<F>,
        fast_below: u64,
        peer: String,
        fate: Arc<Fate>,
        steering: Arc<Steering>,
        config: &ConnectionConfig,
    ) -> Self {
        Self {
            recent: rails.usable().first().unwrap_or_default(),
            rails,
            fast: FastPath::new(fast_below),
            state: State::Open,
            fate,
            followed: steering.changes(),
            heeded: 0,
            probe: 0,
            probed: RailSet::EMPTY,
            steering,
            peer,
            recovers: config.recovers,
            quiet: RailSet::EMPTY,
            outage: Outage::new(config.outage, flap_time(config.rail_pause)),
            gone: RailSet::EMPTY,
            gone_why: String::new(),
            silences: Silences::new(config.rail_timeout),
            given_up: Vec::new(),
            refused: None,
        }
    }

    /// Returns the name of the peer, for messages.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the fate, by which the rest of the process reports a lost peer or a failed adapter.
    pub(crate) fn fate(&self) -> &Arc<Fate> {
        &self.fate
    }

    /// Returns the steering, by which the rest of the process changes the split.
    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// Returns true if the steering has changed since [`Self::take_order`].
    #[inline(always)]
    pub(crate) fn has_order(&self) -> bool {
        self.steering.changes() != self.followed
    }

    /// Returns the order to follow from now on.
    pub(crate) fn take_order(&mut self) -> Order {
        self.followed = self.steering.changes();
        self.steering.current()
    }

    /// Handles the reports of a rail; one without lanes has none. Returns true if there were any. A rail that failed is
    /// given up, if the connection can do without it.
    ///
    /// # Errors
    /// If a report ends the connection.
    #[inline(always)]
    pub(crate) fn poll_rail(&mut self, rail: RailId, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let Some(ConnectedRail { rail: lanes, side, .. }) = self.rails.find_mut(rail) else {
            return Ok(false);
        };
        let moved = lanes.report(POLL_BATCH, &mut outstanding.reports::<F>(side));
        match outstanding.fatal() {
            None => Ok(moved),
            Some(_) => self.handle_fatal(rail, outstanding),
        }
    }

    /// Handles the reports of all rails. Returns true if there were any.
    ///
    /// # Errors
    /// If a report ends the connection.
    #[inline(never)]
    pub(crate) fn poll(&mut self, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let mut rails = self.rails.usable().iter();
        rails.try_fold(false, |moved, rail| Ok(self.poll_rail(rail, outstanding)? | moved))
    }

    /// Gives the rail up because of a report, or breaks the connection. Returns true: there was a report.
    ///
    /// # Errors
    /// If the connection is broken.
    #[cold]
    #[inline(never)]
    fn handle_fatal(&mut self, rail: RailId, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let fatal = outstanding.fatal().take().expect("called when there is one");
        let fatal = match *fatal {
            Fatal::Failed { lane, id, error } if self.may_recover(&error) => {
                self.refused = id.filter(|_| error.is_refused_there()).or(self.refused);
                self.give_up(rail, GivenUp::Lane { lane, error: *error });
                return Ok(true);
            }
            fatal => fatal,
        };
        let is_failure = matches!(fatal, Fatal::Failed { .. });
        let error = self.fail(self.cause_of(rail, fatal));
        if is_failure {
            self.drain(outstanding);
        }
        Err(error)
    }

    /// Returns the cause for a report of this rail.
    fn cause_of(&self, rail: RailId, fatal: Fatal) -> Cause {
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        match fatal {
            Fatal::Failed { lane, error, .. } => Cause::Lane { rail, name, peer, lane, error: *error },
            Fatal::Broke(violation) => Cause::Violation { rail, name, peer, violation },
        }
    }

    /// Handles everything that the rails still have to report: requests whose work is complete do not fail, whichever
    /// rail is polled first.
    ///
    /// This ends: nothing is posted meanwhile, and each report uses up a write or a receive that this end posted, or is
    /// the one failure of a lane.
    fn drain(&mut self, outstanding: &mut impl Outstanding) -> Drained {
        let mut drained = Drained { moved: false, fatal: None };
        for ConnectedRail { rail: lanes, side, .. } in self.rails.iter_mut() {
            let rail = side.id;
            while lanes.report(POLL_BATCH, &mut outstanding.reports::<F>(side)) {
                drained.moved = true;
            }
            let fatal = outstanding.fatal().take();
            drained.fatal = drained.fatal.or(fatal.map(|fatal| (rail, fatal)));
        }
        drained
    }

    /// Handles work that could not be posted although there was room. Gives the rail up, if the connection can do
    /// without it: then the work counts as posted, and the recovery repeats it.
    ///
    /// # Errors
    /// If the connection is broken: the failure that the rail still has to report, which says more, or the refusal.
    #[cold]
    pub(crate) fn post_failed(
        &mut self,
        rail: RailId,
        error: PostError,
        outstanding: &mut impl Outstanding,
    ) -> Result<(), Error> {
        if self.recovers && !matches!(error, PostError::Invalid(_)) {
            // The reports of this rail alone: others may have been given a part of what is being posted just now.
            while self.rails.usable().contains(rail) && self.poll_rail(rail, outstanding)? {}
            self.give_up(rail, GivenUp::Post(error));
            return Ok(());
        }
        outstanding.handle_refused();
        Err(match self.drain(outstanding).fatal {
            Some((rail, fatal)) => self.fail(self.cause_of(rail, *fatal)),
            None => {
                let (name, peer) = (self.rails.name(rail), self.peer.clone());
                self.fail(Cause::Post { rail, name, peer, error })
            }
        })
    }

    /// Succeeds while the connection works.
    ///
    /// # Errors
    /// If it is broken: the reason.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match &self.state {
            State::Open => Ok(()),
            State::Broken(error) => Err(error.clone()),
        }
    }

    /// Heeds what the rest of the process has to say, because a request is stuck: ends sends that the peer had received
    /// when it closed, posts a probe that is asked for, and breaks the connection if its peer is lost or an adapter of
    /// this host failed, unless the rails have more to report. As long as they have, requests are not stuck.
    ///
    /// # Errors
    /// If a lost peer or a failed adapter was reported: the reported reason. A rail that still has to report a failure
    /// says more than a lost peer.
    #[inline]
    pub(crate) fn check_fate(&mut self, outstanding: &mut impl Outstanding) -> Result<(), Error> {
        if self.fate.news() == self.heeded { Ok(()) } else { self.heed_fate(outstanding) }
    }

    #[cold]
    #[inline(never)]
    fn heed_fate(&mut self, outstanding: &mut impl Outstanding) -> Result<(), Error> {
        let (news, look) = (self.fate.news(), self.fate.asked_look());
        let has_ended_any = self.fate.received().is_some_and(|received| outstanding.handle_received_there(received));
        if has_ended_any {
            return Ok(());
        }
        if let Some(error) = self.fate.lost().cloned() {
            return self.check_stuck(error, outstanding);
        }
        // Not every call has polled all rails before it came here.
        let before = self.rails.usable();
        if self.poll(outstanding)? {
            // Whatever completes after a probe was posted, or found no room, shows as much as the probe. A rail that
            // fails shows nothing.
            if self.rails.usable() == before {
                self.fate.set_probe_carried(self.fate.blocked_probe().unwrap_or(self.probe));
            }
            return Ok(());
        }
        if self.post_probe(outstanding)? {
            self.heeded = news;
        }
        self.fate.set_looked(look);
        Ok(())
    }

    /// Posts the probe that is asked for: an empty write on each rail, so that one answer is enough, and rails without
    /// one fail together; where a failed rail ends the connection, only on the rail that last completed something.
    /// Returns false if none has room for one more. The probe counts as outstanding all the same: the queues are full
    /// of work that does not end.
    ///
    /// # Errors
    /// If a write cannot be posted although there is room.
    fn post_probe(&mut self, outstanding: &mut impl Outstanding) -> Result<bool, Error> {
        let probe = self.fate.asked_probe();
        if probe == self.probe {
            return Ok(true);
        }
        let postable = self.postable();
        let recent = Some(self.recent).filter(|rail| postable.contains(*rail)).or(postable.first());
        let rails = if self.recovers { postable } else { recent.map_or(RailSet::EMPTY, RailSet::only) };
        if rails.is_empty() {
            // Without a rail nothing can carry it, whoever would answer it.
            self.fate.set_probe_blocked(probe, true);
            (self.probe, self.probed) = (probe, RailSet::EMPTY);
            return Ok(true);
        }
        if !F::ONE_SIDED && !self.fate.insists(probe) {
            return Ok(true);
        }
        let write = Write { signalled: true, host: true, id: WorkKind::Probe(probe).id(), ..Write::default() };
        for rail in rails {
            let lanes = &mut self.rails.get_mut(rail).rail;
            if lanes.send_room(LaneId::FIRST) < 2 {
                continue;
            }
            match lanes.post_fitting(LaneId::FIRST, &[write]) {
                Ok(()) if self.probe == probe => self.probed.insert(rail),
                Ok(()) => (self.probe, self.probed) = (probe, RailSet::only(rail)),
                Err(error) => self.post_failed(rail, error, outstanding)?,
            }
        }
        // Otherwise the next stuck call posts it.
        let is_posted = self.probe == probe;
        match is_posted {
            true => self.fate.set_probe_posted(probe, F::ONE_SIDED),
            false => self.fate.set_probe_blocked(probe, F::ONE_SIDED),
        }
        Ok(is_posted)
    }

    /// Does the same as [`Self::check_fate`] for a failed adapter of this host only. A lost peer does not count.
    ///
    /// # Errors
    /// If a failed adapter was reported: the reported reason.
    pub(crate) fn check_adapters(&mut self, outstanding: &mut impl Outstanding) -> Result<(), Error> {
        match self.fate.failed().cloned() {
            None => Ok(()),
            Some(error) => self.check_stuck(error, outstanding),
        }
    }

    /// Breaks the connection for this reason, unless the rails have more to report.
    #[cold]
    fn check_stuck(&mut self, error: Error, outstanding: &mut impl Outstanding) -> Result<(), Error> {
        let Drained { moved, fatal } = self.drain(outstanding);
        match fatal {
            // A connection that goes on without rails that fail ends for the reason that was reported.
            Some((_, fatal)) if self.recovers && matches!(*fatal, Fatal::Failed { .. }) => Err(self.fail(error)),
            Some((rail, fatal)) if self.fate.failed().is_none() => Err(self.fail(self.cause_of(rail, *fatal))),
            None if moved => Ok(()),
            _ => Err(self.fail(error)),
        }
    }

    /// Breaks the connection. Returns the reason, which is that of the first failure.
    #[cold]
    pub(crate) fn fail(&mut self, error: impl Into<Error>) -> Error {
        let error = error.into();
        self.fast.end();
        if let State::Broken(first) = &self.state {
            return first.clone();
        }
        self.state = State::Broken(error.clone());
        self.fate.set_broken(error.clone());
        error
    }
}

/// The methods that both ends of a connection have. [`crate::SendConnection`] and [`crate::RecvConnection`] describe
/// how to use an end.
pub trait ConnectionEnd {
    /// Returns the name of the peer, for messages.
    fn peer(&self) -> &str;

    /// Returns the fate, by which the rest of the process reports a lost peer or a failed adapter.
    fn fate(&self) -> &Arc<Fate>;

    /// Returns the steering, by which the rest of the process changes the split.
    fn steering(&self) -> &Arc<Steering>;

    /// Returns the parts of this host that its rails use, as the events of the host's devices name them.
    fn parts(&self) -> Vec<Part>;

    /// Returns the rails that came up.
    fn rails(&self) -> Vec<RailInfo>;

    /// Describes each lane of the rails that came up, for messages.
    fn describe_lanes(&self) -> Vec<String>;

    /// Returns what this end has received, if it is the receiving one. The peer's sends of it are done, even if it
    /// hears of that in no other way. Called before [`Self::start_linger`].
    fn received(&mut self) -> Option<Received>;

    /// Ends the use of the connection: from now on whatever arrives is discarded, and errors are silent. The memory
    /// that was registered for it may be released. Only [`Self::linger`] may be called after this.
    fn start_linger(&mut self);

    /// Makes progress with everything that is still outstanding. Returns true once all of it is sent and acknowledged:
    /// the peer then loses nothing when the end is dropped.
    fn linger(&mut self) -> bool;
}

/// Implements [`ConnectionEnd`] for an end by its core.
macro_rules! both_ends {
    ($end:ident) => {
        impl<F: Fabric> $crate::ConnectionEnd for $end<F> {
            fn peer(&self) -> &str {
                self.core.peer()
            }

            fn fate(&self) -> &Arc<Fate> {
                self.core.fate()
            }

            fn steering(&self) -> &Arc<$crate::Steering> {
                self.core.steering()
            }

            fn parts(&self) -> Vec<Part> {
                self.core.rails.parts()
            }

            fn rails(&self) -> Vec<RailInfo> {
                self.core.rails.infos()
            }

            fn describe_lanes(&self) -> Vec<String> {
                self.core.rails.describe_lanes()
            }

            fn received(&mut self) -> Option<crate::Received> {
                self.received_so_far()
            }

            fn start_linger(&mut self) {
                self.core.rails.start_linger();
            }

            fn linger(&mut self) -> bool {
                self.core.rails.linger()
            }
        }

        impl<F: Fabric> crate::Recovers for $end<F> {
            fn recover(&mut self, now_ns: u64) {
                if self.core.check_open().is_ok() {
                    self.recover_now(now_ns);
                }
            }

            fn handle_rail_news(&mut self, news: crate::RailNews, now_ns: u64) {
                if self.core.check_open().is_err() {
                    return;
                }
                let rail = news.rail;
                let taken = match self.core.recovers() {
                    true => self.take_news(news, now_ns),
                    false => Err(crate::violation::RailFault::Off),
                };
                if let Err(fault) = taken {
                    self.core.fail_by_peer(rail, fault);
                }
            }

            fn handle_worked(&mut self, work: Box<dyn crate::RailWork>, now_ns: u64) {
                // A broken connection still ends what had come.
                self.take_work(work.into_any(), now_ns);
            }

            fn handle_lane_dialled(
                &mut self,
                dial: &crate::Dial,
                socket: Result<std::os::fd::OwnedFd, String>,
                now_ns: u64,
            ) {
                self.take_dialled(dial, socket, now_ns);
            }

            fn handle_lane(
                &mut self,
                rail: u8,
                lane: u8,
                socket: std::os::fd::OwnedFd,
            ) -> Result<(), crate::LaneRefused> {
                self.take_lane(rail, lane, socket)
            }

            fn awaits_lane(&mut self, rail: u8, lane: u8) -> Result<(), crate::LaneRefused> {
                self.check_lane(rail, lane)
            }

            fn handle_part_failed(&mut self, part: &Part, message: &str) -> bool {
                self.core.give_up_part(part, message)
            }

            fn look_for_silence(&mut self, hearing: crate::Hearing) -> crate::Hush {
                if !self.core.listens() {
                    return crate::Hush::Idle;
                }
                let hush = self.listen(hearing);
                self.recover_now(hearing.now_ns);
                hush
            }

            fn hurry_recovery(&mut self, now_ns: u64) {
                if self.core.check_open().is_ok() {
                    self.hurry(now_ns);
                }
            }

            fn recovery_timeout_ns(&self) -> Option<u64> {
                self.core.check_open().ok().and_then(|()| self.recovery_next_ns())
            }

            fn poll_recovery(&mut self) -> Option<crate::RecoveryAction> {
                self.recovery.actions.pop_front()
            }
        }
    };
}
pub(crate) use both_ends;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_report_that_ends_a_connection_is_kept() {
        let broke = |bits| Fatal::Broke(Violation::ToSender { bits, bytes: 0 });
        let mut place = None;
        Fatal::keep(&mut place, || broke(1));
        Fatal::keep(&mut place, || broke(2));
        let kept = place.expect("one was kept");
        assert!(matches!(*kept, Fatal::Broke(Violation::ToSender { bits: 1, .. })));
        let failed =
            || Fatal::Failed { lane: LaneId::FIRST, id: None, error: Box::new(RailError::Silence(Duration::ZERO)) };
        let mut place = None;
        Fatal::keep(&mut place, failed);
        Fatal::keep(&mut place, || broke(3));
        Fatal::keep(&mut place, failed);
        assert!(place.is_some_and(|kept| matches!(*kept, Fatal::Broke(Violation::ToSender { bits: 3, .. }))));
    }
}
