"""The check's output while it runs and at its end, for people and as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from plan import size_text
from refusal import Refusal

PASSED, FAILED, SKIPPED = "ok", "FAILED", "skipped"


@dataclass
class Row:
    """The result of one check."""

    nccl: str
    name: str
    status: str
    detail: str
    seconds: float


@dataclass
class Timing:
    """One collective over one transport: the median over all rounds."""

    nccl: str
    collective: str
    bytes: int
    transport: str
    seconds: float
    bus_gigabytes_per_second: float


class Report:
    """Collects rows and timings, and shows them as they come."""

    def __init__(self, as_json: bool, transcript: Path | None):
        """With `as_json`, standard output is only for the JSON."""
        self.as_json = as_json
        self.shown: TextIO = sys.stderr if as_json else sys.stdout
        try:
            self.transcript = transcript.open("w") if transcript else None
        except OSError as error:
            raise Refusal(f"--transcript {transcript} cannot be written: {error.strerror}") from None
        self.nccl = ""
        self.rows: list[Row] = []
        self.timings: list[Timing] = []

    def line(self, text: str = "") -> None:
        """Writes a line to the screen and the transcript."""
        print(text, file=self.shown, flush=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Writes a line only to the transcript."""
        if self.transcript:
            print(text, file=self.transcript, flush=True)

    def row(self, name: str, status: str, detail: str, seconds: float = 0.0) -> None:
        """Reports one check, done or skipped."""
        self.rows.append(Row(self.nccl, name, status, detail, round(seconds, 3)))
        time = f" ({seconds:.1f} s)" if seconds else ""
        self.line(f"{status:<8}{name:<34} {detail}{time}")

    def timing(self, timing: Timing) -> None:
        self.timings.append(timing)

    def table(self) -> None:
        """Shows the timings of the current NCCL, with a column per transport."""
        timings = [timing for timing in self.timings if timing.nccl == self.nccl]
        transports = list(dict.fromkeys(timing.transport for timing in timings))
        if not transports:
            return
        self.line()
        self.line(f"{'median of one collective':<26}" + "".join(f"{transport:>28}" for transport in transports))
        cells: dict[tuple[str, int], dict[str, Timing]] = {}
        for timing in timings:
            cells.setdefault((timing.collective, timing.bytes), {})[timing.transport] = timing
        for (collective, size), cell in cells.items():
            line = f"{collective:<15}{size_text(size):>11}"
            for transport in transports:
                timing = cell.get(transport)
                figures = (
                    f"{timing.seconds * 1e6:.1f} us {timing.bus_gigabytes_per_second:8.3f} GB/s" if timing else "-"
                )
                line += f"{figures:>28}"
            self.line(line)

    def finish(self, seconds: float) -> bool:
        """Shows the last lines, and the JSON if it is wanted; returns True if nothing failed."""
        count = {status: sum(row.status == status for row in self.rows) for status in (PASSED, FAILED, SKIPPED)}
        self.line()
        for row in self.rows:
            if row.status == FAILED:
                self.line(f"failed: {row.nccl} {row.name}: {row.detail}")
        self.line(f"{count[PASSED]} passed, {count[FAILED]} failed, {count[SKIPPED]} skipped in {seconds:.0f} s")
        if self.as_json:
            whole = {
                "passed": count[PASSED],
                "failed": count[FAILED],
                "skipped": count[SKIPPED],
                "seconds": round(seconds, 1),
                "rows": [asdict(row) for row in self.rows],
                "timings": [asdict(timing) for timing in self.timings],
            }
            print(json.dumps(whole, indent=1))
        if self.transcript:
            self.transcript.close()
        # A check that checked nothing has not passed.
        return count[FAILED] == 0 and count[PASSED] > 0
