//! The receiving application: it calls `irecv`, `test` and `iflush` as NCCL's progress thread does.

use std::rc::Rc;

use railweave_fabric::Fault;
use railweave_transport::{Cause, Error, Flushed, Incoming, MemoryKeys, RailInfo, RecvRequest, SLOTS};

use super::comm::RecvComm;
use super::context::{Context, Insisted, Step};
use super::memory::{Buffer, Memory};
use super::plan::{ConnectionPlan, GroupPlan, Trespass};
use crate::history::Kind;
use crate::watch::{Buffer as Watched, Connection, Strike, check_code};
use crate::witness::Note;
use crate::{Checker, Seen};

/// The number of entries in the ring of CTS entries (docs/wire.md).
const ENTRIES: usize = 512;

/// The most flushes in progress: NCCL has no more requests.
const FLUSHES: usize = 32;

/// A receive that is in progress, or was reported done early.
struct Receiving {
    request: RecvRequest,
    group: usize,
    buffers: Vec<Buffer>,
    /// The time before which it is not tested.
    not_before_ns: u64,
}

/// A receive whose flush is in progress.
struct Flushing {
    request: RecvRequest,
    /// The receive that needs the flush, if one does.
    group: Option<usize>,
    buffers: Vec<Buffer>,
}

/// The application at the receiving end of a connection.
pub(crate) struct RecvApp<const ONE_SIDED: bool> {
    /// The next receive to post.
    next: usize,
    prepared: Option<Vec<Buffer>>,
    receiving: Vec<Receiving>,
    early: Vec<Receiving>,
    flushing: Vec<Flushing>,
    /// Buffers that stay registered, and are not used again.
    kept: Vec<Buffer>,
    memory: Memory<ONE_SIDED>,
    rails: Vec<RailInfo>,
    /// The number of receives.
    groups: usize,
    /// The first receive of the leak probe.
    probe_from: usize,
    /// The number of receives that are done.
    done: u64,
    last_done: Option<RecvRequest>,
    /// True while a call for a flush is made, and once one has failed.
    is_flushing: bool,
    trespass: Option<(Trespass, u64)>,
}

impl<const ONE_SIDED: bool> RecvApp<ONE_SIDED> {
    pub(crate) fn new(plan: &ConnectionPlan, memory: Memory<ONE_SIDED>, rails: Vec<RailInfo>) -> Self {
        Self {
            next: 0,
            prepared: None,
            receiving: Vec::new(),
            early: Vec::new(),
            flushing: Vec::new(),
            kept: Vec::new(),
            memory,
            rails,
            groups: plan.groups.len(),
            probe_from: plan.groups.len() - plan.probe,
            done: 0,
            last_done: None,
            is_flushing: false,
            trespass: plan.trespass.filter(|(what, _)| !what.by_sender()),
        }
    }

