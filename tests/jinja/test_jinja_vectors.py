# SPDX-License-Identifier: Apache-2.0
"""Renders every chat template over a list of conversations, and the templates of cases.txt, by jinja2 as
the transformers library sets it up (but lists and dicts may be changed) and by coordinator/serving/jinja, and compares
the bytes. Where jinja2 raises, we fail too. With arguments: these templates instead."""
import datetime
import json
import os
import subprocess
import sys

import chat_templates
import test_packages

test_packages.enter("jinja2")
import jinja2  # noqa: E402
from jinja2.ext import Extension, loopcontrols  # noqa: E402
from jinja2.sandbox import SandboxedEnvironment  # noqa: E402

os.environ["TZ"] = "UTC"
NOW = 1767225600 + 86400 * 45  # a day in February 2026

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Wetter & <Vorhersage> für einen \"Ort\"",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name der Stadt, z. B. Köln", "enum": ["Köln", "Paris"]},
        "days": {"type": "integer", "description": "how many", "default": 3},
        "exact": {"type": "boolean"}, "where": {"type": ["string", "null"]},
        "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}}},
        "required": ["city"]}}}
PLAIN = {"type": "function", "function": {"name": "now", "description": "the time", "parameters": {
    "type": "object", "properties": {}, "required": []}}}


def call(name, arguments, number):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    """name, variables"""
    system = {"role": "system", "content": "  You are helpful.\n"}
    user = {"role": "user", "content": "Hällo <b>\"you\"</b> & 'me' 👋\n"}
    answer = {"role": "assistant", "content": " Hi!\n\nHow are you? "}
    arguments = {"city": "Köln", "days": 2, "exact": True, "where": None, "points": [{"x": 1.5}, {"x": -2e-7}]}
    objects = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", arguments, 1)]}
    strings = {"role": "assistant", "content": None,
               "tool_calls": [call("get_weather", json.dumps(arguments, ensure_ascii=False), 1)]}
    several = {"role": "assistant", "content": "Let me see.", "tool_calls": [
        call("get_weather", arguments, 1), call("now", {}, 2)]}
    result = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"rain": 0.5}'}
    second = {"role": "tool", "tool_call_id": "call00002", "name": "now", "content": "12:00"}
    thought = {"role": "assistant", "content": "<think>\nhm, well\n</think>\n\nYes.", "reasoning_content": "hm, well"}
    parts = {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second\n"}]}
    picture = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
    tools = [WEATHER, PLAIN]
    cases = {
        "user": [user], "system": [system, user], "turns": [system, user, answer, user, answer, user],
        "answered": [user, answer], "two users": [user, user], "assistant first": [answer, user], "empty": [],
        "thought": [user, thought, user, thought], "parts": [system, parts], "picture": [picture],
        "part answers": [user, {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}, user],
        "system parts": [{"role": "system", "content": [{"type": "text", "text": "be kind"}]}, user],
        "developer": [{"role": "developer", "content": "Be brief."}, user], "unknown role": [{"role": "x", "content": "y"}],
        "null content": [user, {"role": "assistant", "content": None}, user],
    }
    with_tools = {
        "tools": [user], "tools system": [system, user], "call objects": [user, objects], "call strings": [user, strings],
        "result": [system, user, objects, result], "result strings": [user, strings, result],
        "after": [system, user, objects, result, answer, user], "several": [user, several, result, second],
        "several after": [user, several, result, second, answer, user, objects, result],
        "tools turns": [system, user, answer, user],
    }
    extras = {"": {}, "thinking": {"enable_thinking": True, "thinking": True},
              "no thinking": {"enable_thinking": False, "thinking": False, "reasoning_effort": "high"},
              "documents": {"documents": [{"title": "T", "text": "D", "doc_id": 1}], "builtin_tools": ["wolfram"],
                            "date_string": "3 Feb 2026"}}
    for prompt in (True, False):
        for extra_name, extra in extras.items() if prompt else [("", {})]:
            for name, messages in {**cases, **with_tools}.items():
                variables = {"messages": messages, "add_generation_prompt": prompt, "bos_token": "<s>",
                             "eos_token": "</s>", **extra}
                if name in with_tools:
                    variables["tools"] = tools
                elif extra_name == "thinking":
                    variables["tools"] = None
                yield f"{name}/{extra_name}/{prompt}", variables


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(text):
        return datetime.datetime.fromtimestamp(NOW).strftime(text)

    env.parsed = {}
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def reference(env, source, variables):
    try:
        if source not in env.parsed:
            env.parsed[source] = env.from_string(source)
        return {"text": env.parsed[source].render(**json.loads(json.dumps(variables)))}
    except Exception as error:  # any exception of Python counts
        return {"error": f"{type(error).__name__}: {error}"}


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, source, variables):
        line = json.dumps({"source": source, "variables": variables, "now": NOW}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args[0]} ended with status {self.process.wait()} at:\n{source}")
        return json.loads(answer)


def same(name, want, got):
    if ("error" in want) == ("error" in got) and want.get("text") == got.get("text"):
        return True
    print(f"FAILED {name}")
    if "text" in want and "text" in got:
        a, b = want["text"], got["text"]
        at = next((i for i, (c, d) in enumerate(zip(a, b)) if c != d), min(len(a), len(b)))
        print(f"  at {at}\n  want …{a[max(0, at - 60):at + 60]!r}\n  got  …{b[max(0, at - 60):at + 60]!r}")
    else:
        print(f"  want {str(want)[:300]}\n  got  {str(got)[:300]}")
    return False


def main():
    ours, env, n, n_failed, n_raised = Ours(os.environ["JINJA_RENDER"]), environment(), 0, 0, 0
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "cases.txt"), encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    variables = {"s": "  Häl<lo>, 'wörld'\n", "l": [3, 1, 2], "d": {"b": 1, "a": [True, None, 2.5], "items": "own"}, "n": 7, "f": -2.5,
                 "h": {"a": 2**64 - 1, "b": -10**40},
                 "e": "", "u": [{"name": "Bo", "age": 3}, {"name": "al", "age": 7}, {"name": "Cy"}]}
    for line in lines:
        if line and not line.startswith("##"):
            source = line.replace("⏎", "\n")
            want = reference(env, source, variables)
            n, n_raised = n + 1, n_raised + ("error" in want)
            n_failed += not same(line, want, ours(source, variables))
    paths = sys.argv[1:] or chat_templates.paths(os.environ["JINJA_RENDER"])
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        for name, conversation in conversations():
            want = reference(env, source, conversation)
            n, n_raised = n + 1, n_raised + ("error" in want)
            n_failed += not same(f"{os.path.basename(path)} {name}", want, ours(source, conversation))
    print(f"{n} renderings, {len(paths)} templates, {n_raised} that raise, {n_failed} differ")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
