#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve --recover` where the ranks that are left have too little memory: the job waits, and no request is lost.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from control_group import Group  # noqa: E402 (after the path)
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_coordinator import wait_for_word  # noqa: E402 (after the path)
from test_mpi_recover import N_STREAMS, all_streams, stream  # noqa: E402 (after the path)
from test_mpi_serve import DEMO, ask, check_metrics, wait_until_ready  # noqa: E402 (after the path)

LIMIT_S = 120
MIB = 1 << 20
SHAPE = ["--layers", "24", "--width", "512", "--ff", "2048", "--heads", "8", "--vocab", "4096", "--context", "512"]
NUMBERS = ["millrace_epoch", "millrace_recoveries_total", "millrace_memory_missing_bytes"]
ENTER = 'eval group=\\$GROUP_$OMPI_COMM_WORLD_RANK; echo $$ > "$group/cgroup.procs" && exec "$@"'
# Two ranks have room for the demo model, one does not.
SMALL = ["--mem", "6M", "--ctx", "512", "--sequences", "32"]


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
    def metric(port, name):
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=LIMIT_S) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[-1])
        return None

    def n_waiting(self, port):
        return self.metric(port, "millrace_sequences_waiting")

    @staticmethod
    def ranks(port):
        return ask(port, "GET", "/plan")[1]["ranks"]

    def starve(self, port, job):
        """Leaves rank 0 alone: rank 2 is drained, rank 1 dies."""
        self.assertEqual(ask(port, "POST", "/cluster/drain?rank=2")[0], 200)
        self.wait_for("rank 2 is not drained", lambda: ask(port, "GET", "/plan")[1]["drained"] == [2])
        self.assertFalse(self.is_degraded(port))
        self.assertEqual(check_metrics(port)["ranks"], ["stage", "stage", "drained"])
        self.assertEqual([self.metric(port, name) for name in NUMBERS], [2, 1, 0])
        kill(job.rank_pid(1))
        self.wait_for("the job does not wait", lambda: self.is_degraded(port))

    def test_a_drained_rank_comes_back(self):
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover", *SMALL, "--stages", "3")
        self.assertEqual(self.ranks(port), ["stage"] * 3)
        late = [None] * N_STREAMS

        def meanwhile():
            time.sleep(0.2)
            self.starve(port, job)
            health = ask(port, "GET", "/health")
            self.assertEqual((health[0], health[1]["ranks"]), (200, [0, 2]), health)
            self.assertGreater(health[1]["missing_bytes"], 0)
            status, answer = ask(port, "GET", "/readyz")
            self.assertEqual((status, answer.pop("error")["code"]), (503, "no_plan"), answer)
            self.assertEqual(answer, health[1])
            self.assertEqual(ask(port, "GET", "/livez"), (200, {"status": "ok"}))
            self.assertEqual(self.metric(port, "millrace_ready"), 0)
            self.assertEqual(self.metric(port, NUMBERS[2]), health[1]["missing_bytes"])
            self.wait_for("the plan still runs", lambda: check_metrics(port)["stages"] == [])
            self.assertEqual(self.ranks(port), ["spare", "lost", "drained"])
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
        for path in "/health", "/readyz":
            self.assertEqual(ask(port, "GET", path), (200, {"status": "ok"}), path)
        self.assertEqual(check_metrics(port)["ranks"], ["stage", "lost", "stage"])
        self.assertEqual([self.metric(port, name) for name in NUMBERS], [3, 2, 0])
        for phase in ("planning", "loading", "computing"):
            self.assertGreater(self.metric(port, 'millrace_recovery_seconds{phase="%s"}' % phase), 0)
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
        self.wait_for("the request is not accepted", lambda: self.n_waiting(port) >= 1)
        start = time.monotonic()
        self.end(job)
        self.assertLess(time.monotonic() - start, 20)
        t.join()


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Signals(unittest.TestCase):
    start, end, wait_for = Serve.start, Serve.end, Serve.wait_for

    @staticmethod
    def drained(port):
        return ask(port, "GET", "/plan")[1]["drained"]

    def test_drain_by_signal(self):
        """SIGUSR1 to a worker drains its rank, a second one ends the drain. Rank 0 ignores the signal."""
        port, job = self.start(1)
        wanted = all_streams(port)
        self.end(job)
        port, job = self.start(3, "--recover")

        def meanwhile():
            for drained in ([1], [], [1]):
                time.sleep(0.1)
                kill(job.rank_pid(1), signal.SIGUSR1)
                self.wait_for("the plan does not change", lambda: self.drained(port) == drained)
            kill(job.rank_pid(0), signal.SIGUSR1)

        self.assertEqual(all_streams(port, meanwhile), wanted)
        self.assertEqual(ask(port, "POST", "/cluster/drain?rank=0")[0], 200)
        self.wait_for("rank 0 is not drained", lambda: self.drained(port) == [0, 1])
        kill(job.rank_pid(2), signal.SIGUSR1)
        wait_for_word(job, b"a signal asks to drain rank 2, in vain: rank 2 is the last one")
        self.assertEqual(self.drained(port), [0, 1])
        self.end(job)

    def test_two_drains_at_once(self):
        """Of two ranks that are drained at the same moment, one keeps its layers."""
        port, job = self.start(2, "--recover")
        for _ in range(20):
            answers = [None, None]

            def drain(rank):
                answers[rank] = ask(port, "POST", "/cluster/drain?rank=%d" % rank)[0]

            threads = [threading.Thread(target=drain, args=(rank,)) for rank in (0, 1)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(sorted(answers), [200, 400])
            rank = answers.index(200)
            self.wait_for("no rank is drained", lambda: self.drained(port) == [rank])
            self.assertEqual(ask(port, "POST", "/cluster/undrain?rank=%d" % rank)[0], 200)
            self.wait_for("the drain does not end", lambda: self.drained(port) == [])
        self.end(job)


class Memory(unittest.TestCase):
    """Ranks with control groups of their own. The limit of rank 0 is too small for the whole model, and then grows."""

    start, end, wait_for, is_degraded = Serve.start, Serve.end, Serve.wait_for, staticmethod(Serve.is_degraded)

    def test_memory_becomes_free(self):
        groups = [Group(100 * MIB), Group(256 * MIB)]
        for group in groups:
            self.addCleanup(group.close)
        if not all(group.path for group in groups):
            self.skipTest("no control group with a memory limit can be made here")
        folder = tempfile.TemporaryDirectory(prefix="millrace-starve-")
        self.addCleanup(folder.cleanup)
        model = os.path.join(folder.name, "large.gguf")
        maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "make_random_model.py")
        subprocess.run([sys.executable, maker, model, *SHAPE], check=True, stdout=subprocess.DEVNULL)
        wanted = self.serve(model, 1, [], None)
        self.assertEqual(self.serve(model, 2, ["--recover", "--stages", "2"], groups), wanted)

    def serve(self, model, n, options, groups):
        """The events of a stream. With groups, rank 1 dies in its middle, and rank 0 gets memory a while later."""
        port = free_port()
        env = {"GROUP_%d" % i: group.path for i, group in enumerate(groups or [])}
        program = ["sh", "-c", ENTER, "sh", program_path()] if groups else None
        job = Job(n, ["serve", model, "--port", str(port), "--threads", "1", "--ctx", "512", "--sequences", "8",
                      *options], mpirun_args=["--enable-recovery"] if n > 1 else [], env=env, program=program)
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(port)
        out = [None]
        t = threading.Thread(target=stream, args=(port, 0, out))
        t.start()
        if groups:
            time.sleep(0.3)
            kill(job.rank_pid(1))
            self.wait_for("the job does not wait", lambda: self.is_degraded(port))
            self.assertTrue(t.is_alive())
            health = ask(port, "GET", "/health")[1]
            self.assertGreater(health["missing_bytes"], 10 * MIB)
            self.assertRegex(health["reason"], "the stages on .* take .* MiB of memory, .* MiB is free there")
            groups[0].set_limit(256 * MIB)
        t.join()
        self.end(job)
        return out


if __name__ == "__main__":
    sys.exit(run_tests())
