"""This machine's equipment for the check: Python's packages, a GPU, NCCL. As a program it prints that as JSON."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nccl
from refusal import Refusal

# The longest time in seconds for importing PyTorch, for example from a cold disk.
PATIENCE = 120


@dataclass(frozen=True)
class Machine:
    """The equipment with one choice of NCCL library."""

    torch: str
    gpu: str
    nccl: nccl.Version
    library: str
    # Preloaded, so that it comes before PyTorch's own; None for PyTorch's own.
    preload: Path | None


def look(backend: str, preload: Path | None) -> Machine:
    """Looks in a process of its own, because a library stays loaded. Refuses equipment that the check cannot use."""
    environment = dict(os.environ)
    if preload:
        wanted = nccl.library_version(preload)
        environment["LD_PRELOAD"] = str(preload)
    program = [sys.executable, "-B", __file__]
    try:
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise Refusal(f"{sys.executable} did not import PyTorch within {PATIENCE} s; try it by hand") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        raise Refusal(explain(last, preload))
    facts = json.loads(done.stdout)
    machine = Machine(facts["torch"], facts["gpu"], tuple(facts["nccl"][:3]), facts["library"], preload)
    if backend == "gloo":
        return machine
    if not facts["cuda"]:
        raise Refusal(f"PyTorch {machine.torch} is built without CUDA; install one with it, or try --backend gloo")
    if not machine.gpu:
        sees = f"PyTorch {machine.torch} sees no GPU ({facts['why']})"
        raise Refusal(f"{sees}; NCCL needs one, and --backend gloo tries everything else")
    if preload and machine.nccl != wanted:
        raise Refusal(
            f"--nccl {preload} is NCCL {nccl.version_text(wanted)}, but PyTorch uses {nccl.version_text(machine.nccl)} "
            "nevertheless, so it has NCCL built in; use a PyTorch that links libnccl.so.2"
        )
    if machine.nccl < nccl.OLDEST:
        raise Refusal(
            f"NCCL {nccl.version_text(machine.nccl)} is too old for two ranks on one GPU; "
            f"use {nccl.version_text(nccl.OLDEST)} or newer"
        )
    return machine


def explain(last: str, preload: Path | None) -> str:
    """Returns a sentence for the last line of a program that failed to look."""
    python = sys.executable
    symbol = re.search(r"undefined symbol: (nccl\w+)", last)
    if preload and symbol:
        library = f"--nccl {preload} (NCCL {nccl.version_text(nccl.library_version(preload))})"
        return f"{library} has no {symbol[1]}, which this PyTorch needs; use a newer NCCL or an older PyTorch"
    if "No module named 'torch'" in last:
        return f"{python} has no PyTorch; install it (pip install torch) or start the check with a Python that has it"
    return f"{python} cannot use PyTorch: {last}"


def rails() -> str:
    """Returns two loopback addresses as RAILWEAVE_RAILS takes them, or one if the system knows only one."""
    second = "127.0.0.2"
    with socket.socket() as probe:
        try:
            probe.bind((second, 0))
        except OSError:
            return "127.0.0.1/32"
    return f"127.0.0.1/32,{second}/32"


def facts() -> dict:
    """Returns this process's equipment, as PyTorch sees it."""
    import torch

    why = ""
    gpu = ""
    try:
        torch.cuda.init()
        gpu = torch.cuda.get_device_name(0)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
    has_nccl = torch.distributed.is_nccl_available()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda and has_nccl,
        "gpu": gpu,
        "why": why,
        "nccl": list(torch.cuda.nccl.version()) if has_nccl else [0, 0, 0],
        "library": next((line.split()[-1] for line in maps if "libnccl.so" in line), ""),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
