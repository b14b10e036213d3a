#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace bench`: which tests run, the table and the JSON array, sizes that do not fit, interruption. No figure is
tested beyond being there: machines differ, and are busy."""
import json
import signal
import subprocess
import unittest

import cli
import tiny_model

SHORT = ["-p", "20", "-n", "6"]  # the context of the tiny model is short, and sanitizer builds are slow


class Case(cli.Case):
    def measured(self, *args, model=None, **kwargs):
        return json.loads(self.good("bench", model or self.model, *args, "--json", **kwargs))

    def names(self, *args, **kwargs):
        """(test, rows, sequences) of each object."""
        return [(t["test"], t["rows"], t["sequences"]) for t in self.measured(*args, "-r", "1", **kwargs)]


class Reports(Case):
    def test_json(self):
        found = self.measured(*SHORT, "-b", "3", "--threads", "2", "--stages", "3", "--repeat", "4")
        self.assertEqual(len(found), 2)
        for t, (name, rows, sequences) in zip(found, (("prefill", 20, 1), ("decode", 6, 3))):
            self.assertEqual((t["test"], t["rows"], t["sequences"]), (name, rows, sequences))
            self.assertEqual((t["threads"], t["stages"], t["repeats"]), (2, 3, 4))
            self.assertTrue(0 < t["min"] <= t["tokens_per_second"] <= t["max"], t)
        self.assertGreater(found[0]["time_to_first_token_ms"], 0)
        self.assertNotIn("time_to_first_token_ms", found[1])

    def test_table(self):
        done = self.run_bin("bench", self.model, *SHORT, "-b", "1,2", "--cut", "1", "-t", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.decode().splitlines()]
        self.assertEqual(lines[0], ["test", "rows", "depth", "sequences", "threads", "stages", "tokens/s", "spread",
                                    "share", "first", "token"])
        rows = lines[1:4]
        self.assertEqual([line[:6] for line in rows], [["prefill", "20", "0", "1", "1", "2"],
                                                       ["decode", "6", "0", "1", "1", "2"],
                                                       ["decode", "6", "0", "2", "1", "2"]])
        for line in rows:
            median, low, to, high = line[6:10]
            self.assertEqual(to, "to")
            self.assertTrue(0 < float(low) <= float(median) <= float(high), line)
        self.assertEqual([line[11:14] for line in rows], [["%", "of", "f32"], ["%", "of", "read"], ["%", "of", "read"]])
        self.assertEqual([line[14:] == ["-"] for line in rows], [False, True, True])
        self.assertEqual(lines[4], [])
        self.assertEqual([line[:6] for line in lines[5:]], [["limits", "of", "2", "threads:", "read", "loop"]])

    def test_csv(self):
        """The fields of --json, with nothing for those that a test has not."""
        with_shares = json.loads(self.good("bench", self.model, *SHORT, "-r", "1", "--json"))
        lines = self.good("bench", self.model, *SHORT, "-r", "1", "--csv").decode().splitlines()
        rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
        self.assertEqual([row["test"] for row in rows], ["prefill", "decode"])
        for row, t in zip(rows, with_shares, strict=True):
            self.assertEqual({k for k, v in row.items() if v}, set(t))
        self.bad(2, ["--json", "--csv"], "bench", self.model, "--json", "--csv")

    def test_shares_are_what_the_file_says(self):
        """Products and bytes of the tiny model, counted here."""
        width, ff, kv, layers, vocab = 32, 64, 16, 3, tiny_model.VOCAB
        matrices = layers * (2 * width * width + 2 * width * kv + 3 * width * ff)
        prefill, decode = self.measured(*SHORT, "-r", "1", "-b", "1", "-t", "1")
        products = matrices + width * vocab / 20  # of a token; the output for the last one alone
        self.assertAlmostEqual(prefill["peak_share"] / (prefill["tokens_per_second"] * products /
                                                        prefill["f32_products_per_second"]), 1, places=4)
        weights = 4 * (matrices + layers * 2 * width + width + width * vocab + width)
        cache = layers * 2 * 2 * kv * (2 + 7) / 2  # of f16, at 2 to 7 positions
        self.assertAlmostEqual(decode["bandwidth_share"] / (decode["tokens_per_second"] * (weights + cache) /
                                                            decode["read_bytes_per_second"]), 1, places=4)
        for key in ("read_bytes_per_second", "int8_products_per_second", "f32_products_per_second"):
            self.assertGreater(prefill[key], 1e6)

    def test_notes(self):
        done = self.run_bin("bench", self.model, *SHORT, "-b", "2")
        notes = done.stderr.decode()
        for word in ("layers in 1 stage", "loaded", "prefill of 20 tokens: ", "decode of 6 tokens, 2 at once: "):
            self.assertIn(word, notes)
        self.assertEqual(self.run_bin("bench", self.model, *SHORT, "--log-level", "warn").stderr, b"")


class Tests(Case):
    def test_lists(self):
        self.assertEqual(self.names("-p", "9,3", "-n", "4,2", "-b", "1,5"),
                         [("prefill", 9, 1), ("prefill", 3, 1), ("decode", 4, 1), ("decode", 4, 5), ("decode", 2, 1),
                          ("decode", 2, 5)])

    def test_threads(self):
        found = self.measured(*SHORT, "-t", "1,2", "-r", "1")
        self.assertEqual([(t["test"], t["threads"]) for t in found],
                         [("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2)])
        found = self.measured(*SHORT, "-r", "1", env={"MILLRACE_THREADS": "3"})
        self.assertEqual([t["threads"] for t in found], [3, 3])
        self.bad(2, ["-t", "--trace"], "bench", self.model, "-t", "1,2", "--trace", self.path("trace.json"))

    def test_depth(self):
        """Depths of prefill are whole steps; the sequences of a decode test have time to come together."""
        found = self.measured(*SHORT, "-d", "0,30", "-b", "1,9", "--chunk", "16", "-r", "1", "--stages", "2")
        self.assertEqual([(t["test"], t["rows"], t["depth"], t["sequences"]) for t in found],
                         [("prefill", 20, 0, 1), ("decode", 6, 0, 1), ("decode", 6, 0, 9),
                          ("prefill", 20, 32, 1), ("decode", 6, 30, 1), ("decode", 6, 30, 9)])
        self.assertEqual(["time_to_first_token_ms" in t for t in found], [True] + 5 * [False])
        self.bad(2, ["-p", "context of 40"], "bench", self.model, "-p", "20", "-d", "32", "--ctx", "40", "--chunk", "8")

    def test_depth_of_many(self):
        """However few tokens there are to come, and whatever the scheduler would do for other sequences' tokens."""
        for stages in ("1", "3"):
            self.assertEqual(self.names("-p", "0", "-n", "1,12", "-d", "64", "-b", "32", "--stages", stages),
                             [("decode", 1, 32), ("decode", 12, 32)])

    def test_left_out(self):
        self.assertEqual(self.names("-p", "0", "-n", "4"), [("decode", 4, 1)])
        self.assertEqual(self.names("-p", "4", "-n", "0", "-b", "7"), [("prefill", 4, 1)])
        self.assertEqual(self.names("-p", "0,4", "-n", "3,0"), [("prefill", 4, 1), ("decode", 3, 1)])
        self.bad(2, ["-p", "-n"], "bench", self.model, "-p", "0", "-n", "0")

    def test_defaults_shrink_to_the_context(self):
        self.assertEqual(self.names("--ctx", "40"), [("prefill", 39, 1), ("decode", 38, 1)])
        self.assertEqual(self.names("--ctx", "2"), [("prefill", 1, 1)])
        self.bad(2, ["-p", "-n"], "bench", self.model, "--ctx", "1")

    def test_models_without_tokenizer(self):
        model = tiny_model.make(self.path("dumb.gguf"), tokenizer=False)
        self.assertEqual(self.names(*SHORT, model=model), [("prefill", 20, 1), ("decode", 6, 1)])

    def test_full_steps(self):
        self.assertEqual(self.names("-p", "0", "-n", "16", "-b", "64", "--chunk", "64", "--stages", "3"),
                         [("decode", 16, 64)])
        self.assertEqual(self.names("-p", "30", "-n", "0", "--chunk", "4", "--stages", "2"), [("prefill", 30, 1)])


