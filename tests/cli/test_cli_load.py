#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace bench --load` and `millrace simulate`: requests that arrive over time. Times of real stages are not tested beyond
being there; those of simulated ones are exact."""
import json
import os
import signal
import subprocess
import time
import unittest

import cli

SHORT = ["--load", "40", "--load-seconds", "0.3", "--load-prompt", "9", "--load-tokens", "5"]


class Case(cli.Case):
    def report(self, command, *args, **kwargs):
        return json.loads(self.good(command, self.model, *args, "--json", **kwargs))


class Bench(Case):
    def test_json(self):
        found = self.report("bench", *SHORT, "--stages", "2", "-t", "1", "--sequences", "3")
        self.assertEqual((found["done"], found["failed"]), (found["requests"], 0))
        self.assertEqual(found["tokens"], 5 * found["requests"])
        self.assertEqual(len(found["each"]), found["requests"])
        for request in found["each"]:
            self.assertEqual((request["prompt_tokens"], request["new_tokens"], request["failed"]), (9, 5, False))
            self.assertEqual(len(request["token_ms"]), 5)
            self.assertEqual(request["token_ms"], sorted(request["token_ms"]))
            self.assertGreater(request["token_ms"][0], request["at_ms"])
        for name in ("time_to_first_token_ms", "time_between_tokens_ms"):
            p = found[name]
            self.assertTrue(0 <= p["p50"] <= p["p90"] <= p["p99"] <= p["max"], p)
        first = max(r["token_ms"][0] - r["at_ms"] for r in found["each"])
        self.assertAlmostEqual(found["time_to_first_token_ms"]["max"], first, places=5)
        self.assertEqual([s["stage"] for s in found["stages"]], [0, 1])
        self.assertTrue(all(s["compute"] > 0 and s["steps"] > 0 for s in found["stages"]))

    def test_table(self):
        done = self.run_bin("bench", self.model, *SHORT)
        lines = [line.split() for line in done.stdout.decode().splitlines()]
        self.assertEqual(lines[0][1:5], ["of", lines[0][0], "requests", "done,"])
        self.assertEqual(lines[1], ["p50", "p90", "p99", "max"])
        self.assertEqual([lines[2][:4], lines[3][:2]], [["time", "to", "first", "token"], ["between", "tokens"]])
        self.assertEqual(lines[5][:2], ["stage", "compute"])

    def test_seeds(self):
        first, again, other = (
            [r["at_ms"] for r in self.report("bench", *SHORT, "--load-seed", seed)["each"]] for seed in ("1", "1", "2"))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_trace_file(self):
        path = self.file("day.csv", "# seconds, prompt, new\n0,4,3\n0.01,20,1\n0.01,1,7\n")
        found = self.report("bench", "--load-trace", path, "--synthetic-stage", "1,0", "--stages", "5")
        self.assertEqual([(r["at_ms"], r["prompt_tokens"], len(r["token_ms"])) for r in found["each"]],
                         [(0, 4, 3), (10, 20, 1), (10, 1, 7)])
        self.assertEqual(found["time_to_first_token_ms"]["max"] > 5, True)
        found = self.report("bench", "--load-trace", "-", stdin=b"0,4,1\n")
        self.assertEqual((found["tokens"], found["time_between_tokens_ms"]), (1, None))


class Simulate(Case):
    TIMES = ["--synthetic-stage", "2,0.5;4,0.5", "--hop-ms", "0.25"]

    def test_exact_times(self):
        """One request alone: each step goes through both stages and over the hops, the first with its four rows."""
        path = self.file("one.csv", "1.5,4,3\n")
        found = self.report("simulate", "--load-trace", path, *self.TIMES)
        first = 0.25 + (2 + 4 * 0.5) + 0.25 + (4 + 4 * 0.5) + 0.25
        each = 2.5 + 0.25 + 4.5 + 0.25
        for ms, expected in zip(found["each"][0]["token_ms"], (first, first + each, first + 2 * each), strict=True):
            self.assertAlmostEqual(ms, 1500 + expected, places=5)
        self.assertAlmostEqual(found["stages"][0]["compute"], 1e-3 * (4 + 2 * 2.5), places=8)
        self.assertAlmostEqual(found["stages"][1]["compute"], 1e-3 * (6 + 2 * 4.5), places=8)

    def test_bandwidth(self):
        """Four rows of 32 floats at 1 Mbit/s."""
        path = self.file("one.csv", "0,4,1\n")
        slow, fast = (self.report("simulate", "--load-trace", path, *self.TIMES, *more)["each"][0]["token_ms"][0]
                      for more in (["--hop-gbps", "0.001"], []))
        self.assertAlmostEqual(slow - fast, 4 * 32 * 4 * 8 / 1e3, places=5)

    def test_time_between_tokens(self):
        """Rows of a long prompt beside decode rows: few where tokens are wanted soon, so that its first one comes late."""
        path = self.file("two.csv", "0,4,200\n2,250,1\n")
        gaps, waits = [], []
        for ms in ("23", "60"):
            found = self.report("simulate", "--load-trace", path, "--ctx", "512", "--synthetic-stage", "20,0.1", "--tbt-ms", ms)
            token_ms = found["each"][0]["token_ms"]
            gaps.append(max(b - a for a, b in zip(token_ms, token_ms[1:])))
            waits.append(found["each"][1]["token_ms"][0] - found["each"][1]["at_ms"])
            self.assertLess(gaps[-1], float(ms))
        self.assertLess(gaps[0], gaps[1])
        self.assertGreater(waits[0], 2 * waits[1])

    def test_many_stages(self):
        """With a sanitizer, which touches all memory that is only reserved, 300 stages take more than 24 GB."""
        n = 15 if os.environ.get("MILLRACE_TEST_SANITIZER") else 300
        args = [*SHORT, "--stages", str(n), "--synthetic-stage", "1,0"]
        found = self.report("simulate", *args)
        self.assertEqual((found["done"], len(found["stages"])), (found["requests"], n))
        self.assertGreater(found["time_to_first_token_ms"]["p50"], n)
        self.assertEqual(found, self.report("simulate", *args))

    def test_table(self):
        text = self.good("simulate", self.model, *SHORT, *self.TIMES).decode()
        self.assertIn("requests done, 0 failed", text)
        self.assertIn("time to first token", text)


    def test_overload(self):
        """A stage of 10 ms a step with 4 sequences makes 400 tokens in a second, some less while prompts are read."""
        def at(rate, *more):
            return ["--load", str(rate), "--load-seconds", "60", "--load-prompt", "1", "--load-tokens", "10",
                    "--synthetic-stage", "10,0", "--sequences", "4", *more]
        found = self.report("simulate", *at(80))
        most = found["sustained_requests_per_second"]
        self.assertTrue(found["overloaded"])
        self.assertAlmostEqual(most / (found["requests"] / found["seconds"]), 1, delta=0.1)
        for share, overloaded in ((0.7, False), (1.3, True)):
            found = self.report("simulate", *at(share * most))
            self.assertEqual(found["overloaded"], overloaded, share)
        self.assertIsNone(self.report("simulate", *at(0.5 * most))["sustained_requests_per_second"])
        self.assertRegex(self.good("simulate", self.model, *at(80)).decode().splitlines()[1],
                         rf"^overloaded: [\d.]+ requests arrive in a second, but at most {most:.3g} can be answered")


class Interruption(Case):
    def interrupted(self, *args):
        """What a load has printed after Ctrl-C, while its stages slept."""
        path = self.file("long.csv", "0,1,3\n0,1,500\n500000,1,1\n")
        with subprocess.Popen([cli.BIN, "bench", self.model, "--load-trace", path, *args], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=cli.environment()) as p:
            for line in p.stderr:
                if b"loaded" in line:
                    break
            time.sleep(1.5)  # a tenth of the second request; nothing is said before the end
            p.send_signal(signal.SIGINT)
            out, notes = p.communicate(timeout=cli.LIMIT_S)
        self.assertEqual(p.returncode, 130, notes)
        self.assertNotIn(b"error", notes)
        return out.decode()

    def test_table_of_what_has_come(self):
        self.assertRegex(self.interrupted("--synthetic-stage", "15,0", "--stages", "2"), r"^1 of 3 requests done, 0 failed")

    def test_json_of_what_has_come(self):
        found = json.loads(self.interrupted("--synthetic-stage", "30,0", "--json"))
        self.assertEqual((found["done"], found["failed"], len(found["each"][0]["token_ms"])), (1, 0, 3))
        self.assertGreater(len(found["each"][1]["token_ms"]), 3)

    def test_stages_that_sleep_long(self):
        start = time.monotonic()
        found = json.loads(self.interrupted("--synthetic-stage", "60000,0", "--stages", "2", "--json"))
        self.assertEqual((found["done"], found["tokens"]), (0, 0))
        self.assertLess(time.monotonic() - start, 30)


class WrongUse(Case):
    def test_what_arrives(self):
        for command in ("bench", "simulate"):
            for args, words in ((["--load", "0"], ["--load", "0.001 to"]), (["--load", "x"], ["--load", "number"]),
                                (["--load-trace", "nothing.csv"], ["nothing.csv", "No such file"]),
                                (["--load", "3", "--load-trace", "-"], ["--load", "--load-trace"]),
                                (["--load", "3", "--load-seconds", "0"], ["--load-seconds"]),
                                (["--load", "3", "--load-prompt", "0"], ["--load-prompt"]),
                                (["--load", "3", "--load-tokens", "0"], ["--load-tokens"]),
                                (["--load", "3", "--load-seed", "-1"], ["--load-seed"]),
                                (["--load", "1e6", "--load-seconds", "1e6"], ["more than 1048576"]),
                                (["--load", "0.001", "--load-seconds", "0.001"], ["no request arrives"])):
                self.bad(1 if "nothing.csv" in args else 2, words, command, self.model, *args, "--synthetic-stage", "1,0")
        path = self.file("bad.csv", "0,4,1\n0,4\n")
        self.bad(1, ["bad.csv", "line 2"], "simulate", self.model, "--load-trace", path, "--synthetic-stage", "1,0")

    def test_options_of_tests_and_of_loads(self):
        path = self.file("one.csv", "0,4,1\n")
        for flag, option in (("-p", "--prefill"), ("-n", "--decode"), ("-b", "--batch"), ("-d", "--depth"), ("-r", "--repeat")):
            self.bad(2, [option, "works only without --load"], "bench", self.model, *SHORT, flag, "1")
            self.bad(2, [option, "works only without --load"], "bench", self.model, "--load-trace", path, flag, "1")
        for option in ("--load-seconds", "--load-prompt", "--load-tokens", "--load-seed"):
            self.bad(2, [option, "needs --load"], "bench", self.model, option, "1")
            for command in ("bench", "simulate"):
                self.bad(2, [option, "needs --load;"], command, self.model, "--load-trace", path, option, "1",
                         "--synthetic-stage", "1,0")

    def test_times_of_stages(self):
        for wrong in ("0x1,0", "1,0X1", "1,0x", "inf,0"):
            self.bad(2, ["--synthetic-stage", "MS,MS_PER_ROW"], "simulate", self.model, *SHORT, "--synthetic-stage", wrong)
        for command in ("bench", "simulate"):
            self.bad(2, ["stage 1 would sleep 660 s", "allowed are 600"], command, self.model, *SHORT, "--sequences", "20",
                     "--synthetic-stage", "1,0;60000,60000", "--chunk", "10")

    def test_what_does_not_go_together(self):
        self.bad(2, ["--csv", "--json"], "bench", self.model, *SHORT, "--csv")
        self.bad(2, ["-t", "one number"], "bench", self.model, *SHORT, "-t", "1,2")
        self.bad(2, ["--ctx", "500 tokens"], "bench", self.model, "--load", "9", "--load-prompt", "400", "--load-tokens",
                 "100", "--ctx", "100")
        self.bad(2, ["--load", "--load-trace"], "simulate", self.model, "--synthetic-stage", "1,0")
        self.bad(2, ["--synthetic-stage"], "simulate", self.model, *SHORT)
        self.bad(2, ["--hop-ms"], "bench", self.model, *SHORT, "--hop-ms", "1")
        self.bad(2, ["--hop-ms"], "simulate", self.model, *SHORT, "--synthetic-stage", "1,0", "--hop-ms", "-1")
        self.bad(2, ["--hop-gbps"], "simulate", self.model, *SHORT, "--synthetic-stage", "1,0", "--hop-gbps", "0")


if __name__ == "__main__":
    unittest.main()
