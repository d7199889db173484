//! The configurations that are searched.

use crate::config::{Config, Habit, Message, Split};

pub(crate) const PLAIN: Config = Config::PLAIN;
pub(crate) const TWO: &[Message] = &[Message::PLAIN; 2];
const THREE: &[Message] = &[Message::PLAIN; 3];
const FOUR: &[Message] = &[Message::PLAIN; 4];
pub(crate) const EARLY: &[Message] = &[Message::EARLY; 2];
pub(crate) const GPU: &[Message] = &[Message::GPU];
pub(crate) const SENDER: Config = Config { sender_faults: 1, ..PLAIN };
pub(crate) const RECEIVER: Config = Config { receiver_faults: 1, ..PLAIN };
pub(crate) const BACK: Config = Config { comes_back: true, ..PLAIN };
/// Each message goes over one rail.
pub(crate) const ONE: Split = Split::One;

/// Returns the configurations of the tests: each plays one to three features, with all faults of one or two kinds.
#[must_use]
pub fn small() -> Vec<Config> {
    let breaks = Config { breaks: 1, is_late: true, ..PLAIN };
    let sender = Config { sender_faults: 1, ..breaks.clone() };
    let receiver = Config { receiver_faults: 1, ..breaks.clone() };
    vec![
        Config { name: "no fault", messages: THREE, ..PLAIN },
        Config { name: "a slot is used again", messages: FOUR, slots: 3, places: 3, split: ONE, ..PLAIN },
        Config { name: "a rail fails at the sender", messages: TWO, split: Split::Usable, ..SENDER },
        Config { name: "a rail fails at the receiver", messages: TWO, split: ONE, ..RECEIVER },
        Config { name: "an adapter keeps completions", habit: Habit::Keeps, is_torn: true, ..RECEIVER },
        Config { name: "a rail fails at each end", sender_faults: 1, receiver_faults: 1, slots: 1, split: ONE, ..BACK },
        Config { name: "the session breaks", comes_back: true, ..sender.clone() },
        Config {
            name: "the session breaks with three slots",
            messages: THREE,
            slots: 3,
            places: 3,
            split: ONE,
            ..breaks
        },
        Config { name: "numbers wrap", first_e: 255, split: ONE, comes_back: true, ..receiver.clone() },
        Config { name: "three rails", rails: 3, sender_faults: 2, split: ONE, ..PLAIN },
        Config { name: "stripes", lanes: 2, is_torn: true, split: ONE, ..RECEIVER },
        Config { name: "stripes and a break", lanes: 2, split: ONE, ..sender.clone() },
        Config { name: "records", messages: &[Message::RECORD; 2], slots: 1, ..SENDER },
        Config { name: "records and a break", messages: &[Message::RECORD], ..receiver.clone() },
        Config { name: "a group", messages: &[Message::GROUP], ..RECEIVER },
        Config { name: "a group and a break", messages: &[Message::GROUP], ..sender.clone() },
        Config { name: "the ring", messages: TWO, places: 1, split: ONE, receiver_faults: 1, ..BACK },
        Config { name: "early receives", messages: EARLY, buffers: 1, is_torn: true, split: ONE, ..RECEIVER },
        Config { name: "early receives and a break", messages: EARLY, buffers: 1, split: ONE, ..sender.clone() },
        Config { name: "a flush", messages: GPU, is_torn: true, ..RECEIVER },
        Config { name: "a flush and a break", messages: GPU, ..sender.clone() },
        Config {
            name: "a device dies",
            messages: &[Message::GPU, Message::PLAIN],
            split: ONE,
            device_deaths: 1,
            ..PLAIN
        },
        Config { name: "a device dies and a break", messages: GPU, device_deaths: 1, ..breaks },
        Config { name: "a close and a break", closes: true, ..sender.clone() },
        Config { name: "a close after early receives", messages: &[Message::EARLY], closes: true, ..RECEIVER },
        Config { name: "an application gives up", closes: true, gives_up: true, split: ONE, ..sender },
    ]
}

/// Returns the configurations that take minutes. They are searched with reductions.
#[must_use]
pub fn large() -> Vec<Config> {
    let lists = [large_without_breaks(), large_with_breaks(), large_with_three_rails()];
    lists.into_iter().flatten().map(|config| Config { is_reduced: true, ..config }).collect()
}

const BOTH_ENDS: Config = Config { sender_faults: 1, receiver_faults: 1, ..BACK };

