"""Whatever a worker does, the check goes on and names the phase."""

import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import pair
from pair import Broken, Pair

# A worker without PyTorch. Its steps name the behaviour of rank 1; rank 0 always answers.
WORKER = """
import argparse, faulthandler, json, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--answers", type=int)
arguments, _ = parser.parse_known_args()
faulthandler.register(signal.SIGUSR1)
answers = os.fdopen(arguments.answers, "w", buffering=1)
print("started", flush=True)
answers.write("{}\\n")
for line in sys.stdin:
    step = json.loads(line)["do"]
    if arguments.rank == 1 and step == "hang":
        time.sleep(600)
    if arguments.rank == 1 and step == "abort":
        os.abort()
    if arguments.rank == 1 and step == "fail":
        answers.write('{"error": "ValueError: no luck"}\\n')
        sys.exit(1)
    answers.write("{}\\n")
    if step == "twice":
        answers.write('{"again": true}\\n')
    if step == "leave":
        sys.exit(arguments.rank == 1 and os.environ.get("STATUS", 0) == "3" and 3 or 0)
"""


class Workers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        worker = self.folder / "worker.py"
        worker.write_text(WORKER)
        patched = mock.patch.object(pair, "WORKER", worker)
        patched.start()
        self.addCleanup(patched.stop)

    def start(self, seconds: float = 120.0, **variables) -> Pair:
        environments = [os.environ | variables] * 2
        made = Pair("trial", self.folder, [], environments, time.monotonic() + seconds)
        self.addCleanup(made.kill)
        made.answers(60)
        return made

    def gone(self, made: Pair):
        self.assertTrue(all(worker.poll() is not None for worker in made.workers))

    def test_steps_are_answered_and_the_end_is_orderly(self):
        made = self.start()
        self.assertEqual(made.step("one", 60, do="nothing"), [{}, {}])
        made.leave(60)
        self.gone(made)
        self.assertEqual(made.said(1), "started\n")

    def test_two_answers_at_once_are_two_answers(self):
        made = self.start()
        self.assertEqual(made.step("two", 60, do="twice"), [{}, {}])
        self.assertEqual(made.answers(60), [{"again": True}] * 2)

    def test_a_hang_is_ended_with_its_phase_and_place(self):
        made = self.start()
        with self.assertRaisesRegex(Broken, '^trial: rank 1 did not finish "a long one" within 0.5 s and was ended$'):
            made.step("a long one", 0.5, do="hang")
        self.gone(made)
        self.assertIn("most recent call first", made.said(1))

    def test_the_time_of_the_whole_check_ends_a_phase(self):
        made = self.start()
        made.deadline = time.monotonic() + 0.2
        with self.assertRaisesRegex(Broken, 'had not finished "long" when the time of the whole check ran out'):
            made.step("long", 600, do="hang")
        self.gone(made)

    def test_a_crash_is_reported_with_its_signal(self):
        with (
            mock.patch.object(pair, "GRACE", 10),
            self.assertRaisesRegex(Broken, '^trial: in "bad": rank 1 ended by signal SIGABRT$'),
        ):
            self.start().step("bad", 60, do="abort")

    def test_an_error_is_reported_with_its_rank(self):
        with self.assertRaisesRegex(Broken, 'in "bad": rank 1: ValueError: no luck'):
            self.start().step("bad", 60, do="fail")

    def test_a_status_at_the_end_is_an_error(self):
        with self.assertRaisesRegex(Broken, "rank 1 ended with status 3 after its last answer"):
            self.start(STATUS="3").leave(60)

    def test_a_killed_rank_leaves_the_other(self):
        made = self.start()
        made.kill(1)
        made.tell("on", do="nothing")
        self.assertEqual(made.answers(60, ranks=(0,)), [{}])


if __name__ == "__main__":
    sys.exit(unittest.main())
