#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with ranks: each time one clear message with rank and host, a status that is not 0, and no process left
after 5 s. Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from hosts import Hosts, Job, kill, program_path, run_ranks, run_tests  # noqa: E402 (after the path)

BIN = program_path()
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "millrace-mpirun")
# Each goes on for minutes, and does nothing but what it is named for.
PREFILL = ["bench", "--demo", "-p", "400", "-n", "0", "-r", "1000"]
DECODE = ["bench", "--demo", "-p", "0", "-n", "300", "-b", "4", "-r", "1000"]
LOADED = "loaded"  # in place of a number of seconds: a moment after rank 0 says so
LIMIT_S = 60


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-faults-")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    @staticmethod
    def start(n, args, hosts=None):
        """A job under deploy/millrace-mpirun."""
        return Job(n, args, hosts=hosts, launcher=[WRAPPER], env={"MILLRACE_BIN": BIN})

    def start_until(self, args, rank, moment, hosts=None):
        """A job of three ranks and the process of one, some seconds after that process has begun, or LOADED."""
        job = self.start(3, [*args, "--log-level", "info" if moment == LOADED else "warn"], hosts)
        pid = job.rank_pid(rank)
        if moment == LOADED:
            said = b""
            while b"loaded " not in said:
                piece = os.read(job.process.stderr.fileno(), 65536)
                self.assertNotEqual(piece, b"", said)
                said += piece
        time.sleep(0.1 if moment == LOADED else moment)
        return job, pid

    def check(self, done, rank, host):
        """It failed, named rank and host once, and left nothing."""
        text = done.stderr.decode()
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertEqual(done.left, [], str(done))
        errors = [line for line in text.splitlines() if line.startswith("millrace: error: ")]
        self.assertLessEqual(len(errors), 1, str(done))
        if errors:
            self.assertIn("rank %d on %s" % (rank, host), errors[0], str(done))
        else:  # by mpirun, before there is a lifeline
            self.assertRegex(text, r"rank %d\b" % rank, str(done))
            self.assertIn(host, text, str(done))


class Kill(Case):
    @staticmethod
    def is_left_by_mpirun(done):
        """Open MPI 4.1 itself: killed while it starts, a rank is at times not named, or mpirun waits for ever without ranks.
        mpirun may also crash while it ends, before it has passed on what the ranks say."""
        text = done.stderr.decode()
        is_alone = done.status is None and "alive: rank none" in text and not re.search(r"alive: rank \d", text)
        has_crashed = "PMIx_Finalize" in text and "millrace: error: rank" not in text
        return has_crashed or (
            "millrace: error" not in text and (is_alone or (done.status == 137 and not re.search(r"rank \d", text))))

    def kill(self, args, rank, moment, hosts=None, host=None):
        for _ in range(3):
            job, pid = self.start_until(args, rank, moment, hosts)
            os.kill(pid, signal.SIGKILL)
            done = job.wait(LIMIT_S / 2)
            if not self.is_left_by_mpirun(done):
                break
        self.check(done, rank, host or socket.gethostname())
        # Where rank 0 dies, another rank that leaves may be the first one that mpirun hears of. So may one that mpirun
        # is only starting, which then dies of a closed pipe.
        statuses = [137] + [1] * (rank == 0) + [128 + signal.SIGPIPE] * (moment != LOADED)
        # Open MPI 4.1's mpirun may crash while it ends, when a rank on another host was killed.
        statuses += [128 + signal.SIGSEGV] * (b"PMIx_Finalize" in done.stderr)
        self.assertIn(done.status, statuses, str(done))
        return done

    def test_start_and_load(self):
        """From where MPI starts to after the model is loaded, which takes half a second."""
        for i in range(9):
            self.kill(PREFILL, i % 3, 0.03 + i * 0.07)

    def test_prefill_and_decode(self):
        for args in (PREFILL, DECODE):
            for rank in (0, 1, 2):
                done = self.kill(args, rank, LOADED)
                self.assertIn(b"millrace: error: rank %d" % rank, done.stderr, str(done))

    def test_hosts(self):
        if Hosts.available():
            self.skipTest(Hosts.available())
        for rank, letter in ((1, "b"), (0, "a")):
            with Hosts(3) as hosts:
                self.kill(DECODE, rank, LOADED, hosts, hosts.names[letter])


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    with open("/proc/%d/status" % pid, encoding="ascii") as f:
        return bool(int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16) >> (number - 1) & 1)


