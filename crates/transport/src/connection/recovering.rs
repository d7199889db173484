//! The part of the core that gives rails up and takes them back.

use railweave_fabric::{Fabric, Fault, LaneId, MAX_RAILS, Part, Piece, Rail, RailError, RailId, RailSet, WorkId};

use super::{Core, Fatal, Outstanding};
use crate::recovery::{GivenUp, Hearing, Hush, Oldest, Pauses, RecoveryAction};
use crate::sequence::Sequence;
use crate::violation::{RailFault, Violation};
use crate::{Cause, Error, Event};

impl<F: Fabric> Core<F> {
    /// Returns true if the connection goes on without the rail of a lane that failed for this reason. A peer that
    /// breaks the protocol ends its connection.
    pub(super) fn may_recover(&self, error: &RailError) -> bool {
        self.recovers && error.fault() != Fault::Protocol
    }

    /// Gives a rail up: no call uses it any more. The recovery takes its lanes, and asks the peer what has come.
    #[cold]
    pub(crate) fn give_up(&mut self, rail: RailId, why: GivenUp) {
        if !self.rails.usable().contains(rail) {
            return;
        }
        self.rails.give_up(rail);
        self.set_down(rail, true);
        self.silences.forget(rail);
        self.quiet.remove(rail);
        if self.probed.contains(rail) {
            self.probed.remove(rail);
            if self.probed.is_empty() {
                if !self.postable().is_empty() {
                    self.lose_probe();
                } else if self.fate.asked_probe() == self.probe {
                    // Nothing can carry it: the time that it has been out goes on.
                    self.fate.set_probe_blocked(self.probe, true);
                }
            }
        }
        if self.recent == rail {
            self.recent = self.rails.usable().first().unwrap_or(rail);
        }
        self.fast.set_rails(!self.rails.usable().is_empty());
        self.given_up.push((rail, why));
        self.fate.call_recovery();
    }

    fn set_down(&self, rail: RailId, is_down: bool) {
        if let Some(connected) = self.rails.find(rail) {
            connected.side.info.counters.set_down(is_down);
        }
    }

    /// Has the last probe posted again, on rails that may carry it.
    fn lose_probe(&mut self) {
        self.fate.set_probe_lost(self.probe);
        (self.probe, self.probed) = (0, RailSet::EMPTY);
    }

    /// Gives up the rails that use a part of this host that has failed, forever if the part is a device. Returns true
    /// if one of them was usable.
    pub(crate) fn give_up_part(&mut self, part: &Part, message: &str) -> bool {
        if !self.recovers {
            return false;
        }
        let uses = |rail: &RailId| self.rails.parts_of(*rail).iter().any(|used| used.fails_with(part));
        let hit: RailSet = RailId::all().filter(uses).collect();
        if part.piece == Piece::Device {
            self.gone |= hit;
            self.gone_why = message.to_owned();
            // The end may have been without any rail already.
            self.fate.call_recovery();
        }
        let used = hit & self.rails.usable();
        used.iter().for_each(|rail| self.give_up(rail, GivenUp::Part(message.to_owned())));
        !used.is_empty()
    }

    /// Returns true if a rail never comes back, because its device has failed for good.
    pub(crate) fn is_gone(&self, rail: RailId) -> bool {
        self.gone.contains(rail)
    }

    /// Returns the next rail that was given up and whose lanes are still there, and why.
    pub(crate) fn take_given_up(&mut self) -> Option<(RailId, GivenUp)> {
        if self.given_up.is_empty() { None } else { Some(self.given_up.remove(0)) }
    }

    /// Returns true if rails were given up whose lanes are still there.
    pub(crate) fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// Returns the last work that the peer refused.
    pub(crate) fn refused(&self) -> Option<WorkId> {
        self.refused
    }

    /// Breaks the connection because the peer refuses what this rail has carried.
    pub(crate) fn fail_by_refusal(&mut self, rail: RailId, lane: LaneId, error: RailError) {
        self.fail_by(rail, Fatal::Failed { lane, id: None, error: Box::new(error) });
    }

    /// Breaks the connection because of a report of this rail.
    pub(crate) fn fail_by(&mut self, rail: RailId, fatal: Fatal) {
        self.fail(self.cause_of(rail, fatal));
    }

    /// Breaks the connection because of what the peer says of this rail.
    pub(crate) fn fail_by_peer(&mut self, rail: RailId, fault: RailFault) {
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.fail(Cause::Violation { rail, name, peer, violation: Violation::Rail(fault) });
    }

    /// Returns the rails over which this end may post.
    pub(crate) fn postable(&self) -> RailSet {
        self.rails.usable().except(self.quiet)
    }

    /// Notes that this end may post over a rail whose new lanes the peer has connected. Returns false if it could
    /// already.
    pub(crate) fn end_quiet(&mut self, rail: RailId) -> bool {
        let was_quiet = self.quiet.contains(rail);
        self.quiet.remove(rail);
        if was_quiet && self.probe != 0 && self.probed.is_empty() {
            self.lose_probe();
        }
        was_quiet
    }

