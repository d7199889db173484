//! Blame: the things that struck a connection's ends, and the errors that each of them may cause, with their codes.

use railweave_fabric::{Fault, PostError, RailError, WorkStatus};
use railweave_transport::{Cause, Ended, Error, HandshakeFailure, LostCause, Unreachable};

use super::checker::{Checked, Checker};

/// A thing that struck one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    /// This rail no longer carries everything, and no lane reports that before its retries are over.
    RailSilent(u8),
    /// The lanes of this rail failed at once.
    RailFailed(u8),
    /// An acknowledgement of this rail was lost, and comes only with a retry, perhaps after the grace.
    AcknowledgementLost(u8),
    /// The loop-back of this rail failed at the receiving end: lane 0 fails with the next flush.
    LoopBackFailed(u8),
    /// A device of this end failed, and only an event of the host tells.
    DeviceFailed,
    /// The peer's process died.
    PeerDied,
    /// The peer closed its end although there was more to do.
    PeerClosed,
    /// The peer's set-up of the connection failed.
    PeerFailed,
    /// The peer closed its end after the session had ended, so it did not wait until this end had everything.
    PeerGone,
    /// The session broke.
    SessionBroke,
    /// The session ended while one end of the connection was still set up.
    CameUpLate,
    /// The keys of the two processes differ.
    KeysDiffer,
    /// The sending end named memory that was not registered.
    NoSource,
    /// The receiving end did.
    NoTarget,
    /// This end was given an immediate that no peer may send.
    Forged,
}

/// The circumstances of an end in set-up, which may make it fail although nothing struck it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetUp {
    /// A dial has failed for it.
    pub(crate) has_failed_dial: bool,
    /// Its deadline has passed, and was so early that a slow set-up may miss it.
    pub(crate) missed_short: bool,
    /// Its deadline has passed.
    pub(crate) missed: bool,
    /// The same as `missed_short`, of its peer.
    pub(crate) peer_missed_short: bool,
    /// The rails that it is to have, as a mask; 0 if the ends have no ports that pair.
    pub(crate) planned: u8,
}

/// The circumstances of a call that returned an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// True if the end is the sending one.
    pub(crate) sender: bool,
    /// The time for which a connection outlives its peer or its session.
    pub(crate) grace_ns: u64,
    /// True if the end has work that its peer must still take part in.
    pub(crate) needs_peer: bool,
    /// True if the call was for a flush, in which no peer takes part.
    pub(crate) is_flush: bool,
    /// The longest time from the landing of a write to the completion that tells this end of it.
    pub(crate) settling_ns: u64,
    /// True if the connection goes on without rails that fail.
    pub(crate) recovers: bool,
    /// True if the host may be unable to open a rail again.
    pub(crate) may_not_open: bool,
    /// The time for which messages wait for a rail, or for the peer's word on one that failed.
    pub(crate) outage_ns: u64,
    /// True if rails of the end are down.
    pub(crate) is_recovering: bool,
}

/// A strike, and the time in which it has effects.
#[derive(Clone, Copy, Debug)]
struct Hit {
    from_ns: u64,
    /// The time at which it is over; `u64::MAX` if it never is.
    until_ns: u64,
    strike: Strike,
}

/// A lane that died.
#[derive(Debug)]
struct DeadLane {
    at_ns: u64,
    rail: u8,
    lane: u8,
    /// The error that the world gave.
    error: RailError,
}

/// The record of one end of a connection.
#[derive(Debug, Default)]
struct Struck {
    hits: Vec<Hit>,
    dead_lanes: Vec<DeadLane>,
    /// The rails that could not be opened here, as a mask.
    unopened: u8,
    /// The time at which the peer's BYE arrived.
    bye_ns: Option<u64>,
    /// The time at which the peer's REFUSE arrived.
    refused_ns: Option<u64>,
    /// The time of the event that told of a failed device.
    device_event_ns: Option<u64>,
}

/// The strikes of both ends of a connection.
#[derive(Debug, Default)]
pub(crate) struct Blame {
    /// The receiver, and the sender.
    ends: [Struck; 2],
    /// The time at which a write of the sender last landed.
    landed_ns: Option<u64>,
}

