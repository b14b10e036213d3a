# SPDX-License-Identifier: Apache-2.0
"""Trains the predictor of one layer: score = fc2 relu(fc1 x), one score for each neuron, where x is the input of the
feed-forward part before its norm. The scores are logits plus MARGIN: most neurons are inactive, and a predictor has no
biases, so that a score of 0 has to mean "inactive"."""
from dataclasses import dataclass

import numpy as np

MARGIN = 4.0
LEAST = 0.05  # thresholds stay above 0: they are scaled to one number for all layers
OUTLIER = 10  # rows with this many times the median length are left out of training


@dataclass(frozen=True)
class Training:
    rank: int
    steps: int
    rows: int  # of a step
    rate: float
    recall_weight: float  # an active neuron counts as much as so many inactive ones


class Adam:
    def __init__(self, params):
        self.params, self.step = params, 0
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in params]

    def update(self, grads, rate, b1=0.9, b2=0.98):
        self.step += 1
        for p, g, (m, v) in zip(self.params, grads, self.moments):
            m += (1 - b1) * (g - m)
            v += (1 - b2) * (g * g - v)
            p -= rate * (m / (1 - b1 ** self.step)) / (np.sqrt(v / (1 - b2 ** self.step)) + 1e-8)


def gradients(fc1, fc2, x, units, recall_weight):
    """Gradients of the binary cross entropy, a mean over rows. An active neuron counts by how much it gives."""
    active, given = units != 0, np.abs(units, dtype=np.float32)
    weight = recall_weight * (0.25 + 0.75 * given / max(float(given.sum()) / max(int(active.sum()), 1), 1e-8))
    u = x @ fc1.T
    a = np.maximum(u, 0)
    p = 1 / (1 + np.exp(np.clip(MARGIN - a @ fc2.T, -30, 30)))
    dz = np.where(active, weight * (p - 1), p) / np.float32(len(x))
    du = (dz @ fc2) * (u > 0)
    return du.T @ x, dz.T @ a


def train(x, units, t, rng):
    """x: [rows, width], units: [rows, neurons]. Returns fc1 [rank, width] and fc2 [neurons, rank].

    The columns are scaled to a common size, and the scale becomes a part of fc1. It is a median, since a few rows, such
    as those of first tokens, are far larger than the others in many models."""
    length = np.sqrt(np.mean(x * x, axis=1))
    rows = np.flatnonzero(length <= OUTLIER * np.median(length))
    scale = 1 / np.maximum(np.median(np.abs(x), axis=0), 1e-8).astype(np.float32)
    fc1 = rng.standard_normal((t.rank, x.shape[1]), dtype=np.float32) / np.float32(np.sqrt(x.shape[1]))
    fc2 = rng.standard_normal((units.shape[1], t.rank), dtype=np.float32) / np.float32(np.sqrt(t.rank))
    adam = Adam([fc1, fc2])
    for step in range(t.steps):
        at = rng.choice(rows, min(t.rows, len(rows)), replace=False)
        rate = t.rate * min(1, (step + 1) / 50) * (0.02 + 0.49 * (1 + np.cos(np.pi * step / t.steps)))
        adam.update(gradients(fc1, fc2, x[at] * scale, units[at], t.recall_weight), np.float32(rate))
    return (fc1 * scale).astype(np.float16).astype(np.float32), fc2


def thresholds(scores, units, shares):
    """For each share, the greatest threshold that keeps it of the sum of |units|."""
    found = np.flatnonzero(units)
    if len(found) == 0:
        return [LEAST] * len(shares)
    score, mass = scores.ravel()[found], np.abs(units.ravel()[found]).astype(np.float64)
    order = np.argsort(-score)
    kept = np.cumsum(mass[order]) / mass.sum()
    at = [min(int(np.searchsorted(kept, share)), len(order) - 1) for share in shares]
    return [max(float(score[order[i]]), LEAST) for i in at]
