# SPDX-License-Identifier: Apache-2.0
"""Errors as the client knows them."""
import unittest

import test_packages

test_packages.enter("openai")

import openai  # noqa: E402
from openai_case import Case  # noqa: E402


class Errors(Case):
    options = ["--ctx", "256"]

    def bad(self, param, code, call, *args, **fields):
        with self.assertRaises(openai.BadRequestError) as caught:
            call(*args, **fields)
        self.assertEqual((caught.exception.param, caught.exception.code), (param, code))
        self.assertEqual(caught.exception.type, "invalid_request_error")
        return str(caught.exception)

    def test_fields(self):
        self.bad("temperature", "invalid_value", self.complete, temperature=-1)
        self.bad("temperature", "invalid_type", self.chat, temperature="hot")
        self.bad("n", "invalid_value", self.chat, n=1000)
        self.bad("stop", "array_above_max_length", self.complete, stop=["x"] * 100000)
        self.bad("messages[0].content", "invalid_type", self.chat, text=5)
        self.bad("tool_choice", "invalid_value", self.chat, tool_choice="required")
        self.bad("grammar", "invalid_value", self.complete, extra_body={"grammar": "root ::= missing"})
        self.bad("grammar", "invalid_value", self.complete, extra_body={"grammar": 'root ::= "a"\n#' + "x" * 600000})
        self.bad(None, None, self.complete, max_tokens=50, extra_body={"grammar": "root ::= [a-z] root root | [a-z] root | [a-z]"})
        self.bad("response_format.json_schema.schema", "invalid_value", self.chat, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "not": {}}}})
        self.bad("temperature", "invalid_value", self.complete, temperature=-1, stream=True)

    def test_context(self):
        """Every way in names the context in the words that clients look for, and has both numbers."""
        def n_tokens(**fields):
            return len(self.post("/tokenize", {"add_special": True, "parse_special": True, **fields})[1]["tokens"])

        long, full = "mill " * 300, [5] * 256
        chat = [{"role": "user", "content": long}]
        in_chat = n_tokens(content=self.post("/apply-template", {"messages": chat})[1]["prompt"])
        for path, body, n, param in (
                ("completions", {"prompt": long}, n_tokens(content=long), "prompt"),
                ("completions", {"prompt": long, "stream": True}, n_tokens(content=long), "prompt"),
                ("completions", {"prompt": ["a", [7] * 257], "max_tokens": 0}, 257, "prompt[1]"),
                ("completions", {"prompt": full, "n": 2}, 256, None),
                ("embeddings", {"input": ["a", long]}, n_tokens(content=long), "input[1]"),
                ("chat/completions", {"messages": chat}, in_chat, None),
                ("chat/completions", {"messages": chat, "stream": True, "max_completion_tokens": 1}, in_chat, None)):
            with self.subTest(path, body=body):
                status, answer = self.post("/v1/" + path, body)
                error = answer["error"]
                self.assertEqual((status, error["type"], error["code"], error["param"]),
                                 (400, "invalid_request_error", "context_length_exceeded", param))
                self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (n, 256))
                self.assertRegex(error["message"], f"^This model's maximum context length is 256 tokens, and the prompt has {n}")
                self.assertEqual("room for one more" in error["message"], n == 256)
        status, answer = self.post("/v1/completions", {"prompt": "mill " * 1000000})  # not counted any more
        self.assertIn(f"has {answer['error']['n_prompt_tokens']} at least", answer["error"]["message"])
        self.assertGreater(answer["error"]["n_prompt_tokens"], 256)
        status, answer = self.post("/v1/completions", {"prompt": "a", "bad_words": [20 * long]})
        self.assertEqual((status, answer["error"]["param"]), (400, "bad_words"))
        self.assertNotIn("n_ctx", answer["error"])
        self.assertEqual(self.complete(prompt="mill", max_tokens=100000).usage.total_tokens <= 256, True)

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"\xff", b'{"prompt": NaN}', b"[" * 100000):
            status, answer = self.post("/v1/completions", body)
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))

    def test_paths(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.get("/no-such-thing", cast_to=object)


if __name__ == "__main__":
    unittest.main()
