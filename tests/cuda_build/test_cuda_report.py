# SPDX-License-Identifier: Apache-2.0
"""What nvcc reports of the compiled kernels: none spills registers or has variables in local memory, and each file was
compiled for every architecture. MILLRACE_CUDA_KERNELS is the folder of the compiled kernels.
Exit status 77: skipped, because the build has none."""
import os
import pathlib
import re
import unittest

import test_packages

FOLDER = pathlib.Path(os.environ.get("MILLRACE_CUDA_KERNELS") or test_packages.skip("there is no CUDA toolkit"))
KERNELS = pathlib.Path(os.environ["MILLRACE_SOURCE_DIR"]) / "backends/cuda/kernels"
ARCHITECTURES = ["sm_" + number for number in os.environ["MILLRACE_CUDA_ARCHITECTURES"].split(",")]

ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'"
                   r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
                   r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)", re.S)


def entries(text):
    """The kernels of one report: their name, and what each architecture needs."""
    found = []
    for part in re.split(r"(?=ptxas info +: Compiling entry function)", text)[1:]:
        m = ENTRY.match(part[part.index("Compiling"):])
        shared = re.search(r"(\d+) bytes smem", m["rest"])
        found.append({"name": m["name"], "architecture": m["architecture"], "shared": int(shared[1]) if shared else 0,
                      **{key: int(m[key]) for key in ("stack", "stores", "loads", "registers")}})
    return found


class Report(unittest.TestCase):
    def setUp(self):
        self.reports = {path.stem: entries(path.read_text()) for path in sorted(FOLDER.glob("*.ptxas"))}
        self.entries = [e for report in self.reports.values() for e in report]

    def test_every_file_has_kernels_for_each_architecture(self):
        for path in KERNELS.glob("*.cu"):
            names = {e["name"] for e in self.reports.get(path.stem, [])}
            self.assertTrue(names, f"nvcc reported no kernel of {path.name}")
            for name in names:
                self.assertEqual(sorted(e["architecture"] for e in self.reports[path.stem] if e["name"] == name),
                                 sorted(ARCHITECTURES), name)

    def test_names_differ(self):
        kernels = [(e["name"], e["architecture"]) for e in self.entries]
        self.assertEqual(len(kernels), len(set(kernels)), "two files have a kernel of the same name")

    def test_local_memory(self):
        self.assertEqual([e for e in self.entries if e["stack"] or e["stores"] or e["loads"]], [])


def print_table():
    for path in sorted(FOLDER.glob("*.ptxas")):
        for e in entries(path.read_text()):
            print("%(name)-40s %(architecture)-6s %(registers)3d registers, %(shared)6d bytes of shared memory" % e)


if __name__ == "__main__":
    print_table()
    unittest.main()
