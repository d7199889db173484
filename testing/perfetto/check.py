#!/usr/bin/env python3
"""Reads a trace that `railweave trace` made with Perfetto's own protos, and checks it against the summary.

    check.py --railweave PROGRAM FOLDER

The Python packages `perfetto` and `protobuf` have the protos; Perfetto's trace processor, which its viewer runs too, is
a program that they fetch when it is used, so it is not used here. The checks are those that its importer would make:
each packet is one that the protos know, each number of a name has been defined, each track's parent exists, slices of a
track nest, and every slice ends. Bytes of pieces, summed up by rail, are those of `railweave trace summary --json`.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent, TracePacket


class Track:
    """A track with what was drawn on it."""

    def __init__(self, descriptor):
        self.name = descriptor.name
        self.parent = descriptor.parent_uuid
        self.is_counter = descriptor.HasField("counter")
        self.open = []
        self.slices = 0
        self.counts = []
        self.instants = []


def unknown(message, path="packet"):
    """Returns the paths of fields that the protos do not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [f"{path}.{field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        parts = value if isinstance(value, collections.abc.Iterable) else [value]
        for part in parts:
            found += unknown(part, f"{path}.{field.name}")
    return found


def read(data):
    """Reads the packets and returns the tracks, the slices as (track, name, facts, begin, end), and the flows."""
    trace = Trace()
    trace.ParseFromString(data)
    assert trace.packet, "there are no packets"
    assert trace.packet[0].sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, "numbers of names may be old"
    tracks, names, fact_names = {}, {}, {}
    slices, flows, last = [], collections.Counter(), {}
    for packet in trace.packet:
        assert not unknown(packet), unknown(packet)
        assert packet.trusted_packet_sequence_id == 1
        for name in packet.interned_data.event_names:
            names[name.iid] = name.name
        for name in packet.interned_data.debug_annotation_names:
            fact_names[name.iid] = name.name
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in tracks and descriptor.uuid != 0
            assert not descriptor.parent_uuid or descriptor.parent_uuid in tracks, f"{descriptor.name} has no parent"
            tracks[descriptor.uuid] = Track(descriptor)
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        is_count = event.type == TrackEvent.TYPE_COUNTER
        assert is_count == track.is_counter, f"{track.name} is of another kind than its events"
        if is_count:
            assert event.HasField("double_counter_value")
            track.counts.append((at, event.double_counter_value))
            continue
        # The importer sorts packets by time, and keeps the order of those with the same one.
        assert at >= last.get(event.track_uuid, 0), f"{track.name}: {at} comes after {last[event.track_uuid]}"
        last[event.track_uuid] = at
        if event.type == TrackEvent.TYPE_SLICE_END:
            name, facts, begin = track.open.pop()
            slices.append((event.track_uuid, name, facts, begin, at))
            track.slices += 1
            continue
        name = names[event.name_iid] if event.name_iid else event.name
        facts = {}
        for fact in event.debug_annotations:
            facts[fact_names[fact.name_iid]] = getattr(fact, fact.WhichOneof("value"))
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            track.open.append((name, facts, at))
            flows.update(event.flow_ids)
        else:
            assert event.type == TrackEvent.TYPE_INSTANT, event.type
            track.instants.append((at, name))
    for track in tracks.values():
        assert not track.open, f"{track.name}: {track.open} does not end"
    return tracks, slices, flows


def places(tracks):
    """Returns the names of each track and of those around it, outermost first."""
    found = {}
    for uuid, track in tracks.items():
        found[uuid] = found.get(track.parent, ()) + (track.name,)
    return found


def compare(tracks, slices, summary):
    """Checks the bytes of each sending rail's pieces."""
    path = places(tracks)
    drawn, counts = collections.Counter(), collections.Counter()
    for track, name, facts, begin, end in slices:
        if not name.startswith("piece"):
            continue
        host, rank, connection, rail = path[track]
        number = int(re.search(r"\(connection (\d+)", connection)[1])
        pid = int(re.search(r"pid (\d+)", rank)[1])
        drawn[host, pid, number, rail] += facts["bytes"]
        counts[host, pid, number, rail] += 1
    assert len(summary["rails"]) > 0, "the summary has no rails"
    for rail in summary["rails"]:
        rank = rail["rank"]
        key = (rank["host"], rank["pid"], rail["connection"], rail["rail"])
        assert counts[key] == rail["pieces"], f"{key}: {counts[key]} pieces drawn, {rail['pieces']} in the summary"
        if rail["sends"]:
            assert drawn[key] == rail["bytes"], f"{key}: {drawn[key]} bytes drawn, {rail['bytes']} in the summary"
    assert len(counts) == sum(rail["pieces"] > 0 for rail in summary["rails"])
    return sum(drawn.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--railweave", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("folder", type=pathlib.Path, help="a folder with traces")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "a.pftrace"
        trace = [arguments.railweave, "trace"]
        subprocess.run([*trace, arguments.folder, "-o", path], check=True, stdout=subprocess.DEVNULL)
        tracks, slices, flows = read(path.read_bytes())
    summary = subprocess.run([*trace, "summary", "--json", arguments.folder], check=True, stdout=subprocess.PIPE)
    total = compare(tracks, slices, json.loads(summary.stdout))
    joined = sum(count > 1 for count in flows.values())
    assert joined > 0, "no arrow joins two slices"
    instants = sum(not track.is_counter and not track.slices for track in tracks.values())
    counters = sum(track.is_counter and bool(track.counts) for track in tracks.values())
    print(
        f"{len(tracks)} tracks ({counters} counters, {instants} groups or instants), {len(slices)} slices, "
        f"{joined} arrows, {total} bytes in pieces: as in the summary"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
