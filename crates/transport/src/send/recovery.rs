//! The recovery of rails at the sending end: it fences first, asks the receiver what has come, sends the rest again,
//! and offers new lanes.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use railweave_fabric::{
    Fabric, Joining, LaneEndpoint, LaneId, LocalSlice, PendingRail, Rail, RailId, RailSet, RemoteSlice, Write,
};

use super::rail_stages::Stage;
use super::refusals::{Refusals, Refused};
use super::repairs::Repair;
use super::{SendConnection, lane_of};
use crate::connection::Outstanding;
use crate::handshake::LaneRefused;
use crate::message::{Listed, RailMessage, RailNews, Seen};
use crate::rails::TakenRail;
use crate::recovery::{
    Attempt, Fence, Fenced, FirstPacket, GivenUp, Made, NewLanes, RecoveryAction, Remake, Unmade, port_of,
};
use crate::sequence::Sequence;
use crate::violation::{CtsViolation, RailFault};
use crate::work::WorkKind;
use crate::{Dial, Error, Event, Immediate, Token, record};

impl<F: Fabric> SendConnection<F> {
    /// Does what is due: fences rails that were given up, opens new lanes, and sends again what rails have lost.
    pub(super) fn recover_now(&mut self, now_ns: u64) {
        while let Some((rail, why)) = self.core.take_given_up() {
            self.begin_fence(rail, why, now_ns);
        }
        for rail in RailId::all() {
            if matches!(self.recovery.rails[rail].stage, Stage::Resting { until_ns } if until_ns <= now_ns)
                && let Some(remake) = self.remake(rail)
            {
                let one = &mut self.recovery.rails[rail];
                one.stage = Stage::Opening;
                one.pauses.begin(now_ns);
                let timeout_ns = one.pauses.attempt_ns();
                self.recovery.work(NewLanes::open(Attempt { rail, timeout_ns }, &remake));
            }
        }
        self.post_repairs(now_ns);
        self.check_outage(now_ns);
    }

    fn check_outage(&mut self, now_ns: u64) {
        let owed = self.progress.requests.carried().filter(|slot| !slot.owed.is_empty());
        let oldest = owed.map(|slot| slot.sequence).max_by_key(|sequence| self.head.since(*sequence));
        self.core.check_outage(&mut self.progress, oldest, now_ns);
        let asked = self.asked_until_ns().find(|(_, until_ns)| *until_ns <= now_ns);
        if let Some((rail, _)) = asked
            && self.core.check_open().is_ok()
        {
            let for_ns = now_ns.saturating_sub(self.recovery.rails[rail].pauses.down_since_ns());
            self.core.fail_unanswered(rail, for_ns, &mut self.progress);
        }
    }

    /// Returns the rails of which messages wait for the peer's answer, and the time until which they do: without a
    /// session nobody answers, and other rails may work on.
    fn asked_until_ns(&self) -> impl Iterator<Item = (RailId, u64)> {
        let limit_ns = self.core.outage_limit_ns();
        let is_asked =
            |stage: &Stage<F>| matches!(stage, Stage::Asked(listed) if listed.iter().any(|it| !it.unsure.is_empty()));
        let asked = RailId::all().zip(&self.recovery.rails).filter(move |(_, one)| is_asked(&one.stage));
        asked.filter_map(move |(rail, one)| Some((rail, one.pauses.down_since_ns().saturating_add(limit_ns?))))
    }

    /// Returns the time of the next attempt to open new lanes.
    pub(super) fn recovery_next_ns(&self) -> Option<u64> {
        let resting = self.recovery.rails.iter().filter_map(|rail| match rail.stage {
            Stage::Resting { until_ns } => Some(until_ns).filter(|until_ns| *until_ns < u64::MAX),
            _ => None,
        });
        // Parts that wait for room on a rail, or for a rail that was given up just now.
        let waits = self.progress.repairs.wait() && !self.core.rails.usable().is_empty() || self.core.has_given_up();
        let repairs_ns = self.recovery.refusals.until_ns();
        let asked = self.asked_until_ns().map(|(_, until_ns)| until_ns);
        resting.chain(waits.then_some(repairs_ns)).chain(self.core.outage_ns()).chain(asked).min()
    }

