#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole commands with the CUDA backend on emulated GPUs: the bytes of the CPU alone, and what a user sees of a driver
that is too old, of a host without a device, and of a device that fails or has little memory."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(TESTS, "cli"))
import tiny_model  # noqa: E402 (after the path)
import wide_gguf  # noqa: E402 (after the path)
from hosts import program_path, run_ranks  # noqa: E402 (after the path)

BIN = program_path()
EMULATED_BIN = os.path.abspath(os.environ["MILLRACE_EMULATED_BIN"])
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
LIMIT_S = 500  # of one command; sanitizer builds on busy machines are slow
GENERATE = ["generate", DEMO, "-p", "Once upon a time", "-p", "It rained. ",
            "-n", "6", "--temp", "0.8", "--seed", "7", "--ignore-eos", "--json"]
CUDA = ["--backend", "cuda"]
# A rank has room for measuring, but not for the demo model: two layers on its device, and the others in 11 MiB of memory.
SMALL = ["--threads", "1", "--gpu-layers", "2", "--mem", "10M"]
FOLDER = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with


def run(program, *args, cuda=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
    env.update({"MILLRACE_CACHE_DIR": FOLDER.name, "EMULATED_CUDA": cuda})
    return subprocess.run([program, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S,
                          check=False)


def ids(output):
    return [(s["ids"], s["text"], s["finish_reason"]) for s in json.loads(output)["sequences"]]


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.want = ids(run(BIN, *GENERATE).stdout)

    def check(self, n_devices, *args, cuda=""):
        """The bytes of the CPU; stages are on so many devices."""
        done = run(EMULATED_BIN, *GENERATE, *CUDA, *args, cuda=cuda)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(ids(done.stdout), self.want, done.stderr)
        for device in range(n_devices):
            self.assertIn(b"on 'CUDA device %d, emulated GPU'" % device, done.stderr)
        self.assertNotIn(b"CUDA device %d," % n_devices, done.stderr)

    def check_fails(self, words, *args, cuda=""):
        done = run(EMULATED_BIN, *GENERATE, *CUDA, "--log-level", "error", *args, cuda=cuda)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, 1, text)
        self.assertEqual(len(text.splitlines()), 1, text)
        for word in words:
            self.assertIn(word, text)

    def test_the_bytes_of_the_cpu(self):
        self.check(2, "--stages", "2", "--chunk", "3", cuda="n_devices=2 max_delay_us=50")

    def test_a_large_vocabulary(self):
        """Ids and log-probabilities, from first tokens and from all logits."""
        wide = wide_gguf.write(os.path.join(FOLDER.name, "wide.gguf"), DEMO, 4)
        for options in (["--temp", "0.8", "--repeat-penalty", "1.1"], ["--temp", "1.2", "--top-k", "0"]):
            command = ["generate", wide, "-p", "Once upon a time", "-n", "6", "--seed", "7", "--ignore-eos", "--json",
                       "--logprobs", "5", *options]
            want, got = (json.loads(run(*line).stdout)["sequences"]
                         for line in ([BIN, *command], [EMULATED_BIN, *command, *CUDA]))
            self.assertEqual(got, want)
            self.assertIn("logprob", json.dumps(want))

    def test_drivers_and_devices_that_cannot_be_used(self):
        self.check_fails(["there is no CUDA device", "hint: nvidia-smi"], cuda="no_device")
        self.check_fails(["the NVIDIA driver is for CUDA 12.0; hint: "], cuda="version=12000")
        self.check_fails(["compute capability 7", "8.0 or newer"], cuda="capability=75")
        self.check_fails(["has no kernels for CUDA device 0"], cuda="fail=module_load_data fail_at=1 result=209")

    def test_a_device_that_fails(self):
        self.check_fails(["'CUDA device 0, emulated GPU'", "LAUNCH_FAILED"], cuda="break_at=40")

    def test_the_counts_of_the_cpu(self):
        """Routers on the device, with the experts there or in the host's memory; predictors of neurons on the CPU."""
        sparse = tiny_model.make(os.path.join(FOLDER.name, "sparse.gguf"), predictor=16)
        text = os.path.join(FOLDER.name, "text.txt")
        with open(text, "w", encoding="ascii") as f:
            f.write("The miller of Otterby had a wheel of stone. " * 2)
        for model in (os.path.join(TESTS, "golden", "arch", "qwen3moe.gguf"), sparse):
            found, plan = [], os.path.join(FOLDER.name, "plan.json")
            run(BIN, "plan", model, "--stages", "2", "--save", plan, "--measure", "off").check_returncode()
            with open(plan, encoding="utf-8") as f:
                split = json.load(f)
            for stage in split["stages"]:
                n = stage["last_layer"] - stage["first_layer"] + 1
                stage.update({"device_layers": n, "host_experts": n - 1})
            with open(plan, "w", encoding="utf-8") as f:
                json.dump(split, f)
            for program, args in ((BIN, []), (EMULATED_BIN, [*CUDA, "--chunk", "7"]),
                                  (EMULATED_BIN, [*CUDA, "--plan", plan])):
                out = os.path.join(FOLDER.name, "counts.json")
                done = run(program, "profile", model, "-f", text, "-o", out, "--ctx", "40", *args)
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(out, "rb") as f:
                    found.append(f.read())
                os.unlink(out)
            self.assertEqual(found[1:], found[:1] * 2, model)

    @unittest.skipUnless(os.environ.get("MILLRACE_TEST_RANKS"), "no ranks over mpirun in this build")
    def test_ranks(self):
        """The planner takes both ranks, whatever was measured, and at the second run by times that were kept."""
        with tempfile.TemporaryDirectory() as kept:
            for _ in range(2):
                done = run_ranks(2, [*GENERATE, *CUDA, *SMALL], program=[EMULATED_BIN], timeout=LIMIT_S,
                                 env={"MILLRACE_MEASURE": "auto", "MILLRACE_CACHE_DIR": kept,
                                      "EMULATED_CUDA": "n_devices=2"})
                self.assertEqual((done.status, done.left), (0, []), str(done))
                for rank in range(2):
                    self.assertIn(b"on 'CUDA device %d, emulated GPU'" % rank, done.stderr, str(done))
                self.assertEqual(ids(done.stdout), self.want, str(done))
                self.assertEqual(len([name for name in os.listdir(kept) if name.startswith("times-")]), 2)


if __name__ == "__main__":
    unittest.main()
