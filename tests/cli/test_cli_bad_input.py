#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear line each, exit status 2 for usage and 1 for failure."""
import os
import subprocess
import unittest

import cli
import tiny_model


class Models(cli.Case):
    def each_command(self, model, words):
        ids = self.file("ids.txt", "1 2 3")
        self.bad(1, words, "generate", model, "-p", "x")
        self.bad(1, words, "logits", model, "--ids-file", ids, "-o", self.path("out"))
        self.bad(1, words, "plan", model)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_missing_file(self):
        self.each_command(self.path("nothing.gguf"), ["nothing.gguf", "No such file"])
        self.bad(1, "nothing.gguf", "inspect", self.path("nothing.gguf"))
        self.bad(1, "nothing.gguf", "tokenize", self.path("nothing.gguf"), "x")

    def test_no_model_file(self):
        self.each_command(self.file("text.gguf", "once upon a time\n" * 50), ["text.gguf", "no GGUF file"])
        self.each_command(self.file("empty.gguf", ""), ["empty.gguf", "empty"])
        self.each_command(self.folder, "directory")

    def test_truncated(self):
        with open(self.model, "rb") as f:
            data = f.read()
        for n in (3, 10, 30, 500, len(data) // 2, len(data) - 1):
            self.each_command(self.file("cut.gguf", data[:n]), "cut.gguf")

    def test_unsupported_architecture(self):
        model = tiny_model.make(self.path("other.gguf"), arch="mamba")
        self.each_command(model, ["other.gguf", "mamba"])

    def test_unsupported_type(self):
        model = tiny_model.make(self.path("bytes.gguf"), matrix_type=tiny_model.I8)
        self.each_command(model, ["bytes.gguf", "weight", "I8"])

    def test_unknown_pooling(self):
        model = tiny_model.make(self.path("pooling.gguf"), pooling=9)
        self.bad(1, ["llama.pooling_type", "9", "--pooling"], "serve", model, "--port", "0")

    def test_without_tokenizer(self):
        model = tiny_model.make(self.path("dumb.gguf"), tokenizer=False)
        self.bad(1, ["dumb.gguf", "tokenizer"], "generate", model, "-p", "x")
        self.bad(1, ["dumb.gguf", "tokenizer"], "tokenize", model, "x")
        self.good("logits", model, "--ids-file", self.file("ids.txt", "1 2"), "-o", self.path("out"))

    def test_more_tokens_than_rows(self):
        model = tiny_model.make(self.path("extra.gguf"), n_extra_tokens=5)
        self.bad(1, ["tokenizer", "token_embd.weight"], "generate", model, "-p", "x")

    def test_demo_in_the_place_of_model(self):
        self.bad(2, "--demo", "generate", self.model, "--demo", "-p", "x")
        self.bad(2, ["model", "--demo"], "generate", "-p", "x")


class Inputs(cli.Case):
    def logits(self, ids, words, *more):
        name = self.file("ids.txt", ids)
        self.bad(1, words, "logits", self.model, "--ids-file", name, "-o", self.path("out"), *more)
        self.assertEqual([f for f in os.listdir(self.folder) if f.startswith("out")], [])

    def test_ids(self):
        vocab = tiny_model.VOCAB
        self.logits(f"1 2\n3 {vocab}\n", ["ids.txt, line 2", str(vocab), f"0 to {vocab - 1}"])
        self.logits("1 2 99999999999999999999", ["line 1", "99999999999999999999"])
        self.logits("1 -1", ["-1", f"0 to {vocab - 1}"])
        self.logits("1\n\n2 x3", ["ids.txt, line 3", "x3"])
        self.logits("1,2", "1,2")
        self.logits("1 2.5", "2.5")
        self.logits(b"1 \x00 2", "ids.txt, line 1")
        self.logits("", "no token ids")
        self.logits(" \n\t ", "no token ids")
        out = self.path("out")
        self.bad(1, "nothing.txt", "logits", self.model, "--ids-file", self.path("nothing.txt"), "-o", out)
        self.bad(1, self.folder, "logits", self.model, "--ids-file", self.folder, "-o", out)

    def test_decoded_ids(self):
        self.bad(1, ["TEXT", "x"], "tokenize", self.model, "--decode", "1 x")
        self.bad(1, str(tiny_model.VOCAB), "tokenize", self.model, "--decode", str(tiny_model.VOCAB))

    def test_longer_than_the_context(self):
        self.logits("1 " * 33, ["33 tokens", "32"], "--ctx", "32")
        self.logits("1 " * 513, ["513 tokens", "512"])
        self.bad(1, ["--ctx", "8"], "generate", self.model, "-p", "x" * 20, "--ctx", "8")
        # The prompt and one more token have to fit.
        self.bad(1, ["room for one more"], "generate", self.model, "-p", "abc", "--ctx", "5")
        self.good("generate", self.model, "-p", "abc", "--ctx", "6")

    def test_prompts(self):
        self.bad(2, "-p TEXT", "generate", self.model)
        self.bad(1, "empty", "generate", self.model, "-p", "", "--no-bos")
        self.bad(1, "nothing.txt", "generate", self.model, "-f", self.path("nothing.txt"))
        self.good("generate", self.model, "-p", "", "-n", "1")  # a begin-of-sequence token is enough

    def test_one_bad_prompt_of_three(self):
        done = self.bad(1, ["prompt 2", "context"], "generate", self.model, "-p", "a", "-p", "b" * 40, "-p", "c", "-n",
                        "3", "--ctx", "20")
        lines = done.stdout.decode().split("\n")
        headers = [line for line in lines if line.startswith("==")]
        self.assertEqual(headers, ["== prompt 1", "== prompt 2", "== prompt 3"])
        self.assertEqual(lines[lines.index("== prompt 2") + 1], "")
        self.assertNotEqual(lines[lines.index("== prompt 3") + 1], "")

    def test_last(self):
        ids, out = self.file("ids.txt", "1 2 3"), self.path("out")
        self.bad(2, ["--last", "4", "3"], "logits", self.model, "--ids-file", ids, "-o", out, "--last", "4")


class Plans(cli.Case):
    def refused(self, words, *args):
        self.bad(2, words, "generate", self.model, "-p", "x", *args)
        self.bad(2, words, "plan", self.model, *args)

    def test_cuts(self):
        self.refused(["--cut", "layer 3"], "--cut", "3")
        self.refused(["--cut", "layer 1"], "--cut", "2,1")
        self.refused(["--cut", "layer 1"], "--cut", "1,1")
        self.refused(["--cut", "0"], "--cut", "0,1")
        self.refused(["--cut", "\"one\""], "--cut", "one")
        self.refused(["--cut", "\"1,\""], "--cut", "1,")
        self.refused(["--cut", "\"\""], "--cut", "")
        self.refused(["--cut", "--stages"], "--cut", "1", "--stages", "3")

    def test_stages(self):
        self.refused(["--stages", "4", "3"], "--stages", "4")
        self.refused(["--stages", "0"], "--stages", "0")
        self.refused(["--stages", "1025"], "--stages", "1025")

    def test_budget(self):
        ids = self.file("ids.txt", "1 2 3")
        words = ["memory", "--mem"]
        for mem in ("1", "64K", "300K"):
            self.bad(1, words, "generate", self.model, "-p", "x", "--mem", mem)
            self.bad(1, words, "logits", self.model, "--ids-file", ids, "-o", self.path("out"), "--mem", mem)
        self.assertFalse(os.path.exists(self.path("out")))
        self.good("generate", self.model, "-p", "x", "-n", "2", "--mem", "2M")


class FullDisk(cli.Case):
    def logits(self, out):
        ids = self.file("ids.txt", "1 " * 100)
        return self.bad(1, [out, "No space left on device"], "logits", self.model, "--ids-file", ids, "-o", out)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_full_device(self):
        self.logits("/dev/full")
        with open("/dev/full", "wb") as full:
            words = ["standard output", "No space left on device"]
            for args in (["generate", self.model, "-p", "x"], ["generate", self.model, "-p", "x", "--json"],
                         ["inspect", self.model], ["plan", self.model], ["tokenize", self.model, "x"]):
                self.bad(1, words, *args, stdout=full)
            self.assertEqual(self.run_bin("--help", stdout=full).returncode, 1)

    def test_small_file_system(self):
        small = self.path("small")
        os.mkdir(small)
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small]
        try:
            mounted = os.geteuid() == 0 and subprocess.call(mount, stderr=subprocess.DEVNULL) == 0
        except FileNotFoundError:
            mounted = False
        if not mounted:
            self.skipTest("a tmpfs cannot be mounted")
        try:
            self.logits(os.path.join(small, "out"))
            self.assertEqual(os.listdir(small), [])
        finally:
            subprocess.run(["umount", small], check=True)

    def test_places_that_cannot_be_written(self):
        ids = self.file("ids.txt", "1 2")
        for out, words in ((self.path("no/such/folder"), "No such file"), (self.folder, "directory")):
            self.bad(1, [out, words], "logits", self.model, "--ids-file", ids, "-o", out)


