#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `millrace bench` beside llama.cpp's llama-bench on one file, in turn, and prints medians and ratios.

    compare_llama_bench.py MILLRACE LLAMA_BENCH MODEL [--pairs 7] [--threads 2] [-p 512] [-n 48]

Both measure the prefill of one prompt and the decoding of one sequence from an empty context, after a warm-up.
llama-bench gets one CPU for each thread (-C, --cpu-strict 1), as millrace's threads do when it uses all CPUs.
"""

import argparse
import json
import statistics
import subprocess


def ours(a):
    out = subprocess.run([a.millrace, "bench", a.model, "-t", str(a.threads), "-p", str(a.p), "-n", str(a.n), "-b", "1",
                          "-r", "1", "--json"], check=True, capture_output=True, text=True).stdout
    rates = {r["test"]: r["tokens_per_second"] for r in json.loads(out)}
    return rates["prefill"], rates["decode"]


def theirs(a):
    mask = hex((1 << a.threads) - 1)
    out = subprocess.run([a.llama_bench, "-m", a.model, "-t", str(a.threads), "-C", mask, "--cpu-strict", "1", "-p",
                          str(a.p), "-n", str(a.n), "-r", "1", "-o", "json"], check=True, capture_output=True,
                         text=True).stdout
    rows = json.loads(out)
    return (next(r["avg_ts"] for r in rows if r["n_prompt"]), next(r["avg_ts"] for r in rows if r["n_gen"]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("llama_bench")
    p.add_argument("model")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=48)
    a = p.parse_args()
    pairs = [(ours(a), theirs(a)) for _ in range(a.pairs)]
    for i, what in enumerate(("prefill", "decode")):
        mine, other = [x[i] for x, _ in pairs], [y[i] for _, y in pairs]
        ratios = [m / o for m, o in zip(mine, other)]
        print(f"{what}: {statistics.median(mine):.1f} against {statistics.median(other):.1f} tokens/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {a.pairs} pairs)")


if __name__ == "__main__":
    main()
