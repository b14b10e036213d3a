#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers on a device whose experts stay in the host's memory, all of them or some: the bits of the CPU, what is measured
and planned, and plan files that cannot be."""
import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

from hosts import run_ranks

BIN = os.path.abspath(os.environ["MILLRACE_DEVICES_BIN"])
FOLDER = os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests", "golden", "arch")
IDS = os.path.join(FOLDER, "ids.txt")
TEXT = os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests", "data", "perplexity.txt")
LIMIT_S = 300  # of one command; sanitizer builds on busy machines are slow


class Experts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "plan.json")

    def run_it(self, *args, device="", status=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
        env.update({"TEST_DEVICE": device, "MILLRACE_CACHE_DIR": self.folder.name})
        done = subprocess.run([BIN, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S,
                              check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr.decode()

    def save(self, model, *args, device=""):
        """The plan of a model, with the facts behind it."""
        self.run_it("plan", model, "--backend", "test", "--ctx", "64", "--save", self.path, *args, device=device)
        with open(self.path, encoding="utf-8") as f:
            return json.load(f)

    def logits(self, model, *args):
        out = os.path.join(self.folder.name, "logits.f32")
        self.run_it("logits", model, "--ids-file", IDS, "-o", out, "--chunk", "7", *args)
        with open(out, "rb") as f:
            return f.read()

    def check(self, name):
        """Every place of the border between whole layers, those without their experts, and those on the CPU."""
        model = os.path.join(FOLDER, name + ".gguf")
        want = self.logits(model, "--backend", "cpu")
        plan = self.save(model, "--measure", "off")
        n_layers = plan["stages"][-1]["last_layer"] + 1
        self.assertGreater(n_layers, 2)
        for n, host in ((n_layers, n_layers), (n_layers, 1), (n_layers - 1, 2), (1, 1)):
            plan["stages"] = [{"rank": 0, "first_layer": 0, "last_layer": n_layers - 1, "device_layers": n,
                               "host_experts": host}]
            with open(self.path, "w", encoding="utf-8") as f:
                json.dump(plan, f)
            got = self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off")
            self.assertEqual(got, want, (name, n, host))

    def check_some(self, name, *numbers):
        """Borders between the experts that the device computes and those that the CPU does."""
        model = os.path.join(FOLDER, name + ".gguf")
        want = self.logits(model, "--backend", "cpu")
        plan = self.save(model, "--measure", "off")
        n_layers = plan["stages"][-1]["last_layer"] + 1
        for i, n in enumerate(numbers):
            plan["stages"] = [{"rank": 0, "first_layer": 0, "last_layer": n_layers - 1, "device_layers": n_layers - i % 2,
                               "host_experts": n_layers - 1, "device_experts": n}]
            with open(self.path, "w", encoding="utf-8") as f:
                json.dump(plan, f)
            for more in ([], ["--no-repack"]):
                got = self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off", *more)
                self.assertEqual(got, want, (name, n, more))

    def shared_plan(self, model, n_stages, n_experts):
        """All layers on devices, but every other stage has its experts on both sides, and the rest on one."""
        plan = self.save(model, "--measure", "off")
        n_layers = plan["stages"][-1]["last_layer"] + 1
        firsts = [i * n_layers // n_stages for i in range(n_stages + 1)]
        plan["stages"] = []
        for i, (first, end) in enumerate(zip(firsts, firsts[1:])):
            plan["stages"].append({"rank": i, "first_layer": first, "last_layer": end - 1, "device_layers": end - first})
            if i % 2 == 0:
                plan["stages"][i].update({"host_experts": end - first, "device_experts": n_experts})
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(plan, f)

    def test_bits_of_stages(self):
        model = os.path.join(FOLDER, "gpt-oss-mxfp4.gguf")
        want = self.logits(model, "--backend", "cpu")
        for n_stages, chunk, threads in ((1, 24, 3), (2, 1, 1), (3, 3, 2), (4, 16, 1)):
            self.shared_plan(model, n_stages, n_stages)
            got = self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off", "--chunk",
                              str(chunk), "-t", str(threads))
            self.assertEqual(got, want, (n_stages, chunk, threads))

    @unittest.skipUnless(os.environ.get("MILLRACE_TEST_RANKS"), "no ranks over mpirun in this build")
    def test_bits_of_ranks(self):
        model, out = os.path.join(FOLDER, "qwen3moe.gguf"), os.path.join(self.folder.name, "logits.f32")
        want = self.logits(model, "--backend", "cpu")
        for n_ranks in (2, 4):
            self.shared_plan(model, n_ranks, 3)
            done = run_ranks(n_ranks, ["logits", model, "--ids-file", IDS, "-o", out, "--backend", "test", "--plan",
                                       self.path, "-t", "1"], program=[BIN], timeout=LIMIT_S,
                             env={**os.environ, "MILLRACE_CACHE_DIR": self.folder.name, "MILLRACE_MEASURE": "off"})
            self.assertEqual((done.status, done.left), (0, []), str(done))
            with open(out, "rb") as f:
                self.assertEqual(f.read(), want, n_ranks)
            os.unlink(out)

    def test_bits_with_a_profile(self):
        """The device gets the experts that the profile in the cache names. Ranks without the profile hear of them."""
        model = os.path.join(FOLDER, "gpt-oss-mxfp4.gguf")
        want = self.logits(model, "--backend", "cpu")
        self.run_it("profile", model, "-f", TEXT, "--ctx", "64", "--backend", "cpu")
        path, = glob.glob(os.path.join(self.folder.name, "profile-*.json"))
        with open(path, encoding="utf-8") as f:
            profile = json.load(f)
        for layer in profile["layers"]:  # the last experts are used most
            n = len(layer["counts"])
            layer["counts"] = [profile["rows"] * e // n for e in range(n)]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(profile, f)
        for n_stages in (1, 3):
            self.shared_plan(model, n_stages, 2)
            got = self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off")
            self.assertEqual(got, want, n_stages)

    def exchanged(self, model, *args):
        """The logits of the device, and how many experts its stages say they have exchanged."""
        out = os.path.join(self.folder.name, "logits.f32")
        log = self.run_it("logits", model, "--ids-file", IDS, "-o", out, "--backend", "test", "--plan", self.path,
                          "--measure", "off", *args)
        with open(out, "rb") as f:
            return f.read(), [int(n) for n in re.findall(r"uses, and (\d+) experts were exchanged", log)]

    def test_bits_while_experts_move(self):
        """The device begins with the experts that are used least. The stages find the others while they run."""
        model = os.path.join(FOLDER, "gpt-oss-mxfp4.gguf")
        want = self.logits(model, "--backend", "cpu")
        self.run_it("profile", model, "-f", TEXT, "--ctx", "64", "--backend", "cpu")
        path, = glob.glob(os.path.join(self.folder.name, "profile-*.json"))
        with open(path, encoding="utf-8") as f:
            profile = json.load(f)
        for layer in profile["layers"]:
            layer["counts"] = [profile["rows"] - n for n in layer["counts"]]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(profile, f)
        for n_stages, chunk in ((1, 1), (2, 3), (3, 1), (4, 7)):
            self.shared_plan(model, n_stages, 2)
            got, swaps = self.exchanged(model, "--renew-experts", "1", "--chunk", str(chunk), "-t", "1")
            self.assertEqual(got, want, n_stages)
            self.assertEqual(len(swaps), (n_stages + 1) // 2)  # every other stage shares its experts
            self.assertGreater(sum(swaps), 0, n_stages)
        self.assertEqual(self.exchanged(model, "--renew-experts", "0"), (want, []))

    def test_trace_of_both_sides(self):
        """A row of the trace for the phases of the stage, one for its CPU and one for its device."""
        model, trace = os.path.join(FOLDER, "qwen3moe.gguf"), os.path.join(self.folder.name, "trace.json")
        self.shared_plan(model, 1, 3)
        self.logits(model, "--backend", "test", "--plan", self.path, "--measure", "off", "--trace", trace)
        with open(trace, encoding="utf-8") as f:
            events = json.load(f)
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(sorted(tracks.values()), ["stage 0, layers 0 to 4", "stage 0: CPU", "stage 0: device"])
        for kind, title in (("cpu", "stage 0: CPU"), ("device", "stage 0: device")):
            works = [e for e in events if e["name"] == kind]
            self.assertEqual({tracks[e["tid"]] for e in works}, {title})
            steps = {e["args"]["step"] for e in works}
            self.assertEqual(steps, set(range(1, len(steps) + 1)))  # every step has some
            self.assertGreater(len(works), 4 * len(steps))          # about one for each layer
            self.assertTrue(all(e["dur"] > 0 for e in works))

    def test_bits_with_some_experts(self):
        for name in ("qwen3moe", "gpt-oss-mxfp4", "deepseek2-lite", "glm4moe"):
            with self.subTest(name):
                self.check_some(name, 1, 2, 3)

    def test_bits(self):
        for name in ("qwen3moe", "gpt-oss-mxfp4", "deepseek2-lite", "glm4moe"):
            with self.subTest(name):
                self.check(name)

    def test_facts_of_layers_without_experts(self):
        plan = self.save(os.path.join(FOLDER, "deepseek2-lite.gguf"))
        device = plan["facts"]["ranks"][0]["device"]
        kinds = plan["facts"]["kinds"]
        dense, other = kinds[0], kinds[1]
        self.assertIsNone(device["trunks"][dense])
        self.assertEqual(device["trunk_bytes"][dense], device["layer_bytes"][dense])
        self.assertGreater(len(device["trunks"][other]["rows"]), 1)
        self.assertLess(device["trunk_bytes"][other], device["layer_bytes"][other])
        # All layers fit a device of this size without their experts, and few do with them.
        trunks = sum(device["trunk_bytes"][k] for k in kinds) + 64 * sum(device["token_bytes"][k] for k in kinds)
        rest = sum(device[what] for what in ("stage_bytes", "head_bytes", "tail_bytes"))
        device["memory_bytes"] = int((trunks + rest + device["layer_bytes"][other]) * 64 / 63) + 1000
        for kind in (other, dense):
            for rank, factor in ((plan["facts"]["ranks"][0]["layers"], 1), (device["layers"], 0.1),
                                 (device["trunks"], 0.2)):
                if rank[kind]:
                    rank[kind]["seconds"] = [1e-3 * factor * n for n in rank[kind]["rows"]]
        device["crossing"]["seconds"] = [0] * len(device["crossing"]["rows"])
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(plan, f)
        again = os.path.join(self.folder.name, "again.json")
        error = self.run_it("plan", os.path.join(FOLDER, "deepseek2-lite.gguf"), "--backend", "test", "--ctx", "64",
                            "--facts", self.path, "--save", again)
        with open(again, encoding="utf-8") as f:
            stage = json.load(f)["stages"][0]
        n_layers = len(kinds)
        self.assertEqual(stage["device_layers"], n_layers, error)
        self.assertTrue(n_layers - 4 <= stage["host_experts"] < n_layers, stage)

    def test_plan_files_that_cannot_be(self):
        model = os.path.join(FOLDER, "qwen3moe.gguf")
        plan = self.save(model, "--measure", "off")
        plan["stages"][0].update({"device_layers": 2, "host_experts": 3})
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(plan, f)
        error = self.run_it("plan", model, "--plan", self.path, "--backend", "test", status=1)
        self.assertIn("stages[0].host_experts is 3, allowed is 0 to 2", error)
        for host, n, status, words in ((0, 1, 1, "stages[0].device_experts is 1, allowed is 0 to 0"),
                                       (2, 4097, 1, "stages[0].device_experts is 4097, allowed is 0 to 4096"),
                                       (2, 9, 1, "stages[0].device_experts is 9, but layers of this model have 8 experts")):
            plan["stages"][0].update({"device_layers": 2, "host_experts": host, "device_experts": n})
            with open(self.path, "w", encoding="utf-8") as f:
                json.dump(plan, f)
            error = self.run_it("logits", model, "--ids-file", IDS, "-o", os.devnull, "--plan", self.path, "--backend",
                                "test", status=status)
            self.assertIn(words, error)


if __name__ == "__main__":
    unittest.main()
