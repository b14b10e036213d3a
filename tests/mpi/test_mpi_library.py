#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts with different MPI libraries: what fails is said with the versions. MILLRACE_OTHER_MPI is other_mpi.c.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from hosts import run_ranks, run_tests  # noqa: E402 (after the path)


class Library(unittest.TestCase):
    def test_versions_are_named(self):
        done = run_ranks(2, ["generate", "--demo", "-p", "x"],
                         mpirun_args=["-x", "LD_PRELOAD=" + os.environ["MILLRACE_OTHER_MPI"]])
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertEqual(done.left, [], str(done))
        text = done.stderr.decode()
        self.assertIn("MPI could not make its communicators: MPI_ERR_INTERN", text)
        self.assertRegex(text, "rank 0 on .* has Open MPI v9.9.0, rank 1 on .* has Open MPI v9.9.1: install the same")


if __name__ == "__main__":
    sys.exit(run_tests())
