#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What recovery costs while nothing happens: decoding over ranks by `millrace bench` with and without --recover, in
alternating short runs, under mpirun on this machine.

  compare_recover.py                                          # the demo model, two ranks
  compare_recover.py --model random-q4_k.gguf --decode 32
  compare_recover.py --other old/millrace                     # also a build from before recovery, without the option

A line has the medians in tokens per second, and the median and the range of the ratios of the pairs: with --recover to
without, and with --recover to the other build."""
import argparse
import json
import os
import statistics
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(program, a, recovers):
    """Tokens per second by the number of sequences."""
    model = [a.model] if a.model else ["--demo"]
    command = ["mpirun", "--quiet", "--oversubscribe", "--bind-to", "none", "-n", str(a.ranks),
               *(["--enable-recovery"] if recovers else []), program, "bench", *model, "--json", "--log-level", "error",
               "--measure", "off", "-t", "1", "-p", "0", "-n", str(a.decode), "-b", a.batch, "-r", str(a.repeat),
               *(["--recover"] if recovers else [])]
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=env).stdout
    return {t["sequences"]: t["tokens_per_second"] for t in json.loads(out)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/millrace"))
    p.add_argument("--other", help="another build, which runs without --recover")
    p.add_argument("--model", help="default: the demo model")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--repeat", type=int, default=5, help="of each test in a run")
    p.add_argument("--decode", type=int, default=200)
    p.add_argument("--batch", default="1,16,32")
    a = p.parse_args()
    kinds = {"with": (a.program, True), "without": (a.program, False)}
    if a.other:
        kinds["other"] = (a.other, False)
    found = {kind: {} for kind in kinds}
    for i in range(a.pairs):
        for kind in list(kinds)[::-1] if i % 2 else kinds:
            for n, value in run(*kinds[kind][:1], a, kinds[kind][1]).items():
                found[kind].setdefault(n, []).append(value)
    print(f"{a.model or 'demo'}, {a.ranks} ranks, {a.pairs} pairs, load {os.getloadavg()[0]:.1f}; tokens/s")
    for n, values in found["with"].items():
        line = f"decode of {n:3}  " + "  ".join(f"{kind} {statistics.median(found[kind][n]):.4g}" for kind in kinds)
        for kind in list(kinds)[1:]:
            ratios = [v / o for v, o in zip(values, found[kind][n])]
            line += f"  with/{kind} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
