# SPDX-License-Identifier: Apache-2.0
"""Every chat template over 30 conversations as clients send them. Each prompt has every text of its conversation, or the
conversation is refused with the index of a message; and no conversation is refused that Python's Jinja2 renders whole.
Prints a table: a letter for each conversation. With arguments: these templates instead."""
import copy
import json
import os
import re
import sys

import chat_templates
import test_jinja_vectors
import test_packages
from test_chat_answers import Program

LONG, THOUGHT = 18446744073709551615, "THINKa first"
SCHEMA = {"type": "object", "properties": {"town": {"type": "string", "description": "D"}, "id": {"type": "integer"}}}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "description": "Tells.", "parameters": SCHEMA, **more}}


TOOLS = [tool("weather"), tool("clock", parameters={"type": "object", "properties": {}})]
NULLS = [tool("weather", description=None, strict=None), {"type": "function", "function": {"name": "clock", "parameters": None}},
         tool("other", parameters={**SCHEMA, "required": None, "description": None,
                                   "properties": {"limit": {"type": "integer", "maximum": LONG, "enum": None}}})]


def say(role, text, **more):
    return {"role": role, "content": text, **more}


def call(arguments=None, number=1, name="weather", **more):
    function = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return {"id": f"call{number:05d}", "type": "function", "function": function, **more}


def called(*calls, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(text, number=1, **more):
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "content": text, **more}


