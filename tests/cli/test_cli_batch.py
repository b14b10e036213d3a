# SPDX-License-Identifier: Apache-2.0
"""`millrace batch`: results of requests, prompts and bad lines; a batch that is killed and goes on; signals; wrong usage."""
import json
import os
import random
import signal
import subprocess
import time
import unittest

import cli


# Of the batch that is killed ten times: 10000 in the record of what must hold, fewer in the daily test.
N_KILLED = int(os.environ.get("MILLRACE_TEST_BATCH_LINES", 300 // int(os.environ.get("MILLRACE_TEST_SHARE", "1"))))
# Lines of a batch whose input changes as it runs, and tokens of an answer that is under way when something happens.
N_CHANGED, N_LONG = (250, 50) if os.environ.get("MILLRACE_TEST_SANITIZER") else (3000, 200)


def request(number, url="/v1/completions", **body):
    body = {"prompt": f"Once upon a time there was a {['dog', 'girl', 'tree'][number % 3]}", "max_tokens": 10, **body}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body})


def text_of(result):
    return result["response"]["body"]["choices"][0]["text"]


@cli.needs_demo
class Batch(cli.Case):
    def results(self, path):
        """By custom_id; each of them once."""
        with open(path, "rb") as f:
            lines = [json.loads(line) for line in f.read().decode().splitlines()]
        self.assertEqual(len({line["id"] for line in lines}), len(lines))
        return lines

    def batch(self, lines, name, *options):
        source = self.file(name + ".jsonl", "\n".join(lines) + "\n")
        return ["batch", cli.DEMO, "-i", source, "-o", self.path(name + ".out"), "--sequences", "8", *options]

    def test_results(self):
        lines = [request(0), "garbage", request(2), "{oops", request(0), request(5, url="/v1/models"),
                 request(6, max_tokens="many"), request(7, n=2, temperature=0)]
        command = self.batch(lines, "results", "-n", "5")
        done = self.run_bin(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = self.results(self.path("results.out"))
        by_line = {int(r["id"].split("_")[2]): r for r in results}
        self.assertEqual(sorted(by_line), list(range(1, 9)))
        self.assertEqual([by_line[i]["custom_id"] for i in range(1, 9)],
                         ["r0", None, "r2", None, "r0", "r5", "r6", "r7"])
        no_json = "invalid_json_line"
        self.assertEqual([by_line[i]["error"] and by_line[i]["error"]["code"] for i in range(1, 9)],
                         [None, no_json, None, no_json, "duplicate_custom_id", "invalid_url", None, None])
        self.assertIn("line 2 ", by_line[2]["error"]["message"])
        self.assertEqual(by_line[7]["response"]["status_code"], 400)
        self.assertEqual(by_line[7]["response"]["body"]["error"]["param"], "max_tokens")
        for i in (1, 3, 8):
            self.assertEqual(by_line[i]["response"]["status_code"], 200)
            self.assertTrue(text_of(by_line[i]))
        self.assertEqual(len(by_line[8]["response"]["body"]["choices"]), 2)
        self.assertIn(b"5 of 8 results are errors", done.stderr)
        with open(self.path("results.out"), "rb") as f:
            before = f.read()
        again = self.run_bin(*command)  # nothing is left: the model is not even loaded
        self.assertEqual(again.returncode, 0)
        self.assertIn(b"8 of 8 requests have results already", again.stderr)
        with open(self.path("results.out"), "rb") as f:
            self.assertEqual(f.read(), before)

    def test_prompts(self):
        self.good(*self.batch(["Once upon a time", '"The \\u0073un"', request(3)], "prompts", "-n", "5"))
        results = {int(r["id"].split("_")[2]): r for r in self.results(self.path("prompts.out"))}
        self.assertEqual([results[i]["custom_id"] for i in (1, 2, 3)], ["line-1", "line-2", None])
        self.assertEqual([results[i]["response"]["body"]["usage"]["completion_tokens"] for i in (1, 2)], [5, 5])
        self.assertEqual(results[3]["error"]["code"], "mixed_lines")

    def test_kills(self):
        lines = [request(i) for i in range(N_KILLED)]
        self.good(*self.batch(lines, "whole"))
        want = {r["custom_id"]: text_of(r) for r in self.results(self.path("whole.out"))}
        self.assertEqual(len(want), len(lines))
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        command = self.batch(lines, "killed")
        n_killed = 0
        for _ in range(10):
            with subprocess.Popen([cli.BIN, *command], stderr=subprocess.DEVNULL, env=cli.environment()) as p:
                try:
                    p.wait(draw.uniform(0.04, 0.05 + N_KILLED / 2500))
                except subprocess.TimeoutExpired:
                    p.kill()
                    n_killed += 1
        self.assertGreater(n_killed, 0)
        self.good(*command)
        got = self.results(self.path("killed.out"))
        self.assertEqual(len(got), len(lines), f"seed {seed}")
        self.assertEqual({r["custom_id"]: text_of(r) for r in got}, want, f"seed {seed}")

    def test_interrupt(self):
        lines = [request(i, max_tokens=N_LONG, ignore_eos=True) for i in range(400)]
        command = self.batch(lines, "interrupt")
        out = self.path("interrupt.out")
        with subprocess.Popen([cli.BIN, *command], stderr=subprocess.PIPE, env=cli.environment()) as p:
            limit = time.monotonic() + cli.LIMIT_S
            while not (os.path.exists(out) and os.path.getsize(out)) and time.monotonic() < limit:
                time.sleep(0.02)
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=cli.LIMIT_S)
            self.assertEqual(p.returncode, 130)
        n = len(self.results(out))
        self.assertGreater(n, 0)
        self.assertLess(n, len(lines))

    def run_while(self, name, lines, change):
        """Runs a batch, calls change(input, output) after the first results, and waits for the end."""
        command = self.batch(lines, name, "--log-level", "error")
        source, out = self.path(f"{name}.jsonl"), self.path(f"{name}.out")
        with subprocess.Popen([cli.BIN, *command], stderr=subprocess.PIPE, env=cli.environment()) as p:
            limit = time.monotonic() + cli.LIMIT_S
            while not (os.path.exists(out) and os.path.getsize(out)) and time.monotonic() < limit:
                time.sleep(0.001)
            change(source, out)
            self.assertIsNone(p.poll(), "the batch ended too early")
            _, said = p.communicate(timeout=cli.LIMIT_S)
        self.assertEqual(p.returncode, 1, said)
        self.assertEqual(len(said.splitlines()), 1, said)
        return said.decode(), source, out, command

    def test_changed_input(self):
        def grow(path, _):
            with open(path, "a", encoding="utf-8") as f:
                f.write(request(N_CHANGED, max_tokens=1) + "\n")
        lines = [request(i, max_tokens=1) for i in range(N_CHANGED)]
        for change, words in ((lambda path, _: os.truncate(path, 1000), "was changed while the batch ran"),
                              (grow, "hint: the same command answers the new requests")):
            with self.subTest(words):
                said, source, out, command = self.run_while("changed", lines, change)
                self.assertIn(source, said)
                self.assertIn(words, said)
                self.assertEqual(len(self.results(out)), len(lines))
                if change is grow:
                    self.good(*command)
                    self.assertEqual(len(self.results(out)), len(lines) + 1)
                os.remove(out)

    def test_changed_output(self):
        lines = [request(i, max_tokens=N_LONG, ignore_eos=True) for i in range(300)]
        for how, words in ((os.remove, "was removed"), (lambda out: os.replace(self.file("other", ""), out),
                            "was replaced by another file"),
                           (lambda out: os.truncate(out, 10), "was changed by another program")):
            with self.subTest(words):
                said, _, out, _ = self.run_while("changed", lines, lambda _, out, how=how: how(out))
                self.assertIn(f"{out} {words} while the batch ran", said)
                if os.path.exists(out):
                    os.remove(out)

    def test_wrong_usage(self):
        prompts = self.file("a", "x\n")
        self.bad(2, "-o is missing", "batch", cli.DEMO, "-i", prompts)
        self.bad(2, ["standard input", "hint: put it into a file"], "batch", cli.DEMO, "-i", "-", "-o", self.path("o"))
        self.bad(1, "cannot be opened", "batch", cli.DEMO, "-i", self.path("none"), "-o", self.path("o"))
        self.bad(1, "no result of a batch", "batch", cli.DEMO, "-i", prompts, "-o", self.file("b", "notes\n"))


if __name__ == "__main__":
    unittest.main()