    fn remake(&mut self, rail: RailId) -> Option<Arc<Remake<F>>> {
        self.core.rails.down_mut(rail).map(|down| Arc::clone(&down.remake))
    }

    fn begin_fence(&mut self, rail: RailId, why: GivenUp, now_ns: u64) {
        let name = self.core.rails.name(rail);
        let Some(taken) = self.core.rails.take(rail) else {
            return;
        };
        let one = &mut self.recovery.rails[rail];
        (one.stage, one.repaired, one.refused) = (Stage::Fencing, 0, Refusals::of(&why));
        let was_useless = matches!(why, GivenUp::Silent(_)) && self.core.has_fallen_again(rail);
        one.pauses.went_down(was_useless, now_ns);
        self.core.note_down(rail, format!("{name}: {why}"));
        let (left, is_gone) = (self.core.rails.usable(), self.core.is_gone(rail));
        if left.is_empty() {
            // Rails that flap have long pauses, which help nobody now.
            self.recovery.rest_less(now_ns);
        }
        self.recovery.actions.push_back(RecoveryAction::Event(Event::RailDown { rail, name, why, left, is_gone }));
        self.recovery.work(Fence::new(rail, taken, Vec::new()));
    }

    /// Handles work on a rail that is done.
    pub(super) fn take_work(&mut self, work: Box<dyn Any + Send>, now_ns: u64) {
        match work.downcast::<Fence<F>>() {
            Ok(fence) => {
                let (rail, mut fenced) = fence.into_fenced();
                fenced.remains.take().into_iter().for_each(|remains| self.recovery.free(remains));
                self.ask(rail, fenced);
            }
            Err(work) => {
                if let Ok(lanes) = work.downcast::<NewLanes<F>>() {
                    let (rail, made) = lanes.into_made();
                    self.take_made(rail, made, now_ns);
                }
            }
        }
        self.post_repairs(now_ns);
    }

    /// Asks the peer what has come, now that nothing of the rail is on its way from here any more.
    fn ask(&mut self, rail: RailId, mut fenced: Fenced) {
        let Some(down) = self.core.rails.down_mut(rail) else {
            return;
        };
        fenced.replay(&mut self.progress.reports::<F>(&mut down.side));
        self.progress.meter.forget(&down.side);
        if self.core.check_open().is_err() {
            return;
        }
        if !fenced.is_over {
            return self.core.fail_unended(rail, &mut self.progress);
        }
        if let Some(fatal) = self.progress.fatal().take() {
            self.core.fail_by(rail, *fatal);
            return;
        }
        let refused = match self.core.refused().and_then(WorkKind::from_id) {
            Some(WorkKind::Data(sequence) | WorkKind::Repair { sequence, .. }) => Some(sequence),
            _ => None,
        };
        let listed = |slot: crate::requests::Carried| {
            let carried = self.progress.repairs.carried_by(rail, slot.sequence, slot.mask);
            Listed {
                sequence: slot.sequence.number(),
                mask: slot.mask,
                unsure: carried & slot.owed,
                placed: carried.except(slot.owed),
                size: slot.size,
                is_refused: refused == Some(slot.sequence),
            }
        };
        let listed = self.progress.requests.carried().map(listed);
        let listed: Vec<_> = listed.filter(|listed| !(listed.unsure | listed.placed).is_empty()).collect();
        self.recovery.say(rail, RailMessage::Down(listed.clone()));
        self.recovery.rails[rail].stage = Stage::Asked(listed);
    }