impl Blame {
    fn end(&self, sender: bool) -> &Struck {
        &self.ends[usize::from(sender)]
    }

    /// Notes that something struck an end, and has effects from then on. Only the first strike of a kind counts.
    pub(crate) fn strike(&mut self, at_ns: u64, sender: bool, strike: Strike) {
        self.strike_until(at_ns, u64::MAX, sender, strike);
    }

    /// Notes that something struck an end, and has effects up to a time.
    pub(crate) fn strike_until(&mut self, from_ns: u64, until_ns: u64, sender: bool, strike: Strike) {
        let hits = &mut self.ends[usize::from(sender)].hits;
        match hits.iter_mut().find(|hit| hit.strike == strike && hit.until_ns >= from_ns) {
            Some(known) => known.until_ns = known.until_ns.max(until_ns),
            None => hits.push(Hit { from_ns, until_ns, strike }),
        }
    }

    /// Notes that a lane of an end died, and the error that the world gave.
    pub(crate) fn lane_died(&mut self, at_ns: u64, sender: bool, (rail, lane): (u8, u8), error: &RailError) {
        self.ends[usize::from(sender)].dead_lanes.push(DeadLane { at_ns, rail, lane, error: error.clone() });
    }

    /// Notes that an end could not open a rail: the sending end this rail, the receiving end the one with this number
    /// among those that the sending end has opened.
    pub(crate) fn not_opened(&mut self, sender: bool, rail: u8) {
        let there = if sender { 0 } else { self.ends[1].unopened };
        let mut rails = (0..8).filter(|rail| there & 1 << rail == 0);
        let rail = rails.nth(usize::from(rail)).expect("a connection has at most 8 rails");
        self.ends[usize::from(sender)].unopened |= 1 << rail;
    }

    /// Returns the rails that an end could not open, or of which a lane died, as a mask.
    pub(crate) fn lost_rails(&self) -> u8 {
        let dead = self.ends.iter().flat_map(|end| &end.dead_lanes);
        dead.fold(self.unopened(), |rails, dead| rails | 1 << dead.rail)
    }

    /// Returns the rails that an end could not open, as a mask.
    fn unopened(&self) -> u8 {
        self.ends[0].unopened | self.ends[1].unopened
    }

    /// Notes that a write of the sender has landed.
    pub(crate) fn landed(&mut self, at_ns: u64) {
        self.landed_ns = Some(at_ns);
    }

    /// Notes that the peer's BYE has arrived at an end.
    pub(crate) fn bye_arrived(&mut self, at_ns: u64, sender: bool) {
        self.ends[usize::from(sender)].bye_ns.get_or_insert(at_ns);
    }

    /// Notes that the peer's REFUSE has arrived at an end.
    pub(crate) fn refuse_arrived(&mut self, at_ns: u64, sender: bool) {
        self.ends[usize::from(sender)].refused_ns.get_or_insert(at_ns);
    }

    /// Notes that an event has told an end of a failed device.
    pub(crate) fn device_event(&mut self, at_ns: u64, sender: bool) {
        self.ends[usize::from(sender)].device_event_ns.get_or_insert(at_ns);
    }

    /// Returns true if the peer's BYE has arrived at an end.
    pub(crate) fn has_bye(&self, sender: bool) -> bool {
        self.end(sender).bye_ns.is_some()
    }

    /// Returns the first thing that struck an end, and its time.
    pub(crate) fn first(&self, sender: bool) -> Option<(u64, Strike)> {
        self.end(sender).hits.first().map(|hit| (hit.from_ns, hit.strike))
    }

    /// Returns true if anything struck either end.
    pub(crate) fn is_struck(&self) -> bool {
        self.ends.iter().any(|end| !end.hits.is_empty())
    }

    /// Returns true if a lane of this end is dead.
    pub(crate) fn has_dead_lane(&self, sender: bool) -> bool {
        !self.end(sender).dead_lanes.is_empty()
    }

    /// Returns true if a rail, or its lane at an end, carries nothing at this time.
    pub(crate) fn has_dead_rail(&self, now_ns: u64) -> bool {
        let is_rail = |hit: &Hit| {
            let is_now = (hit.from_ns..=hit.until_ns).contains(&now_ns);
            is_now && matches!(hit.strike, Strike::RailSilent(_) | Strike::RailFailed(_) | Strike::DeviceFailed)
        };
        self.ends.iter().any(|end| !end.dead_lanes.is_empty() || end.hits.iter().any(is_rail))
    }

