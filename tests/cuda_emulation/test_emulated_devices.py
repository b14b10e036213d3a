#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What --version, `inspect` and `plan` say of the GPUs of a machine, and of matrices that no GPU can multiply."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests", "cli"))
import tiny_model  # pylint: disable=wrong-import-position

BIN = os.path.abspath(os.environ["MILLRACE_BIN"])
EMULATED_BIN = os.path.abspath(os.environ["MILLRACE_EMULATED_BIN"])
Q5_1, BLOCK_BYTES = 7, 24  # a type without a kernel for GPUs, and the bytes of 32 numbers
GPU = "device 0: emulated GPU, compute capability 9.0, 2.0 GiB of memory, driver for CUDA 12.4"


class Mixed(tiny_model.Gguf):
    """A model with matrices of Q5_1: ffn_down of every layer."""
    def tensor(self, name, shape, kind, data):
        if name.endswith("ffn_down.weight"):
            kind, data = Q5_1, bytes(shape[0] // 32 * BLOCK_BYTES * shape[1])
        super().tensor(name, shape, kind, data)


class Devices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        cls.addClassCleanup(cls.folder.cleanup)
        cls.plain = tiny_model.make(os.path.join(cls.folder.name, "plain.gguf"))
        with unittest.mock.patch.object(tiny_model, "Gguf", Mixed):
            cls.mixed = tiny_model.make(os.path.join(cls.folder.name, "mixed.gguf"))

    def run_it(self, *args, cuda="", program=EMULATED_BIN):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
        env.update({"MILLRACE_CACHE_DIR": self.folder.name, "EMULATED_CUDA": cuda})
        done = subprocess.run([program, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_version(self):
        self.assertIn(f"\n  {GPU}\n", self.run_it("--version"))
        two = self.run_it("--version", cuda="n_devices=2 capability=75 version=13000")
        for device in range(2):
            self.assertIn(f"  device {device}: emulated GPU, compute capability 7.5, 2.0 GiB of memory, driver for "
                          "CUDA 13.0; not used: ", two)
        self.assertIn("the kernels need 8.0 or newer", two)
        self.assertIn("  no device is used: there is no CUDA device 0, devices: 0; hint: ",
                      self.run_it("--version", cuda="no_device"))
        self.assertIn("  no device is used: the NVIDIA driver is for CUDA 12.0; hint: install",
                      self.run_it("--version", cuda="version=12000"))
        self.assertIn("  no device is used: CUDA: count the devices: CUDA_ERROR_UNKNOWN",
                      self.run_it("--version", cuda="fail=device_get_count fail_at=1"))

    def test_product(self):
        """The program without the emulation says what it found, on any machine."""
        self.assertRegex(self.run_it("--version", program=BIN),
                         r"backend cuda: .*( \(not built in\)\n|\n  (device 0: |no device is used: ).+\n)")
        self.assertRegex(self.run_it("inspect", self.plain, program=BIN),
                         r"devices of this machine\n  cuda: (not built in; hint: |device 0: |no device is used: ).+\n")

    def test_inspect(self):
        text = self.run_it("inspect", self.plain)
        self.assertIn(f"devices of this machine\n  cuda: {GPU}\n", text)
        self.assertNotIn("on the CPU", text)
        left = "  cuda: 3 matrices of type Q5_1 (4.5 KiB, from blk.0.ffn_down.weight on) stay on the CPU: devices of " \
               "the backend 'cuda' have no kernel for this type\n"
        self.assertIn(left, self.run_it("inspect", self.mixed))
        self.assertNotIn(left, self.run_it("inspect", self.mixed, cuda="no_device"))
        self.assertNotIn(left, self.run_it("inspect", self.mixed, cuda="capability=75"))
        device = json.loads(self.run_it("inspect", self.plain, "--json"))["devices"][0]
        self.assertEqual((device["device"], device["name"], device["memory_bytes"]), (0, "emulated GPU", 2 << 30))
        device = json.loads(self.run_it("inspect", self.plain, "--json", cuda="no_device"))["devices"][0]
        self.assertIn("there is no CUDA device", device["problem"])

    def test_plan(self):
        """One measurement serves all plans."""
        saved = os.path.join(self.folder.name, "plan.json")
        cuda = ["--backend", "cuda", "--numerics", "fast"]  # fast numerics take GPUs, whose kernels are exact
        text = self.run_it("plan", self.mixed, "--save", saved, *cuda)
        self.assertIn("stage 0: layers 0-2 on 'CUDA device 0, emulated GPU' (", text)
        self.assertIn("3 matrices of type Q5_1 (4.5 KiB, from blk.0.ffn_down.weight on) stay on the CPU: ", text)
        plan = json.loads(self.run_it("plan", self.mixed, "--json", "--facts", saved, *cuda))
        self.assertEqual(plan["plan"][0]["device"]["layers"], 3)
        self.assertEqual(plan["without_kernel"], [{"backend": "cuda", "type": "Q5_1", "tensors": 3, "bytes": 4608}])
        none = "stage 0: no layer on 'CUDA device 0, emulated GPU': "
        text = self.run_it("plan", self.mixed, "--facts", saved, "--gpu-layers", "0", *cuda)
        self.assertIn(f"{none}--gpu-layers is 0\n", text)
        self.assertIn(f"{none}the CPU is faster by measured times\n", self.run_it("plan", self.mixed, "--facts", saved))
        with open(saved, encoding="utf-8") as f:
            facts = json.load(f)
        facts["facts"]["ranks"][0]["device"]["memory_bytes"] = 100000
        with open(saved, "w", encoding="utf-8") as f:
            json.dump(facts, f)
        self.assertRegex(self.run_it("plan", self.mixed, "--facts", saved, *cuda),
                         f"{none}one takes [0-9.]+ [KM]iB of its 97.7 KiB, a part of which must stay free\n")
        text = self.run_it("plan", self.mixed, "--backend", "cpu", "--measure", "off")
        self.assertNotIn("GPU", text)
        self.assertNotIn("stay on the CPU", text)


if __name__ == "__main__":
    unittest.main()
