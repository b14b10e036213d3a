#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace serve --recover` over ranks: ranks are killed while streams run, and every stream gets the text that it
would have got without the deaths. Argument: the class of tests to run. Exit status 77: all were skipped.
MILLRACE_KILLS: how many ranks to kill in each test of kills; 100 with MILLRACE_TEST_LONG=1."""
import ctypes
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Hosts, Job, kill, program_path, run_ranks, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import DEMO, ask, check_metrics, metrics, stages_in, wait_until_ready  # noqa: E402 (after the path)

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "millrace-mpirun")
LIMIT_S = 120
N_RANKS = 4
N_STREAMS = 32
N_KILLS = int(os.environ.get("MILLRACE_KILLS", 100 if os.environ.get("MILLRACE_TEST_LONG") == "1" else 10))
PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_FOR_THREADS = 0x4206, 0x4207, 0x40000000
GRAMMAR = 'root ::= (word " ")+\nword ::= [a-z]{1,7}'


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}, "words": {"type": "string", "minLength": 60}},
    "required": ["city", "words"], "additionalProperties": False}}}]


def request(i):
    """Path and body: greedy, sampled, with a grammar, with two choices, with log-probabilities, with tools; prompts of
    several lengths."""
    if i % 8 == 6:
        return "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "How is the weather in Bern? " * (1 + i % 3)}], "stream": True,
            "tools": TOOLS, "tool_choice": "required", "max_tokens": 200, "seed": i, "temperature": 0.9}
    fields = {"prompt": "Once upon a time there was " * (1 + i % 7), "max_tokens": 120 + i, "seed": i, "stream": True,
              "ignore_eos": True, "temperature": 0.0 if i % 4 == 0 else 0.9}
    if i % 4 == 1:
        fields["grammar"] = GRAMMAR
    if i % 8 == 2:
        fields["n"] = 2
    if i % 8 == 3:
        fields["logprobs"] = 2
    return "/v1/completions", fields


def add_choice(choice, part):
    """Adds what an event brings of one choice: text, or a part of a call."""
    delta = choice.get("delta", choice)
    part["text"] += delta.get("text") or delta.get("content") or ""
    for call in delta.get("tool_calls") or []:  # the ids of calls are random
        function = call["function"]
        part["text"] += ("<%s>" % function["name"] if "name" in function else "") + function.get("arguments", "")
    part["logprobs"] += (choice.get("logprobs") or {}).get("token_logprobs") or []
    part["end"] = choice["finish_reason"] or part["end"]


def stream(port, i, out):
    """Puts the events of a stream, joined to one text for each choice with its log-probabilities, into out[i]."""
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        path, fields = request(i)
        c.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        answer = c.getresponse()
        said = {}
        lines = answer.read().decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        for event in events:
            if "error" in event:
                said["error"] = event["error"]
            for choice in event.get("choices", []):
                add_choice(choice, said.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None}))
        said["status"] = answer.status
        said["done"] = "data: [DONE]" in lines
        out[i] = said
        c.close()
    except (OSError, http.client.HTTPException, ValueError) as e:
        out[i] = {"failed": repr(e)}


def all_streams(port, meanwhile=lambda: None):
    out = [None] * N_STREAMS
    threads = [threading.Thread(target=stream, args=(port, i, out)) for i in range(N_STREAMS)]
    for t in threads:
        t.start()
    meanwhile()
    for t in threads:
        t.join()
    return out


def thread_name(pid, thread):
    with open("/proc/%d/task/%s/comm" % (pid, thread), encoding="ascii") as f:
        return f.read().strip()


def stop_thread(thread):
    """Stops one thread of another process, as a debugger does. False: the system does not allow it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return libc.ptrace(PTRACE_SEIZE, thread, None, None) == 0 and libc.ptrace(PTRACE_INTERRUPT, thread, None, None) == 0


