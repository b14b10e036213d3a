#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rank 0 dies: all other ranks end soon, deploy/millrace-mpirun starts the job again, and batches go on where they were.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Hosts, Job, kill, program_path, run_ranks, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import DEMO, LIMIT_S, ask, wait_until_ready  # noqa: E402 (after the path)

WRAPPER = os.path.join(HERE, "..", "..", "deploy", "millrace-mpirun")
PREFILL = ["bench", DEMO, "-p", "400", "-n", "0", "-r", "1000"]
DECODE = ["bench", DEMO, "-p", "0", "-n", "300", "-b", "4", "-r", "1000"]
N_LINES = 300   # of a batch
PROMISE_S = 2  # from the death of rank 0 to the end of all others
BUSY_S = 1     # what a busy machine may add


def wait_for_word(job, word):
    said = b""
    while word not in said:
        piece = os.read(job.process.stderr.fileno(), 65536)
        assert piece, said
        said += piece


class Death(unittest.TestCase):
    def start(self, n, args, hosts=None, **kwargs):
        """Under mpirun alone, which leaves the other ranks to themselves."""
        job = Job(n, args, hosts=hosts, **{"mpirun_args": ["--enable-recovery"], **kwargs})
        self.addCleanup(self.end, job)
        return job

    @staticmethod
    def end(job):
        job.left(0)
        job.process.communicate()

    def check_end(self, job, pids, since, what):
        """The processes end, each for itself, PROMISE_S after the fault at the latest."""
        while any(pid in job.processes() for pid in pids) and time.monotonic() < since + 20:
            time.sleep(0.02)
        seconds = time.monotonic() - since
        print("%s: %.2f s" % (what, seconds), flush=True)
        self.assertLess(seconds, PROMISE_S + BUSY_S, "%s\n%s" % (what, job.describe()))

    def kill_rank_0(self, job, pids, what):
        pid = job.rank_pid(0)
        since = time.monotonic()
        kill(pid)
        self.check_end(job, pids, since, what)

    def test_busy(self):
        for what, args in (("prefill", PREFILL), ("decode", DECODE)):
            job = self.start(4, args)
            pids = [job.rank_pid(i) for i in (1, 2, 3)]
            wait_for_word(job, b"loaded ")
            self.kill_rank_0(job, pids, what)

    def test_start_and_load(self):
        """From where MPI starts to after the model is loaded. At first neither the ranks nor the wrapper know rank 0, and
        the wrapper finds that it is missing."""
        seed = random.randrange(1 << 32)
        print("seed", seed)
        luck = random.Random(seed)
        for i in range(8):
            moment = luck.uniform(0, 0.7 if i > 2 else 0.02)
            job = self.start(4, PREFILL, launcher=[WRAPPER], mpirun_args=["--recovery"], program=[],
                             env={"MILLRACE_BIN": program_path()})
            pids = [job.rank_pid(i) for i in (1, 2, 3)]
            time.sleep(moment)
            self.kill_rank_0(job, pids, "%.3f s after the start" % moment)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (1, []), str(done))

    def test_lobby(self):
        """A rank that holds no stage waits there."""
        port = free_port()
        job = self.start(3, ["serve", DEMO, "--port", str(port), "--recover", "--stages", "2"])
        wait_until_ready(port)
        self.assertEqual({s["rank"] for s in ask(port, "GET", "/plan")[1]["stages"]}, {0, 1})
        self.kill_rank_0(job, [job.rank_pid(1), job.rank_pid(2)], "a spare")

    def test_stopped(self):
        """A rank that was stopped ends when it goes on."""
        job = self.start(3, DECODE)
        pids = [job.rank_pid(1), job.rank_pid(2)]
        wait_for_word(job, b"loaded ")
        kill(pids[0], signal.SIGSTOP)
        self.kill_rank_0(job, pids[1:], "beside a stopped rank")
        since = time.monotonic()
        kill(pids[0], signal.SIGCONT)
        self.check_end(job, pids, since, "the stopped rank goes on")

    def test_host(self):
        """The host of rank 0 loses its network."""
        if Hosts.available():
            self.skipTest(Hosts.available())
        with Hosts(3) as hosts:
            job = self.start(None, DECODE, hosts)
            pids = [job.rank_pid(1), job.rank_pid(2)]
            wait_for_word(job, b"loaded ")
            since = time.monotonic()
            hosts.cut("a")
            self.check_end(job, pids, since, "the host of rank 0 is cut off")


