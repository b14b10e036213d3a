# SPDX-License-Identifier: Apache-2.0
"""The server as agents of pydantic-ai drive it: a tool that is called, and an answer of a type, as a tool and as a schema."""
import unittest
from typing import Annotated

import test_packages

test_packages.enter_client("pydantic_ai")

from openai_case import Case  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402
from pydantic_ai import Agent, NativeOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402


class Stock(BaseModel):
    ready: bool
    sacks: Annotated[int, Field(ge=0, le=99)]


class Agents(Case):
    options = ["--ctx", "2048", "-t", "1"]

    def agent(self, output):
        provider = OpenAIProvider(base_url=self.url + "/v1", api_key="none")
        return Agent(OpenAIChatModel("demo", provider=provider), output_type=output, retries=0)

    def test_tool(self):
        """The demo model chooses between the tool and the answer, and likes "find"; the tool is there until it was called."""
        called = []
        agent = self.agent(Stock)

        async def until_called(_, tool):
            return None if called else tool

        @agent.tool_plain(prepare=until_called)
        def find_sacks(mill: Annotated[int, Field(ge=0, le=9)]) -> str:
            """Counts the sacks of a mill."""
            called.append(mill)
            return "three sacks"

        for seed in range(20):
            found = agent.run_sync("How many sacks?", model_settings={
                "seed": seed, "temperature": 1.0, "parallel_tool_calls": False})
            self.assertIsInstance(found.output, Stock)
            if called:
                break
        self.assertEqual(len(called), 1)
        self.assertIn(called[0], range(10))
        parts = [part.part_kind for message in found.all_messages() for part in message.parts]
        self.assertIn("tool-return", parts)
        self.assertEqual(found.usage.requests, 2)

    def test_native_output(self):
        found = self.agent(NativeOutput(Stock)).run_sync("How many sacks?", model_settings={"seed": 1, "temperature": 1.0})
        self.assertIsInstance(found.output, Stock)


if __name__ == "__main__":
    unittest.main()