    /// Uses a rail again that has new lanes. If it `is_quiet`, this end posts nothing on them before
    /// [`Self::end_quiet`].
    pub(crate) fn use_again(&mut self, rail: RailId, is_quiet: bool) {
        self.rails.use_again(rail);
        self.set_down(rail, false);
        if is_quiet {
            self.quiet.insert(rail);
        } else if self.probe != 0 && self.probed.is_empty() {
            self.lose_probe();
        }
        if !self.rails.usable().contains(self.recent) {
            self.recent = rail;
        }
        self.fast.set_rails(true);
    }

    /// Ends the connection if none of its rails can come back, or it has been without any for too long. Called whenever
    /// its recovery has something to do, and when a rail is back. `oldest` is the oldest message that is on its way, if
    /// this end knows.
    pub(crate) fn check_outage(&mut self, outstanding: &mut impl Outstanding, oldest: Option<Sequence>, now_ns: u64) {
        if RailId::all().all(|rail| self.is_gone(rail) || !self.rails.has(rail)) {
            let why = format!("{}; this connection uses it and is lost", self.gone_why);
            self.drain(outstanding);
            self.fail(Error::local(why));
            return;
        }
        if let Some(for_ns) = self.outage.check(!self.postable().is_empty(), oldest, now_ns) {
            let (peer, history) = (self.peer.clone(), self.outage.history());
            self.drain(outstanding);
            self.fail(Cause::Outage { peer, for_ns, history });
        }
    }

    /// Breaks the connection because the peer has not said for this time what had come over a rail that failed.
    pub(crate) fn fail_unanswered(&mut self, rail: RailId, for_ns: u64, outstanding: &mut impl Outstanding) {
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.drain(outstanding);
        self.fail(Cause::Unanswered { rail, name, peer, for_ns });
    }

    /// Returns the longest time for which messages wait, in nanoseconds; `None` forever.
    pub(crate) fn outage_limit_ns(&self) -> Option<u64> {
        self.outage.limit_ns()
    }

    /// Breaks the connection because data is lost that came over this rail.
    pub(crate) fn fail_unrepairable(&mut self, rail: RailId, outstanding: &mut impl Outstanding) -> Error {
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.drain(outstanding);
        self.fail(Cause::Unrepairable { rail, name, peer })
    }

    /// Breaks the connection because a device does not end this rail's lanes.
    pub(crate) fn fail_unended(&mut self, rail: RailId, outstanding: &mut impl Outstanding) {
        let (name, peer) = (self.rails.name(rail), self.peer.clone());
        self.drain(outstanding);
        self.fail(Cause::Unended { rail, name, peer });
    }

    /// Notes that a rail went down, and why.
    pub(crate) fn note_down(&mut self, rail: RailId, text: String) {
        self.outage.note_down(rail, text);
    }

    /// Keeps the reason why new lanes of a rail do not come up, for the case that no rail comes back. Returns what is
    /// to be told if they have not for long.
    pub(crate) fn note_failed(
        &mut self,
        rail: RailId,
        reason: String,
        pauses: &mut Pauses,
        now_ns: u64,
    ) -> Option<RecoveryAction> {
        let name = self.rails.name(rail);
        self.note_down(rail, format!("{name} does not come back: {reason}"));
        let for_ns = pauses.failed(now_ns)?;
        Some(RecoveryAction::Event(Event::RailAway { rail, name, for_ns, reason }))
    }

    /// Returns the time at which [`Self::check_outage`] ends the connection, unless a rail comes back.
    pub(crate) fn outage_ns(&self) -> Option<u64> {
        self.outage.until_ns()
    }

    /// Returns true if silent rails are given up.
    pub(crate) fn listens(&self) -> bool {
        self.recovers && !self.silences.are_ignored() && self.check_open().is_ok()
    }

    /// Judges each usable rail, whose oldest work `oldest` says, and gives it up if it is silent for too long. A fabric
    /// whose writes need the peer's process is asked for its silences instead: that process may be busy.
    pub(crate) fn judge_silences(&mut self, hearing: Hearing, oldest: impl Fn(RailId) -> Option<Oldest>) -> Hush {
        let now_ns = hearing.now_ns;
        let usable = self.rails.usable();
        let mut bytes = [0; MAX_RAILS];
        for rail in usable {
            let oldest = oldest(rail);
            self.silences.note_oldest(rail, oldest.map(|oldest| oldest.mark), now_ns);
            if F::ONE_SIDED {
                bytes[rail] = oldest.map_or(0, |oldest| oldest.bytes);
            } else {
                let silent = self.rails.get_mut(rail).rail.silence();
                self.silences.note_silent_for(rail, silent, now_ns);
            }
        }
        let mut hush = Hush::Idle;
        for rail in usable {
            let mbps = self.rails.get(rail).side.info.speed_mbps;
            match self.silences.judge(rail, bytes[rail], mbps, hearing) {
                Err(silent) => {
                    self.give_up(rail, GivenUp::Silent(silent));
                    hush = hush.max(Hush::Busy);
                }
                Ok(one) => hush = hush.max(one),
            }
        }
        hush
    }

    /// Returns true if a rail has fallen silent at least twice since something last came over it.
    pub(crate) fn has_fallen_again(&self, rail: RailId) -> bool {
        self.silences.has_fallen_again(rail)
    }

    /// Returns true if the connection goes on without rails that fail.
    pub(crate) fn recovers(&self) -> bool {
        self.recovers
    }
}
