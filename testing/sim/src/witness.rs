//! The observer of a simulated world: writes the history, counts what is exercised, and tells the checkers.

use railweave_fabric::MemoryKind;
use railweave_fabric_sim::{Breach, Event, Landing as Landed, Mishap, Observer, Outage, Place, State};

use crate::counts::{Counts, Seen};
use crate::history::{Event as Line, History, Kind, Who};
use crate::task::Task;
use crate::watch::{Checker, Landing, Strike, Watch};

/// Bytes of the ring of CTS entries (docs/wire.md).
const CTS_RING_BYTES: u64 = 512 * 64;

/// Bytes of a CTS entry (docs/wire.md).
const CTS_BYTES: u64 = 64;

/// The world that a seed is played in.
pub(crate) type World = railweave_fabric_sim::World<Witness>;
/// The fabric in that world.
pub(crate) type Sim<const ONE_SIDED: bool> = railweave_fabric_sim::Sim<ONE_SIDED, Witness>;
/// A port in that world.
pub(crate) type SimDomain<const ONE_SIDED: bool> = railweave_fabric_sim::SimDomain<ONE_SIDED, Witness>;
/// Registered memory in that world.
pub(crate) type SimRegistration = railweave_fabric_sim::SimRegistration<Witness>;

/// Everything that has been seen of a seed.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    pub(crate) watch: Watch,
    pub(crate) counts: Counts,
    pub(crate) history: History,
}

/// Notes what processes and applications do, at the world's time.
pub(crate) trait Note {
    /// Adds an event to the history.
    fn record(&mut self, kind: Kind, who: Who, numbers: [u64; 4]);

    /// Counts something that was exercised.
    fn saw(&mut self, seen: Seen);
}

impl Note for State<Witness> {
    fn record(&mut self, kind: Kind, who: Who, numbers: [u64; 4]) {
        self.observer.record(self.now_ns, kind, who, numbers);
    }

    fn saw(&mut self, seen: Seen) {
        self.observer.counts.saw(seen);
    }
}

impl Witness {
    fn record(&mut self, at_ns: u64, kind: Kind, who: Who, numbers: [u64; 4]) {
        self.history.record(Line { at_ns, kind, who, numbers });
    }

    fn handle_breach(&mut self, now_ns: u64, place: Place, who: Who, breach: Breach) {
        let (checker, message) = match breach {
            Breach::SendQueue { chain, room } => {
                let text = format!("{who}: a chain of {chain} was posted to a send queue with room for {room}");
                (Checker::Queues, text)
            }
            Breach::CompletionQueue { depth } => {
                (Checker::Queues, format!("{who}: a completion queue of {depth} entries was overrun"))
            }
            Breach::Unsignalled { waiting, depth } => {
                (Checker::Leaks, format!("{who}: {waiting} of {depth} queue entries wait for a signalled write"))
            }
            Breach::NoReceive => {
                self.record(now_ns, Kind::NoReceive, who, [0; 4]);
                // The write waits for a receive until the lane is gone, and its part goes over another rail.
                if self.watch.is_given_up(place.connection, !place.sender, place.rail) {
                    return;
                }
                (Checker::Receives, format!("{who}: an immediate found no receive in the pool, or on its lane"))
            }
        };
        self.watch.violate(now_ns, checker, message);
    }

    fn handle_chain(&mut self, now_ns: u64, place: Place, chain: &[railweave_fabric::Write]) {
        let Place { connection, sender, rail, lane } = place;
        if self.watch.first_posted((connection, sender), (rail, lane.0), chain.len()) {
            return self.counts.saw(Seen::FirstPacket);
        }
        if !sender && chain.len() == 2 {
            self.counts.saw(Seen::CtsSplit);
        }
        let entries = chain.iter().map(|write| u64::from(write.local.length) / CTS_BYTES).sum();
        self.watch.posted(now_ns, (connection, sender), (rail, lane.0), entries, &mut self.counts);
    }

