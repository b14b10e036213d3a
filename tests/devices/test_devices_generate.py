#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole commands with a test device: the bytes of the CPU alone, from one process and over mpirun; which options choose
the device; and what a user sees of a device that fails."""
import json
import os
import subprocess
import tempfile
import unittest

import wide_gguf
from hosts import program_path, run_ranks

BIN = program_path()
DEVICES_BIN = os.path.abspath(os.environ["MILLRACE_DEVICES_BIN"])
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
LIMIT_S = 180  # of one command; sanitizer builds on busy machines are slow
PROMPTS = ["Once upon a time", "The miller of Otterby", "It rained. "]
GENERATE = ["generate", DEMO, *[word for prompt in PROMPTS for word in ("-p", prompt)],
            "-n", "16", "--temp", "0.8", "--seed", "7", "--ignore-eos", "--json"]
FOLDER = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
PLAN = os.path.join(FOLDER.name, "plan.json")  # of two stages, all layers on devices
FAST = ["--numerics", "fast", "--backend", "test"]
# More calls than a stage needs to load, and fewer than its part of these steps needs. In fast numerics, the device is
# not compared with the CPU at the start.
LONG = ["generate", DEMO, "-p", PROMPTS[0], "-n", "300", "--seed", "7", "--ignore-eos", "--plan", PLAN,
        "--measure", "off", *FAST]
BREAKS_IN_A_STEP = "is_inexact n_good=500"


def run(program, *args, device=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
    env.update({"MILLRACE_CACHE_DIR": FOLDER.name, "TEST_DEVICE": device})
    return subprocess.run([program, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S,
                          check=False)


def ids(output):
    return [(s["ids"], s["text"], s["finish_reason"]) for s in json.loads(output)["sequences"]]


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.want = ids(run(BIN, *GENERATE).stdout)
        run(DEVICES_BIN, "plan", DEMO, "--stages", "2", "--save", PLAN, *FAST, device="is_inexact").check_returncode()

    def check(self, *args, device=""):
        done = run(DEVICES_BIN, *GENERATE, *args, device=device)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(ids(done.stdout), self.want)

    def check_fails(self, status, words, *args, device=""):
        done = run(DEVICES_BIN, *GENERATE, "--log-level", "error", *args, device=device)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, status, text)
        self.assertEqual(len(text.splitlines()), 1, text)
        for word in words:
            self.assertIn(word, text)

    def test_the_bytes_of_the_cpu(self):
        for stages in ("1", "2", "3"):
            self.check("--backend", "test", "--stages", stages)
        self.check("--backend", "test", "--stages", "2", "--chunk", "3", device="max_delay_us=50")
        done = run(DEVICES_BIN, *GENERATE, "--backend", "test", "--stages", "2", "--measure", "off")
        self.assertEqual(ids(done.stdout), self.want)
        self.assertIn(b"all layers stay on the CPU, because --measure is off", done.stderr)

    def test_a_large_vocabulary(self):
        """Ids and log-probabilities, from first tokens and from all logits, greedy and with ties."""
        wide = wide_gguf.write(os.path.join(FOLDER.name, "wide.gguf"), DEMO, 4)
        grammar = os.path.join(FOLDER.name, "words.gbnf")
        with open(grammar, "w", encoding="utf-8") as f:
            f.write("root ::= [a-z~0-9 ]+\n")
        for options in (["--temp", "0"], ["--temp", "0.9", "--repeat-penalty", "1.1"], ["--temp", "1.2", "--top-k", "0"],
                        ["--grammar", grammar]):
            command = ["generate", wide, "-p", PROMPTS[0], "-p", PROMPTS[1], "-n", "16", "--seed", "7", "--ignore-eos",
                       "--json", "--logprobs", "5", *options]
            want = json.loads(run(BIN, *command).stdout)["sequences"]
            done = run(DEVICES_BIN, *command, "--backend", "test", "--stages", "2")
            self.assertEqual(json.loads(done.stdout)["sequences"], want, done.stderr)
            self.assertIn("logprob", json.dumps(want))

    def test_who_uses_the_device(self):
        """A device that breaks at its tenth call shows who uses it. One that is named holds all layers."""
        self.check("--backend", "cpu", device="n_good=10")
        done = run(DEVICES_BIN, *GENERATE, "--backend", "test")
        self.assertIn(b"stage 0: layers 0-7 on 'test device' (", done.stderr)
        self.check_fails(1, ["the test device is broken"], "--backend", "test", device="n_good=10")

    def test_what_nobody_has_named_is_left_out(self):
        """A device that breaks, has no memory or computes other bits is not used unless it is named."""
        for device, why in (("n_good=10", "the test device is broken"), ("memory_bytes=100000", "no memory for"),
                            ("wrong=rms_norm", "other bits than the CPU in: rms_norm; hint: ")):
            done = run(DEVICES_BIN, *GENERATE, "--stages", "2", device=device)
            self.assertEqual(ids(done.stdout), self.want, done.stderr)
            self.assertRegex(done.stderr.decode(), f"'test device' is not used: .*{why}")

    def test_no_device(self):
        self.check(device="none")
        self.check_fails(1, ["there is no test device"], "--backend", "test", device="none")

    def test_a_device_that_is_not_exact(self):
        self.check_fails(1, ["'test device' does not compute exact numerics", "--numerics fast"], device="is_inexact")
        done = run(DEVICES_BIN, *GENERATE, "--numerics", "fast", "--backend", "test", device="is_inexact")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_device_that_breaks_while_it_runs(self):
        """Nobody hangs, the error names the device, and the text so far is not lost."""
        done = run(DEVICES_BIN, *LONG, "--log-level", "error", device=BREAKS_IN_A_STEP)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, b"stage . .*the test device is broken")
        self.assertGreater(len(done.stdout), 10)

    def test_a_device_that_breaks_while_it_is_measured(self):
        self.check_fails(1, ["the test device is broken"], *FAST, device=BREAKS_IN_A_STEP)

    def test_the_product_has_no_test_device(self):
        done = run(BIN, *GENERATE, "--backend", "test")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b'"test" is not one of auto, cpu, cuda, blas', done.stderr)
        self.assertNotIn(b"backend test", run(BIN, "--version").stdout)
        self.assertIn(b"backend test", run(DEVICES_BIN, "--version").stdout)

    @unittest.skipUnless(os.environ.get("MILLRACE_TEST_RANKS"), "no ranks over mpirun in this build")
    def test_ranks(self):
        for n in (1, 2):
            command = [*GENERATE, "--backend", "test", "--stages", str(n)]
            done = run_ranks(n, command, program=[DEVICES_BIN], timeout=LIMIT_S,
                             env={"MILLRACE_MEASURE": "auto", "MILLRACE_CACHE_DIR": FOLDER.name,
                                  "TEST_DEVICE": "devices=2"})
            self.assertEqual((done.status, done.left), (0, []), str(done))
            for rank in range(n):
                self.assertIn(b"on 'test device %d' (" % rank, done.stderr, str(done))
            self.assertEqual(ids(done.stdout), self.want, str(done))
        done = run_ranks(2, LONG, program=[DEVICES_BIN], timeout=LIMIT_S, env={"TEST_DEVICE": BREAKS_IN_A_STEP})
        self.assertEqual(done.left, [], str(done))
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertRegex(done.stderr, b"rank . .*the test device is broken", str(done))
        self.assertGreater(len(done.stdout), 10)


if __name__ == "__main__":
    unittest.main()
