//! The recovery of an end's rails, as a script plays it: the peer's steps, right or not, and the work on lanes.

use std::collections::VecDeque;

use railweave_fabric::{LaneEndpoint, MAX_RAILS, RailId, RailSet};
use railweave_transport::{
    Dial, Frame, Incarnation, Listed, Message, RailMessage, RailNews, RailWork, Recovers, RecoveryAction, Seen, Token,
};

use crate::input::Input;
use crate::scripted::World;

/// The first byte of a step of the recovery, in scripts of connections that recover.
pub(crate) const FROM: u8 = 0xe0;

/// The most tasks that wait, which a script could otherwise pile up.
const MOST_WAITING: usize = 64;

/// The recovery of one end, and the peer's part in it.
pub(crate) struct Recovery {
    is_sender: bool,
    lanes: u8,
    now_ns: u64,
    /// The end's messages that the peer has not answered.
    said: VecDeque<RailNews>,
    works: VecDeque<Box<dyn RailWork>>,
    dials: VecDeque<Dial>,
    /// The number of the last receive that a right answer may be about.
    pub(crate) last_sequence: u32,
    /// The slots that the peer has named in RAIL_DOWN, since the caller took them.
    pub(crate) named: Vec<u8>,
}

impl Recovery {
    /// Returns the recovery of an end whose rails have this many lanes.
    pub(crate) fn new(is_sender: bool, lanes: u8) -> Self {
        Self {
            is_sender,
            lanes,
            now_ns: 0,
            said: VecDeque::new(),
            works: VecDeque::new(),
            dials: VecDeque::new(),
            last_sequence: 0,
            named: Vec::new(),
        }
    }

    /// Takes one step with an end.
    pub(crate) fn step(&mut self, end: &mut impl Recovers, input: &mut Input<'_>) {
        match input.u8() % 9 {
            0 => {
                self.now_ns += u64::from(input.u16()) * 1_000_000;
                end.recover(self.now_ns);
            }
            1 => self.work(end),
            2 => self.answer(end, input),
            3 => self.say(end, input),
            4 => self.dialled(end, input),
            5 => {
                let (rail, lane) = (input.u8(), input.u8());
                // The caller of the real one asks before it takes the socket.
                if end.awaits_lane(rail, lane).is_ok() {
                    let _ = end.handle_lane(rail, lane, World::socket());
                }
            }
            6 => end.hurry_recovery(self.now_ns),
            7 => {
                // A flood of one message.
                let news = self.draw(input);
                let count = usize::from(input.u8());
                (0..count).for_each(|_| end.handle_rail_news(news.clone(), self.now_ns));
            }
            _ => {
                // All that is due, with a faultless peer.
                for _ in 0..input.u8() {
                    self.drain(end);
                    if self.works.is_empty() && self.said.is_empty() {
                        self.now_ns = end.recovery_timeout_ns().unwrap_or(0).max(self.now_ns);
                    }
                    end.recover(self.now_ns);
                    self.drain(end);
                    self.work(end);
                    self.answer(end, input);
                }
            }
        }
        self.drain(end);
    }

    /// Takes the end's tasks.
    pub(crate) fn drain(&mut self, end: &mut impl Recovers) {
        while let Some(action) = end.poll_recovery() {
            match action {
                RecoveryAction::Send(message @ Message::Rail(_)) => {
                    let (frame, _) = decoded(message);
                    let Message::Rail(news) = frame.message else { panic!("a step of a recovery stays one") };
                    self.said.push_back(news);
                }
                RecoveryAction::Send(other) => panic!("{} is no step of a recovery", other.name()),
                RecoveryAction::Work(work) => self.works.push_back(work),
                RecoveryAction::Free(lanes) => drop(lanes),
                RecoveryAction::Dial(dial) => {
                    assert!(!dial.remote.is_multicast() && !dial.remote.is_unspecified(), "{} is dialled", dial.remote);
                    self.dials.push_back(dial);
                }
                RecoveryAction::Await(_) => assert!(!self.is_sender, "a sender awaits no lanes"),
                RecoveryAction::Event(event) => {
                    let text = event.to_string();
                    assert!(text.contains(' ') && !text.contains(char::is_control), "{text:?}");
                }
            }
            assert!(self.works.len() <= MAX_RAILS, "there is one piece of work for each rail");
        }
        while self.said.len() > MOST_WAITING {
            self.said.pop_front();
        }
        while self.dials.len() > MOST_WAITING {
            self.dials.pop_front();
        }
    }

