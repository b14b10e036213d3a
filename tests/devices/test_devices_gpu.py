# SPDX-License-Identifier: Apache-2.0
"""tests/bench/gpu.py, scaled down: all its steps on an emulated GPU, some on the test device; it goes on where it was
stopped, says when bits differ, and packs what it needs. Environment: the programs of the test device."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["MILLRACE_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["MILLRACE_BIN"]).parent.parent
TEST_DEVICE = ("--program", os.environ["MILLRACE_DEVICES_BIN"], "--bench", os.environ["MILLRACE_DEVICES_BENCH"],
               "--backend", "test")
STEPS = {1: 9, 2: 5, 3: 6, 4: 2}  # of each part


class Gpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_gpu(self, *arguments, status=0, **env):
        done = subprocess.run([sys.executable, SOURCE / "tests/bench/gpu.py", "--small", "--models", self.folder, "--results",
                               self.folder / "gpu.json", *arguments], capture_output=True, text=True,
                              env={**os.environ, "MILLRACE_CACHE_DIR": str(self.folder), **env})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, json.loads((self.folder / "gpu.json").read_text())

    def expect_steps(self, steps, *arguments):
        said, results = self.run_gpu(*arguments)
        self.assertIn("0 failed, 0 with other bits", said)
        for part, n in steps.items():
            self.assertEqual(sum(name.startswith(f"{part} ") for name in results), n, sorted(results))
        return results

    def test_other_programs(self):
        """The program and the benchmark that are named run; an emulated GPU runs the other steps."""
        self.expect_steps({4: STEPS[4]}, *TEST_DEVICE, "--part", "4")

    def test_emulated(self):
        product = subprocess.run([BUILD / "bin/bench_device_emulated", "cuda", *"product Q8_0 256 16 1 1".split()],
                                 capture_output=True, text=True, check=True).stdout
        if json.loads(product)["same"] is None:
            self.skipTest("the backend multiplies no matrices")
        results = self.expect_steps(STEPS, "--emulated", "--build", BUILD, "--minutes", "60")  # on busy machines
        self.assertEqual(results["1 digest"]["result"][0]["different"], 0)
        self.assertGreater(results["1 digest"]["result"][0]["parts"], 40)
        self.assertEqual({line["same"] for line in results["1 corners"]["result"]}, {True})
        self.assertEqual({line["same"] for line in results["3 product Q8_0 256 x 64"]["result"]}, {True})
        self.assertTrue(results["1 logits tiny Q8_0"]["result"]["same"])

    def test_stops_goes_on_and_says_what_differs(self):
        wrong = {"TEST_DEVICE": "wrong=matmul"}
        said, _ = self.run_gpu(*TEST_DEVICE, "--part", "3", "--minutes", "0")
        self.assertIn("the time is up before: 3 product Q8_0", said)
        said, _ = self.run_gpu(*TEST_DEVICE, "--part", "3", **wrong, status=1)
        self.assertIn("3 product Q8_0 256 x 64: DIFFERENT BITS", said)
        self.assertIn("3 attention F16 of 64 positions, 1 sequences, 1 rows: done", said)
        self.assertIn("6 steps, 0 failed, 2 with other bits than the CPU", said)
        said, _ = self.run_gpu(*TEST_DEVICE, "--part", "3", status=1)
        self.assertEqual(len(said.splitlines()), 1, said)  # nothing is done again

    def test_failed_steps_are_done_again(self):
        said, _ = self.run_gpu(*TEST_DEVICE[:2], "--bench", "/no/such/program", "--part", "3", status=1)
        self.assertIn("6 steps, 6 failed", said)
        said, _ = self.run_gpu(*TEST_DEVICE, "--part", "3")
        self.assertIn("6 steps, 0 failed, 0 with other bits", said)

    def test_pack(self):
        packed = self.folder / "packed"
        subprocess.run([sys.executable, SOURCE / "tests/bench/gpu.py", "--pack", packed, "--build", BUILD], check=True,
                       capture_output=True)
        self.assertLess(sum(f.stat().st_size for f in packed.rglob("*") if f.is_file()), 48 << 20)
        done = subprocess.run([packed / "bin/millrace", "--version"], capture_output=True, text=True, check=True,
                              env={"LD_LIBRARY_PATH": str(packed / "lib")})
        self.assertIn("backend cuda", done.stdout)
        done = subprocess.run([packed / "bin/bench_device", "cpu", "chain", "2", "8", "1"], capture_output=True, text=True,
                              check=True, env={"LD_LIBRARY_PATH": str(packed / "lib")})
        self.assertTrue(json.loads(done.stdout)["same"])


if __name__ == "__main__":
    unittest.main()