fn large_without_breaks() -> Vec<Config> {
    let kept = Habit::Keeps;
    let sender_back = Config { sender_faults: 1, ..BACK };
    vec![
        Config { name: "three messages, two slots", messages: THREE, ..SENDER },
        Config { name: "three slots, torn", messages: THREE, slots: 3, places: 3, split: ONE, is_torn: true, ..SENDER },
        Config { name: "four messages, three slots", messages: FOUR, slots: 3, places: 3, split: ONE, ..SENDER },
        Config { name: "one slot, at each end", messages: TWO, slots: 1, ..BOTH_ENDS },
        Config { name: "torn, at each end", is_torn: true, messages: TWO, split: ONE, ..BOTH_ENDS },
        Config { name: "torn, an adapter keeps", is_torn: true, habit: kept, messages: TWO, split: ONE, ..BOTH_ENDS },
        Config { name: "twice at each end", sender_faults: 2, receiver_faults: 2, ..BACK },
        Config { name: "twice at the sender", sender_faults: 2, messages: TWO, ..BACK },
        Config { name: "twice at the receiver", receiver_faults: 2, messages: TWO, split: ONE, ..BACK },
        Config { name: "stripes, two messages", lanes: 2, messages: TWO, ..SENDER },
        Config { name: "stripes, torn", lanes: 2, is_torn: true, ..BOTH_ENDS },
        Config { name: "stripes with records", lanes: 2, messages: &[Message::RECORD], ..BOTH_ENDS },
        Config { name: "records, at each end", messages: &[Message::RECORD; 2], slots: 1, ..BOTH_ENDS },
        Config { name: "a group round the ring", messages: &[Message::PLAIN, Message::GROUP], split: ONE, ..BOTH_ENDS },
        Config { name: "the ring, at each end", messages: TWO, places: 1, ..BOTH_ENDS },
        Config { name: "early receives, torn", messages: EARLY, buffers: 1, is_torn: true, split: ONE, ..BOTH_ENDS },
        Config { name: "flushes, at each end", messages: &[Message::GPU; 2], buffers: 1, split: ONE, ..BOTH_ENDS },
        Config { name: "a device and a rail", messages: GPU, device_deaths: 1, ..BOTH_ENDS },
        Config {
            name: "a device, two messages",
            messages: &[Message::GPU; 2],
            device_deaths: 1,
            split: ONE,
            ..sender_back
        },
    ]
}

fn large_with_breaks() -> Vec<Config> {
    let one = Config { breaks: 1, is_late: true, ..BACK };
    let two = Config { breaks: 2, ..one.clone() };
    let both = Config { sender_faults: 1, receiver_faults: 1, ..one.clone() };
    let ring = Config { slots: 3, places: 3, split: ONE, ..one.clone() };
    vec![
        Config { name: "break, two messages", messages: TWO, split: ONE, ..both.clone() },
        Config { name: "break, three slots, sender", messages: THREE, sender_faults: 1, ..ring.clone() },
        Config { name: "break, three slots, receiver", messages: THREE, receiver_faults: 1, ..ring.clone() },
        Config { name: "break, four messages", messages: FOUR, sender_faults: 1, comes_back: false, ..ring },
        Config { name: "break, one slot", messages: TWO, slots: 1, ..both.clone() },
        Config { name: "break, torn, an adapter keeps", is_torn: true, habit: Habit::Keeps, ..both.clone() },
        Config { name: "break, stripes", lanes: 2, ..both.clone() },
        Config {
            name: "break, stripes with records",
            lanes: 2,
            messages: &[Message::RECORD],
            split: ONE,
            ..both.clone()
        },
        Config { name: "break, records", messages: &[Message::RECORD; 2], slots: 1, ..both.clone() },
        Config { name: "break, a group", messages: &[Message::PLAIN, Message::GROUP], split: ONE, ..both.clone() },
        Config { name: "break, the ring", messages: TWO, places: 1, split: ONE, ..both.clone() },
        Config { name: "break, early", messages: EARLY, buffers: 1, is_torn: true, split: ONE, ..both.clone() },
        Config { name: "break, flushes", messages: &[Message::GPU; 2], buffers: 1, split: ONE, ..both.clone() },
        Config { name: "break, a device", messages: GPU, device_deaths: 1, ..both.clone() },
        Config { name: "break, a close", closes: true, messages: TWO, split: ONE, ..both.clone() },
        Config {
            name: "break, a close after early",
            messages: &[Message::EARLY],
            closes: true,
            is_torn: true,
            ..both.clone()
        },
        Config { name: "break, an application gives up", closes: true, gives_up: true, ..both },
        Config { name: "two breaks, at each end", sender_faults: 1, receiver_faults: 1, ..two.clone() },
        Config { name: "two breaks, a close", closes: true, sender_faults: 1, receiver_faults: 1, ..two.clone() },
        Config { name: "two breaks, numbers wrap", first_e: 255, sender_faults: 2, ..two.clone() },
        Config { name: "two breaks, twice at the receiver", receiver_faults: 2, ..two },
    ]
}

fn large_with_three_rails() -> Vec<Config> {
    let three = Config { rails: 3, ..PLAIN };
    let back = Config { sender_faults: 1, receiver_faults: 1, comes_back: true, ..three.clone() };
    vec![
        Config { name: "three rails, sender and receiver", sender_faults: 1, receiver_faults: 1, ..three.clone() },
        Config { name: "three rails, two messages", messages: TWO, split: ONE, sender_faults: 2, ..three.clone() },
        Config { name: "three rails, one slot", messages: TWO, slots: 1, sender_faults: 2, ..three.clone() },
        Config {
            name: "three rails, two lost and a break",
            sender_faults: 2,
            breaks: 1,
            is_late: true,
            ..three.clone()
        },
        Config { name: "three rails come back", ..back.clone() },
        Config { name: "three rails, stripes", lanes: 2, split: ONE, ..back.clone() },
        Config {
            name: "three rails, early",
            messages: EARLY,
            buffers: 1,
            split: ONE,
            receiver_faults: 2,
            ..three.clone()
        },
        Config { name: "three rails and a break", breaks: 1, is_late: true, split: ONE, ..back.clone() },
        Config { name: "three rails, a close", breaks: 1, is_late: true, closes: true, split: ONE, ..back },
    ]
}
