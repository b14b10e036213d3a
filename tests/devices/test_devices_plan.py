#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans with layers on a device: what is measured, what a plan says, and what runs."""
import json
import os
import subprocess
import tempfile
import unittest

from hosts import program_path

BIN = os.path.abspath(os.environ["MILLRACE_DEVICES_BIN"])
DEMO = os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf")
LIMIT_S = 300  # of one command; sanitizer builds on busy machines are slow
GENERATE = ["generate", DEMO, "-p", "Once upon a time", "-n", "12", "--temp", "0", "--ignore-eos", "--json"]


class Plan(unittest.TestCase):
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
        return done.stdout.decode(), done.stderr.decode()

    def plan(self, *args, device="", backend="test"):
        return self.run_it("plan", DEMO, "--backend", backend, *args, device=device)[0]

    def stage(self, *args):
        return json.loads(self.plan("--json", *args))["plan"][0]

    def generate(self, *args, device="", status=0):
        output, error = self.run_it(*GENERATE, *args, device=device, status=status)
        return json.loads(output)["sequences"][0]["ids"] if status == 0 else error

    def saved(self, device="", backend="test"):
        self.plan("--save", self.path, device=device, backend=backend)
        with open(self.path, encoding="utf-8") as f:
            return json.load(f)

    def write(self, plan):
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(plan, f)

    def test_facts_of_the_device(self):
        """The device is slower than the CPU, so it gets no layers unless it is named; its times and bytes are known."""
        slow = "memory_bytes=100000000 node_ns=3000000"
        self.assertEqual(self.saved(slow)["stages"][0]["device_layers"], 8)
        plan = self.saved(slow, backend="auto")
        self.assertNotIn("device_layers", plan["stages"][0])
        device = plan["facts"]["ranks"][0]["device"]
        self.assertEqual(device["name"], "test device")
        self.assertEqual(device["memory_bytes"], 100000000)
        self.assertGreater(device["layer_bytes"][0], 1000)
        self.assertGreaterEqual(device["crossing"]["seconds"][0], 0)
        self.assertGreaterEqual(len(device["layers"][0]["rows"]), 1)
        self.assertIn("stage 0: no layer on 'test device': the file of --plan has none there\n",
                      self.plan("--plan", self.path))

    def test_a_faster_device(self):
        """As many layers as fit, by the facts of a file."""
        plan = self.saved("memory_bytes=100000000")
        rank = plan["facts"]["ranks"][0]
        device, n_layers = rank["device"], plan["model"]["layers"]
        faster = [{"rows": c["rows"], "seconds": [s / 10 for s in c["seconds"]]} for c in rank["layers"]]
        device.update({"layers": faster, "output": rank["output"], "position_s": rank["position_s"],
                       "crossing": {"rows": [1], "seconds": [0]}})
        self.write(plan)
        stage = self.stage("--facts", self.path)
        self.assertEqual(stage["device"]["layers"], n_layers)
        whole = stage["device"]["bytes"]
        self.assertLess(whole, 100000000)
        layers = []
        for share in (0.4, 0.6, 0.8):
            device["memory_bytes"] = int(whole * share)
            self.write(plan)
            layers.append(self.stage("--facts", self.path).get("device_layers", 0))
        self.assertEqual(layers, sorted(layers))
        self.assertTrue(0 < layers[2] < n_layers, layers)
        self.assertRegex(self.plan("--facts", self.path),
                         rf"stage 0: layers 0-{layers[2] - 1} on 'test device' \(.* of .*\), "
                         rf"layers {layers[2]}-{n_layers - 1} on the CPU")

    def test_runs_with_layers_on_the_device(self):
        """The ids of the CPU alone. A device without memory shows that it is used."""
        want = self.generate("--backend", "cpu")
        plan = self.saved()
        n_layers = plan["model"]["layers"]
        for n in (0, 3, n_layers):
            plan["stages"][0]["device_layers"] = n
            self.write(plan)
            self.assertEqual(self.generate("--backend", "test", "--plan", self.path), want)
        self.assertIn(f"stage 0: layers 0-{n_layers - 1} on 'test device' (", self.plan("--plan", self.path))
        error = self.generate("--backend", "test", "--plan", self.path, device="memory_bytes=1000", status=1)
        self.assertIn("test device", error)
        error = self.generate("--backend", "cpu", "--plan", self.path, status=1)
        self.assertIn(f"the plan puts {n_layers} layers on a device, and this rank has none", error)
        plan["stages"][0]["device_layers"] = n_layers + 1
        self.write(plan)
        error = self.generate("--backend", "test", "--plan", self.path, status=1)
        self.assertIn(f"stages[0].device_layers is {n_layers + 1}, allowed is 0 to {n_layers}", error)

    def test_how_much_of_the_device(self):
        """--gpu-layers and --gpu-mem bound what the device of a stage holds."""
        plan = self.saved()
        whole, n_layers = self.stage()["device"]["bytes"], plan["model"]["layers"]
        for n in (0, 3, n_layers + 5):
            stage = self.stage("--facts", self.path, "--gpu-layers", str(n))
            self.assertEqual(stage.get("device_layers", 0), min(n, n_layers))
        self.assertNotIn("on 'test device'", self.plan("--gpu-layers", "auto", backend="cpu"))
        few = self.stage("--gpu-mem", str(int(whole * 0.7)))
        self.assertTrue(0 < few["device_layers"] < n_layers, few)
        self.assertLessEqual(few["device"]["bytes"], whole * 0.7)
        error = self.run_it("plan", DEMO, "--gpu-layers", "3x", status=2)[1]
        self.assertIn("--gpu-layers: \"3x\" is neither a number nor auto", error)

    def test_several_devices(self):
        """The stages of a host take its devices in turn, and share those that more than one of them takes."""
        want = self.generate("--backend", "cpu")
        options = ["--backend", "test", "--stages", "3", "--gpu-layers", "2"]
        output, error = self.run_it(*GENERATE, *options, device="devices=2 memory_bytes=400000000")
        self.assertEqual(json.loads(output)["sequences"][0]["ids"], want)
        for stage, name in enumerate(("test device 0", "test device 1", "test device 0")):
            self.assertRegex(error, rf"stage {stage}: layers [0-9]+-[0-9]+ on '{name}' ")
        self.assertIn("2 stages share 'test device 0', so each gets at most 190.7 MiB of its memory", error)
        self.assertNotIn("share 'test device 1'", error)
        output, error = self.run_it(*GENERATE, *options, "--device", "1", device="devices=2 memory_bytes=600000000")
        self.assertIn("3 stages share 'test device 1', so each gets at most 190.7 MiB of its memory", error)
        self.assertNotIn("test device 0", error)
        error = self.generate(*options, "--device", "2", device="devices=2", status=2)
        self.assertIn("--device 2: the backend 'test' has 2 here, counted from 0", error)


    def n_stages(self, *args, device="devices=2", backend="test"):
        return len(json.loads(self.plan("--json", *args, device=device, backend=backend))["plan"])

    def test_a_stage_for_each_device(self):
        self.assertEqual(self.n_stages(), 2)
        self.assertEqual(self.n_stages("--device", "1"), 1)
        self.assertEqual(self.n_stages("--gpu-layers", "0"), 1)
        self.assertEqual(self.n_stages(device="devices=2 node_ns=3000000", backend="auto"), 1)  # slower than the CPU


if __name__ == "__main__":
    unittest.main()
