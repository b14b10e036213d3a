# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: the program, a folder of models, and how a clear error looks."""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import tiny_model

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

BIN = os.environ.get("MILLRACE_BIN", "build/release/bin/millrace")
SOURCE = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
DEMO = os.path.join(os.path.dirname(os.path.abspath(BIN)), "millrace-demo.gguf")
LIMIT_S = 180  # of one command; sanitizer builds on busy machines are slow

needs_demo = unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")


def environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    if "MILLRACE_CPU_ISA" in os.environ:
        env["MILLRACE_CPU_ISA"] = os.environ["MILLRACE_CPU_ISA"]
    env["MILLRACE_MEASURE"] = "off"  # plans do not hang on how busy the machine is
    return {**env, **(extra or {})}


class Case(unittest.TestCase):
    """A folder for each class, with the model tiny.gguf."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-cli-")
        cls.model = tiny_model.make(cls.path("tiny.gguf"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def file(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def run_bin(self, *args, env=None, stdin=b"", stdout=subprocess.PIPE):
        """Runs millrace to its end; ended by a signal counts as a failure of the test."""
        begin = time.monotonic()
        done = subprocess.run([BIN, *args], input=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment(env),
                              timeout=LIMIT_S, check=False)
        done.seconds = time.monotonic() - begin
        self.assertGreaterEqual(done.returncode, 0, (args, done.stderr))
        return done

    def good(self, *args, **kwargs):
        """Standard output, as bytes, of a command that succeeds."""
        done = self.run_bin(*args, **kwargs)
        self.assertEqual(done.returncode, 0, (args, done.stderr))
        return done.stdout

    def bad(self, status, words, *args, **kwargs):
        """The command ends with status, and says why in one line that holds all words."""
        if len(args) > 1:
            args = (*args, "--log-level", "error")
        done = self.run_bin(*args, **kwargs)
        text = done.stderr.decode()
        lines = text.splitlines()
        self.assertEqual(done.returncode, status, (args, text))
        self.assertEqual(len(lines), 1, (args, text))
        self.assertTrue(lines[0].startswith("millrace: error: "), text)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, lines[0])
        return done
