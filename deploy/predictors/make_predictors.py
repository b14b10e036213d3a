#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives a dense ReLU model predictors of active neurons, so that Millrace computes these neurons only.

The model is a GGUF file of architecture llama, whose neurons give relu(gate) * up, or bamboo, whose neurons give
relu(gate) * relu(up). The file does not say that its units are ReLU: a model with another unit gives nonsense.
The script runs the model on a text, layer by layer. In each layer it records which neurons are active, trains a
predictor of low rank, and finds the scores at which each of some shares of the neurons' output is kept. The last windows
of the text are not trained on. The smallest share whose perplexity there is within --loss of the dense one becomes the
threshold. Neurons are renumbered, the most active ones first. OUT is a file with the magic PWRI for Millrace."""
import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from forward import Layer, Rope, logits_loss
from model_file import ModelFile, Refused, write_sparse
from training import Training, scores_of, thresholds, train

SHARES = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0)  # of the sum of |units|
THRESHOLD = 1.0  # of the new file; each layer's fc2 is scaled so that its own threshold becomes this one


def say(text):
    print(text, file=sys.stderr, flush=True)


def tokenize(a, model):
    """Windows of ids: [windows, tokens]. Each begins with the token of begin, if the model wants it."""
    command = [a.millrace, "tokenize", a.model, "--bos", "--no-special", "-f", a.text, "--log-level", "error"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as e:
        raise Refused(f"{a.millrace}: {e.strerror}; hint: --millrace names the program, which tokenizes the text") from e
    if done.returncode:
        raise Refused(f"{a.millrace} tokenize: {done.stderr.decode(errors='replace').strip()}")
    ids = np.array(done.stdout.split(), dtype=np.int64)
    n = min(len(ids), a.tokens) // a.window
    if n < 4:
        raise Refused(f"{a.text}: {len(ids)} tokens, of which {a.tokens} may be used, are {n} windows of {a.window} tokens, "
                      "fewer than 4; hint: take a longer text, a greater --tokens or a smaller --window")
    n_vocab = int(model.tensor("token_embd.weight", None, model.shape.width).shape[1])
    if ids.max() >= n_vocab:
        raise Refused(f"{a.model}: token {ids.max()} of the text is none of the {n_vocab} tokens of token_embd.weight")
    windows = ids[:n * a.window].reshape(n, a.window).copy()
    if ids[0] == model.key("tokenizer.ggml.bos_token_id", -1):
        windows[:, 0] = ids[0]
    return windows


@dataclass
class LayerResult:
    fc1: np.ndarray
    fc2: np.ndarray
    thresholds: list  # by share
    counts: np.ndarray  # [shares, neurons]: rows in which the neuron is active
    dense_active: float  # share of neurons that are active without a predictor
    active: list  # by share, of the windows that are not trained on
    recall: list
    kept: list


class Run:
    """The rows of all windows, and of the windows that are not trained on once more for each share. Each of these copies
    goes through the model with the neurons that its own thresholds leave."""

    def __init__(self, a, model):
        self.a, self.model, self.rng = a, model, np.random.default_rng(a.seed)
        self.ids = tokenize(a, model)
        self.n_held = max(1, len(self.ids) // 4)
        table = model.values("token_embd.weight", None, model.shape.width)
        self.x = table[self.ids]  # [windows, tokens, width]
        self.held = [self.x[-self.n_held:].copy() for _ in SHARES]
        self.rope = Rope(model.shape, a.window)
        self.training = Training(a.rank or max(8, model.shape.width // 4), a.steps, a.rows, a.rate, a.recall_weight)

    def layer(self, idx):
        layer = Layer(self.model.shape, self.model.layer(idx), self.rope)
        self.x = np.stack([layer.attention(w) for w in self.x])
        x = self.x.reshape(-1, self.model.shape.width)
        units = np.concatenate([layer.units(w).astype(np.float16) for w in self.x])
        if not np.isfinite(units).all() or not np.isfinite(x).all():
            raise self.model.refused(f"the activations of layer {idx} overflow; hint: is it a llama or bamboo model with "
                                     "ReLU units?")
        n_train = (len(self.ids) - self.n_held) * self.a.window
        fc1, fc2 = train(x[:n_train], units[:n_train], self.training, self.rng)
        result = self._measure(fc1, fc2, x, units, n_train)
        self.x = np.stack([layer.down(w, layer.units(w)) for w in self.x])
        for share, t in enumerate(result.thresholds):
            self.held[share] = np.stack([self._masked(layer, w, fc1, fc2, t) for w in self.held[share]])
        return result

    def _masked(self, layer, x, fc1, fc2, threshold):
        x = layer.attention(x)
        return layer.down(x, layer.units(x) * (scores_of(fc1, fc2, x) >= threshold))

    def _measure(self, fc1, fc2, x, units, n_train):
        truth, held = units[n_train:] != 0, np.abs(units[n_train:]).astype(np.float32)
        score = scores_of(fc1, fc2, x[n_train:])
        t = thresholds(score, units[n_train:], SHARES)
        counts = np.zeros((len(SHARES), units.shape[1]), np.int64)
        for start in range(0, len(x), self.a.window):
            of_window = scores_of(fc1, fc2, x[start:start + self.a.window])
            counts += np.stack([(of_window >= limit).sum(axis=0) for limit in t])
        n, mass = max(int(truth.sum()), 1), max(float(held.sum(dtype=np.float64)), 1e-30)
        chosen = [score >= limit for limit in t]
        return LayerResult(fc1, fc2, t, counts, float(truth.mean()), [float(c.mean()) for c in chosen],
                           [float((c & truth).sum()) / n for c in chosen],
                           [float(held[c].sum(dtype=np.float64)) / mass for c in chosen])

    def perplexity(self, rows):
        ids = self.ids[-self.n_held:]
        loss = sum(logits_loss(self.model, x, i) for x, i in zip(rows, ids))
        return float(np.exp(loss / (len(ids) * (self.a.window - 1))))


def choose(run, dense, loss):
    """The first share that keeps the wanted loss, and the perplexities of all."""
    found = [run.perplexity(rows) for rows in run.held]
    good = [i for i, p in enumerate(found) if p <= dense * (1 + loss)]
    if not good:
        raise Refused(f"{run.a.model}: with {100 * SHARES[-1]:g} % of the neurons' output kept, the perplexity is "
                      f"{found[-1]:.4g} instead of {dense:.4g}, more than --loss {loss:g} allows; hint: take a greater "
                      "--rank, --steps or --tokens")
    return good[0], found


def report(results, choice, rank):
    print("layer  rank  active dense  active  recall  output kept")
    for idx, r in enumerate(results):
        print(f"{idx:5}  {rank:4}  {100 * r.dense_active:10.2f} %  {100 * r.active[choice]:4.1f} %  "
              f"{100 * r.recall[choice]:4.1f} %  {100 * r.kept[choice]:9.2f} %")
    mean = 100 * np.mean([r.active[choice] for r in results])
    print(f"active share of all layers: {mean:.1f} %" +
          ("; hint: above some 30 % a sparse model is hardly faster than a dense one" if mean > 30 else ""))


def make(a):
    model = ModelFile(a.model)
    if os.path.exists(a.out) and os.path.samefile(a.model, a.out):
        raise Refused(f"{a.out}: is the model itself; hint: --out names a new file")
    run, results = Run(a, model), []
    say(f"{run.ids.size} tokens in windows of {a.window}, {run.n_held} of {len(run.ids)} windows not trained on")
    for idx in range(model.shape.layers):
        begin = time.monotonic()
        results.append(run.layer(idx))
        say(f"layer {idx} of {model.shape.layers}: {100 * results[-1].dense_active:.2f} % of the neurons are active, "
            f"{time.monotonic() - begin:.1f} s")
    dense = run.perplexity(run.x[-run.n_held:])
    choice, found = choose(run, dense, a.loss)
    report(results, choice, run.training.rank)
    print(f"perplexity: dense {dense:.4f}, sparse {found[choice]:.4f} ({100 * (found[choice] / dense - 1):+.2f} %)")
    orders = [np.argsort(-r.counts[choice], kind="stable") for r in results]
    predictors = [(r.fc1, r.fc2 * np.float32(THRESHOLD / r.thresholds[choice])) for r in results]
    write_sparse(a.out, model, orders, THRESHOLD, predictors)
    print(f"{a.out}: {os.path.getsize(a.out)} bytes")


def number(kind, low, high):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is no number from {low} to {high}")
        return value
    return parse


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", metavar="MODEL", help="the dense model, or a sparse one that gets new predictors")
    p.add_argument("text", metavar="TEXT", help="a text like those that the model will see")
    p.add_argument("-o", "--out", required=True, help="the sparse file to write")
    p.add_argument("--millrace", default="millrace", help="the program, which tokenizes TEXT (default %(default)s)")
    for name, kind, low, high, value, text in (
            ("rank", int, 1, 1 << 16, None, "hidden numbers of a predictor (default a quarter of the model's width)"),
            ("loss", float, 0, 10, 0.005, "how much greater the perplexity may be, as a share (default 0.005)"),
            ("tokens", int, 64, 1 << 24, 32768, "tokens of TEXT that are used; each takes 2 bytes for each neuron of a "
             "layer, and 48 for each column (default 32768)"),
            ("window", int, 8, 1 << 16, 512, "tokens that the model sees at once (default 512)"),
            ("steps", int, 1, 1 << 24, 2000, "steps of training in each layer (default 2000)"),
            ("rows", int, 1, 1 << 16, 256, "tokens of a step (default 256)"),
            ("rate", float, 1e-6, 1, 3e-3, "rate of training (default 0.003)"),
            ("recall-weight", float, 0.1, 1000, 4.0, "weight of an active neuron beside an inactive one (default 4)"),
            ("seed", int, 0, 1 << 31, 1, "seed of the random numbers (default 1)")):
        p.add_argument("--" + name, type=number(kind, low, high), default=value, metavar="N", help=text)
    return p


def main():
    a = parser().parse_args()
    try:
        make(a)
    except Refused as e:
        say(f"make_predictors.py: error: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
