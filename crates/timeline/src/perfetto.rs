//! Perfetto's format: packets of tracks and of events on them.

use crate::draw::draw;
use crate::draw::sink::{Content, Fact, Sink, Slice, Track, Unit, Value};
use crate::proto::{
    self, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, InternedData, InternedName, TracePacket,
    TrackDescriptor, TrackEvent,
};
use crate::timeline::Timeline;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::HashMap;
use std::io::{self, Write};

/// The one sequence of packets, by which the numbers of names hold.
const SEQUENCE: u32 = 1;

/// The most names of slices that get a number; others are written where they occur.
const MOST_NAMES: usize = 1 << 16;

/// Writes a timeline in Perfetto's format. Times count from the first event; a snapshot of the clocks says when that
/// was.
///
/// # Errors
/// Those of `out`.
pub fn write_perfetto(timeline: &Timeline, out: &mut dyn Write) -> io::Result<()> {
    let mut sink = Perfetto { out, bytes: Vec::new(), names: HashMap::new(), fact_names: HashMap::new() };
    let clock = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
    let clocks = vec![clock(proto::BOOTTIME, 0), clock(proto::REALTIME, timeline.wall_ns)];
    let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(proto::BOOTTIME as i32) };
    // The first packet of a sequence says that no earlier numbers hold.
    let sequence_flags = Some(proto::STATE_CLEARED);
    sink.packet(TracePacket { clock_snapshot: Some(snapshot), sequence_flags, ..TracePacket::default() })?;
    draw(timeline, &mut sink)
}

struct Perfetto<'a> {
    out: &'a mut dyn Write,
    bytes: Vec<u8>,
    /// The numbers of the names of slices, from 1.
    names: HashMap<String, u64>,
    /// The numbers of the names of facts, from 1.
    fact_names: HashMap<&'static str, u64>,
}

impl Perfetto<'_> {
    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        self.bytes.clear();
        encode_key(proto::PACKET, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(packet.encoded_len() as u64, &mut self.bytes);
        packet.encode_raw(&mut self.bytes);
        self.out.write_all(&self.bytes)
    }

    fn event(&mut self, at: u64, mut event: TrackEvent, name: &str, facts: &[Fact<'_>]) -> io::Result<()> {
        let mut interned = InternedData::default();
        match self.names.get(name) {
            Some(iid) => event.name_iid = Some(*iid),
            None if self.names.len() < MOST_NAMES => {
                let iid = self.names.len() as u64 + 1;
                self.names.insert(name.to_owned(), iid);
                interned.event_names.push(InternedName { iid: Some(iid), name: Some(name.to_owned()) });
                event.name_iid = Some(iid);
            }
            None => event.name = Some(name.to_owned()),
        }
        for (name, value) in facts {
            let next = self.fact_names.len() as u64 + 1;
            let iid = *self.fact_names.entry(name).or_insert(next);
            if iid == next {
                let named = InternedName { iid: Some(iid), name: Some((*name).to_owned()) };
                interned.debug_annotation_names.push(named);
            }
            let mut fact = DebugAnnotation { name_iid: Some(iid), ..DebugAnnotation::default() };
            match value {
                Value::Number(number) => fact.uint_value = Some(*number),
                Value::Real(number) => fact.double_value = Some(*number),
                Value::Flag(flag) => fact.bool_value = Some(*flag),
                Value::Text(text) => fact.string_value = Some((*text).to_owned()),
            }
            event.debug_annotations.push(fact);
        }
        let has_new = interned != InternedData::default();
        self.packet(TracePacket {
            timestamp: Some(at),
            track_event: Some(event),
            interned_data: has_new.then_some(interned),
            sequence_flags: Some(proto::NEEDS_STATE),
            ..TracePacket::default()
        })
    }
}

