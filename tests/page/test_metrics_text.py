# SPDX-License-Identifier: Apache-2.0
"""The text of all metrics as a strict reader of the format sees it, and what that reader refuses."""
import json
import os
import re
import subprocess
import unittest

import prometheus

SOURCE = os.environ["MILLRACE_SOURCE_DIR"]
GOOD = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n"
BAD = [
    GOOD[:-1],
    GOOD + 'a_total{x="1"} 3\n',
    GOOD.replace("{", "{x=\"2\","),
    GOOD.replace("} 2", "} two"),
    GOOD.replace("} 2", "} -2"),
    GOOD.replace('"1"', '"\\1"'),
    GOOD.replace('"1"', "1"),
    GOOD.replace("# TYPE a_total counter\n", ""),
    GOOD.replace("a_total", "a"),
    GOOD.replace("counter", "gauge"),
    GOOD + "b 1\n",
    GOOD + "\n",
    GOOD + GOOD.replace("a_total", "b_total") + 'a_total{x="3"} 3\n',
    "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
    "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2\n",
    "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 3\n",
]


class MetricsText(unittest.TestCase):
    def test_reader(self):
        self.assertEqual(prometheus.read(GOOD)["a_total"].value(x="1"), 2)
        for text in BAD:
            with self.assertRaises(ValueError, msg=text):
                prometheus.read(text)

    def check_queries(self, families):
        """Every query of deploy/grafana.json and deploy/alerts.yml is of a metric that there is, and of labels that it has."""
        with open(os.path.join(SOURCE, "deploy/grafana.json"), encoding="utf-8") as f:
            dashboard = json.load(f)
        queries = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
        self.assertGreater(len(queries), 20)
        with open(os.path.join(SOURCE, "deploy/alerts.yml"), encoding="utf-8") as f:
            queries.append(f.read())
        used = [m for q in queries for m in re.findall(r"\b(millrace_\w+)(?:\{([^}]*)\})?", q)]
        for name, labels in used:
            family = families.get(name.removesuffix("_bucket"))
            self.assertIsNotNone(family, name)
            wanted = set(re.findall(r'(\w+)(?:=|!|=~|!~)"', labels)) - {"instance"}
            self.assertLessEqual(wanted, set(family.samples[0][1]), name)

    def test_all(self):
        text = subprocess.run([os.environ["MILLRACE_TEST_METRICS"], "--print"], stdout=subprocess.PIPE, check=True).stdout
        families = prometheus.read(text.decode())
        self.check_queries(families)
        with open(os.path.join(SOURCE, "coordinator/serving/metrics/metrics.def"), encoding="utf-8") as f:
            self.assertEqual(len(families), f.read().count("\nMR_METRIC("))
        self.assertTrue(all(name.startswith("millrace_") for name in families))
        samples = families["millrace_stage_seconds_total"].samples
        self.assertEqual([l for _, l, _ in samples],
                         [{"stage": "a", "phase": "b"}, {"stage": '"quoted"', "phase": "back\\slash"}])


if __name__ == "__main__":
    unittest.main()
