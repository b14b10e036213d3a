#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace-mpirun as a supervisor: ranks that are killed or stopped at random moments, signals that drain a
server, hosts that do not answer. The job always ends soon, with one message, and leaves nothing.
MILLRACE_FAULTS: how many random moments to try. Argument: the class of tests to run. Exit status 77: all skipped."""
import http.client
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Hosts, Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import ask, wait_until_ready  # noqa: E402 (after the path)

WRAPPER = os.path.join(HERE, "..", "..", "deploy", "millrace-mpirun")
DEMO = os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf")
DECODE = ["bench", "--demo", "-p", "0", "-n", "300", "-b", "4", "-r", "1000", "--log-level", "warn"]
LIMIT_S = 60
PROMISE_S = 10  # from the fault to the end of the job
BUSY_S = 5      # what a busy machine may add


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-recovery-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, n, wrapper_args, args, env=None, hosts=None):
        """A job under the wrapper, whose temporary files and memory segments lie in self.folder."""
        variables = {"MILLRACE_BIN": program_path(), "TMPDIR": self.folder,
                     "OMPI_MCA_btl_vader_backing_directory": self.folder, **(env or {})}
        job = Job(n, args, hosts=hosts, launcher=[WRAPPER], mpirun_args=wrapper_args, program=[], env=variables)
        self.addCleanup(job.left, 0)  # where a test fails
        return job

    def check_nothing_is_left(self, done):
        self.assertEqual(done.left, [], str(done))
        self.assertEqual(os.listdir(self.folder), [], str(done))


class Random(Case):
    """Three ranks with --recovery, one of which is killed or stopped at any moment of its first 3 s."""

    def check_ends(self, job, rank, since, delay, what):
        """The job ends if it was rank 0, or if the model was not loaded yet; else it goes on until it is told to end."""
        # A stopped rank is missed after 5 s, one that has not called rank 0 after 6 s from the start of rank 0.
        end = since + 8 + (BUSY_S if delay < 1 else 0)
        while rank != 0 and job.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        goes_on = rank != 0 and job.process.poll() is None
        if goes_on:
            job.process.send_signal(signal.SIGTERM)
        done = job.wait(LIMIT_S)
        seconds = time.monotonic() - since
        why = "%s\n%s" % (what, done)
        text = done.stderr.decode()
        errors = [line for line in text.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 0 if goes_on else 1, why)
        self.assertRegex(text if goes_on else errors[0], r"rank %d\b" % rank, why)
        self.assertEqual("the others take over its layers" in text, goes_on, why)
        self.assertNotIn(done.status, (0, None), why)
        self.assertLess(seconds, (2 if goes_on else 1) * (PROMISE_S + BUSY_S), why)
        self.check_nothing_is_left(done)
        return seconds

    def fault(self, number, rank, delay):
        what = "%s of rank %d after %.3f s" % (number.name, rank, delay)
        job = self.start(3, ["--recovery"], DECODE)
        pid = job.rank_pid(rank)
        time.sleep(delay)
        since = time.monotonic()
        os.kill(pid, number)
        print("%s: %.1f s" % (what, self.check_ends(job, rank, since, delay, what)), flush=True)

    def test_rank_0_stops_before_others_know_it(self):
        for delay in (0, 0.02, 0.08):
            self.fault(signal.SIGSTOP, 0, delay)

    def test_moments(self):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        luck = random.Random(seed)
        for i in range(int(os.environ.get("MILLRACE_FAULTS", "10"))):
            self.fault((signal.SIGKILL, signal.SIGSTOP)[i % 2], luck.randrange(3),
                       luck.uniform(0, luck.choice((0.6, 3))))  # MPI starts in the first moments


class Serve(Case):
    """Signals to a server over three ranks while answers are streamed."""

    def start_server(self, *wrapper_args, step_ms=4):
        """Each of the three stages sleeps step_ms for a token: answers last as long as a test wants."""
        port = free_port()
        job = self.start(3, wrapper_args, ["serve", DEMO, "--port", str(port), "--drain-s", "50", "--synthetic-stage",
                                           "%d,0" % step_ms])
        wait_until_ready(port)
        return job, port

    @staticmethod
    def stream(port, n, n_tokens, found):
        """n clients in threads, which put into found whether all went well; returns once all are being answered."""
        body = {"prompt": "Once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "stream": True}

        def run():
            try:
                with urllib.request.urlopen(urllib.request.Request(
                        "http://127.0.0.1:%d/v1/completions" % port, json.dumps(body).encode(),
                        {"Content-Type": "application/json"}), timeout=LIMIT_S) as answer:
                    text = answer.read()
                found.append(text.count(b'"finish_reason":"length"') == 1 and text.endswith(b"data: [DONE]\n\n"))
            except (OSError, http.client.HTTPException):
                found.append(False)
        threads = [threading.Thread(target=run) for _ in range(n)]
        for thread in threads:
            thread.start()
        while ask(port, "GET", "/page/state")[1]["sequences"]["live"] < n:
            assert not found, "an answer has ended before the last one began"
            time.sleep(0.01)
        return threads

    def test_drain(self):
        """SIGTERM or SIGINT to the wrapper, or to mpirun: answers come to their end, then the job does."""
        for recovery in (["--no-recovery"], []):
            for number, to_mpirun in ((signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)):
                what = "%s to %s %s" % (number.name, "mpirun" if to_mpirun else "the wrapper", recovery)
                job, port = self.start_server(*recovery)
                found = []
                threads = self.stream(port, 16, 150, found)
                os.kill(job.mpirun_pid() if to_mpirun else job.process.pid, number)
                for thread in threads:
                    thread.join()
                done = job.wait(LIMIT_S)
                self.assertEqual(found, [True] * 16, "%s\n%s" % (what, done))
                self.assertEqual(done.status, 0, "%s\n%s" % (what, done))
                self.assertNotIn(b"error", done.stderr, str(done))
                self.check_nothing_is_left(done)

    def test_second_signal(self):
        """It does not wait for the answers."""
        for recovery in (["--no-recovery"], []):
            job, port = self.start_server(*recovery, step_ms=15)
            found = []
            threads = self.stream(port, 64, 480, found)
            job.process.send_signal(signal.SIGTERM)
            with self.assertRaises(OSError):  # a server that drains has closed its port
                while ask(port, "GET", "/health"):
                    time.sleep(0.01)
            begin = time.monotonic()
            job.process.send_signal(signal.SIGTERM)
            done = job.wait(LIMIT_S)
            for thread in threads:
                thread.join()
            self.assertLess(time.monotonic() - begin, PROMISE_S + BUSY_S, str(done))
            self.assertIn(False, found, str(done))
            self.assertNotIn(done.status, (0, None), str(done))
            self.check_nothing_is_left(done)

    def test_process_of_rank_0_is_named(self):
        job, _ = self.start_server()
        pid = job.rank_pid(0)
        kill(pid, signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual(done.status, 0, str(done))
        self.assertIn("rank 0 is process %d:" % pid, done.stderr.decode())

    def test_mpirun_that_hangs(self):
        """It is killed, and what it would have removed is."""
        for recovery in (["--no-recovery"], []):
            job, _ = self.start_server(*recovery)
            kill(job.mpirun_pid(), signal.SIGSTOP)
            begin = time.monotonic()
            job.process.send_signal(signal.SIGTERM)
            done = job.wait(LIMIT_S)
            # Rank 0 waits for 3 s, the wrapper for 10, and for 5 once it has asked mpirun.
            self.assertLess(time.monotonic() - begin, 18 + BUSY_S, str(done))
            self.assertEqual(done.status, 0, str(done))
            self.assertNotIn(b"Killed", done.stderr)
            self.check_nothing_is_left(done)

    def test_killed_wrapper(self):
        """The job ends with it."""
        job, _ = self.start_server()
        job.process.kill()
        self.assertEqual(job.left(PROMISE_S + BUSY_S), [])
        job.process.communicate()


class Silent(Case):
    """Hosts from which mpirun's daemon cannot call back."""

    @classmethod
    def setUpClass(cls):
        if Hosts.available():
            raise unittest.SkipTest(Hosts.available())

    def check_start(self, hosts, silent, limit_s, waits_for_tcp=False):
        """The host is named, and the start given up. A daemon may wait there until its own TCP gives up."""
        begin = time.monotonic()
        job = self.start(None, [], ["generate", "--demo", "-p", "x", "--start-timeout", str(limit_s)], hosts=hosts)
        first = b""
        while b"no connection" not in first:
            first = job.process.stderr.readline()
            self.assertNotEqual(first, b"", "no host was named")
        self.assertLess(time.monotonic() - begin, 15 + BUSY_S)
        self.assertEqual(re.findall(r"\bmr[0-9n]+[a-z]\b", first.decode()), [hosts.names[silent]], first)
        done = job.wait(LIMIT_S)
        self.assertLess(done.seconds, limit_s + PROMISE_S + BUSY_S, str(done))
        self.assertEqual(done.status, 1, str(done))
        self.assertRegex(done.stderr.decode(), "not started within %d s: .* %s\n" % (limit_s, hosts.names[silent]))
        done.left = done.left[:-1] if waits_for_tcp else done.left
        self.check_nothing_is_left(done)

    def test_cut_off(self):
        with Hosts(3) as hosts:
            hosts.cut("b")
            self.check_start(hosts, "b", 12)

    def test_one_direction(self):
        """What the host sends does not come back: its connections are never established."""
        with Hosts(3) as hosts:
            hosts.deafen("a", to="c")
            self.check_start(hosts, "c", 12, waits_for_tcp=True)

    def test_all_is_well(self):
        """A job that takes longer than the limit, which is for the start, goes on."""
        with Hosts(3) as hosts:
            job = self.start(None, [], [*DECODE, "--start-timeout", "8"], hosts=hosts)
            job.rank_pid(0)
            time.sleep(9)
            kill(job.rank_pid(0), signal.SIGTERM)
            done = job.wait(LIMIT_S)
            self.assertNotIn(b"no connection", done.stderr, str(done))


if __name__ == "__main__":
    sys.exit(run_tests())
