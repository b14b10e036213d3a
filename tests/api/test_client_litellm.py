# SPDX-License-Identifier: Apache-2.0
"""The server as litellm and instructor drive it: completions, streams, errors by their classes, answers as pydantic models."""
import os
import unittest
from typing import Annotated

import test_packages

test_packages.enter_client("litellm")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import downloads a list of prices

import instructor  # noqa: E402
import litellm  # noqa: E402
from openai_case import STORY, Case  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402


class Miller(BaseModel):
    """Somebody who lives at the mill."""
    name: Annotated[str, Field(min_length=1, max_length=8)]
    age: Annotated[int, Field(ge=0, le=99)]


class Litellm(Case):
    options = ["--ctx", "512", "-t", "1"]

    def ask(self, text="Tell me a story.", **fields):
        return litellm.completion(model="openai/demo", messages=[{"role": "user", "content": text}], api_base=self.url + "/v1",
                                  api_key="none", seed=7, max_tokens=20, num_retries=0, **fields)

    def test_completion(self):
        wanted = self.chat()
        found = self.ask()
        self.assertEqual(found.choices[0].message.content, wanted.choices[0].message.content)
        self.assertEqual(found.choices[0].finish_reason, "length")
        self.assertEqual(found.usage.completion_tokens, 20)
        self.assertEqual(found.usage.prompt_tokens, wanted.usage.prompt_tokens)

    def test_stream(self):
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                         self.chat().choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)

    def test_text_completion(self):
        found = litellm.text_completion(model="text-completion-openai/demo", prompt=STORY, api_base=self.url + "/v1", api_key="none",
                                        seed=7, max_tokens=20)
        self.assertEqual(found.choices[0].text, self.complete().choices[0].text)

    def test_long_prompt(self):
        for stream in False, True:
            with self.subTest(stream=stream), self.assertRaisesRegex(litellm.ContextWindowExceededError, "512"):
                self.ask("word " * 1000, stream=stream)

    def test_bad_request(self):
        with self.assertRaises(litellm.BadRequestError) as raised:
            self.ask(temperature=-1)
        self.assertNotIsInstance(raised.exception, litellm.ContextWindowExceededError)


class Instructor(Case):
    options = ["--ctx", "2048", "-t", "1"]

    def test_models(self):
        for mode in instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA:
            client = instructor.from_openai(self.client, mode=mode)
            for seed in range(3):
                with self.subTest(mode=mode, seed=seed):
                    found, answer = client.chat.completions.create_with_completion(
                        model="demo", response_model=Miller, max_retries=0, seed=seed, temperature=1,
                        messages=[{"role": "user", "content": "Who is the miller?"}])
                    self.assertIsInstance(found, Miller)
                    self.assertGreater(answer.usage.completion_tokens, 0)


if __name__ == "__main__":
    unittest.main()