    /// Handles lanes as far as they were made.
    fn take_made(&mut self, rail: RailId, made: Made<F>, now_ns: u64) {
        // The device may have failed for good meanwhile: it completes nothing, and nothing else tells.
        let is_gone = self.core.is_gone(rail);
        let one = &mut self.recovery.rails[rail];
        match (std::mem::replace(&mut one.stage, Stage::Up), made) {
            (Stage::Opening, Made::Open(pending)) => {
                one.incarnation = one.incarnation.next();
                let endpoints = match F::JOINING {
                    Joining::ByExchange { endpoints, .. } => endpoints(&pending),
                    Joining::BySockets { .. } => {
                        let lanes = self.core.rails.down_mut(rail).map_or(1, |down| down.lanes);
                        vec![LaneEndpoint::default(); usize::from(lanes)]
                    }
                };
                one.stage = Stage::Offered(pending);
                self.recovery.say(rail, RailMessage::Offer(endpoints));
            }
            (Stage::Opening, made) => {
                if let Made::Failed(unmade) = made {
                    self.note_failed(rail, unmade.reason, now_ns);
                }
                self.rest(rail, now_ns);
            }
            (Stage::Connecting { is_wanted: true }, Made::Ready(lanes, _)) if !is_gone => {
                self.install(rail, lanes, now_ns);
            }
            (Stage::Connecting { .. }, Made::Ready(lanes, _)) => self.discard(rail, lanes),
            (Stage::Connecting { .. }, Made::Failed(Unmade { reason, rail: lanes })) => {
                self.note_failed(rail, reason, now_ns);
                match lanes {
                    Some(lanes) => self.discard(rail, lanes),
                    None => self.recovery.say_never_up(rail),
                }
            }
            (Stage::Connecting { .. }, Made::Open(_)) => self.recovery.say_never_up(rail),
            (stage, _) => one.stage = stage,
        }
    }

    /// Notes why new lanes do not come up.
    fn note_failed(&mut self, rail: RailId, reason: String, now_ns: u64) {
        let told = self.core.note_failed(rail, reason, &mut self.recovery.rails[rail].pauses, now_ns);
        self.recovery.actions.extend(told);
    }

    fn rest(&mut self, rail: RailId, now_ns: u64) {
        let is_alone = self.core.rails.usable().is_empty();
        let one = &mut self.recovery.rails[rail];
        let mut until_ns = one.pauses.next_ns(is_alone, now_ns);
        if std::mem::take(&mut one.is_hurried) {
            until_ns = until_ns.min(one.pauses.soonest_ns(is_alone, now_ns));
        }
        one.stage = Stage::Resting { until_ns: if self.core.is_gone(rail) { u64::MAX } else { until_ns } };
    }

    /// Ends new lanes that are not wanted, or carry nothing.
    fn discard(&mut self, rail: RailId, lanes: F::Rail) {
        self.recovery.rails[rail].stage = Stage::Fencing;
        let registrations = self.core.rails.down_mut(rail).map(|down| down.registrations()).unwrap_or_default();
        self.recovery.work(Fence::<F>::of_unused(rail, TakenRail { rail: lanes, registrations }));
    }

    /// Uses new lanes.
    fn install(&mut self, rail: RailId, lanes: F::Rail, now_ns: u64) {
        if self.core.rails.put(rail, lanes).is_none() {
            return;
        }
        self.core.use_again(rail, false);
        let one = &mut self.recovery.rails[rail];
        one.stage = Stage::Up;
        let (after_ns, repaired) = (one.pauses.came_up(now_ns), one.repaired);
        self.recovery.say(rail, RailMessage::Up);
        let name = self.core.rails.name(rail);
        let event = Event::RailUp { rail, name, after_ns, repaired: Some(repaired) };
        self.recovery.actions.push_back(RecoveryAction::Event(event));
        self.progress.meter.use_rails(self.core.rails.usable());
        self.check_outage(now_ns);
    }