def reap_thread(thread):
    """Waits until a stopped thread has ended with its process."""
    while True:
        try:
            _, status = os.waitpid(thread, WAIT_FOR_THREADS)
        except ChildProcessError:
            return
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            return


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Serve(unittest.TestCase):
    def start(self, n, *options):
        port = free_port()
        job = Job(n, ["serve", DEMO, "--port", str(port), "--threads", "1", "--ctx", "2048", *options],
                  mpirun_args=["--enable-recovery"] if n > 1 else [])
        self.addCleanup(job.left, 0)  # where a test fails
        wait_until_ready(port)
        return port, job

    def undisturbed(self):
        port, job = self.start(1)
        wanted = all_streams(port)
        for i, said in enumerate(wanted):
            self.assertEqual((said.get("status"), said.get("done")), (200, True), said)
            if "tools" in request(i)[1]:
                self.assertIn("<weather>", said[0]["text"])
        kill(job.rank_pid(0), signal.SIGTERM)
        self.assertEqual(job.wait(LIMIT_S).status, 0)
        return wanted

    def end(self, job, victims, what):
        kill(job.rank_pid(0), signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), what + "\n" + str(done))
        for rank in victims:
            self.assertRegex(done.stderr.decode(), "warning: rank %d on .* is gone" % rank, str(done))
        self.assertNotIn(b"millrace: error", done.stderr, str(done))
        return done

    def kill_some(self, luck, wanted, n, *options):
        """Starts a server over ranks, kills n of them, one after the other, and compares all streams."""
        port, job = self.start(N_RANKS, "--recover", *options)
        victims = luck.sample(range(1, N_RANKS), n)
        pids = [job.rank_pid(rank) for rank in victims]
        delays = [luck.uniform(0.05, 0.8) for _ in victims]
        what = "ranks %s after %s s %s" % (victims, ", ".join("%.3f" % d for d in delays), " ".join(options))

        def meanwhile():
            for pid, delay in zip(pids, delays):
                time.sleep(delay)
                kill(pid)

        self.assertEqual(all_streams(port, meanwhile), wanted, what)
        self.assertEqual(all_streams(port), wanted, what + ", and once more")
        plan = check_metrics(port)
        self.assertEqual({s["rank"] for s in plan["stages"]} & set(victims), set(), what)
        self.assertEqual(plan["lost"], sorted(victims), plan)
        if not options:  # a victim may be a spare
            self.assertGreater(plan["epoch"], 1, plan)
        self.end(job, victims, what)
        print(what, flush=True)

    def kill_many(self, options):
        """options: of each server, drawn."""
        seed = random.randrange(1 << 32)
        print("seed", seed)
        luck = random.Random(seed)
        wanted = self.undisturbed()
        left = N_KILLS
        while left > 0:
            n = min(left, luck.randint(1, N_RANKS - 1))
            self.kill_some(luck, wanted, n, *options(luck))
            left -= n

    def test_kills(self):
        self.kill_many(lambda luck: [])

    def test_kills_with_spares(self):
        """Of ranks with a stage and of spares, which may still load the layers of others."""
        self.kill_many(lambda luck: ["--spares", luck.choice("12")])

    def test_a_stopped_rank(self):
        """It counts as lost after 5 s, and leaves without a word when it goes on."""
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover")
        pid = job.rank_pid(1)

        def meanwhile():
            time.sleep(0.3)
            kill(pid, signal.SIGSTOP)

        self.assertEqual(all_streams(port, meanwhile), wanted)
        recovery = ask(port, "GET", "/plan")[1]["recovery"]
        self.assertGreater(recovery["detection_s"], 4, recovery)
        kill(pid, signal.SIGCONT)
        done = self.end(job, [1], "rank 1 is stopped")
        self.assertIn(b"no sign of life", done.stderr, str(done))

    def test_a_stopped_step_thread(self):
        """The thread of the lifeline goes on, and says that the other one hangs."""
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover")
        pid = job.rank_pid(1)
        thread = next(t for t in os.listdir("/proc/%d/task" % pid) if thread_name(pid, t) == "step")
        stopped = []

        def meanwhile():
            time.sleep(0.3)
            stopped.append(stop_thread(int(thread)))

        self.assertEqual(all_streams(port, meanwhile), wanted)
        if not stopped[0]:
            self.skipTest("no thread may be traced here")
        reap_thread(int(thread))
        done = self.end(job, [1], "the step thread of rank 1 is stopped")
        self.assertIn(b"its step thread hangs", done.stderr, str(done))

    def test_a_spare(self):
        """A rank that the first plan leaves out takes the place of a lost one, by measured times."""
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover", "--stages", "2", "--measure", "auto")
        before = {s["rank"] for s in ask(port, "GET", "/plan")[1]["stages"]}
        self.assertEqual(before, {0, 1})
        pid = job.rank_pid(1)
        self.assertEqual(all_streams(port, lambda: (time.sleep(0.2), kill(pid))), wanted)
        self.assertEqual({s["rank"] for s in check_metrics(port)["stages"]}, {0, 2})
        self.end(job, [1], "a spare takes over")

    def test_spares(self):
        """Spares hold all layers, so that nobody loads any when a rank is lost, unless a spare was measured to be slow.
        Without measured times, the other ranks keep their stages."""
        wanted = self.undisturbed()
        for options in ([], ["--measure", "auto"]):
            port, job = self.start(4, "--recover", "--spares", "2", *options)
            before = ask(port, "GET", "/plan")[1]
            n_layers = before["stages"][-1]["last_layer"] + 1
            ranks = [s["rank"] for s in before["stages"]]
            spares = [rank for rank in range(4) if rank not in ranks]
            self.assertLessEqual(len(ranks), 2, before)
            victims = [rank for rank in ranks if rank != 0][-1:]
            self.assertEqual([s["rank"] for s in before["spares"]], spares)
            end = time.monotonic() + LIMIT_S
            while any(len(s["layers"]) < n_layers for s in ask(port, "GET", "/plan")[1]["spares"]):
                self.assertLess(time.monotonic(), end, ask(port, "GET", "/plan")[1])
                time.sleep(0.02)
            pids = [job.rank_pid(rank) for rank in victims]
            self.assertEqual(all_streams(port, lambda: (time.sleep(0.2), [kill(pid) for pid in pids])), wanted)
            after = check_metrics(port)
            self.assertLessEqual(len(after["stages"]), len(ranks), after)
            self.assertEqual({s["rank"] for s in after["stages"]} & set(victims), set(), after)
            if not options:
                self.assertLessEqual(set(ranks) - set(victims), {s["rank"] for s in after["stages"]}, after)
            done = self.end(job, victims, "spares")
            kept = b"[1-9]" if options else b"%d" % n_layers
            for _ in victims:
                self.assertRegex(done.stderr, kept + b" of %d layers were kept" % n_layers, str(done))

    def test_drain_to_a_spare(self):
        """KV blocks go along with the layers, there and back. Who asks twice gets no other answer."""
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover", "--spares", "1")
        n_layers = ask(port, "GET", "/plan")[1]["stages"][-1]["last_layer"] + 1

        def meanwhile():
            for path, ranks in (("drain", {0, 2}), ("undrain", {0, 2}), ("drain", {0, 1})):
                end = time.monotonic() + LIMIT_S
                while path == "drain" and any(len(s["layers"]) < n_layers
                                              for s in ask(port, "GET", "/plan")[1]["spares"]):
                    self.assertLess(time.monotonic(), end, ask(port, "GET", "/plan")[1])
                    time.sleep(0.01)
                rank = 2 if ranks == {0, 1} else 1
                for _ in range(3):
                    self.assertEqual(ask(port, "POST", "/cluster/%s?rank=%d" % (path, rank))[0], 200)
                    time.sleep(0.005)
                self.wait_for_plan(port, ranks)

        self.assertEqual(all_streams(port, meanwhile), wanted)
        done = self.end(job, [], "drained to a spare")
        self.assertRegex(done.stderr, b"the keys and values of [0-9]+ tokens go on, too; those of [1-9][0-9]* were copied "
                         b"before the pause", str(done))

    def wait_for_plan(self, port, ranks):
        end = time.monotonic() + LIMIT_S
        while {s["rank"] for s in check_metrics(port)["stages"]} != ranks:
            self.assertLess(time.monotonic(), end, "the plan does not change")
            time.sleep(0.02)

    def scrape(self, port, over, found):
        """Reads /metrics all the time. Each time, the stages are those of one whole plan. /readyz says that it is ready, or
        that another plan is being made."""
        plans = set()
        try:
            while not over.is_set():
                stages = stages_in(metrics(port))
                edges = [first for _, _, first, _ in stages] + [stages[-1][3] + 1]
                assert edges == [0] + [last + 1 for _, _, _, last in stages], stages
                plans.add(tuple(rank for _, rank, _, _ in stages))
                status, answer = ask(port, "GET", "/readyz")
                assert (status, answer["status"]) in ((200, "ok"), (503, "changing")), answer
            found.append(plans)
        except (OSError, IndexError, AssertionError) as e:
            found.append(repr(e))

    def test_drain(self):
        """Layers go from rank to rank while streams run, and nobody is lost."""
        wanted = self.undisturbed()
        port, job = self.start(3, "--recover")
        over, found = threading.Event(), []
        readers = [threading.Thread(target=self.scrape, args=(port, over, found)) for _ in range(2)]
        for t in readers:
            t.start()
        self.addCleanup(over.set)

        def meanwhile():
            for path, rank, ranks in (("drain", 1, {0, 2}), ("drain", 0, {2}), ("undrain", 1, {1, 2}),
                                      ("undrain", 0, {0, 1, 2})):
                time.sleep(0.1)
                self.assertEqual(ask(port, "POST", "/cluster/%s?rank=%d" % (path, rank)),
                                 (200, {"rank": rank, "drains": path == "drain"}))
                self.wait_for_plan(port, ranks)

        self.assertEqual(all_streams(port, meanwhile), wanted)
        over.set()
        for t in readers:
            t.join()
        self.assertTrue(all(isinstance(plans, set) and len(plans) > 1 for plans in found), found)
        for rank in (0, 1):
            ask(port, "POST", "/cluster/drain?rank=%d" % rank)
        self.wait_for_plan(port, {2})
        for query, words in (("rank=2", "the last one"), ("rank=3", "no such rank"), ("rank=x", "the number of a rank"),
                             ("", "the number of a rank")):
            status, answer = ask(port, "POST", "/cluster/drain?" + query)
            self.assertEqual(status, 400, answer)
            self.assertIn(words, answer["error"]["message"])
        self.assertEqual(ask(port, "GET", "/plan")[1]["drained"], [0, 1])
        kill(job.rank_pid(1))  # holds no layers
        self.assertEqual(all_streams(port), wanted)
        self.assertEqual(check_metrics(port)["ranks"], ["drained", "lost", "stage"])
        self.end(job, [1], "drained")


