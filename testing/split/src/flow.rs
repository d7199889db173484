//! A flow: one connection with the applications at both ends, which keep messages in progress as NCCL's proxy does.

use std::collections::VecDeque;

use railweave_fabric::MAX_RAILS;
use railweave_transport::{Incoming, Outgoing, RecvRequest, SendRequest};

use crate::host::{Hollow, Receiver, Sender, World};

/// The work of a flow.
#[derive(Clone, Debug)]
pub struct Load {
    /// The sizes of its messages, in turn.
    pub sizes: Vec<u64>,
    /// The sends in progress.
    pub depth: usize,
    /// The messages that travel alone before others do, so that their rails are idle in between.
    pub alone: u64,
    /// The receives in progress.
    pub receives: usize,
    /// True if the applications test only the oldest request, as NCCL's proxy does for each channel; otherwise each
    /// message that is done lets another one follow, as those of several channels do.
    pub in_order: bool,
    /// The time between two looks of each application; 0: it looks whenever something happens.
    pub poll_ns: u64,
    /// The time of the first look.
    pub phase_ns: u64,
    /// The time of the first message.
    pub start_ns: u64,
    /// The most messages.
    pub messages: u64,
    /// The flow whose messages this flow's messages need.
    pub after: Option<After>,
}

/// A flow passes on what another one has received, except that it begins again every few steps.
#[derive(Clone, Copy, Debug)]
pub struct After {
    /// The other flow.
    pub flow: usize,
    /// A message needs the other flow's message this many steps before.
    pub lag: u64,
    /// The steps after which `lag` messages need nothing.
    pub period: u64,
}

impl Load {
    /// Returns the load of messages of one size, with as many receives as sends in progress.
    pub fn of(bytes: u64, depth: usize) -> Self {
        let (poll_ns, phase_ns, start_ns) = (0, 0, 0);
        let (sizes, receives, messages) = (vec![bytes], depth, u64::MAX);
        Self { sizes, depth, alone: 0, receives, in_order: true, poll_ns, phase_ns, start_ns, messages, after: None }
    }

    pub(crate) fn longest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Its number in the flow, from 0.
    pub number: u64,
    /// The times at which it was posted, and reported as sent.
    pub posted_ns: u64,
    /// See `posted_ns`.
    pub done_ns: u64,
    /// Its size.
    pub bytes: u64,
    /// The bytes of each rail.
    pub shares: [u64; MAX_RAILS],
}

pub(crate) struct Flow {
    number: usize,
    pub(crate) sender: Sender,
    receiver: Receiver,
    from: Hollow,
    to: Hollow,
    pub(crate) load: Load,
    pub(crate) has_begun: bool,
    sends: VecDeque<(SendRequest, Message)>,
    receives: VecDeque<RecvRequest>,
    pub(crate) sent: Vec<Message>,
    posted: u64,
    pub(crate) received: u64,
    /// The times of the next look of the receiving and of the sending application.
    looks_ns: [u64; 2],
}

impl Flow {
    pub(crate) fn new(number: usize, sender: Sender, receiver: Receiver, memory: [Hollow; 2], load: Load) -> Self {
        let [from, to] = memory;
        let (sends, receives, sent) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let (has_begun, posted, received, looks_ns) = (false, 0, 0, [0; 2]);
        Self { number, sender, receiver, from, to, load, has_begun, sends, receives, sent, posted, received, looks_ns }
    }

    fn depth(&self) -> usize {
        if self.posted < self.load.alone { 1 } else { self.load.depth }
    }

    pub(crate) fn looks_at_once(&self) -> bool {
        self.load.poll_ns == 0
    }

    /// Returns the time at which an application that something happens for looks next, if it looks now and then and
    /// the time was not returned before.
    pub(crate) fn next_look(&mut self, sender: bool, now_ns: u64) -> Option<u64> {
        let next_ns = &mut self.looks_ns[usize::from(sender)];
        if self.load.poll_ns == 0 || *next_ns > now_ns {
            return None;
        }
        let late_ns = (now_ns + self.load.poll_ns - self.load.phase_ns) % self.load.poll_ns;
        *next_ns = now_ns + self.load.poll_ns - late_ns;
        Some(*next_ns)
    }

    /// Tests the sends, the oldest first, and sends what may be sent. `received` is the number of messages that have
    /// come from the flow before it.
    pub(crate) fn send(&mut self, world: &World, now_ns: u64, received: u64) {
        let mut place = 0;
        while let Some((request, message)) = self.sends.get(place) {
            if self.sender.test(*request).expect("nothing fails").is_some() {
                self.sent.push(Message { done_ns: now_ns, ..*message });
                self.sends.remove(place);
            } else if self.load.in_order {
                break;
            } else {
                place += 1;
            }
        }
        while self.sends.len() < self.depth() && self.posted < self.load.messages {
            let needs = |after| {
                let After { lag, period, .. } = after;
                self.posted % period >= lag && received + lag <= self.posted
            };
            if self.load.after.is_some_and(needs) {
                return;
            }
            let size = self.load.sizes[(self.posted % self.load.sizes.len() as u64) as usize];
            let message = Outgoing { address: self.from.address, size, tag: 0, keys: &self.from.keys };
            let Some(request) = self.sender.isend(&message).expect("nothing fails") else { return };
            let shares = world.lock().observer.take(self.number);
            let number = self.posted;
            self.sends.push_back((request, Message { number, posted_ns: now_ns, done_ns: 0, bytes: size, shares }));
            self.posted += 1;
        }
    }

    /// Tests the receives, the oldest first, and posts others. Returns true if a message was received.
    pub(crate) fn receive(&mut self) -> bool {
        let before = self.received;
        let mut place = 0;
        while let Some(request) = self.receives.get(place) {
            if self.receiver.test(*request).expect("nothing fails").is_some() {
                self.receives.remove(place);
                self.received += 1;
            } else if self.load.in_order {
                break;
            } else {
                place += 1;
            }
        }
        let size = self.load.longest();
        while self.receives.len() < self.load.receives {
            let buffer = Incoming { address: self.to.address, size, tag: 0, keys: &self.to.keys };
            let Some(request) = self.receiver.irecv(&[buffer], false).expect("nothing fails") else { break };
            self.receives.push_back(request);
        }
        self.received > before
    }
}
