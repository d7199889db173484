"""Two worker processes: starting them, giving them steps, and ending them in any case."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from plan import RANKS

WORKER = Path(__file__).with_name("worker.py")

# Seconds for start-up (importing PyTorch, CUDA, the first collective), and for the other rank after one has failed.
START_LIMIT, GRACE = 90.0, 5.0

# Seconds after which PyTorch gives up on a collective: later than the check, which can report more.
GROUP_TIMEOUT = 300.0


class Broken(Exception):
    """A pair that cannot go on: the reason and the phase."""


class Pair:
    """Two ranks with the same settings."""

    def __init__(
        self, name: str, folder: Path, arguments: list[str], environments: list[dict[str, str]], deadline: float
    ):
        """Starts the workers with `arguments`, each with its environment.

        `folder` gets their output. `deadline`, in seconds of `time.monotonic`, ends every phase.
        """
        self.name, self.deadline = name, deadline
        self.phase = "start"
        self.selector = selectors.DefaultSelector()
        # Per rank: the bytes after its last whole line, and the lines that were not taken yet.
        self.unread = [b""] * RANKS
        self.lines: list[deque[bytes]] = [deque() for _ in range(RANKS)]
        self.ended: set[int] = set()
        self.workers: list[subprocess.Popen] = []
        self.outputs: list[Path] = []
        try:
            for rank in range(RANKS):
                self._start(rank, folder, arguments, environments[rank])
        except BaseException:
            self.kill()
            raise

    def _start(self, rank: int, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
        output = folder / f"{self.name}-{rank}.out"
        reading, writing = os.pipe()
        # -B: the folder may be read-only and stays unchanged.
        program = [sys.executable, "-B", str(WORKER), f"--rank={rank}", f"--name={self.name}", f"--answers={writing}"]
        with output.open("wb") as file:
            worker = subprocess.Popen(
                [*program, f"--timeout={GROUP_TIMEOUT}", *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                # An interrupt is for the check, which ends its workers.
                start_new_session=True,
            )
        os.close(writing)
        self.workers.append(worker)
        self.outputs.append(output)
        self.selector.register(reading, selectors.EVENT_READ, rank)

    def step(self, phase: str, limit: float, **step) -> list[dict]:
        """Makes both ranks do `step`, and returns their answers."""
        self.tell(phase, **step)
        return self.answers(limit)

    def tell(self, phase: str, **step) -> None:
        """Sends `step` to both ranks."""
        self.phase = phase
        line = (json.dumps(step) + "\n").encode()
        for worker in self.workers:
            try:
                worker.stdin.write(line)
            except BrokenPipeError:
                # The missing answer will say why.
                pass

    def answers(self, limit: float, ranks: tuple[int, ...] = tuple(range(RANKS))) -> list[dict]:
        """Returns an answer from each of `ranks` within `limit` seconds; raises Broken otherwise."""
        until = min(time.monotonic() + limit, self.deadline)
        answers: dict[int, dict] = {}
        wrong: dict[int, str] = {}
        while True:
            for rank in ranks:
                if rank not in answers and self.lines[rank]:
                    answers[rank] = json.loads(self.lines[rank].popleft())
                    if "error" in answers[rank]:
                        wrong[rank] = f"rank {rank}: {answers[rank]['error']}"
                elif rank not in answers and rank in self.ended:
                    wrong.setdefault(rank, self._ended(rank))
            if wrong:
                until = min(until, time.monotonic() + GRACE)
            if len(answers.keys() | wrong.keys()) == len(ranks) or time.monotonic() >= until:
                break
            for key, _ in self.selector.select(until - time.monotonic()):
                self._read(key.fd, key.data)
        if wrong:
            self.kill()
            raise Broken(f'{self.name}: in "{self.phase}": ' + "; ".join(wrong[rank] for rank in sorted(wrong)))
        silent = [rank for rank in ranks if rank not in answers]
        if silent:
            raise Broken(self._hang(silent, limit))
        return [answers[rank] for rank in ranks]

    def _read(self, file: int, rank: int) -> None:
        data = os.read(file, 65536)
        *whole, self.unread[rank] = (self.unread[rank] + data).split(b"\n")
        self.lines[rank].extend(whole)
        if not data:
            self.selector.unregister(file)
            os.close(file)
            self.ended.add(rank)

    def _ended(self, rank: int) -> str:
        try:
            status = self.workers[rank].wait(GRACE)
        except subprocess.TimeoutExpired:
            return f"rank {rank} closed its answers"
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"rank {rank} ended {how}"

    def _hang(self, silent: list[int], limit: float) -> str:
        # Each writes its stack to its output.
        for rank in silent:
            self.workers[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        self.kill()
        who = " and ".join(f"rank {rank}" for rank in silent)
        if time.monotonic() >= self.deadline:
            return f'{self.name}: {who} had not finished "{self.phase}" when the time of the whole check ran out'
        return f'{self.name}: {who} did not finish "{self.phase}" within {limit:g} s and was ended'

    def said(self, rank: int) -> str:
        """Returns a rank's output so far."""
        return self.outputs[rank].read_text(errors="replace")

    def leave(self, limit: float) -> None:
        """Makes both ranks end by themselves; raises Broken if one does not, or ends with a status other than 0."""
        self.step("leave", limit, do="leave")
        for rank, worker in enumerate(self.workers):
            try:
                status = worker.wait(max(0.1, min(limit, self.deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise Broken(self._hang([rank], limit)) from None
            if status != 0:
                raise Broken(f"{self.name}: {self._ended(rank)} after its last answer")

    def kill(self, rank: int | None = None) -> None:
        """Kills one rank, or all and whatever is left of them."""
        workers = self.workers if rank is None else [self.workers[rank]]
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
        if rank is None:
            for worker in workers:
                worker.wait()
                worker.stdin.close()
            for key in list(self.selector.get_map().values()):
                self.selector.unregister(key.fd)
                os.close(key.fd)
