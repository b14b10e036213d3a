#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Invariant I1 over processes: ids and logits of any number of ranks under mpirun are those of one process, to the bit,
through shared memory, TCP and several hosts. Argument: the class of tests to run. Exit status 77: all were skipped."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_split  # noqa: E402 (after the path)
from hosts import Hosts, program_path, run_ranks, run_tests  # noqa: E402 (after the path)

BIN = program_path()
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
VECTORS = os.path.join(os.environ.get("MILLRACE_TEST_VECTORS", ""), "models")
LIMIT_S = 120  # of one command; sanitizer builds on busy machines are slow
PROMPTS = ["Once upon a time", "The miller of Otterby", "It rained. ", "x"]
GENERATE = [word for prompt in PROMPTS for word in ("-p", prompt)]
GENERATE += ["-n", "24", "--temp", "0.8", "--seed", "7", "--ignore-eos", "--json"]
N_LOGITS = 96


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-mpi-")
        cls.alone = {}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def ids_file(self):
        with open(self.path("ids.txt"), "w", encoding="ascii") as f:
            f.write(" ".join(str(1 + i * 37 % 300) for i in range(N_LOGITS)))
        return f.name

    def logits_args(self, model):
        return ["logits", model, "--ids-file", self.ids_file(), "-o", self.path("logits.f32")]

    def read_logits(self):
        with open(self.path("logits.f32"), "rb") as f:
            data = f.read()
        os.unlink(self.path("logits.f32"))
        return data

    @staticmethod
    def ids(output):
        sequences = json.loads(output)["sequences"]
        return [(s["ids"], s["text"], s["finish_reason"]) for s in sequences]

    def one_process(self, model):
        """Ids and logits of a model without mpirun; computed once."""
        if model not in self.alone:
            out = subprocess.run([BIN, "generate", model, *GENERATE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 timeout=LIMIT_S, check=True).stdout
            subprocess.run([BIN, *self.logits_args(model)], stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
            self.alone[model] = (self.ids(out), self.read_logits())
            self.assertEqual([len(ids) for ids, _, _ in self.alone[model][0]], [24] * len(PROMPTS))
            self.assertEqual(len(self.alone[model][1]) % (4 * N_LOGITS), 0)
        return self.alone[model]

    def good(self, n, args, **kwargs):
        """The end of a job that succeeds and leaves nothing behind."""
        done = run_ranks(n, args, timeout=LIMIT_S, **kwargs)
        self.assertEqual((done.status, done.left), (0, []), str(done))
        return done

    def check_ids(self, n, model, *args, **kwargs):
        done = self.good(n, ["generate", model, *GENERATE, *args], **kwargs)
        self.assertEqual(self.ids(done.stdout), self.one_process(model)[0], str(done))
        return json.loads(done.stdout)["plan"], done.stderr.decode()

    def check_logits(self, n, model, *args, **kwargs):
        done = self.good(n, [*self.logits_args(model), *args], **kwargs)
        self.assertTrue(self.read_logits() == self.one_process(model)[1], str(done))

    def check(self, n, model, **kwargs):
        """Ids and logits over n ranks; each holds a stage."""
        with self.subTest(n=n, model=os.path.basename(model)):
            plan, messages = self.check_ids(n, model, **kwargs)
            self.assertEqual([stage["stage"] for stage in plan], list(range(n)))
            self.check_logits(n, model, **kwargs)
            return messages


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Samplers(Case):
    """Ids and log-probabilities of one process, of one rank and of three, by every sampler and a grammar."""

    ALL = ["--typical", "0.97", "--top-n-sigma", "3", "--xtc-probability", "0.3", "--xtc-threshold", "0.05",
           "--presence-penalty", "0.2", "--frequency-penalty", "0.1", "--repeat-penalty", "1.1", "--dry-multiplier", "0.8",
           "--dry-allowed-length", "1", "--logit-bias", "29=-inf", "--logit-bias", "300=2", "--logprobs", "3"]

    def test_ranks(self):
        with open(self.path("lines.gbnf"), "w", encoding="ascii") as f:
            f.write('root ::= ([a-zA-Z ]{3,20} [,.] " ")+\n')
        args = [*GENERATE, *self.ALL, "--grammar", f.name]
        for mirostat in ("0", "2"):
            command = ["generate", DEMO, *args, "--mirostat", mirostat, "--mirostat-ent", "3"]
            alone = subprocess.run([BIN, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT_S,
                                   check=True).stdout
            want = json.loads(alone)["sequences"]
            self.assertEqual([len(s["logprobs"]) for s in want], [24] * len(PROMPTS))
            for n in (1, 3):
                done = self.good(n, command)
                self.assertEqual(json.loads(done.stdout)["sequences"], want, str(done))


class Profile(Case):
    """The counts of one process, of any number of ranks and rows of a step. Not every layer has experts."""

    ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

    def test_ranks(self):
        out = self.path("counts.json")
        for name in ("qwen3moe", "deepseek2"):
            args = ["profile", os.path.join(self.ROOT, "golden", "arch", f"{name}.gguf"), "-f",
                    os.path.join(self.ROOT, "data", "perplexity.txt"), "-o", out, "--cut"]
            want = None
            for n, cut, chunk in ((0, "1", 64), (1, None, 7), (2, "1", 160), (3, "2,3", 7), (3, None, 160)):
                command = (args + [cut] if cut and n else args[:-1]) + ["--chunk", str(chunk)]
                if n:
                    self.good(n, command)
                else:
                    subprocess.run([BIN, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
                                   timeout=LIMIT_S)
                with open(out, "rb") as f:
                    found = f.read()
                os.unlink(out)
                want = want or found
                self.assertTrue(found == want, (name, n, cut, chunk))
                self.assertGreater(json.loads(found)["rows"], 1000)


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Demo(Case):
    """Through shared memory, and what else mpirun finds best."""

    def test_ranks(self):
        for n in (1, 2, 3, 4, 8):
            self.check(n, DEMO)

    def test_surplus_ranks(self):
        plan, messages = self.check_ids(10, DEMO)
        self.assertEqual(len(plan), 8)
        self.assertIn("2 of 10 ranks are left out", messages)
        self.check_logits(10, DEMO)

    def test_stages(self):
        plan, messages = self.check_ids(4, DEMO, "--stages", "2")
        self.assertEqual(len(plan), 2)
        self.assertIn("2 of 4 ranks are left out", messages)
        done = run_ranks(2, ["generate", DEMO, *GENERATE, "--stages", "3"])
        self.assertEqual((done.status, done.stdout, done.left), (2, b"", []), str(done))
        self.assertIn(b"3 stages", done.stderr)

    def test_cut(self):
        plan, _ = self.check_ids(3, DEMO, "--cut", "1,7")
        self.assertEqual([(s["first_layer"], s["last_layer"]) for s in plan], [(0, 0), (1, 6), (7, 7)])
        self.check_logits(3, DEMO, "--cut", "1,7")

    def test_plan_file(self):
        """Ranks in any order, some of them without a stage, the first one too."""
        path = self.path("plan.json")
        subprocess.run([BIN, "plan", DEMO, "--stages", "2", "--save", path], stdout=subprocess.DEVNULL, check=True,
                       env=dict(os.environ, MILLRACE_MEASURE="off"), timeout=LIMIT_S)
        with open(path, encoding="utf-8") as f:
            saved = json.load(f)
        for n, ranks in ((2, [1, 0]), (3, [2, 1]), (3, [2, 0, 1]), (2, [1])):
            with self.subTest(ranks=ranks):
                edges = [*range(len(ranks)), saved["model"]["layers"]]
                saved["stages"] = [{"rank": rank, "first_layer": edges[i], "last_layer": edges[i + 1] - 1}
                                   for i, rank in enumerate(ranks)]
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(saved, f)
                plan, _ = self.check_ids(n, DEMO, "--plan", path)
                self.assertEqual([stage["rank"] for stage in plan], ranks)
                self.check_logits(n, DEMO, "--plan", path)
        saved["stages"] = [{"rank": rank, "host": host, "first_layer": first, "last_layer": first + 3}
                           for rank, host, first in ((1, "elsewhere", 0), (0, socket.gethostname(), 4))]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(saved, f)
        _, messages = self.check_ids(2, DEMO, "--plan", path)
        self.assertIn("stage 0 was planned for elsewhere, but rank 1 is on", messages)
        self.assertIn("(1 of 2 stages are elsewhere)", messages)
        saved["stages"][0]["rank"] = 2
        with open(path, "w", encoding="utf-8") as f:
            json.dump(saved, f)
        done = run_ranks(2, ["generate", DEMO, *GENERATE, "--plan", path], timeout=LIMIT_S)
        self.assertEqual((done.status, done.left), (2, []), str(done))
        self.assertIn("stages[0].rank is 2, but there are ranks 0 to 1 only; hint: start 3 ranks", done.stderr.decode())

    def test_measured_plan(self):
        """Whatever the ranks measure on a busy machine: a plan comes, and a run that is planned so has the same bits."""
        path, env = self.path("measured.json"), {"MILLRACE_MEASURE": "auto", "MILLRACE_CACHE_DIR": self.path("cache")}
        done = self.good(2, ["plan", DEMO, "-t", "1", "--save", path], env=env)
        self.assertRegex(done.stdout.decode(), r"tokens/s +\d")
        with open(path, encoding="utf-8") as f:
            facts = json.load(f)["facts"]
        self.assertEqual([rank["threads"] for rank in facts["ranks"]], [1, 1])
        self.assertTrue(all(rank["memory_bytes"] > 0 for rank in facts["ranks"]))
        self.assertTrue(facts["links"][0][1]["bytes_per_second"] > 0)
        self.check_ids(2, DEMO, "-t", "1", env=env)

    def test_chunks_and_threads(self):
        self.check_logits(3, DEMO, "--chunk", "7", "--threads", "1")
        self.check_ids(2, DEMO, "--chunk", "3", "--threads", "2", "--sequences", "2")

    def test_perplexity(self):
        with open(self.path("text"), "w", encoding="ascii") as f:
            f.write("Once upon a time a little mill stood beside the river. " * 40)
        args = ["perplexity", DEMO, "-f", f.name, "--ctx", "100"]
        alone = subprocess.run([BIN, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT_S,
                               check=True).stdout
        self.assertEqual(self.good(3, args).stdout, alone)

    def test_instruction_sets_meet(self):
        """One rank with the best instructions of this machine, one with the scalar code."""
        args = [*self.logits_args(DEMO)]
        self.check_logits(1, DEMO, ":", "-n", "1", "-x", "MILLRACE_CPU_ISA=scalar", BIN, *args)

    def test_a_rank_with_wishes_of_its_own(self):
        """What rank 0 was told holds: a rank whose environment asks for fast numerics computes exact ones."""
        args = [*self.logits_args(DEMO)]
        wish = ["-x", "MILLRACE_NUMERICS=fast", "-x", "MILLRACE_BACKEND=blas"]
        self.check_logits(1, DEMO, ":", "-n", "1", *wish, BIN, *args)


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Tcp(Case):
    def test_ranks(self):
        for n in (2, 3, 4, 8):
            self.check(n, DEMO, btl="tcp,self")


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Network(Case):
    """Hosts with networks of their own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        why = Hosts.available()
        if why:
            cls.tearDownClass()
            raise unittest.SkipTest(why)

    @staticmethod
    def hosts_of(messages):
        """The last column of the plan, without the line of sums."""
        lines = messages.splitlines()
        first = next(i for i, line in enumerate(lines) if line.endswith("host")) + 1
        return [line.split()[-1] for line in lines[first:] if line.split()[0].isdigit()]

    def test_one_rank_on_each_host(self):
        with Hosts(3) as hosts:
            messages = self.check(3, DEMO, hosts=hosts)
            self.assertEqual(self.hosts_of(messages), list(hosts.names.values()))

    def test_two_ranks_on_each_host(self):
        with Hosts(2, slots=2) as hosts:
            messages = self.check(4, DEMO, hosts=hosts)
            self.assertEqual(self.hosts_of(messages), [hosts.names[i] for i in "aabb"])

    def test_another_file_on_one_host(self):
        model, other = self.path("model.gguf"), self.path("other.gguf")
        shutil.copyfile(DEMO, model)
        with open(DEMO, "rb") as f:
            data = bytearray(f.read())
        data[data.index(b"Millrace demo")] ^= 1
        with open(other, "wb") as f:
            f.write(data)
        with Hosts(2, replace={"b": {model: other}}) as hosts:
            self.refused(hosts, model)

    def test_file_on_one_host(self):
        """The others get their layers from it, once; each keeps them in a cache of its own."""
        model, cache = self.path("model.gguf"), self.path("cache")
        shutil.copyfile(DEMO, model)
        os.mkdir(cache)
        with Hosts(3, hide={"b": [model, cache], "c": [model, cache]}) as hosts:
            self.assertEqual(self.moved(hosts, model, cache), 2)
            self.assertEqual(self.moved(hosts, model, cache), 0)
            self.check_logits(3, model, "--cache-dir", cache, "--no-repack", hosts=hosts)
            self.check_logits(3, model, "--cache-dir", cache, "--cut", "1,7", "--verify-weights", hosts=hosts)

    def test_parts_on_one_host(self):
        """The others get what they need of each part. Any part may be named."""
        folder, cache = self.path("parts"), self.path("cache-of-parts")
        os.mkdir(folder)
        os.mkdir(cache)
        paths = gguf_split.split(DEMO, os.path.join(folder, "demo"), 4)
        whole = len(paths) << 21  # with the gaps: a part is larger than 1 MiB and smaller than 2 MiB
        self.alone[paths[2]] = self.one_process(DEMO)
        with Hosts(3, hide={"b": [folder, cache], "c": [folder, cache]}) as hosts:
            self.assertEqual(self.moved(hosts, paths[2], cache, whole), 2)
            self.assertEqual(self.moved(hosts, paths[2], cache, whole), 0)
            self.check_logits(3, paths[2], "--cache-dir", cache, "--no-repack", hosts=hosts)

    def spread(self, name, on_hosts):
        """The demo model in four parts, of which each host has some, over four folders: the path of part 2, and what
        Hosts takes. The first folder has all parts, and each host sees its own in place of that."""
        folder, cache, replace = self.path(name), self.path("cache-of-" + name), {}
        os.mkdir(folder)
        os.mkdir(cache)
        paths = gguf_split.split(DEMO, os.path.join(folder, "demo"), 4)
        for letter, numbers in on_hosts.items():
            own = self.path(name + "-" + letter)
            os.mkdir(own)
            for i in numbers:
                os.link(paths[i - 1], os.path.join(own, os.path.basename(paths[i - 1])))
            replace[letter] = {folder: own}
        self.alone[paths[1]] = self.one_process(DEMO)
        return paths[1], cache, {"replace": replace, "hide": {letter: [cache] for letter in on_hosts}}

    def test_parts_spread_over_hosts(self):
        """Each host serves the parts that it has, and gets what it lacks; rank 0 lacks half."""
        model, cache, changes = self.spread("spread", {"a": [1, 2], "b": [2, 3], "c": [4]})
        whole = 4 << 21  # as above
        with Hosts(3, **changes) as hosts:
            self.assertEqual(self.moved(hosts, model, cache, whole), 2)
            self.assertEqual(self.moved(hosts, model, cache, whole), 0)
            self.check_logits(3, model, "--cache-dir", cache, "--no-repack", hosts=hosts)
            self.check_logits(3, model, "--cache-dir", cache, "--cut", "1,7", hosts=hosts)

    def test_parts_that_are_wrong(self):
        """A part that no host has, one that is cut short, and one of another model: one line each."""
        model, _, changes = self.spread("lacking", {"a": [1, 2], "b": [2, 4]})
        part = model.replace("00002-of", "00003-of")
        with Hosts(2, **changes) as hosts:
            self.refused(hosts, model, word="no rank has part 3 of the model's 4, " + model, rank="")
        model, _, changes = self.spread("short", {"a": [1, 2], "b": [3, 4]})
        part = os.path.join(changes["replace"]["b"][os.path.dirname(model)], os.path.basename(part))
        os.truncate(part, os.path.getsize(part) - 1)
        with Hosts(2, **changes) as hosts:
            self.refused(hosts, model, word=os.path.basename(part) + ": ")
        with open(part, "r+b") as f:
            data = bytearray(f.read())
            at = data.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
            data[at] += 1
            f.seek(0)
            f.write(data + b"\0")
        with Hosts(2, **changes) as hosts:
            self.refused(hosts, model, word="part 3 of its model file")
        model, _, changes = self.spread("headless", {"a": [2], "b": [1, 3, 4]})
        with Hosts(2, **changes) as hosts:
            self.refused(hosts, model, word="rank 0 needs the model file, or the first of its parts", rank="")

    def moved(self, hosts, model, cache, whole=os.path.getsize(DEMO) if os.path.exists(DEMO) else 0):
        """How many times 1 MiB went from host to host, at least; ids are those of one process."""
        plan, messages = self.check_ids(3, model, "--cache-dir", cache, hosts=hosts)
        self.assertEqual(len(plan), 3)
        n_bytes = re.search(r"; (\d+) bytes of the model file went to [23] ranks that lacked them", messages)
        self.assertLess(int(n_bytes[1]), 2 * whole)
        return min(int(n_bytes[1]) >> 20, 2)

    def test_cache_that_cannot_be(self):
        model = self.path("model.gguf")
        shutil.copyfile(DEMO, model)
        with Hosts(2, hide={"b": [model]}) as hosts:
            self.refused(hosts, model, "--cache-dir", "/dev/null/cache", word="/dev/null cannot be made")

    def refused(self, hosts, model, *args, word="", rank="rank 1 on "):
        """One line names rank, host and file."""
        done = run_ranks(2, ["generate", model, "--log-level", "warn", *GENERATE, *args], hosts=hosts)
        self.assertGreater(done.status, 0, str(done))
        self.assertEqual((done.stdout, done.left), (b"", []), str(done))
        lines = [line for line in done.stderr.splitlines() if b"plm:rsh: Warning" not in line]  # a race in mpirun
        self.assertEqual(len(lines), 1, str(done))
        for words in (rank and rank + hosts.names["b"], word or model):
            self.assertIn(words, done.stderr.decode())


@unittest.skipUnless(os.path.isdir(VECTORS), "there are no test vectors")
class Vectors(Case):
    def test_models(self):
        for name in ("llama-Q8_0", "llama-Q4_K", "qwen2-Q8_0", "qwen3-Q4_K"):
            for n in (2, 3):
                self.check(n, os.path.join(VECTORS, name + ".gguf"))


if __name__ == "__main__":
    sys.exit(run_tests())
