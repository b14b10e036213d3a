#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of cutting a model in two: two ranks of one thread against one process of two threads, on the same
file, in alternating runs. If the programs of llama.cpp are given, also compares two RPC servers of one thread with one
process of two threads.

    compare_ranks.py MILLRACE MODEL [--llama FOLDER] [--pairs 7] [-p 2048] [-n 32] [-b 1,8,16,32] [--save FILE]
    compare_ranks.py --save FILE --results RESULTS.md

FOLDER holds llama.cpp's llama-batched-bench and ggml-rpc-server (built with -DGGML_RPC=ON). Prints medians of tokens
per second, and the median and spread of the ratios within pairs. mpirun may run as root, as in containers. --save adds
the pairs to the pairs in FILE, so that several calls can contribute. --results writes a table of all pairs in FILE into
RESULTS.md.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import time

import markdown_part

BEGIN, END = "<!-- compare_ranks.py: begin -->", "<!-- compare_ranks.py: end -->"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=dict(os.environ, **ROOT)).stdout


def millrace(a, ranks):
    command = [a.millrace, "bench", a.model, "-t", "1" if ranks else "2", "-p", str(a.p), "-n", str(a.n), "-b", a.b,
               "-r", "1", "--json", "--log-level", "error"]
    if ranks:
        command = ["mpirun", "--quiet", "-n", "2"] + command
    return {("prefill" if t["test"] == "prefill" else t["sequences"]): t["tokens_per_second"]
            for t in json.loads(run(command))}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    for _ in range(200):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("ggml-rpc-server does not answer")


def llama(a, ranks):
    """One prefill of p tokens with one sequence, then decode for each batch size after a prompt of one token."""
    bench = os.path.join(a.llama, "llama-batched-bench")
    servers, where = [], ["-t", "2", "-ngl", "0"]
    if ranks:
        ports = [free_port(), free_port()]
        servers = [subprocess.Popen(["taskset", "-c", str(i), os.path.join(a.llama, "ggml-rpc-server"), "-p", str(port),
                                     "-t", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                   for i, port in enumerate(ports)]
        for port in ports:
            wait_for(port)
        where = ["--rpc", ",".join(f"127.0.0.1:{port}" for port in ports), "-ngl", "99", "-t", "1"]
    out = {}
    try:
        sizes = [int(x) for x in a.b.split(",")]
        common = [bench, "-m", a.model, "-ub", "512", "--output-format", "jsonl"] + where
        text = run(common + ["-c", str(a.p + 64), "-b", "2048", "-npp", str(a.p), "-ntg", "1", "-npl", "1"])
        text += run(common + ["-c", str(max(sizes) * (a.n + 16)), "-npp", "1", "-ntg", str(a.n), "-npl", a.b])
        for line in text.splitlines():
            if line.startswith("{"):
                r = json.loads(line)
                if r["pp"] > 1:
                    out["prefill"] = r["speed_pp"]
                else:
                    out[r["pl"]] = r["speed_tg"]
    finally:
        for s in servers:
            s.terminate()
            s.wait()
    return out


def case_name(what):
    return what if what == "prefill" else f"decode of {what}"


def numbers(pairs, what):
    """Medians of two ranks and of one process, the median of the ratios, and their spread."""
    two, one = [x[what] for x, _ in pairs], [y[what] for _, y in pairs]
    ratios = [x / y for x, y in zip(two, one)]
    return statistics.median(two), statistics.median(one), statistics.median(ratios), min(ratios), max(ratios)


def report(runs):
    for name, pairs in runs.items():
        for what in pairs[0][0]:
            print("%s %s: two ranks %.1f, one process %.1f tokens/s, ratio %.2f (%.2f to %.2f)" %
                  (name, case_name(what), *numbers(pairs, what)))
    if "llama.cpp" in runs:
        for what in runs["millrace"][0][0]:
            ratios = [m[0][what] / l[0][what] for m, l in zip(runs["millrace"], runs["llama.cpp"])]
            print(f"millrace against llama.cpp, both cut in two, {what}: {statistics.median(ratios):.1f} times "
                  f"({min(ratios):.1f} to {max(ratios):.1f})")


def write_results(a):
    """Rows of all pairs that were saved, by model and program."""
    saved = {}
    with open(a.save, encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            saved.setdefault((r["model"], r["program"]), []).append(r["pair"])
    lines = [BEGIN, f"- date: {datetime.date.today()}", "",
             "| file | program | case | pairs | two ranks | one process | ratio |", "|---|---|---|--:|--:|--:|--:|"]
    for (model, program), pairs in saved.items():
        for what in pairs[0][0]:
            lines.append("| %s | %s | %s | %d | %.1f | %.1f | %.2f (%.2f to %.2f) |" %
                         (model, program, case_name(what), len(pairs), *numbers(pairs, what)))
    markdown_part.replace(a.results, "\n".join(lines + [END]) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace", nargs="?")
    p.add_argument("model", nargs="?")
    p.add_argument("--llama")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("-p", type=int, default=2048)
    p.add_argument("-n", type=int, default=32)
    p.add_argument("-b", default="1,8,16,32")
    p.add_argument("--save")
    p.add_argument("--results")
    a = p.parse_args()
    if a.results and not a.save:
        p.error("--results takes the pairs of --save FILE")
    if a.results:
        write_results(a)
        return
    runs = {"millrace": []}
    if a.llama:
        runs["llama.cpp"] = []
    for i in range(a.pairs):
        for name, measure in (("millrace", millrace), ("llama.cpp", llama))[:len(runs)]:
            pair = measure(a, True), measure(a, False)
            runs[name].append(pair)
            if a.save:
                with open(a.save, "a", encoding="utf-8") as f:
                    print(json.dumps({"model": os.path.basename(a.model), "program": name, "pair": pair}), file=f)
        print(f"pair {i + 1} of {a.pairs}", flush=True)
    report(runs)


if __name__ == "__main__":
    main()
