#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Help texts, `millrace tokenize`, `millrace inspect` and `millrace plan`."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

import cli
import gguf_split  # by the path that cli has added
import tiny_model

COMMANDS = ["generate", "logits", "perplexity", "tokenize", "inspect", "plan", "bench"]


class Help(cli.Case):
    def options(self):
        """(flag, commands) of each row of the table."""
        text = self.good("--options").decode()
        rows = re.findall(r"^\| `(?:-\w, )?--([\w-]+)[^`]*` \| ([\w, ]+) \|", text, re.M)
        self.assertGreater(len(rows), 30)
        return [(flag, COMMANDS if names == "all" else names.split(", ")) for flag, names in rows]

    def test_every_option_is_in_the_help_of_its_commands(self):
        for command in COMMANDS:
            text = self.good(command, "--help").decode()
            self.assertIn(f"usage: millrace {command} MODEL", text)
            self.assertIn("examples:\n", text)
            flags = re.findall(r"^  (?:-\w, |    )--([\w-]+)", text, re.M)
            self.assertEqual(flags, [flag for flag, names in self.options() if command in names])
            self.assertLessEqual(max(len(line) for line in text.split("\n")), 80)
            self.assertEqual(self.good("help", command).decode(), text)

    def test_document_is_up_to_date(self):
        path = os.path.join(cli.SOURCE, "coordinator", "OPTIONS.md")
        with open(path, encoding="utf-8") as f:
            self.assertEqual(f.read(), self.good("--options").decode(),
                             "run: millrace --options > coordinator/OPTIONS.md")

    def test_general_help(self):
        text = self.good("--help").decode()
        for word in COMMANDS + ["--version", "exit status", "MILLRACE_CPU_ISA"]:
            self.assertIn(word, text)
        self.assertRegex(self.good("--version").decode(), r"^millrace \d+\.\d+\.\d+\ncommit: ([0-9a-z.-]+-)?[0-9a-f]{7,}(-dirty)?\n"
                         r"MPI: (Open MPI v[45]\..*|none)\ninstruction sets: scalar(, \w+)*\n"
                         r"backend cpu: .*\nbackend cuda: .*\n(  .*\n)*backend blas: .*\n$")

    def test_instruction_sets(self):
        """--version names those of this CPU, whatever caps them, by names that MILLRACE_CPU_ISA takes."""
        text = self.good("--version", env={"MILLRACE_CPU_ISA": "scalar"})
        self.assertEqual(text, self.good("--version", env={"MILLRACE_CPU_ISA": ""}))
        found = re.search(r"^instruction sets: (.*)$", text.decode(), re.M)[1].split(", ")
        for isa in found:
            self.good("inspect", self.model, env={"MILLRACE_CPU_ISA": isa})

    def test_commit_outside_git(self):
        header = self.path("commit.h")
        subprocess.run(["cmake", "-DSOURCE=" + os.path.dirname(header), "-DHEADER=" + header, "-P",
                        os.path.join(cli.SOURCE, "deploy", "lib", "commit.cmake")], check=True)
        with open(header, encoding="ascii") as f:
            self.assertEqual(f.read(), '#define MILLRACE_COMMIT "unknown"\n')


class DemoPlaces(cli.Case):
    """The demo model lies beside the program, or in share/millrace of the folder above."""

    def inspect(self, program):
        return subprocess.run([program, "inspect", "--demo", "--json"], capture_output=True, timeout=cli.LIMIT_S,
                              env=cli.environment(), check=False)

    def test_places(self):
        os.makedirs(self.path("bin"))
        os.makedirs(self.path("share/millrace"))
        program = shutil.copy(cli.BIN, self.path("bin/millrace"))
        done = self.inspect(program)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"^millrace: error: the demo model is neither [^\n]*\.gguf file\n$")
        for place in ("bin", "share/millrace"):
            demo = shutil.copy(self.model, self.path(f"{place}/millrace-demo.gguf"))
            self.assertEqual(json.loads(self.inspect(program).stdout)["metadata"]["general.name"], "tiny")
            os.unlink(demo)


