"""The whole check: with gloo, with damage planted, and with workers that pretend to run under NCCL."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

try:
    import torch.distributed  # only to see whether it is here
except ImportError as error:
    raise unittest.SkipTest("needs PyTorch") from error

import check
import machine
import pair
import session
from machine import Machine
from test_nccl import GOOD

HERE = Path(__file__).parent

# A worker that computes with gloo, writes NCCL's log in its place, and reports rails.
PRETENDER = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
import worker
sys.argv = [word.replace("--backend=nccl", "--backend=gloo") for word in sys.argv]
log = {GOOD!r}
environment = os.environ
if environment["NCCL_NET"] != "railweave" or environment.get("PRETEND_FALLBACK"):
    log = [line.replace("network railweave", "network Socket").replace("NET/railweave", "NET/Socket") for line in log]
used = "Algo " + environment.get("NCCL_ALGO", "Ring").upper() + " proto " + environment.get("NCCL_PROTO", "LL").upper()
log.append("host:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> " + used + " channel{{Lo..Hi}}={{0..0}}")
with open(environment["NCCL_DEBUG_FILE"], "w") as file:
    file.write("\\n".join(log) + "\\n")
lost = int(environment.get("PRETEND_LOST", 0))
reload = worker.Worker.reload
def load_again(self, step):
    with open(environment["NCCL_DEBUG_FILE"], "a") as file:
        file.write(environment.get("PRETEND_RELOAD", log[1]) + "\\n")
    return reload(self, step)
worker.Worker.reload = load_again
worker.Worker.rails = lambda self, step: {{
    "rails": [
        {{"local": address, "data_bytes": 1000, "received_bytes": 1000 - lost, "connections": 1}}
        for address in ("127.0.0.1", "127.0.0.2")
    ]
}}
worker.main()
"""


