#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`millrace profile`: the counts of a text, the same ones for every plan, and the file that later commands find."""
import json
import os
import unittest

import cli
import tiny_model

TEXT = os.path.join(cli.SOURCE, "tests", "data", "perplexity.txt")
ARCHS = os.path.join(cli.SOURCE, "tests", "golden", "arch")
EXPERTS = os.path.join(ARCHS, "qwen3moe.gguf")
PARTLY_DENSE = os.path.join(ARCHS, "deepseek2.gguf")  # its first layer has no experts


class Case(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sparse = tiny_model.make(cls.path("sparse.gguf"), predictor=16)
        with open(TEXT, "rb") as f:
            data = f.read(900)
        with open(cls.path("text.txt"), "wb") as f:
            f.write(data)
        cls.text = cls.path("text.txt")

    def profile(self, model, *args):
        """The bytes of the file."""
        out = self.path("counts.json")
        self.good("profile", model, "-f", self.text, "-o", out, *args)
        with open(out, "rb") as f:
            data = f.read()
        os.unlink(out)
        return data


class Counts(Case):
    def test_every_plan_has_the_same_counts(self):
        for model in (EXPERTS, PARTLY_DENSE, self.sparse):
            first = self.profile(model, "--ctx", "64")
            for args in (["-t", "1", "--chunk", "1"], ["--chunk", "7"], ["--stages", "2", "--chunk", "160"],
                         ["--stages", "3", "--no-repack"]):
                self.assertEqual(self.profile(model, "--ctx", "64", *args), first, (model, args))

    def n_tokens(self, model):
        return len(self.good("tokenize", model, "--bos", "--no-special", "-f", self.text).split())

    def test_experts(self):
        for model, n_dense in ((EXPERTS, 0), (PARTLY_DENSE, 1)):
            keys = json.loads(self.good("inspect", model, "--json"))["metadata"]
            arch = keys["general.architecture"]
            used = keys[f"{arch}.expert_used_count"]
            found = json.loads(self.profile(model))
            self.assertEqual((found["version"], found["kind"], found["model"]),
                             (1, "experts", os.path.basename(model)))
            self.assertEqual(found["rows"], self.n_tokens(model))
            self.assertEqual([layer["layer"] for layer in found["layers"]],
                             list(range(n_dense, keys[f"{arch}.block_count"])))
            for layer in found["layers"]:
                self.assertEqual(len(layer["counts"]), keys[f"{arch}.expert_count"])
                self.assertEqual(sum(layer["counts"]), found["rows"] * used)

    def test_neurons(self):
        found = json.loads(self.profile(self.sparse))
        self.assertEqual((found["kind"], found["rows"]), ("neurons", self.n_tokens(self.sparse)))
        self.assertEqual([(layer["layer"], len(layer["counts"])) for layer in found["layers"]],
                         [(0, 64), (1, 64), (2, 64)])
        for layer in found["layers"]:
            self.assertTrue(0 < sum(layer["counts"]) < 64 * found["rows"])
            self.assertLessEqual(max(layer["counts"]), found["rows"])

    def test_report(self):
        out = self.path("counts.json")
        lines = self.good("profile", self.sparse, "-f", self.text, "-o", out).decode().splitlines()
        told = json.loads(self.good("profile", self.sparse, "-f", self.text, "-o", out, "--json"))
        with open(out, "rb") as f:
            counts = [layer["counts"] for layer in json.load(f)["layers"]]
        self.assertEqual((told["file"], told["kind"], told["windows"]), (out, "neurons", -(-told["rows"] // 512)))
        self.assertIn(f"{told['rows']} tokens", lines[0])
        for line, layer, of_file in zip(lines[2:], told["layers"], counts, strict=True):
            of_file.sort(reverse=True)
            self.assertAlmostEqual(layer["active"], sum(of_file) / (64 * told["rows"]))
            for percent, n in ((10, 7), (25, 16), (50, 32)):
                self.assertAlmostEqual(layer[f"hottest_{percent}"], sum(of_file[:n]) / sum(of_file))
            shares = [layer["active"]] + [layer[f"hottest_{p}"] for p in (10, 25, 50)]
            self.assertEqual(line.split(), [str(layer["layer"]), "64"] +
                             [word for share in shares for word in (f"{100 * share:.1f}", "%")])


class Files(Case):
    def test_cache(self):
        folder = self.path("cache")
        told = [json.loads(self.good("profile", model, "-f", self.text, "--cache-dir", folder, "--json"))["file"]
                for model in (self.sparse, EXPERTS)]
        self.assertEqual(sorted(told), sorted(os.path.join(folder, name) for name in os.listdir(folder)
                                              if name.startswith("profile-")))
        with open(told[1], encoding="utf-8") as f:
            self.assertIn(json.load(f)["digest"][2:], told[1])
        # A changed model file has a profile of its own.
        with open(self.sparse, "rb") as f:
            data = bytearray(f.read())
        for i in range(len(data) - 20000, len(data), 4):
            data[i] ^= 1
        other = self.file("other.gguf", bytes(data))
        name = json.loads(self.good("profile", other, "-f", self.text, "--cache-dir", folder, "--json"))["file"]
        self.assertNotIn(name, told)

    def test_wrong_use(self):
        self.bad(2, ["-f FILE"], "profile", self.sparse)
        self.bad(1, ["tiny.gguf", "neither experts nor predictors", "hint"], "profile", self.model, "-f", self.text)
        self.bad(1, ["nothing"], "profile", self.sparse, "-f", self.path("nothing"))
        self.bad(1, ["counts.json"], "profile", self.sparse, "-f", self.text, "-o", self.path("no/counts.json"))
        dumb = tiny_model.make(self.path("dumb.gguf"), tokenizer=False, predictor=16)
        self.bad(1, ["dumb.gguf"], "profile", dumb, "-f", self.text)

    def test_standard_input(self):
        with open(self.text, "rb") as f:
            data = f.read()
        want = self.profile(self.sparse)
        out = self.path("other.json")
        self.good("profile", self.sparse, "-f", "-", "-o", out, stdin=data)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), want)


if __name__ == "__main__":
    unittest.main()
