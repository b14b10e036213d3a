#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve` over ranks: rank 0 serves, answers are those of one process, a signal to rank 0 drains, a lost rank ends it.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)

BIN = program_path()
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
LIMIT_S = 60
BODY = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 7, "temperature": 0.8, "n": 2}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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


def texts(port, **fields):
    status, answer = ask(port, "POST", "/v1/completions", {**BODY, **fields})
    assert status == 200, answer
    return [c["text"] for c in answer["choices"]]


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Serve(unittest.TestCase):
    def start(self, n):
        port = free_port()
        job = Job(n, ["serve", DEMO, "--port", str(port)])
        try:
            wait_until_ready(port)
        except BaseException:
            job.left(0)
            raise
        return port, job

    def test_same_answers(self):
        found = []
        for n in (1, 3):
            port, job = self.start(n)
            found.append(texts(port))
            plan = ask(port, "GET", "/plan")[1]
            self.assertEqual([s["rank"] for s in plan["stages"]], list(range(n)))
            kill(job.rank_pid(0), signal.SIGTERM)
            done = job.wait(LIMIT_S)
            self.assertEqual((done.status, done.left), (0, []), str(done))
            self.assertNotIn(b"error", done.stderr, str(done))
        self.assertEqual(found[0], found[1])

    def test_a_lost_rank(self):
        port, job = self.start(3)
        texts(port)
        kill(job.rank_pid(1))
        done = job.wait(LIMIT_S)
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertEqual(done.left, [], str(done))
        self.assertIn(b"rank 1", done.stderr, str(done))


if __name__ == "__main__":
    sys.exit(run_tests())
