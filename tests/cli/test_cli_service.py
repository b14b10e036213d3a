#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace.service as systemd reads it, for one machine and with its lines for a cluster."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BIN = os.path.abspath(os.environ.get("MILLRACE_BIN", "build/release/bin/millrace"))


@unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
class Unit(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(SOURCE, "deploy", "millrace.service"), encoding="utf-8") as f:
            self.text = f.read()

    def complaints(self, text):
        """What systemd says of a unit, with programs and a user that are there."""
        text = text.replace("/usr/local/bin/millrace-mpirun", os.path.join(SOURCE, "deploy", "millrace-mpirun"))
        text = text.replace("/usr/local/bin/millrace", BIN).replace("User=millrace", "User=root")
        with tempfile.TemporaryDirectory(prefix="millrace-unit-") as folder:
            path = os.path.join(folder, "millrace.service")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=120, check=False)
        return [line for line in done.stdout.decode().splitlines() if "millrace" in line]

    def test_one_machine(self):
        self.assertEqual(self.complaints(self.text), [])

    def test_a_cluster(self):
        text = re.sub("^ExecStart=.*\n", "", self.text, flags=re.M)
        text = re.sub("^#(NotifyAccess=|ExecStart=)", r"\1", text, flags=re.M)
        self.assertIn("\nExecStart=/usr/local/bin/millrace-mpirun", text)
        self.assertEqual(self.complaints(text), [])

    def test_a_broken_unit_is_seen(self):
        self.assertNotEqual(self.complaints(self.text.replace("Type=notify", "Type=notfy")), [])
        self.assertNotEqual(self.complaints(self.text.replace("bin/millrace serve", "bin/nothing serve")), [])

    def test_there_is_time_to_drain(self):
        shown = subprocess.run([BIN, "--options"], stdout=subprocess.PIPE, check=True).stdout.decode()
        drain_s = int(re.search(r"`--drain-s SECONDS` \| serve \| (\d+)", shown)[1])
        self.assertGreaterEqual(int(re.search(r"^TimeoutStopSec=(\d+)$", self.text, re.M)[1]), drain_s + 10)


if __name__ == "__main__":
    unittest.main()
