#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a part of deploy/check again and again, and prints how often each test needed a second try or failed.

    tests/bench/flaky.py release mpirun -n 10

The output of each failed run stays in build/checks/flaky. The exit status is 0 if no run failed and no test needed a
second try more than once."""
import argparse
import collections
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKS = ROOT / "build/checks"


def run(part):
    """Seconds, the exit status, the tests that failed for good, and those that passed at the second try."""
    since = time.monotonic()
    said = subprocess.run([ROOT / "deploy/check", "--only", part], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    failed, second = set(), set()
    for line in said.stdout.partition("== summary")[2].splitlines():
        word, _, name = line.partition(f" {part}: ")
        if word.strip() == "FAILED":
            failed.add(name)
        elif word.strip() == "LATE":
            second.add(name.partition(":")[0])
    return time.monotonic() - since, said.returncode, failed, second


def keep_output(part, i):
    folder = CHECKS / "flaky"
    folder.mkdir(exist_ok=True)
    for path in CHECKS.glob(f"{part}.log*"):
        shutil.copy(path, folder / f"{i}-{path.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART", help="as of deploy/check --only")
    parser.add_argument("-n", type=int, default=10, help="how many runs of each part (10)")
    args = parser.parse_args()
    is_bad = False
    for part in args.parts:
        failed, second, minutes = collections.Counter(), collections.Counter(), []
        for i in range(1, args.n + 1):
            spent, status, some_failed, some_second = run(part)
            minutes.append(spent / 60)
            failed.update(some_failed)
            second.update(some_second)
            print(f"{part} {i}/{args.n}: {spent / 60:.1f} min, status {status}", *sorted(some_failed),
                  *(f"({name} at the second try)" for name in sorted(some_second)), flush=True)
            if status != 0 or some_second:
                keep_output(part, i)
            is_bad = is_bad or status != 0
        is_bad = is_bad or any(n > 1 for n in second.values())
        print(f"{part}: {args.n} runs of {min(minutes):.1f} to {max(minutes):.1f} min; "
              f"{sum(failed.values())} failures, {sum(second.values())} second tries")
        for name in sorted({*failed, *second}):
            print(f"  {name}: failed {failed[name]}, second try {second[name]}")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