class Tokenize(cli.Case):
    TEXTS = ["", " ", "a", " a  b ", "line\nnext\r\n\ttab", "caf\xe9 \u4e16\u754c \U0001f999", "mill", "</s><s>"]

    def round_trip(self, model, text, *args):
        data = text.encode()
        ids = self.good("tokenize", model, "-f", self.file("t.txt", data), *args)
        self.assertRegex(ids, rb"^(\d+( \d+)*)?\n$")
        if ids == b"\n":
            self.assertEqual(data, b"")
            return
        found = self.good("tokenize", model, "--decode", "-f", self.file("i.txt", ids), *args)
        self.assertEqual(found, data, args)

    def test_round_trip(self):
        for text in self.TEXTS:
            self.round_trip(self.model, text)
        self.round_trip(self.model, "no control tokens <s>here", "--no-special")

    @cli.needs_demo
    def test_round_trip_of_the_demo(self):
        for text in self.TEXTS + ["Once upon a time there was a little mill."]:
            self.round_trip(cli.DEMO, text)

    def test_sources(self):
        ids = self.good("tokenize", self.model, "ab c")
        self.assertEqual(ids, self.good("tokenize", self.model, stdin=b"ab c"))
        self.assertEqual(ids, self.good("tokenize", self.model, "-f", "-", stdin=b"ab c"))
        self.assertEqual(b"ab c", self.good("tokenize", self.model, "--decode", stdin=ids))
        self.assertEqual(b"ab c", self.good("tokenize", self.model, "--decode", ids.decode().strip()))

    def test_special_tokens(self):
        plain = self.good("tokenize", self.model, "ab").split()
        self.assertEqual([b"1"] + plain, self.good("tokenize", self.model, "ab", "--bos").split())
        self.assertIn(b"2", self.good("tokenize", self.model, "a</s>b").split())
        self.assertNotIn(b"2", self.good("tokenize", self.model, "a</s>b", "--no-special").split())
        self.assertEqual(b"<s>ab</s>", self.good("tokenize", self.model, "--decode", "1 100 101 2"))
        self.assertEqual(b"ab", self.good("tokenize", self.model, "--decode", "--no-special", "1 100 101 2"))