def run(*words: str) -> subprocess.CompletedProcess:
    """The program, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-B", str(HERE / "check.py"), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


class Gloo(unittest.TestCase):
    def test_a_row_of_each_kind_passes_and_the_json_says_so(self):
        done = run("--backend", "gloo", "--quick", "--json", "--only", "*default/all_gather/*")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["passed"], result["failed"]), (2, 0))
        self.assertEqual({row["status"] for row in result["rows"]}, {"ok"})

    def test_planted_damage_fails_every_row(self):
        done = run("--backend=gloo", "--quick", "--json", "--plant", "--only", "default/*/float32")
        self.assertEqual(done.returncode, 1, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["passed"], result["failed"]), (0, 6))
        self.assertEqual({row["status"] for row in result["rows"]}, {"FAILED"})
        folder = done.stderr.partition("the logs are in ")[2].strip()
        self.assertTrue((Path(folder) / "gloo-default-0.out").exists())
        for file in Path(folder).iterdir():
            file.unlink()
        Path(folder).rmdir()

    def test_what_gloo_cannot_do_is_skipped_with_the_reason(self):
        done = run("--backend=gloo", "--quick", "--only", "ll-ring")
        # Nothing was checked, so nothing has passed.
        self.assertEqual(done.returncode, 2, done.stdout)
        done = run("--backend=gloo", "--quick", "--only", "all_reduce/bfloat16")
        self.assertIn("skipped ll-ring/*", done.stdout)
        self.assertIn("gloo has no such settings: NCCL_ALGO=Ring NCCL_PROTO=LL", done.stdout)


class PretendedNccl(unittest.TestCase):
    """Everything but NCCL, the GPU and the plugin is real here."""

    def run_quick(self, *words: str, **variables: str) -> tuple[int, dict]:
        found = Machine("2.x", "a GPU", (2, 28, 9), "libnccl.so.2", None)
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as patches:
            worker = Path(folder) / "pretender.py"
            worker.write_text(PRETENDER)
            for place, name, value in (
                (pair, "WORKER", worker),
                (check, "look", lambda backend, preload: found),
                (check.nccl, "check_plugin", lambda path: None),
                (machine, "rails", lambda: "127.0.0.1/32,127.0.0.2/32"),
                (session, "LOSS", {"nccl": session.LOSS["gloo"]}),
                (sys, "argv", ["check.py", "--plugin=a.so", "--quick", "--json", f"--logs={folder}/logs", *words]),
            ):
                patches.enter_context(mock.patch.object(place, name, value))
            patches.enter_context(mock.patch.dict(os.environ, variables))
            patches.enter_context(contextlib.redirect_stdout(printed))
            patches.enter_context(contextlib.redirect_stderr(io.StringIO()))
            status = check.main()
        return status, json.loads(printed.getvalue())

    def failures(self, result: dict) -> dict[str, str]:
        return {row["name"]: row["detail"] for row in result["rows"] if row["status"] == "FAILED"}

    def test_the_whole_quick_plan_passes(self):
        status, result = self.run_quick("--limit=600")
        self.assertEqual((status, self.failures(result)), (0, {}))
        groups = {row["name"].partition("/")[0] for row in result["rows"]}
        self.assertEqual(groups, {"default", "simple-tree", "ll-ring", "ll128-ring", "again", "abort", "bench"})
        transports = {timing["transport"] for timing in result["timings"]}
        self.assertEqual(transports, {"railweave", "railweave-one-rail", "Socket"})
        self.assertEqual(len(result["timings"]), 9)

    def test_a_fallback_fails(self):
        status, result = self.run_quick("--only", "default/log", PRETEND_FALLBACK="1")
        self.assertEqual(status, 1)
        self.assertIn('no "Using network railweave"', self.failures(result)["default/log"])

    def test_a_plugin_that_is_not_loaded_again_fails(self):
        not_found = "NET/Plugin: Could not find: libnccl-net.so"
        status, result = self.run_quick("--only", "again/*", PRETEND_RELOAD=not_found)
        self.assertEqual((status, list(self.failures(result))), (1, ["again/log"]))
        self.assertIn("NCCL loaded the plugin 1 times, not 4", self.failures(result)["again/log"])

    def test_bytes_that_do_not_arrive_fail(self):
        status, result = self.run_quick("--only", "default/rails", PRETEND_LOST="1")
        self.assertEqual(status, 1)
        self.assertIn("rank 0 sent 2000 bytes, but 1998 arrived", self.failures(result)["default/rails"])

    def test_a_rail_that_carries_nothing_fails(self):
        rails = "RAILWEAVE_RAILS=127.0.0.1/32,127.0.0.3/32"
        status, result = self.run_quick("--only", "default/rails", "--set", rails)
        self.assertEqual(status, 1)
        self.assertIn("rank 1 sent nothing over 127.0.0.3", self.failures(result)["default/rails"])


class Refusals(unittest.TestCase):
    def refused(self, *words: str) -> str:
        done = run(*words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr

    def test_bad_arguments_get_one_sentence(self):
        for words, complaint in (
            ([], "--plugin is missing"),
            (["--plugin=/absent.so"], "--plugin /absent.so: there is no such file"),
            (["--backend=mpi"], "invalid choice: 'mpi'"),
            (["--backend=gloo", "--port=70000"], "--port 70000 is no port"),
            (["--backend=gloo", "--limit=nan"], "--limit nan is no time"),
            (["--backend=gloo", "--set=LANES"], "--set LANES is no setting"),
            (["--backend=gloo", "--only=nothing"], "--only nothing matches no row"),
            (["--backend=gloo", f"--logs={__file__}"], "cannot be made: File exists"),
            (["--backend=gloo", "--transcript=/absent/file"], "--transcript /absent/file cannot be written"),
        ):
            self.assertIn(complaint, self.refused(*words))

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assertIn(f"--port {port} cannot be listened on", self.refused("--backend=gloo", f"--port={port}"))

    def test_what_the_machine_lacks_is_explained(self):
        self.assertIn("has no PyTorch", machine.explain("ModuleNotFoundError: No module named 'torch'", None))
        self.assertIn("cannot use PyTorch: Killed", machine.explain("Killed", None))


if __name__ == "__main__":
    unittest.main()
