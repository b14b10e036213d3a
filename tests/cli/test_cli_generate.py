#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace generate`: streaming, several prompts, JSON, stops, seeds, interruption."""
import json
import re
import signal
import subprocess
import unittest

import cli
import tiny_model


class Case(cli.Case):
    def text(self, *args, model=None, **kwargs):
        return self.good("generate", model or self.model, *args, **kwargs).decode()

    def json(self, *args, model=None):
        return json.loads(self.text(*args, "--json", model=model))


class Texts(Case):
    def test_single_prompt(self):
        text = self.text("-p", "ab", "-n", "12", "--seed", "1")
        self.assertTrue(text.endswith("\n"))
        self.assertTrue(set(text.split()) <= set(tiny_model.WORDS), text)
        self.assertEqual(len(text.split()), 12)
        self.assertTrue(text.startswith(" "))  # the text goes on where the prompt stops
        self.assertEqual(text, self.json("-p", "ab", "-n", "12", "--seed", "1")["sequences"][0]["text"] + "\n")

    def test_several_prompts(self):
        common = ["-n", "9", "--seed", "5"]
        alone = [self.text("-p", p, *common) for p in ("ab", "cde", "f g")]
        file = self.file("prompt.txt", "f g\n")
        together = self.text("-p", "ab", "-p", "cde", "-f", file, *common)
        self.assertEqual(together, "".join(f"== prompt {i + 1}\n{t}" for i, t in enumerate(alone)))
        # Neither the plan nor who runs beside it changes a text.
        for args in (["--sequences", "1"], ["--stages", "3"], ["--cut", "2"], ["--chunk", "1"], ["--threads", "3"],
                     ["--mem", "60M", "--stages", "2"]):
            self.assertEqual(together, self.text("-p", "ab", "-p", "cde", "-f", file, *common, *args), args)

    def test_choices(self):
        args = ("-p", "abcdefg" * 5, "-p", "hi", "-n", "9", "--seed", "4", "--temp", "5")
        single = self.json(*args)["sequences"]
        found = self.json(*args, "--choices", "3")["sequences"]
        self.assertEqual([s["choice"] for s in found], [0, 1, 2] * 2)
        self.assertEqual([s["prompt"] for s in found], ["abcdefg" * 5] * 3 + ["hi"] * 3)
        self.assertEqual([found[0]["ids"], found[3]["ids"]], [s["ids"] for s in single])
        for same_prompt in (found[:3], found[3:]):
            self.assertGreater(len({tuple(s["ids"]) for s in same_prompt}), 1)
        two = self.json(*args, "--choices", "2", "--sequences", "1")["sequences"]
        self.assertEqual([s["ids"] for s in two], [found[i]["ids"] for i in (0, 1, 3, 4)])
        text = self.good("generate", self.model, *args, "--choices", "2").decode()
        for i in range(4):
            self.assertEqual(text.count(f"== prompt {i // 2 + 1}, choice {i % 2 + 1}\n"), 1)

    def test_choices_of_a_bad_prompt(self):
        done = self.bad(1, "the context has 20", "generate", self.model, "-p", "a" * 99, "-p", "b", "-n", "2",
                        "--ctx", "20", "--choices", "3")
        self.assertEqual(done.stderr.count(b"the context has 20"), 1)
        self.assertEqual(done.stdout.count(b"choice"), 6)

    def test_many_prompts(self):
        prompts = [arg for i in range(300) for arg in ("-p", f"x{i}")]
        found = self.json(*prompts, "-n", "3", "--seed", "2")["sequences"]
        self.assertEqual(len(found), 300)
        self.assertTrue(all(len(s["ids"]) == 3 and s["finish_reason"] == "length" for s in found))
        self.assertEqual(found[299]["text"] + "\n", self.text("-p", "x299", "-n", "3", "--seed", "2"))

    def test_trace(self):
        """A row for each stage, with the phases of every step; the text is the same."""
        common, trace = ["-p", "ab", "-n", "5", "--seed", "3", "--stages", "2"], self.path("trace.json")
        self.assertEqual(self.text(*common, "--trace", trace), self.text(*common))
        with open(trace, encoding="utf-8") as f:
            events = json.load(f)
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        for stage in (0, 1):
            steps = {e["args"]["step"] for e in events if "dur" in e and rows[e["tid"]].startswith(f"stage {stage},")}
            self.assertLessEqual(set(range(1, 6)), steps)

    def test_files(self):
        common = ["-n", "5", "--seed", "3"]
        wanted = self.text("-p", "a\nb", *common)
        self.assertEqual(wanted, self.text("-f", self.file("p.txt", "a\nb\n"), *common))
        self.assertEqual(wanted, self.text("-f", "-", *common, stdin=b"a\nb"))
        self.assertNotEqual(wanted, self.text("-f", self.file("p.txt", "a\nb\n\n"), *common))

    def test_echo(self):
        text = self.text("-p", "ab", "-n", "4", "--seed", "1")
        self.assertEqual("ab" + text, self.text("-p", "ab", "-n", "4", "--seed", "1", "--echo"))

    def test_to_the_end_of_the_context(self):
        sequence = self.json("-p", "ab", "-n", "-1", "--ctx", "40", "--ignore-eos")["sequences"][0]
        self.assertEqual(sequence["finish_reason"], "length")
        n_prompt = len(self.good("tokenize", self.model, "ab", "--bos").split())
        self.assertEqual(len(sequence["ids"]), 40 - n_prompt)

    def test_defaults_from_the_environment(self):
        out = self.good("generate", self.model, "-p", "ab", env={"MILLRACE_N_PREDICT": "3"}).decode()
        self.assertEqual(len(out.split()), 3)


