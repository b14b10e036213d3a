#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop or cannot be reached while a job starts, where mpirun lets the others go on: the job ends within
seconds, one message names the rank, and no other rank stays. Argument: the class of tests to run. Exit status 77: all
were skipped."""
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
from hosts import Hosts, Job, kill, program_path, run_tests  # noqa: E402 (after the path)

BIN = program_path()
DECODE = ["bench", "--demo", "-p", "0", "-n", "300", "-b", "4", "-r", "1000", "--log-level", "warn"]
RECOVERY = ["--enable-recovery"]
# The program promises 10 s; MPI alone takes 60. Twice that, for machines with other work.
END_S = 20
LIMIT_S = 60


def ranks_of(job):
    """{rank: pid} of the living ranks."""
    return {int(e["OMPI_COMM_WORLD_RANK"]): pid for pid, e in job.processes().items() if "OMPI_COMM_WORLD_RANK" in e}


def wait_for_ranks(job, wanted, seconds=LIMIT_S):
    """Until the living ranks are the wanted ones, seconds at most; returns who lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and set(ranks_of(job)) != set(wanted):
        time.sleep(0.02)
    return sorted(ranks_of(job))


class Case(unittest.TestCase):
    def end(self, job, stopped=()):
        """The end of a job in which a rank was hurt: all others leave, and mpirun goes when that one does."""
        left = wait_for_ranks(job, stopped, END_S)
        for pid in ranks_of(job).values():
            kill(pid)
        done = job.wait(LIMIT_S)
        self.assertEqual(left, sorted(stopped), str(done))
        self.assertEqual(done.left, [], str(done))
        return done

    def check(self, done, rank, host=None):
        """One message names the rank; or the launcher, where that has stopped, too."""
        errors = re.findall("millrace: error: .*", done.stderr.decode())
        self.assertEqual(len(errors), 1, str(done))
        if "launcher" not in errors[0]:
            # The launcher may not know the host of a rank that died before it could say a word.
            hosts = re.escape(host) if host else "(%s|an unknown host)" % re.escape(socket.gethostname())
            self.assertRegex(errors[0], "rank %d on %s" % (rank, hosts), str(done))
        return errors[0]


# Under plain mpirun, which at times hangs or goes on by itself. test_mpirun_recovery.py has the same for the wrapper.
LONG = unittest.skipUnless(os.environ.get("MILLRACE_TEST_LONG") == "1", "many kills under plain mpirun: a long run")


class Hurt(Case):
    """A rank is killed or stopped at some moment of the first seconds."""

    def hurt(self, number, rank, delay):
        for _ in range(3):
            job = Job(3, DECODE, mpirun_args=RECOVERY)
            pid = job.rank_pid(rank)
            time.sleep(delay)
            kill(pid, number)
            done = self.end(job, [rank] if number == signal.SIGSTOP else [])
            if not self.is_stuck(done):
                break
        self.check(done, rank)

    @staticmethod
    def is_stuck(done):
        """mpirun of Open MPI 4.1 itself: when a rank dies in its handshake it may wait for ever, without a word."""
        return done.status is None and b"UNREACHABLE" in done.stderr and b"millrace: error" not in done.stderr

    @LONG
    def test_killed(self):
        for i in range(9):
            self.hurt(signal.SIGKILL, i % 3, (0, 0.04, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3)[(i * 4) % 9])

    @LONG
    def test_stopped(self):
        for i in range(6):
            self.hurt(signal.SIGSTOP, i % 3, (0, 0.06, 0.15, 0.4, 1, 3)[(i * 5) % 6])

    def test_the_launcher_is_killed(self):
        for delay in (0.3, 2):
            job = Job(3, DECODE, mpirun_args=RECOVERY)
            job.rank_pid(0)
            time.sleep(delay)
            job.process.kill()
            self.assertEqual(wait_for_ranks(job, [], END_S), [])
            job.wait(LIMIT_S)


NO_INTERFACES = """
#include <errno.h>
#include <ifaddrs.h>
int getifaddrs(struct ifaddrs **out) { (void)out; errno = EACCES; return -1; }
"""


class NoLifeline(Case):
    """Without a lifeline a death would be noticed by nobody, so such a job does not start."""

    def test_rank_0_has_no_interface(self):
        compiler, folder = shutil.which("cc"), tempfile.mkdtemp(prefix="millrace-start-")
        self.addCleanup(shutil.rmtree, folder)
        if not compiler:
            self.skipTest("there is no cc")
        library = os.path.join(folder, "none.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=NO_INTERFACES.encode(),
                       check=True)
        asan = ["-x", "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"] if "ASAN_OPTIONS" in os.environ else []
        job = Job(1, [":", "-n", "2", BIN, *DECODE], mpirun_args=[*RECOVERY, *asan],
                  program=["env", "LD_PRELOAD=" + library, BIN, *DECODE])
        self.assertIn("no lifeline", self.check(self.end(job), 0))

    def test_rank_0_refuses(self):
        """Before it meets the others: they leave, and nobody says it twice."""
        job = Job(3, ["generate", "--demo", "-p", "x", "--stages", "nonsense"], mpirun_args=RECOVERY)
        done = self.end(job)
        self.assertEqual(len(re.findall(b"millrace: error: ", done.stderr)), 1, str(done))
        self.assertIn(b"--stages", done.stderr, str(done))

    def test_a_firewall(self):
        """What rank 0's host sends from ports that the system picks, as for the lifeline, reaches no other host."""
        why = Hosts.available()
        if why:
            self.skipTest(why)
        for letter, rank in (("c", 2), ("b", 1)):
            with Hosts(3) as hosts:
                hosts.holders["a"].call("sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=47000 47999")
                hosts.holders["a"].call("ip", "rule", "add", "to", hosts.address(letter), "ipproto", "tcp", "sport",
                                        "47000-47999", "blackhole")
                args = ["--mca", "oob_tcp_dynamic_ipv4_ports", "46000-46099", *RECOVERY]
                done = self.end(Job(3, DECODE, hosts=hosts, mpirun_args=args))
                # Rank 1 may be the first to speak, of itself.
                self.assertIn("firewall", self.check(done, rank, hosts.names[letter]))


if __name__ == "__main__":
    sys.exit(run_tests())
