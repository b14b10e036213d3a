#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `millrace bench` with the benchmarks of llama.cpp and ik_llama.cpp on the same model files.

    compare_peers.py MILLRACE MODEL... [--llama-cpp FOLDER] [--ik-llama FOLDER] [--pairs 7] [--threads 2]
                     [--cases prefill,decode,depth,batch] [--prompt 512] [--depth 4096] [--ik-flags "-ub 2048"]
                     [--results RESULTS.md] [--json FILE]

FOLDER holds llama-bench and llama-batched-bench. ik_llama.cpp runs twice, with the weights as they are in the file and
repacked while loading (-rtr 1). Each round runs all programs one after the other. Each round begins with another
program than the round before. A case is

    prefill  a prompt of --prompt tokens          decode  one sequence, from an empty context
    depth    one sequence behind --depth tokens   batch   8, 16 and 32 sequences, from prompts of one token

--ik-flags are further flags of ik_llama.cpp's llama-bench, where other values than its own suit a model better.

The table has the median, the smallest and the largest number of tokens per second, the median of the ratios within the
rounds, the ratio of Millrace's median to that of the fastest other program, and the shares of the machine's limits that
Millrace reached. A program that fails has "-" in the table, and the reason is on standard error. --results replaces the
table in a Markdown file, with machine, versions and command. --json writes all single values.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

import markdown_part

BATCHES = (8, 16, 32)
CASES = ("prefill", "decode", "depth", "batch")
BEGIN, END = "<!-- compare_peers.py: begin -->", "<!-- compare_peers.py: end -->"


def cases_of(a, name):
    """[(test, sequences, depth)] of a name in CASES"""
    return {"prefill": [("prefill", 1, 0)], "decode": [("decode", 1, 0)], "depth": [("decode", 1, a.depth)],
            "batch": [("decode", b, 0) for b in BATCHES]}[name]


