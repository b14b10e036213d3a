#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace plan` by facts, plan files that are saved, edited and wrong, and runs that follow them."""
import copy
import json
import re
import unittest

import cli

LAYERS = 3


def curve(first, row):
    rows = [1, 2, 4, 8, 16, 32, 64]
    return {"rows": rows, "seconds": [first + row * n for n in rows]}


def rank(host, row=1e-4, memory=1 << 33):
    return {"host": host, "threads": 4, "memory_bytes": memory, "position_s": 1e-9, "step_s": 1e-6,
            "layers": [curve(1e-6, row)], "output": curve(1e-6, row / 10)}


class Plan(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = cli.subprocess.run([cli.BIN, "plan", cls.model, "--stages", "2", "--save", cls.path("saved.json")],
                                  env=cli.environment(), stdout=cli.subprocess.DEVNULL, check=True, timeout=cli.LIMIT_S)
        assert done.returncode == 0
        with open(cls.path("saved.json"), encoding="utf-8") as f:
            cls.saved = json.load(f)

    def write(self, data, name="edited.json"):
        return self.file(name, json.dumps(data))

    def facts(self, *ranks, latency=1e-5, speed=1e9):
        """A facts file of these ranks, with equal links."""
        link = {"latency_s": latency, "bytes_per_second": speed}
        data = copy.deepcopy(self.saved)
        del data["stages"]
        data["facts"] = {"row_bytes": 256, "kinds": [0] * LAYERS, "ranks": list(ranks),
                         "links": [[None if a == b else dict(link) for b in range(len(ranks))] for a in range(len(ranks))]}
        return data

    def plan(self, data, *args):
        done = self.run_bin("plan", self.model, "--facts", self.write(data, "facts.json"), "--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr.decode()

    def ids(self, *args):
        out = self.good("generate", self.model, "-p", "the", "-n", "12", "--temp", "0", "--ignore-eos", "--json", *args)
        found = json.loads(out)
        return found["sequences"][0]["ids"], [(p["first_layer"], p["last_layer"]) for p in found["plan"]]

    # --- Memory

    @cli.needs_demo
    def test_matrices_that_stay_in_the_file(self):
        """They do not count for --mem, so the plan says how much of them every step reads."""
        plan = ("plan", cli.DEMO, "--mem")
        whole, mapped = (json.loads(self.good(*plan, mem, "--json")) for mem in ("1G", "9M"))
        self.assertEqual((whole["repacked"], mapped["repacked"]), (True, False))
        self.assertEqual(whole["plan"][0]["file_bytes"], 0)
        stage = mapped["plan"][0]
        self.assertEqual(stage["file_bytes"], 8 * 628736 + 278528 + 1024 - stage["weight_bytes"])
        done = self.run_bin(*plan, "9M")
        self.assertRegex(done.stdout.decode(), r"weights +in the file +KV cache")
        self.assertRegex(done.stderr.decode(), r"warning: 5\.0 MiB of weights .* read again for every step, which is slow")
        self.assertNotIn("in the file", self.good(*plan, "1G").decode())
        done = self.run_bin(*plan, "1G", "--no-repack")  # there is room to keep it
        self.assertNotIn(b"slow", done.stderr)

    def test_a_plan_larger_than_this_machine_is_said(self):
        for sequences, warned in (("1", False), ("4096", True)):
            done = self.run_bin("plan", self.model, "--ctx", "1048576", "--sequences", sequences)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(b"this machine has " in done.stderr, warned, done.stderr)
            self.assertEqual(b"fewer --sequences" in done.stderr, warned, done.stderr)

    # --- Plan files

    def test_what_is_saved(self):
        self.assertEqual(self.saved["model"]["layers"], LAYERS)
        self.assertEqual([s["rank"] for s in self.saved["stages"]], [0, 1])
        text = self.good("plan", self.model, "--plan", self.path("saved.json"), "--json")
        want = self.good("plan", self.model, "--stages", "2", "--json")
        self.assertEqual(json.loads(text)["plan"], json.loads(want)["plan"])

    def test_a_run_follows_it(self):
        alone, _ = self.ids()
        data = copy.deepcopy(self.saved)
        data["stages"] = [{"rank": 5, "first_layer": 0, "last_layer": 0}, {"rank": 2, "first_layer": 1, "last_layer": 2}]
        ids, plan = self.ids("--plan", self.write(data))
        self.assertEqual(plan, [(0, 0), (1, 2)])  # threads, whatever ranks there were
        self.assertEqual(ids, alone)

    def test_of_version_1(self):
        """Older files name the layer after the last one."""
        data = copy.deepcopy(self.saved)
        self.assertEqual((data["millrace_plan"], [s["last_layer"] for s in data["stages"]]), (3, [1, 2]))
        data.update(millrace_plan=1, stages=[{"rank": 0, "first_layer": 0, "last_layer": 1},
                                             {"rank": 1, "first_layer": 1, "last_layer": 3}])
        self.assertEqual(self.ids("--plan", self.write(data))[1], [(0, 0), (1, 2)])
        data["stages"][1]["last_layer"] = 1
        self.bad(1, "stages[1].last_layer is 1, but should be at least 2 (in version 1 it is one past the last)", "plan",
                 self.model, "--plan", self.write(data))

    def test_positions_of_each_kind(self):
        """Older files have one number for all kinds."""
        def rates(position_s, kinds):
            layer = curve(1e-6, 1e-6)
            ranks = [dict(rank(h), position_s=position_s, layers=[layer] * (max(kinds) + 1)) for h in ("a", "b")]
            data = self.facts(*ranks)
            data["facts"]["kinds"] = kinds
            return self.plan(data)[0]["predicted"]["decode"]
        self.assertEqual(rates(1e-6, [0, 1, 1]), rates([1e-6, 1e-6], [0, 1, 1]))
        self.assertNotEqual(rates(1e-6, [0, 1, 1]), rates([1e-6, 2e-6], [0, 1, 1]))
        data = self.facts(dict(rank("a"), position_s=[1e-9, 1e-9]))
        self.bad(1, "facts.ranks[0].position_s has 2 numbers, but there are 1 kinds of layers", "plan", self.model,
                 "--facts", self.write(data))

    def refused(self, change, *words):
        data = copy.deepcopy(self.saved)
        change(data)
        path = self.write(data)
        self.bad(1, (path, *words), "generate", self.model, "-p", "x", "--plan", path)

    def test_edited_wrongly(self):
        def stage(i, **fields):
            return lambda d: d["stages"][i].update(fields)
        self.refused(stage(1, rank=0), "stages[1].rank is 0, which has stage 0 already")
        self.refused(stage(1, first_layer=0), "stages[1].first_layer is 0", "the stage before has that layer too")
        self.refused(stage(0, last_layer=0), "stages[1].first_layer is 2", "no stage has the layers between")
        self.refused(stage(0, first_layer=1), "stages[0].first_layer is 1", "begins with layer 0")
        self.refused(stage(1, last_layer=1), "stages[1].last_layer is 1, but should be at least 2, first_layer")
        self.refused(stage(1, last_layer=3), "stages[1].last_layer is 3, allowed is 0 to 2")
        self.refused(stage(0, last_layer="1"), "stages[0].last_layer should be a whole number")
        self.refused(stage(0, rank=-1), "stages[0].rank is -1, allowed is 0 to 1023")
        self.refused(stage(0, rank=1.5), "stages[0].rank should be a whole number")
        self.refused(lambda d: d["stages"][1].pop("rank"), "stages[1].rank is missing")
        self.refused(lambda d: d["stages"].pop(), "stages end with layer", "has 3 layers")
        self.refused(lambda d: d["stages"].clear(), "stages should be an array of 1 to 1024")
        self.refused(lambda d: d.update(stages=7), "stages should be an array")
        self.refused(lambda d: d.update(stages=[7]), "stages[0]. should be an object")
        self.refused(lambda d: d.pop("stages"), "stages")
        self.refused(lambda d: d.pop("model"), "model is missing")
        self.refused(lambda d: d.update(millrace_plan=4), "millrace_plan is 4, allowed is 1 to 3")
        self.refused(lambda d: d.pop("millrace_plan"), "is no plan")

    def test_of_another_model(self):
        self.refused(lambda d: d["model"].update(digest="0x0123456789abcdef"), "model.digest", "hint: a plan is for one file")
        self.refused(lambda d: d["model"].update(digest="12"), "model.digest should be a text like")
        self.refused(lambda d: d["model"].update(digest="0x01234567 9abcdeg"), "model.digest should be a text like")

        def deeper(d):
            d["model"]["layers"] = 4
            d["stages"][-1]["last_layer"] = 3
        self.refused(deeper, "model.layers is 4, but this model has 3")

    def test_what_gives_way_to_it(self):
        """Variables do; what stands on the command line is refused, or goes before a plan that is a variable."""
        path = self.path("saved.json")
        alone, _ = self.ids()
        for args, env in ((("--plan", path), {"MILLRACE_STAGES": "3"}), ((), {"MILLRACE_PLAN": path, "MILLRACE_CUT": "1"})):
            found = json.loads(self.good("plan", self.model, "--json", *args, env=env))
            self.assertEqual(len(found["plan"]), 2)
        found = json.loads(self.good("plan", self.model, "--json", "--stages", "3", env={"MILLRACE_PLAN": path}))
        self.assertEqual(len(found["plan"]), 3)
        generate = ("generate", self.model, "-p", "the", "-n", "2", "--synthetic-stage", "1,0;1,0;1,0", "--json")
        found = json.loads(self.good(*generate, env={"MILLRACE_PLAN": path}))
        self.assertEqual(len(found["plan"]), 3)
        self.bad(2, ["--plan", "--synthetic-stage"], *generate, "--plan", path)
        self.good("bench", self.model, "-p", "2", "-n", "2", "-r", "1", env={"MILLRACE_SEQUENCES": "8"})
        self.bad(2, ["--sequences", "--load"], "bench", self.model, "--sequences", "8")

    def test_no_plan_at_all(self):
        self.bad(1, "cannot be read", "plan", self.model, "--plan", self.path("nowhere.json"))
        for text in ("{", "[]", "7", "null", '{"millrace_plan": 1, "millrace_plan": 1}', "[" * 100000):
            self.bad(1, "is no plan", "plan", self.model, "--plan", self.file("bad.json", text))
        self.bad(2, ["--plan", "--stages"], "plan", self.model, "--plan", self.path("saved.json"), "--stages", "2")
        self.bad(1, "it is a folder", "plan", self.model, "--plan", self.path("."))
        self.bad(1, "bad/", "plan", self.model, "--stages", "2", "--save", self.path("bad/plan.json"))

    # --- Facts

    def test_faster_ranks_get_more(self):
        found, _ = self.plan(self.facts(rank("a"), rank("b", 5e-5)))
        held = {p["rank"]: p["last_layer"] - p["first_layer"] + 1 for p in found["plan"]}
        self.assertEqual(held, {0: 1, 1: 2})
        self.assertEqual({p["rank"]: p["host"] for p in found["plan"]}, {0: "a", 1: "b"})
        rates = [r["tokens_per_second"] for r in found["predicted"]["decode"]]
        self.assertEqual(len(rates), 7)
        self.assertEqual(rates, sorted(rates))
        latency, _ = self.plan(self.facts(rank("a"), rank("b", 5e-5)), "--objective", "latency")
        self.assertEqual([p["rank"] for p in latency["plan"]], [1])

    def test_ranks_that_were_busy(self):
        data = self.facts(rank("a"), rank("b"))
        data["facts"]["ranks"][0]["core_share"] = 0.97
        data["facts"]["ranks"][1]["core_share"] = 0.41
        _, messages = self.plan(data)
        self.assertRegex(messages, r"rank 1 on b was busy with other programs .* 41 % of the time")
        self.assertNotIn("rank 0 on a was busy", messages)
        _, messages = self.plan(self.facts(rank("a"), rank("b")))  # nothing is known
        self.assertNotIn("busy", messages)
        self.facts_refused(lambda f: f["ranks"][1].update(core_share=2), "core_share should be a number from 0 to 1")

    def test_forecasts_have_three_digits(self):
        done = self.run_bin("plan", self.model, "--facts", self.write(self.facts(rank("a"), rank("b", 5e-5))))
        self.assertEqual(done.returncode, 0, done.stderr)
        line = re.search(r"tokens/s +(.*)", done.stdout.decode()).group(1)
        for rate in line.split():
            self.assertLessEqual(len(rate.replace(".", "").strip("0")), 3, line)

    def test_ranks_that_are_left_out(self):
        found, messages = self.plan(self.facts(rank("a", memory=1000), rank("b"), rank("slow", 1), rank("d")))
        self.assertEqual({p["rank"] for p in found["plan"]}, {1, 3})
        self.assertIn("rank 0 on a is left out: it has 1000 B of memory", messages)
        self.assertIn("1 of 4 ranks is left out", messages)

        found, messages = self.plan(self.facts(rank("b"), rank("slow", 1), rank("d")), "--stages", "2")
        self.assertEqual(len(found["plan"]), 2)
        self.assertNotIn("left out", messages)  # nobody but the user chose that

    def test_more_stages_than_ranks(self):
        path = self.path("one.json")
        self.good("plan", self.model, "--stages", "1", "--save", path, env={"MILLRACE_MEASURE": "auto"})
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        self.assertNotEqual(data["facts"]["ranks"][0]["host"], "here")
        self.bad(2, ["3 stages need as many ranks", path], "plan", self.model, "--facts", path, "--stages", "3")
        self.bad(2, "3 stages need as many ranks", "plan", self.model, "--facts", path, "--cut", "1,2")
        data["stages"] = [{"rank": i, "first_layer": i, "last_layer": i} for i in range(LAYERS)]
        edited = self.write(data)
        self.bad(2, [edited, "stages[1].rank is 1"], "plan", self.model, "--plan", edited)
        self.bad(2, [edited, "stages[1].rank is 1"], "plan", self.model, "--plan", edited, "--save", self.path("two.json"))
        self.bad(2, [edited, "stages[1].rank is 1"], "plan", self.model, "--plan", self.write(data), "--facts", path)

    def test_slow_link(self):
        data = self.facts(rank("a", memory=300000), rank("b", memory=300000), latency=50e-3, speed=1e6)
        for r in data["facts"]["ranks"]:
            r["memory_bytes"] = 1 << 40
        data["stages"] = [{"rank": 1, "first_layer": 0, "last_layer": 1}, {"rank": 0, "first_layer": 2, "last_layer": 2}]
        path = self.write(data)
        done = self.run_bin("plan", self.model, "--plan", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"warning: the link from rank 1 on b to rank 0 on a \(50\.000 ms, 1\.0 MB/s\) costs")
        self.assertIn("would be faster", done.stderr.decode())
        data["facts"]["ranks"][0]["memory_bytes"] = 1000
        self.bad(1, ["rank 0 on a has 1000 B of memory for its stage, layers 2 to 2", "hint"], "plan", self.model, "--plan",
                 self.write(data))

    def test_too_little_memory(self):
        done = self.run_bin("plan", self.model, "--facts", self.write(self.facts(rank("a"), rank("b"))), "--mem", "100K")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not fit the memory of 2 ranks", done.stderr.decode())

    def misfit(self, *args):
        """What a plan that does not fit says. It is shown all the same."""
        done = self.run_bin("plan", *args)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout.decode(), r"together")
        self.assertIn("error: the ranks of %s have too little memory for this plan" % args[2], done.stderr.decode())
        self.assertNotRegex(done.stderr.decode(), r"\b0\.0\d* GiB")
        return done.stderr.decode()

    @cli.needs_demo
    def test_hosts_that_are_too_small(self):
        """The same words for one host and for several, whoever chose the stages, and a status that a script sees."""
        lists = [self.file(f"hosts{n}", "".join(f"node{i} mem=1M bw=50GB/s\n" for i in range(n))) for n in (1, 2)]
        for path, ranks in zip(lists, ("1 rank", "2 ranks")):
            error = self.misfit(cli.DEMO, "--facts", path)
            self.assertRegex(error, f"warning: the model does not fit the memory of {ranks}: weights take 5.3 MiB, a KV cache of "
                             f"512 tokens 2.0 MiB, buffers of each stage .* [KM]iB; together there are {ranks[0]}.0 MiB; hint: more hosts")
            error = self.misfit(cli.DEMO, "--facts", path, "--stages", ranks[0])
            self.assertRegex(error, r"warning: rank 0 on node0 has 1.0 MiB of memory for its stage, layers 0 to .* take \d\.\d MiB")
        self.misfit(cli.DEMO, "--facts", lists[1], "--cut", "4")
        done = self.run_bin("plan", cli.DEMO, "--facts", lists[0], "--json", "--save", self.path("small.json"))
        self.assertEqual((done.returncode, len(json.loads(done.stdout)["plan"])), (1, 1))
        self.good("plan", cli.DEMO, "--facts", self.file("large", "node0 mem=64M bw=50GB/s\n"))
        self.bad(1, "does not fit the memory of 1 rank", "plan", cli.DEMO, "--facts", lists[0], "--mem", "1M")

    @cli.needs_demo
    def test_a_further_rank_of_hosts_that_are_too_small(self):
        path = self.file("hosts", "node0 mem=1M bw=50GB/s\n")
        error = self.misfit(cli.DEMO, "--facts", path, "--what-if", "mem=1M")
        self.assertRegex(error, "warning: with the new rank, too, the model does not fit the memory of 2 ranks: .* there are 2.0 MiB")
        done = self.run_bin("plan", cli.DEMO, "--facts", path, "--what-if", "mem=1G,speed=0.01,link=1KB/s")
        self.assertEqual(done.returncode, 1)  # the hosts of the file are as small as before
        self.assertIn("with the new rank the model fits the memory", done.stdout.decode())
        self.assertNotIn(b"too, the model", done.stderr)
        for mem, fits in ("1M", False), ("1G", True):
            done = self.run_bin("plan", cli.DEMO, "--facts", path, "--what-if", f"mem={mem},speed=0.01", "--json")
            more = json.loads(done.stdout)["predicted"]["what_if"]
            self.assertEqual((more["fits"], more["used"]), (fits, fits), more)

    def test_empty_files(self):
        for text in "", "\n \t\r\n":
            path = self.file("empty", text)
            for option in "--facts", "--plan":
                self.bad(1, [path, "is empty", "hint"], "plan", self.model, option, path)

    def facts_refused(self, change, *words):
        data = self.facts(rank("a"), rank("b"))
        change(data["facts"])
        self.bad(1, words, "plan", self.model, "--facts", self.write(data))

    def test_wrong_facts(self):
        self.facts_refused(lambda f: f["ranks"][1].pop("host"), "facts.ranks[1].host is missing")
        self.facts_refused(lambda f: f["ranks"][1].update(step_s=-1), "facts.ranks[1].step_s should be a number from 0")
        self.facts_refused(lambda f: f["ranks"][1].update(memory_bytes="1"), "facts.ranks[1].memory_bytes should be a number")
        self.facts_refused(lambda f: f["ranks"][0].update(layers=[]), "facts.ranks[0].layers has 0 curves")
        self.facts_refused(lambda f: f["ranks"][0]["layers"][0].update(rows=[1]), "facts.ranks[0].layers should have two arrays")
        self.facts_refused(lambda f: f["ranks"][0]["layers"][0]["rows"].__setitem__(1, 1), "rows that do not ascend")
        self.facts_refused(lambda f: f["ranks"][0]["output"]["seconds"].__setitem__(1, -1), "facts.ranks[0].output should be a number")
        self.facts_refused(lambda f: f.update(kinds=[0]), "facts.kinds has 1 entries, but the model has 3 layers")
        self.facts_refused(lambda f: f.update(kinds=[0, 99, 0]), "facts.kinds should be a whole number from 0 to 15")
        self.facts_refused(lambda f: f.update(kinds=[0, 1.5, 0]), "facts.kinds should be a whole number from 0 to 15")
        self.facts_refused(lambda f: f["ranks"][0]["layers"][0]["rows"].__setitem__(1, 1.5), "should be a whole number from 1")
        self.facts_refused(lambda f: f.update(ranks=[]), "facts.ranks should be an array of 1")
        self.facts_refused(lambda f: f["links"].pop(), "facts.links has 1 lines, but there are 2 ranks")
        self.facts_refused(lambda f: f["links"].__setitem__(0, [None]), "facts.links[0] should be an array of 2 links")
        self.facts_refused(lambda f: f["links"][0][1].update(latency_s=None), "facts.links[0][1].latency_s should be a number")
        self.bad(1, "facts is missing", "plan", self.model, "--facts", self.path("saved.json"))

    def test_a_further_rank(self):
        data = self.facts(rank("a"), rank("b"))
        found, _ = self.plan(data, "--what-if", "mem=1GB,speed=2")
        before = found["predicted"]["decode"][-1]["tokens_per_second"]
        more = found["predicted"]["what_if"]
        self.assertTrue(more["used"])
        self.assertGreater(more["decode"][-1]["tokens_per_second"], 1.3 * before)
        for speed in (1, 2, 4, 16):  # one rank alone is no slower than with others that it does not need
            better, _ = self.plan(self.facts(rank("a"), rank("b"), rank("c")), "--what-if", f"speed={speed}")
            rates = zip(better["predicted"]["decode"], better["predicted"]["what_if"]["decode"])
            self.assertTrue(all(b["tokens_per_second"] >= a["tokens_per_second"] * 0.999 for a, b in rates if a["sequences"] == 64))
        useless, _ = self.plan(data, "--what-if", "speed=0.001,link=1KB/s")
        self.assertFalse(useless["predicted"]["what_if"]["used"])
        text = self.good("plan", self.model, "--facts", self.write(data), "--what-if", "bw=200GB/s").decode()
        self.assertTrue(re.search(r"with the new rank +\d", text), text)
        for wrong in ("", "speed", "speed=", "speed=-1", "speed=2x", "mem=1Q", "mem=1GB/s", "bw=nan", "fast=2", "mem=0",
                      "speed=2;mem=1"):
            self.bad(2, "--what-if", "plan", self.model, "--facts", self.write(data), "--what-if", wrong)
        self.bad(2, "--what-if needs measurements", "plan", self.model, "--what-if", "speed=2")

    # --- Measured

    def test_measured_here(self):
        """Figures are those of a busy machine; what is tested is that they come, and can be saved and used again."""
        path = self.path("measured.json")
        text = self.good("plan", self.model, "--stages", "2", "-t", "1", "--save", path, env={"MILLRACE_MEASURE": "auto"})
        self.assertRegex(text.decode(), r"step of \d+")
        self.assertRegex(text.decode(), r"tokens/s +\d")
        again = json.loads(self.good("plan", self.model, "--facts", path, "--json"))
        self.assertTrue(all(r["tokens_per_second"] > 0 for r in again["predicted"]["decode"]))

    def test_steps_beside_the_forecast(self):
        """Stages report their steps a few times a second: a run that is long enough says what they took."""
        args = ("bench", self.model, "--stages", "2", "-t", "1", "-p", "0", "-n", "100", "-r", "80")
        for measure, expected in (("auto", 2), ("off", 0)):
            done = self.run_bin(*args, env={"MILLRACE_MEASURE": measure})
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = re.findall(r"stage \d: a step of 1 row took \d[\d.]* ms, expected were \d[\d.]* ms", done.stderr.decode())
            self.assertEqual(len(lines), expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