    /// Returns true once everything is received.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.groups && self.is_empty()
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.next > self.probe_from || self.next == self.probe_from && self.probe_from < self.groups && self.is_empty()
    }

    /// Returns true if it has receives that are not posted, or whose messages have not arrived whole.
    pub(crate) fn needs_peer(&self, watched: &Connection) -> bool {
        self.next < self.groups
            || !self.receiving.iter().chain(&self.early).all(|receive| watched.is_over(receive.group))
    }

    /// Returns true if the call that failed was for a flush.
    pub(crate) fn has_failed_to_flush(&self) -> bool {
        self.is_flushing
    }

    /// Describes what it waits for, for a checker's message.
    pub(crate) fn waits_for(&self) -> String {
        format!(
            "{} receives to post, {} to complete, {} early, {} to flush",
            self.groups - self.next,
            self.receiving.len(),
            self.early.len(),
            self.flushing.len()
        )
    }

    /// Returns true if it makes no calls, but only looks in memory for the data of receives that were reported early.
    pub(crate) fn only_looks(&self) -> bool {
        self.receiving.is_empty() && self.flushing.is_empty() && !self.early.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.receiving.is_empty() && self.early.is_empty() && self.flushing.is_empty()
    }

    pub(crate) fn step(
        &mut self,
        connection: &Rc<RecvComm<ONE_SIDED>>,
        context: &mut Context<'_>,
    ) -> Result<Step, Error> {
        let mut moved = self.trespass(connection, context)?;
        for _ in 0..context.chance.between(1, 6) {
            match self.irecv(connection, context)? {
                None | Some(Step::Idle) => break,
                Some(Step::Moved) => moved = true,
                Some(Step::Killed) => return Ok(Step::Killed),
            }
        }
        let posting_probe = self.next > self.probe_from && self.next < self.groups;
        let tests = if posting_probe { 0 } else { context.chance.between(0, 6).min(self.receiving.len() as u64) };
        for _ in 0..tests {
            let which = context.choose(false, self.receiving.iter().map(|receiving| receiving.group as u64));
            if self.receiving[which].not_before_ns > context.now_ns() {
                continue;
            }
            let result = connection.test(self.receiving[which].request);
            if context.called() {
                return Ok(Step::Killed);
            }
            if let Some(sizes) = result? {
                let received = self.receiving.swap_remove(which);
                if self.receiving.is_empty() && self.early.is_empty() {
                    self.check_last(context);
                }
                if self.finish(received, &sizes, connection, context)? == Step::Killed {
                    return Ok(Step::Killed);
                }
                moved = true;
            }
        }
        match self.test_flushes(connection, context)? {
            Step::Killed => return Ok(Step::Killed),
            step => moved |= step == Step::Moved,
        }
        moved |= self.look_at_early(context);
        Ok(if moved { Step::Moved } else { Step::Idle })
    }

    /// Checks that nothing is owed once the last receive is done, because there may be no later call that would send
    /// it.
    fn check_last(&self, context: &Context<'_>) {
        let mut state = context.world.lock();
        if let Some(since_ns) = state.owes_since_ns(context.connection) {
            let now_ns = state.now_ns;
            // The fence of a rail that has been given up sends what it owed, or forgets it.
            if state.observer.watch.connections[context.connection].blame.has_dead_rail(now_ns) {
                return;
            }
            let text = format!("{}: the last receive is done, but its debt dates from {since_ns} ns", context.who);
            state.observer.watch.violate(now_ns, Checker::Promise, text);
        }
    }

    fn irecv(
        &mut self,
        connection: &Rc<RecvComm<ONE_SIDED>>,
        context: &mut Context<'_>,
    ) -> Result<Option<Step>, Error> {
        let group = self.next;
        let Some(planned) = context.plan.groups.get(group) else { return Ok(None) };
        let probe = group >= self.probe_from;
        let full = self.receiving.len() + self.early.len() >= context.plan.window;
        if !probe && full || (probe && group == self.probe_from && !self.is_empty()) {
            return Ok(None);
        }
        let mut buffers = self
            .prepared
            .take()
            .unwrap_or_else(|| planned.buffers.iter().map(|(_, capacity)| self.memory.take(*capacity)).collect());
        let mut keys: Vec<MemoryKeys> = buffers.iter().map(|buffer| buffer.keys(&self.rails)).collect();
        let is_unregistered = matches!(self.trespass, Some((Trespass::TargetKeys, at)) if self.done >= at);
        if is_unregistered {
            keys.iter_mut().for_each(|keys| keys.remote = keys.local);
            context.trespassed("irecv into memory that is not registered", Strike::NoTarget, &[true, false]);
        }
        let incoming: Vec<Incoming<'_>> = planned
            .buffers
            .iter()
            .zip(&buffers)
            .zip(&keys)
            .map(|(((tag, size), buffer), keys)| Incoming { address: buffer.address(), size: *size, tag: *tag, keys })
            .collect();
        let result = connection.irecv(&incoming, planned.hinted);
        let killed = context.called();
        let request = match result {
            Ok(Some(request)) => request,
            Ok(None) => {
                let open = self.receiving.iter().chain(&self.early);
                let entries: usize = open.map(|receive| receive.buffers.len()).sum();
                let reason = if self.receiving.len() + self.early.len() >= SLOTS {
                    Seen::NoSlot
                } else if entries + buffers.len() > ENTRIES {
                    Seen::NoEntry
                } else {
                    Seen::NoReceives
                };
                context.world.lock().saw(reason);
                self.prepared = Some(buffers);
                return Ok(Some(if killed { Step::Killed } else { Step::Idle }));
            }
            Err(error) => return if killed { Ok(Some(Step::Killed)) } else { Err(error) },
        };
        if is_unregistered {
            self.trespass = None;
        }
        let watched = incoming.iter().map(|buffer| Watched::new(buffer.address, buffer.size, buffer.tag)).collect();
        let mut state = context.world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.promised(now_ns, context.connection, incoming.len());
        let number = state.observer.watch.irecv(context.connection, watched, planned.hinted && ONE_SIDED);
        debug_assert_eq!(number, group, "every receive is watched");
        let first = incoming[0].address;
        state.record(Kind::Irecv, context.who, [group as u64, incoming.len() as u64, first, 0]);
        if keys.iter().any(|keys| keys.host) && keys.iter().any(|keys| !keys.host) {
            state.saw(Seen::MixedGroup);
        }
        drop(state);
        if planned.hinted && ONE_SIDED {
            buffers.iter_mut().for_each(Buffer::keep_private);
        }
        let slow = if context.chance.permille(50) { context.chance.below(100_000) } else { 0 };
        self.receiving.push(Receiving { request, group, buffers, not_before_ns: now_ns + slow });
        self.next += 1;
        Ok(Some(if killed { Step::Killed } else { Step::Moved }))
    }

    /// Handles a receive that was reported as done.
    fn finish(
        &mut self,
        received: Receiving,
        sizes: &[u64],
        connection: &Rc<RecvComm<ONE_SIDED>>,
        context: &mut Context<'_>,
    ) -> Result<Step, Error> {
        self.last_done = Some(received.request);
        self.done += 1;
        let mut state = context.world.lock();
        let now_ns = state.now_ns;
        if state.observer.watch.recv_done(now_ns, context.connection, received.group, sizes) {
            state.saw(Seen::EarlyDone);
            state.record(Kind::Early, context.who, [received.group as u64, 0, 0, 0]);
            drop(state);
            self.early.push(received);
            return Ok(Step::Moved);
        }
        let planned = &context.plan.groups[received.group];
        if planned.hinted && ONE_SIDED {
            state.saw(Seen::HintedDone);
        }
        let first = sizes.first().copied().unwrap_or(0);
        state.record(Kind::RecvDone, context.who, [received.group as u64, first, 0, 0]);
        drop(state);
        // NCCL does not flush every receive, and never one with an optional completion.
        if !planned.flush || planned.hinted || self.flushing.len() >= FLUSHES {
            self.release(received.group, received.buffers, context);
            return Ok(Step::Moved);
        }
        self.flush(planned, received.group, received.buffers, sizes, connection, context)
    }

    fn flush(
        &mut self,
        planned: &GroupPlan,
        group: usize,
        buffers: Vec<Buffer>,
        sizes: &[u64],
        connection: &Rc<RecvComm<ONE_SIDED>>,
        context: &mut Context<'_>,
    ) -> Result<Step, Error> {
        let keys: Vec<MemoryKeys> = buffers.iter().map(|buffer| buffer.keys(&self.rails)).collect();
        let written: Vec<Incoming<'_>> = (0..buffers.len().min(sizes.len()))
            .map(|n| Incoming {
                address: buffers[n].address(),
                size: sizes[n],
                tag: planned.buffers[n].0,
                keys: &keys[n],
            })
            .collect();
        self.is_flushing = true;
        let flushed = connection.iflush(&written);
        if context.called() {
            return Ok(Step::Killed);
        }
        let flushed = flushed?;
        self.is_flushing = false;
        let mut state = context.world.lock();
        let pending = matches!(flushed, Flushed::Pending(_));
        state.record(Kind::Iflush, context.who, [group as u64, u64::from(pending), 0, 0]);
        state.saw(if pending { Seen::FlushPending } else { Seen::FlushNothing });
        let now_ns = state.now_ns;
        match flushed {
            Flushed::Nothing => {
                state.observer.watch.look(now_ns, context.connection, group);
                drop(state);
                self.release(group, buffers, context);
            }
            Flushed::Pending(request) => {
                drop(state);
                self.flushing.push(Flushing { request, group: Some(group), buffers });
            }
        }
        Ok(Step::Moved)
    }

    fn test_flushes(&mut self, connection: &Rc<RecvComm<ONE_SIDED>>, context: &mut Context<'_>) -> Result<Step, Error> {
        let mut step = Step::Idle;
        let mut index = 0;
        while index < self.flushing.len() {
            self.is_flushing = true;
            let tested = connection.test(self.flushing[index].request);
            if context.called() {
                return Ok(Step::Killed);
            }
            let is_done = tested?.is_some();
            self.is_flushing = false;
            if !is_done {
                index += 1;
                continue;
            }
            step = Step::Moved;
            let Flushing { group, buffers, .. } = self.flushing.swap_remove(index);
            let Some(group) = group else { continue };
            let mut state = context.world.lock();
            let now_ns = state.now_ns;
            state.record(Kind::FlushDone, context.who, [group as u64, 0, 0, 0]);
            state.observer.watch.look(now_ns, context.connection, group);
            drop(state);
            self.release(group, buffers, context);
        }
        Ok(step)
    }

    /// Looks at the receives that were reported early: the application sees from the data whether they have landed.
    /// Returns true if one has.
    fn look_at_early(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        let mut index = 0;
        while index < self.early.len() {
            let group = self.early[index].group;
            let mut state = context.world.lock();
            if !state.observer.watch.group_is_whole(context.connection, group) {
                index += 1;
                continue;
            }
            state.observer.watch.close_group(context.connection, group);
            drop(state);
            let early = self.early.swap_remove(index);
            self.release(group, early.buffers, context);
            moved = true;
        }
        moved
    }

    /// Reads a receive as the application does, and takes its buffers back.
    fn release(&mut self, group: usize, buffers: Vec<Buffer>, context: &mut Context<'_>) {
        for (number, buffer) in buffers.into_iter().enumerate() {
            let mut state = context.world.lock();
            let watched = &state.observer.watch.connections[context.connection].groups[group].buffers[number];
            let message = watched.message;
            state.saw(Seen::Messages);
            drop(state);
            if let Some((message, size)) = message {
                context.world.lock().observer.counts.add(Seen::Bytes, size);
                if let Some(at) = self.memory.compare(&buffer, context.connection, message, size) {
                    let text = format!(
                        "c{}: byte {at} of message {message} ({size} bytes) in group {group} is wrong",
                        context.connection
                    );
                    let mut state = context.world.lock();
                    let now_ns = state.now_ns;
                    state.observer.watch.violate(now_ns, Checker::Bytes, text);
                }
            }
            let again = context.chance.permille(context.plan.reregister_permille);
            if again {
                context.world.lock().saw(Seen::Reregistered);
            }
            self.memory.put(buffer, again);
        }
    }

    /// Breaks the contract, or forges what no peer may send, once the planned number of receives is done. Returns true
    /// if it did.
    fn trespass(&mut self, connection: &Rc<RecvComm<ONE_SIDED>>, context: &mut Context<'_>) -> Result<bool, Error> {
        let Some((what, at)) = self.trespass.filter(|(_, at)| self.done >= *at) else { return Ok(false) };
        debug_assert!(self.done >= at, "trespass waits for its time");
        match what {
            Trespass::TargetKeys | Trespass::SourceKeys | Trespass::DeregisterSource => return Ok(false),
            Trespass::DeregisterTarget => {
                let Some(which) = self.receiving.len().checked_sub(1) else { return Ok(false) };
                context.trespassed("deregMr of a receive buffer that is in use", Strike::NoTarget, &[true, false]);
                self.receiving[which].buffers.iter_mut().for_each(Buffer::deregister);
            }
            Trespass::HostileSlot | Trespass::HostileMask => {
                let open = self.receiving.first().map_or(self.next, |oldest| oldest.group);
                let slot = if what == Trespass::HostileSlot { self.next + 60 } else { open };
                let mut state = context.world.lock();
                let watched = &state.observer.watch.connections[context.connection];
                // Nothing counts that arrives on lanes still in the making: it ends with them.
                let (slot, rails) = (watched.wire.slot_of(slot), watched.rails_up(false));
                let own_mask = what == Trespass::HostileSlot;
                // A part that comes again ends with mask 0, so who sends that now only lies about its own data.
                if !own_mask && watched.wire.has_missing() {
                    return Ok(false);
                }
                let is_forged = state.forge(context.connection, rails, |rail| {
                    let mask = if own_mask { 1u32 << rail } else { 0 };
                    slot as u32 | mask << 8
                });
                drop(state);
                if is_forged {
                    context.trespassed("the peer sends an immediate that no peer may send", Strike::Forged, &[false]);
                }
            }
            Trespass::TestTwice => {
                let Some(over) = self.last_done else { return Ok(false) };
                context.broke_contract("test of a receive that has ended");
                let again = connection.test(over).err();
                self.expect_misuse(again, Fault::Protocol, "test of a receive that has ended", context)?;
            }
            Trespass::TestUnknown => {
                context.broke_contract("test of a flush that never existed");
                let unknown = RecvRequest::from_index(RecvRequest::COUNT - 1);
                let unknown = connection.test(unknown).err();
                self.expect_misuse(unknown, Fault::Protocol, "test of an unknown flush", context)?;
            }
            Trespass::WrongCount => {
                context.broke_contract("irecv with 0 and with 9 buffers");
                let keys = MemoryKeys::default();
                let nine = [Incoming { address: 64, size: 8, tag: 0, keys: &keys }; 9];
                let none = connection.irecv(&[], false).err();
                self.expect_misuse(none, Fault::Protocol, "irecv without buffers", context)?;
                let nine = connection.irecv(&nine, false).err();
                self.expect_misuse(nine, Fault::Protocol, "irecv with 9 buffers", context)?;
            }
            Trespass::TooLong => {
                context.broke_contract("irecv of more than 1 GiB");
                let keys = MemoryKeys::default();
                let long = [Incoming { address: 64, size: (1 << 30) + 1, tag: 0, keys: &keys }];
                let long = connection.irecv(&long, false).err();
                self.expect_misuse(long, Fault::Configuration, "irecv of more than 1 GiB", context)?;
            }
            Trespass::ManyFlushes => self.flush_too_often(connection, context)?,
        }
        self.trespass = None;
        Ok(true)
    }

    fn flush_too_often(
        &mut self,
        connection: &Rc<RecvComm<ONE_SIDED>>,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        context.broke_contract("more flushes than a connection has");
        let buffer = self.memory.take(64);
        let keys = buffer.keys(&self.rails);
        let flush = [Incoming { address: buffer.address(), size: 8, tag: 0, keys: &keys }];
        // Nothing is to be flushed in memory of the host, nor if the last message at this address was empty, or the
        // lanes of all rails that brought it have ended since.
        let (mut refused, mut is_needless) = (None, true);
        for _ in 0..40 {
            match connection.iflush(&flush) {
                Ok(Flushed::Nothing) => {}
                Ok(Flushed::Pending(request)) => {
                    is_needless = false;
                    self.flushing.push(Flushing { request, group: None, buffers: Vec::new() });
                }
                Err(error) => (refused, is_needless) = (Some(error), false),
            }
        }
        // It stays registered: flushes of it are still in progress.
        self.kept.push(buffer);
        if is_needless {
            return Ok(());
        }
        self.expect_misuse(refused, Fault::Protocol, "a 33rd flush", context)
    }

    /// Checks that a wrong call was refused, with this party at fault. Returns the error if the connection is broken.
    fn expect_misuse(
        &self,
        error: Option<Error>,
        fault: Fault,
        what: &str,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        let checked = match error {
            None => Err((Checker::Errors, format!("{what} was no error"))),
            Some(error) if matches!(*error, Cause::Misuse(_)) => check_code(&error, fault),
            Some(error) => return Err(error),
        };
        if let Err((checker, text)) = checked {
            let mut state = context.world.lock();
            let now_ns = state.now_ns;
            state.observer.watch.violate(now_ns, checker, format!("c{}: {text}", context.connection));
        }
        Ok(())
    }
}

