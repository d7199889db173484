"""One rank: carries out the steps that the check sends as lines of JSON, and answers each with a line.

pair.py starts it. The answer has `error` if a step could not be carried out; a wrong result is not an error but a
`difference`.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import training
from collectives import TYPES, Collective, Values
from plan import RANKS


class RailCounters(ctypes.Structure):
    """The plugin's counters, as railweaveRailCounters_v1 writes them (crates/abi/src/railweave.rs)."""

    _fields_ = [
        ("local", ctypes.c_char * 64),
        ("remote", ctypes.c_char * 64),
        ("data_bytes", ctypes.c_uint64),
        ("data_writes", ctypes.c_uint64),
        ("cts_writes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
        ("connections", ctypes.c_uint32),
        ("usable", ctypes.c_uint32),
    ]


class Worker:
    """The state of one rank, and a method for each step."""

    def __init__(self, arguments: argparse.Namespace):
        self.rank = arguments.rank
        self.plugin = arguments.plugin
        self.plant = arguments.plant
        self.device = "cuda:0" if arguments.backend == "nccl" else "cpu"
        if self.device != "cpu":
            torch.cuda.set_device(0)
        # Both ranks compare at the same time.
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // RANKS))
        self.values = Values(arguments.largest)
        self.arguments = arguments
        self.store = dist.TCPStore("127.0.0.1", arguments.port, is_master=False)
        self.groups = 0
        self.join()

    def join(self) -> None:
        """Makes the group of all ranks, and starts the backend below it."""
        self.groups += 1
        dist.init_process_group(
            self.arguments.backend,
            # A second group must not find the first one's entries in the store.
            store=dist.PrefixStore(f"{self.arguments.name}-{self.groups}", self.store),
            rank=self.rank,
            world_size=RANKS,
            timeout=datetime.timedelta(seconds=self.arguments.timeout),
        )
        # NCCL starts with the first collective.
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.finish()

    def finish(self) -> None:
        """Waits until the GPU has done all its work."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def collective(self, step: dict) -> Collective:
        element = TYPES[step["type"]]
        return Collective(step["collective"], element, step["bytes"], self.rank, self.values, step["seed"], self.device)

    def check(self, step: dict) -> dict:
        """Runs a collective once and compares its result."""
        collective = self.collective(step)
        collective.run()
        self.finish()
        if self.plant:
            collective.damage()
        return {"difference": collective.difference()}

    def train(self, step: dict) -> dict:
        return training.train(TYPES[step["type"]], self.rank, self.device, self.plant and self.rank == 0)

    def measure(self, step: dict) -> dict:
        """Runs a collective `iterations` times in a row, and returns the seconds of one."""
        collective = self.collective(step)
        # The first two runs bring both ranks to the same point.
        for _ in range(2):
            collective.run()
        self.finish()
        begin = time.perf_counter()
        for _ in range(step["iterations"]):
            collective.run()
        self.finish()
        return {"seconds": (time.perf_counter() - begin) / step["iterations"]}

    def repeat(self, step: dict) -> dict:
        """Runs collectives until one fails, as it must."""
        data = torch.ones(step["bytes"] // 4, device=self.device)
        dist.all_reduce(data)
        self.finish()
        answer({"begun": True})
        while True:
            dist.all_reduce(data, async_op=True).wait()

    def rails(self, _: dict) -> dict:
        """Returns the plugin's counters of each rail in this process."""
        read = ctypes.CDLL(self.plugin).railweaveRailCounters_v1
        counters = (RailCounters * 16)()
        count = min(read(counters, len(counters)), len(counters))
        fields = ("data_bytes", "received_bytes", "connections")
        return {
            "rails": [
                {"local": rail.local.decode(), **{field: getattr(rail, field) for field in fields}}
                for rail in counters[:count]
            ]
        }

    def reload(self, _: dict) -> dict:
        """Destroys NCCL's whole state in this process, and sets it up again."""
        dist.destroy_process_group()
        self.join()
        return {}

    def leave(self, _: dict) -> dict:
        dist.destroy_process_group()
        return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--backend")
    parser.add_argument("--name")
    parser.add_argument("--port", type=int)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--largest", type=int)
    parser.add_argument("--plugin")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--answers", type=int)
    arguments = parser.parse_args()
    answer.file = os.fdopen(arguments.answers, "w", buffering=1)
    # The check asks for the stacks of a worker that does not answer.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    steps = queue.SimpleQueue()
    threading.Thread(target=read_steps, args=(steps,), daemon=True).start()
    try:
        worker = Worker(arguments)
        answer({})
        while True:
            step = json.loads(steps.get())
            answer(getattr(worker, step["do"])(step))
            if step["do"] == "leave":
                break
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        # After the failure of a communicator an orderly exit may wait forever.
        sys.stdout.flush()
        os._exit(1)


def answer(result: dict) -> None:
    """Writes one line to the check."""
    answer.file.write(json.dumps(result) + "\n")


def read_steps(steps: queue.SimpleQueue) -> None:
    """Queues the check's steps, and ends this process when the check ends, even while a collective is in progress."""
    lines = b""
    # Not through sys.stdin, whose lock Python needs when it ends.
    while data := os.read(0, 65536):
        *whole, lines = (lines + data).split(b"\n")
        for line in whole:
            steps.put(line)
    os._exit(1)


if __name__ == "__main__":
    main()
