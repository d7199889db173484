//! The configuration of a search.

use crate::mutation::Mutation;
use crate::set::Set;
use std::ops::Range;

/// The most rails of a configuration.
pub const RAILS: usize = 3;
/// The most messages of a configuration.
pub const MESSAGES: usize = 4;
/// The most places of the CTS ring.
pub(crate) const PLACES: usize = 3;
/// The most slots.
pub(crate) const SLOTS: usize = 3;

/// The kind of a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Message {
    /// The number of buffers of its receive, 1 or 2. A group takes as many CTS entries, and brings a record.
    pub buffers: u8,
    /// The record brings its size, and not the byte counts of the receives.
    pub has_record: bool,
    /// Its receive is reported done at once, before the data is there (optional completion).
    pub is_early: bool,
    /// Its buffer is GPU memory, which is visible only after a flush.
    pub is_gpu: bool,
}

impl Message {
    /// One buffer of host memory, received with the sum of the byte counts.
    pub const PLAIN: Self = Self { buffers: 1, has_record: false, is_early: false, is_gpu: false };
    /// One buffer, with a record.
    pub const RECORD: Self = Self { has_record: true, ..Self::PLAIN };
    /// Two buffers.
    pub const GROUP: Self = Self { buffers: 2, has_record: true, ..Self::PLAIN };
    /// One buffer whose receive is reported done early.
    pub const EARLY: Self = Self { is_early: true, ..Self::PLAIN };
    /// One buffer of GPU memory.
    pub const GPU: Self = Self { is_gpu: true, ..Self::PLAIN };
}

/// The rails over which the sender splits a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Any of the usable rails, at least one.
    Any,
    /// All usable rails.
    Usable,
    /// All rails, so the sender waits until all are usable.
    All,
    /// One of the usable rails.
    One,
}

/// The habit of the receiver's adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// An adapter that tells when a lane in error takes no more immediates. Bytes may still be placed until the lane is
    /// destroyed. Destroying it removes its completions from the queue.
    Purges,
    /// An adapter that tells nothing. Writes land until the lane is destroyed, and completions stay in the queue.
    Keeps,
}

/// A configuration of the model.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name, unique.
    pub name: &'static str,
    /// The number of rails, 2 or 3.
    pub rails: usize,
    /// The messages, in order.
    pub messages: &'static [Message],
    /// The lanes per rail, 1 or 2. With 2, each message is striped over both.
    pub lanes: u8,
    /// The split.
    pub split: Split,
    /// The number of slots, 1 to 3.
    pub slots: usize,
    /// The number of places in the CTS ring, 1 to 3.
    pub places: usize,
    /// The number of buffers; message m is received in buffer m modulo this number.
    pub buffers: usize,
    /// The number of times that a rail fails at the sender.
    pub sender_faults: u8,
    /// The number of times that the receiver suspects a rail, or its lanes fail.
    pub receiver_faults: u8,
    /// The number of devices of the receiver that die, each with the completions of its rail.
    pub device_deaths: u8,
    /// The number of times that the session breaks.
    pub breaks: u8,
    /// Frames of a broken session may come late, in any order, or never. Otherwise they are lost.
    pub is_late: bool,
    /// A write's bytes land in one step and its immediate in another. Otherwise they land together, which leaves out
    /// only the states between the two.
    pub is_torn: bool,
    /// The habit of the receiver's adapters.
    pub habit: Habit,
    /// The number of each rail's first incarnation. Numbers wrap after 255.
    pub first_e: u8,
    /// The sender offers new incarnations of rails that were lost.
    pub comes_back: bool,
    /// The application closes both ends when everything is done.
    pub closes: bool,
    /// The application may also close an end before.
    pub gives_up: bool,
    /// States of which the same can come count as one (`reduce.rs`).
    pub is_reduced: bool,
    /// The rule that is wrong, if one is.
    pub mutation: Option<Mutation>,
}

impl Config {
    /// The configuration from which others differ: one plain message, no faults.
    pub const PLAIN: Self = Self {
        name: "plain",
        rails: 2,
        messages: &[Message::PLAIN],
        lanes: 1,
        split: Split::Any,
        slots: 2,
        places: 2,
        buffers: MESSAGES,
        sender_faults: 0,
        receiver_faults: 0,
        device_deaths: 0,
        breaks: 0,
        is_late: false,
        is_torn: false,
        habit: Habit::Purges,
        first_e: 0,
        comes_back: false,
        closes: false,
        gives_up: false,
        is_reduced: false,
        mutation: None,
    };

    /// Returns the first columns of this configuration's row on the page.
    #[must_use]
    pub fn outline(&self) -> String {
        let Self { name, rails, lanes, slots, places, .. } = self;
        let Self { sender_faults: sender, receiver_faults: receiver, device_deaths: devices, breaks, .. } = self;
        let sizes = format!("{rails} | {lanes} | {} | {slots} | {places}", self.messages.len());
        format!("| {name} | {sizes} | {sender} | {receiver} | {devices} | {breaks} |")
    }

    /// Returns true if this rule is wrong.
    #[must_use]
    pub fn breaks_rule(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The CTS entries of a message.
    pub(crate) fn entries(&self, message: usize) -> Range<usize> {
        let before = |message: usize| self.messages[..message].iter().map(|m| usize::from(m.buffers)).sum();
        before(message)..before(message + 1)
    }

    /// The message of a CTS entry.
    pub(crate) fn message_of(&self, entry: usize) -> usize {
        (0..self.messages.len()).find(|message| self.entries(*message).contains(&entry)).expect("an entry of a message")
    }

    pub(crate) fn lanes(&self) -> Set {
        Set::below(usize::from(self.lanes))
    }

    /// The newest of the first `next` messages that is received in the same buffer as `message`, which is one of them.
    pub(crate) fn newest_in_buffer_of(&self, message: usize, next: usize) -> usize {
        message + (next - 1 - message) / self.buffers * self.buffers
    }
}

/// The number of a part among those of all messages: the bytes of `message` that the split gave to `rail`.
pub(crate) fn part(message: usize, rail: usize) -> usize {
    message * RAILS + rail
}

/// The leader among the active rails.
pub(crate) fn leader(mask: Set) -> usize {
    mask.iter().next().expect("an active rail")
}
