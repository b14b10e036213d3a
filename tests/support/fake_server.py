# SPDX-License-Identifier: Apache-2.0
"""A server that serves the page of a source tree with made-up state, to work on the page without a cluster:
python3 tests/support/fake_server.py [--port 8081] [--stages 3] [--key SECRET]. Under /v1/chat/completions it tells a story."""
import argparse
import http.server
import json
import math
import os
import random
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDER = os.path.join(ROOT, "coordinator", "serving", "page")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PHASES = ["no-work", "wait-in", "wait-out", "compute", "wire", "sampling"]
BOUNDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100]
STORY = ("Once upon a time, the old organ of Mossbank stopped. Nobody knew why. The smith came with his hammer and hit it. "
         "The teacher made a long speech. None of it helped. <b>\"May I look?\"</b> asked Ada, a merry turtle.")


def policy():
    with open(os.path.join(FOLDER, "page_files.c"), encoding="utf-8") as f:
        text = f.read().split("mr_page_policy[] =", 1)[1].split(";\n", 1)[0]
    return "".join(part for i, part in enumerate(text.split('"')) if i % 2)


class State:
    """Counts that grow as those of a cluster under a load that comes and goes."""

    def __init__(self, n_stages):
        self.random = random.Random(1)
        self.begin = self.last = time.monotonic()
        self.n_stages = n_stages
        self.phases = [dict.fromkeys(PHASES, 0.0) for _ in range(n_stages)]
        self.totals = {"prompt_tokens": 0, "cached_tokens": 0, "generated": 0, "preempted": 0, "steps": 0}
        self.latency = {"bounds_s": BOUNDS, "first_token": [0] * 18, "next_token": [0] * 18}
        self.speed = 1.0
        self.lock = threading.Lock()

    def observe(self, name, seconds):
        self.latency[name][sum(seconds > b for b in BOUNDS)] += 1

    def advance(self, s):
        load = max(0.0, math.sin((time.monotonic() - self.begin) * self.speed / 40) + 0.6) / 1.6
        self.live = round(12 * load)
        for i, p in enumerate(self.phases):
            busy = load * (0.55 + 0.35 * ((i * 7) % 5) / 5)
            p["compute"] += s * busy
            p["wire"] += s * load * 0.05
            p["sampling"] += s * load * 0.06 if i == self.n_stages - 1 else 0
            p["wait-in"] += s * max(0.0, load * 0.9 - busy)
            p["no-work"] += s * max(0.0, 1 - max(busy, load * 0.9) - load * 0.08)
        self.totals["generated"] += round(s * 30 * self.live * self.random.uniform(0.9, 1.1))
        self.totals["prompt_tokens"] += round(s * 260 * load * self.random.uniform(0.3, 1.7))
        self.totals["steps"] += round(s * 90 * (load > 0))
        for _ in range(self.live):
            self.observe("next_token", self.random.lognormvariate(math.log(0.018 + 0.02 * load), 0.3))
            self.observe("first_token", self.random.lognormvariate(math.log(0.1 + load), 0.4))

    def stage(self, i):
        each = 32 / self.n_stages
        first, last = round(i * each), round((i + 1) * each)
        mib = 1 << 20
        return {"first": first, "last": last - 1, "rank": i, "host": f"node{i + 1}",
                "bytes": {"weights": (last - first) * 210 * mib, "kv": (last - first) * 16 * mib, "work": 90 * mib},
                "seconds": dict(self.phases[i]), "steps": self.totals["steps"], "rows": 9 * self.totals["steps"],
                "in_bytes": 0, "out_bytes": 0, "step": {"rows": 9.2, "measured_s": 0.0101, "predicted_s": 0.0096}}

    def read(self):
        with self.lock:
            now = time.monotonic()
            self.advance(now - self.last)
            self.last = now
            held = min(500, self.live * 38)
            cached = min(512 - held, self.totals["generated"] // 200)
            return {"state": "ready", "error": None, "loaded": 1, "version": "0.1.0", "model": "river-7b-Q4_K",
                    "description": "llama, 7.2B parameters", "layers": 32, "context": 8192, "start": 1,
                    "time_s": (now - self.begin) * self.speed,
                    "sequences": {"live": self.live, "waiting": max(0, self.live - 10), "limit": 16},
                    "blocks": {"held": held, "cached": cached, "free": 512 - held - cached, "total": 512, "tokens": 16},
                    "totals": dict(self.totals), "steps_open": self.n_stages + 2 if self.live else 0, "micro_batches": 4,
                    "latency": json.loads(json.dumps(self.latency)), "stages": [self.stage(i) for i in range(self.n_stages)]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *args):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", policy())
        self.end_headers()
        self.wfile.write(body)

    def refused(self):
        if not self.server.key or self.headers.get("Authorization") == f"Bearer {self.server.key}":
            return False
        self.answer(401, "application/json", b'{"error": {"message": "a key is needed"}}')
        return True

    def do_GET(self):
        name = self.path.lstrip("/") or "page.html"
        if name == "page/state":
            if not self.refused():
                self.answer(200, "application/json", json.dumps(self.server.state.read()).encode())
        elif name == "plan":
            if not self.refused():
                self.answer(200, "application/json", json.dumps(self.server.plan).encode())
        elif name == "props":
            if not self.refused():
                self.answer(200, "application/json", json.dumps({"chat_template": self.server.template}).encode())
        elif name in os.listdir(FOLDER) and name.rsplit(".")[-1] in TYPES:
            with open(os.path.join(FOLDER, name), "rb") as f:
                self.answer(200, TYPES[name.rsplit(".")[-1]] + "; charset=utf-8", f.read())
        else:
            self.answer(404, "application/json", b'{"error": {"message": "no such thing"}}')

    def move(self):
        """Drains a rank, or takes it again. Rank 0 refuses."""
        path, rank = self.path.split("?rank=")
        if rank == "0":
            self.answer(400, "application/json", b'{"error": {"message": "rank 0 is the last one"}}')
            return
        self.server.plan["ranks"][int(rank)] = "drained" if path.endswith("/drain") else "spare"
        self.server.plan["recovery"]["recoveries"] += 1
        self.answer(200, "application/json", b"{}")

    def do_POST(self):
        if self.path.startswith("/cluster/"):
            if not self.refused():
                self.move()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.requests.append(body)
        if "fail" in json.dumps(body):
            self.answer(400, "application/json", b'{"error": {"message": "the model cannot do that"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = STORY.split(" ")
        chat = "messages" in body
        try:
            self.wfile.write(b": ping\n\n")
            if "think" in json.dumps(body):
                self.event({"choices": [{"index": 0, "delta": {"reasoning_content": "A mill, then."}}]})
            for i, word in enumerate(words):
                text = word if i == 0 else " " + word
                choice = {"index": 0, "finish_reason": None, **({"delta": {"content": text}} if chat else {"text": text})}
                self.event({"choices": [choice]})
                time.sleep(self.server.pause_s)
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.event({"choices": [], "usage": {"completion_tokens": len(words)}})
            self.wfile.write(b"data: [DONE]\n\n")
            self.server.n_told += 1
        except (BrokenPipeError, ConnectionResetError):
            self.server.n_broken += 1

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\r\n\r\n")
        self.wfile.flush()


class FakeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port=0, n_stages=3, key=None, pause_s=0.01, template="{{ messages }}"):
        super().__init__(("127.0.0.1", port), Handler)
        self.state, self.key, self.pause_s = State(n_stages), key, pause_s
        self.template = template
        self.plan = {"epoch": 1, "ranks": ["stage"] * n_stages + ["lost"],
                     "recovery": {"recoveries": 0, "detection_s": 0, "planning_s": 0.01, "loading_s": 0.2, "computing_s": 0, "missing_bytes": 0}}
        self.requests, self.n_told, self.n_broken = [], 0, 0

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--key")
    args = parser.parse_args()
    server = FakeServer(args.port, args.stages, args.key)
    print(server.address)
    server.serve_forever()