    /// Returns the time at which a rail was last struck; `None` if something else may keep it from being opened again.
    pub(crate) fn may_open_from_ns(&self, rail: u8) -> Option<u64> {
        let mut from_ns = 0;
        for hit in self.ends.iter().flat_map(|end| &end.hits) {
            match hit.strike {
                Strike::RailSilent(struck) | Strike::RailFailed(struck) | Strike::AcknowledgementLost(struck) => {
                    if struck == rail {
                        from_ns = from_ns.max(hit.from_ns);
                    }
                }
                Strike::LoopBackFailed(_) => {}
                _ => return None,
            }
        }
        let dead = self.ends.iter().flat_map(|end| &end.dead_lanes).filter(|dead| dead.rail == rail);
        Some(dead.map(|dead| dead.at_ns).fold(from_ns, u64::max))
    }

    /// Returns true if one of these struck this end.
    fn has(&self, sender: bool, which: &[Strike]) -> bool {
        self.end(sender).hits.iter().any(|hit| which.contains(&hit.strike))
    }

    /// Returns true if an application has deregistered the buffers of a receive in progress.
    pub(crate) fn has_no_target(&self) -> bool {
        [true, false].iter().any(|end| self.has(*end, &[Strike::NoTarget]))
    }

    /// Returns true if a set-up may have ended before this end took part in it.
    pub(crate) fn may_never_begin(&self, sender: bool) -> bool {
        use Strike::{KeysDiffer, PeerClosed, PeerDied, PeerFailed, SessionBroke};
        self.has(sender, &[KeysDiffer, PeerClosed, PeerDied, PeerFailed, SessionBroke])
    }

    /// Returns true if the end of the session, at this time, may end the set-up of this end.
    pub(crate) fn may_interrupt(&self, sender: bool) -> bool {
        self.has(sender, &[Strike::PeerDied, Strike::SessionBroke])
    }