class SyntheticStages(Case):
    def test_more_stages_than_layers(self):
        prefill, decode = self.measured(*SHORT, "-r", "1", "--synthetic-stage", "1,0.25", "--stages", "7", "-b", "14")
        self.assertEqual((prefill["stages"], decode["stages"]), (7, 7))
        self.assertNotIn("busy_share", prefill)
        for name in ("bandwidth_share", "read_bytes_per_second"):
            self.assertNotIn(name, decode)
        # Tokens come two in a step: what they cost, by their rate, is the share. Sleep is never shorter.
        self.assertTrue(0 < decode["busy_share"] <= 1.001, decode)
        self.assertGreater(decode["busy_share"], 0.8 * decode["tokens_per_second"] * 1.25e-3 / 2)

    def test_uneven_stages(self):
        found = self.measured("-p", "0", "-n", "8", "-b", "4", "-r", "1", "--synthetic-stage", "1,0.1;3,0.2;0,0")[0]
        self.assertEqual(found["stages"], 3)
        self.assertTrue(0 < found["busy_share"] <= 1.001, found)
        done = self.run_bin("bench", self.model, "-p", "0", "-n", "4", "-r", "1", "--synthetic-stage", "1,0")
        self.assertIn(b"% busy", done.stdout)
        self.assertIn(b"sleeps", done.stderr)

    def test_ids_are_the_same_in_every_plan(self):
        texts = {self.good("generate", self.model, "-p", "ab", "-n", "9", "--ignore-eos", "--synthetic-stage", "0,0",
                           "--stages", n) for n in ("1", "2", "9")}
        self.assertEqual(len(texts), 1)

    def test_wrong_values(self):
        for text in ("5", "5,", "5,0.1;", ";", "5;0.1", "5,0.1,3", "-1,0", "5,x", "nan,0", "60001,0", "0,60001"):
            self.bad(2, ["--synthetic-stage", "MS_PER_ROW"] if ";" not in text else ["--synthetic-stage"], "bench",
                     self.model, "--synthetic-stage", text)
        self.bad(2, ["2 stages", "there are 3"], "bench", self.model, "--synthetic-stage", "1,0;2,0", "--stages", "3")
        self.bad(2, ["--cut"], "bench", self.model, "--synthetic-stage", "1,0", "--cut", "1")
        self.bad(2, ["--synthetic-stage"], "logits", self.model, "--synthetic-stage", "1,0")


