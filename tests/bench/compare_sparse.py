#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the decode speed of a sparse model with that of a dense one of the same shape (Python standard library only).

    compare_sparse.py MILLRACE FOLDER [--shares 0.05,0.1,0.2,0.5] [--batches 1,4,16] [--threads 1] [--rounds 5]
                      [--tokens 8] [--layers 8] [--type F16] [--isa avx2]

FOLDER gets two random models of 7 GB together, which are used again if they are there: layers of 4,096 x 11,008 with 32
heads; one is an ordinary llama model, the other has predictors of rank 1,024. The predictors are written anew for each
share. A round runs the dense model, then the sparse one with each share. Printed are medians of the rounds in tokens per
second, and the median of the ratios to the dense speed of the same round. The share is what the predictors are made for.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_random_model as models  # noqa: E402


def numbers(text, kind):
    return [kind(part) for part in text.split(",")]


def shape(a, path, predictors):
    return models.parser().parse_args([
        path, "--type", a.type, "--layers", str(a.layers), "--width", "4096", "--ff", "11008", "--heads", "32",
        "--kv-heads", "32", "--vocab", "2048", "--predictors", str(predictors)])


def make(a, path, predictors):
    m = shape(a, path, predictors)
    if not os.path.exists(path):
        rng = models.random.Random(1)
        models.write_file(path + ".part", models.model_keys(m), list(models.tensors(m)), m, {}, rng)
        os.rename(path + ".part", path)
    return m


def speeds(a, path):
    """Tokens per second for each number of sequences."""
    command = [a.millrace, "bench", path, "-p", "0", "-n", str(a.tokens), "-b", a.batches, "-t", str(a.threads),
               "--repeat", "1", "--json"]
    env = dict(os.environ, MILLRACE_CPU_ISA=a.isa) if a.isa else None
    out = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    tests = json.loads(out[out.index("["):])
    return [t["tokens_per_second"] for t in tests if t["test"] == "decode"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("folder")
    p.add_argument("--shares", default="0.05,0.1,0.2,0.5")
    p.add_argument("--batches", default="1,4,16")
    p.add_argument("--isa")
    p.add_argument("--type", default="F16")
    for name, value in (("threads", 1), ("rounds", 5), ("tokens", 8), ("layers", 8)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    dense_path, sparse_path = (os.path.join(a.folder, f"{kind}-{a.type}-{a.layers}.gguf") for kind in ("dense", "sparse"))
    make(a, dense_path, 0)
    sparse = make(a, sparse_path, 1024)
    shares, batches = numbers(a.shares, float), numbers(a.batches, int)
    dense, found = [], {share: [] for share in shares}
    for i in range(a.rounds):
        dense.append(speeds(a, dense_path))
        for share in shares:
            sparse.active = share
            models.rewrite_predictors(sparse_path, sparse)
            found[share].append(speeds(a, sparse_path))
        print(f"round {i + 1}: dense {dense[-1]}, sparse {[found[s][-1] for s in shares]}", file=sys.stderr, flush=True)
    for b, batch in enumerate(batches):
        print(f"{batch} sequences: dense {statistics.median(run[b] for run in dense):.2f} tokens/s")
        for share in shares:
            runs = [run[b] for run in found[share]]
            ratio = statistics.median(run / d[b] for run, d in zip(runs, dense))
            print(f"  {100 * share:.0f} % active: {statistics.median(runs):.2f} tokens/s, {ratio:.2f} x")


if __name__ == "__main__":
    main()
