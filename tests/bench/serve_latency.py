#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the time that `millrace serve` adds to a request at low load: sends one request after the other on one
connection, to a stage that computes nothing and sleeps for a fixed time in each step. The rest of the time is that of
the server, the service, the links and this client.

  serve_latency.py build/release/bin/millrace
"""
import argparse
import http.client
import json
import subprocess
import time


def start(millrace, ms):
    run = subprocess.Popen([millrace, "serve", "--demo", "--port", "0", "--stages", "1", "--measure", "off", "--synthetic-stage",
                            f"{ms},0"], stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if "ready at " in line:
            return run, int(line.strip().rsplit(":", 1)[1])
    raise SystemExit("the server does not start")


def times_ms(port, n, **fields):
    c = http.client.HTTPConnection("127.0.0.1", port)
    body, times = json.dumps({"prompt": [5, 6], "max_tokens": 1, "ignore_eos": True, **fields}), []
    for _ in range(n):
        begin = time.perf_counter()
        c.request("POST", "/v1/completions", body)
        answer = c.getresponse()
        answer.read()
        times.append((time.perf_counter() - begin) * 1e3)
        if answer.status != 200:
            raise SystemExit(f"status {answer.status}")
    c.close()
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("-n", type=int, default=200, help="requests of each kind")
    options = parser.parse_args()
    print("| stage, ms | answer | p50, ms | p99, ms |\n|--:|---|--:|--:|")
    for ms in (0, 2, 5):
        run, port = start(options.millrace, ms)
        try:
            for name, fields in (("whole", {}), ("streamed", {"stream": True})):
                times = times_ms(port, options.n, **fields)
                print(f"| {ms} | {name} | {times[len(times) // 2]:.2f} | {times[len(times) * 99 // 100]:.2f} |")
        finally:
            run.stderr.close()
            run.terminate()
            run.wait()


if __name__ == "__main__":
    main()
