"""The MPS server is used if it works, ended when it is not needed, and its absence is explained."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import mps
from mps import Mps

# Records its calls: the arguments, the folder of the pipes, and the commands.
CONTROL = """#!/bin/sh
echo "$* $(basename "$CUDA_MPS_PIPE_DIRECTORY") $(cat)" >> "$CALLS"
exit "${FAILS:-0}"
"""


class Server(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.calls = self.folder / "calls"
        self.calls.touch()

    def start(self, probe: str = "", program: bool = True, wanted: bool = True, fails: str = "0") -> Mps:
        if program:
            control = self.folder / mps.CONTROL
            control.write_text(CONTROL)
            control.chmod(0o755)
        # A machine with a GPU may have the real one next to the shell.
        path = f"{self.folder}:/usr/bin:/bin" if program else str(self.folder)
        patches = (
            mock.patch.object(mps, "PROBE", probe),
            mock.patch.dict(os.environ, {"PATH": path, "CALLS": str(self.calls), "FAILS": fails}),
        )
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        return Mps(self.folder, wanted)

    def test_one_that_works_is_used_and_ended(self):
        server = self.start()
        self.assertTrue(server.running)
        self.assertEqual(Path(server.variables()["CUDA_MPS_PIPE_DIRECTORY"]), self.folder / "mps")
        unused = Path(server.variables(used=False)["CUDA_MPS_PIPE_DIRECTORY"])
        self.assertFalse(unused.exists())
        server.stop()
        server.stop()
        self.assertEqual(self.calls.read_text(), "-d mps \n mps quit -t 5\n")
        self.assertEqual(server.variables(), {})

    def test_one_that_no_process_can_use_is_ended_and_explained(self):
        server = self.start(probe="raise SystemExit('no luck here')")
        self.assertEqual((server.running, server.why_not), (False, "no luck here"))
        self.assertIn("quit", self.calls.read_text())

    def test_one_that_does_not_start_is_explained(self):
        server = self.start(fails="7")
        self.assertFalse(server.running)
        self.assertIn("exit status 7", server.why_not)
        self.assertNotIn("quit", self.calls.read_text())

    def test_a_machine_without_it_and_a_user_against_it(self):
        self.assertEqual(self.start(program=False).why_not, f"{mps.CONTROL} is not on the path")
        self.assertEqual(self.start(wanted=False).why_not, "--no-mps")
        self.assertEqual(self.calls.read_text(), "")


if __name__ == "__main__":
    unittest.main()