class Signals(Case):
    def test_to_mpirun(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for moment in (0.4, LOADED):
                job, _ = self.start_until(DECODE, 0, moment)
                job.process.send_signal(number)
                done = job.wait(LIMIT_S)
                self.assertNotIn(done.status, (0, None), str(done))
                self.assertEqual(done.left, [], str(done))
                self.assertNotIn(b"millrace: error", done.stderr, str(done))
                self.assertNotIn(b" 0.0 tokens/s", done.stderr, str(done))
                warnings = re.findall(b"millrace: warning: .*", done.stderr)
                self.assertLessEqual(len(warnings), 1, str(done))
                if moment == LOADED:
                    self.assertIn(b"rank 0 on %s was interrupted" % socket.gethostname().encode(), warnings[0])

    def test_while_rank_0_waits(self):
        """For ranks that are late: it says that it was interrupted, and the status is that of the signal."""
        for number in (signal.SIGINT, signal.SIGTERM):
            job = Job(2, ["generate", DEMO, "-p", "x"], launcher=[WRAPPER], env={"MILLRACE_BIN": BIN})
            os.kill(job.rank_pid(1), signal.SIGSTOP)
            pid = job.rank_pid(0)
            end = time.monotonic() + LIMIT_S
            while time.monotonic() < end and not catches(pid, number):
                time.sleep(0.005)
            os.kill(pid, number)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (128 + number, []), str(done))
            self.assertIn(b"rank 0 on %s was interrupted" % socket.gethostname().encode(), done.stderr, str(done))

    def test_to_a_rank(self):
        """A worker leaves its first signal to rank 0, which may have got it too; the second one ends it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            for rank in (0, 2):
                job, pid = self.start_until(DECODE, rank, LOADED)
                os.kill(pid, number)
                if rank != 0:
                    time.sleep(1)
                    self.assertIsNone(job.process.poll())
                    os.kill(pid, number)
                done = job.wait(LIMIT_S)
                self.check(done, rank, socket.gethostname())
                self.assertEqual(done.status, 128 + (number if rank == 0 else signal.SIGTERM), str(done))


class Two(Case):
    """Two ranks whose command lines differ."""

    def two(self, second, first=None):
        """Rank 0 and rank 1 with command lines of their own."""
        first = first or ["generate", DEMO, "-p", "x"]
        return run_ranks(1, [*first, ":", "-n", "1", *second])

    def refused(self, done, *words):
        self.check(done, 1, socket.gethostname())
        self.assertEqual(done.stdout, b"", str(done))
        for word in words:
            self.assertIn(word, done.stderr.decode(), str(done))


class Weights(Two):
    def test_one_other_byte(self):
        """With --verify-weights a byte that no sample of the digest covers is found before anything is loaded."""
        with open(DEMO, "rb") as f:
            data = bytearray(f.read())
        data[-7] ^= 1  # no sample of the digest covers it
        with open(self.path("byte.gguf"), "wb") as f:
            f.write(data)
        path, verify = self.path("byte.gguf"), ["--verify-weights", "--cache-dir", self.path("cache")]
        for _ in range(2):  # the second time the hashes are kept
            self.refused(self.two([BIN, "generate", path, "-p", "x", *verify],
                                  ["generate", DEMO, "-p", "x", *verify]), path, "has other bytes than that of rank 0")
        done = self.two([BIN, "generate", DEMO, "-p", "x", "-n", "4", *verify],
                        ["generate", DEMO, "-p", "x", "-n", "4", *verify])
        self.assertEqual((done.status, done.left), (0, []), str(done))


class Start(Two):
    """What rank 0 refuses before anything is loaded. The ranks of one mpirun may be different programs."""

    def test_model_files(self):
        with open(DEMO, "rb") as f:
            data = bytearray(f.read())
        with open(self.path("short.gguf"), "wb") as f:
            f.write(data[:-100])
        for i in range(len(data) // 2, len(data), 32):
            data[i] ^= 1
        with open(self.path("other.gguf"), "wb") as f:
            f.write(data)
        for name, word in (("short", "data ends at"), ("other", "another one than")):
            path = self.path(name + ".gguf")
            self.refused(self.two([BIN, "generate", path, "-p", "x"]), path, word)
        missing = self.path("missing.gguf")
        done = self.two([BIN, "generate", DEMO, "-p", "x"], ["generate", missing, "-p", "x"])
        self.assertEqual((done.status, done.stdout, done.left), (1, b"", []), str(done))
        self.assertIn(missing, done.stderr.decode(), str(done))
        self.assertIn("rank 0 needs the model file", done.stderr.decode(), str(done))

    def test_another_version(self):
        with open(BIN, "rb") as f:
            data = f.read()
        version = subprocess.run([BIN, "--version"], check=True, stdout=subprocess.PIPE).stdout.split()[1]
        other = self.path("millrace")
        with open(other, "wb") as f:
            f.write(data.replace(version + b"\0", b"9" * len(version) + b"\0"))
        os.chmod(other, 0o755)
        self.refused(self.two([other, "generate", DEMO, "-p", "x"]), "runs millrace 9", "same version")

    def test_command_lines(self):
        self.refused(self.two([BIN, "generate", DEMO, "--nonsense"]), "--nonsense")
        done = run_ranks(3, ["generate", DEMO, "--nonsense"])
        self.assertEqual((done.status, done.left), (2, []), str(done))
        self.assertEqual(done.stderr.count(b"--nonsense"), 1, str(done))
        done = run_ranks(2, ["generate", DEMO, "-p", "x", "--stages", "3"])
        self.assertEqual((done.status, done.left), (2, []), str(done))
        self.assertIn(b"3 stages need as many ranks, but 2 were started", done.stderr)

    def test_missing_rank(self):
        """Rank 1 is there, but is stopped before it can start MPI. Open MPI 4.1's mpirun alone at times never ends then."""
        job = self.start(2, ["generate", DEMO, "-p", "x", "--start-timeout", "2"])
        os.kill(job.rank_pid(1), signal.SIGSTOP)
        done = job.wait(LIMIT_S)
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertEqual(done.left, [], str(done))
        self.assertRegex(done.stderr.decode(), "no word from rank 1|MPI has not started within 2 s|rank 1 on")

    def test_no_daemon(self):
        environment = dict(os.environ, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
        done = subprocess.run([BIN, "generate", DEMO, "-p", "x"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=LIMIT_S)
        self.assertEqual((done.returncode, done.stdout), (1, b""), done)
        self.assertIn(b"no MPI daemon can be reached", done.stderr)

    def test_status_file(self):
        """Rank 0 says who it is before MPI starts, which here never happens, and how it ended."""
        environment = dict(os.environ, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2",
                           MILLRACE_STATUS_FILE=self.path("status"))
        with subprocess.Popen([BIN, "generate", DEMO, "-p", "x"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.communicate(timeout=LIMIT_S)
        for name, wanted in ((".pid", "%d %s\n" % (process.pid, socket.gethostname())), ("", "1\n")):
            with open(self.path("status" + name), encoding="ascii") as f:
                self.assertEqual(f.read(), wanted)
        self.assertEqual(sorted(os.listdir(self.folder)), ["status", "status.pid"])


class Disk(Case):
    def test_full(self):
        with open(self.path("ids"), "w", encoding="ascii") as f:
            f.write("1 2 3")
        for extra in (["-o", "/dev/full"], ["-o", self.path("out"), "--trace", "/dev/full"],
                      ["-o", self.path("out"), "--trace", "/nowhere/trace"]):
            done = run_ranks(2, ["logits", DEMO, "--ids-file", self.path("ids"), "--log-level", "warn", *extra])
            self.assertEqual((done.status, done.left), (1, []), str(done))
            self.assertRegex(done.stderr, b"^millrace: error: /[a-z/]+ cannot be written: [A-Z][a-z ]+\n$", str(done))


class Network(unittest.TestCase):
    """Messages to a host wait in MPI while its network is cut and its rank dies. Then the network is back."""
    def setUp(self):
        why = Hosts.available()
        if why:
            self.skipTest(why)

    def rank_0_lives(self, how):
        with Hosts(2) as hosts:
            job = Job(2, [how], hosts=hosts, program=[os.environ["CUT_MPI"]], mpirun_args=["--enable-recovery"],
                      stdin=subprocess.PIPE)
            self.addCleanup(job.left, 0)
            self.assertEqual(job.process.stdout.readline(), b"connected\n")
            hosts.cut("b")
            job.process.stdin.write(b"cut\n")
            job.process.stdin.flush()
            self.assertEqual(job.process.stdout.readline(), b"told\n")
            kill(job.rank_pid(1))
            hosts.join("b")
            job.process.stdin.write(b"back\n")
            job.process.stdin.flush()
            word = job.process.stdout.readline()
            job.left(0)
            job.process.communicate()
            return word == b"alive\n"

    def test_a_network_that_comes_back(self):
        self.assertTrue(self.rank_0_lives("lost"))
        self.assertTrue(self.rank_0_lives("gone"))


if __name__ == "__main__":
    sys.exit(run_tests())
