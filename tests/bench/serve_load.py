#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads `millrace serve` with clients that send one request after another, and compares it with llama-server.

    serve_load.py MILLRACE MODEL [--llama FOLDER] [--clients 1,8,32,64] [--requests 3] [--pairs 3] [--ranks 2]
                  [--prompt 128] [--answer 64] [--seed 1] [--llama-flags "--no-webui"] [--json FILE]
                  [--results RESULTS.md]

Each case starts a new server, and each client sends --requests streamed requests. The lengths of prompts and answers
are drawn from log-normal distributions with the medians --prompt and --answer, limited to a quarter and four times the
median. They are the same for all servers. Prompts are token ids, and no two requests share a prompt. Servers:

    millrace            one process, all cores         llama       llama-server, all cores
    millrace, 2 ranks   under mpirun on this machine   llama, RPC  llama-server over as many ggml-rpc-servers

FOLDER holds llama-server and ggml-rpc-server. The servers run in turn, and each pair begins with another server. The
table has medians over the pairs: requests and new tokens per second, time to the first token and between tokens (p50,
p99). A wrong number of tokens or an error status ends the script. mpirun may run as root, as in containers.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import math
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request

import markdown_part

BEGIN, END = "<!-- serve_load.py: begin -->", "<!-- serve_load.py: end -->"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
FIRST_WORD, LAST_WORD = 300, 20000  # ids that stand for words in the models of make_random_model.py
START_S, REQUEST_S = 120, 600


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- Requests ----------------------------------------------------------------------------------------------------------


def draw_length(rng, median):
    return max(1, round(median * min(4.0, max(0.25, math.exp(rng.gauss(0, 0.6))))))


def draw_requests(a, n_clients):
    """[client][request]: (prompt ids, new tokens)"""
    rng = random.Random(f"{a.seed} {n_clients}")
    return [[([rng.randint(FIRST_WORD, LAST_WORD) for _ in range(draw_length(rng, a.prompt))], draw_length(rng, a.answer))
             for _ in range(a.requests)] for _ in range(n_clients)]


async def ask(port, prompt, n_new):
    """Times from sending the request to each event that carries text."""
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": n_new, "temperature": 0, "ignore_eos": True,
                       "stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.monotonic()
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"a request failed: {status.decode()}{(await reader.read()).decode()}")
        times, n_tokens = [], None
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic() - start
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(f"a request failed: {event}")
            times += [now] * any(c.get("text") for c in event.get("choices", ()))
            n_tokens = (event.get("usage") or {}).get("completion_tokens", n_tokens)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if n_tokens != n_new or not times:
        raise SystemExit(f"{n_tokens} tokens in {len(times)} events came instead of {n_new}")
    return times


async def client(port, requests, out):
    for prompt, n_new in requests:
        out.append((n_new, await asyncio.wait_for(ask(port, prompt, n_new), REQUEST_S)))


async def load(port, all_requests):
    done, start = [], time.monotonic()
    await asyncio.gather(*(client(port, requests, done) for requests in all_requests))
    return done, time.monotonic() - start


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else 0.0


def figures(done, seconds):
    first = [times[0] * 1e3 for _, times in done]
    between = [(b - a) * 1e3 for _, times in done for a, b in zip(times, times[1:])]
    return {"requests_per_second": len(done) / seconds, "tokens_per_second": sum(n for n, _ in done) / seconds,
            "first_p50_ms": percentile(first, 0.5), "first_p99_ms": percentile(first, 0.99),
            "between_p50_ms": percentile(between, 0.5), "between_p99_ms": percentile(between, 0.99)}


# --- Servers -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def processes(commands):
    """Starts each server in a process group of its own, so that its child processes end with the server."""
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True))
        yield running
    finally:
        for p in reversed(running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGTERM)
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()