class WrongUse(Case):
    def test_values(self):
        self.bad(2, ["-t", "abc"], "bench", self.model, "-t", "abc")
        for args, words in ((["-p", "x"], ["-p", "x"]), (["-p", "-1"], ["-p", "-1", "0 to"]),
                            (["-n", "3,"], ["-n", "3,"]), (["-b", "0"], ["-b", "1 to"]),
                            (["-b", "1,9999"], ["-b", "9999"]), (["-r", "0"], ["-r", "1 to"]),
                            (["--sequences", "3"], ["bench", "--sequences"]), (["text"], ["text", "bench"])):
            self.bad(2, words, "bench", self.model, *args)
        self.bad(2, ["model", "--demo"], "bench")

    def test_context(self):
        self.bad(2, ["-p", "40 tokens", "context of 40", "--ctx"], "bench", self.model, "-p", "3,40", "--ctx", "40")
        self.bad(2, ["-n", "39 tokens", "context of 40", "--ctx"], "bench", self.model, "-n", "39", "--ctx", "40")
        self.assertEqual(self.names("-p", "39", "-n", "38", "--ctx", "40"), [("prefill", 39, 1), ("decode", 38, 1)])

    def test_rows(self):
        self.bad(2, ["-b", "5 sequences", "--chunk"], "bench", self.model, "-b", "2,5", "--chunk", "4")

    def test_memory(self):
        """Sequences that waited for each other would not be measured at once."""
        self.bad(1, ["--mem", "KV cache"], "bench", self.model, *SHORT, "-b", "4", "--mem", "200K")

    def test_missing_file(self):
        self.bad(1, ["nothing.gguf", "No such file"], "bench", self.path("nothing.gguf"))


class Interruptions(Case):
    def interrupted(self, *args):
        """What a benchmark without end has printed after Ctrl-C, once its first test was done."""
        with subprocess.Popen([cli.BIN, "bench", self.model, "-p", "4", "-n", "8", "-b", ",".join(["1"] * 1000), "-r",
                               "1000", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=cli.environment()) as p:
            for line in p.stderr:
                if line.startswith(b"prefill"):
                    break
            p.send_signal(signal.SIGINT)
            out, notes = p.communicate(timeout=cli.LIMIT_S)
        self.assertEqual(p.returncode, 130, notes)
        self.assertNotIn(b"error", notes)
        return out.decode()

    def test_table_of_what_is_done(self):
        self.assertRegex(self.interrupted(), r"^  test .*\n  prefill +4 ")

    def test_json_of_what_is_done(self):
        self.assertEqual(json.loads(self.interrupted("--json"))[0]["test"], "prefill")


@cli.needs_demo
class Demo(Case):
    def test_demo(self):
        found = json.loads(self.good("bench", "--demo", "-p", "32,64", "-n", "8", "-b", "1,8", "--stages", "2", "-r",
                                     "1", "--json"))
        self.assertEqual([(t["test"], t["rows"], t["sequences"]) for t in found],
                         [("prefill", 32, 1), ("prefill", 64, 1), ("decode", 8, 1), ("decode", 8, 8)])
        self.assertTrue(all(t["tokens_per_second"] > 0 and t["stages"] == 2 for t in found))


if __name__ == "__main__":
    unittest.main()
