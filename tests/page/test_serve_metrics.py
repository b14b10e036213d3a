# SPDX-License-Identifier: Apache-2.0
"""What `millrace serve` counts, after a known number of answers: the format of /metrics, and that its numbers agree with
the answers, with each other, and with /page/state."""
import json
import os
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import prometheus  # noqa: E402
from probe import read_until, until  # noqa: E402
from test_serve import DEMO, Serve  # noqa: E402

N_REQUESTS, N_TOKENS, WIDTH = 8, 40, 256
HOST = socket.gethostname()
PHASES = {"no-work", "wait-in", "wait-out", "compute", "wire", "sampling"}


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Metrics(unittest.TestCase):
    def read(self, server):
        return prometheus.read(server.ask("GET", "/metrics")[2].decode())

    def test_all(self):
        begin = time.monotonic()
        with Serve("--stages", "3") as server:
            prompt_tokens = 0
            for i in range(N_REQUESTS):
                answer = server.complete(f"Once upon a time, {i}", max_tokens=N_TOKENS, seed=i, ignore_eos=True)
                prompt_tokens += answer["usage"]["prompt_tokens"]
            self.assertEqual(server.ask("POST", "/v1/completions", "{")[0], 400)
            stages = [str(i) for i in range(3)]

            # Stages say what they have done within a moment after their last step.
            def settled():
                found = self.read(server)
                steps = {found["millrace_stage_steps_total"].value(stage=s) for s in stages}
                return found if steps == {found["millrace_steps_total"].value()} else None
            m = until(settled)
            value = lambda name, **labels: m["millrace_" + name].value(**labels)
            requests = lambda status, outcome: value("requests_total", endpoint="/v1/completions", status=status, outcome=outcome)
            self.assertEqual((requests("200", "ok"), requests("400", "refused")), (N_REQUESTS, 1))
            self.assertEqual(value("generated_tokens_total"), N_REQUESTS * N_TOKENS)
            self.assertEqual(value("prompt_tokens_total"), prompt_tokens)
            self.assertGreater(value("prefix_hit_tokens_total"), 0)
            self.assertEqual(value("ready"), 1)
            ranks = {labels["state"]: n for _, labels, n in m["millrace_ranks"].samples}
            self.assertEqual(ranks, {"stage": 1, "spare": 0, "suspect": 0, "drained": 0, "failed": 0, "lost": 0})
            self.assertEqual((value("sequences_live"), value("sequences_waiting")), (0, 0))
            blocks = {s: value("kv_blocks", state=s) for s in ("held", "cached", "free")}
            self.assertEqual((blocks["held"], sum(blocks.values())), (0, value("kv_blocks_limit")))

            latency = {name: v for kind in ("time_to_first_token", "time_between_tokens")
                       for name, _, v in m[f"millrace_{kind}_seconds"].samples}
            self.assertEqual(latency["millrace_time_to_first_token_seconds_count"], N_REQUESTS)
            self.assertEqual(latency["millrace_time_between_tokens_seconds_count"], N_REQUESTS * (N_TOKENS - 1))

            rows = value("stage_rows_total", stage="0")
            self.assertGreaterEqual(rows, N_REQUESTS * N_TOKENS)
            for s in stages:
                phases = {p: value("stage_seconds_total", stage=s, phase=p) for p in PHASES}
                self.assertGreater(phases["compute"], 0)
                self.assertLess(sum(phases.values()), time.monotonic() - begin)
                self.assertGreater(value("stage_step_seconds", stage=s, of="measured"), 0)
                self.assertGreater(value("stage_memory_bytes", stage=s, of="weights"), 1e6)
                moved = [value("stage_bytes_total", stage=s, direction=d) / (4 * WIDTH) for d in ("in", "out")]
                self.assertEqual(moved, [rows * (s != "0"), rows * (s != "2")])

            state = json.loads(server.ask("GET", "/page/state")[2])
            self.assertEqual(state["totals"]["generated"], N_REQUESTS * N_TOKENS)
            self.assertEqual([x["rows"] for x in state["stages"]], [rows] * 3)
            self.assertEqual(sum(state["latency"]["first_token"]), N_REQUESTS)
            self.assertEqual([(x["first"], x["last"]) for x in state["stages"]], [(0, 2), (3, 5), (6, 7)])
            infos = [[labels[k] for k in ("first_layer", "last_layer", "host", "rank")]
                     for _, labels, _ in m["millrace_stage_info"].samples]
            self.assertEqual(infos, [["0", "2", HOST, "0"], ["3", "5", HOST, "0"], ["6", "7", HOST, "0"]])
            self.assertEqual({x["host"] for x in state["stages"]}, {HOST})
            idle = self.idle_seconds(state)
            time.sleep(0.3)  # a stage at rest says nothing: the server knows that it rests
            later = json.loads(server.ask("GET", "/page/state")[2])
            self.assertGreater(self.idle_seconds(later), idle + 0.25)
            self.assertEqual(server.end()[0], 0)

    def test_cancelled_streams(self):
        """A stream whose reader goes away has said 200, and is not counted as one that was answered."""
        body = b'{"prompt": [5, 6], "max_tokens": 500, "stream": true, "ignore_eos": true}'
        with Serve("--synthetic-stage", "20,0") as server:
            with server.socket() as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                read_until(s, b"data: ")
            def samples():
                requests = self.read(server).get("millrace_requests_total")
                return requests and [(labels["status"], labels["outcome"], n) for _, labels, n in requests.samples
                                     if labels["endpoint"] == "/v1/completions"]
            self.assertEqual(until(samples), [("200", "cancelled", 1)])
            status, text = server.end()
            self.assertEqual(status, 0)
            self.assertRegex(text, "POST /v1/completions 200 .* cancelled, from 127.0.0.1")

    @staticmethod
    def idle_seconds(state):
        return min(s["seconds"]["no-work"] for s in state["stages"])


if __name__ == "__main__":
    unittest.main()
