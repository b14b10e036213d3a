#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers on a device whose cold neurons stay in the host's memory: the bits of the CPU, what is measured and planned,
plan files that cannot be, and GPU indices of PowerInfer."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

BIN = os.path.abspath(os.environ["MILLRACE_DEVICES_BIN"])
SOURCE = os.environ["MILLRACE_SOURCE_DIR"]
IDS = os.path.join(SOURCE, "tests", "golden", "arch", "ids.txt")
LIMIT_S = 300  # of one command; sanitizer builds on busy machines are slow
LAYERS, NEURONS, PARTITIONS = 3, 900, 4
I32, STRING = 26, 8


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_index(path, layers):
    """A GPU index. layers: for each layer the marks and the list of neurons."""
    tensors = []
    for i, (marks, bucket) in enumerate(layers):
        tensors += [(f"blk.{i}.gpu_idx", marks), (f"blk.{i}.gpu_bucket", bucket)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    head += text("general.architecture") + struct.pack("<I", STRING) + text("generic.gpu_index")
    at, data = 0, b""
    for name, numbers in tensors:
        head += text(name) + struct.pack("<IQIQ", 1, len(numbers), I32, at)
        data += struct.pack(f"<{len(numbers)}i", *numbers)
        data += b"\0" * (-len(data) % 32)
        at = len(data)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


def layer_of(neurons):
    chosen = set(neurons)
    return [int(i in chosen) for i in range(NEURONS)], sorted(chosen)


class Neurons(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "plan.json")
        self.index = os.path.join(self.folder.name, "index.gguf")

    def make_model(self, kind, *more):
        path = os.path.join(self.folder.name, f"{kind}.gguf")
        subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "bench", "make_random_model.py"), path, "--type",
                        kind, "--layers", str(LAYERS), "--width", "64", "--ff", str(NEURONS), "--heads", "4",
                        "--kv-heads", "2", "--vocab", "300", "--context", "512", *more], check=True, timeout=LIMIT_S)
        return path

    def make_sparse(self, kind="F16"):
        return self.make_model(kind, "--predictors", "32", "--active", "0.3")

    def run_it(self, *args, status=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
        env.update({"TEST_DEVICE": "", "MILLRACE_CACHE_DIR": self.folder.name})
        done = subprocess.run([BIN, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S,
                              check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.decode() + done.stderr.decode()

    def plan(self, model, *args):
        """The plan of a model, with the facts behind it, and what the command has printed."""
        text_of = self.run_it("plan", model, "--backend", "test", "--ctx", "64", "--save", self.path, *args)
        with open(self.path, encoding="utf-8") as f:
            return json.load(f), text_of

    def write_plan(self, plan, **stage):
        plan["stages"] = [{"rank": 0, "first_layer": 0, "last_layer": LAYERS - 1, **stage}]
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(plan, f)

    def logits(self, model, *args):
        out = os.path.join(self.folder.name, "logits.f32")
        self.run_it("logits", model, "--ids-file", IDS, "-o", out, "--chunk", "7", *args)
        with open(out, "rb") as f:
            return f.read()

    def test_bits(self):
        for kind in ("F16", "Q4_0"):
            model = self.make_sparse(kind)
            want = self.logits(model, "--backend", "cpu")
            plan, _ = self.plan(model, "--measure", "off")
            for n in (1, LAYERS):
                for cold in range(PARTITIONS + 1):
                    self.write_plan(plan, device_layers=n, cold_partitions=cold)
                    got = self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off")
                    self.assertEqual(got, want, (kind, n, cold))

    def test_planned(self):
        """The device has memory for all trunks and half of the neurons."""
        model = self.make_sparse()
        plan, _ = self.plan(model)
        device = plan["facts"]["ranks"][0]["device"]
        kind = plan["facts"]["kinds"][0]
        neurons = device["layer_bytes"][kind] - device["trunk_bytes"][kind]
        self.assertGreater(neurons, 3 * NEURONS * 64 * 2 - 1)
        self.assertGreater(len(device["trunks"][kind]["rows"]), 1)
        trunks = LAYERS * (device["trunk_bytes"][kind] + 64 * device["token_bytes"][kind])
        rest = sum(device[what] for what in ("stage_bytes", "head_bytes", "tail_bytes"))
        device["memory_bytes"] = int((trunks + rest + LAYERS * neurons / 2) * 64 / 63) + 1000
        for rank, factor in ((plan["facts"]["ranks"][0]["layers"], 1), (device["layers"], 0.1), (device["trunks"], 0.2)):
            for curve in rank:
                curve["seconds"] = [1e-3 * factor * n for n in curve["rows"]]
        device["crossing"]["seconds"] = [0] * len(device["crossing"]["rows"])
        self.write_plan(plan)
        facts = self.path
        self.path = os.path.join(self.folder.name, "again.json")
        again, printed = self.plan(model, "--facts", facts)
        self.assertEqual(again["stages"][0]["device_layers"], LAYERS, printed)
        self.assertEqual(again["stages"][0]["cold_partitions"], 2, printed)
        self.assertIn("the last 2 of 4 partitions of neurons on the CPU", printed)
        # An index may ask for fewer.
        write_index(self.index, [layer_of(range(200))] * LAYERS)
        again, printed = self.plan(model, "--facts", facts, "--gpu-index", self.index)
        self.assertEqual(again["stages"][0]["cold_partitions"], 3, printed)
        # One that names neurons anywhere is not used, and the command says so.
        write_index(self.index, [layer_of(range(0, NEURONS, 4))] * LAYERS)
        again, printed = self.plan(model, "--facts", facts, "--gpu-index", self.index)
        self.assertEqual(again["stages"][0]["cold_partitions"], 2, printed)
        self.assertIn("is not used: only 28 % of the neurons that it names are the first ones", printed)

    def test_plan_files_that_cannot_be(self):
        model = self.make_sparse()
        plan, _ = self.plan(model, "--measure", "off")
        for stage, words in (({"cold_partitions": 1}, "stages[0].cold_partitions is 1, allowed is 0 to 0"),
                             ({"device_layers": 1, "cold_partitions": -1}, "stages[0].cold_partitions is -1"),
                             ({"device_layers": 1, "cold_partitions": "x"}, "stages[0].cold_partitions")):
            self.write_plan(plan, **stage)
            self.assertIn(words, self.run_it("plan", model, "--plan", self.path, "--backend", "test", status=1))
        self.write_plan(plan, device_layers=1, cold_partitions=PARTITIONS + 1)
        words = "stages[0].cold_partitions is 5, but feed-forward parts of this model have at most 4 partitions"
        self.assertIn(words, self.run_it("plan", model, "--plan", self.path, "--backend", "test", status=1))
        self.assertIn(words, self.run_it("logits", model, "--ids-file", IDS, "-o", os.devnull, "--plan", self.path,
                                         "--backend", "test", "--measure", "off", status=1))

    def test_indices_that_cannot_be(self):
        model = self.make_sparse()
        write_index(self.index, [layer_of(range(200))] * (LAYERS - 1))
        error = self.run_it("plan", model, "--gpu-index", self.index, "--backend", "test", status=1)
        self.assertIn(f"--gpu-index {self.index}: tensor 'blk.2.gpu_idx' is missing in the GPU index", error)
        error = self.run_it("plan", self.make_model("F32"), "--gpu-index", self.index, "--backend", "test", status=2)
        self.assertIn("this model has no magic 'PWRI'", error)
        write_index(self.index, [layer_of(range(200))] * LAYERS)
        error = self.run_it("plan", model, "--gpu-index", self.index, "--plan", self.path, status=2)
        self.assertIn("it cannot be combined with --gpu-index", error)


if __name__ == "__main__":
    unittest.main()
