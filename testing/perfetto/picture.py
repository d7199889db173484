#!/usr/bin/env python3
"""Draws a part of a trace that `railweave trace` made for Perfetto: the picture of docs/tracing.md.

    picture.py JOB.pftrace > docs/pictures/trace.svg

It shows a process and two of its connections, those that send the most. All that it draws is read from the file with
Perfetto's own protos (check.py). For the picture of the page, as root:

    RAILWEAVE_TRACE=traces railweave demo --shape 80,20 --pull
    railweave trace traces -o job.pftrace
"""

import argparse
import collections
import pathlib
from xml.sax.saxutils import escape

import check

WIDTH, LEFT, RIGHT = 1000, 196, 12
SPACE = 6
BLUE, ORANGE, GREEN, RED, GREY = "#3b6fb6", "#d9822b", "#3d8b5f", "#c23b3b", "#888888"


class Picture:
    """Rows of a picture, from the top down."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end
        self.parts = []
        self.y = 8

    def x(self, at):
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - self.begin) / (self.end - self.begin)

    def text(self, x, y, text, style=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>')

    def title(self, text, depth):
        self.text(8 + 12 * depth, self.y + 13, text, ' font-weight="bold"')
        self.y += 20

    def row(self, name, height):
        """Begins a row. Returns its upper edge."""
        top = self.y
        self.text(32, top + min(height, 16) - 3, name)
        self.parts.append(f'<path d="M{LEFT} {top + height}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        self.y += height + SPACE
        return top

    def slices(self, name, slices, color, names=False):
        """Draws slices, which may overlap."""
        top = self.row(name, 16)
        for begin, end, text in slices:
            x, width = self.x(begin), max(self.x(end) - self.x(begin), 0.8)
            self.parts.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="16" fill="{color}"/>')
            # A letter is about 6.5 wide.
            if names and width > 6.5 * len(text):
                self.text(x + 3, top + 12, text, ' fill="#ffffff"')

    def counter(self, name, points, color, most, unit):
        """Draws a number that holds until the next point."""
        top, height = self.row(name, 36), 36
        path = ""
        for at, value in points:
            y = top + height * (1 - min(value / most, 1))
            path += f"H{self.x(at):.1f}V{y:.1f}" if path else f"M{self.x(at):.1f} {y:.1f}"
        if path:
            self.parts.append(f'<path d="{path}H{self.x(self.end):.1f}" stroke="{color}" fill="none"/>')
        self.text(LEFT - 6, top + 9, f"{most:g} {unit}", ' text-anchor="end" font-size="9"')

    def instants(self, name, instants):
        """Draws instants."""
        top = self.row(name, 16)
        for at, _ in instants:
            x = self.x(at)
            self.parts.append(f'<path d="M{x:.1f} {top}l4 8l-4 8l-4 -8z" fill="{GREEN}"/>')

    def axis(self):
        seconds = (self.end - self.begin) / 1e9
        step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if seconds / step <= 12)
        at = 0
        while at <= seconds:
            x = self.x(self.begin + at * 1e9)
            self.parts.insert(0, f'<path d="M{x:.1f} 20V{self.y}" stroke="#eeeeee"/>')
            self.text(x, self.y + 12, f"{at:g} s", ' text-anchor="middle"')
            at += step
        self.y += 20

    def svg(self):
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y}" '
                'font-family="sans-serif" font-size="11">',
                f'<rect width="{WIDTH}" height="{self.y}" fill="#ffffff"/>',
                *self.parts,
                "</svg>",
            ]
        )


def most_of(points):
    """Returns a round number that few of the values are above: short peaks would make the rest illegible."""
    values = sorted(value for _, value in points if value > 0) or [1]
    high = values[int(0.97 * (len(values) - 1))]
    unit = 10 ** (len(str(int(high))) - 1)
    return -(-high // unit) * unit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path, help="the trace")
    tracks, slices, _ = check.read(parser.parse_args().file.read_bytes())
    path = check.places(tracks)
    by_path = collections.defaultdict(list)
    sent = collections.Counter()
    for track, name, facts, begin, end in sorted(slices, key=lambda it: it[3]):
        by_path[path[track]].append((begin, end, name))
        if name.startswith("piece") and "-> " in path[track][-1]:
            sent[path[track][:3]] += facts["bytes"]
    counters = {path[number]: track.counts for number, track in tracks.items() if track.counts}
    instants = {path[number]: track.instants for number, track in tracks.items() if track.instants}
    ((most, _),) = sent.most_common(1)
    rank = most[:2]
    connections = sorted((of for of in sent if of[:2] == rank), key=lambda of: -sent[of])[:2]
    all_ends = [end for _, _, _, _, end in slices]
    picture = Picture(min(begin for _, _, _, begin, _ in slices), max(all_ends))
    picture.title(f"{rank[0]}: {rank[1]}", 0)
    picture.instants("events", instants.get((*rank, "events"), []))
    for of, its in by_path.items():
        if of[:2] == rank and len(of) == 3 and of[2].endswith(": collectives"):
            picture.slices("collectives", its, BLUE, names=True)
    for connection in connections:
        picture.title(connection[2], 1)
        picture.slices("waits for CTS", by_path.get((*connection, "waits for CTS"), []), GREY)
        rails = sorted({of[3] for of in by_path if of[:3] == connection and len(of) == 4 and "-> " in of[3]})
        rates = [point for rail in rails for point in counters.get((*connection, f"{rail[:6]}: rate"), [])]
        for rail in rails:
            short = rail[:6]
            picture.title(rail, 2)
            picture.slices("pieces", by_path[(*connection, rail)], ORANGE)
            if (*connection, f"{short}: down") in by_path:
                picture.slices("down", by_path[(*connection, f"{short}: down")], RED, names=True)
            picture.counter("rate", counters.get((*connection, f"{short}: rate"), []), ORANGE, most_of(rates), "Mbit/s")
            picture.counter("share", counters.get((*connection, f"{short}: share"), []), BLUE, 100, "%")
    picture.axis()
    print(picture.svg())


if __name__ == "__main__":
    main()
