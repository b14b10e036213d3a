#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the number of threads that a command chooses with fixed numbers: measures prompts and decoding by `millrace
bench` in alternating runs, beside busy processes, which the script starts and ends.

  compare_threads.py --busy 4                          # the demo model
  compare_threads.py --busy 4 --model random-q4_k.gguf
  compare_threads.py --rounds 7 --program build/release/bin/millrace --other old/millrace
  compare_threads.py --busy 2 --ranks 3 --threads 1 --other old/millrace

Each round runs the default, then each number of --threads. A line has the medians, and the median over the rounds of
the ratio of the default to the best fixed number (the number with the best median). With --other, each round also
measures the default of another build and compares both builds."""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPIN = "import os, sys\np = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(100000): pass\n"


def run(program, a, threads):
    """Tokens per second of each test, by its name."""
    model = [a.model] if a.model else ["--demo"]
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(a.ranks)]
    command = [*(launcher + ["-x", "MILLRACE_MEASURE=off"] if a.ranks > 1 else []), program, "bench", *model, "--json",
               "--log-level", "error", "-p", a.prefill, "-n", a.decode, "-b", a.batch, "-r", str(a.repeat),
               *(["-t", threads] if threads else [])]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    found = {}
    for t in json.loads(out):
        name = f"prefill {t['rows']}" if t["test"] == "prefill" else f"decode of {t['sequences']}"
        found[name] = t["tokens_per_second"]
    return found


def measure(a):
    """[configuration][test] is a list with a value for each round."""
    kinds = [("default", a.program, None)] + [(f"-t {n}", a.program, n) for n in a.threads.split(",")]
    if a.other:
        kinds.append(("other", a.other, None))
    found = {name: {} for name, _, _ in kinds}
    for r in range(a.rounds):
        for name, program, threads in kinds[::-1] if r % 2 else kinds:
            for test, value in run(program, a, threads).items():
                found[name].setdefault(test, []).append(value)
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/millrace"))
    p.add_argument("--other", help="another build")
    p.add_argument("--model", help="default: the demo model")
    p.add_argument("--busy", type=int, default=0, help="processes that compute beside it (default 0)")
    p.add_argument("--ranks", type=int, default=1,
                   help="over mpirun, on this host, with equal stages (default 1: without mpirun)")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeat", type=int, default=8, help="of each test in a round")
    p.add_argument("--prefill", default="384")
    p.add_argument("--decode", default="320")
    p.add_argument("--batch", default="1,8")
    a = p.parse_args()
    busy = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(a.busy)]
    try:
        found = measure(a)
    finally:
        for b in busy:
            b.kill()
            b.wait()
    fixed = [f"-t {n}" for n in a.threads.split(",")]
    print(f"{a.model or 'demo'}, {a.ranks} ranks, {a.busy} busy processes, load {os.getloadavg()[0]:.1f}, "
          f"{a.rounds} rounds; tokens/s")
    for test, default in found["default"].items():
        best = max(fixed, key=lambda name: statistics.median(found[name][test]))
        ratio = statistics.median(d / b for d, b in zip(default, found[best][test]))
        row = "  ".join(f"{name} {statistics.median(found[name][test]):.4g}" for name in found)
        line = f"{test:14} {row}  default to {best}: {ratio:.2f}"
        if a.other:
            line += f"  to other: {statistics.median(d / o for d, o in zip(default, found['other'][test])):.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
