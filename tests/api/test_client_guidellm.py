# SPDX-License-Identifier: Apache-2.0
"""The server under guidellm, which measures servers: streams with the usage in each chunk, plain answers, text completions.
guidellm counts what the server counts. Its group takes 4.6 GB, so only a long check has it."""
import json
import os
import subprocess
import unittest

import test_packages

test_packages.enter("openai")
GUIDELLM = os.path.join(os.path.dirname(test_packages.client("guidellm")), "guidellm")

from openai_case import LIMIT_S, Case  # noqa: E402

N_REQUESTS, MAX_TOKENS = 8, 20


class Guidellm(Case):
    options = ["--ctx", "512", "-t", "1"]

    def measure(self, path, is_stream):
        """Runs guidellm; each request is answered as it would be without guidellm, and counted as the server counts."""
        data, report = os.path.join(self.folder, "prompts.jsonl"), os.path.join(self.folder, "report.json")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": f"Story number {i} of the mill"}) + "\n" for i in range(N_REQUESTS))
        backend = {"kind": "openai_http", "target": self.url, "request_format": path, "stream": is_stream,
                   "max_tokens": MAX_TOKENS, "extras": {"body": {"seed": 7}}}
        env = {k: v for k, v in os.environ.items() if not k.startswith(("GUIDELLM_", "MILLRACE_", "PYTHON"))}
        env["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(
            [GUIDELLM, "run", "--backend", json.dumps(backend), "--profile", "kind=concurrent,streams=3",
             "--constraint", f"kind=max_requests,count={N_REQUESTS}", "--data", f"kind=json_file,path={data}",
             "--output", f"kind=json,path={report}", "--disable-progress"],
            env=env, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(report, encoding="utf-8") as f:
            (benchmark,) = json.load(f)["benchmarks"]
        requests = benchmark["requests"]
        self.assertEqual((len(requests["successful"]), requests["errored"], requests["incomplete"]), (N_REQUESTS, [], []),
                         done.stdout + done.stderr)
        for found in requests["successful"]:
            body = json.loads(found["request_args"])["body"]
            self.assertEqual(body.get("stream", False), is_stream)
            status, wanted = self.post(path, {**body, "stream": False, "stream_options": None})
            self.assertEqual(status, 200, wanted)
            choice = wanted["choices"][0]
            self.assertEqual(found["output"], choice["text"] if "text" in choice else choice["message"]["content"])
            self.assertEqual((found["prompt_tokens"], found["output_tokens"]),
                             (wanted["usage"]["prompt_tokens"], wanted["usage"]["completion_tokens"]))
            self.assertEqual(found["output_tokens"], MAX_TOKENS)

    def test_chat(self):
        self.measure("/v1/chat/completions", is_stream=True)
        self.measure("/v1/chat/completions", is_stream=False)

    def test_text(self):
        self.measure("/v1/completions", is_stream=True)


if __name__ == "__main__":
    unittest.main()
