//! Sabotage of sessions and handshakes: of the frames between their ends, and of the grace that connections have.

use std::sync::Arc;

use railweave_fabric::RailSet;
use railweave_transport::{Frame, Message, Probe, RailCounters, RailLanes, RailMessage, RailName};

use super::kind::Sabotage;
use super::plot::Plot;

impl Plot {
    /// Returns the frame that arrives in place of this one, which this end of a session sends; `None` if it is lost.
    pub(crate) fn carried(&self, end: usize, mut frame: Frame) -> Option<Frame> {
        if self.is(Sabotage::RailNewsLost) && matches!(frame.message, Message::Rail(_)) {
            return self.is_first_of(end, frame.encode()).then_some(frame);
        }
        let connection = frame.connection;
        match &mut frame.message {
            Message::Rail(news) => return self.spoil_news(connection, &mut news.message).then_some(frame),
            Message::Bye(_) if self.is(Sabotage::ByeForgotten) => return None,
            Message::Lanes(_) if self.is(Sabotage::LanesForgotten) => return None,
            Message::Lanes(_) if self.is(Sabotage::ProofAgain) => frame.message = Message::Proof([0; 32]),
            Message::Lanes(lanes) if self.is(Sabotage::ByteSumTrusted) => lanes.byte_counts = true,
            Message::Lanes(lanes) if self.is(Sabotage::RailDropped) && lanes.rails.len() > 1 => {
                *lanes.rails.last_mut()? = RailLanes::Dropped { reason: "it is sabotaged".into(), is_of_way: false };
            }
            Message::Resume(resume) if self.is(Sabotage::MessageSkipped) => resume.received += 1,
            Message::Resumed(Some(received)) if self.is(Sabotage::MessageSkipped) => *received += 1,
            Message::Ready { usable } if self.is(Sabotage::ReadyLacksRail) => *usable &= *usable - 1,
            _ => {}
        }
        Some(frame)
    }

    /// Sabotages a step of a recovery. Returns false if it is lost.
    fn spoil_news(&self, connection: u32, message: &mut RailMessage) -> bool {
        match (self.sabotage(), message) {
            (Some(Sabotage::AllUnseen), RailMessage::State(seen)) => {
                seen.iter_mut().for_each(|seen| seen.parts = RailSet::EMPTY);
            }
            (Some(Sabotage::AllSeen), RailMessage::State(seen)) => {
                seen.iter_mut().for_each(|seen| seen.parts = RailSet::ALL);
            }
            (Some(Sabotage::StateOfBefore), RailMessage::State(seen)) => {
                *seen = self.exchange_seen(connection, std::mem::take(seen));
            }
            (Some(Sabotage::IdleDownLost), RailMessage::Down(listed)) => return !listed.is_empty(),
            _ => {}
        }
        true
    }

    /// Returns the number of times that a frame is sent.
    pub(crate) fn copies(&self, frame: &Frame) -> usize {
        if matches!(frame.message, Message::Lanes(_)) && self.is(Sabotage::LanesAgain) { 14 } else { 1 }
    }

    /// Returns the time, in nanoseconds, for which a connection outlives its peer's BYE or its session: `grace_ns`,
    /// unless that is sabotaged.
    pub(crate) fn grace_ns(&self, grace_ns: u64) -> u64 {
        if self.is(Sabotage::GraceForgotten) { 0 } else { grace_ns }
    }

    /// Returns the state of a probe as its session is told of it.
    pub(crate) fn probe(&self, probe: Probe) -> Probe {
        match self.sabotage() {
            Some(Sabotage::SignBelieved) => Probe::Outstanding { by_adapter: false },
            Some(Sabotage::SilenceCondemns) => Probe::Outstanding { by_adapter: true },
            _ => probe,
        }
    }

    /// Returns the time at which an end's peer was last heard, as its looks for silent rails are told of it.
    pub(crate) fn heard_ns(&self, heard_ns: u64) -> u64 {
        if self.is(Sabotage::PeerUnheard) { 0 } else { heard_ns }
    }

    /// Returns the bytes of a frame as they arrive.
    pub(crate) fn carried_bytes(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if self.is(Sabotage::FrameCut) {
            bytes.pop();
        }
        bytes
    }

    /// Returns the weight that one end of a connection is given for its port with this number.
    pub(crate) fn weight(&self, sender: bool, port: usize, weight: Option<u32>) -> Option<u32> {
        match self.sabotage() {
            Some(Sabotage::WeightsIgnored) if sender => Some(1),
            Some(Sabotage::WeightDecides) if sender && port > 0 => Some(0),
            Some(Sabotage::CtsWeightsIgnored) if !sender => Some(1),
            Some(Sabotage::WeightlessRailUsed) if sender && weight == Some(0) => Some(1),
            _ => weight,
        }
    }

    /// Returns the size from which messages are split.
    pub(crate) fn split_min(&self, split_min: u64) -> u64 {
        if self.is(Sabotage::ShortSplit) { 0 } else { split_min }
    }

    /// Returns the rails that an end's handshake has reported as left out.
    pub(crate) fn left_out(&self, left_out: RailSet) -> RailSet {
        if self.is(Sabotage::LeftOutUnreported) { RailSet::EMPTY } else { left_out }
    }

    /// Returns the source of the counters of a connection's rails.
    pub(crate) fn counters(&self) -> impl Fn(&RailName) -> Arc<RailCounters> + Send + 'static {
        let shared = self.is(Sabotage::CountersShared).then(Arc::default);
        move |_| shared.clone().unwrap_or_default()
    }
}
