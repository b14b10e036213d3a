#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The launch secret over mpirun: ranks without it are refused, and messages that are changed, repeated or forged on the
way change no text. Argument: the class of tests to run. CHANGED_MPI_LIBRARY: the library of changed_mpi.c."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from hosts import program_path, run_ranks, run_tests  # noqa: E402 (after the path)

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "millrace-mpirun")
GENERATE = ["generate", "--demo", "-p", "Once upon a time there was", "-n", "40", "--temp", "0.8", "--seed", "7",
            "--ignore-eos", "--threads", "1"]


class Secret(unittest.TestCase):
    def test_others_are_refused(self):
        """Rank 0 has a secret, and the other ranks have another one or none."""
        for other in ([], ["-x", "MILLRACE_SECRET=" + "6" * 64]):
            more = [":", "-n", "2", *other, program_path(), *GENERATE]
            done = run_ranks(1, [*GENERATE, *more], mpirun_args=["-x", "MILLRACE_SECRET=" + "5" * 64])
            text = done.stderr.decode()
            self.assertNotIn(done.status, (0, None), str(done))
            self.assertEqual((done.stdout, done.left), (b"", []), str(done))
            self.assertRegex(text, "rank [12] on .*: rank 0 at .* closes the connection of this process before it is "
                                   "let in, probably because its launch secret is another one; hint: MILLRACE_SECRET")
            self.assertEqual(text.count("was refused: it does not know the launch secret"), 1, text)
            self.assertNotIn("5" * 64, text)

    def test_bad_secret(self):
        done = run_ranks(2, GENERATE, mpirun_args=["-x", "MILLRACE_SECRET=abc"])
        self.assertNotIn(done.status, (0, None), str(done))
        self.assertIn("MILLRACE_SECRET has 3 characters that are not 64 hexadecimal digits", done.stderr.decode())

    def test_messages_on_the_way(self):
        wanted = run_ranks(1, GENERATE)
        self.assertEqual(wanted.status, 0, str(wanted))
        for what, words in (("again", "a frame that has come before was refused"),
                            ("changed", "was changed on the way, or comes from somebody without the launch secret; the "
                                        "stages begin again"),
                            ("forged", "was changed on the way, or comes from somebody without the launch secret; the "
                                       "stages begin again")):
            done = run_ranks(3, GENERATE, launcher=[WRAPPER], program=[],
                             env={"MILLRACE_BIN": program_path(), "CHANGED_MPI": what, "CHANGED_RANK": "0"},
                             mpirun_args=["--recovery", "-x", "CHANGED_MPI", "-x", "CHANGED_RANK", "-x",
                                          "LD_PRELOAD=" + os.environ["CHANGED_MPI_LIBRARY"]])
            text = done.stderr.decode()
            self.assertEqual((done.status, done.left), (0, []), str(done))
            self.assertEqual(done.stdout, wanted.stdout, str(done))
            self.assertEqual(text.count(words), 1, text)
            self.assertEqual("epoch 2" in text, what != "again", text)


if __name__ == "__main__":
    sys.exit(run_tests())