    /// Handles an outage. One that may outlast the retries may end the connection, because the protocol does not
    /// survive the failure of a lane.
    fn handle_outage(&mut self, place: Place, outage: Outage) -> (Kind, [u64; 4]) {
        self.counts.saw(if outage.is_long { Seen::OutageLong } else { Seen::Outage });
        if outage.is_long
            && let Some(watched) = self.watch.connections.get_mut(place.connection)
        {
            // Retries that begin in the outage may end after it.
            let until_ns = outage.until_ns.saturating_add(2 * self.watch.retry_ns);
            watched.blame.strike_until(outage.from_ns, until_ns, place.sender, Strike::RailSilent(place.rail));
        }
        let lost = u64::from(outage.writes) + 2 * u64::from(outage.acknowledgements);
        (Kind::Outage, [lost, outage.from_ns, outage.until_ns, 0])
    }

    fn handle_torn(&mut self, now_ns: u64, place: Place, landed: &Landed<'_>) {
        let (part, length) = (landed.bytes.len() as u64, u64::from(landed.write.local.length));
        self.counts.saw(Seen::Torn);
        self.record(now_ns, Kind::Torn, who(place), [part, length, 0, 0]);
        self.watch.arrived(now_ns, (place.connection, place.sender), place.rail);
        if place.sender && !landed.control {
            self.watch.touched(now_ns, place.connection, landed.start, part);
        }
    }

    fn handle_landed(&mut self, now_ns: u64, place: Place, landed: &Landed<'_>) {
        let Place { connection, sender, rail, lane } = place;
        let (start, control, immediate) = (landed.start, landed.control, landed.write.immediate);
        let length = landed.bytes.len() as u64;
        if landed.kind == MemoryKind::Cuda {
            self.watch.staged(connection, landed.write.remote.address, length, landed.port, landed.number);
        }
        self.record(now_ns, Kind::Land, who(place), [length, start, number_of(immediate), 0]);
        self.watch.arrived(now_ns, (connection, sender), rail);
        let landing = Landing { connection, rail, lane: lane.0, address: start, length, control, immediate };
        if self.watch.first_landed(now_ns, sender, &landing, landed.bytes) {
            return;
        }
        if control && !sender && start + length == CTS_RING_BYTES {
            self.counts.saw(Seen::RingWrapped);
        }
        if control && !sender {
            self.watch.cts_landed(now_ns, connection, (start, landed.bytes), &mut self.counts);
        }
        if sender {
            self.watch.landed(now_ns, &landing, landed.bytes, &mut self.counts);
        }
    }
}

impl Observer for Witness {
    type Task = Task;

