#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text files as editors and shells of other systems write them: every option that reads text takes and refuses the same ones."""
import json
import os
import re
import unittest

import cli
import tiny_model

MARK = b"\xef\xbb\xbf"
NO_TEXT = {"--out", "--save", "--trace"}  # files that are written
OTHERS = {"--gpu-index": "a model file", "--tls-cert": "only its refusals are here", "--tls-key": "as --tls-cert",
          "--api-key-file": "only its refusals are here; test_serve has the keys"}


@cli.needs_demo
class TextFiles(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sparse = tiny_model.make(cls.path("sparse.gguf"), predictor=16)

    @staticmethod
    def bytes_of(path):
        with open(path, "rb") as f:
            return f.read()

    def written(self, *args):
        """The file that a command writes to -o."""
        out = self.path("out")
        if os.path.exists(out):
            os.unlink(out)
        self.good(*args, "-o", out, "--log-level", "error")
        return self.bytes_of(out)

    def batch(self, path):
        results = [json.loads(line) for line in self.written("batch", "--demo", "-i", path, "--temp", "0").splitlines()]
        return sorted((r["custom_id"], r["response"]["body"]["choices"][0]["text"]) for r in results)

    def readers(self):
        """For each option: a text, whether it consists of lines, and a function that gives what the program makes of the file."""
        demo, tiny = "--demo", self.model
        hosts = "# two\nnode1 mem=1G bw=10GB/s\nnode2 mem=1G bw=10GB/s\n"
        self.good("plan", tiny, "--stages", "2", "--save", self.path("plan.json"))
        self.good("plan", tiny, "--facts", self.file("hosts", hosts), "--save", self.path("facts.json"))
        plan, facts = (self.bytes_of(self.path(name)).decode() for name in ("plan.json", "facts.json"))
        template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        request = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions",
                              "body": {"prompt": "The river", "max_tokens": 4}})
        simulate = ("simulate", tiny, "--synthetic-stage", "1,0.1", "--json", "--load-trace")
        return {
            "generate --file": ("The river\n", True, lambda p: self.good("generate", demo, "-n", "4", "--temp", "0", "-f", p)),
            "tokenize --file": ("The river", False, lambda p: self.good("tokenize", demo, "-f", p)),
            "tokenize --decode --file": ("1 2\n3\n", True, lambda p: self.good("tokenize", demo, "--decode", "-f", p)),
            "perplexity --file": ("the river " * 9, False, lambda p: re.findall(
                r"perplexity\S* \S+", self.good("perplexity", demo, "--ctx", "16", "-f", p).decode())),
            "profile --file": ("the river", False, lambda p: self.written("profile", self.sparse, "-f", p)),
            "logits --ids-file": ("1 2\n3\n", True, lambda p: self.written("logits", tiny, "--ids-file", p)),
            "batch --input": (request + "\n", True, self.batch),
            "batch --input of prompts": ("The river\nThe mill\n", True, self.batch),
            "chat --chat-template-file": (template, True, lambda p: self.good(
                "chat", demo, "-n", "4", "--temp", "0", "--chat-template-file", p, stdin=b"The river\n")),
            "chat": ("The river\nThe mill\n", True, lambda p: self.good(
                "chat", demo, "-n", "4", "--temp", "0", stdin=self.bytes_of(p))),
            "simulate --load-trace": ("0,9,2\n1.5,9,3\n", True, lambda p: self.good(*simulate, p)),
            "generate --grammar": ('root ::= "a" b\nb ::= "c" # end\n', True, lambda p: self.good(
                "generate", demo, "-p", "A", "-n", "4", "--grammar", p)),
            "generate --plan": (plan, True, lambda p: self.good("generate", tiny, "-p", "the", "-n", "2", "--temp", "0", "--plan", p)),
            "plan --facts": (facts, True, lambda p: self.good("plan", tiny, "--facts", p)),
            "plan --facts of hosts": (hosts, True, lambda p: self.good("plan", tiny, "--facts", p)),
        }

    def test_marks_and_line_ends(self):
        for name, (text, has_lines, made) in self.readers().items():
            data = text.encode()
            wanted = made(self.file("text", data))
            self.assertTrue(wanted, name)
            self.assertEqual(made(self.file("text", MARK + data)), wanted, name)
            if has_lines:
                self.assertEqual(made(self.file("text", data.replace(b"\n", b"\r\n"))), wanted, name)
                self.assertEqual(made(self.file("text", MARK + data.replace(b"\n", b"\r\n"))), wanted, name)

    def refused(self, name, args, text, status=1, stdin=False):
        """The text in other encodings, and with a byte of no text. args: the command without the file."""
        for encoding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32"):
            self.refuse(name, args, text.encode(encoding), ["is text in " + encoding[:6].upper(), "save it as UTF-8"], status, stdin)
        self.refuse(name, args, text.encode() + b"\n\0", ["line", "NUL byte"], status, stdin)
        self.refuse(name, args, b"caf\xe9 " + text.encode(), ["line 1", "0xE9", "save it as UTF-8"], status, stdin)

    def refuse(self, name, args, data, words, status, stdin):
        if stdin:
            self.bad(status, ["standard input", *words], *args, stdin=data)
        else:
            path = self.file(name, data)
            self.bad(status, [path, *words], *args, path)

    def test_what_is_no_text(self):
        out, cert = self.path("never"), self.file("cert.pem", "x")
        for option, args, status in (
                ("file", ("generate", "--demo", "-f"), 1), ("file", ("tokenize", "--demo", "-f"), 1),
                ("file", ("tokenize", "--demo", "--decode", "-f"), 1), ("file", ("perplexity", "--demo", "-f"), 1),
                ("file", ("profile", self.sparse, "-o", out, "-f"), 1),
                ("ids-file", ("logits", self.model, "-o", out, "--ids-file"), 1),
                ("input", ("batch", "--demo", "-o", out, "-i"), 1),
                ("chat-template-file", ("chat", "--demo", "--chat-template-file"), 1),
                ("chat-template-file", ("serve", "--demo", "--port", "0", "--chat-template-file"), 1),
                ("load-trace", ("simulate", self.model, "--synthetic-stage", "1,0", "--load-trace"), 1),
                ("grammar", ("generate", "--demo", "-p", "A", "--grammar"), 1),
                ("api-key-file", ("serve", "--demo", "--port", "0", "--api-key-file"), 2),
                ("tls-cert", ("serve", "--demo", "--port", "0", "--tls-key", cert, "--tls-cert"), 2),
                ("tls-key", ("serve", "--demo", "--port", "0", "--tls-cert", cert, "--tls-key"), 2),
                ("plan", ("generate", self.model, "-p", "the", "--plan"), 1),
                ("facts", ("plan", self.model, "--facts"), 1)):
            if option == "input":  # a later line is an error of its own
                for encoding in ("utf-16", "utf-32"):
                    self.refuse(option, args, "A\nB\n".encode(encoding), ["is text in UTF", "save it as UTF-8"], status, False)
                self.refuse(option, args, b"\n\0\n", ["line 2", "NUL byte"], status, False)
            else:
                self.refused(option, args, '{"a": 1}', status)
        self.bad(2, ["--tls-cert is no PEM", "line 1"], "serve", "--demo", "--port", "0", "--tls-key", cert, "--tls-cert",
                 self.file("cert.der", b"\x30\x82\x01\x0a"))
        self.refused("text", ("tokenize", "--demo"), "The river", stdin=True)
        self.refused("text", ("generate", "--demo", "-f", "-"), "The river", stdin=True)
        self.assertFalse(os.path.exists(out))

    def test_every_option_with_a_file_is_here(self):
        listed = set(re.findall(r"(--[a-z-]+) FILE", self.good("--options").decode()))
        here = set(re.findall(r"--[a-z-]+", " ".join(self.readers()))) - {"--decode"}
        self.assertEqual(listed - NO_TEXT - set(OTHERS), here)

    def test_a_line_of_a_batch_that_is_no_text(self):
        path = self.file("prompts", b"The river\nThe\0 mill\ncaf\xe9\n")
        results = [json.loads(line) for line in self.written("batch", "--demo", "-i", path, "-n", "2").splitlines()]
        self.assertEqual(sorted((r["id"].split("_")[2], (r["error"] or {}).get("code")) for r in results),
                         [("1", None), ("2", "invalid_line"), ("3", "invalid_utf8")])

    def test_a_dash(self):
        """A file with the name - is never made or read by mistake."""
        ids = self.file("ids", "1 2")
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            for args in (("logits", self.model, "--ids-file", ids, "-o"), ("batch", "--demo", "-i", ids, "-o"),
                         ("plan", self.model, "--save"), ("plan", self.model, "--plan"), ("plan", self.model, "--facts"),
                         ("serve", "--demo", "--api-key-file"), ("chat", "--demo", "--chat-template-file"),
                         ("generate", self.model, "-p", "the", "--trace")):
                self.bad(2, [args[-1] + ": - is neither standard input nor standard output here", "./-"], *args, "-")
            self.assertFalse(os.path.exists("-"))
        finally:
            os.chdir(before)


if __name__ == "__main__":
    unittest.main()
