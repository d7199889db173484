//! Rails are alike: the states that differ only in the names of rails.

use crate::config::{Config, MESSAGES, RAILS, part};
use crate::set::Set;
use crate::state::{Arrival, Frame, Inbox, Stage, State};

/// The new name of each rail.
type Names = [usize; RAILS];

/// The ways to name the rails; the first two of two rails.
const NAMES: [Names; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Returns one number for all states that differ from `state` only in the names of rails.
pub(crate) fn one_of_alike(c: &Config, s: &State, fingerprint: impl Fn(&State) -> u64) -> u64 {
    let keys: Vec<u128> = (0..c.rails).map(|rail| key(s, rail)).collect();
    let is_sorted = |names: &&Names| {
        let pairs = (0..c.rails).flat_map(|a| (0..c.rails).map(move |b| (a, b)));
        pairs.into_iter().all(|(a, b)| names[a] > names[b] || keys[a] <= keys[b] || a == b)
    };
    let ways = if c.rails == 2 { &NAMES[..2] } else { &NAMES[..] };
    let alike = ways
        .iter()
        .filter(is_sorted)
        .map(|names| if *names == NAMES[0] { fingerprint(s) } else { fingerprint(&turned(s, names)) });
    alike.min().expect("rails can be sorted")
}

/// Returns something about a rail in which its name and those of the others have no part.
fn key(s: &State, rail: usize) -> u128 {
    let (sending, receiving) = (&s.sender.rails[rail], &s.receiver.rails[rail]);
    let mut key = 0;
    let mut add = |number: u8, bits: u32| key = key << bits | u128::from(number);
    add(sending.stage as u8, 3);
    add(sending.e, 8);
    add(receiving.stage as u8, 2);
    add(receiving.e, 8);
    add(receiving.is_up.into(), 1);
    for length in [receiving.queue.len(), receiving.copies.len(), s.writes[rail].len()] {
        add(length.try_into().expect("a short list"), 4);
    }
    let last = s.writes[rail].items().last();
    add(last.map_or(0, |write| write.at as u8), 2);
    for inbox in [&s.to_sender, &s.to_receiver] {
        add(inbox.channels[rail].len().try_into().expect("a short list"), 3);
    }
    for message in 0..MESSAGES {
        add(s.sender.masks[message].has(rail).into(), 1);
        add(s.sender.parts[message][rail].stage as u8, 3);
        add(s.receiver.slots[message].seen.has(rail).into(), 1);
    }
    key
}

/// Returns the state in which the rails have other names.
fn turned(s: &State, names: &Names) -> State {
    let mut t = s.clone();
    for rail in 0..RAILS {
        let new = names[rail];
        t.sender.rails[new] = s.sender.rails[rail];
        t.receiver.rails[new] = s.receiver.rails[rail].clone();
        let on_rail = &mut t.receiver.rails[new];
        on_rail.queue.items_mut().iter_mut().for_each(|arrival| turn_arrival(arrival, names));
        if let Some(question) = &mut on_rail.question {
            question.unsure = parts(question.unsure, names);
            question.acknowledged = parts(question.acknowledged, names);
        }
        t.writes[new] = s.writes[rail].clone();
        t.writes[new].items_mut().iter_mut().for_each(|write| turn_arrival(&mut write.carried, names));
    }
    for message in 0..MESSAGES {
        t.sender.masks[message] = rails(s.sender.masks[message], names);
        turn_message(s, &mut t, message, names);
    }
    turn_inbox(&s.to_sender, &mut t.to_sender, names);
    turn_inbox(&s.to_receiver, &mut t.to_receiver, names);
    t
}

fn turn_message(s: &State, t: &mut State, message: usize, names: &Names) {
    let slot = &mut t.receiver.slots[message];
    for set in [&mut slot.mask, &mut slot.seen, &mut slot.unseen] {
        *set = rails(*set, names);
    }
    for rail in 0..RAILS {
        let new = names[rail];
        t.receiver.slots[message].lanes[new] = s.receiver.slots[message].lanes[rail];
        t.receiver.slots[message].through[new] = rails(s.receiver.slots[message].through[rail], names);
        let mut entry = s.sender.parts[message][rail];
        if matches!(entry.stage, Stage::Out | Stage::Unsure | Stage::Acknowledged) {
            turn_rail(&mut entry.carrier, names);
        }
        t.sender.parts[message][new] = entry;
        t.memory.through[message][new] = rails(s.memory.through[message][rail], names);
        t.memory.placed[message][new] = s.memory.placed[message][rail];
    }
}

fn turn_inbox(inbox: &Inbox, into: &mut Inbox, names: &Names) {
    for (rail, new) in names.iter().enumerate() {
        into.channels[*new] = inbox.channels[rail].clone();
    }
    into.frames_mut().for_each(|frame| match frame {
        Frame::Down { rail, unsure, acknowledged, .. } => {
            turn_rail(rail, names);
            *unsure = parts(*unsure, names);
            *acknowledged = parts(*acknowledged, names);
        }
        Frame::State { rail, seen, .. } => {
            turn_rail(rail, names);
            *seen = parts(*seen, names);
        }
        Frame::Suspect { rail, .. }
        | Frame::Offer { rail, .. }
        | Frame::Lanes { rail, .. }
        | Frame::Up { rail, .. } => {
            turn_rail(rail, names);
        }
        Frame::Bye { seen } => *seen = parts(*seen, names),
        Frame::None => {}
    });
    into.late.items_mut().sort_unstable();
}

fn turn_arrival(arrival: &mut Arrival, names: &Names) {
    turn_rail(&mut arrival.part, names);
}

fn turn_rail(rail: &mut u8, names: &Names) {
    *rail = names[usize::from(*rail)].try_into().expect("a rail");
}

fn rails(set: Set, names: &Names) -> Set {
    set.iter().map(|rail| names[rail]).collect()
}

fn parts(set: Set, names: &Names) -> Set {
    set.iter().map(|number| part(number / RAILS, names[number % RAILS])).collect()
}
