#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve` over ranks: rank 0 serves, answers are those of one process, a signal to rank 0 drains, a lost rank ends it.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import collections
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import crowd  # noqa: E402 (after the path)
import prometheus  # noqa: E402 (after the path)
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)

BIN = program_path()
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
LIMIT_S = 60
STATES = {"stage", "spare", "suspect", "drained", "failed", "lost"}
BODY = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 7, "temperature": 0.8, "n": 2}


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = c.getresponse()
    found = answer.status, json.loads(answer.read())
    c.close()
    return found


def wait_until_ready(port):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            if ask(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server is not ready")


def metrics(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    c.request("GET", "/metrics")
    found = c.getresponse().read().decode()
    c.close()
    return prometheus.read(found)


def stages_in(families):
    """(stage, rank, first layer, last layer) of each stage that the metrics name. No other series is of another stage."""
    infos = [labels for _, labels, _ in families["millrace_stage_info"].samples] if "millrace_stage_info" in families else []
    named = {labels["stage"] for f in families.values() for _, labels, _ in f.samples if "stage" in labels}
    assert named == {labels["stage"] for labels in infos}, (named, infos)
    return [tuple(int(labels[k]) for k in ("stage", "rank", "first_layer", "last_layer")) for labels in infos]


def ranks_in(families):
    """{state: ranks} of the states that some rank has. All states are there."""
    found = {labels["state"]: int(n) for _, labels, n in families["millrace_ranks"].samples}
    assert set(found) == STATES, found
    return {state: n for state, n in found.items() if n}


def check_metrics(port):
    """/metrics says what /plan says. Returns the plan."""
    after = ask(port, "GET", "/plan")[1]
    while True:  # the plan may change between the two
        plan, families, after = after, metrics(port), ask(port, "GET", "/plan")[1]
        if [plan[k] for k in ("epoch", "stages", "ranks")] == [after[k] for k in ("epoch", "stages", "ranks")]:
            break
    wanted = [(i, s["rank"], s["first_layer"], s["last_layer"]) for i, s in enumerate(plan["stages"])]
    assert stages_in(families) == wanted, (stages_in(families), plan)
    assert ranks_in(families) == collections.Counter(plan["ranks"]), (ranks_in(families), plan)
    return plan


def texts(port, **fields):
    status, answer = ask(port, "POST", "/v1/completions", {**BODY, **fields})
    assert status == 200, answer
    return [c["text"] for c in answer["choices"]]


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Serve(unittest.TestCase):
    def start(self, n, *mpirun_args, options=()):
        port = free_port()
        job = Job(n, ["serve", DEMO, "--port", str(port), *options], mpirun_args=mpirun_args)
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(port)
        return port, job

    def test_same_answers(self):
        found = []
        for n in (1, 2, 3, 4):
            port, job = self.start(n)
            found.append(texts(port))
            plan = ask(port, "GET", "/plan")[1]
            self.assertEqual([s["rank"] for s in plan["stages"]], list(range(n)))
            self.assertEqual([rank for _, rank, _, _ in stages_in(metrics(port))], list(range(n)))
            self.assertEqual(ranks_in(metrics(port)), {"stage": n})
            kill(job.rank_pid(0), signal.SIGTERM)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (0, []), str(done))
            self.assertNotIn(b"error", done.stderr, str(done))
        self.assertEqual(found[1:], found[:-1])

    def test_a_crowd(self):
        """256 clients at once, a third of which leave, again and again: nothing of them stays."""
        port, job = self.start(3)
        fields = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 7, "ignore_eos": True}
        wanted = texts(port, **fields, n=1)[0]
        pid, kib = job.rank_pid(0), []

        def n_files():
            return len(os.listdir("/proc/%d/fd" % pid))

        before = n_files()
        for luck in range(3):
            self.assertEqual(crowd.stream(port, 256, luck, wanted, **fields), [])
            state = {}
            while not state or state["blocks"]["held"] or state["sequences"]["live"]:
                state = ask(port, "GET", "/page/state")[1]
            end = time.monotonic() + LIMIT_S
            while n_files() > before:  # connections that ended with a reset are closed half a second later
                self.assertLess(time.monotonic(), end, "%d files are open, before the crowd %d" % (n_files(), before))
                time.sleep(0.02)
            with open("/proc/%d/statm" % pid, encoding="ascii") as f:
                kib.append(int(f.read().split()[1]) * 4)
        kill(pid, signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        if "ASAN_OPTIONS" not in os.environ:  # it keeps what was freed
            self.assertLess(kib[-1] - kib[1], 4096, kib)

    def test_a_lost_rank(self):
        """Whoever asks hears which one; then the job ends."""
        port, job = self.start(3, "--enable-recovery")
        texts(port)
        kill(job.rank_pid(1))
        said = {}
        try:
            while said.get("status") != "failed":
                said = ask(port, "GET", "/health")[1]
        except OSError:
            self.fail("the server ended without a word")
        self.assertEqual(said["error"]["code"], "failed")
        self.assertIn("rank 1", said["error"]["message"])
        done = job.wait(LIMIT_S)
        self.assertEqual(done.left, [], str(done))
        self.assertIn(b"rank 1", done.stderr, str(done))

    def test_a_lost_idle_rank(self):
        """One without a stage: the server goes on, and ends in order."""
        port, job = self.start(3, "--enable-recovery", options=["--stages", "2"])
        wanted = texts(port)
        kill(job.rank_pid(2))
        end = time.monotonic() + 4  # a lost stage ends a server after two seconds
        while time.monotonic() < end:
            self.assertEqual(texts(port), wanted)
        kill(job.rank_pid(0), signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        self.assertRegex(done.stderr, b"warning: rank 2 on .* is gone: .*it holds no stage")
        self.assertNotIn(b"millrace: error", done.stderr, str(done))

    def test_a_rank_that_is_slow_to_end(self):
        """Rank 0 waits for it: that rank 0 alone leaves is a failure for mpirun."""
        _, job = self.start(3)
        pid = job.rank_pid(2)
        kill(pid, signal.SIGSTOP)
        kill(job.rank_pid(0), signal.SIGTERM)
        time.sleep(1.5)
        kill(pid, signal.SIGCONT)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))

    def test_signals_to_all_ranks(self):
        """As srun sends them, or whoever ends a whole control group: answers over all ranks come to their end."""
        for number in signal.SIGTERM, signal.SIGINT:
            port, job = self.start(3, options=["--synthetic-stage", "4,0"])
            body = {"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True, "seed": 7}
            wanted = ask(port, "POST", "/v1/completions", body)[1]["choices"][0]["text"]
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                      {"Content-Type": "application/json"})
            answer = c.getresponse()
            data = answer.read1(65536)
            for rank in 2, 1, 0:
                kill(job.rank_pid(rank), number)
            while piece := answer.read1(65536):
                data += piece
            c.close()
            self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data[-300:])
            events = [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]
            self.assertEqual("".join(e["choices"][0]["text"] for e in events), wanted)
            done = job.wait(2 * LIMIT_S)
            self.assertEqual((done.status, done.left), (0, []), str(done))
            self.assertIn(b": ending, 1 requests are open", done.stderr, str(done))
            self.assertNotIn(b"millrace: error", done.stderr, str(done))


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Batch(unittest.TestCase):
    """`millrace batch` over ranks: a lost rank is no line's result, and the lines that are left run at the next start."""

    LINES = 8 if os.environ.get("MILLRACE_TEST_SANITIZER") else 40

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.requests, self.results, self.status = (os.path.join(self.folder.name, n) for n in ("in", "out", "status"))
        with open(self.requests, "w", encoding="ascii") as f:
            for i in range(self.LINES):
                body = {"prompt": "Once upon a time", "max_tokens": 100, "seed": i, "ignore_eos": True}
                f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")

    def batch(self, n):
        return Job(n, ["batch", DEMO, "-i", self.requests, "-o", self.results, "--sequences", "2"],
                   mpirun_args=["--enable-recovery"], env={"MILLRACE_STATUS_FILE": self.status})

    def found(self):
        with open(self.results, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def said_status(self):
        with open(self.status, encoding="ascii") as f:
            return int(f.read())

    def test_a_lost_rank(self):
        job = self.batch(3)
        end = time.monotonic() + LIMIT_S
        while not os.path.exists(self.results) or len(self.found()) < 2:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        kill(job.rank_pid(1))
        done = job.wait(LIMIT_S)
        self.assertEqual((self.said_status(), done.left), (1, []), str(done))
        self.assertIn(b"rank 1", done.stderr, str(done))
        before = self.found()
        self.assertLess(len(before), self.LINES, "the rank was killed too late")
        done = self.batch(2).wait(LIMIT_S)
        self.assertEqual(self.said_status(), 0, str(done))
        after = self.found()
        self.assertEqual(after[:len(before)], before)
        self.assertEqual(sorted(int(line["custom_id"]) for line in after), list(range(self.LINES)))
        self.assertEqual([line["response"]["status_code"] for line in after], [200] * self.LINES)


if __name__ == "__main__":
    sys.exit(run_tests())
