# SPDX-License-Identifier: Apache-2.0
"""A server with the demo model for a class of tests, and OpenAI's client for it."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import openai

from free_port import free_port

BIN = os.environ.get("MILLRACE_BIN", "build/release/bin/millrace")
DEMO = os.path.join(os.path.dirname(os.path.abspath(BIN)), "millrace-demo.gguf")
START_S, END_S, LIMIT_S = 120, 60, 600  # sanitizer builds on busy machines are slow
STORY = "Once upon a time"


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Case(unittest.TestCase):
    options = []

    @classmethod
    def make_model(cls):
        """The path of the model to serve; cls.folder is there."""
        return DEMO

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-api-")
        cls.port = free_port()
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
        env["MILLRACE_MEASURE"] = "off"
        cls.log = open(os.path.join(cls.folder, "log"), "w+b")
        cls.server = subprocess.Popen([BIN, "serve", cls.make_model(), "--port", str(cls.port), *cls.options], env=env,
                                      stdin=subprocess.DEVNULL, stdout=cls.log, stderr=cls.log)
        cls.url = f"http://127.0.0.1:{cls.port}"
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
        cls.addClassCleanup(cls.end)
        cls.wait_ready()

    @classmethod
    def wait_ready(cls):
        end = time.monotonic() + START_S
        while time.monotonic() < end and cls.server.poll() is None:
            try:
                with urllib.request.urlopen(cls.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:  # of which urllib's errors are: not listening yet, or 503
                pass
            time.sleep(0.05)
        cls.log.seek(0)
        raise AssertionError(f"the server is not ready: {cls.log.read().decode(errors='replace')}")

    @classmethod
    def end(cls):
        cls.server.send_signal(signal.SIGTERM)
        try:
            status = cls.server.wait(END_S)
        except subprocess.TimeoutExpired:
            cls.server.kill()
            status = cls.server.wait()
        cls.log.seek(0)
        text = cls.log.read().decode(errors="replace")
        cls.log.close()
        shutil.rmtree(cls.folder)
        if status != 0:
            raise AssertionError(f"the server ended with {status}: {text}")

    def post(self, path, body):
        """(status, object) of a request that the client has no function for. body: bytes, or what becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as answer:
            return answer.code, json.load(answer)

    def complete(self, prompt=STORY, **fields):
        return self.client.completions.create(model="demo", prompt=prompt, **{"max_tokens": 20, "seed": 7, **fields})

    def chat(self, text="Tell me a story.", **fields):
        return self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": text}], **{"max_tokens": 20, "seed": 7, **fields})
