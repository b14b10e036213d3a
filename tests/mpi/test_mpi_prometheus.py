#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes two servers under load, one over three ranks: every query of every panel of
deploy/grafana.json returns data, the alerts of deploy/alerts.yml are taken, and none fires.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from free_port import free_port  # noqa: E402 (after the path)
from hosts import Job, kill, program_path, run_tests  # noqa: E402 (after the path)
from test_mpi_serve import ask, wait_until_ready  # noqa: E402

DEMO = os.path.join(os.path.dirname(program_path()), "millrace-demo.gguf")
LIMIT_S = 120
STAGE_PANELS = ("Busy share of each stage", "Rows of a step", "Memory of each stage")
CONFIG = """
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}
rule_files: ["%s"]
scrape_configs:
  - job_name: millrace
    static_configs: [{targets: [%s]}]
"""


def http_json(url, **fields):
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(fields)}", timeout=LIMIT_S) as answer:
        return json.load(answer)["data"]


class Load:
    """Clients that ask the servers until it ends, the same prompts again and again."""

    def __init__(self, ports):
        self.stops = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(port, i)) for port in ports for i in range(3)]

    def run(self, port, i):
        for n in itertools.count():
            if self.stops.is_set():
                return
            ask(port, "POST", "/v1/completions", {"prompt": f"Once upon a time, there was {i}", "max_tokens": 40, "seed": n})

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.stops.set()
        for thread in self.threads:
            thread.join()


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
@unittest.skipUnless(shutil.which("prometheus"), "there is no prometheus")
class Dashboard(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-prometheus-")
        self.addCleanup(shutil.rmtree, self.folder)

    def serve(self, n):
        port = free_port()
        job = Job(n, ["serve", "--demo", "--port", str(port)], launcher=[os.path.join(ROOT, "deploy/millrace-mpirun")])
        self.addCleanup(self.end, job)
        return port, job

    def end(self, job):
        if job.process.poll() is None:
            kill(job.rank_pid(0), signal.SIGTERM)
        done = job.wait(LIMIT_S)
        self.assertEqual((done.status, done.left), (0, []), str(done))

    def prometheus(self, ports):
        config, port = os.path.join(self.folder, "prometheus.yml"), free_port()
        with open(config, "w", encoding="utf-8") as f:
            f.write(CONFIG % (os.path.join(ROOT, "deploy/alerts.yml"), ", ".join(f'"127.0.0.1:{p}"' for p in ports)))
        log = open(os.path.join(self.folder, "log"), "wb")  # pylint: disable=consider-using-with
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
                                    f"--storage.tsdb.path={self.folder}/data"], stdout=log, stderr=log)
        self.addCleanup(log.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return f"http://127.0.0.1:{port}/api/v1/"

    def until(self, what, limit_s=LIMIT_S):
        end = time.monotonic() + limit_s
        while True:
            try:
                found = what()
            except OSError as e:  # it does not listen yet
                found, error = None, e
            if found or time.monotonic() > end:
                return found
            time.sleep(0.1)

    @staticmethod
    def queries():
        """(panel, query) of the dashboard, with all servers and stages chosen."""
        with open(os.path.join(ROOT, "deploy/grafana.json"), encoding="utf-8") as f:
            panels = json.load(f)["panels"]
        for panel in panels:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$instance", ".*").replace("$stage", ".*").replace("$__rate_interval", "10s")
                assert "$" not in query, query
                yield panel["title"], query

    @staticmethod
    def is_whole(panel, found, stages):
        """Whether a panel of stages has a value of each one, a share no more than the whole. A server whose numbers came
        too late for one reading is left out, or has the work of more seconds in fewer."""
        if panel == "Plan":
            return len(found) == len(stages)
        if panel == "Busy share of each stage" and any(float(x["value"][1]) >= 1.2 for x in found):
            return False
        return panel not in STAGE_PANELS or {(x["metric"]["instance"], x["metric"]["stage"]) for x in found} == stages

    def test_every_panel_has_data(self):
        servers = [self.serve(n) for n in (3, 2)]
        ports = [port for port, _ in servers]
        for port in ports:
            wait_until_ready(port)
        url = self.prometheus(ports)

        def ask_it(query):
            return http_json(url + "query", query=query)["result"]

        stages = {(f"127.0.0.1:{port}", str(i)) for port, n in zip(ports, (3, 2)) for i in range(n)}

        def data_of(panel, query):
            found = ask_it(query)
            has_values = found and not any(math.isnan(float(x["value"][1])) for x in found)
            return found if has_values and self.is_whole(panel, found, stages) else None

        found = {}
        with Load(ports):
            self.assertTrue(self.until(lambda: len(ask_it("rate(millrace_stage_steps_total[10s]) > 0")) == 5))
            for panel, query in self.queries():
                found[query] = self.until(lambda panel=panel, query=query: data_of(panel, query))
                self.assertTrue(found[query], f"{panel}: {query} has no data, or not of all: {ask_it(query)}")
            # Of five stages together, the phases are shares of the time: all of it, once the time that rate() looks at is over.
            phases = next(q for panel, q in self.queries() if panel.startswith("Where the time"))
            share = self.until(lambda: 0.7 < sum(float(x["value"][1]) for x in ask_it(phases)) < 1.3)
            self.assertTrue(share, ask_it(phases))
        self.check_values(found)
        for label, wanted in (("instance", {f"127.0.0.1:{p}" for p in ports}), ("stage", {"0", "1", "2"})):
            values = http_json(f"{url}label/{label}/values", **{"match[]": "millrace_stage_info"})
            self.assertEqual(set(values), wanted)

        def rules():
            return [r for g in http_json(url + "rules")["groups"] for r in g["rules"]]

        self.assertGreaterEqual(len(rules()), 6)
        self.assertTrue(self.until(lambda: all((r["health"], r["state"]) == ("ok", "inactive") for r in rules())), rules())

    def check_values(self, found):
        titles = {}
        for panel, query in self.queries():
            titles.setdefault(panel, []).extend(found[query])
        self.assertEqual([float(x["value"][1]) for x in titles["Failed requests per second"]], [0])
        outcomes = {x["metric"]["outcome"] for x in titles["Requests per second"] if x["metric"]["endpoint"] == "/v1/completions"}
        self.assertEqual(outcomes, {"ok"})


@unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
class Alerts(unittest.TestCase):
    def promtool(self, *args):
        done = subprocess.run(["promtool", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout.decode())

    def test_rules(self):
        self.promtool("check", "rules", os.path.join(ROOT, "deploy/alerts.yml"))
        self.promtool("test", "rules", os.path.join(ROOT, "tests/page/alerts_test.yml"))


if __name__ == "__main__":
    sys.exit(run_tests())
