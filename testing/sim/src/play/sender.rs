//! The sending application: it calls `isend` and `test` as NCCL's progress thread does.

use std::collections::VecDeque;

use railweave_transport::{Error, Event, MAX_BUFFERS, Outgoing, RailInfo, SendRequest};

use super::comm::SendComm;
use super::context::{Context, Insisted, Step};
use super::memory::{Buffer, Memory};
use super::plan::{ConnectionPlan, Trespass};
use crate::Seen;
use crate::history::Kind;
use crate::watch::{Connection as Watched, Strike};
use crate::witness::Note;

/// The number of sends that a connection must hold at once if nothing has leaked: with a record, each takes two places
/// in a send queue of 256.
const PROBE: usize = 120;

/// A message that has not been taken yet.
struct Pending {
    group: usize,
    tag: u32,
    size: u64,
    /// Its number and its buffer, once a send was attempted.
    prepared: Option<(u64, Buffer)>,
}

/// A send in progress.
struct Sending {
    request: SendRequest,
    /// Its number in the order in which sends were taken, in which they match receives.
    place: u64,
    message: u64,
    /// Its size, truncated to its receive.
    size: u64,
    /// Its size before truncation.
    whole: u64,
    buffer: Buffer,
}

/// The application at the sending end of a connection.
pub(crate) struct SendApp<const ONE_SIDED: bool> {
    pending: VecDeque<Pending>,
    sending: Vec<Sending>,
    memory: Memory<ONE_SIDED>,
    rails: Vec<RailInfo>,
    next_message: u64,
    /// The number of sends that were taken.
    taken: u64,
    /// The number of sends that are done.
    done: u64,
    /// The first receive of the leak probe.
    probe_from: usize,
    probing: bool,
    trespass: Option<(Trespass, u64)>,
}

impl<const ONE_SIDED: bool> SendApp<ONE_SIDED> {
    pub(crate) fn new(plan: &ConnectionPlan, memory: Memory<ONE_SIDED>, rails: Vec<RailInfo>) -> Self {
        let mut pending = VecDeque::new();
        for (group, planned) in plan.groups.iter().enumerate() {
            let sends = planned.sends.iter();
            pending.extend(sends.map(|(tag, size)| Pending { group, tag: *tag, size: *size, prepared: None }));
        }
        Self {
            pending,
            sending: Vec::new(),
            memory,
            rails,
            next_message: 0,
            taken: 0,
            done: 0,
            probe_from: plan.groups.len() - plan.probe,
            probing: false,
            trespass: plan.trespass.filter(|(what, _)| what.by_sender()),
        }
    }

    /// Returns true once everything is sent.
    pub(crate) fn is_done(&self) -> bool {
        self.pending.is_empty() && self.sending.is_empty()
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.probing
    }

    /// Returns true if it has messages that are not posted, or have not arrived whole.
    pub(crate) fn needs_peer(&self, watched: &Watched) -> bool {
        !self.pending.is_empty() || self.sending.iter().any(|sending| !watched.has_arrived(sending.message))
    }

    /// Describes what it waits for, for a checker's message.
    pub(crate) fn waits_for(&self) -> String {
        let next = self.pending.front().map(|first| (first.group, first.tag, first.size));
        format!(
            "{} sends to post (first: group, tag, size {next:?}), {} to complete",
            self.pending.len(),
            self.sending.len()
        )
    }

    pub(crate) fn step(&mut self, connection: &SendComm<ONE_SIDED>, context: &mut Context<'_>) -> Result<Step, Error> {
        let mut moved = false;
        self.trespass(context);
        for _ in 0..context.chance.between(1, 6) {
            match self.isend(connection, context)? {
                None => break,
                Some(Step::Idle) => {}
                Some(Step::Moved) => moved = true,
                Some(Step::Killed) => return Ok(Step::Killed),
            }
        }
        // The probe posts as many sends as a connection must hold before it tests any. The last few may need room in a
        // queue.
        let posting_probe = self.probing && !self.pending.is_empty() && self.sending.len() < PROBE;
        let tests = if posting_probe { 0 } else { context.chance.between(0, 6) };
        for _ in 0..tests.min(self.sending.len() as u64) {
            let which = context.choose(true, self.sending.iter().map(|sending| sending.place));
            let result = connection.test(self.sending[which].request);
            if context.called() {
                return Ok(Step::Killed);
            }
            if let Some(said) = result? {
                self.finish(which, said, context);
                moved = true;
            }
        }
        Ok(if moved { Step::Moved } else { Step::Idle })
    }

