#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/predictors: what the scripts make of dense models runs in Millrace with the perplexity that they say, the
trained model of tests/golden/sparse keeps its perplexity with few active neurons, and wrong input is refused by its
name."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import test_packages

test_packages.enter("gguf", "numpy")

import gguf  # noqa: E402
import numpy as np  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS, TRAINED = SOURCE / "deploy" / "predictors", SOURCE / "tests" / "golden" / "sparse" / "relu.gguf"
BIN = os.environ["MILLRACE_BIN"]
KEY = b"powerinfer.sparse_threshold"
WINDOW, LIMIT_S = 128, 300
sys.path[:0] = [str(SCRIPTS), str(SOURCE / "deploy" / "demo")]
from make_corpus import stories  # noqa: E402
from model_file import ModelFile  # noqa: E402

ENVIRONMENT = {**{k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"},
               "MILLRACE_MEASURE": "off", "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="millrace-predictors-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.text = cls.file("text", "\n".join(stories(11, 25)))  # the trained model has not seen it

    @classmethod
    def file(cls, name, data):
        path = cls.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def run_command(self, *command):
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, env=ENVIRONMENT,
                              timeout=LIMIT_S, check=False)

    def script(self, name, *args):
        done = self.run_command(sys.executable, SCRIPTS / (name + ".py"), *args,
                                *(() if name == "renumber" else ("--millrace", BIN)))
        self.assertNotIn("Traceback", done.stderr)
        return done

    def good(self, name, *args):
        done = self.script(name, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def bad(self, words, name, *args):
        done = self.script(name, *args)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        line = done.stderr.splitlines()[-1]
        self.assertTrue(line.startswith(name + ".py: error: "), line)
        for word in words:
            self.assertIn(str(word), line)

    def perplexity(self, model, text=None, window=WINDOW):
        done = self.run_command(BIN, "perplexity", model, "-f", text or self.text, "--ctx", window, "--json",
                                "--log-level", "error")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["perplexity"]

    def measure(self, model, text=None, window=WINDOW):
        return json.loads(self.good("measure", model, text or self.text, "--window", window, "--json"))

    def with_threshold(self, model, value):
        """A copy of a sparse model with another threshold."""
        data = bytearray(pathlib.Path(model).read_bytes())
        struct.pack_into("<f", data, data.index(KEY) + len(KEY) + 4, value)
        return self.file(f"{pathlib.Path(model).stem}.threshold.gguf", bytes(data))


def write_dense(path, arch="llama", change=None, down=gguf.GGMLQuantizationType.F16):
    """The trained model as an ordinary file without predictors. change(name, values): other values, or None for no such
    tensor."""
    model = ModelFile(str(TRAINED))
    w = gguf.GGUFWriter(str(path), arch)
    for name, field in model.reader.fields.items():
        if not name.startswith(("GGUF.", "powerinfer.", "general.architecture")):
            sub = field.types[1] if len(field.types) > 1 else None
            w.add_key_value(name.replace("llama.", arch + ".", 1), field.contents(), field.types[0], sub)
    for t in model.reader.tensors:
        name, values = t.name.replace("ffn_down_t", "ffn_down"), t.data
        if name.split(".")[-2] in ("fc1", "fc2"):
            continue
        values = np.ascontiguousarray(values.T) if name != t.name else values
        values = change(name, values) if change else values
        if values is not None and name.endswith("ffn_down.weight"):
            w.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), down), raw_dtype=down)
        elif values is not None:
            w.add_tensor(name, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


class Trained(Case):
    def test_perplexity_and_active_share(self):
        """At most 30 % of the neurons cost at most 1 % of perplexity."""
        dense = self.perplexity(self.with_threshold(TRAINED, -np.inf), window=256)
        sparse = self.perplexity(TRAINED, window=256)
        found = self.measure(TRAINED, window=256)
        print(f"perplexity: dense {dense:.5f}, sparse {sparse:.5f} ({100 * (sparse / dense - 1):+.2f} %); "
              f"{100 * found['active']:.1f} % of the neurons active", flush=True)
        self.assertLess(sparse / dense - 1, 0.01)
        self.assertLess(found["active"], 0.3)
        self.assertGreater(found["active"], 0.01)
        self.assertNotEqual(sparse, dense)
        self.assertAlmostEqual(found["perplexity"] / sparse, 1, places=3)
        self.assertAlmostEqual(found["dense_perplexity"] / dense, 1, places=3)

    def test_a_high_threshold_costs_perplexity(self):
        """So that the model does need its neurons, and the test above can fail."""
        none = self.perplexity(self.with_threshold(TRAINED, 1e9), window=256)
        self.assertGreater(none, 1.5 * self.perplexity(TRAINED, window=256))


class Made(Case):
    """Small runs of the script from end to end."""

    OPTIONS = ("--window", WINDOW, "--tokens", 6 * 1024, "--steps", 200, "--rank", 40)

    def make(self, dense, loss):
        out = self.folder / (pathlib.Path(dense).stem + ".sparse.gguf")
        said = self.good("make_predictors", dense, self.text, "-o", out, "--loss", loss, *self.OPTIONS)
        self.assertEqual(out.read_bytes()[:4], b"PWRI")
        self.assertEqual(len([line for line in said.splitlines() if line.split()[1:2] == ["40"]]), 4, said)
        return out

    def check(self, dense, loss):
        """The new file keeps the wanted perplexity on the whole text, of which a part was not trained on."""
        out = self.make(dense, loss)
        found, everything = self.measure(out), self.with_threshold(out, -np.inf)
        sparse, full = self.perplexity(out), self.perplexity(everything)
        self.assertAlmostEqual(found["perplexity"] / sparse, 1, places=3)
        self.assertAlmostEqual(found["dense_perplexity"] / full, 1, places=3)
        self.assertLess(sparse / full - 1, 2 * loss)
        self.assertLess(found["active"], 0.6)
        for layer in found["layers"]:
            counts = np.array(layer["counts"])
            self.assertLess(np.abs(counts + np.sort(-counts)).sum(), 0.1 * counts.sum())  # hottest first
        return out, full

    def test_llama(self):
        _, full = self.check(write_dense(self.folder / "dense.gguf"), 0.02)
        old = self.perplexity(self.with_threshold(TRAINED, -np.inf))
        self.assertAlmostEqual(full / old, 1, places=4)  # the same model, whose neurons have other numbers

    def test_bamboo_with_another_type_of_down(self):
        dense = write_dense(self.folder / "bamboo.gguf", "bamboo", down=gguf.GGMLQuantizationType.Q8_0)
        out, _ = self.check(dense, 0.05)
        kinds = {t.name: t.tensor_type.name for t in ModelFile(str(out)).reader.tensors}
        self.assertEqual((kinds["blk.1.ffn_down_t.weight"], kinds["blk.1.fc2.weight"]), ("Q8_0", "F16"))

    def test_new_predictors_of_a_sparse_model(self):
        shutil.copy(TRAINED, self.folder / "again.gguf")
        self.check(self.folder / "again.gguf", 0.02)


class Renumbered(Case):
    def counts(self, change=None):
        layers = [{"layer": i, "counts": [(7 * n + i) % 512 for n in range(512)]} for i in range(4)]
        found = {"version": 1, "kind": "neurons", "layers": layers}
        if change:
            change(found)
        return self.file("counts.json", json.dumps(found))

    def test_neurons_move_together(self):
        out = self.folder / "renumbered.gguf"
        self.good("renumber", TRAINED, self.counts(), "-o", out)
        old, new = ModelFile(str(TRAINED)).tensors, ModelFile(str(out)).tensors
        self.assertEqual(set(old), set(new))
        for name, t in old.items():
            want = t.data
            if name.split(".")[-2] in ("ffn_gate", "ffn_up", "ffn_down_t", "fc2"):
                layer = int(name.split(".")[1])
                want = want[sorted(range(512), key=lambda n, i=layer: -((7 * n + i) % 512))]
            self.assertEqual(new[name].data.tobytes(), np.ascontiguousarray(want).tobytes(), name)
        self.assertAlmostEqual(self.perplexity(out) / self.perplexity(TRAINED), 1, places=4)

    def test_wrong_counts(self):
        def layer(idx, key, value):
            return lambda found: found["layers"][idx].__setitem__(key, value)
        for change, words in (
                (lambda found: found["layers"].pop(), ["no counts of layer 3"]),
                (layer(1, "counts", [1] * 511), ["layer 1", "512 counts"]),
                (layer(2, "counts", [-1] * 512), ["layer 2", "-1 is no count"]),
                (layer(2, "counts", [0.5] * 512), ["layer 2", "0.5 is no count"]),
                (layer(0, "layer", 4), ["layer 4", "4 layers"]),
                (layer(0, "layer", 1), ["layer 1", "twice"]),
                (lambda found: found.update(kind="experts"), ["counts of neurons"]),
                (lambda found: found.update(layers=[1]), ["counts of neurons"])):
            counts = self.counts(change)
            self.bad([counts, "hint:", *words], "renumber", TRAINED, counts, "-o", self.folder / "x.gguf")
        for data, words in ((b"{", ["not JSON"]), (b"\xff", ["not JSON"]), (b"[]", ["counts of neurons"])):
            counts = self.file("counts.json", data)
            self.bad([counts, *words], "renumber", TRAINED, counts, "-o", self.folder / "x.gguf")
        self.bad(["nothing"], "renumber", TRAINED, self.folder / "nothing", "-o", self.folder / "x.gguf")
        self.assertFalse((self.folder / "x.gguf").exists())


class Wrong(Case):
    def refused(self, words, model, text=None, out="out.gguf", *args):
        self.bad(words, "make_predictors", model, text or self.text, "-o", self.folder / out, "--window", WINDOW, *args)
        self.assertFalse((self.folder / "out.gguf").exists())
        self.assertEqual([p.name for p in self.folder.iterdir() if ".part" in p.name], [])

    def test_files(self):
        whole = TRAINED.read_bytes()
        for data in (b"", b"GGU", b"GGML" + whole[4:], whole[:20], whole[:3000], whole[:len(whole) // 2],
                     b"GGUF" + struct.pack("<I", 77) + whole[8:]):
            model = self.file("wrong.gguf", data)
            self.refused([model], model)
        self.refused([self.folder / "nothing"], self.folder / "nothing")

    def test_models(self):
        model = self.folder / "dense.gguf"

        def without(part):
            return lambda name, values: None if name == part else values

        def cut(part):
            return lambda name, values: values[:-1] if name == part else values
        for change, words in (
                (without("blk.2.ffn_up.weight"), ["'blk.2.ffn_up.weight' is missing"]),
                (cut("blk.1.ffn_gate.weight"), ["'blk.1.ffn_gate.weight' is [64, 511], wanted [64, 512]"]),
                (cut("blk.3.ffn_norm.weight"), ["'blk.3.ffn_norm.weight' is [63], wanted [64]"]),
                (lambda name, v: v * np.float32(np.nan) if name == "blk.0.attn_norm.weight" else v, ["layer 0"])):
            self.refused([model, *words], write_dense(model, change=change))
        self.refused([model, "architecture 'qwen3'"], write_dense(model, "qwen3"))

    def test_use(self):
        model = write_dense(self.folder / "dense.gguf")
        short = self.file("short", "Once upon a time")
        self.refused([short, "fewer than 4", "hint:"], model, short)
        self.refused(["no_text"], model, self.folder / "no_text")
        self.refused([model, "the model itself"], model, None, "dense.gguf")
        self.refused(["no_folder", "cannot be written"], model, None, "no_folder/x.gguf")
        done = self.run_command(sys.executable, SCRIPTS / "make_predictors.py", model, self.text, "-o", "x",
                                "--rank", 0)
        self.assertEqual((done.returncode, "no number from 1" in done.stderr), (2, True), done.stderr)
        self.bad(["PWRI", "make_predictors.py"], "measure", model, self.text)
        done = self.run_command(sys.executable, SCRIPTS / "measure.py", TRAINED, self.text, "--millrace", "/nothing")
        self.assertEqual((done.returncode, "--millrace" in done.stderr), (1, True), done.stderr)

    def test_loss_that_cannot_be_kept(self):
        model = write_dense(self.folder / "dense.gguf")
        self.refused([model, "--loss 0", "--rank"], model, None, "out.gguf", "--loss", 0, "--rank", 1, "--steps", 1,
                     "--tokens", 1024)


if __name__ == "__main__":
    unittest.main()