    /// Handles a step of the peer.
    ///
    /// # Errors
    /// If the peer breaks the protocol.
    pub(super) fn take_news(&mut self, news: RailNews, now_ns: u64) -> Result<(), RailFault> {
        let RailNews { rail, incarnation, message } = news;
        let one = &mut self.recovery.rails[rail];
        if !self.core.rails.has(rail) || one.incarnation.is_before(incarnation) {
            return Err(RailFault::Unknown);
        }
        if incarnation != one.incarnation {
            return Ok(());
        }
        match (std::mem::replace(&mut one.stage, Stage::Up), message) {
            (Stage::Up, RailMessage::Suspect) => {
                // The peer may have refused its work, which says more. The connection keeps an error.
                let _ = self.core.poll_rail(rail, &mut self.progress);
                self.core.give_up(rail, GivenUp::Peer);
                self.recover_now(now_ns);
                Ok(())
            }
            (Stage::Offered(pending) | Stage::Dialling { pending, .. }, RailMessage::Suspect) => {
                self.recovery.free(pending);
                self.recovery.say_never_up(rail);
                self.note_failed(rail, "the peer has given its lanes up; its log says why".to_owned(), now_ns);
                Ok(())
            }
            (Stage::Connecting { .. }, RailMessage::Suspect) => {
                one.stage = Stage::Connecting { is_wanted: false };
                Ok(())
            }
            // After the answer it says that the peer's path may be back.
            (stage, RailMessage::Suspect) => {
                let has_answered = matches!(stage, Stage::Resting { .. } | Stage::Opening);
                one.stage = stage;
                if has_answered {
                    self.hurry_rail(rail, now_ns);
                }
                Ok(())
            }
            (Stage::Asked(listed), RailMessage::State(seen)) => self.settle(rail, &listed, &seen, now_ns),
            (Stage::Offered(pending), RailMessage::Lanes { token, endpoints }) => {
                self.connect(rail, pending, token, endpoints, now_ns)
            }
            // The peer said it before it heard that these lanes are gone.
            (
                stage @ (Stage::Asked(_) | Stage::Fencing | Stage::Connecting { is_wanted: false }),
                RailMessage::Lanes { .. },
            ) => {
                one.stage = stage;
                Ok(())
            }
            (stage, _) => {
                one.stage = stage;
                Err(RailFault::OutOfTurn)
            }
        }
    }

    /// Ends the parts that have come, and has the others sent again.
    fn settle(&mut self, rail: RailId, listed: &[Listed], seen: &[Seen], now_ns: u64) -> Result<(), RailFault> {
        let unsure: Vec<_> = listed.iter().filter(|listed| !listed.unsure.is_empty()).collect();
        let fits = unsure.len() == seen.len() && unsure.iter().zip(seen).all(|(l, s)| l.sequence == s.sequence);
        if !fits {
            return Err(RailFault::OtherSlots);
        }
        let mut oldest_unseen: Option<Sequence> = None;
        for (listed, seen) in unsure.into_iter().zip(seen) {
            let sequence = Sequence::new(listed.sequence);
            let here = listed.unsure & seen.parts;
            here.iter().for_each(|part| self.progress.repairs.note_seen(sequence, part));
            self.progress.requests.end_parts(sequence, here);
            let unseen = listed.unsure.except(here);
            unseen.iter().for_each(|part| self.progress.repairs.add(sequence, part));
            if !unseen.is_empty()
                && oldest_unseen.is_none_or(|oldest| self.head.since(oldest) < self.head.since(sequence))
            {
                oldest_unseen = Some(sequence);
            }
        }
        self.rest(rail, now_ns);
        if let Some((lane, error)) = self.recovery.rails[rail].refused.take()
            && let Some(oldest) = oldest_unseen
            && self.recovery.refusals.count(oldest, self.recovery.pause_ns, now_ns) == Refused::TooOften
        {
            self.core.fail_by_refusal(rail, lane, error);
        }
        self.post_repairs(now_ns);
        Ok(())
    }