impl<const ONE_SIDED: bool> RecvApp<ONE_SIDED> {
    /// Makes more calls after one has returned an error. Only a receive or a flush that is done may still succeed; over
    /// a two-sided fabric, a receive that has arrived, by its number, may still wait for its acknowledgement to leave.
    pub(super) fn insist(
        &mut self,
        connection: &Rc<RecvComm<ONE_SIDED>>,
        has_arrived: impl Fn(usize) -> bool,
    ) -> Vec<Insisted> {
        let buffer = self.memory.take(8);
        let keys = buffer.keys(&self.rails);
        let receive = [Incoming { address: buffer.address(), size: 8, tag: 0, keys: &keys }];
        let mut results = vec![
            ("irecv", connection.irecv(&receive, false).err()),
            ("iflush", connection.iflush(&receive).map(drop).err()),
        ];
        for receiving in &self.receiving {
            match connection.test(receiving.request) {
                Ok(done) if done.is_some() || !ONE_SIDED && has_arrived(receiving.group) => {}
                other => results.push(("test of a receive", other.err())),
            }
        }
        for flushing in &self.flushing {
            match connection.test(flushing.request) {
                Ok(Some(_)) => {}
                other => results.push(("test of a flush", other.err())),
            }
        }
        self.memory.put(buffer, false);
        results
    }
}
