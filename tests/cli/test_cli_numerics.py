#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`--numerics` and `--backend`: fast numerics are close to the exact ones and need to be asked for."""
import array
import unittest

import cli
import tiny_model

BLAS = ["--numerics", "fast", "--backend", "blas"]


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    return values


def nmse(got, want):
    got, want = floats(got), floats(want)
    return sum((g - w) ** 2 for g, w in zip(got, want)) / sum(w * w for w in want)


class Numerics(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = cls.path("ids.txt")
        with open(cls.ids, "w", encoding="ascii") as f:
            f.write(" ".join(str(i * 7 % tiny_model.VOCAB) for i in range(90)))

    def has_blas(self):
        line = [s for s in self.good("--version").decode().splitlines() if s.startswith("backend blas: ")]
        self.assertEqual(len(line), 1)
        return "not built in" not in line[0]

    def logits(self, *args, env=None):
        out = self.path("out.f32")
        self.good("logits", self.model, "--ids-file", self.ids, "-o", out, *args, env=env)
        with open(out, "rb") as f:
            return f.read()

    def test_blas_for_every_product(self):
        exact = self.logits()
        if not self.has_blas():
            self.bad(1, "MILLRACE_BLAS=ON", "logits", self.model, "--ids-file", self.ids, "-o", self.path("x"), *BLAS)
            self.assertEqual(exact, self.logits("--numerics", "fast"))
            return
        for args in ([], ["--stages", "2"], ["--stages", "3", "--chunk", "16"], ["--threads", "1", "--blas-threads", "3"],
                     ["--threads", "3", "--blas-threads", "1"]):
            fast = self.logits(*BLAS, *args)
            self.assertEqual(len(fast), len(exact))
            self.assertLess(nmse(fast, exact), 1e-6, args)

    def test_blas_is_asked(self):
        done = self.run_bin("logits", self.model, "--ids-file", self.ids, "-o", self.path("x"), *BLAS,
                            env={"MILLRACE_GRAPH_DEBUG": "splits"})
        self.assertEqual(b"on BLAS (" in done.stderr, self.has_blas())

    def test_by_measurement(self):
        exact = self.logits()
        for args in ([], ["--stages", "2"], ["--no-repack"]):
            self.assertLess(nmse(self.logits("--numerics", "fast", *args), exact), 1e-6, args)
        done = self.run_bin("logits", self.model, "--ids-file", self.ids, "-o", self.path("x"), "--numerics", "fast",
                            "--log-level", "debug")
        self.assertEqual(b"F32 products of" in done.stderr, self.has_blas(), done.stderr)

    def test_the_cpu_is_exact(self):
        exact = self.logits()
        self.assertEqual(exact, self.logits("--numerics", "fast", "--backend", "cpu"))
        self.assertEqual(exact, self.logits("--backend", "cpu"))

    def test_contradiction(self):
        self.bad(2, "--numerics fast", "logits", self.model, "--ids-file", self.ids, "-o", self.path("x"), "--backend", "blas")
        self.bad(2, "--numerics fast", "plan", self.model, "--backend", "blas", "--numerics", "exact")

    def test_unknown_backends(self):
        for name in ("gpu", "test", "au"):
            self.bad(2, '"%s" is not one of auto, cpu, cuda, blas' % name, "plan", self.model, "--backend", name)

    def test_library_of_the_users_choice(self):
        if not self.has_blas():
            self.skipTest("built without BLAS")
        env = {"MILLRACE_BLAS_LIBRARY": "/nowhere/libblas.so"}
        done = self.run_bin("plan", self.model, *BLAS, env=env)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"/nowhere/libblas.so", done.stderr)
        self.assertIn(b"MILLRACE_BLAS_LIBRARY", done.stderr)
        self.assertEqual(self.logits(), self.logits("--numerics", "fast", env=env))

    def test_what_is_planned_is_enough(self):
        """A budget is too small for the plan, or the run succeeds in it: nothing is found missing later."""
        n_good = 0
        for args in ([], ["--stages", "2"], ["--no-repack"], ["--backend", "blas"]):
            for mib in range(6, 32, 2):
                done = self.run_bin("logits", self.model, "--ids-file", self.ids, "-o", self.path("x"), "--numerics",
                                    "fast", *args, "--mem", f"{mib}M")
                n_good += done.returncode == 0
                if done.returncode:
                    self.assertIn(b"not enough memory: weights need", done.stderr, (mib, args))
        self.assertGreater(n_good, 10)

    def test_plan(self):
        if self.has_blas():
            self.assertIn(b"matrices in the model file", self.good("plan", self.model, *BLAS))


if __name__ == "__main__":
    unittest.main()
