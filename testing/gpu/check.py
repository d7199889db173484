"""Checks Railweave under the real NCCL: two processes on one GPU that take each other for two hosts (docs/gpu.md)."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import nccl
from machine import look
from mps import Mps
from plan import names
from refusal import Refusal
from report import Report

# Seconds for everything, most of them for PyTorch's start-up. gloo's limit is for a machine without a GPU.
LIMIT, LIMIT_QUICK, LIMIT_GLOO = 530.0, 170.0, 900.0


def main() -> int:
    begin = time.monotonic()
    arguments = parse(sys.argv[1:])
    # Signals raise SystemExit, so that a check that is ended by one leaves neither workers nor files behind.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(f"ended by {signal.Signals(number).name}"))
    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="railweave-"))
    keep = bool(arguments.logs)
    try:
        make(folder)
        report = Report(arguments.json, arguments.transcript)
        passed = check(arguments, folder, report, begin)
        keep = keep or not passed
        if keep:
            report.shown.write(f"the logs are in {folder}\n")
        return 0 if passed else 1
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--logs {folder} cannot be made: {error.strerror}; give a folder") from None


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument("--plugin", type=Path, help="Railweave's library, libnccl-net-railweave.so")
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"), default="nccl", help="gloo works without GPU, NCCL and plugin"
    )
    parser.add_argument(
        "--nccl", type=Path, action="append", help="an NCCL to use instead of PyTorch's; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="under 3 minutes: fewer settings, up to 16 MiB")
    parser.add_argument("--only", metavar="PATTERN", help="only rows whose names contain this; * and ? are wildcards")
    parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    parser.add_argument("--transcript", type=Path, metavar="FILE", help="write everything shown, and NCCL's logs, here")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all processes here")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for every rank")
    parser.add_argument(
        "--port", type=int, default=0, help="the port where the ranks meet; 0, the default, takes any free one"
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="the time for everything")
    parser.add_argument("--no-mps", action="store_true", help="let the processes take turns on the GPU")
    parser.add_argument("--plant", action="store_true", help="damage each result; the check must notice it")
    arguments = parser.parse_args(words)
    if not 0 <= arguments.port <= 65535:
        parser.error(f"--port {arguments.port} is no port; give 1 to 65535, or 0 for any free one")
    if arguments.limit is None:
        limit = LIMIT_QUICK if arguments.quick else LIMIT
        arguments.limit = LIMIT_GLOO if arguments.backend == "gloo" else limit
    if not 0 < arguments.limit <= 86400:
        parser.error(f"--limit {arguments.limit:g} is no time; give seconds, at most 86400")
    if arguments.backend == "nccl" and arguments.plugin is None:
        parser.error("--plugin is missing; give the path of libnccl-net-railweave.so, or try --backend gloo")
    if arguments.backend == "gloo" and arguments.nccl:
        parser.error("--nccl has no meaning with --backend gloo; leave one of them out")
    for setting in arguments.set:
        if not setting.partition("=")[1] or setting.startswith("="):
            parser.error(f"--set {setting} is no setting; give NAME=VALUE")
    return arguments


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence."""

    def error(self, message: str):
        self.exit(2, f"{message}\n")


def check(arguments: argparse.Namespace, folder: Path, report: Report, begin: float) -> bool:
    """Inspects the machine, runs the plan under each NCCL, and returns True if nothing failed."""
    if arguments.plugin:
        nccl.check_plugin(arguments.plugin)
    libraries = [nccl.find_library(path) for path in arguments.nccl or []]
    machines = [look(arguments.backend, library) for library in libraries or [None]]
    # Needs PyTorch. If this Python lacks it, `look` has already said so.
    from session import Session, meeting_place

    only = f"*{arguments.only}*" if arguments.only else "*"

    def wanted(name: str) -> bool:
        return fnmatch.fnmatchcase(name, only)

    rows = names(arguments.backend, arguments.quick)
    if not any(map(wanted, rows)):
        groups = ", ".join(dict.fromkeys(name.partition("/")[0] for name in rows))
        raise Refusal(
            f"--only {arguments.only} matches no row; rows are named {rows[1]} and so on, in the groups {groups}"
        )
    store = meeting_place(arguments.port)
    mps = Mps(folder, arguments.backend == "nccl" and not arguments.no_mps)
    try:
        for index, machine in enumerate(machines):
            session = Session(arguments, machine, folder, report, store.port, mps, wanted, begin + arguments.limit)
            # The whole plan under the first NCCL, the quick one under the others.
            session.run(quick=arguments.quick or index > 0)
    finally:
        mps.stop()
    return report.finish(time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
