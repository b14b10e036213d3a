#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves many streams over ranks, and does all kinds of harm to the ranks meanwhile.

    chaos.py [--minutes 10] [--seed 1] [--ranks 4] [--spares 0] [--streams 32] [--no-hosts] [--program MILLRACE]

Each client sends its request again and again: greedy, sampled, with a grammar, with several choices, with
log-probabilities, or with tools. Every answer is compared with that of a single undisturbed process. The faults come
from the seed: ranks are killed, stopped for a while, slowed down (stopped for half of the time), cut off from the
network for a while, drained and taken in again, also while another fault is being mended. The times of their effects
are those of the machine, so a seed repeats the faults and not the whole run.

A lost rank does not come back. When fewer than two ranks are left, the server ends in order or loses rank 0; then
deploy/millrace-mpirun starts it again. Answers that were under way when rank 0 was killed are not counted as failed.

As root, each rank is on a host of its own (tests/support/hosts.py); otherwise all are on this one, and no network is
cut. The exit status is 1 if an answer was wrong or failed, or if the server ended by itself or left a process.
"""
import argparse
import collections
import ctypes
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "mpi")]
LIMIT_S = 120
LOST_S = 5  # a rank that is stopped for longer is lost


def enter_network(pid):
    """This thread, and those that it starts, use the network of a process."""
    fd = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)


class Report:
    """The log, and what is counted. From any thread."""

    def __init__(self):
        self.begin, self.lock = time.monotonic(), threading.Lock()
        self.counts, self.failures = collections.Counter(), []
        self.faults, self.known = {}, []  # (kind, time) of faults by rank, and of those that the server knows
        self.found_s, self.mended_s = collections.defaultdict(list), collections.defaultdict(list)
        self.planned_s, self.pauses_s = [], []

    def say(self, text):
        print("%8.3f s  %s" % (time.monotonic() - self.begin, text), flush=True)

    def fail(self, text):
        with self.lock:
            self.failures.append(text)
        self.say("FAILED: " + text)

    def fault(self, kind, text, rank=None):
        """rank: the one that is to be lost by it."""
        with self.lock:
            self.counts[kind] += 1
            if rank is not None:
                self.faults[rank] = kind, time.monotonic()
        self.say(text)

    def gone(self, rank, has_layers):
        """The server knows that a rank is lost."""
        with self.lock:
            kind, since = self.faults.pop(rank, ("lost unexpectedly", time.monotonic()))
            self.found_s[kind].append(time.monotonic() - since)
            if has_layers:
                self.known.append((kind, since))

    def epoch(self, seconds):
        """A new plan runs, `seconds` after the server began to make it."""
        with self.lock:
            self.planned_s.append(seconds)
            for kind, since in self.known:
                self.mended_s[kind].append(time.monotonic() - since)
            self.known = []

    def summary(self):
        def line(name, values):
            print("%-50s %s" % (name, "median %.3f s, worst %.3f s, of %d" % (
                statistics.median(values), max(values), len(values)) if values else "none"))

        print("faults: " + ", ".join("%d %s" % (n, kind) for kind, n in sorted(self.counts.items())
                                     if kind not in ("answers", "ended with rank 0")))
        for kind in sorted(self.found_s):
            line("a rank that is %s: until the server knows" % kind, self.found_s[kind])
            line("a rank that is %s: until a new plan runs" % kind, self.mended_s[kind])
        line("making a plan, loading and starting, all epochs", self.planned_s)
        line("longest pause of an answer", self.pauses_s)
        print("%d answers equal to the undisturbed ones, %d ended with rank 0, %d failures" % (
            self.counts["answers"], self.counts["ended with rank 0"], len(self.failures)))
        for text in self.failures:
            print("failure: " + text)


# --- Clients ----------------------------------------------------------------------------------------------------------


def answer(port, i):
    """The answer to request i, and the longest pause between two of its pieces."""
    path, fields = request(i)
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    c.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
    reply = c.getresponse()
    said, done, before, pause = {"status": reply.status}, False, None, 0.0
    for line in reply:
        if line.startswith(b"data: {"):
            now = time.monotonic()
            pause, before = max(pause, now - (before or now)), now
            event = json.loads(line[6:])
            said.update({"error": event["error"]} if "error" in event else {})
            for choice in event.get("choices", []):
                add_choice(choice, said.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None}))
        done = done or line.startswith(b"data: [DONE]")
    c.close()
    return {**said, "done": done}, pause


class Clients:
    """One thread for each request, which sends it until stop."""

    def __init__(self, cluster, wanted, report):
        self.cluster, self.wanted, self.report, self.stops = cluster, wanted, report, False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(len(wanted))]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stops:
            life = self.cluster.life
            try:
                said, pause = answer(self.cluster.port, i)
            except (OSError, http.client.HTTPException, ValueError) as e:
                said, pause = repr(e), 0.0
            if said == self.wanted[i]:
                self.report.counts["answers"] += 1
                self.report.pauses_s.append(pause)
            elif self.cluster.life != life or self.cluster.is_down:
                self.report.counts["ended with rank 0"] += 1
                while self.cluster.is_down and not self.stops:
                    time.sleep(0.05)
            elif not self.stops:
                self.report.fail("request %d: %.600s instead of %.600s" % (i, said, self.wanted[i]))
                time.sleep(1)

    def end(self):
        self.stops = True
        for t in self.threads:
            t.join()


# --- The server -------------------------------------------------------------------------------------------------------


class Cluster:
    """A server over ranks, under deploy/millrace-mpirun. life grows with each start of rank 0."""

    def __init__(self, a, hosts, report):
        self.n, self.hosts, self.report, self.life, self.is_down = a.ranks, hosts, report, 0, True
        self.port = free_port()
        args = ["serve", DEMO, "--port", str(self.port), "--threads", "1", "--spares", str(a.spares), "--ctx", "2048"]
        launcher = [WRAPPER, "--restarts", "1000"]  # rank 0 is killed more often than anybody's rank 0
        self.job = Job(None if hosts else a.ranks, args, hosts=hosts, launcher=launcher, program=[],
                       env={"MILLRACE_BIN": program_path()})
        self.lost, self.holders = set(), set()  # ranks; the second ones hold layers
        self.tail = collections.deque(maxlen=40)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.begin_life()

    def begin_life(self):
        """Waits until all ranks run and the server is ready."""
        old = getattr(self, "pids", [None])[0]
        while (pid := self.job.rank_pid(0, LIMIT_S)) == old:
            time.sleep(0.05)
        self.pids = [pid] + [self.job.rank_pid(i, LIMIT_S) for i in range(1, self.n)]
        wait_until_ready(self.port)
        self.lost, self.holders = set(), {s["rank"] for s in self.plan()["stages"]}
        self.life += 1
        self.is_down = False

    def read(self):
        for line in self.job.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.tail.append(text)
            found = re.match(r"epoch (\d+): a new plan runs after ([\d.]+) s", text)
            if found:
                self.report.epoch(float(found[2]))
            lost = re.search(r"warning: rank (\d+) on \S+ is gone", text)
            if lost:
                self.lost.add(int(lost[1]))
                self.report.gone(int(lost[1]), int(lost[1]) in self.holders)
            if found and not self.is_down:
                self.learn_holders()
            if found or "warning" in text or "error" in text or "rank 0 was killed" in text:
                self.report.say("  " + text)

    def plan(self):
        return ask(self.port, "GET", "/plan")[1]

    def learn_holders(self):
        try:
            self.holders = {s["rank"] for s in self.plan()["stages"]}
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the server is ending

    def living(self):
        return [i for i in range(self.n) if i not in self.lost]

    def has_ended(self):
        return self.job.process.poll() is not None

    def end(self):
        """In order: no status but 0, nothing left."""
        self.is_down = True
        self.job.process.send_signal(signal.SIGTERM)
        try:
            status = self.job.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
        left = self.job.left(20)
        self.reader.join()
        if status != 0 or left:
            self.report.fail("the end of the server: status %s, left %s\n%s" % (status, left, "\n".join(self.tail)))

    def lose_rank_0(self):
        self.is_down = True
        self.report.fault("killed rank 0", "kill rank 0")
        self.report.faults.clear()
        kill(self.pids[0])
        since = time.monotonic()
        self.begin_life()
        self.report.say("  the server is back after %.1f s" % (time.monotonic() - since))


# --- Faults -----------------------------------------------------------------------------------------------------------


class Faults:
    """Draws faults and does them. Some go on in a thread: a stopped rank is to go on, a network to come back."""

    def __init__(self, cluster, luck, report):
        self.cluster, self.luck, self.report, self.threads = cluster, luck, report, []
        self.busy = set()  # ranks that a thread works at

    def later(self, rank, work):
        def run():
            work()
            self.busy.discard(rank)
        self.busy.add(rank)
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self):
        for t in self.threads:
            t.join()

    def kill(self, rank):
        self.report.fault("killed", "kill rank %d" % rank, rank)
        kill(self.cluster.pids[rank])

    def stop(self, rank):
        seconds = self.luck.choice((0.2, 1.0, 3.0, LOST_S + 3.0))
        pid = self.cluster.pids[rank]
        self.report.fault("stopped", "stop rank %d for %.1f s" % (rank, seconds),
                          rank if seconds > LOST_S else None)
        kill(pid, signal.SIGSTOP)
        self.later(rank, lambda: (time.sleep(seconds), kill(pid, signal.SIGCONT)))

    def slow(self, rank):
        pid, n = self.cluster.pids[rank], self.luck.randint(10, 60)
        self.report.fault("slowed", "slow rank %d down for %.1f s" % (rank, n / 10))

        def work():
            for _ in range(n):
                kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
                kill(pid, signal.SIGCONT)
                time.sleep(0.05)
        self.later(rank, work)

    def cut(self, rank):
        hosts, letter, seconds = self.cluster.hosts, "abcdefghijklmnop"[rank], self.luck.choice((0.2, 0.4, 3.0))
        if not hosts:
            return self.slow(rank)
        self.report.fault("cut off", "cut rank %d off for %.1f s" % (rank, seconds), rank if seconds > 1 else None)
        hosts.cut(letter)
        return self.later(rank, lambda: (time.sleep(seconds), hosts.join(letter)))

    def drain(self, rank):
        """A rank that is drained already gets layers again. The server may refuse."""
        plan = self.cluster.plan()
        word = "undrain" if rank in plan.get("drained", []) else "drain"
        status, said = ask(self.cluster.port, "POST", "/cluster/%s?rank=%d" % (word, rank))
        self.report.fault(word + "ed", "%s rank %d%s" % (word, rank, "" if status == 200 else ": refused, " +
                                                         said["error"]["message"]))

    def next(self):
        living = [i for i in self.cluster.living() if i not in self.busy]
        workers = [i for i in living if i != 0]
        if not workers:
            return
        what = self.luck.choice((self.kill, self.stop, self.stop, self.slow, self.cut, self.drain, self.drain))
        what(self.luck.choice(living if what == self.drain else workers))


# --- The run ----------------------------------------------------------------------------------------------------------


def undisturbed(n):
    """The answers of one process."""
    port = free_port()
    job = Job(1, ["serve", DEMO, "--port", str(port), "--ctx", "2048"])
    wait_until_ready(port)
    wanted = [answer(port, i)[0] for i in range(n)]
    kill(job.rank_pid(0), signal.SIGTERM)
    job.wait(LIMIT_S)
    for said in wanted:
        if said["status"] != 200 or not said["done"]:
            raise SystemExit("an undisturbed answer is wrong: %s" % said)
    return wanted


def run_cluster(a, hosts, luck, wanted, report, end_s):
    """One server, from its start to its end."""
    cluster = Cluster(a, hosts, report)
    report.say("a server over %d ranks" % a.ranks)
    clients, faults = Clients(cluster, wanted, report), Faults(cluster, luck, report)
    try:
        while time.monotonic() < end_s and not cluster.has_ended():
            time.sleep(luck.choice((0.02, 0.1, 0.5, 1.0, 3.0)))
            if len(cluster.living()) < 2:
                time.sleep(2)  # answers of the last rank
                if luck.randrange(2):
                    break
                faults.end()
                cluster.lose_rank_0()
            faults.next()
    except (OSError, http.client.HTTPException, ValueError, TimeoutError) as e:
        report.fail("the server does not answer: %r\n%s" % (e, "\n".join(cluster.tail)))
    faults.end()
    if cluster.has_ended():
        report.fail("the server has ended: %s" % "\n".join(cluster.tail))
    clients.stops = True
    cluster.end() if not cluster.has_ended() else cluster.reader.join()
    clients.end()


def run(a, hosts):
    report, luck = Report(), random.Random(a.seed)
    wanted = undisturbed(a.streams)
    end_s = time.monotonic() + a.minutes * 60
    report.say("seed %d, %s" % (a.seed, "%d hosts" % a.ranks if hosts else "one host"))
    while time.monotonic() < end_s:
        run_cluster(a, hosts, luck, wanted, report, end_s)
    report.summary()
    return 1 if report.failures else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--spares", type=int, default=0)
    p.add_argument("--streams", type=int, default=32)
    p.add_argument("--no-hosts", action="store_true")
    p.add_argument("--program", default=os.environ.get("MILLRACE_BIN", "build/release/bin/millrace"))
    a = p.parse_args()
    os.environ["MILLRACE_BIN"] = os.path.abspath(a.program)
    global DEMO, Hosts, Job, WRAPPER, add_choice, ask, free_port, kill, program_path, request, wait_until_ready
    from free_port import free_port
    from hosts import Hosts, Job, kill, program_path  # these read MILLRACE_BIN
    from test_mpi_recover import DEMO, WRAPPER, add_choice, ask, request, wait_until_ready
    why = "--no-hosts" if a.no_hosts else Hosts.available()
    if why:
        print("all ranks are on this host: " + why)
        return run(a, None)
    with Hosts(a.ranks) as hosts:
        here = os.getpid()
        before = os.open("/proc/%d/ns/net" % here, os.O_RDONLY)
        enter_network(hosts.holders["a"].pid)
        try:
            return run(a, hosts)
        finally:
            ctypes.CDLL(None).setns(before, 0)


if __name__ == "__main__":
    sys.exit(main())