    /// Tries to send one message. Returns `None` if there is nothing to try.
    fn isend(&mut self, connection: &SendComm<ONE_SIDED>, context: &mut Context<'_>) -> Result<Option<Step>, Error> {
        let Some(first) = self.pending.front() else { return Ok(None) };
        let oldest = first.group;
        let probe = context.plan.probe > 0 && oldest >= self.probe_from;
        if probe && !self.probing {
            self.probing = self.sending.is_empty();
        }
        if probe && !self.probing || (!probe && self.sending.len() >= (context.plan.window * 2).max(MAX_BUFFERS)) {
            return Ok(None);
        }
        // A message of the next receive finds no buffer with its tag, unless the oldest receive has the same tag.
        let last = if context.chance.permille(850) || probe { oldest } else { oldest + 1 };
        let span = self.pending.iter().take_while(|pending| pending.group <= last).count();
        let which = context.chance.index(span);
        let pending = &mut self.pending[which];
        let (message, buffer) = pending.prepared.get_or_insert_with(|| {
            let buffer = self.memory.take(pending.size);
            self.memory.write(&buffer, context.connection, self.next_message, pending.size);
            self.next_message += 1;
            (self.next_message - 1, buffer)
        });
        let mut keys = buffer.keys(&self.rails);
        let is_unregistered =
            pending.size > 0 && self.trespass.is_some_and(|(what, at)| what == Trespass::SourceKeys && self.done >= at);
        if is_unregistered {
            keys.local = keys.remote;
            context.trespassed("isend from memory that is not registered", Strike::NoSource, &[true]);
        }
        let (message, tag) = (*message, pending.tag);
        let outgoing = Outgoing { address: buffer.address(), size: pending.size, tag: pending.tag, keys: &keys };
        let result = connection.isend(&outgoing);
        let killed = context.called();
        let request = match result {
            Ok(Some(request)) => request,
            Ok(None) => {
                note_no_room(context, tag);
                return Ok(Some(if killed { Step::Killed } else { Step::Idle }));
            }
            Err(error) => return if killed { Ok(Some(Step::Killed)) } else { Err(error) },
        };
        if is_unregistered {
            self.trespass = None;
        }
        let Some(Pending { tag, size, prepared: Some((_, buffer)), .. }) = self.pending.remove(which) else {
            return Ok(None);
        };
        let mut state = context.world.lock();
        let now_ns = state.now_ns;
        let truncated = state.observer.watch.isend(now_ns, context.connection, message, tag, size);
        state.record(Kind::Isend, context.who, [message, size, u64::from(tag), 0]);
        if let Some(Event::MessageTruncated(_)) = connection.poll_event() {
            state.saw(Seen::Truncated);
        }
        if self.sending.len() == SendRequest::COUNT - 1 {
            state.saw(Seen::AllSends);
        }
        drop(state);
        if self.probing && self.pending.is_empty() {
            context.world.lock().saw(Seen::LeakProbe);
        }
        let place = self.taken;
        self.taken += 1;
        self.sending.push(Sending { request, place, message, size: truncated, whole: size, buffer });
        Ok(Some(if killed { Step::Killed } else { Step::Moved }))
    }

    fn finish(&mut self, which: usize, said: u64, context: &mut Context<'_>) {
        let Sending { message, size, whole, buffer, .. } = self.sending.swap_remove(which);
        let mut state = context.world.lock();
        let now_ns = state.now_ns;
        state.record(Kind::SendDone, context.who, [message, said, 0, 0]);
        state.observer.watch.send_done(now_ns, context.connection, message, size, said);
        drop(state);
        self.memory.scrub(&buffer, whole);
        let again = context.chance.permille(context.plan.reregister_permille);
        if again {
            context.world.lock().saw(Seen::Reregistered);
        }
        self.memory.put(buffer, again);
        self.done += 1;
    }

    fn trespass(&mut self, context: &mut Context<'_>) {
        if let Some((Trespass::DeregisterSource, at)) = self.trespass
            && self.done >= at
            && !self.sending.is_empty()
        {
            self.trespass = None;
            context.trespassed("deregMr of a source that is in use", Strike::NoSource, &[true, false]);
            let which = context.chance.index(self.sending.len());
            self.sending[which].buffer.deregister();
        }
    }
}

impl<const ONE_SIDED: bool> SendApp<ONE_SIDED> {
    /// Makes more calls after one has returned an error. Only a send that is done may still succeed.
    pub(super) fn insist(&mut self, connection: &SendComm<ONE_SIDED>) -> Vec<Insisted> {
        let buffer = self.memory.take(8);
        let keys = buffer.keys(&self.rails);
        let tag = self.pending.front().map_or(0, |first| first.tag);
        let message = Outgoing { address: buffer.address(), size: 8, tag, keys: &keys };
        let mut results = vec![("isend", connection.isend(&message).err())];
        for sending in &self.sending {
            match connection.test(sending.request) {
                Ok(Some(_)) => {}
                other => results.push(("test of a send", other.err())),
            }
        }
        self.memory.put(buffer, false);
        results
    }
}

/// Counts the reason why a message with this tag was not taken.
fn note_no_room(context: &Context<'_>, tag: u32) {
    let mut state = context.world.lock();
    let tags = state.observer.watch.filling(context.connection).1;
    state.saw(match tags.contains(&tag) {
        true => Seen::NotYet,
        false if tags.is_empty() => Seen::NoReceive,
        false => Seen::NoTag,
    });
}