class Stops(Case):
    COMMON = ["-p", "ab", "-n", "24", "--seed", "11", "--top-k", "20"]

    def test_stop_texts(self):
        whole = self.text(*self.COMMON)[:-1]
        # Ends of words, beginnings of words, and texts that span several tokens.
        for start, end in ((10, 13), (7, 20), (1, 2), (30, 31), (40, 60)):
            stop = whole[start:end]
            found = self.json(*self.COMMON, "--stop", stop)["sequences"][0]
            self.assertEqual(found["text"], whole[:whole.index(stop)], stop)
            self.assertEqual(found["finish_reason"], "stop")
            self.assertEqual(self.text(*self.COMMON, "--stop", stop, "--stop", "never"), found["text"] + "\n")

    def test_no_stop(self):
        whole = self.text(*self.COMMON)
        # What is held back because it might become a stop text comes out at the end.
        last_word = whole.split()[-1]
        self.assertEqual(whole, self.text(*self.COMMON, "--stop", last_word + " and more"))

    def test_end_token(self):
        ids = self.json(*self.COMMON)["sequences"][0]["ids"]
        word = next(i for i in ids[2:] if i not in ids[:2])
        n = ids.index(word)
        model = tiny_model.make(self.path("eos.gguf"), eos=word)
        found = self.json(*self.COMMON, model=model)["sequences"][0]
        self.assertEqual(found["finish_reason"], "stop")
        self.assertEqual(found["ids"], ids[: n + 1])
        self.assertEqual(len(found["text"].split()), n)
        found = self.json(*self.COMMON, "--ignore-eos", model=model)["sequences"][0]
        self.assertEqual((found["ids"], found["finish_reason"]), (ids, "length"))


class Seeds(Case):
    def test_random_seed_is_printed(self):
        done = self.run_bin("generate", self.model, "-p", "ab", "-n", "20")
        seed = re.search(r"seed (\d+)", done.stderr.decode()).group(1)
        self.assertEqual(done.stdout.decode(), self.text("-p", "ab", "-n", "20", "--seed", seed))
        other = self.run_bin("generate", self.model, "-p", "ab", "-n", "20")
        self.assertNotEqual(done.stdout, other.stdout)  # one in 10^20

    def test_greedy_needs_no_seed(self):
        first = self.text("-p", "ab", "-n", "20", "--temp", "0")
        self.assertEqual(first, self.text("-p", "ab", "-n", "20", "--temp", "0", "--stages", "2"))
        self.assertEqual(first, self.text("-p", "ab", "-n", "20", "--top-k", "1"))


