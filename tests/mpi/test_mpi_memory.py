#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model whose file is larger than the memory of each rank runs cut over ranks: every one has a control group of its own,
repacks its matrices in it, and gives the bits of one process. Argument: the class of tests to run. Exit status 77: skipped,
where no control groups can be made."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(TESTS, "support"))
from control_group import Group  # noqa: E402 (after the path)
from hosts import program_path, run_ranks, run_tests  # noqa: E402

MIB = 1 << 20
N_RANKS, LIMIT = 4, 64 * MIB
PROGRAM = 24 * MIB  # of a rank beside what the plan counts: code, MPI, its part of shared memory, pages of the file
SHAPE = ["--layers", "24", "--width", "512", "--ff", "2048", "--heads", "8", "--vocab", "4096", "--context", "512"]
ENTER = 'eval group=\\$GROUP_$OMPI_COMM_WORLD_RANK; echo $$ > "$group/cgroup.procs" && exec "$@"'


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-memory-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.groups = []
        for _ in range(N_RANKS):
            group = Group(LIMIT)
            cls.addClassCleanup(group.close)
            cls.groups.append(group)

    def setUp(self):
        if not all(group.path for group in self.groups):
            self.skipTest("no control group with a memory limit can be made here")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_a_file_larger_than_the_memory_of_each_rank(self):
        model = self.path("large.gguf")
        subprocess.run([sys.executable, os.path.join(TESTS, "bench", "make_random_model.py"), model, *SHAPE],
                       check=True, stdout=subprocess.DEVNULL)
        self.assertGreater(os.path.getsize(model), LIMIT)
        with open(self.path("ids"), "w", encoding="ascii") as f:
            f.write(" ".join(str(7 * i % 4096) for i in range(40)))
        args = ["logits", model, "--ids-file", self.path("ids"), "--ctx", "64"]
        subprocess.run([program_path(), *args, "-o", self.path("want")], check=True, stderr=subprocess.DEVNULL)
        plan = [program_path(), "plan", model, "--ctx", "64", "--stages", str(N_RANKS), "--measure", "off", "--json"]
        plan = json.loads(subprocess.run(plan, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        env = {"GROUP_%d" % i: group.path for i, group in enumerate(self.groups)}
        done = run_ranks(N_RANKS, [*args, "-o", self.path("got"), "--threads", "1"], env=env,
                         program=["sh", "-c", ENTER, "sh", program_path()])
        self.assertEqual((done.status, done.left), (0, []), str(done))
        self.assertNotIn(b"matrices stay in the model file", done.stderr)
        with open(self.path("want"), "rb") as want, open(self.path("got"), "rb") as got:
            self.assertTrue(want.read() == got.read())
        for stage, group in zip(plan["plan"], self.groups):
            planned = stage["weight_bytes"] + stage["kv_bytes"] + stage["buffer_bytes"]
            self.assertLess(group.peak(), planned + PROGRAM)


if __name__ == "__main__":
    sys.exit(run_tests())
