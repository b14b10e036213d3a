# SPDX-License-Identifier: Apache-2.0
"""A round for every chat template: an answer with reasoning, content and tool calls is rendered as a part of a conversation. What
the template wrote for the answer is then parsed in one piece and byte by byte. All that the template wrote must come out again.
With arguments: these templates instead."""
import json
import os
import subprocess
import sys

import chat_templates
import test_packages

CITY = "Köln \"am\" Rhein, <b>"
ARGUMENTS = {"city": CITY, "days": 2, "exact": True, "points": [{"x": 1.5}, {"x": -3}]}
NUMBERS = {"type": "object", "properties": {"x": {"type": "number"}}}
PARAMETERS = {"type": "object", "required": ["city"], "properties": {
    "city": {"type": "string", "description": "where"}, "days": {"type": "integer", "description": "how many"},
    "exact": {"type": "boolean", "description": "yes or no"},
    "points": {"type": "array", "description": "some points", "items": NUMBERS}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "the " + name, "parameters": parameters}}
         for name, parameters in (("weather", PARAMETERS), ("now", {"type": "object", "properties": {}, "required": []}))]
WORD = "qJ7vOne"
# What stands behind answers with calls alone.
ENDS = ("<|eot_id|>", "<|eom_id|>", "<|tool_response>", "<|END_OF_TURN_TOKEN|>", "<｜hy_eos:opensource｜>", "<SPECIAL_12>\n\n",
        "<|calls|>", "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<｜end▁of▁sentence｜><｜Assistant｜><｜end▁of▁sentence｜>")
# The form of each template; "": the template shows the model no calls, or in a form that is not known.
FORMS = {
    "": "Bielik-11B-v3.0-Instruct CohereForAI-c4ai-command-r-plus-tool_use HuggingFaceTB-SmolLM3-3B "
        "google-gemma-2-2b-it llama-cpp-rwkv-world microsoft-Phi-3.5-mini-instruct",
    "apertus": "Apertus-8B-Instruct",
    "command-r": "Cohere2MoE CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "deepseek-r1": "deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B llama-cpp-deepseek-r1",
    "deepseek-v3.1": "deepseek-ai-DeepSeek-V3.1",
    "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4-Flash-0731 deepseek-ai-DeepSeek-V4",
    "functionary-3.1": "meetkai-functionary-medium-v3.1",
    "functionary-3.2": "meetkai-functionary-medium-v3.2",
    "functools": "fireworks-ai-llama-3-firefunction-v2",
    "gemma-4": "google-gemma-4-31B-it-interleaved google-gemma-4-31B-it",
    "gigachat": "GigaChat3.1-10B-A1.8B",
    "gigachat-3": "GigaChat3-10B-A1.8B",
    "glm": "GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1 "
           "poolside-Laguna-XS.2",
    "granite": "ibm-granite-granite-3.3-2B-Instruct",
    "harmony": "openai-gpt-oss-120b",
    "hermes": "MiMo-VL NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use NousResearch-Hermes-3-Llama-3.1-8B-tool_use "
              "Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Reka-Edge ibm-granite-granite-4.0 "
              "ibm-granite-granite-4.1",
    "hunyuan-3": "tencent-Hy3",
    "kimi-k2": "Kimi-K2-Instruct Kimi-K2-Thinking moonshotai-Kimi-K2",
    "kimi-k3": "Kimi-K3",
    "lfm2": "LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct",
    "llama-3": "meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct",
    "minicpm-5": "openbmb-MiniCPM5-1B",
    "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMax-M3",
    "mistral-args": "mistralai-Ministral-3-14B-Reasoning-2512 unsloth-mistral-Devstral-Small-2507",
    "mistral-id": "Mistral-Small-3.2-24B-Instruct-2506",
    "mistral-list": "mistralai-Mistral-Nemo-Instruct-2407",
    "muse": "muse-glimmer",
    "nemotron": "NVIDIA-Nemotron-Nano-v2",
    "qwen3-coder": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash",
    "seed": "ByteDance-Seed-OSS",
    "solar": "upstage-Solar-Open-100B",
    "tool-calls-tag": "Apriel-1.6-15b-Thinker-fixed MiniMax-M1 unsloth-Apriel-1.5",
}
ALL = ("call", "calls", "content", "thought", "answer")
# Answers that these write as several messages: the template takes one call in a message, or no content beside a call.
DIVIDED = {"GigaChat3": ("calls",), "Llama-3.": ("calls", "content"), "openai-gpt-oss": ("calls",), "Cohere2MoE": ("content",),
           "command-r7b": ("content",), "MiniMax-M1": ("content",), "Mistral-Small-3.2": ("content",),
           "Mistral-Nemo": ("content",), "Hermes-2-Pro": ("content",), "llama-cpp-deepseek-r1": ALL}