    /// Judges the error of a call on an open end.
    pub(crate) fn judge(&self, now_ns: u64, call: Call, error: &Error) -> Checked {
        check_text(error)?;
        let Call { sender, grace_ns, needs_peer, is_flush, settling_ns, recovers, .. } = call;
        let end = self.end(sender);
        if end.hits.is_empty() {
            return Err((Checker::Errors, format!("an error without a reason: {error}")));
        }
        let blamed = |why: String| Err((Checker::Blame, format!("{why}; struck by {:?}: {error}", end.hits)));
        if is_flush && matches!(**error, Cause::Lost(_)) {
            return blamed("a flush fails for its peer's sake".to_owned());
        }
        // The last completion may be held back for a while after what struck the end is over.
        let loses_acks =
            |hit: &Hit| hit.strike.loses_acknowledgements() && hit.until_ns.saturating_add(settling_ns) >= now_ns;
        // The completion of what has landed last may still be on its way, or was when the peer's end went.
        let is_settling = |at_ns: u64| self.landed_ns.is_some_and(|landed_ns| landed_ns + settling_ns >= at_ns);
        let is_unheard = |hit: &Hit| loses_acks(hit) || hit.strike == Strike::PeerGone && is_settling(hit.from_ns);
        // A peer that closes says what it has received, unless its connection has failed.
        let is_bye = matches!(&**error, Cause::Lost(lost) if lost.cause == LostCause::Bye);
        let is_told = sender && is_bye && !self.has(!sender, &[Strike::Forged]);
        // A sender whose rail has failed asks its peer over the session for what has come. A peer that has closed does
        // not say, nor does one that a hostile immediate has ended.
        let is_mute = self.has(sender, &[Strike::SessionBroke]) || self.has(!sender, &[Strike::Forged]);
        let is_without_acks = is_mute && end.hits.iter().any(|hit| hit.strike.loses_acknowledgements());
        let is_without_peer = self.has(sender, &[Strike::PeerClosed]) && call.is_recovering;
        let is_unsure = recovers && sender && (is_without_acks || is_without_peer);
        let is_excused = is_settling(now_ns) || !is_told && end.hits.iter().any(is_unheard) || is_unsure;
        if matches!(**error, Cause::Lost(_)) && !needs_peer && !is_excused {
            return blamed("the connection is called lost, but it needs nothing more from its peer".to_owned());
        }
        let dead: Vec<&DeadLane> = match &**error {
            Cause::Lane { rail, lane, error, .. } => {
                let is_it = |dead: &&DeadLane| (usize::from(dead.rail), dead.lane) == (rail.index(), lane.0);
                let found: Vec<_> = end.dead_lanes.iter().filter(is_it).filter(|dead| dead.error == *error).collect();
                if found.is_empty() {
                    return blamed(format!("lane {lane} of rail {rail} did not fail with this error"));
                }
                found
            }
            Cause::Post { rail, error: PostError::Broken, .. } => {
                end.dead_lanes.iter().filter(|dead| usize::from(dead.rail) == rail.index()).collect()
            }
            _ => Vec::new(),
        };
        let is_due = |since_ns: Option<u64>, wait_ns: u64| since_ns.is_some_and(|at_ns| at_ns + wait_ns <= now_ns);
        let may_cause = |hit: &Hit| match &**error {
            Cause::Lane { .. } | Cause::Post { error: PostError::Broken, .. }
                if recovers && hit.strike.is_of_rail() =>
            {
                false
            }
            Cause::Lane { .. } | Cause::Post { error: PostError::Broken, .. } => {
                dead.iter().any(|dead| (hit.from_ns..=hit.until_ns).contains(&dead.at_ns) && hit.strike.kills(dead))
            }
            Cause::Post { error: PostError::Invalid(_), .. } => match hit.strike {
                Strike::NoSource => sender,
                // The target of a flush.
                Strike::NoTarget => !sender,
                _ => false,
            },
            Cause::Other { .. } => hit.strike == Strike::DeviceFailed && is_due(end.device_event_ns, 0),
            // The devices of this world end their lanes.
            Cause::Unended { .. } => false,
            Cause::Unrepairable { .. } => {
                let is_of_flush = matches!(hit.strike, Strike::LoopBackFailed(_) | Strike::NoTarget);
                hit.strike == Strike::DeviceFailed || !sender && is_of_flush
            }
            // A device that has failed never comes back. Nor does a peer that has closed or died, but the session that
            // would say so may be away.
            Cause::Outage { .. } => {
                let is_unheard_of = matches!(hit.strike, Strike::PeerClosed | Strike::PeerDied)
                    && self.has(sender, &[Strike::SessionBroke]);
                call.may_not_open
                    || is_unheard_of
                    || [true, false].iter().any(|end| self.has(*end, &[Strike::DeviceFailed]))
            }
            // A dead peer says nothing, and one that has closed neither; the session that would say so may be away.
            Cause::Unanswered { for_ns, .. } => {
                let is_mute = hit.strike == Strike::PeerClosed && self.has(sender, &[Strike::SessionBroke]);
                *for_ns >= call.outage_ns && (is_mute || hit.strike == Strike::PeerDied)
            }
            Cause::Violation { .. } => hit.strike == Strike::Forged,
            Cause::Lost(lost) => match (&lost.cause, hit.strike) {
                // A peer that has everything closes, though this end has not heard that it does.
                (LostCause::Bye, strike) => {
                    (strike == Strike::PeerClosed || loses_acks(hit)) && is_due(end.bye_ns, grace_ns)
                }
                (LostCause::GaveUp(_), Strike::PeerFailed) => is_due(end.refused_ns, 0),
                // The peer has no such connection.
                (LostCause::Session(_) | LostCause::Gone(_), Strike::CameUpLate | Strike::PeerFailed) => true,
                (LostCause::Gone(_), Strike::PeerDied) => true,
                // Refused parts are sent again a few times, and the rails rest in between.
                (LostCause::Gone(_) | LostCause::Session(_), Strike::NoTarget | Strike::NoSource) if recovers => {
                    self.has(sender, &[Strike::SessionBroke])
                }
                // It closed while the session was away, and its BYE never came.
                (LostCause::Session(_) | LostCause::Gone(_), Strike::PeerClosed | Strike::PeerDied) => {
                    self.has(sender, &[Strike::SessionBroke])
                }
                // Nor has the peer's end heard of the last message, of a receive that was over early.
                (LostCause::Gone(_), Strike::PeerGone) if recovers && sender => true,
                // A broken session harms nothing while rails work and both processes live.
                (cause, strike) => {
                    let is_unheard = strike.loses_acknowledgements() || is_unheard(hit);
                    let is_forgotten =
                        matches!(cause, LostCause::Session(ended) if matches!(**ended, Ended::Forgotten));
                    let is_gone = is_forgotten || matches!(cause, LostCause::Gone(_));
                    is_gone && is_unheard && self.has(sender, &[Strike::SessionBroke])
                }
            },
            _ => false,
        };
        let Some(hit) = end.hits.iter().find(|hit| may_cause(hit)) else {
            return blamed("nothing that struck this end may cause this error now".to_owned());
        };
        check_code(error, hit.strike.code(error))
    }

