# SPDX-License-Identifier: Apache-2.0
"""Makes the tests of llama.cpp's server run millrace serve with the demo model: a plugin for pytest, in place of their conftest.
MILLRACE_BIN is the program, MILLRACE_EXPECTED_FAILURES the list of those that cannot pass."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import types

import pytest

sys.modules["wget"] = types.ModuleType("wget")  # theirs, for downloads of models
import utils  # noqa: E402
from free_port import free_port  # noqa: E402
from openai_case import DEMO, END_S, START_S  # noqa: E402

BIN = os.environ["MILLRACE_BIN"]

# What changes how their server computes, or which model it takes, and not what it answers.
WITHOUT_MEANING = {
    "backend_sampling", "cache_prompt", "ctk", "ctv", "debug", "external_server", "folder", "fa", "jinja", "kv_unified", "model_file",
    "model_hf_file", "model_hf_repo", "n_batch", "n_gpu_layer", "n_prompts", "n_threads", "n_ubatch", "offline", "process",
    "ready", "seed", "server_continuous_batching", "server_embeddings", "server_metrics", "server_port", "server_slots",
    "swa_full",
}
MAPPED = {"api_key", "chat_template", "chat_template_file", "cors_origins", "model_alias", "n_ctx", "n_predict", "n_slots",
          "pooling", "server_host", "temperature"}

# Words of the model of their tests, where any text of the demo model will do.
STORY = {"(going|bed)+", "(princesses|everyone|kids|Anna|forest)+", "But she couldn't", '(Suddenly)+|\\{ " Sarax.', "(Suddenly)+",
         "(Aside|she|felter|alonger)+", "Whillicter", "^ blue", "(little|girl)+",
         "Sure, here's one for[\\s\\S]*|Sure! Here's one for you[\\s\\S]*"}


def options_of(server, folder):
    for name, value in vars(server).items():
        if name not in WITHOUT_MEANING | MAPPED and (name, value) != ("reasoning", "auto") and value != getattr(utils.ServerProcess, name, None):
            raise RuntimeError(f"millrace serve has no option for {name} = {value!r}")
    yield from ("--host", server.server_host, "--temp", str(server.temperature))
    yield from ("--alias", server.model_alias or "default")
    if server.n_ctx:  # of all sequences, where theirs have a share each
        yield from ("--ctx", str(min(512, server.n_ctx if server.kv_unified else server.n_ctx // (server.n_slots or 1))))
    if server.n_slots:
        yield from ("--sequences", str(server.n_slots))
    if server.api_key:
        yield from ("--api-key", server.api_key)
    if server.cors_origins:
        yield from ("--cors-origin", server.cors_origins)
    template = server.chat_template_file
    if server.chat_template:
        template = os.path.join(folder, "template.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write(server.chat_template)
    if template:
        yield from ("--chat-template-file", template)


def wait_ready(server):
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if server.make_request("GET", "/health").status_code == 200:
                return
        except utils.requests.exceptions.RequestException:
            pass  # it does not listen yet
        time.sleep(0.02)
    raise RuntimeError("the server is not ready")


def start(server, timeout_seconds=None):
    del timeout_seconds
    server.folder = tempfile.TemporaryDirectory(prefix="millrace-llama-")
    options = list(options_of(server, server.folder.name))
    server.server_port = free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    env["MILLRACE_MEASURE"] = "off"
    server.process = subprocess.Popen([BIN, "serve", DEMO, "--port", str(server.server_port), *options], env=env,
                                      stdin=subprocess.DEVNULL)
    try:
        wait_ready(server)
    except RuntimeError:
        server.process.kill()
        server.process.wait()
        raise
    utils.server_instances.add(server)


def stop(server):
    utils.server_instances.discard(server)
    server.process.send_signal(signal.SIGTERM)
    try:
        status = server.process.wait(END_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        status = server.process.wait()
    server.process = None
    server.folder.cleanup()
    assert status == 0, f"the server ended with {status}"


def match_regex(regex, text):
    """Theirs, but for what their model says."""
    return bool(text.strip()) if regex in STORY else their_match_regex(regex, text)


utils.ServerProcess.start = start
utils.ServerProcess.stop = stop
their_match_regex, utils.match_regex = utils.match_regex, match_regex


@pytest.fixture(autouse=True)
def stop_servers():
    yield
    for server in list(utils.server_instances):
        stop(server)


class Expected:
    """The list of failures, which says at its top what its lines are."""

    def __init__(self, path):
        self.reasons, reason = {}, None  # in the order of the file: name, or beginning with a * behind it
        with open(path, encoding="utf-8") as f:
            for line in f.read().partition("\n\n")[2].splitlines():
                if line.startswith("# "):
                    reason = line[2:]
                elif line:
                    assert line not in self.reasons, line
                    self.reasons[line] = reason
        self.used = set()

    def reason(self, name):
        for line, reason in self.reasons.items():
            if line in (name, name.split("[")[0]) or (line.endswith("*") and name.startswith(line[:-1])):
                self.used.add(line)
                return reason
        return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    expected, modules = Expected(os.environ["MILLRACE_EXPECTED_FAILURES"]), set()
    for item in items:
        name = item.nodeid.removeprefix("unit/")
        modules.add(name.split("::")[0])
        reason = expected.reason(name)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    unknown = [line for line in set(expected.reasons) - expected.used if line.split("::")[0] in modules]
    if unknown:
        raise pytest.UsageError("tests that are expected to fail are not there: " + ", ".join(sorted(unknown)))
