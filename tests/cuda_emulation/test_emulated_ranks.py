#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stages on the CPU, on emulated GPUs and on both, over mpirun: the logits of the CPU alone."""
import unittest

from emulated import EMULATED_BIN, LogitsCase, needs_ranks


@needs_ranks
class Ranks(LogitsCase):
    def check_plan(self, *stages, chunk, mapped=()):
        self.check_ranks(len(stages), *self.args, "--backend", "cuda", "--chunk", str(chunk), *mapped,
                         *self.write_plan(*stages), program=[EMULATED_BIN])

    def test_two_ranks(self):
        self.check_plan((3, 0), (5, 5), chunk=7)
        self.check_plan((4, 4), (4, 1), chunk=1)

    def test_four_ranks(self):
        self.check_plan((2, 2), (2, 0), (3, 2), (1, 1), chunk=5)
        self.check_plan((1, 0), (1, 1), (1, 0), (5, 3), chunk=160, mapped=["--no-repack"])

    def test_ranks_without_a_device(self):
        """Each rank takes a device where there is one."""
        args = [*self.args, "--backend", "auto", "--chunk", "9", *self.write_plan((4, 4), (2, 0), (2, 2))]
        ranks = []
        for cuda in ("n_devices=1", "no_device", "n_devices=2"):
            ranks += [*([":"] if ranks else []), "-n", "1", "-x", "EMULATED_CUDA=" + cuda, EMULATED_BIN, *args]
        self.check_ranks(None, program=ranks)

    def test_a_plan_for_a_rank_without_a_device_is_refused(self):
        with self.assertRaises(AssertionError) as failure:
            self.check_ranks(2, *self.args, "--backend", "cpu", *self.write_plan((4, 4), (4, 0)),
                             program=[EMULATED_BIN])
        self.assertIn("on a device, and this rank has none for layers", str(failure.exception))


if __name__ == "__main__":
    unittest.main()
