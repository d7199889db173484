"""A server of CUDA's Multi-Process Service during the check.

Without it two processes take turns on a GPU, some milliseconds each, and a collective waits for the other's turn.
With it their kernels run side by side, as on two GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"

# A process that uses the GPU through the server, to see if that works here.
PROBE = "import torch; torch.ones(1, device='cuda').item()"

# Seconds for the probe and for each command to the server.
PROBE_LIMIT, LIMIT = 60, 20


class Mps:
    """A server, or the reason why there is none."""

    def __init__(self, folder: Path, wanted: bool):
        """Starts a server with its files in `folder` if it is `wanted` and works here."""
        self.pipes = folder / "mps"
        self.running = False
        self.why_not = "" if wanted else "--no-mps"
        if not wanted:
            return
        if not shutil.which(CONTROL):
            self.why_not = f"{CONTROL} is not on the path"
            return
        self.pipes.mkdir()
        try:
            self._run([CONTROL, "-d"], LIMIT)
            self.running = True
            self._run([sys.executable, "-B", "-c", PROBE], PROBE_LIMIT)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
            self.why_not = said[-1] if said else str(error)
            self.stop()

    def variables(self, used: bool = True) -> dict[str, str]:
        """Returns settings for a process that should use the server, or should not."""
        if not self.running:
            return {}
        # A folder without a server, so that somebody else's server is not used either.
        pipes = self.pipes if used else self.pipes.with_name("no-mps")
        return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.pipes)}

    def stop(self) -> None:
        """Ends the server, if there is one."""
        if not self.running:
            return
        try:
            self._run([CONTROL], LIMIT, b"quit -t 5\n")
        except (OSError, subprocess.SubprocessError) as error:
            print(
                f"the MPS server in {self.pipes} could not be ended ({error}); end {CONTROL} by hand", file=sys.stderr
            )
        self.running = False

    def _run(self, program: list[str], limit: int, words: bytes = b"") -> None:
        folder = str(self.pipes)
        environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run(program, env=environment, input=words, capture_output=True, timeout=limit, check=True)
