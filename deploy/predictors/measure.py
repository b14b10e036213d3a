#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a sparse model (magic PWRI) on a text, and prints the share of active neurons of each layer and the perplexity.

The perplexity is that of `millrace perplexity --ctx WINDOW`, up to rounding. --json prints one object:
{"perplexity": P, "dense_perplexity": D, "active": SHARE, "layers": [{"layer": 0, "active": SHARE, "counts": [...]}]}.
counts has for each neuron the number of tokens for which it is active."""
import json
import sys

import numpy as np

from forward import Layer, Rope, perplexity
from model_file import ModelFile
from tool import parser, run, windows


def measure(a):
    model = ModelFile(a.model)
    threshold, s, ids = model.threshold(), model.shape, windows(a, model, 1)
    dense = model.values("token_embd.weight", None, s.width)[ids]  # [windows, tokens, width]
    x, rope, layers = dense.copy(), Rope(s, a.window), []
    for idx in range(s.layers):
        layer, counts = Layer(s, model.layer(idx), rope), np.zeros(s.neurons, np.int64)
        fc1, fc2 = (model.values(t.name, *reversed([int(n) for n in t.shape])) for t in model.predictor(idx))
        for w in range(len(ids)):
            x[w], active = layer.run(x[w], fc1, fc2, threshold)
            counts += active.sum(axis=0)
            dense[w] = layer.run(dense[w], fc1, fc2, -np.inf)[0]
        layers.append({"layer": idx, "active": counts.sum() / (ids.size * s.neurons), "counts": counts.tolist()})
    found = {"perplexity": perplexity(model, x, ids), "dense_perplexity": perplexity(model, dense, ids),
             "active": float(np.mean([r["active"] for r in layers])), "layers": layers}
    if a.json:
        print(json.dumps(found))
        return
    for r in layers:
        print(f"layer {r['layer']}: {100 * r['active']:.1f} % of {s.neurons} neurons active")
    print(f"all layers: {100 * found['active']:.1f} % active")
    print(f"perplexity {found['perplexity']:.6g}, with all neurons {found['dense_perplexity']:.6g}")


def options():
    p = parser(__doc__)
    p.add_argument("model", metavar="MODEL", help="the sparse model")
    p.add_argument("text", metavar="TEXT", help="the text")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


if __name__ == "__main__":
    sys.exit(run(measure, options().parse_args()))
