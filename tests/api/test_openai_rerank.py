# SPDX-License-Identifier: Apache-2.0
"""Reranking by a tiny model with random weights. Its head has the output rows of two words, so a score follows from the
log-probabilities of these words behind the prompt."""
import math
import os
import sys
import unittest

import test_packages

test_packages.enter("openai")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import tiny_model  # noqa: E402
from openai_case import Case  # noqa: E402

TEMPLATE = "{query} or {document}: which?"
QUERY = "water"
DOCUMENTS = [f"the {word} number {i}" for i, word in enumerate(tiny_model.WORDS)] + ["", "{query}", "owl" * 60]
YES, NO = tiny_model.FIRST_WORD, tiny_model.FIRST_WORD + 1


class Rerank(Case):
    options = ["--stages", "3"]

    @classmethod
    def make_model(cls):
        return tiny_model.make(os.path.join(cls.folder, "reranker.gguf"), rerank=TEMPLATE, pooling=4)

    def rerank(self, documents, path="/v1/rerank", **fields):
        status, answer = self.post(path, {"model": "tiny", "query": QUERY, "documents": documents, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def scores(self, documents):
        """In the order of the documents."""
        results = self.rerank(documents)["results"]
        self.assertEqual([r["relevance_score"] for r in results],
                         sorted((r["relevance_score"] for r in results), reverse=True))
        return [r["relevance_score"] for r in sorted(results, key=lambda r: r["index"])]

    def ids(self, document):
        text = TEMPLATE.replace("{query}", QUERY).replace("{document}", document)
        return self.post("/tokenize", {"content": text})[1]["tokens"]

    def logprob_of_last(self, ids):
        return self.complete(ids, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs.token_logprobs[-1]

    def test_scores_follow_from_logits(self):
        documents = [d for d in DOCUMENTS if "{" not in d]
        for document, score in zip(documents, self.scores(documents)):
            yes, no = (math.exp(self.logprob_of_last([*self.ids(document), word])) for word in (YES, NO))
            self.assertAlmostEqual(score, yes / (yes + no), places=4)

    def test_alone_and_together(self):
        together = self.scores(DOCUMENTS)
        self.assertEqual(len(set(together)), len(DOCUMENTS))
        self.assertEqual(together, [self.scores([d])[0] for d in DOCUMENTS])
        self.assertEqual(self.scores(DOCUMENTS[::-1]), together[::-1])

    def test_answers(self):
        whole = self.rerank(DOCUMENTS)
        self.assertEqual((whole["object"], len(whole["results"])), ("list", len(DOCUMENTS)))
        self.assertTrue(all(set(r) == {"index", "relevance_score"} for r in whole["results"]))
        self.assertEqual(whole["usage"]["prompt_tokens"], whole["usage"]["total_tokens"])
        self.assertEqual(self.rerank(["a", "b"])["usage"]["prompt_tokens"], len(self.ids("a") + self.ids("b")))
        first = self.rerank([{"text": d} for d in DOCUMENTS], top_n=3, return_documents=True)
        self.assertEqual([r["index"] for r in first["results"]], [r["index"] for r in whole["results"][:3]])
        for r in first["results"]:
            self.assertEqual(r["document"], {"text": DOCUMENTS[r["index"]]})
        for path in ("/rerank", "/v1/reranking", "/reranking"):
            self.assertEqual(self.rerank(DOCUMENTS, path)["results"], whole["results"])

    def test_errors(self):
        for body, param in (({"documents": ["a"]}, "query"), ({"query": "a"}, "documents"),
                            ({"query": "a", "documents": []}, "documents"),
                            ({"query": QUERY, "documents": ["a", "a" * 600]}, "documents[1]")):
            status, answer = self.post("/v1/rerank", body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        self.assertRegex(answer["error"]["message"], "^This model's maximum context length is [0-9]+ tokens, and the prompt has")
        self.assertEqual(answer["error"]["n_prompt_tokens"], len(self.ids("a" * 600)))

    def test_it_generates_as_well(self):
        self.assertEqual(self.complete("mill", max_tokens=3).usage.completion_tokens, 3)


class NoReranker(Case):
    """The demo model."""

    def test_it_is_no_reranker(self):
        status, answer = self.post("/v1/rerank", {"query": "a", "documents": ["a"]})
        self.assertEqual(status, 400)
        self.assertIn("no reranker", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
