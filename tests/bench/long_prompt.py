#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much a long prompt delays the sequences that decode beside it, and how long the prompt itself waits.

usage: long_prompt.py [--prompt TOKENS] [--sequences N] [--pairs N] MILLRACE MODEL [OPTIONS OF bench]

Runs `millrace bench --load-trace` three times in each pair: N sequences that decode, the same with a long prompt that
arrives meanwhile, and the prompt alone. For the N sequences, prints the 99th percentile of the time between tokens,
over all tokens and over the tokens during the prefill. Also prints the time to the first token of the prompt.
All values are medians over the pairs, with their ratios.
"""
import argparse
import json
import statistics
import subprocess
import sys

AT_S = 2.0  # arrival of the long prompt, when the other sequences already decode


def run(args, lines):
    command = [args.millrace, "bench", args.model, "--load-trace", "-", "--json", "--log-level", "warn", *args.options]
    done = subprocess.run(command, input="\n".join(lines).encode(), stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    if found["done"] != found["requests"]:
        sys.exit(f"{found['failed']} of {found['requests']} requests failed")
    return found["each"]


def percentile(values, percent):
    values = sorted(values)
    return values[-(-len(values) * percent // 100) - 1]


def gaps(requests, start=0.0, end=float("inf")):
    """Times between two tokens of a request, for pairs whose second token came between start and end."""
    return [b - a for r in requests for a, b in zip(r["token_ms"], r["token_ms"][1:]) if start <= b <= end]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--prompt", type=int, default=2000)
    p.add_argument("--sequences", type=int, default=8)
    p.add_argument("--tokens", type=int, default=900, help="that each of the sequences generates")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("millrace")
    p.add_argument("model")
    args, args.options = p.parse_known_args()
    decoding = [f"{0.01 * i:g},16,{args.tokens}" for i in range(args.sequences)]
    long_at = 1e3 * AT_S
    rows = []
    for pair in range(args.pairs):
        quiet = run(args, decoding)
        both = run(args, [*decoding, f"{AT_S:g},{args.prompt},1"])
        alone = run(args, [f"0,{args.prompt},1"])
        long, others = both[-1], both[:-1]
        if long["token_ms"][0] > max(r["token_ms"][-1] for r in others):
            sys.exit("the sequences ended before the prompt was read: more --tokens are needed")
        during = gaps(others, long_at, long["token_ms"][0])
        rows.append((percentile(gaps(quiet), 99), percentile(gaps(others), 99), percentile(during, 99),
                     alone[0]["token_ms"][0], long["token_ms"][0] - long_at))
        print(f"pair {pair + 1}: p99 {rows[-1][0]:.1f} ms undisturbed, {rows[-1][1]:.1f} ms disturbed, "
              f"{rows[-1][2]:.1f} ms while the prompt was read; first token {rows[-1][3]:.0f} ms alone, "
              f"{rows[-1][4]:.0f} ms among the others", flush=True)
    for name, above, below in (("p99 of all, disturbed / undisturbed", 1, 0),
                               ("p99 while the prompt was read / undisturbed", 2, 0),
                               ("first token among others / alone", 4, 3)):
        ratios = [r[above] / r[below] for r in rows]
        print(f"{name}: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