def run(command, limit_s, folder=None):
    """Returns standard output and standard error, or None and the reason if the program fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=limit_s, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        return None, f"more than {limit_s} s"
    except OSError as e:
        return None, str(e)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return done.stdout, done.stderr


class Millrace:
    name = "Millrace"

    def __init__(self, a):
        self.program, self.a = a.millrace, a

    def version(self):
        text = run([self.program, "--version"], 60)[0].splitlines()[0]
        folder = os.path.dirname(os.path.abspath(__file__))
        commit, _ = run(["git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*"], 60)
        return f"{text} ({commit.strip()})" if commit else text

    def measure(self, model, cases, failures):
        commands = []
        if "prefill" in cases or "decode" in cases or "batch" in cases:
            batches = [1] * ("decode" in cases) + list(BATCHES) * ("batch" in cases)
            commands.append(["-p", self.a.prompt if "prefill" in cases else 0, "-n", self.a.n if batches else 0, "-b",
                             ",".join(map(str, batches or [1]))])
        if "depth" in cases:
            commands.append(["-p", 0, "-n", self.a.n, "-b", 1, "-d", self.a.depth])
        found = {}
        for args in commands:
            out, err = run([self.program, "bench", model, "-t", str(self.a.threads), "-r", "1", "--json", "--log-level",
                            "error", *map(str, args)], self.a.limit)
            if out is None:
                failures.append(err)
                continue
            for t in json.loads(out):
                share = t.get("peak_share" if t["test"] == "prefill" else "bandwidth_share")
                found[t["test"], t["sequences"], t["depth"]] = t["tokens_per_second"], share
        return found


class Llama:
    """llama.cpp or ik_llama.cpp, which is a fork of llama.cpp."""

    def __init__(self, a, folder, name, is_ik, repack):
        self.a, self.folder, self.name, self.is_ik, self.repack = a, folder, name, is_ik, repack
        self.build = "?"

    def command(self, program, model):
        return [os.path.abspath(os.path.join(self.folder, program)), "-m", os.path.abspath(model), "-t",
                str(self.a.threads)]

    def run(self, command):
        """ik_llama.cpp writes a log into the folder where it runs."""
        return run(command, self.a.limit, tempfile.gettempdir())

    def cpus(self):
        """llama.cpp binds its threads to CPUs, as Millrace does."""
        return [] if self.is_ik else ["-C", hex((1 << self.a.threads) - 1), "--cpu-strict", "1"]

    def version(self):
        commit, _ = run(["git", "-C", self.folder, "log", "-1", "--format=%h of %cs"], 60)
        return self.build if not commit or self.build != "unknown" else commit.strip()

    def bench(self, model, args, failures):
        """{(prompt, generated tokens): rate}"""
        extra = ["-rtr", str(int(self.repack)), *shlex.split(self.a.ik_flags)] if self.is_ik else self.cpus()
        out, err = self.run([*self.command("llama-bench", model), "-r", "1", "-o", "json", *extra, *map(str, args)])
        if out is None:
            failures.append(err)
            return {}
        rows = json.loads(out)
        self.build = rows[0]["build_commit"]
        return {(r["n_prompt"], r["n_gen"]): r["avg_ts"] for r in rows}

    def batched(self, model, failures):
        """{sequences: rate}, from the table, which ik_llama.cpp writes to standard error."""
        extra = ["-wb"] + ["-rtr"] * self.repack if self.is_ik else self.cpus()
        out, err = self.run([*self.command("llama-batched-bench", model), "-c", str(max(BATCHES) * (self.a.n + 16)),
                             "-b", "2048", "-ub", "512", "-npp", "1", "-ntg", str(self.a.n), "-npl",
                             ",".join(map(str, BATCHES)), *extra])
        if out is None:
            failures.append(err)
            return {}
        rows = [line.split("|")[1:-1] for line in (out + "\n" + err).splitlines() if re.match(r"\| +\d", line)]
        return {int(row[2]): float(row[7]) for row in rows}

    def measure(self, model, cases, failures):
        n, found = self.a.n, {}
        prompt, decode = self.a.prompt * ("prefill" in cases), n * ("decode" in cases)
        if prompt or decode:
            rates = self.bench(model, ["-p", prompt, "-n", decode], failures)
            found = {("prefill", 1, 0): rates.get((self.a.prompt, 0)), ("decode", 1, 0): rates.get((0, n))}
        if "depth" in cases:
            args = ["-n", 0, "-gp", f"{self.a.depth},{n}"] if self.is_ik else ["-n", n, "-d", self.a.depth]
            rates = self.bench(model, ["-p", 0, *args], failures)
            found["decode", 1, self.a.depth] = rates.get((self.a.depth if self.is_ik else 0, n))
        if "batch" in cases:
            found.update({("decode", b, 0): rate for b, rate in self.batched(model, failures).items()})
        return {case: (rate, None) for case, rate in found.items() if rate}


def measure(a, programs, model):
    """rounds[i][program name][case] = (rate, share)"""
    rounds = []
    for i in range(a.pairs):
        values = {}
        for k in range(len(programs)):
            p, failures = programs[(i + k) % len(programs)], []
            values[p.name] = p.measure(model, a.cases, failures)
            for why in failures:
                print(f"{p.name}, {model}: {why}", file=sys.stderr)
        rounds.append(values)
        print(f"{model}: round {i + 1} of {a.pairs}", file=sys.stderr, flush=True)
    return rounds


def rates_of(rounds, name, case):
    return [r[name][case][0] for r in rounds if case in r[name]]


def ratios_of(rounds, name, other, case):
    return [r[name][case][0] / r[other][case][0] for r in rounds if case in r[name] and case in r[other]]


def spread(values, digits):
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def case_text(a, case):
    test, sequences, depth = case
    if test == "prefill":
        return f"prefill of {a.prompt}"
    return f"decode of {sequences}" + (f", depth {depth}" if depth else "")


def table(a, programs, found):
    ours, peers = programs[0], programs[1:]
    heads = ["file", "case", ours.name, "share"]
    for p in peers:
        heads += [p.name, "ratio"]
    heads += ["to the fastest"] * (len(peers) > 1)
    lines = ["| " + " | ".join(heads) + " |", "|---|---" + "|--:" * (len(heads) - 2) + "|"]
    for model, rounds in found.items():
        for case in [c for name in a.cases for c in cases_of(a, name)]:
            shares = [r[ours.name][case][1] for r in rounds if case in r[ours.name]]
            known = [s for s in shares if s is not None]
            kind = "of peak" if case[0] == "prefill" else "of read"
            cells = [os.path.basename(model).removesuffix(".gguf"), case_text(a, case),
                     spread(rates_of(rounds, ours.name, case), 1),
                     f"{100 * statistics.median(known):.0f} % {kind}" if known else "-"]
            for p in peers:
                cells += [spread(rates_of(rounds, p.name, case), 1),
                          spread(ratios_of(rounds, ours.name, p.name, case), 2)]
            medians = [statistics.median(rates) for p in peers if (rates := rates_of(rounds, p.name, case))]
            if len(peers) > 1:
                mine = rates_of(rounds, ours.name, case)
                cells.append(f"{statistics.median(mine) / max(medians):.2f}" if mine and medians else "-")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def limits(a, model):
    """The limits of the machine, as Millrace measures them while nothing else runs."""
    out, _ = run([a.millrace, "bench", model, "-t", str(a.threads), "-p", "8", "-n", "0", "-r", "1", "--json",
                  "--log-level", "error"], a.limit)
    if out is None:
        return "not known"
    t = json.loads(out)[0]
    return (f"read loop {t['read_bytes_per_second'] / 1e9:.1f} GB/s; {t['int8_products_per_second'] / 1e9:.0f} G "
            f"products/s of int8, {t['f32_products_per_second'] / 1e9:.0f} G of f32")


def machine():
    fields = dict(line.split(":", 1) for line in (run(["lscpu"], 60)[0] or "").splitlines() if ":" in line)
    names = [fields.get(k, "?").strip() for k in ("Model name", "CPU(s)", "L3 cache")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{names[0]}, {names[1]} CPUs, L3 {names[2]}, {memory:.0f} GiB, Linux {platform.release()}"


def document(a, programs, found, load):
    command = shlex.join(["compare_peers.py", os.path.basename(a.millrace), *map(os.path.basename, a.models)])
    command += "".join(f" {flag} FOLDER" for flag, folder in (("--llama-cpp", a.llama_cpp), ("--ik-llama", a.ik_llama))
                       if folder)
    command += f" --pairs {a.pairs} --threads {a.threads} -n {a.n} --cases {','.join(a.cases)}"
    command += f" --prompt {a.prompt} --depth {a.depth}" + (f" --ik-flags '{a.ik_flags}'" if a.ik_flags else "")
    lines = [BEGIN, f"- date: {datetime.date.today()}", f"- machine: {machine()}",
             f"- load average before the first round: {load:.1f}",
             f"- limits of {a.threads} threads: {limits(a, a.models[0])}", f"- command: `{command}`"]
    lines += [f"- {p.name}: {p.version()}" for p in programs]
    return "\n".join(lines + ["", *table(a, programs, found), END]) + "\n"


def write_json(path, found):
    rows = [{"model": os.path.basename(model), "round": i, "program": name, "test": case[0], "sequences": case[1],
             "depth": case[2], "tokens_per_second": rate, "share": share}
            for model, rounds in found.items() for i, r in enumerate(rounds) for name, cases in r.items()
            for case, (rate, share) in cases.items()]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
        f.write("\n")


def list_of_cases(text):
    cases = text.split(",")
    if set(cases) - set(CASES):
        raise argparse.ArgumentTypeError(f"cases are {', '.join(CASES)}")
    return cases


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--llama-cpp", metavar="FOLDER")
    p.add_argument("--ik-llama", metavar="FOLDER")
    p.add_argument("--pairs", type=int, default=7, help="rounds (7)")
    p.add_argument("--threads", type=int, default=2, help="of each program (2)")
    p.add_argument("-n", type=int, default=48, help="tokens that a sequence generates (48)")
    p.add_argument("--prompt", type=int, default=512, help="tokens of the prompt of prefill (512)")
    p.add_argument("--depth", type=int, default=4096, help="tokens before those of depth (4096)")
    p.add_argument("--ik-flags", default="", help="of ik_llama.cpp's llama-bench")
    p.add_argument("--cases", type=list_of_cases, default=list(CASES))
    p.add_argument("--limit", type=int, default=900, help="seconds after which a program counts as failed (900)")
    p.add_argument("--results", metavar="FILE")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    programs = [Millrace(a)]
    if a.llama_cpp:
        programs.append(Llama(a, a.llama_cpp, "llama.cpp", False, False))
    if a.ik_llama:
        programs += [Llama(a, a.ik_llama, "ik_llama.cpp", True, False),
                     Llama(a, a.ik_llama, "ik_llama.cpp -rtr 1", True, True)]
    found, load = {}, os.getloadavg()[0]
    for model in a.models:
        found[model] = measure(a, programs, model)
        if a.json:
            write_json(a.json, found)
        text = document(a, programs, found, load)
        if a.results:
            markdown_part.replace(a.results, text)
    print(text)


if __name__ == "__main__":
    main()