class Inspect(cli.Case):
    def test_text(self):
        text = self.good("inspect", self.model).decode()
        for word in ("GGUF version 3", "general.architecture", "\"llama\"", "blk.2.ffn_down.weight", "64 x 32", "F32",
                     "layer 2", "all tensors", "embedding"):
            self.assertIn(word, text)

    def test_json(self):
        found = json.loads(self.good("inspect", self.model, "--json"))
        self.assertEqual(found["version"], 3)
        self.assertEqual(found["file_bytes"], os.stat(self.model).st_size)
        self.assertEqual(found["metadata"]["llama.block_count"], 3)
        self.assertEqual(found["metadata"]["general.name"], "tiny")
        self.assertEqual(found["metadata"]["tokenizer.ggml.tokens"], {"array_of": "string", "length": tiny_model.VOCAB})
        self.assertEqual(len(found["tensors"]), 3 + 9 * 3)
        self.assertEqual(found["tensors"][0]["shape"], [32, tiny_model.VOCAB])
        parts = found["bytes"]
        self.assertEqual(len(parts["layers"]), 3)
        self.assertEqual(parts["tensors"], sum(t["bytes"] for t in found["tensors"]))
        self.assertEqual(parts["tensors"],
                         parts["embedding"] + sum(parts["layers"]) + parts["output"] + parts["others"])

    def test_layers_that_predict_further_tokens(self):
        model = os.path.join(self.folder, "nextn.gguf")
        tiny_model.make(model, layers=4, n_nextn=1)
        text = self.good("inspect", model).decode()
        self.assertRegex(text, r"layer 3, left out: predicts further tokens +\d")
        self.assertRegex(text, r"layer 2 +\d")
        self.assertEqual(1, json.loads(self.good("inspect", model, "--json"))["bytes"]["layers_left_out"])
        self.assertEqual(0, json.loads(self.good("inspect", self.model, "--json"))["bytes"]["layers_left_out"])
        done = self.run_bin("generate", model, "-p", "mill", "-n", "8")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(b"the last 1 layers of the file are left out", done.stderr)

    def test_encoders(self):
        """What belongs to pictures is passed over: the text is that of the same model without an encoder."""
        model = os.path.join(self.folder, "encoder.gguf")
        tiny_model.make(model, more=("v.patch_embd.weight", "mm.0.weight"))
        self.assertEqual(2 * 4 * 32, json.loads(self.good("inspect", model, "--json"))["bytes"]["encoders_left_out"])
        self.assertRegex(self.good("inspect", model).decode(), r"encoders of pictures and sounds, left out +\d")
        done = self.run_bin("generate", model, "-p", "mill", "-n", "8", "--temp", "0")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(b"the encoders of pictures and sounds in the file are left out", done.stderr)
        self.assertEqual(self.good("generate", self.model, "-p", "mill", "-n", "8", "--temp", "0"), done.stdout)

    def test_indexers(self):
        """What an indexer would choose from is the whole context, which ends there."""
        with open(os.path.join(cli.SOURCE, "tests", "golden", "arch", "glm-dsa.gguf"), "rb") as f:
            data = f.read()
        at = data.index(b"indexer.top_k") + len("indexer.top_k") + 4  # the value stands behind the type
        self.assertEqual(2048, int.from_bytes(data[at:at + 4], "little"))
        model = self.file("indexer.gguf", data[:at] + (64).to_bytes(4, "little") + data[at + 4:])
        parts = json.loads(self.good("inspect", model, "--json"))["bytes"]
        width = 48  # k_norm; proj; attn_k; attn_q_b
        self.assertEqual(5 * 4 * (2 * 64 + width * 4 + width * 64 + 16 * 256), parts["indexers_left_out"])
        self.assertEqual(parts["tensors"], parts["embedding"] + sum(parts["layers"]) + parts["indexers_left_out"] +
                         parts["output"] + parts["others"])
        self.assertRegex(self.good("inspect", model).decode(), r"indexers, left out +\d")
        ids = self.file("ids", "3 " * 60)
        for args in (("plan", model), ("logits", model, "--ids-file", ids, "-o", self.path("logits"))):
            done = self.run_bin(*args)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertIn(b"indexers of the file are left out: up to 64 positions", done.stderr)
        self.assertIn(b"; context 64, ", self.good("plan", model))
        self.bad(2, "--ctx is 65, but this version runs glm-dsa models up to 64 positions", "plan", model, "--ctx", "65")
        self.bad(1, "the prompt has 65 tokens, but the context has 64 (the model's: 64)", "logits", model, "--ids-file",
                 self.file("ids", "3 " * 65), "-o", self.path("logits"))

    def test_a_vocabulary_alone(self):
        g = tiny_model.Gguf()
        g.key("general.architecture", tiny_model.STRING, "llama")
        self.assertIn("tensors: 0", self.good("inspect", self.file("vocab.gguf", g.bytes())).decode())


class Parts(cli.Case):
    """A model in parts gives what the whole file gives, whichever part is named."""

    def setUp(self):
        self.parts = gguf_split.split(self.model, self.path("tiny"), 3)

    def test_inspect(self):
        whole, parts = (json.loads(self.good("inspect", path, "--json")) for path in (self.model, self.parts[1]))
        self.assertEqual(whole["parts"], [os.stat(self.model).st_size])
        self.assertEqual(parts["parts"], [os.stat(path).st_size for path in self.parts])
        self.assertEqual(parts["file_bytes"], sum(parts["parts"]))
        self.assertEqual(parts["bytes"], whole["bytes"])
        self.assertEqual([{**t, "offset": 0} for t in parts["tensors"]], [{**t, "offset": 0} for t in whole["tensors"]])
        text = self.good("inspect", self.parts[2]).decode()
        self.assertRegex(text, r"GGUF version 3, [\d.]+ \w+ in 3 parts\n")
        self.assertRegex(text, r"part 3 +%d " % parts["parts"][2])

    def test_plan(self):
        self.assertIn(b" (file in 3 parts): 3 layers", self.good("plan", self.parts[0]))

    def test_logits(self):
        ids = self.file("ids", "1 2 3 4 5 6 7 8 9")
        for extra in ([], ["--no-repack"], ["--stages", "3"]):
            found = []
            for path in (self.model, *self.parts):
                self.good("logits", path, "--ids-file", ids, "-o", self.path("logits"), *extra)
                with open(self.path("logits"), "rb") as f:
                    found.append(f.read())
            self.assertEqual(len(set(found)), 1, extra)

    def test_missing(self):
        os.unlink(self.parts[1])
        self.bad(1, f"{self.parts[1]}: part 2 of the model's 3 is missing", "inspect", self.parts[0])