    /// Connects new lanes to those of the peer.
    fn connect(
        &mut self,
        rail: RailId,
        pending: F::PendingRail,
        token: Token,
        peer: Vec<LaneEndpoint>,
        now_ns: u64,
    ) -> Result<(), RailFault> {
        let Some((lanes, remake)) = self.core.rails.down_mut(rail).map(|down| (down.lanes, Arc::clone(&down.remake)))
        else {
            return Err(RailFault::OutOfTurn);
        };
        if peer.len() != usize::from(lanes) {
            self.recovery.free(pending);
            return Err(RailFault::WrongLanes { lanes: peer.len(), agreed: lanes });
        }
        let one = &mut self.recovery.rails[rail];
        match F::JOINING {
            Joining::ByExchange { .. } => {
                one.stage = Stage::Connecting { is_wanted: true };
                let attempt = Attempt { rail, timeout_ns: one.pauses.attempt_ns() };
                let address = self.records.region.address() + record::PACKET_OFFSET;
                let packet = FirstPacket {
                    local: LocalSlice { address, length: remake.packet_bytes, key: self.record_keys[rail] },
                    remote: RemoteSlice {
                        address: self.peer_records.wrapping_add(record::PACKET_OFFSET),
                        key: self.peer_record_keys[rail],
                    },
                    timeout_ns: one.pauses.proof_ns(self.core.rails.usable().is_empty(), now_ns),
                };
                self.recovery.work(NewLanes::connect(attempt, &remake, pending, peer, packet));
            }
            Joining::BySockets { address, .. } => {
                // The address of either port may be another one than when the connection was set up.
                let local = address(&pending).unwrap_or(remake.local);
                let remote = match port_of(&peer)? {
                    None => remake.remote.address(),
                    // Whoever the peer names elsewhere may be none of its own.
                    Some(moved) if !remake.remote.contains(moved) => {
                        let reason =
                            format!("its peer's port is at {moved} now, outside the network {}", remake.remote);
                        self.recovery.free(pending);
                        self.recovery.say_never_up(rail);
                        self.note_failed(rail, reason, now_ns);
                        return Ok(());
                    }
                    Some(moved) => moved,
                };
                one.stage = Stage::Dialling { pending, token, missing: u32::from(lanes) };
                let incarnation = one.incarnation;
                let dial = |lane| Dial { rail, lane, local, remote, token, incarnation };
                let dials = (0..lanes).map(|lane| RecoveryAction::Dial(dial(LaneId(lane))));
                self.recovery.actions.extend(dials);
            }
        }
        Ok(())
    }

    /// Takes the socket of a lane that was dialled, or the reason why there is none.
    pub(super) fn take_dialled(&mut self, dial: &Dial, socket: Result<OwnedFd, String>, now_ns: u64) {
        let (rail, lane) = (dial.rail, dial.lane);
        let one = &mut self.recovery.rails[rail];
        let Joining::BySockets { attach, .. } = F::JOINING else {
            return;
        };
        match std::mem::replace(&mut one.stage, Stage::Up) {
            Stage::Dialling { mut pending, token, missing } if one.incarnation == dial.incarnation => {
                let attached = socket.and_then(|socket| {
                    attach(&mut pending, lane, socket).map_err(|error| error.to_string())?;
                    if missing > 1 { Ok(None) } else { Ok(Some(())) }
                });
                let made = match attached {
                    Ok(None) => {
                        one.stage = Stage::Dialling { pending, token, missing: missing - 1 };
                        return;
                    }
                    Ok(Some(())) => pending.into_rail().map_err(|error| error.to_string()),
                    Err(reason) => Err(reason),
                };
                match made {
                    Ok(lanes) => self.install(rail, lanes, now_ns),
                    Err(reason) => {
                        self.recovery.say_never_up(rail);
                        self.note_failed(rail, reason, now_ns);
                    }
                }
            }
            other => one.stage = other,
        }
    }

    /// The sender dials, so no lane waits for a socket here.
    #[expect(clippy::unused_self, reason = "the receiving end has the same method")]
    pub(super) fn check_lane(&self, rail: u8, _lane: u8) -> Result<(), LaneRefused> {
        Err(LaneRefused::DialledHere(rail))
    }

    pub(super) fn take_lane(&self, rail: u8, lane: u8, _socket: OwnedFd) -> Result<(), LaneRefused> {
        self.check_lane(rail, lane)
    }

    /// Has a rail opened again soon: something says that its path may be back.
    pub(super) fn hurry(&mut self, now_ns: u64) {
        RailId::all().for_each(|rail| self.hurry_rail(rail, now_ns));
    }

    fn hurry_rail(&mut self, rail: RailId, now_ns: u64) {
        if self.core.is_gone(rail) {
            return;
        }
        let is_alone = self.core.rails.usable().is_empty();
        let one = &mut self.recovery.rails[rail];
        match &mut one.stage {
            Stage::Resting { until_ns } => *until_ns = (*until_ns).min(one.pauses.soonest_ns(is_alone, now_ns)),
            // The attempt in progress may have begun too early.
            stage => one.is_hurried = !matches!(stage, Stage::Up),
        }
    }