    /// Does the work that has waited longest, or continues it.
    fn work(&mut self, end: &mut impl Recovers) {
        let Some(mut work) = self.works.pop_front() else { return };
        match work.run(self.now_ns) {
            Some(pause) => {
                self.now_ns += u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX >> 1);
                self.works.push_back(work);
            }
            None => end.handle_worked(work, self.now_ns),
        }
    }

    /// Answers the end's oldest message as a faultless peer may.
    fn answer(&mut self, end: &mut impl Recovers, input: &mut Input<'_>) {
        let Some(RailNews { rail, incarnation, message }) = self.said.pop_front() else { return };
        let endpoints = vec![LaneEndpoint::default(); usize::from(self.lanes)];
        let (incarnation, message) = match message {
            RailMessage::Suspect => (incarnation, RailMessage::Down(self.listed(input, rail))),
            RailMessage::Down(listed) => {
                let asked = listed.iter().filter(|listed| !listed.unsure.is_empty());
                let seen =
                    asked.map(|listed| Seen { sequence: listed.sequence, parts: RailSet::from_bits(input.u8()) });
                (incarnation, RailMessage::State(seen.collect()))
            }
            RailMessage::State(_) => (Incarnation(incarnation.0.wrapping_add(1)), RailMessage::Offer(endpoints)),
            RailMessage::Offer(_) => (incarnation, RailMessage::Lanes { token: Token([2; 16]), endpoints }),
            RailMessage::Lanes { .. } => (incarnation, RailMessage::Up),
            RailMessage::Up => return,
        };
        self.hear(end, RailNews { rail, incarnation, message });
    }

    /// Returns entries of RAIL_DOWN for recent receives, each with the part of this rail.
    fn listed(&self, input: &mut Input<'_>, rail: RailId) -> Vec<Listed> {
        let count = input.u8() % 5;
        let entry = |_| {
            let (back, mask, flags) = (input.u8(), RailSet::from_bits(input.u8()), input.u8());
            let part = RailSet::only(rail);
            let (unsure, placed) = if flags & 1 == 0 { (part, RailSet::EMPTY) } else { (RailSet::EMPTY, part) };
            Listed {
                sequence: self.last_sequence.wrapping_sub(u32::from(back)),
                mask: mask | part,
                unsure,
                placed,
                size: (flags & 2 == 0).then(|| u32::from(input.u16())),
                is_refused: flags & 4 != 0,
            }
        };
        (0..count).map(entry).collect()
    }

    /// Says anything that a frame can say.
    fn say(&mut self, end: &mut impl Recovers, input: &mut Input<'_>) {
        let news = self.draw(input);
        self.hear(end, news);
    }

    fn draw(&self, input: &mut Input<'_>) -> RailNews {
        let rail = RailId::new(usize::from(input.u8()) % MAX_RAILS).unwrap_or_default();
        let incarnation = Incarnation(match input.u8() {
            0xff => input.u16(),
            few => u16::from(few % 4),
        });
        let endpoints = |count: u8| vec![LaneEndpoint([count; LaneEndpoint::BYTES]); 1 + usize::from(count % 16)];
        let message = match input.u8() % 6 {
            0 => RailMessage::Suspect,
            1 => RailMessage::Down(self.listed(input, rail)),
            2 => {
                let count = input.u8() % 5;
                let seen = |_| Seen {
                    sequence: self.last_sequence.wrapping_sub(u32::from(input.u8())),
                    parts: RailSet::from_bits(input.u8()),
                };
                RailMessage::State((0..count).map(seen).collect())
            }
            3 => RailMessage::Offer(endpoints(input.u8())),
            4 => RailMessage::Lanes { token: Token([input.u8(); 16]), endpoints: endpoints(input.u8()) },
            _ => RailMessage::Up,
        };
        RailNews { rail, incarnation, message }
    }

    /// Hands the end a message, as it would come out of a frame.
    fn hear(&mut self, end: &mut impl Recovers, news: RailNews) {
        if let RailMessage::Down(listed) = &news.message {
            self.named.extend(listed.iter().map(|listed| listed.sequence as u8));
        }
        let (frame, is_same) = decoded(Message::Rail(news));
        if let (Message::Rail(news), true) = (frame.message, is_same) {
            end.handle_rail_news(news, self.now_ns);
        }
    }

    /// Brings the socket of the lane that was dialled first, or none.
    fn dialled(&mut self, end: &mut impl Recovers, input: &mut Input<'_>) {
        let Some(dial) = self.dials.pop_front() else { return };
        let socket = if input.u8() == 0xff { Err("the script refuses it".to_owned()) } else { Ok(World::socket()) };
        end.handle_lane_dialled(&dial, socket, self.now_ns);
    }
}

/// Returns a message as it comes out of a frame, and true if a frame can carry it; otherwise the message itself.
fn decoded(message: Message) -> (Frame, bool) {
    let frame = Frame { connection: 1, message };
    match Frame::decode(&frame.encode()) {
        Ok(Some((again, _))) => (again, true),
        _ => (frame, false),
    }
}
