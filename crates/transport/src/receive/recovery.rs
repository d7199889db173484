//! The recovery of rails at the receiving end: it ends its lanes, says what they have brought, and opens new ones.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use railweave_fabric::{Fabric, Joining, LaneEndpoint, LaneId, MAX_RAILS, PendingRail, Rail, RailId, RailSet, Write};

use super::RecvConnection;
use super::rail_stages::Stage;
use super::read_back::Places;
use crate::connection::Outstanding;
use crate::handshake::LaneRefused;
use crate::message::{Incarnation, Listed, RailMessage, RailNews, Seen};
use crate::rails::{ConnectedRail, TakenRail};
use crate::recovery::{Attempt, Fence, Fenced, GivenUp, Made, NewLanes, RecoveryAction, Unmade};
use crate::sequence::Sequence;
use crate::slots::{Judged, State};
use crate::violation::RailFault;
use crate::work::WorkKind;
use crate::{Dial, Event, Incoming, SLOTS};

impl<F: Fabric> RecvConnection<F> {
    /// Does what is due: ends the lanes of rails that were given up, and writes CTS again.
    pub(super) fn recover_now(&mut self, now_ns: u64) {
        while let Some((rail, why)) = self.core.take_given_up() {
            self.begin_fence(rail, why, now_ns);
        }
        while let Some((_, rail)) = self.recovery.late().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.recovery.give_up_new(rail);
            let reason = "its sockets have not come in 1.5 s, and a port may have another address now";
            self.note_failed(rail, reason.to_owned(), now_ns);
        }
        self.repeat_cts();
        self.check_outage(now_ns);
    }

    fn check_outage(&mut self, now_ns: u64) {
        // A receive that stays open shows nothing: the sender may have nothing to send, or else ends the connection.
        self.core.check_outage(&mut self.inbox, None, now_ns);
    }

    /// Returns the time at which there is something to do.
    pub(super) fn recovery_next_ns(&self) -> Option<u64> {
        let repeats = self.recovery.repeats_cts && !self.core.postable().is_empty();
        let due = (repeats || self.core.has_given_up()).then_some(0);
        let late = self.recovery.late().map(|(at_ns, _)| at_ns);
        due.into_iter().chain(late).chain(self.core.outage_ns()).min()
    }

    fn begin_fence(&mut self, rail: RailId, why: GivenUp, now_ns: u64) {
        let name = self.core.rails.name(rail);
        let Places { places: flushes, is_sure, is_blind } = self.placed_by(rail);
        let Some(taken) = self.core.rails.take(rail) else {
            return;
        };
        if !is_sure {
            self.recovery.holds_receives.insert(rail);
            self.core.fast.close();
        }
        self.inbox.owing.remove(rail);
        self.inbox.holds.handle_given_up(rail);
        self.inbox.checked.remove(rail);
        self.inbox.flushes.begin_fence(rail, is_blind);
        self.recovery.repeats_cts = true;
        let one = &mut self.recovery.rails[rail];
        one.stage = Stage::Fencing;
        // Otherwise it has not been back since it was last said to be down.
        let was_in_use = std::mem::take(&mut one.is_in_use);
        if was_in_use {
            let was_useless = matches!(why, GivenUp::Silent(_)) && self.core.has_fallen_again(rail);
            one.pauses.went_down(was_useless, now_ns);
        }
        if one.question.is_none() {
            self.recovery.say(rail, RailMessage::Suspect);
        }
        if was_in_use {
            self.core.note_down(rail, format!("{name}: {why}"));
            let (left, is_gone) = (self.core.rails.usable(), self.core.is_gone(rail));
            self.recovery.actions.push_back(RecoveryAction::Event(Event::RailDown { rail, name, why, left, is_gone }));
        }
        self.recovery.work(Fence::new(rail, taken, flushes));
    }

    /// Handles work on a rail that is done.
    pub(super) fn take_work(&mut self, work: Box<dyn Any + Send>, now_ns: u64) {
        match work.downcast::<Fence<F>>() {
            Ok(fence) => {
                let (rail, mut fenced) = fence.into_fenced();
                fenced.remains.take().into_iter().for_each(|remains| self.recovery.free(remains));
                self.take_fenced(rail, fenced);
            }
            Err(work) => {
                if let Ok(lanes) = work.downcast::<NewLanes<F>>() {
                    let (rail, made) = lanes.into_made();
                    self.take_made(rail, made, now_ns);
                }
            }
        }
        self.repeat_cts();
    }

    fn take_fenced(&mut self, rail: RailId, mut fenced: Fenced) {
        let Some(down) = self.core.rails.down_mut(rail) else {
            return;
        };
        fenced.replay(&mut self.inbox.reports::<F>(&mut down.side));
        if self.core.check_open().is_err() {
            return;
        }
        if !fenced.is_over {
            return self.core.fail_unended(rail, &mut self.inbox);
        }
        if let Some(fatal) = self.inbox.fatal.take() {
            return self.core.fail_by(rail, *fatal);
        }
        self.inbox.owing.remove(rail);
        self.inbox.checked.remove(rail);
        self.recovery.holds_receives.remove(rail);
        self.inbox.flushes.handle_fenced(rail, fenced.is_visible);
        if fenced.is_visible {
            self.inbox.slots.show(rail);
        } else {
            self.inbox.slots.hide(rail);
        }
        let one = &mut self.recovery.rails[rail];
        one.stage = Stage::Fenced;
        if let Some(question) = one.question.take() {
            self.answer(rail, &question);
        }
    }

    /// Says what has come of the parts that the sender asks about. Nothing of this incarnation can come any more.
    fn answer(&mut self, rail: RailId, question: &[Listed]) {
        self.recovery.rails[rail].stage = Stage::Answered;
        // The sender's lanes are gone, so no CTS can land over them.
        self.inbox.holds.handle_down(rail);
        let mut seen = Vec::new();
        for listed in question {
            match self.judge(rail, listed) {
                Ok(_) if listed.unsure.is_empty() => {}
                Ok(parts) => seen.push(Seen { sequence: listed.sequence, parts }),
                Err(fault) => return self.core.fail_by_peer(rail, fault),
            }
        }
        if self.core.check_open().is_ok() {
            self.recovery.say_state(rail, seen);
        }
        self.note_called();
    }

    /// Returns the parts of a receive that have come. Notes that the others will be sent again.
    fn judge(&mut self, rail: RailId, listed: &Listed) -> Result<RailSet, RailFault> {
        let sequence = Sequence::new(listed.sequence);
        let age = self.head.since(sequence);
        if age == 0 || age > 1 << 31 {
            return Err(RailFault::NeverPosted { sequence: listed.sequence });
        }
        let slot = sequence.slot();
        let state = self.inbox.slots.get(slot).state;
        // A slot that was used again, or is complete, had everything.
        if age > SLOTS as u32 || matches!(state, State::Free | State::Complete) {
            return Ok(RailSet::ALL);
        }
        // An application deregisters the buffer of an early receive only once it has all of its data.
        let is_taken = state == State::Early && (listed.is_refused || self.is_taken_again(sequence));
        let judged = self.inbox.slots.judge(slot, rail, listed, is_taken)?;
        match judged {
            // Over sockets this process itself says what has come: only GPU memory may be without it since.
            Judged::Lost if !F::ONE_SIDED && !self.inbox.slots.get(slot).flushable => {
                Err(RailFault::NotPlaced { sequence: listed.sequence, placed: listed.placed.bits() })
            }
            Judged::Lost => {
                self.core.fail_unrepairable(rail, &mut self.inbox);
                Ok(RailSet::EMPTY)
            }
            Judged::Seen { parts, is_last } => {
                if is_last {
                    self.inbox.credits.handle_completed();
                }
                Ok(parts)
            }
        }
    }

    /// Returns true if a later receive has a buffer of an early one: the application has the early one's data.
    fn is_taken_again(&self, sequence: Sequence) -> bool {
        let slots = &self.inbox.slots;
        let buffers = |sequence: Sequence| {
            let receive = slots.get(sequence.slot());
            self.cts.entries(receive.first_entry, receive.count).map(|entry| (entry.address, entry.size))
        };
        let later = (1..self.head.since(sequence)).map(|count| self.head.before(count));
        later.into_iter().flat_map(buffers).any(|later| buffers(sequence).any(|early| overlap(later, early)))
    }

    /// Returns true if a receive of these buffers has to wait: a part of an early receive is on its way to one of them
    /// again.
    pub(super) fn is_awaited_there(&self, buffers: &[Incoming<'_>]) -> bool {
        let slots = &self.inbox.slots;
        slots.called_early().any(|slot| {
            let receive = slots.get(slot);
            let early = || self.cts.entries(receive.first_entry, receive.count);
            buffers
                .iter()
                .any(|buffer| early().any(|entry| overlap((buffer.address, buffer.size), (entry.address, entry.size))))
        })
    }

    /// Returns true if no receive into these buffers may be posted: a fence runs that may be unable to make visible
    /// what comes into GPU memory meanwhile.
    pub(super) fn holds_receives(&self, buffers: &[Incoming<'_>]) -> bool {
        !self.recovery.holds_receives.is_empty() && buffers.iter().any(|buffer| !buffer.keys.host)
    }

    /// Keeps receives off the fast path while none may be posted, or parts of early ones are on their way again.
    pub(super) fn note_called(&mut self) {
        if !self.recovery.holds_receives.is_empty() || self.inbox.slots.called_early().next().is_some() {
            self.core.fast.close();
        } else {
            self.core.fast.open();
        }
    }

    /// Handles lanes as far as they were made.
    fn take_made(&mut self, rail: RailId, made: Made<F>, now_ns: u64) {
        // The device may have failed for good meanwhile: it completes nothing, and nothing else tells.
        let is_gone = self.core.is_gone(rail);
        let one = &mut self.recovery.rails[rail];
        match (std::mem::replace(&mut one.stage, Stage::Up), made) {
            // The sender has given them up meanwhile.
            (Stage::Opening, made) if one.question.is_some() => {
                let question = one.question.take().unwrap_or_default();
                one.stage = Stage::Fenced;
                match made {
                    Made::Ready(lanes, _) | Made::Failed(Unmade { rail: Some(lanes), .. }) => {
                        self.recovery.rails[rail].question = Some(question);
                        self.discard(rail, lanes);
                    }
                    Made::Open(_) | Made::Failed(_) => self.answer(rail, &question),
                }
            }
            (Stage::Opening, Made::Ready(lanes, _)) if is_gone => {
                self.recovery.give_up_new(rail);
                self.discard(rail, lanes);
            }
            (Stage::Opening, Made::Ready(lanes, endpoints)) => {
                let token = self.recovery.token;
                self.recovery.say(rail, RailMessage::Lanes { token, endpoints });
                self.install(rail, lanes);
            }
            (Stage::Opening, Made::Open(pending)) => {
                let address = match F::JOINING {
                    Joining::BySockets { address, .. } => address(&pending),
                    Joining::ByExchange { .. } => None,
                };
                one.stage = Stage::Awaiting(pending);
                let token = self.recovery.token;
                let lanes = self.core.rails.down_mut(rail).map_or(1, |down| usize::from(down.lanes));
                self.recovery.actions.push_back(RecoveryAction::Await(token));
                let endpoints = vec![LaneEndpoint::of_port(address); lanes];
                self.recovery.say(rail, RailMessage::Lanes { token, endpoints });
            }
            (Stage::Opening, Made::Failed(Unmade { reason, rail: lanes })) => {
                self.recovery.give_up_new(rail);
                lanes.into_iter().for_each(|lanes| self.discard(rail, lanes));
                self.note_failed(rail, reason, now_ns);
            }
            (stage, _) => one.stage = stage,
        }
    }

    /// Notes why new lanes do not come up.
    fn note_failed(&mut self, rail: RailId, reason: String, now_ns: u64) {
        let told = self.core.note_failed(rail, reason, &mut self.recovery.rails[rail].pauses, now_ns);
        self.recovery.actions.extend(told);
    }

    /// Ends new lanes that carry nothing yet.
    fn discard(&mut self, rail: RailId, lanes: F::Rail) {
        self.recovery.rails[rail].stage = Stage::Fencing;
        let registrations = self.core.rails.down_mut(rail).map(|down| down.registrations()).unwrap_or_default();
        self.recovery.work(Fence::<F>::of_unused(rail, TakenRail { rail: lanes, registrations }));
    }

    /// Handles a step of the peer.
    ///
    /// # Errors
    /// If the peer breaks the protocol.
    pub(super) fn take_news(&mut self, news: RailNews, now_ns: u64) -> Result<(), RailFault> {
        let RailNews { rail, incarnation, message } = news;
        if !self.core.rails.has(rail) {
            return Err(RailFault::Unknown);
        }
        let current = self.recovery.rails[rail].incarnation;
        if let RailMessage::Offer(peer) = message {
            return self.take_offer(rail, incarnation, peer, now_ns);
        }
        if current.is_before(incarnation) {
            return Err(RailFault::Unknown);
        }
        match message {
            _ if incarnation != current => Ok(()),
            RailMessage::Down(question) => self.take_down(rail, question, now_ns),
            RailMessage::Up => self.take_up(rail, now_ns),
            _ => Err(RailFault::OutOfTurn),
        }
    }

    /// The sender's lanes of a rail are gone.
    fn take_down(&mut self, rail: RailId, question: Vec<Listed>, now_ns: u64) -> Result<(), RailFault> {
        let one = &mut self.recovery.rails[rail];
        match std::mem::replace(&mut one.stage, Stage::Up) {
            Stage::Up => {
                one.question = Some(question);
                self.core.give_up(rail, GivenUp::Peer);
                self.recover_now(now_ns);
            }
            Stage::Fenced => self.answer(rail, &question),
            Stage::Awaiting(pending) => {
                // Sockets: closing them is their end.
                drop(pending);
                self.answer(rail, &question);
            }
            stage @ (Stage::Fencing | Stage::Opening) if one.question.is_none() => {
                one.stage = stage;
                one.question = Some(question);
            }
            stage => {
                one.stage = stage;
                return Err(RailFault::OutOfTurn);
            }
        }
        Ok(())
    }

    /// The sender offers new lanes.
    fn take_offer(
        &mut self,
        rail: RailId,
        incarnation: Incarnation,
        peer: Vec<LaneEndpoint>,
        now_ns: u64,
    ) -> Result<(), RailFault> {
        let one = &mut self.recovery.rails[rail];
        if !matches!(one.stage, Stage::Answered) || incarnation != one.incarnation.next() {
            return Err(RailFault::OutOfTurn);
        }
        if !one.pauses.may_be_offered(now_ns) {
            return Err(RailFault::Hasty);
        }
        let Some((lanes, remake, receives)) = self.core.rails.down_mut(rail).map(|down| {
            down.side.receives.posted = 0;
            (down.lanes, Arc::clone(&down.remake), down.side.receives.depth)
        }) else {
            return Err(RailFault::OutOfTurn);
        };
        if peer.len() != usize::from(lanes) {
            return Err(RailFault::WrongLanes { lanes: peer.len(), agreed: lanes });
        }
        (one.incarnation, one.stage) = (incarnation, Stage::Opening);
        one.pauses.begin(now_ns);
        one.is_hurried = false;
        if self.core.is_gone(rail) {
            self.recovery.give_up_new(rail);
            return Ok(());
        }
        let attempt = Attempt { rail, timeout_ns: one.pauses.attempt_ns() };
        self.recovery.work(NewLanes::answer(attempt, &remake, peer, receives));
        Ok(())
    }

    /// The sender's new lanes are connected.
    fn take_up(&mut self, rail: RailId, now_ns: u64) -> Result<(), RailFault> {
        let one = &mut self.recovery.rails[rail];
        match &one.stage {
            Stage::Up if self.core.end_quiet(rail) => {
                let after_ns = one.pauses.came_up(now_ns);
                one.is_in_use = true;
                let name = self.core.rails.name(rail);
                let event = Event::RailUp { rail, name, after_ns, repaired: None };
                self.recovery.actions.push_back(RecoveryAction::Event(event));
                self.repeat_cts();
                self.check_outage(now_ns);
            }
            // The news that its sockets are here is late, or some are not.
            Stage::Awaiting(_) => {
                one.stage = Stage::Fenced;
                self.recovery.give_up_new(rail);
            }
            // The sender said it before it heard that this end has given the lanes up.
            Stage::Up if self.core.has_given_up() => {}
            Stage::Fenced | Stage::Fencing => {}
            _ => return Err(RailFault::OutOfTurn),
        }
        Ok(())
    }

    /// Uses new lanes: the sender may as soon as it has connected its own, and its RAIL_UP may come later than its
    /// data.
    fn install(&mut self, rail: RailId, lanes: F::Rail) {
        let Some(connected) = self.core.rails.put(rail, lanes) else {
            return;
        };
        let receives = &mut connected.side.receives;
        if F::JOINING.may_block() {
            receives.posted = receives.depth;
        } else {
            receives.posted = connected.rail.post_receives(receives.depth).unwrap_or(0);
        }
        self.recovery.rails[rail].stage = Stage::Up;
        self.core.use_again(rail, true);
        // The fast path would post over it.
        self.allowed = self.ordered & self.core.postable();
    }

    /// Returns the function that hands a socket over to a lane of a rail that is being brought up again.
    ///
    /// # Errors
    /// If no such lane waits for a socket.
    fn awaited(&mut self, rail: u8, lane: u8) -> Result<(RailId, &mut F::PendingRail), LaneRefused> {
        let none = LaneRefused::NotAwaited(rail);
        let Some(id) = RailId::new(rail.into()).filter(|id| id.index() < MAX_RAILS) else {
            return Err(none);
        };
        let (Joining::BySockets { awaits, .. }, Some(lanes)) =
            (F::JOINING, self.core.rails.down_mut(id).map(|down| down.lanes))
        else {
            return Err(none);
        };
        match &mut self.recovery.rails[id].stage {
            Stage::Awaiting(_) if lane >= lanes => Err(LaneRefused::NoSuchLane { rail, lanes }),
            Stage::Awaiting(pending) if !awaits(pending, LaneId(lane)) => Err(LaneRefused::HasSocket),
            Stage::Awaiting(pending) => Ok((id, pending)),
            _ => Err(none),
        }
    }

    /// Checks that a lane waits for the socket that the peer dials.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn check_lane(&mut self, rail: u8, lane: u8) -> Result<(), LaneRefused> {
        self.awaited(rail, lane).map(drop)
    }

    /// Takes the socket of a lane that the peer dialled.
    ///
    /// # Errors
    /// If no such lane waits for a socket, or this one is unusable.
    pub(super) fn take_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), LaneRefused> {
        let (id, pending) = self.awaited(rail, lane)?;
        let Joining::BySockets { attach, .. } = F::JOINING else {
            return Err(LaneRefused::NotAwaited(rail));
        };
        attach(pending, LaneId(lane), socket)?;
        let is_ready = pending.is_ready();
        // The path works.
        self.recovery.rails[id].is_hurried = false;
        if is_ready
            && let Stage::Awaiting(pending) = std::mem::replace(&mut self.recovery.rails[id].stage, Stage::Fenced)
        {
            match pending.into_rail() {
                Ok(lanes) if self.core.is_gone(id) => {
                    self.recovery.give_up_new(id);
                    self.discard(id, lanes);
                }
                Ok(lanes) => self.install(id, lanes),
                Err(_) => self.recovery.give_up_new(id),
            }
        }
        Ok(())
    }

    /// The sender dials.
    #[expect(clippy::unused_self, reason = "the sending end has the same method")]
    pub(super) fn take_dialled(&self, _dial: &Dial, _socket: Result<OwnedFd, String>, _now_ns: u64) {}

    /// Has rails opened again soon: something says that their paths may be back.
    pub(super) fn hurry(&mut self, now_ns: u64) {
        RailId::all().filter(|rail| !self.core.is_gone(*rail)).for_each(|rail| self.recovery.hurry(rail));
        self.recover_now(now_ns);
    }

    /// Writes the CTS entries of all receives that are not complete again over a usable rail, if a rail was given up
    /// that may have lost some.
    fn repeat_cts(&mut self) {
        // CTS on their way over a rail that was given up just now count only once its fence has begun.
        if self.core.has_given_up() {
            return;
        }
        let usable = self.core.postable();
        let Some(on) = usable.first().filter(|_| self.recovery.repeats_cts) else {
            return;
        };
        let Some(oldest) = self.oldest_open_entry() else {
            self.recovery.repeats_cts = false;
            return;
        };
        let ConnectedRail { rail: lanes, cts, .. } = self.core.rails.get(on);
        let number = self.inbox.holds.next_number();
        let id = WorkKind::Hold(number).id();
        let writes = self.cts.repeat(oldest, lanes.max_write(), cts, id);
        // Each of the other rails may hold copies of the same entries that have not landed yet.
        let others = usable.without(on);
        let room = |rail: RailId| self.core.rails.get(rail).rail.send_room(LaneId::FIRST) as usize;
        if room(on) <= writes.len() || others.iter().any(|rail| room(rail) < 2) {
            return;
        }
        self.recovery.repeats_cts = false;
        let down = RailId::all().filter(|rail| !self.is_settled(*rail)).collect();
        self.inbox.holds.add(number, oldest, usable, down);
        self.cap_limit();
        self.core.rails.get(on).side.info.counters.count_cts();
        self.inbox.may_owe::<F>(usable);
        let behind = Write { signalled: true, host: true, id, ..Write::default() };
        let chains = [(on, writes)].into_iter().chain(others.iter().map(|rail| (rail, vec![behind])));
        for (rail, chain) in chains {
            if let Err(error) = self.core.rails.get_mut(rail).rail.post(LaneId::FIRST, &chain) {
                // The connection keeps an error. A rail that is given up here repeats them again.
                let _ = self.core.post_failed(rail, error, &mut self.inbox);
            }
        }
    }

    /// Returns true if no CTS can be on its way over a rail's earlier lanes: the sender has said that its own are gone,
    /// or it never had others.
    fn is_settled(&self, rail: RailId) -> bool {
        let one = &self.recovery.rails[rail];
        one.question.is_some() || !matches!(one.stage, Stage::Fencing | Stage::Fenced)
    }

    /// Returns the first CTS entry of the oldest receive that is not complete.
    fn oldest_open_entry(&self) -> Option<u64> {
        let slots = &self.inbox.slots;
        let open = (1..=SLOTS as u32).rev().map(|count| slots.get(self.head.before(count).slot()));
        open.into_iter().find(|receive| matches!(receive.state, State::Open | State::Early)).map(|r| r.first_entry)
    }

    /// Keeps the ring from overwriting entries of which copies may still land.
    pub(super) fn cap_limit(&mut self) {
        if let Some(oldest) = self.inbox.holds.oldest() {
            self.entry_limit = self.entry_limit.min(oldest + crate::cts::ENTRIES);
        }
    }
}

/// Returns true if two buffers, each an address and a size, have a byte in common.
fn overlap((first, first_size): (u64, u64), (second, second_size): (u64, u64)) -> bool {
    first < second.saturating_add(second_size) && second < first.saturating_add(first_size)
}