class Restart(unittest.TestCase):
    """deploy/millrace-mpirun as the supervisor of rank 0."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-restart-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, n, options, args, env=None):
        """A job whose temporary files lie in a folder of their own. Standard error goes to a file: nobody reads it."""
        self.temporary = os.path.join(self.folder, "tmp")
        os.makedirs(self.temporary, exist_ok=True)
        job = Job(n, args, launcher=[WRAPPER], mpirun_args=options, program=[],
                  env={"MILLRACE_BIN": program_path(), "TMPDIR": self.temporary,
                       "OMPI_MCA_btl_vader_backing_directory": self.temporary, **(env or {})})
        self.addCleanup(Death.end, job)
        return job

    def check_end(self, job, status):
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left, os.listdir(self.temporary)), (status, [], []), str(done))
        return done.stderr.decode()

    def next_rank_0(self, job, old):
        """The process of rank 0 after a restart."""
        while (pid := job.rank_pid(0, LIMIT_S)) == old:
            time.sleep(0.02)
        return pid

    def test_serve(self):
        """The server comes back at the same port and gives the same answers; the last death is not made good."""
        port = free_port()
        job = self.start(3, ["--restarts", "2"], ["serve", DEMO, "--port", str(port)])
        body, wanted, pid = {"prompt": "Once", "max_tokens": 24, "seed": 7}, None, None
        for _ in range(3):
            pid = self.next_rank_0(job, pid)
            wait_until_ready(port)
            text = ask(port, "POST", "/v1/completions", body)[1]["choices"][0]["text"]
            self.assertEqual(text, wanted or text)
            wanted = text
            kill(pid)
        said = self.check_end(job, 1)
        for words in ("starts again in 1 s, restart 1 of 2", "starts again in 2 s, restart 2 of 2",
                      "was started again 2 times"):
            self.assertEqual(said.count(words), 1, said)

    def test_signals(self):
        """SIGTERM ends a job that was started again, and one that waits to be."""
        for waits in (False, True):
            port = free_port()
            job = self.start(2, [], ["serve", DEMO, "--port", str(port)])
            pid = job.rank_pid(0)
            wait_until_ready(port)
            kill(pid)
            if waits:
                wait_for_word(job, b"starts again in 1 s")
            else:
                self.next_rank_0(job, pid)
                wait_until_ready(port)
            job.process.send_signal(signal.SIGTERM)
            self.check_end(job, 143 if waits else 0)

    def test_signal_between_jobs(self):
        """SIGTERM after the wait and before mpirun runs again, while the files of the last job are removed."""
        calls = os.path.join(self.folder, "calls")
        path = os.path.join(self.folder, "rm")
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho >>%s\nsleep 0.5\nexec %s \"$@\"\n" % (calls, shutil.which("rm")))
        os.chmod(path, 0o755)
        job = self.start(2, [], ["serve", DEMO, "--port", "0"],
                         {"PATH": self.folder + os.pathsep + os.environ["PATH"]})
        wait_for_word(job, b"loaded ")
        os.remove(calls)
        kill(job.rank_pid(0))
        end = time.monotonic() + LIMIT_S
        while not os.path.exists(calls) and time.monotonic() < end:
            time.sleep(0.01)
        job.process.send_signal(signal.SIGTERM)
        self.check_end(job, 143)

    def test_second_signal(self):
        """Two signals to rank 0 itself: the second one kills it while it waits for an open answer."""
        port = free_port()
        job = self.start(2, [], ["serve", DEMO, "--port", str(port)])
        pid = job.rank_pid(0)
        wait_until_ready(port)
        kill(job.rank_pid(1), signal.SIGSTOP)
        body = b'{"prompt": "Once", "max_tokens": 24}'
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while ask(port, "GET", "/page/state")[1]["sequences"]["live"] < 1:
                time.sleep(0.01)
            kill(pid, signal.SIGTERM)
            wait_for_word(job, b"SIGTERM: ending, 1 request")
            kill(pid, signal.SIGTERM)
            self.assertNotIn("starts again", self.check_end(job, 1))

    def test_no_restart(self):
        """Other commands, errors that rank 0 has told, a service manager above, and where the user says so."""
        for options, args, env in ((["--recovery"], DECODE, {}), (["--restarts", "0"], None, {}),
                                   ([], None, {"NOTIFY_SOCKET": "/nowhere"})):
            job = self.start(2, options, args or ["serve", DEMO, "--port", "0"], env)
            pid = job.rank_pid(0)
            wait_for_word(job, b"loaded ")
            kill(pid)
            self.assertNotIn("starts again", self.check_end(job, 1))
        job = self.start(2, [], ["serve", "/nowhere.gguf", "--port", "0"])
        self.assertNotIn("starts again", self.check_end(job, 1))
        job = self.start(2, ["--restarts", "x"], ["serve", DEMO])
        self.assertIn("--restarts is 'x'", self.check_end(job, 2))

    def test_a_lost_rank_is_heard_again(self):
        """A rank that was cut off says that rank 0 is gone. That ends nothing: rank 0 has gone on."""
        if Hosts.available():
            self.skipTest(Hosts.available())
        with Hosts(3) as hosts:
            job = Job(None, DECODE, hosts=hosts, launcher=[WRAPPER], mpirun_args=["--recovery"], program=[],
                      env={"MILLRACE_BIN": program_path()})
            self.addCleanup(Death.end, job)
            wait_for_word(job, b"loaded ")
            hosts.cut("b")
            wait_for_word(job, b"epoch 2")
            hosts.join("b")
            wait_for_word(job, b"rank 1 ends: rank 0 on")
            time.sleep(5)  # the wrapper would end the job after 3 s
            self.assertIsNone(job.process.poll())
            job.process.send_signal(signal.SIGTERM)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (143, []), str(done))
            self.assertNotIn(b"error: ", done.stderr, str(done))

    def test_batch(self):
        """Rank 0 of `millrace batch` is killed again and again: no result is lost or doubled, and all texts are equal."""
        requests, out = os.path.join(self.folder, "in"), os.path.join(self.folder, "out")
        with open(requests, "w", encoding="ascii") as f:
            f.write(batch_lines(N_LINES))
        args = ["batch", DEMO, "-i", requests, "--sequences", "8", "--threads", "1", "-o"]
        done = run_ranks(1, [*args, out + ".wanted"])
        self.assertEqual(done.status, 0, str(done))
        job, pid = self.start(3, [], [*args, out]), None
        for _ in range(3):
            pid = self.next_rank_0(job, pid)
            wait_for_more(out)
            kill(pid)
        said = self.check_end(job, 0)
        self.assertEqual(said.count("starts again in"), 3, said)
        self.assertEqual(results(out), results(out + ".wanted"))

    def wait_for_lifeline(self, pid):
        """Until the rank has called rank 0, which is some tenths of a second before its plan."""
        end = time.monotonic() + LIMIT_S
        while True:
            for path in glob.glob("/proc/%d/task/*/comm" % pid):
                with contextlib.suppress(OSError), open(path, encoding="ascii") as f:
                    if f.read().strip() == "mr-lifeline":
                        return
            self.assertLess(time.monotonic(), end, "rank 1 does not call")
            time.sleep(0.002)

    def holding(self):
        """A program in place of millrace whose rank 2 stops itself before its first start, so that no plan is made."""
        path, held = os.path.join(self.folder, "millrace"), os.path.join(self.folder, "held")
        with open(path, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" != 2 ] || [ -e %s ] || { echo >%s; kill -STOP $$; }\n'
                    'exec %s "$@"\n' % (held, held, program_path()))
        os.chmod(path, 0o755)
        return path

    def test_lost_before_the_plan(self):
        """A rank that is lost while MPI starts, or in the lobby: the job starts again. Without a rank that holds it up,
        the plan may come first, and the others take over."""
        luck = random.Random(7)
        requests, out = os.path.join(self.folder, "in"), os.path.join(self.folder, "out")
        with open(requests, "w", encoding="ascii") as f:
            f.write(batch_lines(40))
        args = ["batch", DEMO, "-i", requests, "--sequences", "8", "--threads", "1", "--start-timeout", "60", "-o"]
        done = run_ranks(1, [*args, out + ".wanted"])
        self.assertEqual(done.status, 0, str(done))
        for holds in (True, False, False):
            with contextlib.suppress(FileNotFoundError):
                os.remove(out)
            job = self.start(3, [], [*args, out], {"MILLRACE_BIN": self.holding()} if holds else {})
            pid, other = job.rank_pid(1), job.rank_pid(2)
            self.wait_for_lifeline(pid)
            if not holds:
                time.sleep(luck.uniform(0, 0.05))
            kill(pid)
            kill(other, signal.SIGCONT)
            said = self.check_end(job, 0)
            if holds:
                self.assertIn("a rank was lost before all were ready: the job starts again in 1 s", said)
            self.assertEqual(results(out), results(out + ".wanted"))


class Batches(unittest.TestCase):
    """Batches of a server (--batch-dir), whose rank 0 or only process is killed at random moments."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-batches-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.port, self.lines = free_port(), batch_lines(N_LINES)
        seed = random.randrange(1 << 32)
        print("seed", seed)
        self.luck = random.Random(seed)

    def serve(self, name):
        return ["serve", DEMO, "--port", str(self.port), "--sequences", "16", "--threads", "1",
                "--batch-dir", os.path.join(self.folder, name)]

    def get(self, path):
        """The bytes of an answer."""
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (self.port, path), timeout=LIMIT_S) as answer:
            return answer.read()

    def create(self):
        """Uploads the lines, and creates a batch: its id."""
        body = ("--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
                "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
                "%s\r\n--x--\r\n" % self.lines)
        request = urllib.request.Request("http://127.0.0.1:%d/v1/files" % self.port, body.encode(),
                                         {"Content-Type": "multipart/form-data; boundary=x"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            file = json.load(answer)
        status, batch = ask(self.port, "POST", "/v1/batches", {
            "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"})
        self.assertEqual(status, 200, batch)
        return batch["id"]

    def output(self, batch_id):
        """{custom_id: texts} of a batch, once it is completed."""
        end = time.monotonic() + 4 * LIMIT_S
        while (batch := ask(self.port, "GET", "/v1/batches/" + batch_id)[1])["status"] != "completed":
            self.assertIn(batch["status"], ("validating", "in_progress"), batch)
            self.assertLess(time.monotonic(), end, batch)
            time.sleep(0.05)
        self.assertEqual(batch["request_counts"], {"total": N_LINES, "completed": N_LINES, "failed": 0})
        path = os.path.join(self.folder, "output")
        with open(path, "wb") as f:
            f.write(self.get("/v1/files/%s/content" % batch["output_file_id"]))
        return results(path)

    def undisturbed(self):
        job = Job(1, self.serve("undisturbed"))
        self.addCleanup(Death.end, job)
        wait_until_ready(self.port)
        wanted = self.output(self.create())
        kill(job.rank_pid(0), signal.SIGTERM)
        self.assertEqual(job.wait(LIMIT_S).status, 0)
        return wanted

    def check_all(self, ids, wanted):
        """Open batches end with the wanted texts, and ended ones are still there."""
        for batch_id in ids:
            self.assertEqual(self.output(batch_id), wanted)
        listed = [b["id"] for b in ask(self.port, "GET", "/v1/batches")[1]["data"]]
        self.assertEqual(listed, ids[::-1])

    def test_one_process(self):
        """Killed and started by hand: the same folder is all that the next server needs."""
        wanted, ids = self.undisturbed(), []
        for i in range(8):
            job = Job(1, self.serve("killed"))
            self.addCleanup(Death.end, job)
            wait_until_ready(self.port)
            if i % 4 == 0:
                ids.append(self.create())
            if i < 7:
                time.sleep(self.luck.uniform(0, 1.5))
                kill(job.rank_pid(0))
                job.wait(LIMIT_S)
        self.check_all(ids, wanted)

    def test_ranks(self):
        """Under deploy/millrace-mpirun, which starts the server again."""
        wanted, pid = self.undisturbed(), None
        job = Job(3, self.serve("killed"), launcher=[WRAPPER], program=[], env={"MILLRACE_BIN": program_path()})
        self.addCleanup(Death.end, job)
        for i in range(4):
            while (now := job.rank_pid(0, LIMIT_S)) == pid:
                time.sleep(0.02)
            pid = now
            wait_until_ready(self.port)
            if i == 0:
                ids = [self.create(), self.create()]
            if i < 3:
                time.sleep(self.luck.uniform(0, 1.5))
                kill(pid)
        self.check_all(ids, wanted)
        job.process.send_signal(signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))


def batch_lines(n):
    """Greedy and sampled requests, some with a grammar, some with two choices."""
    lines = []
    for i in range(n):
        body = {"prompt": "Once upon a time there was " * (1 + i % 3), "max_tokens": 120, "ignore_eos": True,
                "temperature": 0.0 if i % 4 == 0 else 0.9}
        if i % 4 == 1:
            body["grammar"] = 'root ::= (word " ")+\nword ::= [a-z]{1,7}'
        if i % 8 == 2:
            body["n"] = 2
        lines.append(json.dumps({"custom_id": "r%d" % i, "method": "POST", "url": "/v1/completions", "body": body}))
    return "\n".join(lines) + "\n"


def size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def wait_for_more(path):
    """Results come in groups, about one each second."""
    before, end = size(path), time.monotonic() + LIMIT_S
    while size(path) <= before:
        assert time.monotonic() < end, "there are no more results"
        time.sleep(0.01)


def results(path):
    """{custom_id: texts}; each result once, and without an error."""
    with open(path, encoding="utf-8") as f:
        found = [json.loads(line) for line in f]
    assert len({r["custom_id"] for r in found}) == len(found), "a result is there twice"
    return {r["custom_id"]: [c["text"] for c in r["response"]["body"]["choices"]] for r in found}


if __name__ == "__main__":
    sys.exit(run_tests())
