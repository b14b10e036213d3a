# SPDX-License-Identifier: Apache-2.0
"""Prompts of real templates, as /apply-template shows them, beside what jinja2 makes of the same conversation: byte for byte,
with what the model's own use gives the template (the date, tools, and whether to think) and with what a client says instead."""
import datetime
import glob
import json
import os
import sys
import unittest

import test_packages

test_packages.enter("openai", "jinja2")

from jinja2.sandbox import SandboxedEnvironment  # noqa: E402
from openai_case import Case  # noqa: E402

FOLDER = os.path.join(os.environ.get("MILLRACE_TEST_VECTORS", ""), "templates")
USER = [{"role": "user", "content": "Wie geht's, \"Müller\"?"}]
TURNS = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "Gut."}, *USER]


def environment():
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, indent=None, **_: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    return env


class Template(Case):
    source, given = "", {}  # given: what the template is to get besides messages
    also = [{}]             # what a client may say

    @classmethod
    def setUpClass(cls):
        path = glob.glob(os.path.join(FOLDER, cls.source))
        if not path:
            raise unittest.SkipTest(f"there is no template {cls.source}")
        cls.options = ["--chat-template-file", path[0], "--ctx", "512", "-t", "1"]
        with open(path[0], encoding="utf-8", newline="") as file:
            cls.template = environment().from_string(file.read())
        super().setUpClass()

    def rendered(self, messages, kwargs):
        today = datetime.datetime.now().strftime("%d %b %Y")
        given = {k: today if v == "today" else v for k, v in self.given.items()}
        return self.template.render(messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>",
                                    **{**given, **kwargs})

    def test_prompts(self):
        for messages in (USER, TURNS):
            for kwargs in self.also:
                before = self.rendered(messages, kwargs)
                status, answer = self.post("/apply-template", {"messages": messages, "chat_template_kwargs": kwargs})
                self.assertEqual(status, 200, answer)
                self.assertIn(answer["prompt"], (before, self.rendered(messages, kwargs)))  # midnight may pass


THINKING = [{}, {"enable_thinking": True}, {"enable_thinking": False}]


class Qwq(Template):
    source, given, also = "Qwen-QwQ-32B.jinja", {"enable_thinking": True}, THINKING

    def test_thinks(self):
        _, answer = self.post("/apply-template", {"messages": USER})
        self.assertTrue(answer["prompt"].endswith("<think>\n"), answer["prompt"])


class Distill(Template):
    source, given, also = "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", {"enable_thinking": True}, THINKING


class CommandR(Template):
    source, given, also = "CohereForAI-c4ai-command-r7b*.jinja", {"enable_thinking": True}, THINKING


class Glm(Template):
    source, also = "GLM-4.6.jinja", THINKING


class Gemma(Template):
    source, also = "google-gemma-4-31B*.jinja", THINKING


class Llama(Template):
    source, given = "meta-llama-Llama-3.3-70B-Instruct.jinja", {"date_string": "today"}
    also = [{}, {"date_string": "1 Apr 2026"}]

    def test_today(self):
        _, answer = self.post("/apply-template", {"messages": USER})
        self.assertNotIn("2024", answer["prompt"])


del Template  # so that it is not run by itself
if __name__ == "__main__":
    if not os.path.isdir(FOLDER):
        test_packages.skip("there are no templates in MILLRACE_TEST_VECTORS")
    unittest.main(argv=sys.argv)
