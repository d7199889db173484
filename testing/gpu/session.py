"""The check under one NCCL: carries out the plan with pairs of workers and reports each row."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed

import machine as machines
import nccl
from bench import Bench
from mps import Mps
from pair import START_LIMIT, Broken, Pair
from plan import ABORT, ABORT_ROW, GLOO, LOG_FULL, MIB, RANKS, RUNS, Run, row_name, size_text
from refusal import Refusal
from report import SKIPPED, Report
from rows import Rows

# Seconds for one step, for training, and for the processes to end.
STEP_LIMIT, TRAIN_LIMIT, LEAVE_LIMIT = 60.0, 120.0, 30.0

# Seconds in which the survivor of a killed rank must get NCCL's error.
ABORT_LIMIT = 15.0

# Patterns of errors after the loss of a peer: NCCL's in PyTorch's, and gloo's.
LOSS = {
    "nccl": r"ncclRemoteError|ncclSystemError|remote process exited|unhandled system error",
    "gloo": r"Connection closed by peer|Connection reset by peer|Broken pipe",
}


def meeting_place(port: int) -> torch.distributed.TCPStore:
    """Opens the store where the ranks of every pair find each other."""
    try:
        return torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        reason = "it is in use" if "EADDRINUSE" in str(error) or "in use" in str(error) else str(error).splitlines()[0]
        raise Refusal(
            f"--port {port} cannot be listened on: {reason}; give another, or 0 for any free one"
        ) from None


class Session:
    """One NCCL, or gloo in its place."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        machine: machines.Machine,
        folder: Path,
        report: Report,
        port: int,
        mps: Mps,
        wanted: Callable[[str], bool],
        deadline: float,
    ):
        """`wanted` selects the rows to run; `deadline`, in seconds of `time.monotonic`, ends everything."""
        self.arguments, self.machine, self.folder, self.report = arguments, machine, folder, report
        self.port, self.mps, self.wanted, self.deadline = port, mps, wanted, deadline
        self.gloo = arguments.backend == "gloo"
        self.version = "gloo" if self.gloo else nccl.version_text(machine.nccl)
        self.rails = machines.rails()

    def run(self, quick: bool) -> None:
        """Runs the whole plan, or its quick part."""
        self.report.nccl = self.version
        self.head()
        for run in RUNS:
            names = list(filter(self.wanted, run.rows(self.arguments.backend)))
            if not names or quick and not run.quick:
                continue
            if self.gloo and run.name != GLOO.name:
                self.report.row(f"{run.name}/*", SKIPPED, f"gloo has no such settings: {run.why} (rows: {len(names)})")
            elif not self.gloo and self.machine.nccl < run.oldest:
                self.report.row(f"{run.name}/*", SKIPPED, f"{run.why} needs NCCL {nccl.version_text(run.oldest)}")
            else:
                self.correct(GLOO if self.gloo else run, quick)
        self.abort()
        Bench(self, quick).run()

    def head(self) -> None:
        """Shows what is checked, and with which equipment."""
        line = self.report.line
        line()
        if self.gloo:
            line(f"PyTorch {self.machine.torch} with gloo: tries the check itself, neither NCCL nor the plugin")
            return
        sharing = "side by side (MPS)" if self.mps.running else f"in turns (no MPS: {self.mps.why_not})"
        line(f"NCCL {self.version} from {self.machine.library}")
        line(f"PyTorch {self.machine.torch}, two processes {sharing} on one {self.machine.gpu}")
        line(f"the plugin {self.arguments.plugin}, over {self.set_rails()}")

    def correct(self, run: Run, quick: bool) -> None:
        """Tries the collectives and training under one choice of settings, and reads the log."""
        rows = Rows(self.report, run.rows(self.arguments.backend), self.wanted)
        sizes = run.sizes(quick)

        def body(pair: Pair) -> None:
            for place, (collective, element) in enumerate(run.cells()):
                if rows.begin(row_name(run.name, collective, element)):
                    wrong = []
                    for size in sizes:
                        wrong += check_one(pair, collective, element, size, place * len(sizes) + sizes.index(size))
                    rows.end(wrong, f"{len(sizes)} sizes, {size_text(sizes[0])} to {size_text(sizes[-1])}")
            for element in run.train:
                if rows.begin(row_name(run.name, "train", element)):
                    rows.end(*train_one(pair, element))
            if run.lives > 1 and rows.begin(row_name(run.name, "reload")):
                rows.end(live_again(pair, run, sizes), f"{run.lives} groups in the same processes")
            if rows.begin(row_name(run.name, "rails")):
                rows.end(*judge_rails(pair.step("rails", STEP_LIMIT, do="rails"), self.set_rails()))

        whole = rows.use(lambda: self.start(run, sizes[-1]), LEAVE_LIMIT, body)
        if not self.gloo:
            self.judge_log(rows, run, row_name(run.name, "log"), whole)

    def abort(self) -> None:
        """Kills one rank in a collective: the other must end with NCCL's error, in time."""
        rows = Rows(self.report, [row_name(ABORT.name, ABORT_ROW)], self.wanted)
        if not rows.names:
            return
        pair = None
        try:
            rows.begin(rows.names[0])
            # An MPS server may not survive the death of a client with work in progress.
            pair = self.start(ABORT, MIB, mps=False)
            pair.answers(START_LIMIT)
            pair.step("collectives without end", STEP_LIMIT, do="repeat", bytes=4 * MIB)
            time.sleep(0.5)
            pair.kill(1)
            rows.end(*self.judge_survivor(pair, time.monotonic()))
        except Broken as broken:
            rows.broken(broken, [pair] if pair else [])
        finally:
            if pair:
                pair.kill()
        if not self.gloo:
            self.judge_log(rows, ABORT, row_name(ABORT.name, "log"), False)

    def judge_survivor(self, pair: Pair, killed: float) -> tuple[list[str], str]:
        """Judges how rank 0 reacts to the death of rank 1 at the time `killed`; returns the defects and a report."""
        try:
            answer = pair.answers(ABORT_LIMIT, ranks=(0,))
        except Broken as broken:
            seconds = time.monotonic() - killed
            loss = re.search(LOSS[self.arguments.backend], f"{broken}\n{pair.said(0)}")
            if not loss:
                return [str(broken)], ""
            return [], f"rank 0 had {loss[0]} {seconds:.1f} s after the end of rank 1; {ABORT_LIMIT:g} s are allowed"
        return [f"rank 0 went on after the end of rank 1: {answer}"], ""

    def judge_log(self, rows: Rows, run: Run, name: str, whole: bool) -> None:
        """Shows the warnings in NCCL's log and, if `whole`, judges the log in a row of its own."""
        logs = self.read_logs(run.name)
        for rank, log in enumerate(logs):
            self.report.note(
                "\n".join([f"  NCCL's log of rank {rank} of {run.name}:", *(f"  | {line}" for line in log.telling)])
            )
            rows.show(f"NCCL warned rank {rank}", log.warnings)
        if not whole or not rows.begin(name):
            return
        version = self.machine.nccl
        settings = run.settings | self.set_variables()
        wrong = [
            f"rank {rank}: {problem}"
            for rank, log in enumerate(logs)
            for problem in nccl.problems(log, version, settings.get("NCCL_NET", nccl.PLUGIN), settings, run.lives)
        ]
        unused = nccl.not_exercised(logs[0], version, settings)
        used = " ".join(f"{algorithm}/{protocol}" for algorithm, protocol in sorted(logs[0].used))
        channels = ", ".join(str(count) for count in sorted(logs[0].channels))
        api = f"net API v{logs[0].api}, " if logs[0].api else ""
        rows.end(
            wrong + ([unused] if unused else []),
            f"{api}via {', '.join(sorted(logs[0].paths))}, {channels} channels; {used}",
        )

    def start(self, run: Run, largest: int, mps: bool = True) -> Pair:
        """Starts two workers with the settings of `run`; does not wait for their first answers."""
        # Without the version, pairs of the same run under two NCCLs would share entries of the store.
        name = f"{self.version}-{run.name}"
        arguments = [f"--backend={self.arguments.backend}", f"--port={self.port}", f"--largest={largest}"]
        settings = {"GLOO_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if not self.gloo:
            plugin = self.arguments.plugin.resolve()
            arguments.append(f"--plugin={plugin}")
            settings |= nccl.through_plugin(plugin, self.machine.nccl, self.rails, self.folder)
            settings |= self.mps.variables(mps)
        if self.arguments.plant:
            arguments.append("--plant")
        if self.machine.preload:
            settings["LD_PRELOAD"] = str(self.machine.preload)
        settings |= LOG_FULL | self.set_variables() | run.settings
        self.report.note(f"  {name} with " + " ".join(f"{key}={value}" for key, value in settings.items()))
        common = nccl.inherited(dict(os.environ)) | settings
        environments = [
            common if self.gloo else common | nccl.as_own_host(rank, self.log_file(run.name, rank))
            for rank in range(RANKS)
        ]
        return Pair(name, self.folder, arguments, environments, self.deadline)

    def set_variables(self) -> dict[str, str]:
        """Returns the variables of --set."""
        return dict(setting.split("=", 1) for setting in self.arguments.set)

    def set_rails(self) -> str:
        """Returns the rails that the plugin is told to use."""
        return self.set_variables().get("RAILWEAVE_RAILS", self.rails)

    def log_file(self, name: str, rank: int) -> Path:
        """Returns the file for NCCL's log of one rank."""
        return self.folder / f"{self.version}-{name}-{rank}.nccl"

    def read_logs(self, name: str) -> list[nccl.Log]:
        """Returns the content of NCCL's logs of both ranks."""
        files = [self.log_file(name, rank) for rank in range(RANKS)]
        return [nccl.read_log(file.read_text(errors="replace") if file.exists() else "") for file in files]


def check_one(pair: Pair, collective: str, element: str, size: int, seed: int) -> list[str]:
    """Runs one collective and returns the defects of its results."""
    phase = f"{collective} of {size_text(size)} in {element}"
    answers = pair.step(phase, STEP_LIMIT, do="check", collective=collective, type=element, bytes=size, seed=seed)
    found = [(rank, answer["difference"]) for rank, answer in enumerate(answers)]
    return [f"{size_text(size)}, rank {rank}: {difference}" for rank, difference in found if difference]


def live_again(pair: Pair, run: Run, sizes: list[int]) -> list[str]:
    """Destroys and recreates the group, with all collectives each time; returns the defects of the results."""
    wrong = []
    for life in range(2, run.lives + 1):
        pair.step(f"group {life}", START_LIMIT, do="reload")
        for seed, (collective, element) in enumerate(run.cells()):
            for size in sizes:
                wrong += [f"group {life}: {each}" for each in check_one(pair, collective, element, size, seed)]
    return wrong


def train_one(pair: Pair, element: str) -> tuple[list[str], str]:
    """Trains with DistributedDataParallel; returns the defects and a report."""
    answers = pair.step(f"training in {element}", TRAIN_LIMIT, do="train", type=element)
    wrong = []
    if len({answer["digest"] for answer in answers}) > 1:
        wrong.append("the ranks have different parameters")
    for rank, answer in enumerate(answers):
        # Not `apart > most_apart`: every comparison with NaN is false.
        if not answer["apart"] <= answer["most_apart"]:
            wrong.append(
                f"rank {rank} differs from the plain computation by {answer['apart']:.2e} of what training changed, "
                f"but at most {answer['most_apart']:.0e} is allowed"
            )
    apart = max(answer["apart"] for answer in answers)
    equal = "the same bits as" if apart == 0 else f"{apart:.1e} away from"
    first, last = answers[0]["losses"]
    return (
        wrong,
        f"{answers[0]['parameters']} parameters, {equal} the plain computation; loss {first:.2f} to {last:.2f}",
    )


def judge_rails(answers: list[dict], wanted: str) -> tuple[list[str], str]:
    """Checks that every rail carried data, and that all data that one rank sent reached the other."""
    wrong = []
    rails = [{rail["local"]: rail for rail in answer["rails"]} for answer in answers]
    for rank in range(RANKS):
        # Rails that --set does not name by address are only counted.
        for address in re.findall(r"([0-9.]+)/32", wanted):
            if not rails[rank].get(address, {}).get("data_bytes"):
                wrong.append(f"rank {rank} sent nothing over {address}")
        sent = sum(rail["data_bytes"] for rail in rails[rank].values())
        received = sum(rail["received_bytes"] for rail in rails[1 - rank].values())
        if sent != received or sent == 0:
            wrong.append(f"rank {rank} sent {sent} bytes, but {received} arrived")
    shares = [f"{address} {rail['data_bytes'] / MIB:.1f} MiB" for address, rail in rails[0].items()]
    return wrong, f"rank 0 sent over {', '.join(shares)}"
