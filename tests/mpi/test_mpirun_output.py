#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace-mpirun where its output cannot be written: the reader is gone, a disk is full. Most tests run a script
in place of millrace. Argument: the class of tests to run. Exit status 77: all were skipped."""
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
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import ask, wait_until_ready  # noqa: E402 (after the path)
from test_mpirun_wrapper import Case, WRAPPER  # noqa: E402 (after the path)

LIMIT_S = 60
# Rank 0 writes its files as millrace does.
PUT = """
put() { echo "$2" >"$MILLRACE_STATUS_FILE$1.part" && mv "$MILLRACE_STATUS_FILE$1.part" "$MILLRACE_STATUS_FILE$1"; }
trap '' PIPE
"""
RANK_0 = PUT + '[ $rank != 0 ] || put .pid "$$ here"\n'


def close_after(stream, words):
    """Reads up to the line with words, and goes away."""
    seen = b""
    while words not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    stream.close()


class Reader(Case):
    """The reader of standard error goes away."""

    def start_and_leave(self, text, *args, words=b"begun", **kwargs):
        """A job whose standard error nobody reads after the line with words."""
        job = self.start(RANK_0 + text, *args, **kwargs)
        self.addCleanup(job.left, 0)  # where a test fails
        close_after(job.process.stderr, words)
        job.process.stderr = None
        return job

    def status_of(self, job):
        done = job.wait(LIMIT_S)
        self.assertEqual(done.left, [])
        return done.status

    def test_job_goes_on(self):
        """mpirun aborts at its tenth SIGPIPE. Here come 60 writes that nobody reads."""
        flood = """echo begun >&2
            for i in 0 1 2; do for j in 0 1 2 3 4 5 6 7 8 9; do echo "line $i$j" >&2; sleep 0.02; done; done
            [ $rank != 0 ] || put '' %d; exit %d"""
        for options, status in ((["--recovery"], 5), (["--no-recovery"], 0), (["--no-recovery"], 7)):
            job = self.start_and_leave(flood % (status, status), *options, "-n", "2", "generate")
            self.assertEqual(self.status_of(job), status, options)

    def test_job_starts_again(self):
        """Rank 0 is killed: the wrapper says so to nobody, and the job of the second start ends well."""
        again = os.path.join(self.folder, "again")
        job = self.start_and_leave("""echo begun >&2
            if [ -e %s ]; then put '' 0; exit 0; fi
            >%s; sleep 0.3; kill -9 $$""" % (again, again), "-n", "1", "batch")
        self.assertEqual(self.status_of(job), 0)

    def test_signals(self):
        """SIGTERM comes to rank 0 of a job that nobody reads."""
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            job = self.start_and_leave("""[ $rank = 0 ] || exec sleep 30
                trap 'echo end >&2; put "" %d; exit %d' INT TERM; echo begun >&2
                while :; do sleep 0.1; done""" % (status, status), "--recovery", "-n", "2", "generate")
            job.process.send_signal(number)
            self.assertEqual(self.status_of(job), status)

    def test_error_ends_the_job(self):
        """Nobody reads the error of a rank without recovery: it still ends the job, though another rank hangs."""
        job = self.start_and_leave("""[ $rank = 1 ] || { echo begun >&2; kill -STOP $$; }
            echo "millrace: error: rank 1 on h: what" >&2; exit 7""", "--no-recovery", "-n", "2", "generate")
        self.assertEqual(self.status_of(job), 7)

    def test_closed(self):
        """Standard streams that are closed at the start."""
        text = "echo begun >&2; [ $rank != 0 ] || put '' 5; exit 5"
        for option, closed in ("--recovery", "2>&-"), ("--no-recovery", "0<&- 1>&- 2>&-"):
            done = self.run_job(RANK_0 + text, option, "-n", "2", "generate",
                                launcher=["sh", "-c", 'exec "$0" "$@" ' + closed, WRAPPER])
            self.assertEqual((done.status, done.stdout, done.stderr), (5, b"", b""), str(done))

    def test_serve(self):
        """A server of the real program answers, loses a rank, answers again, and ends in order."""
        port = free_port()
        job = self.start(None, "-n", "3", "serve", "--demo", "--port", str(port), "--log-level", "debug")
        self.addCleanup(job.left, 0)  # where a test fails
        close_after(job.process.stderr, b"rank 0 is process")
        job.process.stderr = None
        wait_until_ready(port)
        body = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 7}
        status, wanted = ask(port, "POST", "/v1/completions", body)
        self.assertEqual(status, 200, wanted)
        kill(job.rank_pid(1))
        for _ in range(12):
            status, found = ask(port, "POST", "/v1/completions", body)
            self.assertEqual((status, found["choices"]), (200, wanted["choices"]))
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.status_of(job), 0)


class Output(Case):
    """Standard output is full, or its reader goes away."""
    LONG = ["generate", "--demo", "-p", "x", "-n", "400", "-c", "500", "--ignore-eos", "--choices", "30", "--log-level",
            "warn"]
    SHORT = ["generate", "--demo", "-p", "x", "-n", "3", "--log-level", "warn"]

    def check_failed(self, done, words):
        """Status 1, and one line of error, or none."""
        lines = done.stderr.decode().splitlines()
        self.assertEqual((done.status, done.left, len(lines)), (1, [], 1 if words else 0), str(done))
        self.assertIn(words, "".join(lines), str(done))

    def test_same_bytes(self):
        data = os.path.join(self.folder, "data")
        with open(data, "wb") as f:
            f.write(bytes(range(256)).replace(b"\n", b"") * 8000)
        with open(data, "rb") as f:
            self.assertEqual(self.run_job("exec cat " + data, "-n", "1", "generate").stdout, f.read())

    def test_full(self):
        """Early in the run, and at its end. A program that nobody stops would run for a minute."""
        for recovery, args in ("--recovery", self.LONG), ("--no-recovery", self.SHORT), ("--no-recovery", self.LONG):
            done = self.run_job(None, recovery, "-n", "2", *args, launcher=[
                "sh", "-c", 'exec "$0" "$@" >/dev/full', WRAPPER])
            self.check_failed(done, "standard output cannot be written: No space left on device")
        done = self.run_job("while :; do echo x; sleep 0.1; done", "-n", "1", "generate", launcher=[
            "sh", "-c", 'exec "$0" "$@" >/dev/full', WRAPPER])
        self.check_failed(done, "No space left")

    def test_reader_gone(self):
        """As with one process: the job ends without a word."""
        for job in (Job(None, self.LONG, launcher=[program_path()], program=[]),
                    self.start(None, "--recovery", "-n", "2", *self.LONG),
                    self.start(None, "--no-recovery", "-n", "2", *self.LONG)):
            self.assertEqual(len(job.process.stdout.read(20)), 20)
            job.process.stdout.close()
            job.process.stdout = None
            status, errors = job.process.wait(LIMIT_S), job.process.stderr.read()
            job.process.stderr.close()
            self.assertEqual((status, errors, job.left()), (1, b"", []), job.command)

    def test_late_reader(self):
        """It reads only once mpirun has ended: nothing is lost, though the pipe is full."""
        begun = os.path.join(self.folder, "begun")
        job = self.start(">%s; head -c 100000 /dev/zero" % begun, "-n", "1", "generate")
        self.addCleanup(job.left, 0)  # where a test fails
        while not os.path.exists(begun) or any("OMPI_COMM_WORLD_RANK" in environment or self.is_mpirun(pid)
                  for pid, environment in job.processes().items()):
            self.assertIsNone(job.process.poll())
        self.assertIsNone(job.process.poll())
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, len(done.stdout), done.left), (0, 100000, []), str(done))

    @staticmethod
    def is_mpirun(pid):
        try:
            with open("/proc/%d/comm" % pid, encoding="ascii") as f:
                return f.read() == "mpirun\n"
        except OSError:
            return False

    def test_server_goes_on(self):
        """A server has nothing to write there."""
        text = """[ $rank = 0 ] || exit 0
            for i in 0 1 2 3 4 5 6 7 8 9 a b c d e; do echo $i; sleep 0.02; done; put '' 0"""
        for to in "/dev/full", "&-":
            done = self.run_job(RANK_0 + text, "-n", "2", "serve", launcher=[
                "sh", "-c", 'exec "$0" "$@" >' + to, WRAPPER])
            self.assertEqual(done.status, 0, str(done))
            self.assertNotIn(b"error", done.stderr, str(done))


class Signals(Case):
    """Signals that come at the wrong moment, or that nobody means for the job."""
    SHIM = """#!/bin/sh
