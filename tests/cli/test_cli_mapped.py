#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model file that is larger than the memory of its control group runs, and gives the same bits. It needs the right to
make control groups (version 1 or 2), and is skipped where that is missing."""
import os
import subprocess
import sys
import unittest

import cli

sys.path.insert(0, os.path.join(cli.SOURCE, "tests", "support"))
from control_group import Group, write  # noqa: E402 (after the path)

MIB = 1 << 20
LIMIT = 40 * MIB
SHAPE = ["--layers", "20", "--width", "512", "--ff", "2048", "--heads", "8", "--vocab", "4096", "--context", "512"]
MAKE = os.path.join(cli.SOURCE, "tests", "bench", "make_random_model.py")


class Mapped(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.group = Group(LIMIT)
        cls.addClassCleanup(cls.group.close)

    def setUp(self):
        if not self.group.path:
            self.skipTest("no control group with a memory limit can be made here")

    def logits(self, name, *args, limited=False):
        """The logits of some ids, and what was said on standard error."""
        out = self.path(name)
        enter = (lambda: write("0", self.group.path, "cgroup.procs")) if limited else None
        done = subprocess.run([cli.BIN, "logits", self.path("large.gguf"), "--ids-file", self.path("ids"), "-o", out,
                               "--ctx", "64", "--chunk", "4", *args], capture_output=True, env=cli.environment(),
                              preexec_fn=enter, timeout=cli.LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, (args, done.stderr))
        with open(out, "rb") as f:
            return f.read(), done.stderr.decode()

    def forget_pages(self):
        """Whoever reads the file next is charged for its pages."""
        fd = os.open(self.path("large.gguf"), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def test_a_file_larger_than_the_memory(self):
        subprocess.run([sys.executable, MAKE, self.path("large.gguf"), *SHAPE], check=True, stdout=subprocess.DEVNULL)
        self.assertGreater(os.path.getsize(self.path("large.gguf")), 2 * LIMIT)
        self.file("ids", " ".join(str(7 * i % 4096) for i in range(12)))
        want, said = self.logits("want")
        self.assertNotIn("stay in the model file", said)
        for args in (["--threads", "2"], ["--threads", "1", "--stages", "2"]):
            self.forget_pages()
            got, said = self.logits("got", *args, limited=True)
            self.assertIn("matrices stay in the model file", said)
            self.assertEqual(got, want, args)
        self.assertGreater(self.group.reached(), 0)

    def test_less_memory_than_all_sequences_could_take(self):
        """40 sequences could have 80 MiB of keys and values; they share what there is, and all come to an end."""
        args = [arg for i in range(40) for arg in ("-p", f"One day number {i}")]
        args = ["generate", "--demo", *args, "-n", "480", "--stop", ".", "--seed", "1", "--threads", "1"]
        texts = []
        for limited in (False, True):
            enter = (lambda: write("0", self.group.path, "cgroup.procs")) if limited else None
            done = subprocess.run([cli.BIN, *args], capture_output=True, env=cli.environment(), preexec_fn=enter,
                                  timeout=cli.LIMIT_S, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(b"the KV cache has room for" in done.stderr, limited, done.stderr)
            self.assertNotIn(b"matrices stay", done.stderr)
            texts.append(done.stdout)
        self.assertEqual(texts[0], texts[1])


if __name__ == "__main__":
    unittest.main()