    /// Sends parts that rails have lost over others, as long as there is room.
    fn post_repairs(&mut self, now_ns: u64) {
        if now_ns < self.recovery.refusals.until_ns() || self.core.check_open().is_err() {
            return;
        }
        let mut from = 0;
        while let Some((place, repair)) = self.progress.repairs.next_waiting(from) {
            from = place + 1;
            let usable = self.core.rails.usable();
            if usable.is_empty() {
                return;
            }
            // They take turns.
            let on = usable.iter().nth(place % usable.len() as usize).unwrap_or_default();
            match self.build_repair(&repair, on) {
                Ok(None) => self.progress.repairs.note_needless(place),
                Ok(Some(bytes)) => self.post_repair(place, &repair, on, bytes),
                Err(error) => {
                    self.core.fail(error);
                    return;
                }
            }
        }
    }

    /// Builds the chain that sends a part again over a rail in `self.chain`. Returns its bytes; `None` if nobody needs
    /// it any more.
    fn build_repair(&mut self, repair: &Repair, on: RailId) -> Result<Option<u64>, Error> {
        let Some(posted) = self.progress.requests.sources(repair.sequence) else {
            return Ok(None);
        };
        let slot = repair.sequence.slot();
        let Some(entries) = self.cts.entries_of(slot, posted.sources.len()) else {
            return Err(CtsViolation::Gone { slot }.into());
        };
        let most = u64::from(self.core.rails.get(on).rail.max_write());
        // A write that is refused is named by its id.
        let id = WorkKind::Repair { sequence: repair.sequence, part: repair.part }.id();
        self.chain.clear();
        let mut total = 0;
        for (buffer, (source, entry)) in posted.sources.iter().zip(&entries).enumerate() {
            let given = |rail| posted.is_given.then(|| self.progress.meter.given_to(repair.sequence, rail));
            let (sequence, mask) = (repair.sequence, posted.mask);
            let (mut offset, mut left) = self.shares.part(sequence, buffer, source, mask, repair.part, given);
            // A message that is longer than its receive was cut before it was split.
            left = left.min(source.size.saturating_sub(offset));
            total += left;
            while left > 0 {
                let length = left.min(most);
                let address = source.address.wrapping_add(offset);
                self.chain.push(Write {
                    local: LocalSlice { address, length: length as u32, key: source.keys[on] },
                    remote: RemoteSlice { address: entry.address.wrapping_add(offset), key: entry.keys[on] },
                    id,
                    ..Write::default()
                });
                offset += length;
                left -= length;
            }
        }
        let carries_record = posted.in_record && posted.mask.first() == Some(repair.part);
        if carries_record || self.chain.is_empty() {
            self.chain.push(Write::default());
        }
        let last = self.chain.last_mut().expect("a write was pushed");
        if carries_record {
            let at = record::offset(slot) as u64;
            let (address, length) = (self.records.region.address() + at, record::RECORD_BYTES as u32);
            last.local = LocalSlice { address, length, key: self.record_keys[on] };
            last.remote = RemoteSlice { address: self.peer_records.wrapping_add(at), key: self.peer_record_keys[on] };
            last.host = true;
        }
        let size_q = repair.part.index() as u32;
        last.immediate = Some(self.layout.encode(Immediate { slot, mask: RailSet::EMPTY, size_q }));
        last.signalled = true;
        last.id = id;
        Ok(Some(total))
    }

    /// Posts the chain that was built for a repair, if there is room.
    fn post_repair(&mut self, place: usize, repair: &Repair, on: RailId, bytes: u64) {
        let connected = self.core.rails.get_mut(on);
        let lane = lane_of(repair.sequence, connected.lanes);
        if (connected.rail.send_room(lane) as usize) < self.chain.len() {
            return;
        }
        connected.side.info.counters.count_data(self.chain.len() as u64, bytes);
        self.recovery.rails[repair.part].repaired += bytes;
        self.progress.repairs.note_posted(place, on);
        let posted = connected.rail.post(lane, &self.chain);
        self.core.rails.count_repaired(repair.part);
        if let Err(error) = posted {
            // The connection keeps an error.
            let _ = self.core.post_failed(on, error, &mut self.progress);
        }
    }
}
