#!/usr/bin/env python3
# deploy/lib/test_log.py - reads what ctest --output-on-failure has printed.
# SPDX-License-Identifier: Apache-2.0
"""Which tests of a run passed, failed and were skipped, and which of the failed ones may be run once more.

  test_log.py again LOG                     the tests to run once more, one a line
  test_log.py count LOG [--second LOG2]     "TOTAL FAILED SKIPPED SECOND", then a line for each test: "failed NAME" or
                                            "second NAME" (it passed at the second try)

--names FILE has the names of the tests that count, --timed FILE of those that measure time; one a line."""
import argparse
import re
import sys

# The words about a failure may go on in the next line.
HEADER = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*(.*?)(?: +[\d.]+ sec)? *$")
# A second try is for a test that was late. None of these is a matter of time.
FINAL = re.compile(r"Sanitizer|runtime error:|differ|DIFFERENT|[Ss]egmentation fault|core dumped|Aborted|SIGSEGV|SIGABRT")


class Test:
    def __init__(self, name, status):
        self.name, self.status, self.output = name, status, ""

    @property
    def is_skipped(self):
        return "***Skipped" in self.status

    @property
    def has_failed(self):
        return "***" in self.status and not self.is_skipped

    @property
    def may_be_late(self):
        """It ended by itself or was too slow: it has not crashed, and could be started."""
        return bool(re.search(r"^\*\*\*(Failed|Timeout)", self.status)) and not FINAL.search(self.output)


def read(path, names):
    """The tests of a log by name, those of names alone where it is given."""
    tests, test = {}, None
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            header = HEADER.match(line)
            if header:
                test = Test(header[1], header[2].strip())
                if "(Disabled)" not in test.status and (names is None or test.name in names):
                    tests[test.name] = test
            elif test:
                test.output += line
    return tests


def read_names(path):
    with open(path, encoding="utf-8") as f:
        return set(f.read().split())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("again", "count"))
    parser.add_argument("log")
    parser.add_argument("--second")
    parser.add_argument("--names")
    parser.add_argument("--timed")
    args = parser.parse_args()
    names = read_names(args.names) if args.names else None
    tests = read(args.log, names)
    failed = [t for t in tests.values() if t.has_failed]
    if args.what == "again":
        timed = read_names(args.timed)
        print("".join(t.name + "\n" for t in failed if t.name in timed and t.may_be_late), end="")
        return
    tried = read(args.second, names) if args.second else {}
    second = [t for t in failed if t.name in tried and not tried[t.name].has_failed and not tried[t.name].is_skipped]
    failed = [t for t in failed if t not in second]
    print(len(tests), len(failed), sum(t.is_skipped for t in tests.values()), len(second))
    for word, some in (("failed", failed), ("second", second)):
        for t in some:
            print(word, t.name)


if __name__ == "__main__":
    sys.exit(main())