    #[inline]
    fn see(&mut self, now_ns: u64, place: Place, event: &Event<'_>) {
        let who = who(place);
        let (kind, numbers) = match *event {
            Event::Taken { chain } => return self.handle_chain(now_ns, place, chain),
            Event::Posted { write, arrival_ns } => {
                let (length, immediate) = (u64::from(write.local.length), number_of(write.immediate));
                (Kind::Post, [length, immediate, u64::from(write.signalled), arrival_ns])
            }
            Event::Torn(ref landed) => return self.handle_torn(now_ns, place, landed),
            Event::Landed(ref landed) => return self.handle_landed(now_ns, place, landed),
            Event::Lost { fails_at_ns } => (Kind::Lost, [fails_at_ns, 0, 0, 0]),
            Event::AckLost { again_at_ns } => {
                self.counts.saw(Seen::AckLost);
                let Place { connection, sender, rail, .. } = place;
                if let Some(watched) = self.watch.connections.get_mut(connection) {
                    let strike = Strike::AcknowledgementLost(rail);
                    watched.blame.strike_until(now_ns, again_at_ns, sender, strike);
                }
                (Kind::AckLost, [again_at_ns, 0, 0, 0])
            }
            Event::NotOpened => {
                self.counts.saw(Seen::RailNotOpened);
                let watched = self.watch.connections.get_mut(place.connection);
                // Later the rail stays down, and is opened again.
                if let Some(watched) = watched.filter(|watched| !watched.is_up[usize::from(place.sender)]) {
                    watched.blame.not_opened(place.sender, place.rail);
                }
                return;
            }
            Event::Outage(outage) => self.handle_outage(place, outage),
            Event::Died { error } => {
                self.record(now_ns, Kind::Failed, who, [0; 4]);
                if let Some(watched) = self.watch.connections.get_mut(place.connection) {
                    watched.blame.lane_died(now_ns, place.sender, (place.rail, place.lane.0), error);
                    // It answers the other end no more.
                    watched.blame.strike(now_ns, !place.sender, Strike::RailSilent(place.rail));
                }
                return self.history.remark(&error.to_string());
            }
            Event::Sent { id } => (Kind::Sent, [id.0, 0, 0, 0]),
            Event::Received { immediate, bytes, forged } => {
                if forged {
                    self.watch.connections[place.connection].condemned = true;
                }
                self.watch.received(place.connection, place.rail, u64::from(bytes));
                (Kind::Received, [u64::from(immediate), u64::from(bytes), 0, 0])
            }
            Event::Failed => {
                self.watch.broke(now_ns, place.connection, place.sender);
                self.watch.gives_up(place.connection, place.sender, place.rail);
                (Kind::Failed, [1, 0, 0, 0])
            }
            Event::Broke => {
                self.watch.gives_up(place.connection, place.sender, place.rail);
                return self.watch.broke(now_ns, place.connection, place.sender);
            }
            Event::RoomWithheld => {
                self.counts.saw(Seen::RoomWithheld);
                (Kind::Refused, [0; 4])
            }
            Event::QueueFull => return self.counts.saw(Seen::QueueFull),
            Event::Receives { asked, taken } => (Kind::Receives, [u64::from(asked), u64::from(taken), 0, 0]),
            Event::ReceivesRefused => {
                self.counts.saw(Seen::ReceivesShort);
                (Kind::Refused, [1, 0, 0, 0])
            }
            Event::Flush { id } => {
                self.watch.flush_posted(now_ns, place.connection, place.sender);
                (Kind::Flush, [id.0, 0, 0, 0])
            }
            Event::FlushRefused => {
                self.counts.saw(Seen::FlushFull);
                (Kind::Refused, [2, 0, 0, 0])
            }
            Event::Flushed { id, port, landed } => {
                self.watch.flushed(place.connection, port, landed);
                (Kind::Flushed, [id.0, 0, 0, 0])
            }
            Event::Broken(breach) => return self.handle_breach(now_ns, place, who, breach),
        };
        self.record(now_ns, kind, who, numbers);
    }

    fn suffer(&mut self, mishap: Mishap) {
        self.counts.saw(match mishap {
            Mishap::Stall => Seen::Stall,
            Mishap::LateRead => Seen::LateRead,
            Mishap::LateCompletion => Seen::LateCompletion,
            Mishap::ShortPoll => Seen::ShortPoll,
            Mishap::BlindPoll => Seen::BlindPoll,
            Mishap::AckPutOff => Seen::AckPutOff,
            Mishap::AckRefused => Seen::AckRefused,
            Mishap::AckRefusedLong => Seen::AckRefusedLong,
            Mishap::AckStalled => Seen::AckStalled,
            Mishap::RateDrift => Seen::RateDrift,
            Mishap::RateJump => Seen::RateJump,
            Mishap::Standstill => Seen::Standstill,
            Mishap::WriteLostOneWay => Seen::WriteLostOneWay,
            Mishap::AckLostOneWay => Seen::AckLostOneWay,
            Mishap::LostInOutage => Seen::LostInOutage,
            Mishap::Recovered => Seen::Recovered,
            Mishap::RetriesEnded => Seen::RetriesEnded,
            Mishap::LandedLate => Seen::LandedLate,
            Mishap::PlacedInPart => Seen::PlacedInPart,
            Mishap::Fenced => Seen::Fenced,
            Mishap::CompletionsDropped | Mishap::CompletionsPurged | Mishap::CompletionsForgotten => {
                Seen::CompletionsLost
            }
            Mishap::KeyReused => Seen::KeyReused,
            Mishap::ConnectedLater => Seen::ConnectedLater,
            Mishap::Forged => Seen::HostileImmediate,
        });
    }
}

/// Returns a place as the history names it.
pub(crate) fn who(place: Place) -> Who {
    let Place { connection, sender, rail, lane } = place;
    Who::Rail { connection, sender, rail, lane: lane.0 }
}

/// Returns an immediate as a number for the history: `u64::MAX` if there is none.
fn number_of(immediate: Option<u32>) -> u64 {
    immediate.map_or(u64::MAX, u64::from)
}
