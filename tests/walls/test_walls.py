#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The walls between the rooms: deploy/rooms accepts the project as it is and finds each kind of fault, and a program that
has a worker alone links neither JSON nor templates."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ["MILLRACE_SOURCE_DIR"]
ROOMS = os.path.join(ROOT, "deploy", "rooms")
PRODUCT = ("engine", "backends", "proto", "worker", "coordinator")
MARKS = "<!-- made by deploy/rooms --write -->\n<!-- end of what deploy/rooms made -->\n"
TINY = {
    "ARCHITECTURE.md": "# Rooms\n" + MARKS,
    "engine/CMakeLists.txt": "# What all use.\nmr_room(mr_low SOURCES low.c)\n",
    "engine/low.h": "", "engine/low.c": '#include "engine/low.h"\n',
    "worker/CMakeLists.txt": "# What uses it.\nmr_room(mr_high SOURCES high.c NEIGHBOURS mr_low)\n",
    "worker/high.h": "", "worker/high.c": '#include "engine/low.h"\n#include "worker/high.h"\n',
    "proto/CMakeLists.txt": "# Apart.\nmr_room(mr_apart SOURCES apart.c)\n",
    "proto/apart.h": "", "proto/apart.c": "",
}


def rooms(root, *args):
    done = subprocess.run([sys.executable, "-B", ROOMS, "--root", root, *args], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Project(unittest.TestCase):
    def test_the_project_keeps_its_walls(self):
        status, text = rooms(ROOT)
        self.assertEqual(status, 0, text)

    def test_a_forbidden_include_is_found(self):
        """The job knows nothing of HTTP: an include of its server, in a copy of the project, is a fault."""
        with tempfile.TemporaryDirectory() as folder:
            for top in PRODUCT:
                shutil.copytree(os.path.join(ROOT, top), os.path.join(folder, top))
            shutil.copy(os.path.join(ROOT, "ARCHITECTURE.md"), folder)
            self.assertEqual(rooms(folder)[0], 0)
            with open(os.path.join(folder, "coordinator", "job", "job.c"), "a", encoding="utf-8") as f:
                f.write('#include "coordinator/serving/http/http_server.h"\n')
            status, text = rooms(folder)
            self.assertEqual(status, 1)
            self.assertIn("coordinator/job/job.c: includes coordinator/serving/http/http_server.h, "
                          "but mr_http is no neighbour of mr_job", text)

    def test_a_worker_links_no_json(self):
        program = os.environ["MILLRACE_WORKER_PROGRAM"]
        if not shutil.which("nm"):
            self.skipTest("there is no nm")
        names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
        self.assertIn("mr_stage_", names)
        for name in ("json_", "mr_jinja", "mr_grammar_from_schema"):
            self.assertNotIn(" " + name, names)


class Tiny(unittest.TestCase):
    """Three rooms: high includes low, and apart is alone."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-walls-")
        self.addCleanup(shutil.rmtree, self.folder)
        for path, text in TINY.items():
            self.write(path, text)
        self.assertEqual(rooms(self.folder, "--write")[0], 0)

    def write(self, path, text, mode="w"):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, mode, encoding="utf-8") as f:
            f.write(text)

    def check_fault(self, text):
        status, output = rooms(self.folder)
        self.assertEqual(status, 1, output)
        self.assertIn(text, output)

    def test_good(self):
        self.assertEqual(rooms(self.folder), (0, "3 rooms, 6 files, 0 faults\n"))

    def test_include_of_a_stranger(self):
        self.write("worker/high.h", '#include "proto/apart.h"\n')
        self.check_fault("worker/high.h: includes proto/apart.h, but mr_apart is no neighbour of mr_high")

    def test_include_upwards(self):
        self.write("engine/low.c", '#  include "worker/high.h"\n', "a")
        self.check_fault("engine/low.c: includes worker/high.h, but mr_high is no neighbour of mr_low")

    def test_neighbour_that_nobody_includes(self):
        self.write("worker/CMakeLists.txt", "# Both.\nmr_room(mr_high SOURCES high.c NEIGHBOURS mr_low mr_apart)\n")
        self.check_fault("no file of mr_high includes a header of its neighbour mr_apart")

    def test_circle(self):
        self.write("engine/low.c", '#include "worker/high.h"\n', "a")
        self.write("engine/CMakeLists.txt", "# All.\nmr_room(mr_low SOURCES low.c NEIGHBOURS mr_high)\n")
        self.check_fault("neighbours form a circle: mr_high -> mr_low -> mr_high")

    def test_room_without_a_word(self):
        self.write("proto/CMakeLists.txt", "mr_room(mr_apart SOURCES apart.c)\n")
        self.check_fault("no comment above mr_apart says what it is for")

    def test_old_picture(self):
        self.write("proto/CMakeLists.txt", "# Another sentence.\nmr_room(mr_apart SOURCES apart.c)\n")
        self.check_fault("hint: deploy/rooms --write")

    def test_no_marks(self):
        self.write("ARCHITECTURE.md", "# Rooms\n")
        self.check_fault("ARCHITECTURE.md: the lines")


if __name__ == "__main__":
    unittest.main(verbosity=1)