if [ -z "${1##*z*}" ] && [ -z "${2##MILLRACE_STATUS_FILE=*}" ] && mkdir "%s" 2>/dev/null; then kill -%s $PPID; fi
exec %s "$@"
"""

    def test_mpirun_ends_while_it_is_looked_at(self):
        """What bash has read of it is not taken for the status of rank 0, which is read next."""
        script = """set -euo pipefail; . %s/lib/mpirun_job.sh
            echo 0 >"$1"
            for ((i = 0; i < 100; i++)); do
                sleep 0.003 & pid=$!
                while kill -0 "$pid"; do ! has_signal "$pid" ShdPnd 15 || echo a signal; done 2>/dev/null
                read -r answer <"$1"
                [[ $answer == 0 ]] || echo "$answer"
            done""" % os.path.dirname(WRAPPER)
        done = subprocess.run(["bash", "-c", script, "x", os.path.join(self.folder, "status")], timeout=LIMIT_S,
                              check=False, capture_output=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))

    def test_signal_while_rank_0_is_looked_for(self):
        """It comes to rank 0, which ends in order, and takes longer than mpirun would wait. A stand-in for grep sends the
        signal in the middle of the search."""
        text = """[ $rank = 0 ] || exit 0
            trap 'sleep 2.5; echo in order >&2; put "" 0; exit 0' TERM INT; put .pid "$$ here"; while :; do sleep 0.1; done"""
        for name, command in ("TERM", "serve"), ("INT", "generate"):
            place = tempfile.mkdtemp(dir=self.folder)
            shim = os.path.join(place, "grep")
            with open(shim, "w", encoding="utf-8") as f:
                f.write(self.SHIM % (os.path.join(place, "sent"), name, shutil.which("grep")))
            os.chmod(shim, 0o755)
            done = self.run_job(PUT + text, "--recovery", "-n", "2", command,
                                env={"PATH": place + ":" + os.environ["PATH"]})
            self.assertIn(b"in order\n", done.stderr, str(done))
            self.assertEqual(done.status, 0, str(done))

    def test_signal_for_the_whole_group(self):
        """It comes to the wrapper in the moment in which the wrapper finds that it waits in mpirun. That is one signal, and
        the wrapper does not take it for a second one."""
        script = """set -euo pipefail; . "$1/mpirun_job.sh"; . "$1/mpirun_output.sh"
            signals=() n_taken=0 n_signals=0 rank_0='' mpirun=1 caught=''
            ask_mpirun() { :; }
            has_signal() { [[ $3 == 2 ]] || return 1; signals+=(INT); }
            relay_signals; take_signals; echo "$n_signals $caught" """
        lib = os.path.join(os.path.dirname(WRAPPER), "lib")
        self.assertEqual(subprocess.check_output(["bash", "-c", script, "bash", lib]), b"1 130\n")

    @staticmethod
    def runs_mpirun(job):
        return "mpirun" in subprocess.run(["ps", "-o", "comm=", "--ppid", str(job.process.pid)], check=False,
                                          stdout=subprocess.PIPE, text=True).stdout.split()

    def test_reader_that_reads_nothing(self):
        """The job is over, and what it wrote to standard error waits: a signal ends the wrapper all the same."""
        job = self.start("seq 18000 >&2", "-n", "1", "generate")
        self.addCleanup(job.process.stdout.close)
        self.addCleanup(job.process.stderr.close)
        self.assertEqual(job.process.stderr.read(2), b"1\n")
        end = time.monotonic() + LIMIT_S
        while self.runs_mpirun(job) and time.monotonic() < end:
            time.sleep(0.05)
        while job.process.poll() is None and time.monotonic() < end:
            job.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        self.assertIsNotNone(job.process.poll())

    def test_hangup_at_the_start(self):
        """A server that does not run yet has nothing to renew, also where rank 0 does not catch the signal yet."""
        begun, go = os.path.join(self.folder, "begun"), os.path.join(self.folder, "go")
        for at in "", "put .pid \"$$ here\"":
            text = """trap 'put "" 9; exit 9' TERM; %s
                >%s; while [ ! -e %s ]; do sleep 0.05; done; put .pid "$$ here"; put '' 0""" % (at, begun, go)
            job = self.start(PUT + text, "-n", "1", "serve")
            self.addCleanup(job.left, 0)  # where a test fails
            while not os.path.exists(begun):
                self.assertIsNone(job.process.poll())
            if at:
                self.assertIn(b"rank 0 is process", job.process.stderr.readline())
            job.process.send_signal(signal.SIGHUP)
            with self.assertRaises(subprocess.TimeoutExpired):  # nothing happens
                job.process.wait(1)
            with open(go, "w", encoding="ascii"):
                pass
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left, b"again" in done.stderr), (0, [], False), str(done))
            os.unlink(begun)
            os.unlink(go)

    def test_strays(self):
        """They come to every process of a job, and nothing ends. SIGUSR1 to mpirun or to a worker drains its rank."""
        strays = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
                  signal.SIGPWR, signal.SIGXFSZ, signal.SIGRTMIN, signal.SIGRTMAX]
        for recovery in ["--recovery"], ["--no-recovery"]:
            port = free_port()
            job = self.start(None, *recovery, "-n", "2", "serve", "--demo", "--port", str(port))
            self.addCleanup(job.left, 0)  # where a test fails
            wait_until_ready(port)
            pids = sorted(job.processes())
            for number in strays:
                for pid in pids:
                    os.kill(pid, number)
            for _ in range(3):
                self.assertEqual(ask(port, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4})[0], 200)
            self.assertEqual(sorted(job.processes()), pids)
            job.process.send_signal(signal.SIGTERM)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (0, []), str(done))


class Temporary(Case):
    """TMPDIR has no room, in a mount namespace of the job."""

    @classmethod
    def setUpClass(cls):
        if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False,
                          stderr=subprocess.DEVNULL).returncode != 0:
            raise unittest.SkipTest("mounts need root")
        super().setUpClass()

    def start_in_tmpfs(self, full, *args, **kwargs):
        """A job of the real program whose TMPDIR is full from the start, or has 64 MiB."""
        place = os.path.join(self.folder, "tmp")
        os.makedirs(place, exist_ok=True)
        script = 'mount -t tmpfs -o size=64m none "$TMPDIR" || exit 99\n'
        script += 'head -c 64M /dev/zero >"$TMPDIR/fill"\n' if full else ""
        job = self.start(None, *args, env={"TMPDIR": place}, launcher=["unshare", "-m", "sh", "-c",
                         script + 'exec "$0" "$@"', WRAPPER], **kwargs)
        self.addCleanup(job.left, 0)  # where a test fails
        self.place = "/proc/%d/root%s" % (job.process.pid, place)
        return job

    def fill(self):
        fd = os.open(os.path.join(self.place, "fill"), os.O_WRONLY | os.O_CREAT)
        with self.assertRaises(OSError):
            while True:
                os.write(fd, bytes(4096))
        os.close(fd)

    def check_end(self, job, status):
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (status, []), str(done))
        self.assertNotIn(b"No space", done.stderr, str(done))
        return done

    def test_full_at_the_start(self):
        """A job runs, and its status is that of rank 0."""
        short = ["generate", "--demo", "-p", "x", "-n", "3", "--log-level", "warn"]
        for recovery in ["--no-recovery"], ["--recovery"]:
            done = self.check_end(self.start_in_tmpfs(True, *recovery, "-n", "2", *short), 0)
            self.assertEqual(done.stderr, b"", str(done))
        self.check_end(self.start_in_tmpfs(True, "--recovery", "-n", "2", "generate", "/nowhere.gguf", "-p", "x"), 1)

    def test_lost_rank(self):
        """It becomes full, and a rank is killed: the status is as always, and a line names the rank."""
        for full in True, False:
            port = free_port()
            job = self.start_in_tmpfs(full, "--no-recovery", "-n", "2", "serve", "--demo", "--port", str(port))
            wait_until_ready(port)
            if not full:
                self.fill()
            kill(job.rank_pid(1))
            self.assertIn(b"millrace: error: rank 1 on ", self.check_end(job, 137).stderr)

    def test_server(self):
        """It becomes full while a server runs, which loses a rank, goes on, and ends in order."""
        port = free_port()
        job = self.start_in_tmpfs(False, "-n", "3", "serve", "--demo", "--port", str(port))
        wait_until_ready(port)
        self.fill()
        kill(job.rank_pid(1))
        self.assertEqual(ask(port, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 8})[0], 200)
        job.process.send_signal(signal.SIGTERM)
        self.assertIn(b"the others take over its layers", self.check_end(job, 0).stderr)


if __name__ == "__main__":
    sys.exit(run_tests())
