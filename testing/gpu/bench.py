"""Times collectives over each transport in turns, in one go; compare figures within one line."""

from __future__ import annotations

import statistics
import typing

from pair import START_LIMIT, Broken, Pair
from plan import BUS_SHARES, ROUND_SECONDS, ROUNDS, ROUNDS_QUICK, TRANSPORTS, Run, row_name, size_text, timed
from report import SKIPPED, Timing
from rows import Rows

if typing.TYPE_CHECKING:
    from session import Session

# Seconds for one round, and for the processes to end.
STEP_LIMIT, LEAVE_LIMIT = 60.0, 30.0


class Bench:
    """The transports of one session, timed in turns."""

    def __init__(self, session: Session, quick: bool):
        self.session, self.report = session, session.report
        self.rounds = ROUNDS_QUICK if quick else ROUNDS
        self.cells = timed(quick)
        self.transports = [Run("gloo", "gloo alone")] if session.gloo else list(TRANSPORTS)

    def run(self) -> None:
        """Times every wanted collective and shows the table."""
        rows = Rows(self.report, list(self.cells.values()), self.session.wanted)
        if not rows.names:
            return
        if self.session.gloo:
            self.report.row("bench/next to Socket", SKIPPED, "NCCL's own socket transport needs NCCL")
        pairs: dict[str, Pair] = {}
        whole = False
        try:
            rows.begin(row_name("bench", "start"))
            largest = max(size for _, size in self.cells)
            for transport in self.transports:
                pairs[transport.name] = self.session.start(transport, largest)
            # All start at the same time.
            for pair in pairs.values():
                pair.answers(START_LIMIT)
            for cell, name in self.cells.items():
                if rows.begin(name):
                    rows.end([], self.time(pairs, *cell))
            rows.begin(row_name("bench", "end"))
            for pair in pairs.values():
                pair.leave(LEAVE_LIMIT)
            whole = True
        except Broken as broken:
            rows.broken(broken, list(pairs.values()))
        finally:
            for pair in pairs.values():
                pair.kill()
        if not self.session.gloo:
            for transport in self.transports:
                name = row_name("bench", "log", transport.name)
                rows.names.append(name)
                self.session.judge_log(rows, transport, name, whole)
        self.report.table()

    def time(self, pairs: dict[str, Pair], collective: str, size: int) -> str:
        """Times one collective of `size` bytes over each of `pairs`, and returns its report."""
        times: dict[str, list[float]] = {name: [] for name in pairs}
        # The first round finds out how many iterations fit into a round.
        iterations = dict.fromkeys(pairs, 3)
        for turn in range(1 + self.rounds):
            for name, pair in pairs.items():
                step = {"do": "measure", "collective": collective, "type": "float32", "bytes": size, "seed": 0}
                phase = f"{collective} of {size_text(size)}, {iterations[name]} times"
                answers = pair.step(phase, STEP_LIMIT, **step, iterations=iterations[name])
                # The slower rank counts: a collective has ended only when it has ended at both.
                seconds = max(answer["seconds"] for answer in answers)
                if turn > 0:
                    times[name].append(seconds)
                else:
                    iterations[name] = max(3, min(1000, int(ROUND_SECONDS / seconds)))
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, seconds in medians.items():
            bus = size * BUS_SHARES[collective] / seconds / 1e9
            self.report.timing(Timing(self.report.nccl, collective, size, name, seconds, bus))
        last = list(medians)[-1]
        others = [
            f"{name}: {medians[last] / seconds:.2f} times as fast as {last}"
            for name, seconds in medians.items()
            if name != last
        ]
        return "; ".join(others) or f"{medians[last] * 1e6:.1f} us"