class Samplers(Case):
    ALL = ["--typical", "0.9", "--top-n-sigma", "2", "--xtc-probability", "0.5", "--xtc-threshold", "0.02",
           "--presence-penalty", "0.4", "--frequency-penalty", "0.3", "--dry-multiplier", "2", "--dry-allowed-length",
           "1", "--repeat-penalty", "1.1", "--temp", "1.5", "--top-k", "0"]
    EACH = [["--typical", "0.3"], ["--top-n-sigma", "0.3"], ["--xtc-probability", "1", "--xtc-threshold", "0.01"],
            ["--presence-penalty", "5"], ["--frequency-penalty", "5"], ["--dry-multiplier", "9", "--dry-allowed-length", "1"],
            ["--mirostat", "1", "--mirostat-ent", "1"], ["--mirostat", "2", "--mirostat-ent", "1"]]

    def ids(self, *args):
        found = self.json("-p", "mill river mill river", "-n", "40", "--seed", "3", *args)["sequences"]
        return [s["ids"] for s in found]

    def test_plan_and_company_change_nothing(self):
        for args in (self.ALL, self.ALL + ["--mirostat", "1", "--mirostat-ent", "2"],
                     self.ALL + ["--mirostat", "2", "--mirostat-ent", "3"]):
            alone = self.ids(*args)
            for plan in (["--stages", "3", "--chunk", "5"], ["--cut", "1", "--threads", "2"]):
                found = self.ids("-p", "x", "-p", "yz", *args, *plan)
                self.assertEqual(found[0], alone[0], (args, plan))

    def test_each_does_something(self):
        plain = self.ids("--temp", "1.5", "--top-k", "0")
        for args in self.EACH:
            self.assertNotEqual(self.ids("--temp", "1.5", "--top-k", "0", *args), plain, args)
        # A breaker in every word leaves no sequence.
        breakers = [arg for vowel in "aeiou" for arg in ("--dry-sequence-breaker", vowel)]
        self.assertEqual(self.ids("--temp", "1.5", "--top-k", "0", *self.EACH[5], *breakers), plain)

    def test_logit_bias(self):
        word = tiny_model.FIRST_WORD
        ban = [arg for i in range(tiny_model.VOCAB) if i != word for arg in ("--logit-bias", f"{i}=-inf")]
        self.assertEqual(self.ids(*ban), [[word] * 40])
        self.assertEqual(self.ids("--logit-bias", f"{word + 1}=100", "--temp", "0"), [[word + 1] * 40])
        self.bad(2, '--logit-bias: "7" is not a token id and a bias', "generate", self.model, "-p", "a", "--logit-bias", "7")
        self.bad(2, "the model has no token 5000", "generate", self.model, "-p", "a", "--logit-bias", "5000=1")

    def test_logprobs(self):
        args = ("-p", "ab", "-n", "9", "--seed", "1", "--logprobs")
        plain = self.json(*args, "3")["sequences"][0]
        self.assertEqual([p["id"] for p in plain["logprobs"]], plain["ids"])
        for p in plain["logprobs"]:
            values = [t["logprob"] for t in p["top"]]
            self.assertEqual(len(values), 3)
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLessEqual(p["logprob"], values[0])
            self.assertLessEqual(values[0], 0)
            self.assertIn(p["logprob"], [t["logprob"] for t in p["top"] if t["id"] == p["id"]] or [p["logprob"]])
        # They are those of the model, however tokens are chosen, and the same over any plan.
        found = self.json(*args, "3", "--stages", "3", "--sequences", "1", "-p", "x")["sequences"][0]
        self.assertEqual(found["logprobs"], plain["logprobs"])
        none = self.json(*args, "0", "--temp", "5", "--top-k", "1", "--logit-bias", f"{plain['ids'][0]}=9")["sequences"][0]
        self.assertEqual(none["ids"][0], plain["ids"][0])
        self.assertEqual(none["logprobs"][0], {"id": plain["ids"][0], "logprob": plain["logprobs"][0]["logprob"], "top": []})
        self.bad(2, "--logprobs works only with --json", "generate", self.model, *args, "3")


