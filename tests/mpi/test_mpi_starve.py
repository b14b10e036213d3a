#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve --recover` where the ranks that are left have too little memory: the job waits, and no request is lost.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import signal
import sys
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from hosts import Job, kill, run_tests  # noqa: E402 (after the path)
from test_mpi_recover import N_STREAMS, all_streams, stream  # noqa: E402 (after the path)
from test_mpi_serve import DEMO, ask, free_port, wait_until_ready  # noqa: E402 (after the path)

LIMIT_S = 120
# Two ranks have room for the demo model, one does not.
SMALL = ["--mem", "11M", "--ctx", "512", "--sequences", "32"]


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Serve(unittest.TestCase):
    def start(self, n, *options):
        port = free_port()
        job = Job(n, ["serve", DEMO, "--port", str(port), "--threads", "1", *options],
                  mpirun_args=["--enable-recovery"] if n > 1 else [])
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(port)
        return port, job

    def undisturbed(self):
        port, job = self.start(1, "--ctx", "512")
        wanted = all_streams(port)
        self.end(job)
        return wanted

    def end(self, job):
        kill(job.rank_pid(0), signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        self.assertNotIn(b"millrace: error", done.stderr, str(done))
        return done

    def wait_for(self, what, is_so):
        end = time.monotonic() + LIMIT_S
        while not is_so():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    @staticmethod
    def is_degraded(port):
        return ask(port, "GET", "/health")[1]["status"] == "degraded"

    @staticmethod
    def n_waiting(port):
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=LIMIT_S) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("millrace_sequences_waiting "):
                    return int(float(line.split()[1]))
        return 0

    def starve(self, port, job):
        """Leaves rank 0 alone: rank 2 is drained, rank 1 dies."""
        self.assertEqual(ask(port, "POST", "/cluster/drain?rank=2")[0], 200)
        self.wait_for("rank 2 is not drained", lambda: ask(port, "GET", "/plan")[1]["drained"] == [2])
        self.assertFalse(self.is_degraded(port))
        kill(job.rank_pid(1))
        self.wait_for("the job does not wait", lambda: self.is_degraded(port))

    def test_a_drained_rank_comes_back(self):
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover", *SMALL, "--stages", "3")
        late = [None] * N_STREAMS

        def meanwhile():
            time.sleep(0.2)
            self.starve(port, job)
            health = ask(port, "GET", "/health")
            self.assertEqual((health[0], health[1]["ranks"]), (200, [0, 2]), health)
            self.assertGreater(health[1]["missing_bytes"], 0)
            self.assertIn("memory", health[1]["reason"])
            n_before = self.n_waiting(port)
            threads = [threading.Thread(target=stream, args=(port, i, late)) for i in range(4)]
            for t in threads:  # accepted, and they wait
                t.start()
            self.wait_for("the requests are not accepted", lambda: self.n_waiting(port) >= n_before + 4)
            self.assertEqual(ask(port, "POST", "/cluster/undrain?rank=2")[0], 200)
            for t in threads:
                t.join()

        self.assertEqual(all_streams(port, meanwhile), wanted)
        self.assertEqual(late[:4], wanted[:4])
        self.assertEqual(ask(port, "GET", "/health")[1], {"status": "ok"})
        done = self.end(job)
        self.assertRegex(done.stderr, b"warning: the job waits for memory, .* at least are missing", str(done))
        self.assertIn(b"there is memory for all layers again", done.stderr, str(done))

    def test_signal_while_it_waits(self):
        """SIGTERM ends a server that waits at once, whatever --drain-s says."""
        port, job = self.start(3, "--recover", *SMALL, "--stages", "3", "--drain-s", "60")
        out = [None] * N_STREAMS
        self.starve(port, job)
        t = threading.Thread(target=stream, args=(port, 0, out))
        t.start()
        time.sleep(0.3)
        start = time.monotonic()
        self.end(job)
        self.assertLess(time.monotonic() - start, 20)
        t.join()


if __name__ == "__main__":
    sys.exit(run_tests())