    /// Judges the error of a set-up.
    pub(crate) fn judge_set_up(&self, sender: bool, error: &Error, set_up: SetUp) -> Checked {
        check_text(error)?;
        let is_gone = self.has(sender, &[Strike::PeerDied, Strike::SessionBroke]);
        let peer_gave_up = self.has(sender, &[Strike::PeerFailed]);
        let has_no_listener = sender && self.has(sender, &[Strike::PeerClosed]);
        let none_opened = set_up.planned & !self.unopened() == 0;
        let none_left = set_up.planned & !self.lost_rails() == 0;
        let (is_due, code) = match &**error {
            Cause::Unreachable(Unreachable::Hello { .. } | Unreachable::OtherKey { .. }) => {
                (self.has(sender, &[Strike::KeysDiffer]), Fault::Configuration)
            }
            Cause::Unreachable(Unreachable::Tried { .. }) => (set_up.has_failed_dial || is_gone, Fault::Peer),
            Cause::Handshake { failure, .. } => match failure {
                HandshakeFailure::Late(_) => (set_up.missed_short || set_up.missed && is_gone, Fault::Peer),
                HandshakeFailure::Unconnected(_) => (set_up.missed_short, Fault::Local),
                HandshakeFailure::GaveUp(_) => (peer_gave_up, Fault::Peer),
                HandshakeFailure::Refused { fault: Fault::Configuration, .. } => {
                    (set_up.planned == 0, Fault::Configuration)
                }
                HandshakeFailure::Refused { .. } => (peer_gave_up || has_no_listener, Fault::Peer),
                // An end says BYE only once it is up, and then its peer has everything that it needs.
                HandshakeFailure::Closed => (false, Fault::Peer),
                HandshakeFailure::Unpaired(_) => (set_up.planned == 0 && !sender, Fault::Configuration),
                // An end whose time is short leaves out the rails that it has not connected, whatever became of others.
                HandshakeFailure::NoRail { failed_here: true, .. } => {
                    ((none_opened || set_up.missed_short) && self.end(sender).unopened != 0, Fault::Local)
                }
                // A peer that has given up or died has no ends of rails either.
                HandshakeFailure::NoRail { failed_here: false, .. } => {
                    let is_late = set_up.missed_short || set_up.peer_missed_short;
                    (none_left || is_late || peer_gave_up || self.has(sender, &[Strike::PeerDied]), Fault::Peer)
                }
                _ => (false, Fault::Peer),
            },
            // A peer that has given up may close the session while its REFUSE is kept here.
            Cause::SessionEnded { .. } => {
                let has_given_up = peer_gave_up && self.end(sender).refused_ns.is_some();
                (self.may_interrupt(sender) || has_given_up, Fault::Peer)
            }
            _ => (false, Fault::Peer),
        };
        if !is_due {
            let end = self.end(sender);
            let what = match &**error {
                Cause::SessionEnded { .. } => "its session ended during set-up",
                _ => "no connection was made",
            };
            return Err((Checker::Errors, format!("{what}, without a reason: {error}; {end:?}")));
        }
        check_code(error, code)
    }
}