class Grammars(Case):
    def test_texts_follow_it(self):
        grammar = self.file("words.gbnf", 'root ::= (" mill" | " fox")+ "!"\n')
        args = ["-p", "ab", "-p", "cd", "--choices", "2", "-n", "30", "--seed", "2", "--temp", "3", "--grammar", grammar]
        found = self.json(*args)["sequences"]
        for s in found:
            self.assertRegex(s["text"], r"^( mill| fox)+!$")
            self.assertEqual(s["finish_reason"], "stop")
        again = self.json(*args, "--stages", "3", "--sequences", "1", "--mirostat", "0", "--ignore-eos")["sequences"]
        self.assertEqual([s["ids"] for s in again], [s["ids"] for s in found])

    def test_bad_ones(self):
        bad = self.file("bad.gbnf", "root ::= a\n")
        self.bad(1, 'line 1: rule "a" is not defined', "generate", self.model, "-p", "a", "--grammar", bad)
        self.bad(1, "none.gbnf", "generate", self.model, "-p", "a", "--grammar", "none.gbnf")


class Reports(Case):
    def test_json(self):
        found = self.json("-p", "a\xe9b", "-p", "c", "-n", "4", "--stages", "2")
        self.assertTrue({"sequences", "timings", "plan"} <= set(found))
        self.assertEqual([s["prompt"] for s in found["sequences"]], ["a\xe9b", "c"])
        for s in found["sequences"]:
            self.assertEqual(set(s), {"prompt", "ids", "text", "finish_reason"})
            self.assertEqual((len(s["ids"]), s["finish_reason"]), (4, "length"))
        self.assertEqual(set(found["timings"]), {"load_ms", "time_to_first_token_ms", "prefill_tokens_per_second",
                                                 "decode_tokens_per_second"})
        self.assertTrue(all(v > 0 for v in found["timings"].values()), found["timings"])
        plan = found["plan"]
        self.assertEqual([p["stage"] for p in plan], [0, 1])
        self.assertEqual((plan[0]["first_layer"], plan[0]["last_layer"]), (0, plan[1]["first_layer"] - 1))
        self.assertEqual(plan[1]["last_layer"], 2)
        self.assertTrue(all(p["rank"] == 0 and p["host"] and p["weight_bytes"] > 0 for p in plan))

    def test_no_rate_of_prefill_where_sequences_waited(self):
        prompts = ("-p", "ab", "-p", "cd", "-n", "4")
        for sequences, waits in (("2", False), ("1", True)):
            rate = self.json(*prompts, "--sequences", sequences)["timings"]["prefill_tokens_per_second"]
            self.assertEqual(rate is None, waits)
            notes = self.run_bin("generate", self.model, *prompts, "--sequences", sequences).stderr.decode()
            line = next(n for n in notes.splitlines() if "prefill:" in n)
            self.assertEqual("tokens/s" in line, not waits, line)

    def test_json_of_bytes_that_are_no_text(self):
        found = self.json("-p", b"a\xffb", "-n", "1")
        self.assertEqual(found["sequences"][0]["prompt"], "a\ufffdb")

    def test_json_of_a_bad_prompt(self):
        done = self.bad(1, "prompt 1", "generate", self.model, "-p", "a" * 99, "-p", "b", "-n", "2", "--ctx", "20",
                        "--json")
        first, second = json.loads(done.stdout)["sequences"]
        self.assertEqual((first["finish_reason"], first["ids"], first["text"]), ("error", [], ""))
        self.assertIn("context", first["error"])
        self.assertEqual(second["finish_reason"], "length")

    def test_notes(self):
        done = self.run_bin("generate", self.model, "-p", "ab", "-n", "4", "--stages", "3")
        notes = done.stderr.decode()
        for word in ("3 layers in 3 stages", "stage  layers", "KV cache", "loaded", "seed", "prefill:", "decode:",
                     "tokens/s", "first token"):
            self.assertIn(word, notes)
        self.assertNotIn("\r", notes)
        self.assertEqual(self.run_bin("generate", self.model, "-p", "a", "--log-level", "warn").stderr, b"")

    def test_log_json(self):
        done = self.run_bin("generate", self.model, "-p", "ab", "-n", "4", "--log-json")
        lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
        self.assertTrue(any("decode" in str(line) for line in lines))
        done = self.run_bin("generate", self.model, "-p", "ab", "-n", "4", "--stages", "3", "--log-json")
        lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
        stages = [line["stage"] for line in lines if "stage" in line]
        self.assertEqual([(s["first_layer"], s["last_layer"]) for s in stages], [(0, 0), (1, 1), (2, 2)])
        self.assertTrue(all(s["host"] and s["weight_bytes"] > 0 and s["kv_bytes"] > 0 for s in stages), stages)
        self.assertNotIn("  ", "".join(line["text"] for line in lines))  # no table
        done = self.run_bin("generate", self.model, "-p", "ab" * 999, "--log-json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("context", str(json.loads(done.stderr)))


    def test_small_stack(self):
        """A limit of stacks that is too small for threads is an error with a remedy."""
        done = subprocess.run(["sh", "-c", 'ulimit -s 64; exec "$0" "$@"', cli.BIN, "generate", self.model, "-p", "a"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
        self.assertIn(b"error: a stack may have 64 KiB here, and needs 512; hint: ulimit -s", done.stderr)
        self.good("generate", self.model, "-p", "a", "-n", "2")


class Interruptions(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long_model = tiny_model.make(cls.path("long.gguf"), context=1 << 17)

    def start(self, *args):
        return subprocess.Popen([cli.BIN, "generate", self.long_model, "-p", "ab", "-n", "-1", "--ctx", "100000",
                                 "--ignore-eos", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=cli.environment())

    def test_interrupt(self):
        with self.start("-p", "cd") as p:
            head = p.stdout.read(30)
            p.send_signal(signal.SIGINT)
            tail, notes = p.communicate(timeout=cli.LIMIT_S)
        text = (head + tail).decode()
        self.assertEqual(p.returncode, 130, notes)
        self.assertTrue(text.startswith("== prompt 1\n") and text.endswith("\n"))
        self.assertEqual(text.count("== prompt 2\n"), 1)
        self.assertNotIn(b"error", notes)

    def test_interrupt_with_json(self):
        with self.start("--json") as p:
            for line in p.stderr:
                if line.startswith(b"sampling"):
                    break
            p.send_signal(signal.SIGINT)
            out, _ = p.communicate(timeout=cli.LIMIT_S)
        # The signal may also come before the handler is there.
        if p.returncode != -signal.SIGINT:
            self.assertEqual(p.returncode, 130)
            self.assertEqual(json.loads(out)["sequences"][0]["finish_reason"], "interrupted")

    def test_nobody_reads(self):
        with self.start("--log-level", "error") as p:
            p.stdout.read(30)
            p.stdout.close()
            notes = p.stderr.read()
            self.assertEqual(p.wait(timeout=cli.LIMIT_S), 1)
        self.assertEqual(notes, b"")


@cli.needs_demo
class Demo(Case):
    def test_story(self):
        args = ["-p", "Once upon a time", "-n", "60", "--seed", "7"]
        out = self.good("generate", "--demo", *args, "--stages", "3").decode()
        self.assertGreater(len(out.split()), 20)
        self.assertEqual(out, self.text(*args, model=cli.DEMO))


if __name__ == "__main__":
    unittest.main()
