#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A random model of DeepSeek V3's shape in five parts, three on one host and two on another, runs over 2, 3 and 4 ranks:
the same ids each time, and no rank has more memory than its plan says. Measured is the anonymous resident memory of each
rank (RssAnon), many times while it runs; pages of mapped files do not count, as in the plan. The model has some 200 MB; in
a long run 20 GiB, of which matrices stay in the file. MILLRACE_LARGE_GIB chooses another size. Argument: the class of
tests to run. Exit status 77: skipped, where no hosts can be made."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(TESTS, "support"))
from hosts import Hosts, Job, program_path, run_tests  # noqa: E402 (after the path)

GIB = float(os.environ.get("MILLRACE_LARGE_GIB", 20 if os.environ.get("MILLRACE_TEST_LONG") == "1" else 0))
MIB = 1 << 20
N_PARTS = 5
ON_HOSTS = {"a": (1, 2, 3), "b": (4, 5)}
SMALL = ["--layers", "8", "--width", "1024", "--ff", "512", "--heads", "8", "--experts", "32", "--vocab", "4096"]
LARGE = ["--width", "2048", "--ff", "1024", "--heads", "16", "--experts", "128"]
LARGE_LAYER = 3 * 2048 * 1024 * 128 * 144 // 256  # bytes of the experts of a layer
PROGRAM = 48 * MIB  # of a rank beside what the plan counts: tables, MPI, blocks of the file on their way
N_NEW = 8 if GIB else 100  # the small model generates long enough for some looks at its memory
GENERATE = ["-p", "ab", "-p", "c", "-n", str(N_NEW), "--seed", "7", "--ignore-eos", "--ctx", "128", "--json"]
LIMIT_S = 300 + 60 * GIB  # of one run


def anonymous_bytes(pid):
    """0 for a process that has ended."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon:"))
    except OSError:
        return 0


class Watch(threading.Thread):
    """The most anonymous memory that each rank of a job has had."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.most, self.ended = job, {}, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.1):
            for pid, environment in self.job.processes().items():
                rank = environment.get("OMPI_COMM_WORLD_RANK")
                if rank is not None:
                    self.most[int(rank)] = max(self.most.get(int(rank), 0), anonymous_bytes(pid))

    def end(self):
        self.ended.set()
        self.join()
        return self.most


class Large(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why = Hosts.available()
        if why:
            raise unittest.SkipTest(why)
        cls.folder = tempfile.mkdtemp(prefix="millrace-large-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        room, need = shutil.disk_usage(cls.folder).free, int(GIB * 1.7 * (1 << 30))
        if room < need:
            raise unittest.SkipTest("%d bytes are free in %s, %d are needed" % (room, cls.folder, need))
        cls.make_model()

    @classmethod
    def make_model(cls):
        os.mkdir(cls.path("parts"))
        os.mkdir(cls.path("cache"))
        shape = LARGE + ["--layers", str(2 + int(GIB * (1 << 30)) // LARGE_LAYER)] if GIB else SMALL
        subprocess.run([sys.executable, os.path.join(TESTS, "bench", "make_random_model.py"), cls.path("parts/m"), "--arch",
                        "deepseek2", "--type", "Q4_K", "--experts-used", "8", "--parts", str(N_PARTS), *shape], check=True)
        paths = sorted(glob.glob(cls.path("parts/m-*.gguf")))
        cls.model = paths[0]
        cls.replace = {}
        for letter, numbers in ON_HOSTS.items():
            own, cache = cls.path("parts-" + letter), cls.path("cache-" + letter)
            os.mkdir(own)
            os.mkdir(cache)
            for i in numbers:
                os.link(paths[i - 1], os.path.join(own, os.path.basename(paths[i - 1])))
            cls.replace[letter] = {cls.path("parts"): own, cls.path("cache"): cache}
        assert sum(map(os.path.getsize, paths)) >= GIB * (1 << 30)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def run_ranks(self, n, *args):
        """The ids over n ranks."""
        with Hosts(2, replace=self.replace, slots=(n + 1) // 2) as hosts:
            job = Job(n, ["generate", self.model, *GENERATE, "--cache-dir", self.path("cache"), *args], hosts=hosts)
            watch = Watch(job)
            try:
                done = job.wait(LIMIT_S)
            finally:
                most = watch.end()
        self.assertEqual((done.status, done.left), (0, []), str(done))
        output = json.loads(done.stdout)
        self.assertEqual(len(output["plan"]), n)
        self.assertEqual({stage["host"] for stage in output["plan"]}, set(hosts.names.values()))
        for stage in output["plan"]:
            planned = stage["weight_bytes"] + stage["kv_bytes"] + stage["buffer_bytes"]
            print("%d ranks, rank %d: %.1f MiB of anonymous memory, %.1f MiB planned; %.0f s" % (
                n, stage["rank"], most[stage["rank"]] / MIB, planned / MIB, done.seconds), file=sys.stderr, flush=True)
            self.assertGreater(most[stage["rank"]], stage["weight_bytes"])
            self.assertLess(most[stage["rank"]], planned + PROGRAM)
        return [s["ids"] for s in output["sequences"]]

    def test_ranks(self):
        in_file = ["--mem", "384M" if GIB else "16M"]
        want = self.run_ranks(2, *(in_file if GIB else []))
        self.assertEqual([len(ids) for ids in want], [N_NEW, N_NEW])
        self.assertEqual(self.run_ranks(3, *in_file), want)
        self.assertEqual(self.run_ranks(4, *in_file), want)
        if not GIB:
            alone = subprocess.run([program_path(), "generate", self.model, *GENERATE], check=True, timeout=LIMIT_S,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            self.assertEqual([s["ids"] for s in json.loads(alone)["sequences"]], want)


if __name__ == "__main__":
    sys.exit(run_tests())
