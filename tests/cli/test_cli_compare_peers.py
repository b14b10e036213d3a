#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/compare_peers.py with Millrace as it is and others that say what they are told: cases, ratios, failures,
and the part of a file that is written anew."""
import json
import os
import subprocess
import sys
import unittest

import cli
import tiny_model

SCRIPT = os.path.join(cli.SOURCE, "tests", "bench", "compare_peers.py")

# A peer of prefill 100 tokens/s, decode 1000, decode of n sequences 10 n; repacked twice that.
BENCH = """#!/usr/bin/env python3
import json, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
factor = 2 if args.get("-rtr") == "1" else 1
rows = []
if args.get("-p", "0") != "0":
    rows.append((int(args["-p"]), 0, 100))
if args.get("-n", "0") != "0":
    rows.append((0, int(args["-n"]), 1000))
print(json.dumps([{"build_commit": "abc", "n_prompt": p, "n_gen": n, "avg_ts": factor * ts} for p, n, ts in rows]))
"""
BATCHED = """#!/usr/bin/env python3
import sys
factor = 2 if "-rtr" in sys.argv else 1
print("|    PP |     TG |    B |   N_KV | T_PP s | S_PP t/s |   T_TG s | S_TG t/s |    T s |  S t/s |", file=sys.stderr)
for n in sys.argv[sys.argv.index("-npl") + 1].split(","):
    print(f"| 1 | 8 | {n} | 9 | 0.1 | 5.0 | 0.1 | {factor * 10 * int(n)} | 0.2 | 7.0 |", file=sys.stderr)
"""
FAILING = "#!/bin/sh\necho no such tensor type >&2\nexit 1\n"


class ComparePeers(cli.Case):
    def peer(self, name, bench, batched):
        os.makedirs(self.path(name))
        for program, text in (("llama-bench", bench), ("llama-batched-bench", batched)):
            with open(os.path.join(self.path(name), program), "w", encoding="ascii") as f:
                f.write(text)
            os.chmod(f.name, 0o755)
        return self.path(name)

    def compare(self, *args):
        model = tiny_model.make(self.path("tiny.gguf"), context=1024)
        done = subprocess.run([sys.executable, "-B", SCRIPT, cli.BIN, model, "-n", "8", "--cases",
                               "prefill,decode,batch", *args], capture_output=True, text=True, timeout=cli.LIMIT_S,
                              env=cli.environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
        rows = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
        return rows[0], {row[1]: row for row in rows[1:]}, done.stderr

    def test_ratios(self):
        raw = self.path("raw.json")
        heads, rows, _ = self.compare("--pairs", "3", "--json", raw, "--llama-cpp", self.peer("a", BENCH, BATCHED),
                                      "--ik-llama", self.peer("b", BENCH, BATCHED))
        self.assertEqual(heads, ["file", "case", "Millrace", "share", "llama.cpp", "ratio", "ik_llama.cpp", "ratio",
                                 "ik_llama.cpp -rtr 1", "ratio", "to the fastest"])
        self.assertEqual(list(rows), ["prefill of 512", "decode of 1", "decode of 8", "decode of 16", "decode of 32"])
        for case, theirs in zip(rows, (100, 1000, 80, 160, 320), strict=True):
            row = rows[case]
            ours = float(row[2].split()[0])
            self.assertEqual(row[4], f"{theirs:.1f} ({theirs:.1f} to {theirs:.1f})")
            self.assertEqual(float(row[8].split()[0]), 2 * theirs)
            self.assertAlmostEqual(float(row[5].split()[0]), ours / theirs, delta=0.006 + 1e-3 * ours / theirs)
            self.assertAlmostEqual(float(row[10]), ours / theirs / 2, delta=0.006 + 1e-3 * ours / theirs)
            self.assertRegex(row[3], r"^\d+ % of (peak|read)$")
        with open(raw, encoding="utf-8") as f:
            found = json.load(f)
        self.assertEqual(len(found), 3 * 4 * 5)
        self.assertEqual({r["round"] for r in found}, {0, 1, 2})

    def test_failures(self):
        _, rows, messages = self.compare("--pairs", "1", "--llama-cpp", self.peer("c", FAILING, BATCHED))
        self.assertEqual(rows["prefill of 512"][4:], ["-", "-"])
        self.assertNotEqual(rows["decode of 8"][4:], ["-", "-"])
        self.assertIn("no such tensor type", messages)

    def test_results_are_written_anew(self):
        path = self.file("RESULTS.md", "# Results\n")
        for _ in range(2):
            self.compare("--pairs", "1", "--results", path)
            with open(path, encoding="utf-8") as f:
                lines = f.read().splitlines()
            self.assertEqual(lines[0], "# Results")
            self.assertEqual(sum(line.startswith("| tiny | prefill of 512 |") for line in lines), 1)
            with open(path, "a", encoding="utf-8") as f:
                f.write("\nBelow\n")
        self.assertIn("Below", lines)


if __name__ == "__main__":
    unittest.main()
