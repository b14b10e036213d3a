#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device that says it is exact, but computes other bits than the CPU: whole commands refuse it, and name the device
and the op."""
import os
import subprocess
import unittest

from hosts import program_path, run_ranks

DEVICES_BIN = os.path.abspath(os.environ["MILLRACE_DEVICES_BIN"])
DEMO = os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf")
GENERATE = ["generate", DEMO, "-p", "Once", "-n", "2", "--backend", "test", "--log-level", "error"]
LIMIT_S = 180  # of one command
REFUSAL = "device 'test device' computes other bits than the CPU in: "


class WrongBits(unittest.TestCase):
    def test_one_process(self):
        cases = (("attention", "attention F16, attention Q8_0, attention F32; hint: "), ("rms_norm", "rms_norm; hint: "))
        for op, parts in cases:
            env = dict(os.environ, MILLRACE_MEASURE="off", TEST_DEVICE="wrong=" + op)
            done = subprocess.run([DEVICES_BIN, *GENERATE], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=LIMIT_S, check=False, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertTrue(done.stderr.startswith("millrace: error: " + REFUSAL + parts), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    @unittest.skipUnless(os.environ.get("MILLRACE_TEST_RANKS"), "no ranks over mpirun in this build")
    def test_ranks(self):
        done = run_ranks(2, GENERATE, program=[DEVICES_BIN], timeout=LIMIT_S, env={"TEST_DEVICE": "wrong=matmul"})
        self.assertEqual((done.stdout, done.left), (b"", []), str(done))
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertRegex(done.stderr.decode(), r"rank 0 on \S+: " + REFUSAL + "matmul F32, .* and 21 more; hint: ")


if __name__ == "__main__":
    unittest.main()