impl Strike {
    /// Returns true if it may kill a rail, and nothing else.
    fn is_of_rail(self) -> bool {
        matches!(
            self,
            Self::RailSilent(_)
                | Self::RailFailed(_)
                | Self::LoopBackFailed(_)
                | Self::AcknowledgementLost(_)
                | Self::DeviceFailed
                | Self::PeerDied
        )
    }

    /// Returns true if it may keep acknowledgements of what has landed from this end.
    fn loses_acknowledgements(self) -> bool {
        matches!(
            self,
            Self::RailSilent(_)
                | Self::RailFailed(_)
                | Self::DeviceFailed
                | Self::AcknowledgementLost(_)
                | Self::PeerDied
        )
    }

    /// Returns true if it may have killed this lane, by its rail and its error.
    fn kills(self, lane: &DeadLane) -> bool {
        let rail = lane.rail;
        let is_gone = matches!(self, Self::PeerDied | Self::PeerClosed | Self::PeerFailed | Self::PeerGone);
        let status = match &lane.error {
            RailError::Work(failure) => failure.status,
            // Over sockets, as a queue pair whose retries are exhausted.
            RailError::Silence(_) => WorkStatus::RetriesExceeded,
            RailError::PeerClosed(_) => return is_gone || self == Self::AcknowledgementLost(rail),
            _ => return false,
        };
        match (self, status) {
            // The other lanes of a rail that has given up are flushed.
            (Self::RailSilent(dead), WorkStatus::RetriesExceeded | WorkStatus::Flushed)
            | (Self::RailFailed(dead), WorkStatus::Flushed)
            | (Self::LoopBackFailed(dead), WorkStatus::RetriesExceeded)
            | (Self::AcknowledgementLost(dead), WorkStatus::RetriesExceeded) => dead == rail,
            // A lane whose peer's end is gone retries.
            (_, WorkStatus::RetriesExceeded) if is_gone => true,
            // Writes may still be on their way when the memory at either end is the application's again.
            (Self::NoSource | Self::NoTarget | Self::PeerClosed, WorkStatus::RemoteAccess) => true,
            (Self::NoSource, WorkStatus::LocalProtection) => true,
            // The lane is dead at the other end, which refused a write or was told so.
            (Self::NoSource | Self::NoTarget, WorkStatus::RetriesExceeded) => true,
            _ => false,
        }
    }

    /// Returns the party at fault in an error that it causes. NCCL's result code follows from that: a failure of the
    /// peer or of the path to it is a remote error, and a broken contract or protocol is an internal error.
    fn code(self, error: &Error) -> Fault {
        match self {
            // Work that was posted before the memory was gone is refused by the other end, or by the adapter.
            Self::NoSource | Self::NoTarget if error_is_own(error) => Fault::Protocol,
            Self::NoSource if error_is_of_source(error) => Fault::Local,
            Self::Forged => Fault::Protocol,
            Self::KeysDiffer => Fault::Configuration,
            _ if matches!(**error, Cause::Unrepairable { .. }) => Fault::Local,
            Self::DeviceFailed if matches!(**error, Cause::Other { .. }) => Fault::Local,
            _ => Fault::Peer,
        }
    }
}

/// Returns true if an error says that the call itself named memory that is not registered.
fn error_is_own(error: &Error) -> bool {
    matches!(**error, Cause::Post { error: PostError::Invalid(_), .. })
}

/// Returns true if an adapter could not read the memory that a write came from.
fn error_is_of_source(error: &Error) -> bool {
    let is_it =
        |error: &RailError| matches!(error, RailError::Work(failure) if failure.status == WorkStatus::LocalProtection);
    matches!(&**error, Cause::Lane { error, .. } if is_it(error))
}

/// Checks that an error has a text.
fn check_text(error: &Error) -> Checked {
    if error.to_string().len() >= 10 {
        return Ok(());
    }
    Err((Checker::Errors, format!("an error without a text: {error:?}")))
}

/// Checks an error's result code.
pub(crate) fn check_code(error: &Error, expected: Fault) -> Checked {
    if error.fault() == expected {
        return Ok(());
    }
    Err((Checker::Blame, format!("the fault is said to be {:?}, not {expected:?}: {error}", error.fault())))
}

#[cfg(test)]
mod tests;
