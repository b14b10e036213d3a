#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace-mpirun serve` where its surroundings are awkward, in locales, with users and in folders that people have.
After each fault a rank is killed while answers are under way: they come, with the text of an undisturbed server.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import ask, wait_until_ready  # noqa: E402 (after the path)

LIMIT_S = 120
BODY = {"prompt": "Once upon a time", "max_tokens": 400, "seed": 7, "ignore_eos": True}
NOBODY = 65534
# $1: the words in front of the wrapper. TMPDIR has 64 MiB, of which a job takes little.
START = """
mount -t tmpfs -o size=64m,mode=1777 none "$TMPDIR" || exit 99
[ -z "$READ_ONLY_HOME" ] || mount -t tmpfs -o ro,size=64k none "$HOME" || exit 99
exec %s sh -c '%s exec "$0" "$@" %s' "$0" "$@"
"""


def has_locale(name):
    known = subprocess.run(["locale", "-a"], stdout=subprocess.PIPE, check=False).stdout.decode().lower()
    return name.lower().replace("-", "") in known.split()


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and shutil.which("setpriv"), "mounts need root")
class Places(unittest.TestCase):
    """Each place is a method, in which all faults happen one after the other, each to a server of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-places-")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o755)

    def install(self, name):
        """The program and the wrapper in a folder of this name, which is also that of HOME and TMPDIR."""
        self.place = os.path.join(self.folder, name)
        shutil.copytree(os.path.join(HERE, "..", "..", "deploy"), os.path.join(self.place, "deploy"))
        for path in program_path(), os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf"):
            shutil.copy2(path, self.place)
        for path in "tmp", "home":
            os.makedirs(os.path.join(self.place, path))
            os.chmod(os.path.join(self.place, path), 0o1777)

    def start(self, redirect, prefix, before, env):
        wrapper = os.path.join(self.place, "deploy", "millrace-mpirun")
        variables = {"MILLRACE_BIN": os.path.join(self.place, "millrace"), "TMPDIR": os.path.join(self.place, "tmp"),
                     "HOME": os.path.join(self.place, "home"), "READ_ONLY_HOME": "", **env}
        self.port = free_port()
        job = Job(None, ["-n", "3", "serve", "--demo", "--port", str(self.port)],
                  program=[], env=variables,
                  launcher=["unshare", "-m", "sh", "-c", START % (prefix, before, redirect), wrapper])
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(self.port)
        return job

    def fill(self, job):
        fd = os.open("/proc/%d/root%s/tmp/fill" % (job.process.pid, self.place), os.O_WRONLY | os.O_CREAT)
        with self.assertRaises(OSError):
            while True:
                os.write(fd, bytes(4096))
        os.close(fd)

    @staticmethod
    def send(job, number):
        """To every process but workers and mpirun, which take SIGUSR1 for a drain."""
        for pid, environment in job.processes().items():
            with contextlib.suppress(OSError):  # of programs that end soon
                with open("/proc/%d/comm" % pid, encoding="ascii") as f:
                    is_mpirun = f.read() == "mpirun\n"
                if number != signal.SIGUSR1 or not (is_mpirun or environment.get("OMPI_COMM_WORLD_RANK", "0") != "0"):
                    os.kill(pid, number)

    def check_fault(self, what, redirect, fault, prefix, before, env):
        job = self.start(redirect, prefix, before, env)
        found = []
        thread = threading.Thread(target=lambda: found.append(ask(self.port, "POST", "/v1/completions", BODY)))
        thread.start()
        while ask(self.port, "GET", "/page/state")[1]["sequences"]["live"] < 1:
            self.assertFalse(found, what)
        fault(job)
        kill(job.rank_pid(1))
        thread.join(LIMIT_S)
        self.assertEqual([status for status, _ in found], [200], "%s\n%s" % (what, found))
        text = found[0][1]["choices"][0]["text"]
        self.assertEqual(ask(self.port, "POST", "/v1/completions", BODY)[1]["choices"][0]["text"], text, what)
        self.assertEqual(text, Places.wanted or text, what)
        Places.wanted = text
        job.process.send_signal(signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), "%s\n%s" % (what, done))
        if "2>" not in redirect:
            self.assertIn(b"the others take over its layers", done.stderr, "%s\n%s" % (what, done))
            self.assertNotIn(b"millrace-mpirun: error", done.stderr, "%s\n%s" % (what, done))

    wanted = None

    def check(self, prefix="", before="", env=None):
        faults = {"stderr closed": ("2>&-", lambda _: None), "TMPDIR full": ("", self.fill),
                  "stdout full": (">/dev/full", lambda _: None),
                  "SIGUSR1": ("", lambda job: self.send(job, signal.SIGUSR1)),
                  "SIGUSR2": ("", lambda job: self.send(job, signal.SIGUSR2))}
        for what, (redirect, fault) in faults.items():
            with self.subTest(what):
                self.check_fault(what, redirect, fault, prefix, before, env or {})

    def test_german(self):
        """With decimal commas."""
        self.install("place")
        env = {"LC_ALL": "de_DE.UTF-8"}
        if not has_locale("de_DE.UTF-8"):
            made = shutil.which("localedef") and subprocess.run(
                ["localedef", "-i", "de_DE", "-f", "UTF-8", os.path.join(self.folder, "de_DE.UTF-8")], check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
            if not made:
                self.skipTest("there is no locale de_DE.UTF-8")
            env["LOCPATH"] = self.folder
        now = subprocess.run(["bash", "-c", "echo $EPOCHREALTIME"], env={**os.environ, **env}, check=True,
                             stdout=subprocess.PIPE).stdout
        self.assertIn(b",", now)
        self.check(env=env)

    def test_no_locale(self):
        self.install("place")
        self.check(prefix="env -u LANG -u LANGUAGE -u LC_ALL -u LC_CTYPE")

    def test_no_root(self):
        self.install("place")
        self.check(prefix="setpriv --reuid=%d --regid=%d --clear-groups" % (NOBODY, NOBODY))

    def test_umask(self):
        self.install("place")
        self.check(before="umask 077;")

    def test_blanks_and_umlauts(self):
        self.install("Große Modelle für alle")
        self.check()

    def test_home_cannot_be_written(self):
        self.install("place")
        self.check(env={"READ_ONLY_HOME": "1"})


if __name__ == "__main__":
    sys.exit(run_tests())
