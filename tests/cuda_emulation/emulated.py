# SPDX-License-Identifier: Apache-2.0
"""What tests of millrace_emulated share: logits of a model by plans that put layers on emulated GPUs. A plan file says
itself which layers are on a device, so that nothing is measured."""
import json
import os
import subprocess
import tempfile
import unittest

from hosts import program_path, run_ranks

BIN = program_path()
EMULATED_BIN = os.path.abspath(os.environ["MILLRACE_EMULATED_BIN"])
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
LIMIT_S = 500  # of one command; sanitizer builds on busy machines are slow
needs_ranks = unittest.skipUnless(os.environ.get("MILLRACE_TEST_RANKS"), "no ranks over mpirun in this build")


def environment(cuda=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
    return {**env, "MILLRACE_MEASURE": "off", "EMULATED_CUDA": cuda}


class LogitsCase(unittest.TestCase):
    """The logits of `ids` in the model, by the CPU alone and by plans."""
    model = DEMO
    ids = range(3, 27)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        with open(cls.path("ids"), "w", encoding="ascii") as f:
            f.write(" ".join(map(str, cls.ids)))
        cls.args = ["logits", cls.model, "--ids-file", cls.path("ids"), "-o", cls.path("out"), "-t", "1"]
        cls.run_bin(BIN, "plan", cls.model, "--save", cls.path("plan"))
        cls.run_bin(BIN, *cls.args)
        cls.want = cls.take_logits()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def run_bin(cls, program, *args, cuda=""):
        done = subprocess.run([program, *args], env=environment(cuda), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr.decode(errors="replace"))
        return done.stderr

    @classmethod
    def take_logits(cls):
        with open(cls.path("out"), "rb") as f:
            data = f.read()
        os.unlink(f.name)
        return data

    def write_plan(self, *stages):
        """stages: layers, and how many of them are on the device of the rank."""
        with open(self.path("plan"), encoding="utf-8") as f:
            plan = json.load(f)
        plan.pop("facts", None)
        plan["stages"], first = [], 0
        for rank, (n_layers, n_on_device) in enumerate(stages):
            plan["stages"].append({"rank": rank, "first_layer": first, "last_layer": first + n_layers - 1,
                                   **({"device_layers": n_on_device} if n_on_device else {})})
            first += n_layers
        self.assertEqual(first, plan["model"]["layers"])
        name = self.path("edited")
        with open(name, "w", encoding="utf-8") as f:
            json.dump(plan, f)
        return ["--plan", name]

    def check_logits(self, said):
        self.assertTrue(self.take_logits() == self.want, said)

    def check_ranks(self, n, *args, env=None, **kwargs):
        """Runs as ranks, by mpirun. n: None if kwargs say how many there are. Returns what the ranks said."""
        done = run_ranks(n, args, timeout=LIMIT_S, env={**environment("n_devices=2"), **(env or {})}, **kwargs)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        self.check_logits(str(done))
        return done.stderr.decode(errors="replace")
