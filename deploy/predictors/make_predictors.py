#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives a dense ReLU model predictors of active neurons, so that Millrace computes these neurons only.

The model is a GGUF file of architecture llama, whose neurons give relu(gate) * up, or bamboo, whose neurons give
relu(gate) * relu(up). The file does not say that its units are ReLU: a model with another unit gives nonsense.
The script runs the model on a text, layer by layer. In each layer it records which neurons are active, trains a
predictor of low rank, and finds the scores at which each of some shares of the neurons' output is kept. The last
windows of the text are not trained on. The smallest share whose perplexity there is within --loss of the dense one
decides the threshold. Neurons are renumbered, the most active ones first. OUT is a file with the magic PWRI for
Millrace. Memory is needed for the activations of one layer (see --tokens)."""
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from forward import Layer, Rope, perplexity, scores_of
from model_file import ModelFile, Refused, check_out, write_sparse
from tool import number, parser, run, say, windows
from training import Training, thresholds, train

SHARES = (0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 0.9999, 1.0)  # of the sum of |units|
MOST = np.finfo(np.float16).max
THRESHOLD = 1.0  # of the new file; each layer's fc2 is scaled so that its own threshold becomes this one


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
    """The rows of all windows, and of the windows that are not trained on once more for each share. Each of these
    copies goes through the model with the neurons that its own thresholds leave."""

    def __init__(self, a, model):
        self.a, self.model, self.rng = a, model, np.random.default_rng(a.seed)
        self.ids = windows(a, model, 4, a.tokens)
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
        units = np.empty((len(x), self.model.shape.neurons), np.float16)
        for at, w in zip(range(0, len(x), self.a.window), self.x):
            units[at:at + len(w)] = self._units(layer, w, idx)
        n_train = (len(self.ids) - self.n_held) * self.a.window
        fc1, fc2 = train(x[:n_train], units[:n_train], self.training, self.rng)
        result = self._measure(fc1, fc2, x, units, n_train)
        self.x = np.stack([layer.down(w, layer.units(w)) for w in self.x])
        for share, t in enumerate(result.thresholds):
            self.held[share] = np.stack([layer.run(w, fc1, fc2, t)[0] for w in self.held[share]])
        return result

    def _units(self, layer, x, idx):
        """In the range of float16, which is enough to weigh neurons."""
        units = layer.units(x)
        if not np.isfinite(units).all():
            raise self.model.refused(f"the activations of layer {idx} overflow; hint: is it a llama or bamboo model "
                                     "with ReLU units?")
        return np.clip(units, -MOST, MOST)

    def _measure(self, fc1, fc2, x, units, n_train):
        truth, held = units[n_train:] != 0, np.abs(units[n_train:]).astype(np.float32)
        score = scores_of(fc1, fc2, x[n_train:])
        t = thresholds(score, units[n_train:], SHARES)
        counts = np.zeros((len(SHARES), units.shape[1]), np.int64)
        for start in range(0, len(x), self.a.window):
            of_window = scores_of(fc1, fc2, x[start:start + self.a.window])
            counts += np.stack([(of_window >= limit).sum(axis=0) for limit in t])
        n, mass = max(int(truth.sum()), 1), max(float(held.sum(dtype=np.float64)), 1e-30)
        r = LayerResult(fc1, fc2, t, counts, float(truth.mean()), [], [], [])
        for limit in t:
            chosen = score >= limit
            r.active.append(float(chosen.mean()))
            r.recall.append(float((chosen & truth).sum()) / n)
            r.kept.append(float(held.sum(where=chosen, dtype=np.float64)) / mass)
        return r

    def perplexity(self, rows):
        return perplexity(self.model, rows, self.ids[-self.n_held:])


def choose(job, dense, loss):
    """The first share that keeps the wanted loss, and the perplexities of all."""
    found = [job.perplexity(rows) for rows in job.held]
    good = [i for i, p in enumerate(found) if p <= dense * (1 + loss)]
    if not good:
        raise Refused(f"{job.a.model}: with {100 * SHARES[-1]:g} % of the neurons' output kept, the perplexity is "
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
    check_out(a.out, model)
    job, results = Run(a, model), []
    say(f"{job.ids.size} tokens in windows of {a.window}, {job.n_held} of {len(job.ids)} windows not trained on")
    for idx in range(model.shape.layers):
        begin = time.monotonic()
        results.append(job.layer(idx))
        say(f"layer {idx} of {model.shape.layers}: {100 * results[-1].dense_active:.2f} % of the neurons are active, "
            f"{time.monotonic() - begin:.1f} s")
    dense = job.perplexity(job.x[-job.n_held:])
    choice, found = choose(job, dense, a.loss)
    report(results, choice, job.training.rank)
    print(f"perplexity: dense {dense:.4f}, sparse {found[choice]:.4f} ({100 * (found[choice] / dense - 1):+.2f} %)")
    orders = [np.argsort(-r.counts[choice], kind="stable") for r in results]
    predictors = [(r.fc1, r.fc2 * np.float32(THRESHOLD / r.thresholds[choice])) for r in results]
    write_sparse(a.out, model, orders, THRESHOLD, predictors)
    print(f"{a.out}: {os.path.getsize(a.out)} bytes")


def options():
    p = parser(__doc__)
    p.add_argument("model", metavar="MODEL", help="the dense model, or a sparse one that gets new predictors")
    p.add_argument("text", metavar="TEXT", help="a text like those that the model will see")
    p.add_argument("-o", "--out", required=True, help="the sparse file to write")
    for name, kind, low, high, value, text in (
            ("rank", int, 1, 1 << 16, None, "hidden numbers of a predictor (default a quarter of the model's width)"),
            ("loss", float, 0, 10, 0.005, "how much greater the perplexity may be, as a share (default 0.005)"),
            ("tokens", int, 64, 1 << 24, 32768, "tokens of TEXT that are used; memory grows with it (default 32768)"),
            ("steps", int, 1, 1 << 24, 2000, "steps of training in each layer (default 2000)"),
            ("rows", int, 1, 1 << 16, 256, "tokens of a step (default 256)"),
            ("rate", float, 1e-6, 1, 3e-3, "rate of training (default 0.003)"),
            ("recall-weight", float, 0.1, 1000, 4.0, "weight of an active neuron beside an inactive one (default 4)"),
            ("seed", int, 0, 1 << 31, 1, "seed of the random numbers (default 1)")):
        p.add_argument("--" + name, type=number(kind, low, high), default=value, metavar="N", help=text)
    return p


if __name__ == "__main__":
    sys.exit(run(make, options().parse_args()))
