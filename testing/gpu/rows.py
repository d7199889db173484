"""The rows of one group: each is reported once, whatever happens to its processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from pair import START_LIMIT, Broken, Pair
from plan import RANKS
from report import FAILED, PASSED, SKIPPED, Report

# The number of last lines of a broken rank's output that are shown.
SHOWN = 8


class Rows:
    """The wanted rows of a group."""

    def __init__(self, report: Report, names: list[str], wanted: Callable[[str], bool]):
        self.report = report
        self.names = list(filter(wanted, names))
        self.done: set[str] = set()
        self.name, self.since = "", 0.0

    def begin(self, name: str) -> bool:
        """Begins this row; returns True if it is wanted."""
        self.name, self.since = name, time.monotonic()
        return name in self.names

    def end(self, wrong: list[str], detail: str = "") -> None:
        """Ends the current row, which has passed if nothing is `wrong`."""
        # A row that nobody asked for counts if something is wrong with it.
        if wrong or self.name in self.names:
            self.report.row(
                self.name, FAILED if wrong else PASSED, "; ".join(wrong) or detail, time.monotonic() - self.since
            )
            self.done.add(self.name)

    def use(self, start: Callable[[], Pair], limit: float, body: Callable[[Pair], None]) -> bool:
        """Starts a pair, does `body` with it and ends it; a failure fails the current row.

        `start` makes the pair; `limit` is for its end, in seconds. Returns True if nothing failed.
        """
        pair = None
        try:
            self.begin(self.named("start"))
            pair = start()
            pair.answers(START_LIMIT)
            self.end([])
            body(pair)
            self.begin(self.named("end"))
            pair.leave(limit)
            self.end([], "both processes ended by themselves")
            return True
        except Broken as broken:
            self.broken(broken, [pair] if pair else [])
            return False
        finally:
            if pair:
                pair.kill()

    def named(self, last: str) -> str:
        """Returns the name of the row `last` of this group."""
        return f"{self.names[0].partition('/')[0]}/{last}"

    def broken(self, broken: Broken, pairs: list[Pair]) -> None:
        """Fails the current row, shows the ranks' output, and reports the remaining rows as not run."""
        self.end([str(broken)])
        for pair in pairs:
            for rank in range(RANKS):
                self.show(f"rank {rank} of {pair.name} printed", pair.said(rank).splitlines())
        rest = [name for name in self.names if name not in self.done]
        self.done |= set(rest)
        if rest:
            self.report.row(self.named("*"), SKIPPED, f"not run after this (rows: {len(rest)})")

    def show(self, title: str, lines: list[str]) -> None:
        """Shows the last of `lines`, and writes all of them to the transcript."""
        if not lines:
            return
        self.report.note(f"  {title}:\n" + "\n".join(f"  | {line}" for line in lines[:-SHOWN]))
        self.report.line(f"  {title}, at the end:")
        for line in lines[-SHOWN:]:
            self.report.line(f"  | {line}")
