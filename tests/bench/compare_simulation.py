#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the simulator with real runs of the same load on stages that sleep.

usage: compare_simulation.py [--runs N] [--launch "mpirun -n 4"] MILLRACE MODEL OPTIONS

OPTIONS are options that bench and simulate share: --stages, --synthetic-stage, --load ... Each run of `millrace bench`
is compared with the same simulation, because a simulation always gives the same result. Prints tokens per second, the
median time to the first token, the median time between tokens, and the median and spread of the ratios of simulated to
measured values.
"""
import argparse
import json
import shlex
import statistics
import subprocess

FIELDS = (("tokens/s", lambda r: r["tokens_per_second"]),
          ("first token p50, ms", lambda r: r["time_to_first_token_ms"]["p50"]),
          ("first token p99, ms", lambda r: r["time_to_first_token_ms"]["p99"]),
          ("between tokens p50, ms", lambda r: r["time_between_tokens_ms"]["p50"]),
          ("between tokens p99, ms", lambda r: r["time_between_tokens_ms"]["p99"]))


def run(command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--launch", default="", help="what starts the real run, with its arguments")
    p.add_argument("--hop-ms", default="0.05", help="latency of simulated links")
    p.add_argument("millrace")
    p.add_argument("model")
    args, options = p.parse_known_args()
    options += ["--json", "--log-level", "warn"]
    model = ["--demo"] if args.model == "demo" else [args.model]
    simulated = run([args.millrace, "simulate", *model, *options, "--hop-ms", args.hop_ms])
    real = [run([*shlex.split(args.launch), args.millrace, "bench", *model, *options]) for _ in range(args.runs)]
    print(f"{'':24}{'simulated':>12}{'measured':>12}{'ratio':>8}  spread of the ratio")
    for name, value in FIELDS:
        ratios = [value(simulated) / value(r) for r in real]
        print(f"{name:24}{value(simulated):12.1f}{statistics.median(map(value, real)):12.1f}"
              f"{statistics.median(ratios):8.3f}  {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