# These do not write answers where the model would.
MISPLACED = {"NVIDIA-Nemotron-Nano-v2": ("content", "thought", "answer"), "openai-gpt-oss-120b": ("content",),
             "Apriel-1.6-15b-Thinker-fixed": ("thought", "answer"), "command-r-plus": ALL,
             "R1-Distill": ("content",)}


def call(name, arguments, number):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


CALL, NOW, THOUGHT = call("weather", ARGUMENTS, 1), call("now", {}, 2), "hm, well"
THINKS = {"reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT}
MESSAGES = {"call": {"content": "", "tool_calls": [CALL]}, "calls": {"content": "", "tool_calls": [CALL, NOW]},
            "content": {"content": "I look.", "tool_calls": [CALL]}, "thought": {"content": "", **THINKS, "tool_calls": [CALL]},
            "answer": {"content": "It rains.", **THINKS}}


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended with status {self.process.wait()} at:\n{request}")
        return json.loads(line)


def split(program, source, message, thinks):
    """The prompt, and what the template wrote behind it for the answer; None where the template refuses the conversation."""
    user = {"role": "user", "content": "How is it?"}

    def render(messages, generation):
        return program(source=source, messages=messages, tools=TOOLS, variables={"enable_thinking": True} if thinks else {},
                       add_generation_prompt=generation).get("text")
    prompt, text = render([user], True), render([user, message], False)
    plain = render([user, {"role": "assistant", "content": WORD}], False)
    if prompt is None or text is None or plain is None:
        return None
    n = len(os.path.commonprefix([prompt, text]))
    mark = prompt.rfind("<", 0, n)
    if n < len(prompt) and mark >= 0 and ">" not in prompt[mark:n]:
        n = mark  # not inside of a mark
    text = text[n:]
    ends = sorted((e for e in (plain[plain.index(WORD) + len(WORD):], *ENDS) if e and text.endswith(e)), key=len)
    return prompt[:n], text[:-len(ends[-1])] if ends else text


def wanted(message, text):
    """The part of the message that is in the text."""
    calls = [c["function"] for c in message.get("tool_calls", []) if c["function"]["name"] in text and "Rhein" in text]
    return {"content": message["content"] if message["content"] in text else "",
            "reasoning": message.get("reasoning_content", "") if THOUGHT in text else "",
            "calls": [(c["name"], json.loads(c["arguments"])) for c in calls]}


def arguments_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def failure(program, source, name):
    message = {"role": "assistant", **MESSAGES[name]}
    parts = split(program, source, message, name in ("thought", "answer"))
    if parts is None:
        return "the template refuses the conversation"
    prompt, text = parts
    whole, bytewise = (program(source=source, prompt=prompt, answer=text, tools=TOOLS, piece=n) for n in (1 << 20, 1))
    if whole != bytewise:
        return f"in one piece {whole}, byte by byte {bytewise}"
    got = {"content": whole["content"].strip(), "reasoning": whole["reasoning"],
           "calls": [(c["name"], arguments_of(c["arguments"])) for c in whole["calls"]]}
    want = wanted(message, text)
    return None if got == want else f"{prompt[-60:]!r} {text!r}\n  gives {got}\n  not   {want}"


def main():
    program, n, n_failed = Program(os.environ["CHAT_ANSWERS"]), 0, 0
    templates = sys.argv[1:] or chat_templates.paths(os.environ["CHAT_ANSWERS"])
    if not templates:
        test_packages.skip("there are no templates in MILLRACE_TEST_VECTORS")
    for path in templates:
        name = os.path.basename(path)
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        form = program(source=source, prompt="", answer="", tools=TOOLS, piece=1)
        got = form["form"] if form["native"] else ""
        known = [f for f, names in FORMS.items() if name.removesuffix(".jinja") in names.split()]
        failures = [] if known in ([got], []) else [f"is of the form {known}"]
        left_out = [m for cases in (MISPLACED, DIVIDED) for word in cases if word in name for m in cases[word]]
        for case in MESSAGES:
            why = failure(program, source, case) if case not in left_out else None
            failures += [f"{case}: {why}"] if why else []
        n, n_failed = n + len(MESSAGES), n_failed + len(failures)
        for why in failures:
            print(f"FAILED {name} ({form['form']}) {why}")
    print(f"{n} answers of {len(templates)} templates, {n_failed} failures")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
