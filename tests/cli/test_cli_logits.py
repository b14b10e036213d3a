#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace logits`: shapes, positions, and a file that appears only when it is whole."""
import os
import signal
import stat
import subprocess
import time
import unittest

import cli
import tiny_model

ROW = 4 * tiny_model.VOCAB


class Logits(cli.Case):
    def logits(self, ids, *args):
        out = self.path("out.f32")
        self.good("logits", self.model, "--ids-file", self.file("ids.txt", ids), "-o", out, *args)
        with open(out, "rb") as f:
            return f.read()

    def test_shape_and_bits(self):
        ids = " ".join(str(i * 7 % tiny_model.VOCAB) for i in range(100))
        whole = self.logits(ids)
        self.assertEqual(len(whole), 100 * ROW)
        for args in (["--chunk", "1"], ["--chunk", "7"], ["--chunk", "4096"], ["--stages", "3"], ["--cut", "1"],
                     ["--threads", "3"], ["--no-repack"], ["--no-repack", "--stages", "2", "--threads", "2"]):
            self.assertEqual(whole, self.logits(ids, *args), args)
        self.assertNotEqual(whole, self.logits(ids, "--kv-type", "f32"))
        for last in (1, 7, 100):
            self.assertEqual(whole[-last * ROW:], self.logits(ids, "--last", str(last), "--chunk", "16"))

    def test_ids_are_used_as_they_are(self):
        self.assertEqual(len(self.logits("5")), ROW)
        self.assertEqual(self.logits("5 6\n\t7 \r\n"), self.logits("5 6 7"))
        self.assertEqual(self.logits("5 6"), self.logits("005 6 7")[: 2 * ROW])

    def test_standard_input_and_output(self):
        whole = self.logits("5 6")
        out = self.good("logits", self.model, "--ids-file", "-", "-o", "/dev/stdout", stdin=b"5 6")
        self.assertEqual(out, whole)


class Files(cli.Case):
    def run_logits(self, out, *args):
        ids = self.file("ids.txt", "1 2 3")
        return self.good("logits", self.model, "--ids-file", ids, "-o", out, *args)

    def files(self):
        return sorted(f for f in os.listdir(self.folder) if f.startswith("out"))

    def test_new_file(self):
        mask = os.umask(0o027)
        try:
            self.run_logits(self.path("out"))
        finally:
            os.umask(mask)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("out")).st_mode), 0o640)
        self.assertEqual(self.files(), ["out"])
        os.unlink(self.path("out"))

    def test_replaced_file(self):
        out = self.file("out", "old")
        os.chmod(out, 0o600)
        ids = self.file("bad.txt", "1 x")
        self.bad(1, "x", "logits", self.model, "--ids-file", ids, "-o", out)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), b"old")
        self.run_logits(out)
        self.assertEqual(os.stat(out).st_size, 3 * ROW)
        self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), 0o600)
        os.unlink(out)

    def test_symbolic_link(self):
        out, link = self.file("out", "old"), self.path("out-link")
        os.symlink("out", link)
        self.run_logits(link)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.stat(out).st_size, 3 * ROW)
        self.assertEqual(self.files(), ["out", "out-link"])
        os.unlink(out)
        os.unlink(link)

    def test_ended_by_a_signal(self):
        model = tiny_model.make(self.path("long.gguf"), context=1 << 17)
        ids = self.file("many.txt", "5 6 7 8 " * 25000)
        for number in (signal.SIGTERM, signal.SIGINT):
            args = ["--ids-file", ids, "-o", self.path("out"), "--ctx", "100000", "--chunk", "4"]
            p = subprocess.Popen([cli.BIN, "logits", model, *args], stderr=subprocess.PIPE, env=cli.environment())
            deadline = time.monotonic() + cli.LIMIT_S
            while not self.files() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertTrue(self.files())
            p.send_signal(number)
            # Until the command waits for signals itself, the signal ends it, once the file is gone.
            self.assertIn(p.wait(timeout=cli.LIMIT_S), (128 + number, -number))
            p.stderr.close()
            self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()