class Commands(unittest.TestCase):
    """perplexity, whose figures hang on every row of logits: rows that come again are not counted twice."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        text = os.path.join(self.folder, "text")
        with open(text, "w", encoding="ascii") as f:
            f.write("Once upon a time there was a little girl who liked to play. " * 1600)
        self.args = ["perplexity", DEMO, "-f", text, "--ctx", "128", "--threads", "1"]
        done = run_ranks(1, self.args)
        self.assertEqual(done.status, 0, str(done))
        self.wanted = done.stdout

    def start(self, n, *options, hosts=None):
        """A job under deploy/millrace-mpirun."""
        job = Job(n, [*self.args, *options], hosts=hosts, launcher=[WRAPPER], mpirun_args=["--recovery"], program=[],
                  env={"MILLRACE_BIN": program_path()})
        self.addCleanup(job.left, 0)  # where a test fails
        return job

    def check(self, job, words, may_leave=False):
        done = job.wait(LIMIT_S)
        self.assertEqual(done.status, 0, str(done))
        if not may_leave:
            self.assertEqual(done.left, [], str(done))
        self.assertEqual(done.stdout, self.wanted, str(done))
        self.assertRegex(done.stderr.decode(), words, str(done))

    @staticmethod
    def wait_until_loaded(job):
        said = b""
        while b"loaded " not in said:
            piece = os.read(job.process.stderr.fileno(), 65536)
            assert piece, said
            said += piece

    def test_killed(self):
        for delay in (0.1, 0.4):
            job = self.start(3)
            pid = job.rank_pid(2)
            self.wait_until_loaded(job)
            time.sleep(delay)
            kill(pid)
            self.check(job, "rank 2 on .* is gone: its connection closed; the others take over its layers")

    def test_hosts(self):
        """A host loses its network. Another one has no room for the layers that it is to fetch."""
        if Hosts.available():
            self.skipTest(Hosts.available())
        with Hosts(3) as hosts:
            job = self.start(None, hosts=hosts)
            self.wait_until_loaded(job)
            hosts.cut("b")
            self.check(job, "rank 1 on .* is gone: its host has not answered for 1 s; the others take over its layers",
                       may_leave=True)  # mpirun's daemon there, which ends when it can hear that mpirun has ended
            hosts.join("b")
            self.assertEqual(job.left(20), [])
        cache = os.path.join(self.folder, "cache")
        os.mkdir(cache)
        with Hosts(3, hide={"c": [DEMO]}) as hosts:
            hosts.holders["c"].call("mount", "-t", "tmpfs", "-o", "size=64k", "none", cache)
            job = self.start(None, "--cache-dir", cache, hosts=hosts)
            self.check(job, "rank 2 on .*; the other ranks take over its layers")


if __name__ == "__main__":
    sys.exit(run_tests())
