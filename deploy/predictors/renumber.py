#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renumbers the neurons of a sparse model (magic PWRI) by how often they are active, the most active ones first.

COUNTS is what `millrace profile` or `measure.py --json` writes: JSON with "layers", a list of
{"layer": 0, "counts": [...]} with a count for each neuron of each layer. The model stays the same but for the order of
sums, so that logits differ in rounding."""
import argparse
import json
import os
import sys

import numpy as np

from model_file import ModelFile, Refused, write_sparse
from tool import run


def counts_of(path, shape):
    """For each layer the counts of its neurons."""
    def refused(text):
        return Refused(f"{path}: {text}; hint: `millrace profile` writes such a file for a sparse model")
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise refused(f"not JSON: {e}") from e
    layers = found.get("layers") if isinstance(found, dict) and found.get("kind", "neurons") == "neurons" else None
    if not isinstance(layers, list) or not all(isinstance(r, dict) for r in layers):
        raise refused("no list of layers with counts of neurons")
    out = {}
    for r in layers:
        idx, counts = r.get("layer"), r.get("counts")
        if type(idx) is not int or not 0 <= idx < shape.layers or idx in out:
            raise refused(f"layer {str(idx)[:20]} is none of the model's {shape.layers} layers, or comes twice")
        if not isinstance(counts, list) or len(counts) != shape.neurons:
            raise refused(f"layer {idx} has no list of {shape.neurons} counts")
        wrong = [n for n in counts if type(n) is not int or not 0 <= n < 1 << 62]
        if wrong:
            raise refused(f"layer {idx}: {str(wrong[0])[:20]} is no count")
        out[idx] = np.array(counts, np.int64)
    if len(out) < shape.layers:
        raise refused(f"there are no counts of layer {min(set(range(shape.layers)) - set(out))}")
    return [out[idx] for idx in range(shape.layers)]


def renumber(a):
    model = ModelFile(a.model)
    threshold = model.threshold()
    orders = [np.argsort(-counts, kind="stable") for counts in counts_of(a.counts, model.shape)]
    write_sparse(a.out, model, orders, threshold)
    print(f"{a.out}: {os.path.getsize(a.out)} bytes")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", metavar="MODEL", help="the sparse model")
    p.add_argument("counts", metavar="COUNTS", help="the counts of its neurons")
    p.add_argument("-o", "--out", required=True, help="the file to write")
    return p


if __name__ == "__main__":
    sys.exit(run(renumber, options().parse_args()))