def wait_for(port, process):
    """Waits until the health check of the server succeeds."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"a server ended with status {process.returncode}: {' '.join(process.args)}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.05)
    raise SystemExit(f"a server did not get ready: {' '.join(process.args)}")


def commands_of(a, server, port, n_clients):
    """The commands that start a server. The last command starts the process that answers requests."""
    cores = len(os.sched_getaffinity(0))
    context = 8 * (a.prompt + a.answer)
    if server.startswith("millrace"):
        ranks = ["mpirun", "--quiet", "-n", str(a.ranks)] if "ranks" in server else []
        threads = max(1, cores // a.ranks) if ranks else cores
        return [[*ranks, a.millrace, "serve", a.model, "--port", str(port), "-t", str(threads), "--ctx", str(context),
                 "--sequences", str(n_clients)]]
    rpc_ports = [free_port() for _ in range(a.ranks)] if "RPC" in server else []
    threads = max(1, cores // a.ranks) if rpc_ports else cores
    commands = [[os.path.join(a.llama, "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(p), "-t", str(threads)]
                for p in rpc_ports]
    more = ["--rpc", ",".join(f"127.0.0.1:{p}" for p in rpc_ports), "-ngl", "99"] if rpc_ports else []
    return [*commands, [os.path.join(a.llama, "llama-server"), "-m", a.model, "--host", "127.0.0.1", "--port", str(port),
                        "-t", str(threads), "-tb", str(threads), "-np", str(n_clients), "-c", str(context * n_clients),
                        *shlex.split(a.llama_flags), *more]]


def measure(a, server, n_clients):
    port = free_port()
    commands = commands_of(a, server, port, n_clients)
    with processes(commands[:-1]):
        time.sleep(0.5 if len(commands) > 1 else 0)
        with processes(commands[-1:]) as running:
            wait_for(port, running[0])
            asyncio.run(load(port, [[([FIRST_WORD] * 8, 4)]]))
            return figures(*asyncio.run(load(port, draw_requests(a, n_clients))))


# --- Report ------------------------------------------------------------------------------------------------------------


def table(a, servers, found):
    lines = ["| clients | server | requests/s | tokens/s | first token p50 / p99 (ms) | between tokens p50 / p99 (ms) |",
             "|--:|---|--:|--:|--:|--:|"]
    for n in a.clients:
        for server in servers:
            m = {k: statistics.median(f[k] for f in found[n][server]) for k in found[n][server][0]}
            lines.append(f"| {n} | {server} | {m['requests_per_second']:.2f} | {m['tokens_per_second']:.1f} |"
                         f" {m['first_p50_ms']:.0f} / {m['first_p99_ms']:.0f} |"
                         f" {m['between_p50_ms']:.1f} / {m['between_p99_ms']:.1f} |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("model")
    p.add_argument("--llama")
    p.add_argument("--clients", default="1,8,32,64", type=lambda s: [int(n) for n in s.split(",")])
    for name, value in (("requests", 3), ("pairs", 3), ("ranks", 2), ("prompt", 128), ("answer", 64), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--llama-flags", default="--no-webui", help="of llama-server (--no-webui)")
    p.add_argument("--servers", help="only these, separated by ';'")
    p.add_argument("--json")
    p.add_argument("--results")
    a = p.parse_args()
    servers = ["millrace", f"millrace, {a.ranks} ranks"] + (["llama", "llama, RPC"] if a.llama else [])
    servers = a.servers.split(";") if a.servers else servers
    found = {n: {s: [] for s in servers} for n in a.clients}
    for pair in range(a.pairs):
        for n in a.clients:
            for i in range(len(servers)):
                server = servers[(i + pair) % len(servers)]
                found[n][server].append(measure(a, server, n))
                print(f"pair {pair + 1}, {n} clients, {server}: {found[n][server][-1]}", flush=True)
    text = table(a, servers, found)
    print(text)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(found, f, indent=1)
    if a.results:
        note = (f"{os.path.basename(a.model)}, {len(os.sched_getaffinity(0))} cores, {a.pairs} pairs,"
                f" {datetime.date.today()}: prompts of about {a.prompt} and answers of about {a.answer} tokens,"
                f" {a.requests} requests for each client.")
        markdown_part.replace(a.results, f"{BEGIN}\n{note}\n\n{text}\n{END}\n")


if __name__ == "__main__":
    main()
