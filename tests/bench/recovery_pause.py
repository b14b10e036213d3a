#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long streams pause when a rank is drained to a spare, or is killed: three ranks of this machine, one of them a
spare.

  recovery_pause.py MODEL.gguf [--kill] [--mixed] [--streams 4] [--prompt 512] [--tokens 120] [--after 12]
  recovery_pause.py random-q4_k.gguf        # of make_random_model.py
  MILLRACE_BIN=old/millrace recovery_pause.py MODEL.gguf     # another build

The streams run. After so many seconds, rank 1 is drained, or killed (--kill). A line has the longest pause between two
tokens of each stream, without its first ones, and their mean; the lines of the server's log say what went along and
what was computed again. With --mixed, the prompts have an eighth of --prompt to all of it."""
import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "mpi")]
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill  # noqa: E402 (after the path)
from test_mpi_serve import ask, wait_until_ready  # noqa: E402 (after the path)

N_FIRST = 8  # tokens of a stream that do not count: others are in their prefill


def stream(port, prompt, n_tokens, pauses):
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    times = [time.monotonic() for line in c.getresponse() if line.startswith(b"data: {")]
    pauses.append(max((b - a for a, b in zip(times[N_FIRST:], times[N_FIRST + 1:])), default=0))


def wait_for_spare(port):
    while True:
        plan = ask(port, "GET", "/plan")[1]
        n_layers = plan["stages"][-1]["last_layer"] + 1
        if plan["spares"] and all(len(s["layers"]) == n_layers for s in plan["spares"]):
            return
        time.sleep(0.1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=120)
    p.add_argument("--after", type=float, default=12)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--kill", action="store_true", help="kill rank 1, in place of draining it")
    p.add_argument("--mixed", action="store_true", help="prompts of several lengths")
    a = p.parse_args()
    port, luck, pauses = free_port(), random.Random(1), []
    job = Job(3, ["serve", a.model, "--port", str(port), "--recover", "--spares", "1", "--ctx",
                  str(a.prompt + a.tokens), "--sequences", str(a.streams), "--threads", "1"], mpirun_args=["--enable-recovery"])
    wait_until_ready(port)
    wait_for_spare(port)
    n_vocab = ask(port, "GET", "/v1/models")[1]["data"][0].get("meta", {}).get("n_vocab", 1000)
    lengths = [a.prompt * (1 + i * 5 % 8) // 8 if a.mixed else a.prompt for i in range(a.streams)]
    prompts = [[luck.randrange(3, n_vocab) for _ in range(n)] for n in lengths]
    threads = [threading.Thread(target=stream, args=(port, prompt, a.tokens, pauses)) for prompt in prompts]
    for t in threads:
        t.start()
    time.sleep(a.after)
    if a.kill:
        kill(job.rank_pid(1))
    else:
        ask(port, "POST", "/cluster/drain?rank=1")
    for t in threads:
        t.join()
    print("longest pauses: %s; mean %.2f s" % (", ".join("%.2f s" % s for s in sorted(pauses)),
                                               sum(pauses) / len(pauses)))
    kill(job.rank_pid(0), signal.SIGTERM)
    print("\n".join(line for line in job.wait(60).stderr.decode().splitlines() if line.startswith("epoch ")))


if __name__ == "__main__":
    main()
