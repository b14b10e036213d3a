#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the number of threads that a command chooses with fixed numbers: measures prompts and decoding by `millrace
bench` in alternating runs, beside busy processes, which the script starts and ends.

  compare_threads.py --busy 4                          # the demo model
  compare_threads.py --busy 4,0 --model random-q4_k.gguf --rounds 7 --seconds 20
  compare_threads.py --rounds 7 --program build/release/bin/millrace --other old/millrace
  compare_threads.py --busy 2 --ranks 3 --threads 1 --other old/millrace

Each round runs the default and each number of --threads; the next round begins with the next of them. A line has the
medians of tokens per second, and ratios with their median and range over the rounds: of the default to the best fixed
number (the number with the best median), and of the default to whatever fixed number was better in that round, which
also counts the luck of that number. With --other, each round also measures the default of another build and compares
both builds.

With --seconds, only the decoding of one sequence is measured, once in each run, for about so many seconds: a short run
finds how many tokens that takes."""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPIN = "import os, sys\np = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(100000): pass\n"
MAX_DECODE = 4000  # with one token of a prompt, within the default context


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
        first = r % len(kinds)
        for name, program, threads in kinds[first:] + kinds[:first]:
            for test, value in run(program, a, threads).items():
                found[name].setdefault(test, []).append(value)
                if a.verbose:
                    print(f"round {r + 1}: {name} {test} {value:.4g}", file=sys.stderr, flush=True)
    return found


def decode_for(a):
    """Sets the test to one that decodes for about a.seconds."""
    a.prefill, a.batch, a.repeat, a.decode = "0", "1", 1, "16"
    a.decode = str(min(MAX_DECODE, max(16, round(a.seconds * run(a.program, a, None)["decode of 1"]))))


def of_rounds(numbers):
    numbers = list(numbers)
    return f"{statistics.median(numbers):.3f} ({min(numbers):.2f} to {max(numbers):.2f})"


def compare(a, n_busy):
    busy = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(n_busy)]
    try:
        if a.seconds:
            decode_for(a)
        found = measure(a)
    finally:
        for b in busy:
            b.kill()
            b.wait()
    fixed = [f"-t {n}" for n in a.threads.split(",")]
    print(f"{a.model or 'demo'}, {a.ranks} ranks, {n_busy} busy processes, load {os.getloadavg()[0]:.1f}, "
          f"{a.rounds} rounds{f' of {a.decode} tokens' if a.seconds else ''}; tokens/s")
    for test, default in found["default"].items():
        best = max(fixed, key=lambda name: statistics.median(found[name][test]))
        better = [max(values) for values in zip(*(found[name][test] for name in fixed))]
        row = "  ".join(f"{name} {statistics.median(found[name][test]):.4g}" for name in found)
        line = (f"{test:14} {row}  default to {best}: {of_rounds(d / b for d, b in zip(default, found[best][test]))}"
                f"  to the better of each round: {of_rounds(d / b for d, b in zip(default, better))}")
        if a.other:
            line += f"  to other: {of_rounds(d / o for d, o in zip(default, found['other'][test]))}"
        print(line, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/millrace"))
    p.add_argument("--other", help="another build")
    p.add_argument("--model", help="default: the demo model")
    p.add_argument("--busy", default="0", help="processes that compute beside it (default 0); 4,0: first 4, then none")
    p.add_argument("--ranks", type=int, default=1,
                   help="over mpirun, on this host, with equal stages (default 1: without mpirun)")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, help="decode one sequence for so long in each run")
    p.add_argument("--verbose", action="store_true", help="print each result at once, to standard error")
    p.add_argument("--repeat", type=int, default=8, help="of each test in a round")
    p.add_argument("--prefill", default="384")
    p.add_argument("--decode", default="320")
    p.add_argument("--batch", default="1,8")
    a = p.parse_args()
    for n_busy in a.busy.split(","):
        compare(a, int(n_busy))


if __name__ == "__main__":
    main()
