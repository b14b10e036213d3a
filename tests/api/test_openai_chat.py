# SPDX-License-Identifier: Apache-2.0
"""Chats: plain, streamed, with log-probabilities and with tools."""
import json
import unittest

import test_packages

test_packages.enter("openai")

from openai_case import Case  # noqa: E402

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "stop_mill", "parameters": {
        "type": "object", "properties": {"now": {"type": "boolean"}}, "required": ["now"],
        "additionalProperties": False}}},
]


class Chat(Case):
    options = ["--ctx", "2048"]  # the words that tell the demo model about tools are long in its tokens

    def test_plain_and_streamed(self):
        whole = self.chat()
        message = whole.choices[0].message
        self.assertEqual((whole.object, message.role), ("chat.completion", "assistant"))
        self.assertGreater(len(message.content), 10)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_choices(self):
        whole = self.chat(n=3, temperature=1)
        texts = ["", "", ""]
        for chunk in self.chat(n=3, temperature=1, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(texts, [c.message.content for c in whole.choices])
        self.assertEqual(len(set(texts)), 3)

    def test_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=2, temperature=0, max_tokens=5).choices[0]
        self.assertEqual(len(choice.logprobs.content), 5)
        for entry in choice.logprobs.content:
            self.assertEqual(entry.top_logprobs[0].logprob, entry.logprob)
            self.assertEqual(bytes(entry.bytes).decode(errors="replace"), entry.token)
            self.assertEqual(len(entry.top_logprobs), 2)

    def test_template(self):
        messages = [{"role": "user", "content": "The mill"}]
        status, answer = self.post("/apply-template", {"messages": messages})
        self.assertEqual(status, 200)
        self.assertIn("The mill", answer["prompt"])
        chat = self.chat("The mill", temperature=0).choices[0].message.content
        self.assertEqual(self.complete(answer["prompt"], temperature=0).choices[0].text.strip(), chat.strip())

    def check_call(self, call, names):
        self.assertIn(call.function.name, names)
        self.assertTrue(call.id)
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            self.assertIn(arguments["city"], ("Bern", "Oslo"))
            self.assertIn(arguments["days"], (1, 2))
        else:
            self.assertIn(arguments["now"], (True, False))

    def test_tools(self):
        for choice, names in (("required", ("weather", "stop_mill")),
                              ({"type": "function", "function": {"name": "stop_mill"}}, ("stop_mill",))):
            answer = self.chat(tools=TOOLS, tool_choice=choice, temperature=1, max_tokens=200,
                               parallel_tool_calls=False).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertEqual(len(answer.message.tool_calls), 1)
            self.check_call(answer.message.tool_calls[0], names)

    def test_a_cut_call_is_no_content(self):
        """max_tokens ends the answer in the head of a call, in its arguments, or between two calls."""
        for choice in "required", {"type": "function", "function": {"name": "stop_mill"}}:
            for max_tokens in 1, 2, 3, 5, 8, 13, 21, 34, 55:
                fields = {"tools": TOOLS, "tool_choice": choice, "temperature": 1, "max_tokens": max_tokens, "n": 2}
                for one in self.chat(**fields).choices:
                    self.assertIsNone(one.message.content)
                    if not one.message.tool_calls:
                        self.assertEqual(one.finish_reason, "length")
                for chunk in self.chat(stream=True, **fields):
                    self.assertIsNone(chunk.choices[0].delta.content)

    def test_named_tool_is_called_once(self):
        for seed in range(20):
            fields = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "seed": seed}
            choice = self.chat(temperature=0.7, max_tokens=400, **fields).choices[0]
            self.assertEqual([c.function.name for c in choice.message.tool_calls], ["weather"])
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.check_call(choice.message.tool_calls[0], ["weather"])

    def test_tools_streamed(self):
        fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 1, "max_tokens": 200}
        whole = self.chat(**fields).choices[0].message
        with self.client.chat.completions.stream(
                model="demo", messages=[{"role": "user", "content": "Tell me a story."}], seed=7, **fields) as stream:
            for _ in stream:
                pass
            last = stream.get_final_completion().choices[0]
        self.assertEqual(last.finish_reason, "tool_calls")
        self.assertEqual([(c.function.name, c.function.arguments) for c in last.message.tool_calls],
                         [(c.function.name, c.function.arguments) for c in whole.tool_calls])

    def test_conversation_with_results(self):
        messages = [{"role": "system", "content": "You mill."}, {"role": "user", "content": "Weather?"},
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": "call_1", "type": "function",
                         "function": {"name": "weather", "arguments": '{"city": "Bern", "days": 1}'}}]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
        answer = self.client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, max_tokens=5)
        self.assertEqual(answer.usage.completion_tokens, 5)


if __name__ == "__main__":
    unittest.main()
