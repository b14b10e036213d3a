#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve --recut` over ranks: one rank is stopped for most of the time, so that its steps are slow. Layers move,
and every stream gets the text that it would have got without. Argument: the class of tests to run. Exit status 77: all
were skipped."""
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_recover import stream  # noqa: E402 (after the path)
from test_mpi_serve import DEMO, ask, check_metrics, wait_until_ready  # noqa: E402 (after the path)

LIMIT_S = 120
N_STREAMS = 8
STOPPED_S, RUNNING_S = 0.1, 0.01
# One rank has no room for the demo model, but for measuring it, so that the fastest plan has several stages.
SMALL = ["--mem", "12M", "--kv-type", "f32", "--ctx", "512", "--sequences", str(N_STREAMS)]


def some_streams(port):
    out = [None] * N_STREAMS
    threads = [threading.Thread(target=stream, args=(port, i, out)) for i in range(N_STREAMS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class Slow(threading.Thread):
    """Stops a process again and again, until end()."""

    def __init__(self, pid):
        super().__init__()
        self.pid = pid
        self.ended = threading.Event()

    def run(self):
        while not self.ended.is_set():
            kill(self.pid, signal.SIGSTOP)
            self.ended.wait(STOPPED_S)
            kill(self.pid, signal.SIGCONT)
            self.ended.wait(RUNNING_S)

    def end(self):
        self.ended.set()
        if self.is_alive():
            self.join()


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Serve(unittest.TestCase):
    def start(self, n, *options, program=None):
        port = free_port()
        job = Job(n, ["serve", DEMO, "--port", str(port), "--threads", "1", *options],
                  mpirun_args=["--enable-recovery"] if n > 1 else [], program=program)
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(port)
        return port, job

    def end(self, job):
        kill(job.rank_pid(0), signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        self.assertNotIn(b"millrace: error", done.stderr, str(done))
        return done

    def undisturbed(self):
        port, job = self.start(1, "--ctx", "512", "--kv-type", "f32")
        wanted = some_streams(port)
        self.end(job)
        for said in wanted:
            self.assertEqual((said.get("status"), said.get("done")), (200, True), said)
        return wanted

    def test_layers_of_a_slow_rank_move(self):
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover", "--recut", "1", "--measure", "anew", *SMALL)
        first = ask(port, "GET", "/plan")[1]
        status, answer = ask(port, "POST", "/cluster/recut")
        self.assertEqual(status, 200, answer)
        self.assertIn("too little was known", answer["text"])
        self.assertGreater(len(first["stages"]), 1, first)
        stage = next(s for s in first["stages"] if s["rank"] > 0)
        slow = Slow(job.rank_pid(stage["rank"]))
        self.addCleanup(slow.end)
        slow.start()
        end, plan = time.monotonic() + LIMIT_S, first
        while plan["epoch"] == 1:
            self.assertLess(time.monotonic(), end, "no layers have moved")
            self.assertEqual(some_streams(port), wanted)
            plan = check_metrics(port)  # a rank may be suspect
        self.assertNotEqual([(s["rank"], s["first_layer"]) for s in plan["stages"]],
                            [(s["rank"], s["first_layer"]) for s in first["stages"]])
        slow.end()
        self.assertEqual(some_streams(port), wanted)
        status, answer = ask(port, "POST", "/cluster/recut")
        self.assertEqual(status, 200, answer)
        self.assertRegex(answer["text"], "tokens/s|too little was known")
        done = self.end(job)
        self.assertRegex(done.stderr, rb"layers move|is suspected")

    def test_a_rank_without_layers_is_measured_again(self):
        wanted = self.undisturbed()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        to_files = ["sh", "-c", 'exec "$0" "$@" 2>"%s/$OMPI_COMM_WORLD_RANK"' % folder.name, program_path()]
        port, job = self.start(3, "--recover", "--recut", "1", "--spares", "1", "--measure", "anew", "--log-level",
                               "debug", *SMALL, program=to_files)
        first = ask(port, "GET", "/plan")[1]
        idle, = set(range(3)) - {stage["rank"] for stage in first["stages"]}
        end = time.monotonic() + LIMIT_S
        while "again, layer kind 0, 16 rows" not in read(os.path.join(folder.name, str(idle))):
            self.assertLess(time.monotonic(), end, "rank %d was not measured" % idle)
            self.assertEqual(some_streams(port), wanted)
        self.end(job)
        self.assertNotIn("millrace: error", read(os.path.join(folder.name, "0")))

    def test_without_recut_nobody_looks(self):
        port, job = self.start(2, "--recover", *SMALL)
        status, answer = ask(port, "POST", "/cluster/recut")
        self.assertEqual(status, 400)
        self.assertIn("--recut", answer["error"]["message"])
        self.end(job)
        port = free_port()
        done = Job(2, ["serve", DEMO, "--port", str(port), "--recut", "5"]).wait(LIMIT_S)
        self.assertNotEqual(done.status, 0)
        self.assertIn(b"--recut without --recover", done.stderr)


if __name__ == "__main__":
    sys.exit(run_tests())
