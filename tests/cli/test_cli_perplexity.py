#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace perplexity`: the value that the logits give, and the same one for every plan."""
import array
import json
import math
import os
import unittest

import cli
import tiny_model

TEXT = os.path.join(cli.SOURCE, "tests", "data", "perplexity.txt")


def scores(logits, ids, n_vocab):
    """-log(probability) of the second half of a window."""
    out = []
    for p in range(len(ids) // 2, len(ids) - 1):
        row = logits[p * n_vocab:(p + 1) * n_vocab]
        most = max(row)
        out.append(math.log(sum(math.exp(x - most) for x in row)) + most - row[ids[p + 1]])
    return out


class Case(cli.Case):
    def perplexity(self, *args, model=None, **kwargs):
        return json.loads(self.good("perplexity", model or self.model, "--json", *args, **kwargs))

    def text(self, n):
        with open(TEXT, "rb") as f:
            return self.file("text.txt", f.read(n))

    def expected(self, model, text, ctx, n_vocab):
        """(perplexity, standard error, tokens) by the other commands."""
        ids = [int(x) for x in self.good("tokenize", model, "--bos", "--no-special", "-f", text).split()]
        found = []
        for start in range(0, len(ids) - ctx + 1, ctx):
            window = [1] + ids[start + 1:start + ctx]
            out = self.path("out.f32")
            self.good("logits", model, "--ids-file", self.file("ids", " ".join(map(str, window))), "-o", out)
            with open(out, "rb") as f:
                found += scores(array.array("f", f.read()), window, n_vocab)
        mean = sum(found) / len(found)
        variance = sum(x * x for x in found) / len(found) - mean * mean
        return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(found) - 1)), len(found)

    def check(self, model, text, ctx, n_vocab):
        found = self.perplexity("-f", text, "--ctx", str(ctx), model=model)
        value, error, n = self.expected(model, text, ctx, n_vocab)
        self.assertEqual(found["tokens"], n)
        self.assertAlmostEqual(found["perplexity"] / value, 1, places=7)
        self.assertAlmostEqual(found["standard_error"] / error, 1, places=6)


class Tiny(Case):
    def test_value(self):
        text = self.text(700)
        for ctx in (8, 33, 100):
            self.check(self.model, text, ctx, tiny_model.VOCAB)

    def test_text(self):
        text = self.text(1200)
        out = self.good("perplexity", self.model, "-f", text).decode()
        value, plus, error = out.removeprefix("perplexity ").split()
        found = self.perplexity("-f", text)
        self.assertEqual((found["context"], found["windows"], found["tokens"]), (512, 2, 2 * 255))
        self.assertEqual((value, plus, error),
                         (f"{found['perplexity']:.6g}", "+/-", f"{found['standard_error']:.3g}"))
        with open(text, "rb") as f:
            self.assertEqual(self.good("perplexity", self.model, "-f", "-", stdin=f.read()).decode(), out)

    def test_wrong_use(self):
        text = self.text(100)
        self.bad(2, ["-f FILE"], "perplexity", self.model)
        self.bad(2, ["text.txt", "window of 512", "--ctx"], "perplexity", self.model, "-f", text)
        self.bad(2, ["--ctx", "8"], "perplexity", self.model, "-f", text, "--ctx", "7")
        self.bad(1, ["nothing"], "perplexity", self.model, "-f", self.path("nothing"))
        dumb = tiny_model.make(self.path("dumb.gguf"), tokenizer=False)
        self.bad(1, ["dumb.gguf"], "perplexity", dumb, "-f", text)


@cli.needs_demo
class Demo(Case):
    def test_value(self):
        n_vocab = next(t["shape"][1] for t in json.loads(self.good("inspect", cli.DEMO, "--json"))["tensors"]
                       if t["name"] == "token_embd.weight")
        self.check(cli.DEMO, self.text(1500), 128, n_vocab)

    def test_every_plan_has_the_same_value(self):
        text, keys = self.text(4000), ("perplexity", "standard_error", "tokens", "windows")
        first = self.perplexity("-f", text, "--ctx", "200", model=cli.DEMO)
        for args in (["-t", "1"], ["-t", "2"], ["--stages", "2"], ["--stages", "3", "--chunk", "19"],
                     ["--chunk", "64"]):
            found = self.perplexity("-f", text, "--ctx", "200", *args, model=cli.DEMO)
            self.assertEqual([found[k] for k in keys], [first[k] for k in keys], args)
        other = self.perplexity("-f", text, "--ctx", "200", "--kv-type", "f32", model=cli.DEMO)
        self.assertNotEqual(other["perplexity"], first["perplexity"])


if __name__ == "__main__":
    unittest.main()
