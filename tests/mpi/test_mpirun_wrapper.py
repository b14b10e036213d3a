#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace-mpirun: what it gives mpirun, exit statuses, messages, signals. Most tests run a script in place of
millrace. Argument: the class of tests to run. Exit status 77: all were skipped."""
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
from hosts import Hosts, Job, program_path, run_ranks, run_tests  # noqa: E402 (after the path)

WRAPPER = os.path.join(HERE, "..", "..", "deploy", "millrace-mpirun")
LIMIT_S = 60
PROGRAM = """#!/bin/sh
case "$1 $2" in
"generate --help" | "bench --help" | "serve --help" | "batch --help") exit 0 ;;
*" --help") exit 2 ;;
esac
rank=$OMPI_COMM_WORLD_RANK
shift
"""


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-mpi-")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def script(self, text):
        """A program in place of millrace with four of its commands; $rank is set, the command is gone."""
        path = os.path.join(self.folder, "millrace")
        with open(path, "w", encoding="utf-8") as f:
            f.write(PROGRAM + text + "\n")
        os.chmod(path, 0o755)
        return path

    def fake_mpirun(self, text):
        """A program in place of mpirun, in self.folder."""
        path = os.path.join(self.folder, "mpirun")
        with open(path, "w", encoding="utf-8") as f:
            f.write('#!/bin/bash\n[[ $1 != --version ]] || { echo "mpirun (Open MPI) 4.1.4"; exit 0; }\n' + text + "\n")
        os.chmod(path, 0o755)

    def job(self, text, *args, env=None, real=None, **kwargs):
        """The wrapper with args; text is the script in place of millrace."""
        variables = {"MILLRACE_BIN": self.script(text) if text is not None else real or program_path(), **(env or {})}
        kwargs.setdefault("n", None)
        return {"args": args, "launcher": [WRAPPER], "program": [], "env": variables, **kwargs}

    def run_job(self, text, *args, **kwargs):
        job = self.job(text, *args, **kwargs)
        done = run_ranks(job.pop("n"), job.pop("args"), timeout=LIMIT_S, **job)
        self.assertEqual(done.left, [], str(done))
        return done

    def lines(self, text, *args, **kwargs):
        """The sorted lines of standard output of a run that succeeds."""
        done = self.run_job(text, *args, **kwargs)
        self.assertEqual((done.status, done.stderr), (0, b""), str(done))
        return sorted(done.stdout.decode().splitlines())

    def start(self, text, *args, **kwargs):
        job = self.job(text, *args, **kwargs)
        return Job(job.pop("n"), job.pop("args"), **job)


class Options(Case):
    def test_arguments_stay_as_they_are(self):
        words = ["a b", "", "$x", '"', "*", "--", "-n"]
        out = self.lines('for a in "$@"; do echo "<$a>"; done', "-n", "1", "generate", *words)
        self.assertEqual(out, sorted("<%s>" % word for word in words))

    def test_where_the_command_begins(self):
        text = 'echo "$OMPI_COMM_WORLD_SIZE $1"'
        self.assertEqual(self.lines(text, "-n", "2", "bench", "generate"), ["2 generate"] * 2)
        self.assertEqual(self.lines(text, "-n", "2", "--", "other", "x"), ["2 x"] * 2)
        self.assertEqual(self.lines(text, "-n", "2", "millrace", "other", "x"), ["2 x"] * 2)
        path = self.script(text)
        done = self.run_job(None, "-n", "2", path, "other", "x", real="/nowhere")
        self.assertEqual((done.status, done.stdout), (0, b"2 x\n2 x\n"), str(done))

    def test_ranks_and_cores(self):
        text = 'echo "$OMPI_COMM_WORLD_SIZE $OMPI_MCA_hwloc_base_binding_policy"'
        self.assertEqual(self.lines(text, "generate"), ["1 none"])
        self.assertEqual(self.lines(text, "-n", "5", "generate"), ["5 none"] * 5)
        self.assertEqual(self.lines(text, "-n", "2", "--bind-to", "core", "generate"), ["2 core"] * 2)
        self.assertEqual(self.lines(text, "-n", "2", "--map-by", "slot", "generate"), ["2 none"] * 2)

    def test_variables(self):
        # All jobs of tests have the one, all of the wrapper the other.
        text = ('env | grep ^MILLRACE_ | grep -v -e ^MILLRACE_MEASURE= -e ^MILLRACE_STATUS_FILE= '
                '-e ^MILLRACE_SECRET= || echo none')
        self.assertEqual(self.lines(text, "-n", "1", "generate"), ["none"])
        self.assertEqual(self.lines(text, "-n", "1", "generate", env={"MILLRACE_A": "1 ,;2", "MILLRACE_B": "x"}),
                         ["MILLRACE_A=1 ,;2", "MILLRACE_B=x"])
        self.assertEqual(self.lines(text, "-n", "1", "-x", "MILLRACE_A=3", "generate", env={"MILLRACE_A": "1"}),
                         ["MILLRACE_A=3"])

    def test_secret(self):
        """Each launch has a secret of its own, equal at all ranks, that no list of processes shows."""
        text = ('echo "$MILLRACE_SECRET"; echo "$MILLRACE_SECRET" | '
                'grep -qsz -F -f - /proc/[0-9]*/cmdline && echo shown || true')
        secrets = set()
        for _ in range(2):
            lines = self.lines(text, "-n", "2", "generate")
            self.assertEqual(len(lines), 2, lines)
            self.assertEqual(lines[0], lines[1])
            self.assertRegex(lines[0], "^[0-9a-f]{64}$")
            secrets.add(lines[0])
        self.assertEqual(len(secrets), 2)
        own = {"MILLRACE_SECRET": "5" * 64}
        self.assertEqual(self.lines('echo "$MILLRACE_SECRET"', "-n", "2", "generate", env=own), ["5" * 64] * 2)
        file = {"MILLRACE_SECRET_FILE": "/x"}
        self.assertEqual(self.lines('echo "$MILLRACE_SECRET_FILE${MILLRACE_SECRET-}"', "-n", "2", "generate", env=file),
                         ["/x"] * 2)

    def test_standard_input_is_that_of_rank_0(self):
        for recovery in [], ["--recovery"]:
            text = 'echo "$rank $(cat)"; [ $rank != 0 ] || echo 0 >"${MILLRACE_STATUS_FILE:-/dev/null}"'
            done = self.run_job(text, *recovery, "-n", "2", "generate", input_bytes=b"text")
            self.assertEqual((done.status, sorted(done.stdout.splitlines())), (0, [b"0 text", b"1 "]), str(done))

    def test_wrong_use(self):
        for args, words in (((), "no command"), (("-n", "2"), "no command"), (("-n", "2", "nothing"), "no command")):
            done = self.run_job("exit 0", *args)
            self.assertEqual((done.status, done.stdout), (2, b""), str(done))
            self.assertIn(words, done.stderr.decode())
        done = self.run_job(None, "generate", real="/nowhere/millrace")
        self.assertEqual(done.status, 2, str(done))
        self.assertIn("/nowhere/millrace", done.stderr.decode())

    def test_help(self):
        done = self.run_job("exit 0", "--help")
        self.assertEqual((done.status, done.stderr), (0, b""))
        self.assertLessEqual(max(len(line) for line in done.stdout.decode().splitlines()), 120)


class Ends(Case):
    def test_exit_status(self):
        """That of the rank that failed; no banner where millrace has said what was wrong."""
        fail = '[ $rank != 1 ] || { echo "%s" >&2; exit 7; }; sleep 20'
        done = self.run_job(fail % "millrace: error: what", "-n", "3", "generate")
        self.assertEqual((done.status, done.stderr), (7, b"millrace: error: what\n"), str(done))
        done = self.run_job(fail % "something", "-n", "3", "generate")
        self.assertEqual(done.status, 7, str(done))
        self.assertIn(b"something\n", done.stderr)
        self.assertIn(b"non-zero exit code", done.stderr)

    def test_killed_rank(self):
        done = self.run_job("[ $rank != 1 ] || kill -9 $$; sleep 20", "-n", "3", "generate")
        self.assertEqual(done.status, 137, str(done))
        self.assertNotEqual(done.stderr, b"")

    def test_killed_rank_and_mpirun_hangs(self):
        """As Open MPI 4.1 does now and then when it has said which rank was killed. No rank lives any more."""
        rule = "-" * 66
        banner = f"{rule}\nmpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed).\n{rule}"
        self.fake_mpirun(f"""echo "millrace: error: rank 1 on h is gone: its connection closed" >&2
            echo "{banner}" >&2
            echo 1 >"$MILLRACE_STATUS_FILE"
            exec sleep 60""")
        done = self.run_job("exit 0", "-n", "2", "generate", env={"PATH": self.folder + ":" + os.environ["PATH"]})
        os.remove(os.path.join(self.folder, "mpirun"))
        self.assertEqual(done.status, 137, str(done))
        self.assertIn(b"exited on signal 9", done.stderr)

    def test_recovery(self):
        """The exit status is what rank 0 writes, whatever becomes of the others."""
        write = '[ $rank != 0 ] || { sleep 0.5; echo %s >"$MILLRACE_STATUS_FILE"; exit 9; }\n[ $rank != 1 ] || kill -9 $$'
        for text, status in (("0", 0), ("5", 5), ("130", 130), ("", 1), ("word", 1)):
            done = self.run_job(write % text, "--recovery", "-n", "3", "generate")
            self.assertEqual(done.status, status, str(done))
            self.assertNotIn(b"PMIX", done.stderr)
            self.assertEqual(b"left no exit status" in done.stderr, not text.isdigit(), str(done))
        done = self.run_job("[ $rank != 0 ] || kill -9 $$", "--recovery", "-n", "2", "generate")
        self.assertEqual(done.status, 1, str(done))

    def test_stopped_rank_0(self):
        """With recovery mpirun waits for it. The other ranks say that it does not call, or does not answer."""
        stop = """[ $rank != 0 ] || { echo "$$ here" >"$MILLRACE_STATUS_FILE.part"
            mv "$MILLRACE_STATUS_FILE.part" "$MILLRACE_STATUS_FILE.pid"; kill -STOP $$; }
            while [ ! -e "$MILLRACE_STATUS_FILE.pid" ]; do sleep 0.1; done
            echo "millrace: error: rank 1 on h: %s" >&2; exit 1"""
        for text in ("rank 0 on h has not called for 6 s; hint: what", "no lifeline to rank 0 at h:1 (no answer); hint: what"):
            done = self.run_job(stop % text, "--recovery", "-n", "2", "generate")
            self.assertEqual(done.status, 1, str(done))
            self.assertIn(text.encode(), done.stderr)

    def test_signals(self):
        """The wrapper passes them on to mpirun, which ends the ranks; nothing stays."""
        for recovery in [], ["--recovery"]:
            for number in signal.SIGINT, signal.SIGTERM:
                job = self.start("exec sleep 30", *recovery, "-n", "2", "generate")
                job.rank_pid(0), job.rank_pid(1)
                begin = time.monotonic()
                job.process.send_signal(number)
                done = job.wait(20)
                if recovery:
                    self.assertEqual((done.status, done.stderr), (128 + number, b""), str(done))
                self.assertGreater(done.status, 0, str(done))
                self.assertEqual(done.left, [], str(done))
                self.assertLess(time.monotonic() - begin, 10)

    def test_terminal(self):
        """What is typed comes to rank 0, and Ctrl-C to rank 0 alone, as SIGINT."""
        rank_0 = """trap 'echo end >&2; exit 130' INT
            echo "$$ here" >"$MILLRACE_STATUS_FILE.part"; mv "$MILLRACE_STATUS_FILE.part" "$MILLRACE_STATUS_FILE.pid"
            read line; echo "typed $line"
            while :; do sleep 0.1; done"""
        for recovery in [], ["--recovery"]:
            terminal, its_end = os.openpty()
            job = self.start("[ $rank = 0 ] || exec sleep 20\n" + rank_0, *recovery, "-n", "2", "generate",
                             stdin=its_end, launcher=["setsid", "--ctty", WRAPPER])
            os.close(its_end)
            os.write(terminal, b"words\n")
            first = job.process.stdout.readline()
            if first != b"typed words\n":
                self.fail(str((first, str(job.wait(20)))))
            begin = time.monotonic()
            os.write(terminal, b"\x03")
            done = job.wait(20)
            os.close(terminal)
            self.assertIn(b"end\n", done.stderr, str(done))
            self.assertEqual((done.status, done.left), (130, []), str(done))
            self.assertLess(time.monotonic() - begin, 15)

    def test_millrace(self):
        """The real one: its own statuses and its own single line."""
        for recovery in [], ["--recovery"]:
            done = self.run_job(None, *recovery, "-n", "2", "generate", "--demo", "-p", "x", "-n", "3",
                                "--log-level", "warn")
            self.assertEqual((done.status, done.stderr), (0, b""), str(done))
        done = self.run_job(None, "-n", "2", "generate", "/nowhere.gguf", "-p", "Once")
        self.assertEqual((done.status, len(done.stderr.splitlines())), (1, 1), str(done))


class Restarts(Case):
    """Rank 0 is killed. The jobs have one rank, which says where it is."""
    BEGIN = 'echo "$$ here" >"$MILLRACE_STATUS_FILE.pid"\nsleep 0.5\n'

    def start_killed(self, command):
        """A job that waits to be started again, and what it has said."""
        job = self.start(self.BEGIN + "kill -9 $$", "-n", "1", command)
        said = b""
        while b"starts again in 1 s" not in said:
            line = job.process.stderr.readline()
            self.assertTrue(line, said)
            said += line
        return job, said.decode()

    def test_signals(self):
        """A signal ends the wait. For a batch, SIGHUP is SIGTERM; a server has nothing to renew and goes on."""
        for command, number, status in (("serve", signal.SIGINT, 130), ("batch", signal.SIGTERM, 143),
                                        ("batch", signal.SIGHUP, 143)):
            job, said = self.start_killed(command)
            self.assertIn("rank 0 was killed", said)
            job.process.send_signal(number)
            done = job.wait(20)
            self.assertEqual((done.status, done.left, b"restart 2" in done.stderr), (status, [], False), str(done))
        job, _ = self.start_killed("serve")
        job.process.send_signal(signal.SIGHUP)
        line = b"-"
        while line and b"restart 2" not in line:
            line = job.process.stderr.readline()
        job.process.send_signal(signal.SIGTERM)
        self.assertIn(b"restart 2", line)
        self.assertEqual(job.wait(20).status, 143)


    def test_end_in_order(self):
        """Rank 0 was told to end, and a second signal has killed it: nobody wants it back."""
        done = self.run_job(self.BEGIN + '>"$MILLRACE_STATUS_FILE.ending"\nkill -15 $$', "-n", "1", "serve")
        self.assertEqual((done.status, b"starts again" in done.stderr), (1, False), str(done))

    def test_mpirun_killed(self):
        job = self.start(self.BEGIN + "exec sleep 20", "-n", "1", "serve")
        job.rank_pid(0)
        line = b"-"
        while line and b"rank 0 is process" not in line:
            line = job.process.stderr.readline()
        os.kill(job.mpirun_pid(), signal.SIGKILL)
        while line and b"starts again" not in line:
            line = job.process.stderr.readline()
        job.process.send_signal(signal.SIGTERM)
        done = job.wait(20)
        self.assertIn(b"mpirun was killed: the job starts again", line, str(done))
        self.assertEqual(done.status, 143, str(done))


class Network(Case):
    @classmethod
    def setUpClass(cls):
        why = Hosts.available()
        if why:
            raise unittest.SkipTest(why)
        super().setUpClass()

    def test_places(self):
        """One rank on every host, or shared out with neighbours together, and with the variables."""
        text = 'echo "$rank $(hostname) $MILLRACE_A"'
        with Hosts(3, slots=4) as hosts:
            a, b, c = hosts.names.values()
            env = {"MILLRACE_A": "x y"}
            places = self.lines(text, "generate", env=env, hosts=hosts)
            self.assertEqual(places, ["0 %s x y" % a, "1 %s x y" % b, "2 %s x y" % c])
            places = self.lines(text, "-n", "5", "generate", env=env, hosts=hosts)
            self.assertEqual([line.split()[1] for line in places], [a, a, b, b, c])

    def test_by_hand(self):
        """As deploy/CLUSTER.md says, with paths relative to the folder where one is."""
        root = os.path.join(HERE, "..", "..")
        model = os.path.relpath(os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf"), root)
        done = subprocess.run(["tests/support/hosts.py", "--hosts", "2", "deploy/millrace-mpirun", "generate", model,
                               "-p", "Once", "-n", "3", "--log-level", "warn"], cwd=root, timeout=LIMIT_S, check=False,
                              env={**os.environ, "MILLRACE_BIN": program_path()}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_missing_program(self):
        path = self.script("exit 0")
        with Hosts(2, hide={"b": [path]}) as hosts:
            done = self.run_job("exit 0", "generate", hosts=hosts)
            self.assertNotEqual(done.status, 0, str(done))
            for word in (path, hosts.names["b"]):
                self.assertIn(word, done.stderr.decode())

    def test_network_of_a_host_fails(self):
        with Hosts(2) as hosts:
            job = self.start("exec sleep 60", "generate", hosts=hosts)
            job.rank_pid(0), job.rank_pid(1)
            time.sleep(1)  # a daemon that is still sending waits as long as TCP does
            hosts.cut("b")
            begin = time.monotonic()
            done = job.wait(40)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertNotIn(done.status, (None, 0), str(done))
            self.assertIn(hosts.names["b"], done.stderr.decode())
            self.assertEqual(done.left, [], str(done))


if __name__ == "__main__":
    sys.exit(run_tests())