class Plan(cli.Case):
    def plan(self, *args):
        return json.loads(self.good("plan", self.model, "--json", *args))

    def test_stages(self):
        found = self.plan("--stages", "3")
        self.assertEqual([(p["first_layer"], p["last_layer"]) for p in found["plan"]], [(0, 0), (1, 1), (2, 2)])
        self.assertEqual((found["layers"], found["context"], found["kv_type"]), (3, 512, "f16"))
        cut = self.plan("--cut", "2")["plan"]
        self.assertEqual([(p["first_layer"], p["last_layer"]) for p in cut], [(0, 1), (2, 2)])
        for key in ("weight_bytes", "kv_bytes", "buffer_bytes"):
            self.assertTrue(all(p[key] > 0 for p in cut), key)

    def test_buffers_do_not_grow_with_the_context(self):
        """A model of 7B widths, of zeros that take no room on the disk."""
        model = self.path("7b.gguf")
        subprocess.run([sys.executable, "-B", os.path.join(cli.SOURCE, "tests", "bench", "make_random_model.py"), model,
                        "--layers", "4", "--width", "4096", "--ff", "11008", "--kv-heads", "32", "--context", "16384",
                        "--sparse"], check=True, timeout=cli.LIMIT_S)
        plans = [json.loads(self.good("plan", model, "--ctx", str(c), "--json", "--chunk", "512"))["plan"][0]
                 for c in (512, 4096, 16384)]
        self.assertEqual({p["buffer_bytes"] for p in plans}, {plans[0]["buffer_bytes"]})
        self.assertLess(plans[0]["buffer_bytes"], 97 << 20)  # llama.cpp's with flash attention, at 512 tokens
        self.assertEqual(plans[2]["kv_bytes"], 32 * plans[0]["kv_bytes"])

    def test_sizes_follow_the_options(self):
        kv = self.plan()["plan"][0]["kv_bytes"]
        self.assertEqual(self.plan("--kv-type", "f32")["plan"][0]["kv_bytes"], 2 * kv)
        self.assertEqual(self.plan("--sequences", "3")["plan"][0]["kv_bytes"], 3 * kv)
        self.assertEqual(self.plan("--ctx", "256")["plan"][0]["kv_bytes"], kv // 2)
        repacked, mapped = self.plan(), self.plan("--no-repack")
        self.assertEqual((repacked["repacked"], mapped["repacked"]), (True, False))
        self.assertLess(mapped["plan"][0]["weight_bytes"], repacked["plan"][0]["weight_bytes"])
        small, large = self.plan("--chunk", "16"), self.plan("--chunk", "256")
        self.assertLess(small["plan"][0]["buffer_bytes"], large["plan"][0]["buffer_bytes"])

    def test_text(self):
        text = self.good("plan", self.model, "--stages", "2", "--threads", "1").decode()
        for word in ("llama tiny: 3 layers in 2 stages of 1 thread", "weights", "KV cache", "buffers", "all"):
            self.assertIn(word, text)

    def test_context_beyond_the_model(self):
        done = self.run_bin("plan", self.model, "--ctx", "1000")
        self.assertEqual(done.returncode, 0)
        self.assertIn("millrace: warning: --ctx is 1000, but the model was made for 512", done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