fn on(track: u64, kind: i32) -> TrackEvent {
    TrackEvent { r#type: Some(kind), track_uuid: Some(track), ..TrackEvent::default() }
}

impl Sink for Perfetto<'_> {
    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        let counter = match track.content {
            Content::Counter(Unit::Mbps) => Some((None, Some("Mbit/s"))),
            Content::Counter(Unit::Percent) => Some((None, Some("%"))),
            Content::Counter(Unit::Bytes) => Some((Some(proto::SIZE_BYTES), None)),
            _ => None,
        };
        let counter = counter.map(|(unit, name)| CounterDescriptor { unit, unit_name: name.map(str::to_owned) });
        let has_parts = matches!(track.content, Content::Host | Content::Rank { .. } | Content::Group);
        let descriptor = TrackDescriptor {
            uuid: Some(track.number),
            name: Some(track.name.to_owned()),
            parent_uuid: (track.parent != 0).then_some(track.parent),
            counter,
            child_ordering: has_parts.then_some(proto::EXPLICIT),
            sibling_order_rank: Some(track.place),
        };
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn begin(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        let event = TrackEvent { flow_ids: slice.flows.to_vec(), ..on(slice.track, proto::SLICE_BEGIN) };
        self.event(slice.from, event, slice.name, slice.facts)
    }

    fn end(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: Some(slice.to),
            track_event: Some(on(slice.track, proto::SLICE_END)),
            ..TracePacket::default()
        })
    }

    fn instant(&mut self, track: u64, at: u64, name: &str, facts: &[Fact<'_>]) -> io::Result<()> {
        self.event(at, on(track, proto::INSTANT), name, facts)
    }

    fn count(&mut self, track: u64, at: u64, value: f64) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: Some(at),
            track_event: Some(TrackEvent { double_counter_value: Some(value), ..on(track, proto::COUNTER) }),
            ..TracePacket::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Choice;
    use crate::{Connection, Piece, Rank, Request};
    use std::collections::BTreeMap;

    /// All packets of a file: Perfetto's `Trace`.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packet: Vec<TracePacket>,
    }

    /// A rank with two sends over one rail, at the same time.
    fn packets() -> Vec<TracePacket> {
        let piece = |begin, end, bytes| Piece { rail: 0, begin, end: Some(end), bytes };
        let request = |number, begin, end, bytes| Request {
            number,
            asked: crate::Asked::Send,
            begin,
            end: Some(end),
            bytes,
            cts_wait: None,
            event: 0,
            pieces: vec![piece(begin, end, bytes)],
        };
        let requests = vec![request(1, 100, 200, 10), request(2, 150, 250, 20)];
        let mut connection = Connection { requests, ..Connection::default() };
        connection.facts.sends = true;
        let connections = BTreeMap::from([(1, connection)]);
        let rank = Rank { span: Some((100, 250)), connections, ..Rank::default() };
        let mut bytes = Vec::new();
        write_perfetto(&Timeline::join(vec![rank], Choice::Newest).unwrap(), &mut bytes).unwrap();
        Trace::decode(&bytes[..]).unwrap().packet
    }

    #[test]
    fn each_slice_has_its_begin_and_end_on_a_track_of_its_own() {
        let packets = packets();
        let mut open: BTreeMap<u64, u64> = BTreeMap::new();
        let mut slices = 0;
        for packet in &packets {
            let Some(event) = &packet.track_event else { continue };
            let (track, at) = (event.track_uuid.unwrap(), packet.timestamp.unwrap());
            match event.r#type.unwrap() {
                proto::SLICE_BEGIN => assert_eq!(open.insert(track, at), None, "slices of one line do not overlap"),
                proto::SLICE_END => {
                    assert!(open.remove(&track).unwrap() <= at);
                    slices += 1;
                }
                _ => {}
            }
        }
        assert_eq!((slices, open.len()), (4, 0));
        let parents: Vec<_> = packets.iter().filter_map(|it| it.track_descriptor.as_ref()).collect();
        for track in &parents {
            let is_parent = |it: &&&TrackDescriptor| it.uuid == track.parent_uuid;
            assert!(track.parent_uuid.is_none() || parents.iter().any(|it| is_parent(&it)), "{track:?}");
        }
    }

    #[test]
    fn names_are_written_once_and_meant_by_their_numbers() {
        let packets = packets();
        assert_eq!(packets[0].sequence_flags, Some(proto::STATE_CLEARED));
        let interned = || packets.iter().filter_map(|it| it.interned_data.as_ref());
        let names: Vec<_> = interned().flat_map(|it| &it.event_names).filter_map(|it| it.name.as_deref()).collect();
        assert_eq!(names, ["send", "piece"]);
        let facts: Vec<_> =
            interned().flat_map(|it| &it.debug_annotation_names).filter_map(|it| it.name.as_deref()).collect();
        assert_eq!(facts, ["request", "bytes"]);
    }

    #[test]
    fn a_request_and_its_piece_share_a_flow() {
        let packets = packets();
        let mut flows: BTreeMap<u64, usize> = BTreeMap::new();
        let events = packets.iter().filter_map(|it| it.track_event.as_ref());
        events.flat_map(|it| &it.flow_ids).for_each(|id| *flows.entry(*id).or_default() += 1);
        assert_eq!(flows.into_values().collect::<Vec<_>>(), [2, 2]);
    }
}