class Usage(cli.Case):
    def test_command_line(self):
        self.bad(2, "--help")
        self.bad(2, ["genrate", "generate?"], "genrate")
        self.bad(2, ["--tmep", "--temp?"], "generate", self.model, "--tmep", "1")
        self.bad(2, ["inspect", "--temp"], "inspect", self.model, "--temp", "1")
        self.bad(2, ["--temp", "500", "0 to 100"], "generate", self.model, "-p", "x", "--temp", "500")
        self.bad(2, ["--kv-type", "f16|f32|q8_0"], "generate", self.model, "-p", "x", "--kv-type", "q8")
        self.bad(1, ["heads of 16", "--kv-type f16"], "generate", self.model, "-p", "x", "--kv-type", "q8_0")
        self.bad(2, "--n-predict", "generate", self.model, "-p", "x", "-n", "0")
        self.bad(2, "--stop", "generate", self.model, "-p", "x", "--stop", "")
        self.bad(2, "--ids-file", "logits", self.model, "-o", self.path("out"))
        self.bad(2, "-o FILE", "logits", self.model, "--ids-file", self.file("ids.txt", "1"))
        self.bad(2, "too many", "inspect", self.model, "b")
        self.bad(2, "-f", "tokenize", self.model, "text", "-f", self.file("text.txt", "text"))

    def test_environment(self):
        self.bad(2, ["MILLRACE_TEMP", "hot"], "generate", self.model, "-p", "x", env={"MILLRACE_TEMP": "hot"})
        self.bad(2, ["MILLRACE_CPU_ISA", "sse9", "scalar, "], "generate", self.model, "-p", "x",
                 env={"MILLRACE_CPU_ISA": "sse9"})
        done = self.run_bin("inspect", self.model, env={"MILLRACE_TMEP": "1"})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.decode(), "millrace: warning: unknown environment variable MILLRACE_TMEP; "
                                               "hint: did you mean MILLRACE_TEMP?\n")


if __name__ == "__main__":
    unittest.main()
