# SPDX-License-Identifier: Apache-2.0
"""Embeddings of models whose file, or the option of the server, says which rows of a text make its embedding."""
import os
import sys
import unittest

import test_packages

test_packages.enter("openai")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import tiny_model  # noqa: E402
from openai_case import Case  # noqa: E402


class Pooling(Case):
    """The file says last, and that texts end with the end token."""

    @classmethod
    def make_model(cls):
        return tiny_model.make(os.path.join(cls.folder, "embeddings.gguf"), pooling=3, add_eos=True)

    def embed(self, text, **fields):
        return self.client.embeddings.create(model="tiny", input=text, extra_body=fields).data[0].embedding

    def test_it_follows_the_file(self):
        self.assertEqual(self.embed("mill river"), self.embed("mill river", pooling="last"))
        self.assertNotEqual(self.embed("mill river"), self.embed("mill river", pooling="mean"))

    def test_texts_end_with_the_end_token(self):
        ids = self.post("/tokenize", {"content": "mill river", "add_special": True})[1]["tokens"]
        self.assertEqual(ids[-1], tiny_model.EOS)
        self.assertEqual(self.embed("mill river"), self.embed(ids))
        self.assertNotEqual(self.embed("mill river"), self.embed(ids[:-1]))


class PoolingOption(Pooling):
    """The option counts more than the file."""
    options = ["--pooling", "cls"]

    def test_it_follows_the_file(self):
        self.assertEqual(self.embed("mill river"), self.embed("mill river", pooling="cls"))
        self.assertNotEqual(self.embed("mill river"), self.embed("mill river", pooling="last"))

    def test_texts_end_with_the_end_token(self):
        self.assertEqual(self.embed("mill river"), self.embed("mill stone"))  # of the first row, which is that of bos


if __name__ == "__main__":
    unittest.main()
