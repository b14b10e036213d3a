#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Activations from GPU to GPU over mpirun, with emulated GPUs and a fake NCCL: the logits of the CPU alone by every way,
the way that is chosen, and ranks that die in the middle of a transfer."""
import json
import os
import socket
import subprocess
import time
import unittest

from emulated import EMULATED_BIN, LIMIT_S, LogitsCase, environment, needs_ranks
from hosts import Job

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "millrace-mpirun")
LOSS_LIMIT_S = 3
BUSY_S = 5  # what a busy machine may add


def says(text, stage, way):
    way = "through the host" if way == "host" else "by " + way
    return "stage %d to stage %d: activations %s" % (stage, stage + 1, way) in text


def hop(text):
    """The line of the way between the first two stages."""
    return next(line for line in text.splitlines() if line.startswith("stage 0 to stage 1: "))


class Case(LogitsCase):
    def run_plan(self, *stages, chunk, link="auto", env=None):
        return self.check_ranks(len(stages), *self.args, "--backend", "cuda", "--chunk", str(chunk), "--link", link,
                                *self.write_plan(*stages), program=[EMULATED_BIN], env=env)

    def expect_ways(self, text, *ways):
        for stage, way in enumerate(ways):
            self.assertTrue(says(text, stage, way), text)


@needs_ranks
class Ways(Case):
    def test_nccl_is_chosen_between_devices(self):
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7), "nccl")
        self.expect_ways(self.run_plan((4, 4), (4, 1), chunk=160), "nccl")
        late = {"FAKE_NCCL": "max_delay_us=3000"}
        self.expect_ways(self.run_plan((2, 2), (3, 3), (3, 3), chunk=5, env=late), "nccl", "nccl")
        self.expect_ways(self.run_plan((2, 2), (2, 2), (2, 2), (2, 2), chunk=3), "nccl", "nccl", "nccl")

    def test_stages_on_the_cpu_take_the_way_through_the_host(self):
        text = self.run_plan((3, 3), (2, 2), (2, 1), (1, 1), chunk=5)
        self.expect_ways(text, "nccl", "nccl", "host")

    def test_a_way_that_is_named(self):
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7, link="host"), "host")
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7, link="nccl"), "nccl")

    def test_pointers(self):
        """The MPI library takes addresses of devices, which the emulation leaves open to it."""
        env = {"EMULATED_CUDA": "n_devices=2 open_memory", "FAKE_CUDA_MPI": "1", "FAKE_NCCL": "missing"}
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7, env=env), "pointers")
        text = self.run_plan((2, 2), (2, 2), (3, 3), (1, 1), chunk=160, link="pointers", env=env)
        self.expect_ways(text, "pointers", "pointers", "pointers")
        one = ["--device", "0"]  # NCCL does not connect a device with itself; pointers do
        args = [*self.args, "--backend", "cuda", *one, *self.write_plan((4, 4), (4, 4))]
        text = self.check_ranks(2, *args, program=[EMULATED_BIN], env={**env, "FAKE_NCCL": ""})
        self.expect_ways(text, "pointers")

    def test_no_pointers(self):
        with self.assertRaises(AssertionError) as failure:
            self.run_plan((4, 4), (4, 4), chunk=7, link="pointers")
        self.assertIn("--link pointers: ranks 0 and 1 cannot: the MPI library does not take addresses of devices",
                      str(failure.exception))

    def test_no_nccl(self):
        none = {"FAKE_NCCL_1": "missing"}
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7, env=none), "host")
        with self.assertRaises(AssertionError) as failure:
            self.run_plan((4, 4), (4, 4), chunk=7, link="nccl", env=none)
        self.assertIn("--link nccl: ranks 0 and 1 cannot: the second one has no NCCL", str(failure.exception))

    def test_other_versions(self):
        other = {"FAKE_NCCL_0": "version=22000"}
        self.expect_ways(self.run_plan((4, 4), (4, 4), chunk=7, env=other), "host")

    def test_one_device(self):
        args = [*self.args, "--backend", "cuda", "--device", "0", *self.write_plan((4, 4), (4, 4))]
        self.expect_ways(self.check_ranks(2, *args, program=[EMULATED_BIN]), "host")

    def test_a_connection_that_fails(self):
        """The ends fall back, and say so; or the job fails, if the way was named."""
        for fail in ("connect", "recv", "comm_init_rank_config"):
            env = {"FAKE_NCCL_1": "fail=%s fail_at=1" % fail}
            text = self.run_plan((4, 4), (4, 4), chunk=7, env=env)
            self.assertIn("activations of stage 0 go through the host, not by nccl", text)
        with self.assertRaises(AssertionError) as failure:
            self.run_plan((4, 4), (4, 4), chunk=7, link="nccl", env=env)
        self.assertIn("activations cannot go by nccl", str(failure.exception))
        self.assertIn("system error (chosen)", str(failure.exception))


class Threads(Case):
    """The stages of one process."""
    def run_threads(self, cuda, *args):
        text = self.run_bin(EMULATED_BIN, *self.args, "--backend", "cuda", "--chunk", "7", *args,
                            *self.write_plan((2, 2), (3, 3), (3, 3)), cuda=cuda).decode()
        self.check_logits(text)
        return text

    def test_ways(self):
        self.expect_ways(self.run_threads("n_devices=3"), "nccl", "nccl")
        self.expect_ways(self.run_threads("n_devices=2", "--link", "nccl"), "nccl", "nccl")
        self.expect_ways(self.run_threads("n_devices=1"), "host", "host")
        self.expect_ways(self.run_threads("n_devices=3", "--link", "host"), "host", "host")
        with self.assertRaises(AssertionError) as failure:
            self.run_threads("n_devices=1", "--link", "nccl")
        self.assertIn("--link nccl: ranks 0 and 1 cannot: both use one device", str(failure.exception))

    def test_the_plan_as_json(self):
        args = ["plan", self.model, "--backend", "cuda", "--json", *self.write_plan((2, 2), (3, 3), (3, 1))]
        done = subprocess.run([EMULATED_BIN, *args], env=environment("n_devices=2"), capture_output=True, check=True,
                              timeout=LIMIT_S)
        stages = json.loads(done.stdout)["plan"]
        self.assertEqual([stage.get("link") for stage in stages], ["nccl", "nccl", None])


class Measured(Case):
    """What was measured of the ways decides, is shown, and is kept in files."""
    figures = r" \([0-9.e-]+ ms, [0-9.]+ MB/s as measured; (host|nccl) [0-9.]+ ms, [0-9.]+ MB/s\)$"

    def plan(self, *args, env=None):
        done = subprocess.run([EMULATED_BIN, "plan", self.model, "-t", "1", *args], capture_output=True, check=False,
                              env={**environment("n_devices=2"), "MILLRACE_MEASURE": "auto",
                                   "MILLRACE_CACHE_DIR": self.folder.name, **(env or {})}, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def measure(self, nccl):
        saved = self.path("measured")
        text = self.plan("--backend", "cuda", "--stages", "2", "--save", saved, env={"FAKE_NCCL": nccl})
        with open(saved, encoding="utf-8") as f:
            return text, saved, json.load(f)

    def test_a_slow_way(self):
        """What was measured hangs on how busy the machine is, but not that the way of the plan follows from it, and that
        a delay of 30 ms is in it: a figure is a quarter of its time at least. A host that takes 1 ms is faster."""
        text, saved, plan = self.measure("delay_us=30000")
        ways = {(w["from"], w["to"], w["way"]): w for w in plan["facts"]["ways"]}
        self.assertEqual(sorted(ways), [(0, 1, "host"), (0, 1, "nccl"), (1, 0, "host"), (1, 0, "nccl")])
        self.assertRegex(hop(text), self.figures)
        self.assertEqual(hop(self.plan("--plan", saved, "--backend", "cuda")), hop(text))
        nccl_s = ways[0, 1, "nccl"]["latency_s"]
        self.assertGreater(nccl_s, 0.03 / 4)
        rates = []
        for seconds, host_s, way in ((nccl_s, 1e-3, "host"), (1e-9, 1, "nccl"), (100, 1, "host")):
            for w in plan["facts"]["ways"]:
                w.update({"latency_s": seconds if w["way"] == "nccl" else host_s, "bytes_per_second": 1e14})
            with open(saved, "w", encoding="utf-8") as f:
                json.dump(plan, f)
            text = self.plan("--plan", saved, "--backend", "cuda")
            self.expect_ways(text, way)
            self.assertRegex(hop(text), self.figures)
            told = json.loads(self.plan("--plan", saved, "--backend", "cuda", "--json"))
            self.assertEqual(told["plan"][0]["link"], way)
            self.assertEqual(told["plan"][0]["links"]["nccl"]["latency_s"], seconds)
            self.assertNotIn("links", told["plan"][1])
            rates.append(self.rate(told))
        self.assertGreater(rates[1], rates[2])  # by host it takes 1 s more

    def rate(self, told):
        return told["predicted"]["decode"][0]["tokens_per_second"]

    def test_a_way_that_fails(self):
        text, _, plan = self.measure("fail=transfer fail_at=9")
        self.expect_ways(text, "host")
        self.assertRegex(text, r"as measured; nccl fails: .*remote error")
        self.assertIn("remote error", [w["why"] for w in plan["facts"]["ways"] if w["from"] == 0 and "why" in w][0])


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the process may end between open and read
        return False


@needs_ranks
class Losses(Case):
    def lose(self, rank, how, env=None):
        """Three ranks, of which one dies. Returns the end of the job, at most LOSS_LIMIT_S after the death. The others
        go on, unless it was rank 0."""
        args = [*self.args, "--backend", "cuda", "--chunk", "2", *self.write_plan((2, 2), (3, 3), (3, 3))]
        env = {**environment("n_devices=3"), "FAKE_NCCL_%d" % rank: how, "MILLRACE_BIN": EMULATED_BIN, **(env or {})}
        job = Job(3, args, launcher=[WRAPPER, "--recovery"], env=env, program=[])
        pid = job.rank_pid(rank)
        end = time.monotonic() + LIMIT_S
        while is_alive(pid):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        death = time.monotonic()
        done = job.wait(LIMIT_S)
        seconds = job.begin + done.seconds - death
        self.assertLess(seconds, LOSS_LIMIT_S + BUSY_S, str(done))
        self.assertEqual(done.left, [], str(done))
        if rank == 0:
            self.assertNotIn(done.status, (0, None), str(done))
            return done
        self.assertEqual(done.status, 0, str(done))
        self.assertRegex(done.stderr.decode(), "rank %d on %s is gone: .*; the others take over its layers" %
                         (rank, socket.gethostname()), str(done))
        self.check_logits(done.stderr.decode())
        return done

    def test_ranks_that_die(self):
        for rank, how in ((1, "die=comm_init_rank_config die_at=2"), (2, "die=connect die_at=1"),
                          (1, "die=transfer die_at=1"), (0, "die=send die_at=4"), (1, "die=send die_at=5"),
                          (2, "die=recv die_at=4"), (1, "die=transfer die_at=9"), (2, "die=transfer die_at=6")):
            self.lose(rank, how)

    def test_an_abort_that_hangs(self):
        done = self.lose(2, "die=transfer die_at=6", env={"FAKE_NCCL_1": "abort_hangs"})
        self.assertIn("NCCL does not give up a connection to a lost rank in 2 s", done.stderr.decode(), str(done))


if __name__ == "__main__":
    unittest.main()
