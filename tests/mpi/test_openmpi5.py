#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Millrace with Open MPI 5, of the Python package openmpi: it builds, runs over hosts, and ends when a host is lost, a
rank is stopped, or a signal comes. MILLRACE_OPENMPI5_BIN is the program. With MILLRACE_TEST_LONG=1 cmake builds another
one with this MPI, in the folder OPENMPI5_BUILD, which is kept.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from hosts import Hosts, Job, program_path, run_tests  # noqa: E402 (after the path)

ROOT = os.path.join(HERE, "..", "..")
WRAPPER = os.path.join(ROOT, "deploy", "millrace-mpirun")
MPICC = os.path.join(os.path.dirname(os.environ.get("MILLRACE_TEST_PYTHON", "")), "mpicc")
IS_LONG = os.environ.get("MILLRACE_TEST_LONG") == "1"
BUILD = os.environ.get("OPENMPI5_BUILD", "build/openmpi5")
BIN = os.path.join(BUILD, "bin", "millrace") if IS_LONG else \
    os.environ.get("MILLRACE_OPENMPI5_BIN", "build/release/bin/millrace_openmpi5")
GENERATE = ["generate", "--demo", "-p", "Once upon a time", "-n", "24", "--temp", "0", "--log-level", "warn"]
DECODE = ["bench", "--demo", "-p", "0", "-n", "300", "-b", "4", "-r", "1000"]
LIMIT_S = 60
PROMISE_S = 15
BUSY_S = 5  # what a busy machine may add


def build(mpicc):
    """Millrace in BUILD."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMILLRACE_TESTS=OFF", "-DMILLRACE_MPI=ON", "-DMILLRACE_CUDA=OFF",
               "-DMPI_C_COMPILER=" + mpicc]
    for command in (["cmake", "-G", "Ninja", "-S", ROOT, "-B", BUILD, *options],
                    ["cmake", "--build", BUILD, "-j", "2", "--target", "millrace"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout.decode())


class OpenMpi5(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.isabs(MPICC) or not os.access(MPICC, os.X_OK):
            raise unittest.SkipTest("there is no Python package openmpi; deploy/check installs it")
        if Hosts.available():
            raise unittest.SkipTest(Hosts.available())
        if IS_LONG:
            build(MPICC)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-openmpi5-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, wrapper_args, args, hosts=None):
        path = os.path.dirname(MPICC) + ":" + os.environ["PATH"]
        env = {"MILLRACE_BIN": BIN, "PATH": path, "TMPDIR": self.folder}
        job = Job(None, args, hosts=hosts, launcher=[WRAPPER], mpirun_args=wrapper_args, program=[], env=env)
        self.addCleanup(job.left, 0)  # where a test fails
        return job

    @staticmethod
    def wait_until_loaded(job):
        for line in job.process.stderr:
            if line.startswith(b"loaded"):
                return

    def check_end(self, job, since):
        """It has failed, soon, and nothing is left."""
        done = job.wait(LIMIT_S)
        self.assertLess(time.monotonic() - since, PROMISE_S + BUSY_S, str(done))
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertEqual((done.left, os.listdir(self.folder)), ([], []), str(done))
        return done

    @staticmethod
    def end_recovered(job):
        """Waits until the other ranks go on, and tells the job to end."""
        for line in job.process.stderr:
            if line.startswith(b"epoch 2:"):
                break
        job.process.send_signal(signal.SIGTERM)

    def test_version(self):
        done = subprocess.run([BIN, "--version"], stdout=subprocess.PIPE, check=True)
        self.assertIn(b"MPI: Open MPI v5.", done.stdout)

    def test_same_text_over_hosts(self):
        wanted = subprocess.run([program_path(), *GENERATE], stdout=subprocess.PIPE, check=True).stdout
        with Hosts(3) as hosts:
            done = self.start([], GENERATE, hosts).wait(LIMIT_S)
        self.assertEqual((done.status, done.stdout, done.stderr, done.left), (0, wanted, b"", []), str(done))

    def test_lost_host(self):
        for recovery in ([], ["--recovery"]):
            with Hosts(3) as hosts:
                job = self.start(recovery, DECODE, hosts)
                self.wait_until_loaded(job)
                time.sleep(1)  # a daemon that is still sending waits as long as TCP does
                hosts.cut("b")
                said = b""
                if recovery:
                    self.end_recovered(job)
                else:
                    said = next((line for line in job.process.stderr if b"gone" in line or b"lost" in line), b"")
                hosts.join("b")  # mpirun's daemon there ends when it can hear that mpirun has ended
                done = self.check_end(job, time.monotonic())
                # Open MPI 5 names the host, but at times it ends without a word.
                if not recovery:
                    self.assertRegex((said + done.stderr).decode(), hosts.names["b"] + "|a host was lost")

    def test_stopped_rank(self):
        for recovery in ([], ["--recovery"]):
            job = self.start([*recovery, "-n", "3"], DECODE)
            self.wait_until_loaded(job)
            pid = job.rank_pid(1)
            os.kill(pid, signal.SIGSTOP)
            if recovery:
                self.end_recovered(job)
            done = self.check_end(job, time.monotonic())
            if not recovery:
                self.assertEqual(done.stderr.count(b"rank 1 on"), 1, str(done))

    def test_signals(self):
        for recovery in ([], ["--recovery"]):
            job = self.start([*recovery, "-n", "3"], DECODE)
            self.wait_until_loaded(job)
            job.process.send_signal(signal.SIGTERM)
            done = self.check_end(job, time.monotonic())
            self.assertEqual(done.status, 128 + signal.SIGTERM, str(done))


if __name__ == "__main__":
    sys.exit(run_tests())