def conversations():
    """Name, messages, tools, and the texts that have to be in the prompt."""
    user, more = say("user", "USERa asks"), say("user", "USERb asks")
    system, answer, nulls = say("system", "SYSa be kind"), say("assistant", "ANSWERa said"), {"function_call": None, "refusal": None}
    town = call('{"town": "PARISa"}')
    base = [user, called(town), result("RESa sun")]
    two = called(town, call('{"town": "ROMEb"}', 2))
    said = ("USERa asks", "weather", "PARISa", "RESa sun")
    both = (*said, "ROMEb", "RESb rain")

    def history(arguments, *texts, name="clock"):
        return [user, called({**call(name=name), "function": {"name": name, **arguments}}), result("RESa sun")], TOOLS, ("USERa asks", name, "RESa sun", *texts)
    return {
        "system": ([system, user], None, ("SYSa be kind", "USERa asks")),
        "turns": ([system, user, answer, more], None, ("SYSa be kind", "USERa asks", "ANSWERa said", "USERb asks")),
        "parts": ([say("user", [{"type": "text", "text": "USERa asks"}, {"type": "text", "text": "USERc more"}])], None, ("USERa asks", "USERc more")),
        "developer": ([say("developer", "DEVa be brief"), user], None, ("DEVa be brief", "USERa asks")),
        "developer last": ([user, answer, say("developer", "DEVa be brief")], None, ("USERa asks", "ANSWERa said", "DEVa be brief")),
        "developer, system": ([say("developer", "DEVa be brief"), system, user], None, ("DEVa be brief", "SYSa be kind", "USERa asks")),
        "two systems": ([system, say("system", "SYSb be brief"), user], None, ("SYSa be kind", "SYSb be brief", "USERa asks")),
        "system later": ([system, user, answer, say("system", "SYSb be brief"), more], None, ("SYSa be kind", "USERa asks", "ANSWERa said", "SYSb be brief", "USERb asks")),
        "system last": ([user, answer, more, system], TOOLS, ("USERa asks", "ANSWERa said", "USERb asks", "SYSa be kind")),
        "two users": ([user, more, answer, more], None, ("USERa asks", "USERb asks", "ANSWERa said")),
        "empty calls": ([user, {**answer, "tool_calls": []}, more], TOOLS, ("USERa asks", "ANSWERa said", "USERb asks")),
        "model_dump": ([user, {**answer, "tool_calls": None, "audio": None, "annotations": None, "reasoning": None, **nulls}, more,
                        called(town, name=None, **nulls), result("RESa sun", name=None)], NULLS, (*said, "ANSWERa said", "USERb asks")),
        "call": (base, TOOLS, said),
        "call of an object": ([user, called(call({"town": "PARISa", "id": 7})), result("RESa sun")], TOOLS, said),
        "no arguments": history({}),
        "empty arguments": history({"arguments": ""}),
        "null arguments": history({"arguments": None}),
        "text null": history({"arguments": "null"}),
        "cut arguments": history({"arguments": '{"town": "PARISa", "id": 75, "more": ["OSL'}, "PARISa", "75", "OSL", name="weather"),
        "no object": history({"arguments": '["LISTa"]'}, "LISTa", name="weather"),
        "20 digits": history({"arguments": json.dumps({"town": "PARISa", "id": LONG})}, "PARISa", str(LONG), name="weather"),
        "signs": ([user, called(call(json.dumps({"town": "Köln & <b> \"quoted\"\nit's"}, ensure_ascii=False))), result("{\"RESa\": \"sun\"}\n<i> it's 'so'")], TOOLS,
                  ("USERa asks", "weather", "Köln", "RESa")),
        "two calls": ([user, two, result("RESa sun"), result("RESb rain", 2)], TOOLS, both),
        "results swapped": ([user, two, result("RESb rain", 2), result("RESa sun"), say("assistant", "ANSWERa said"), more], TOOLS, (*both, "ANSWERa said", "USERb asks")),
        "content and call": ([user, called(town, content="ANSWERc looks"), result("RESa sun"), say("assistant", "ANSWERa said"), more, called(town), result("RESb rain")], TOOLS,
                             (*said, "ANSWERc looks", "ANSWERa said", "USERb asks", "RESb rain")),
        "reasoning": ([user, called(town, reasoning=THOUGHT), result("RESa sun")], TOOLS, (*said, THOUGHT)),
        "reasoning_content": ([user, called(town, reasoning_content=THOUGHT), result("RESa sun")], TOOLS, (*said, THOUGHT)),
        "thinking part": ([user, called(town, content=[{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]), result("RESa sun")], TOOLS, (*said, THOUGHT)),
        "other ids": ([user, called({**town, "id": "call_Zl9bQ-2r7kWv0pLx4TqT"}), result("RESa sun", tool_call_id="call_Zl9bQ-2r7kWv0pLx4TqT"), more], TOOLS, (*said, "USERb asks")),
        "no tools": ([*base, say("assistant", "ANSWERa said"), more], None, (*said, "ANSWERa said", "USERb asks")),
    }


def variables(messages, tools, as_objects):
    """What Python gives to the template: the arguments of calls as they are, or as objects where these are texts of objects."""
    messages = copy.deepcopy(messages)
    for function in (c["function"] for m in messages for c in m.get("tool_calls") or [] if as_objects):
        try:
            function["arguments"] = json.loads(function.get("arguments", "{}"))
        except (TypeError, ValueError):
            pass
    found = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    return {**found, "tools": tools} if tools else found


def lost(text, words):
    return [w for w in words if w not in text and json.dumps(w)[1:-1] not in text]


def renders_whole(env, source, messages, tools, words):
    """Whether Python does, without printing a list of parts as a text."""
    texts = [test_jinja_vectors.reference(env, source, variables(messages, tools, o)).get("text", "") for o in (False, True)]
    return any(not lost(t, words) and "type': 'thinking" not in t and 'type": "thinking' not in t for t in texts)


def main():
    program, env, table, failures = Program(os.environ["CHAT_ANSWERS"]), test_jinja_vectors.environment(), [], []
    cases, templates = conversations(), sys.argv[1:] or chat_templates.paths(os.environ["CHAT_ANSWERS"])
    if not templates:
        test_packages.skip("there are no templates in MILLRACE_TEST_VECTORS")
    for path in templates:
        name, row = os.path.basename(path).removesuffix(".jinja"), ""
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        for case, (messages, tools, words) in cases.items():
            got = program(source=source, messages=messages, tools=tools, add_generation_prompt=True)
            wholes = renders_whole(env, source, messages, tools, words)
            missing = lost(got.get("text", ""), words)
            if "text" in got and missing == [THOUGHT] and not wholes:
                row += "t"
            elif "text" in got:
                row += "x" if missing else "."
                failures += [f"{name}, {case}: lost {missing}: {got['text'][-300:]!r}"] if missing else []
            else:
                good = re.search(r"messages\[\d+\]", got["error"]) and not wholes
                row += "r" if good else "X"
                failures += [] if good else [f"{name}, {case}: {got['error'][:200]}{', but Python renders it whole' if wholes else ''}"]
        table.append(f"{row}  {name}")
    print(*(f"{'|' * i}+{'-' * (len(cases) - i - 1)} {case}" for i, case in enumerate(cases)), *table, *failures, sep="\n")
    print(f"{len(templates)} templates, {len(cases)} conversations, {len(failures)} failures; .: whole, r: refused with an index, t: the template has no reasoning, x: lost, X: another error")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
