# SPDX-License-Identifier: Apache-2.0
"""`millrace serve` as users run it: what it tells of itself, options, loading, draining, answers from the demo model, many
clients at once, and that the examples of the README work as they are written."""
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import crowd
from probe import LIMIT_S, Server, error_code, read_all, read_until, until

SOURCE = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BIN = os.path.abspath(os.environ.get("MILLRACE_BIN", "build/release/bin/millrace"))
DEMO = os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")
JSON = {"Content-Type": "application/json"}


class Serve(Server):
    """millrace serve MODEL at a free port; it says where on standard error."""

    def __init__(self, *args, model="--demo", ready=True, env=None, wait=True):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
        command = [BIN, "serve", model, "--measure", "off", *args]
        command += [] if "--unix-socket" in args else ["--port", "0"]
        self.lines = []
        self.run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**clean, **(env or {})})
        self.reader = threading.Thread(target=self.read_lines)
        self.reader.start()
        self.url = self.port = self.path = None
        if wait:
            self.url = self.said("listening at ")
            self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else None
            self.path = self.url[5:] if self.url.startswith("unix:") else None
            if ready:
                self.said("ready at ")

    def read_lines(self):
        for line in self.run.stderr:
            self.lines.append(line.decode())

    def said(self, mark):
        def found():
            for line in list(self.lines):
                if mark in line:
                    text = json.loads(line)["text"] if line.startswith("{") else line
                    return text.split(mark)[1].strip()
            if self.run.poll() is not None:
                raise AssertionError("".join(self.lines))
            return None
        return until(found)

    def end(self, number=signal.SIGTERM):
        if number:
            self.run.send_signal(number)
        status = self.run.wait(LIMIT_S)
        self.reader.join()
        self.run.stdout.close()
        self.run.stderr.close()
        return status, "".join(self.lines)

    def __exit__(self, *_):
        if self.run.poll() is None:
            self.run.kill()
        self.end(None)

    def json(self, path, body=None, headers=None):
        """(status, object) of a GET, or of a POST of body."""
        data = json.dumps(body) if body is not None else None
        status, _, answer = self.ask("POST" if body is not None else "GET", path, data, {**JSON, **(headers or {})})
        return status, json.loads(answer)

    def complete(self, prompt="Once upon a time", **fields):
        status, answer = self.json("/v1/completions", {"prompt": prompt, **fields})
        if status != 200:
            raise AssertionError(answer)
        return answer


def events(data):
    return [json.loads(e[6:]) for e in data.decode().split("\n\n") if e.startswith("data: {")]


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Tells(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve("--stages", "3", "--alias", "fables")

    @classmethod
    def tearDownClass(cls):
        status, text = cls.server.end()
        assert status == 0, text

    def test_health_and_models(self):
        self.assertEqual(self.server.json("/health"), (200, {"status": "ok"}))
        status, models = self.server.json("/v1/models")
        self.assertEqual((status, [m["id"] for m in models["data"]]), (200, ["fables"]))
        self.assertEqual(self.server.json("/models")[1], models)
        self.assertEqual(self.server.json("/v1/models/fables")[1]["id"], "fables")
        status, answer = self.server.json("/v1/models/gpt-4")
        self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))
        props = self.server.json("/props")[1]
        self.assertEqual((props["default_generation_settings"]["n_ctx"], props["model_path"]), (512, "millrace-demo.gguf"))

    def test_probes(self):
        """What supervisors and balancers ask, by GET or HEAD."""
        for path in "/livez", "/readyz":
            self.assertEqual(self.server.json(path), (200, {"status": "ok"}), path)
        said = subprocess.run([BIN, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        name, version = said[0].split(" ")
        wanted = {"version": version, "name": name, "commit": said[1].removeprefix("commit: ")}
        self.assertEqual(self.server.json("/version"), (200, wanted))
        for path in "/health", "/livez", "/readyz", "/version":
            status, head, body = self.server.ask("HEAD", path)
            self.assertEqual((status, head["Content-Type"], body), (200, "application/json", b""), path)
            self.assertEqual(int(head["Content-Length"]), len(self.server.ask("GET", path)[2]), path)
            self.assertEqual(self.server.ask("POST", path, "{}", JSON)[0], 405, path)

    def test_plan_and_slots(self):
        plan = self.server.json("/plan")[1]
        self.assertEqual([(s["first_layer"], s["last_layer"]) for s in plan["stages"]], [(0, 2), (3, 5), (6, 7)])
        status, slots = self.server.json("/slots")
        self.assertEqual((status, [slot["id"] for slot in slots]), (200, list(range(64))))
        self.assertFalse(any(slot["is_processing"] for slot in slots))
        body = b'{"prompt": [5, 6], "max_tokens": 100000, "stream": true, "ignore_eos": true}'
        with self.server.socket() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            read_until(s, b"data: ")
            busy = [slot for slot in self.server.json("/slots")[1] if slot["is_processing"]]
            self.assertLessEqual(len(busy), 1)  # it may be over by now
            self.assertTrue(all(slot["n_tokens"] > 2 for slot in busy))

    def test_page_and_metrics(self):
        status, head, page = self.server.ask("GET", "/")
        self.assertEqual((status, head["Content-Type"].split(";")[0]), (200, "text/html"))
        self.assertIn("'self'", head["Content-Security-Policy"])
        for name in re.findall(rb'(?:src|href)="(/[^"]+)"', page):
            self.assertEqual(self.server.ask("GET", name.decode())[0], 200, name)
        self.assertEqual(self.server.ask("GET", "/page.nothing")[0], 404)
        state = self.server.json("/page/state")[1]
        self.assertEqual((state["state"], state["model"], len(state["stages"])), ("ready", "fables", 3))
        status, head, text = self.server.ask("GET", "/metrics")
        self.assertEqual((status, head["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        self.assertIn(b"millrace_ready 1\n", text)

    def test_trace(self):
        """A recording has what each stage computed meanwhile, on a slow machine a later one."""
        def stages_of_a_recording():
            found = {}
            t = threading.Thread(target=lambda: found.update(trace=self.server.json("/trace?seconds=1")))
            t.start()
            until(lambda: self.server.complete(max_tokens=20, seed=1) and not t.is_alive())
            t.join()
            status, spans = found["trace"]
            self.assertEqual(status, 200)
            return {s["tid"] for s in spans if s["ph"] == "X" and s["name"] == "compute"} == {0, 1, 2}

        until(stages_of_a_recording)
        for bad in ("0", "61", "x", "nan"):
            self.assertEqual(self.server.ask("GET", "/trace?seconds=" + bad)[0], 400, bad)

    def test_answers(self):
        plain = self.server.complete(max_tokens=24, seed=7)
        self.assertEqual((plain["model"], plain["usage"]["completion_tokens"]), ("fables", 24))
        status, head, data = self.server.ask("POST", "/completions", json.dumps(
            {"prompt": "Once upon a time", "max_tokens": 24, "seed": 7, "stream": True}), JSON)
        self.assertEqual((status, head["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        self.assertTrue(data.endswith(b"data: [DONE]\n\n"))
        self.assertEqual("".join(e["choices"][0]["text"] for e in events(data)), plain["choices"][0]["text"])
        status, answer = self.server.json("/v1/completions", {"prompt": 7.5})
        self.assertEqual((status, answer["error"]["param"]), (400, "prompt"))
        ids = self.server.json("/tokenize", {"content": "The mill turns."})[1]["tokens"]
        self.assertEqual(ids, [289, 460, 469, 967, 970])
        self.assertEqual(self.server.json("/detokenize", {"tokens": ids})[1]["content"], "The mill turns.")

    def test_who_leaves_frees_all(self):
        body = json.dumps({"prompt": "The river", "max_tokens": 480, "stream": True, "ignore_eos": True, "n": 4}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(5):
            with self.server.socket() as s:
                s.sendall(head + body)
                read_until(s, b"data: ")

        def is_free():
            state = self.server.json("/page/state")[1]
            return state["sequences"]["live"] == 0 and state["blocks"]["held"] == 0

        begin = time.monotonic()
        until(is_free)
        self.assertLess(time.monotonic() - begin, 5)

    def test_large_bodies_hold_nobody_up(self):
        body = json.dumps({"content": "a" * 4000000}).encode()
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        with contextlib.ExitStack() as stack:
            large = []
            for _ in range(5):  # one after the other, so that each thread of the server gets one
                large.append(stack.enter_context(self.server.socket()))
                large[-1].sendall(head + body)
                time.sleep(0.03)
            self.assertEqual(self.server.json("/health")[0], 200)
            self.server.complete(max_tokens=1)
            self.assertEqual(select.select(large, [], [], 0)[0], [])  # none of them has been answered meanwhile


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Ends(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-serve-")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def bad(self, words, *args, env=None):
        done = subprocess.run([BIN, "serve", "--demo", *args], stderr=subprocess.PIPE, timeout=LIMIT_S, check=False,
                              env={**os.environ, **(env or {})})
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr.decode())

    def test_bad_options(self):
        self.bad(["--host 0.0.0.0", "--insecure"], "--host", "0.0.0.0")
        self.bad(["--tls-key"], "--tls-cert", self.file("cert", "x"))
        self.bad(["--tls-cert"], "--tls-cert", self.file("cert", "x"), "--tls-key", self.file("key", "x"))
        self.bad(["--api-key-file", "no key"], "--api-key-file", self.file("keys", "\n \n"))
        self.bad(["--api-key-file", "cannot be read"], "--api-key-file", "/nonexistent")
        self.bad(["--api-key"], "--api-key", "")
        self.bad(["MILLRACE_API_KEY has no key"], "--host", "0.0.0.0", env={"MILLRACE_API_KEY": " \n"})
        self.bad(["--api-key-file", "line 2", "a comment needs a line of its own"], "--api-key-file",
                 self.file("keys", "alpha\nbeta # of Bea\n"))
        self.bad(["--host"], "--host", "no such host")
        self.bad(["--host [::]", "--insecure"], "--host", "[::]")

    def test_address_in_brackets(self):
        """As in a URL."""
        with Serve("--host", "[::1]", ready=False) as server:
            self.assertRegex(server.url, r"^http://\[::1\]:[0-9]+$")

    def test_errors_have_one_vocabulary(self):
        """The same status has the same type, whichever part of the server finds the error."""
        types = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                 405: "invalid_request_error", 413: "invalid_request_error"}
        asked = [("GET", "/v1/models/gpt-4", None, {}, 404), ("GET", "/v1/files/file-x", None, {}, 404),
                 ("GET", "/v1/batches/batch-x", None, {}, 404), ("GET", "/nothing", None, {}, 404),
                 ("GET", "/page.nothing", None, {}, 404), ("GET", "/v1/completions", None, {}, 405),
                 ("POST", "/v1/completions", "{", {}, 400), ("POST", "/v1/completions", '{"prompt": "A", "n": 0}', {}, 400),
                 ("GET", "/trace?seconds=x", None, {}, 400), ("GET", "/health", None, {"Origin": "http://evil.example"}, 403),
                 ("POST", "/tokenize", "x" * 5000, {}, 413), ("GET", "/v1/models", None, {"Authorization": "Bearer no"}, 401)]
        with Serve("--batch-dir", self.folder, "--max-body", "4096", "--api-key", "yes") as server:
            for method, path, body, headers, status in asked:
                found, _, answer = server.ask(method, path, body, {"Authorization": "Bearer yes", **JSON, **headers})
                error_code(answer)  # the object is whole
                self.assertEqual((found, json.loads(answer)["error"]["type"]), (status, types[status]), (path, answer))
        with Serve() as server:
            found, _, answer = server.ask("GET", "/v1/files")
            self.assertEqual((found, json.loads(answer)["error"]["type"]), (404, types[404]), answer)

    def test_keys_of_a_file(self):
        path = self.file("keys", "\ufeff# keys of the team\nalpha\r\n\n  beta  \n")
        with Serve("--api-key-file", path, "--stages", "1", env={"MILLRACE_API_KEY": "gamma,delta\n"}) as server:
            for key, status in (("alpha", 200), ("beta", 200), ("gamma", 200), ("delta", 200), ("epsilon", 401), ("", 401),
                                ("# keys of the team", 401), ("gamma,delta", 401)):
                found = server.ask("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0]
                self.assertEqual(found, status, key)
            for path in "/health", "/livez", "/readyz", "/version":
                self.assertEqual(server.ask("GET", path)[0], 200, path)
            for path in "/metrics", "/plan", "/page/state":
                self.assertEqual(server.ask("GET", path)[0], 401, path)

    def keep_asking(self, server, stop, found, **kwargs):
        """A thread that streams answers one after the other until stop, each whole."""
        body = json.dumps({"prompt": "Once", "max_tokens": 24, "stream": True, "ignore_eos": True})

        def run():
            while not stop.is_set():
                status, _, data = server.ask("POST", "/v1/completions", body, {**JSON, **kwargs})
                found.append((status, data.endswith(b"data: [DONE]\n\n")))
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def replace(self, path, text):
        """As those do that must not be seen half written."""
        os.replace(self.file("new", text), path)

    def test_keys_are_read_anew(self):
        """SIGHUP: a key comes, another goes; nobody who is being answered notices."""
        def status_of(key):
            return server.ask("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0]

        path = self.file("keys", "always\nold\n")
        with Serve("--api-key-file", path) as server:
            stop, found = threading.Event(), []
            threads = [self.keep_asking(server, stop, found, Authorization="Bearer always") for _ in range(4)]
            try:
                self.assertEqual((status_of("old"), status_of("new")), (200, 401))
                self.replace(path, "always\nnew\n")
                server.run.send_signal(signal.SIGHUP)
                until(lambda: status_of("new") == 200)
                self.assertEqual(status_of("old"), 401)
                n = len(found)
                until(lambda: len(found) > n + 8)
                self.replace(path, " \n")
                server.run.send_signal(signal.SIGHUP)
                self.assertIn("--api-key-file: %s has no key" % path, server.said("stay as they were: "))
                self.assertEqual((status_of("old"), status_of("new")), (401, 200))
                os.unlink(path)
                os.mkfifo(path)
                server.run.send_signal(signal.SIGHUP)
                until(lambda: any("is no regular file" in line for line in list(server.lines)))
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(set(found), {(200, True)})
            self.assertEqual(server.end()[0], 0)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate with")
    def test_certificates_are_read_anew(self):
        """New connections get the new one, those that there are go on; a broken one changes nothing."""
        names = "cert", "key", "cert2", "key2"
        cert, key, cert2, key2 = paths = [os.path.join(self.folder, name) for name in names]
        for i in 0, 2:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", paths[i + 1], "-out",
                            paths[i]], check=True, stderr=subprocess.DEVNULL)
        shutil.copy(cert, os.path.join(self.folder, "first"))
        old = ssl.create_default_context(cafile=os.path.join(self.folder, "first"))
        new = ssl.create_default_context(cafile=cert2)

        def connect(context):
            return context.wrap_socket(server.socket(), server_hostname="localhost")

        def takes(context):
            try:
                connect(context).close()
            except ssl.SSLCertVerificationError:
                return False
            return True

        with Serve("--tls-cert", cert, "--tls-key", key, "--synthetic-stage", "20,0") as server:
            body = b'{"prompt": [5, 6], "max_tokens": 100, "stream": true, "ignore_eos": true}'
            with connect(old) as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
                read_until(s, b"data: ")
                os.replace(cert2, cert)
                server.run.send_signal(signal.SIGHUP)  # with the key of the other one
                server.said("stay as they were: ")
                self.assertTrue(takes(old))
                os.replace(key2, key)
                server.run.send_signal(signal.SIGHUP)
                server.said("SIGHUP: keys and certificate are those of")
                self.assertTrue(takes(new))
                self.assertFalse(takes(old))
                self.assertIn(b"data: [DONE]", read_all(s))
            self.assertEqual(server.end()[0], 0)

    def test_the_service_manager_is_told(self):
        path = os.path.join(self.folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(LIMIT_S)
            with Serve(env={"NOTIFY_SOCKET": path}) as server:
                self.assertEqual(manager.recv(256), b"READY=1")
                server.run.send_signal(signal.SIGHUP)
                self.assertRegex(manager.recv(256), rb"^RELOADING=1\nMONOTONIC_USEC=\d+$")
                self.assertEqual(manager.recv(256), b"READY=1")
                self.assertEqual(server.end()[0], 0)
                self.assertEqual(manager.recv(256), b"STOPPING=1")

    def test_unix_socket(self):
        path = os.path.join(self.folder, "socket")
        with Serve("--unix-socket", path) as server:
            self.assertEqual(server.json("/v1/completions", {"prompt": "A", "max_tokens": 3})[0], 200)
            self.assertEqual(server.end()[0], 0)
        self.assertFalse(os.path.exists(path))

    def test_while_it_loads(self):
        """It listens before the layers are measured, which takes a moment."""
        with Serve("--measure", "anew", "--cache-dir", self.folder, "--stages", "2", ready=False) as server:
            seen = set()
            while True:
                status, head, body = server.ask("GET", "/health")
                answer = json.loads(body)
                seen.add(status)
                if status == 200:
                    break
                self.assertEqual((status, answer["status"], head["Retry-After"]), (503, "loading", "1"))
                self.assertTrue(0 <= answer["loaded"] <= 1)
                self.assertEqual(error_code(json.dumps({"error": answer["error"]})), "loading")
                self.assertEqual(server.json("/livez"), (200, {"status": "ok"}))
                status, answer = server.json("/readyz")
                if status != 200:  # it may be loaded by now
                    self.assertEqual((status, answer["status"], answer["error"]["code"]), (503, "loading", "loading"))
                self.assertEqual(server.json("/version")[0], 200)
                status, answer = server.json("/v1/completions", {"prompt": "A"})
                if status == 503:  # without a code where it is loaded and about to run
                    self.assertIn(answer["error"]["code"], ("loading", None))
            self.assertEqual(seen, {200, 503})

    def test_a_signal_while_it_loads(self):
        with Serve("--measure", "anew", "--cache-dir", self.folder, ready=False) as server:
            status, text = server.end()
            self.assertEqual((status, "error" in text), (0, False), text)

    def test_a_model_that_does_not_load(self):
        status, text = Serve(model=self.file("bad.gguf", "GGUF?"), wait=False).end(None)
        self.assertEqual(status, 1)
        self.assertIn("bad.gguf", text)

    def test_drain(self):
        """An answer under way comes to its end; a new connection is refused; the exit status is 0."""
        self.drain({})

    def test_drain_beside_busy_threads(self):
        """The same where the threads of connections do something while the main thread begins the drain."""
        slow = os.path.join(os.path.dirname(BIN), "libslow_epoll_ctl.so")
        if not os.path.exists(slow):
            self.skipTest("sanitizers have to be loaded first")
        self.drain({"LD_PRELOAD": slow})

    def drain(self, env):
        with Serve("--stages", "2", "--synthetic-stage", "10,0", env=env) as server:
            body = b'{"prompt": [5, 6], "max_tokens": 40, "stream": true, "ignore_eos": true}'
            with server.socket() as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                read_until(s, b"data: ")
                server.run.send_signal(signal.SIGTERM)
                server.said("ending")
                until(lambda: not connects(server))
                self.assertFalse(is_ready(server))
                rest = read_all(s)
            status, text = server.end(None)
            self.assertEqual(status, 0, text)
            self.assertIn(b"data: [DONE]", rest, text)
            self.assertNotIn("error", text)

    def test_drain_is_bounded(self):
        with Serve("--synthetic-stage", "50,0", "--drain-s", "1") as server:
            body = b'{"prompt": [5, 6], "max_tokens": 500, "stream": true, "ignore_eos": true}'
            with server.socket() as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                read_until(s, b"data: ")
                begin = time.monotonic()
                status, text = server.end(signal.SIGINT)
                self.assertLess(time.monotonic() - begin, 10)
                self.assertEqual(status, 0)
                self.assertRegex(text, "POST /v1/completions 200 .* failed, from")

    def test_second_signal(self):
        with Serve("--synthetic-stage", "50,0", "--drain-s", "60") as server, server.socket() as s:
            body = b'{"prompt": [5, 6], "max_tokens": 500, "stream": true, "ignore_eos": true}'
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            read_until(s, b"data: ")
            server.run.send_signal(signal.SIGTERM)
            server.said("ending")
            self.assertEqual(server.end()[0], -signal.SIGTERM)

    def test_memory_of_large_bodies_goes_back(self):
        with open(BIN, "rb") as f:
            program = f.read()
        if b"__asan_init" in program or b"__tsan_init" in program:
            self.skipTest("sanitizers keep what is freed")

        def mib():
            with open(f"/proc/{server.run.pid}/statm", encoding="ascii") as f:
                return int(f.read().split()[1]) >> 8

        def tokens_and_back():
            body = json.dumps({"tokens": [300] * 1000000})
            self.assertEqual(server.ask("POST", "/detokenize", body, JSON)[0], 200)

        def chat():
            body = json.dumps({"messages": [{"role": "user", "content": "hello there " * 40000} for _ in range(60)]})
            self.assertEqual(server.ask("POST", "/v1/chat/completions", body, JSON)[0], 400)  # longer than the context
        with Serve() as server:
            before = mib()
            for ask in (tokens_and_back, chat):
                threads = [threading.Thread(target=ask) for _ in range(3)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
            until(lambda: mib() < before + 32)  # it was 200 and more

    def test_log(self):
        with Serve("--log-json") as server:
            server.json("/v1/completions", {"prompt": "A", "max_tokens": 5, "ignore_eos": True}, {"X-Request-Id": "mine"})
            _, text = server.end()
        lines = [json.loads(line) for line in text.splitlines()]
        line = [line for line in lines if line["component"] == "http"][0]
        self.assertEqual([line[k] for k in ("id", "path", "status", "new_tokens")], ["mine", "/v1/completions", 200, 5])
        self.assertGreater(line["prompt_tokens"], 0)
        self.assertTrue(0 < line["first_token_ms"] < line["ms"], line)


def is_ready(server):
    """As a balancer sees it."""
    try:
        return server.ask("GET", "/readyz")[0] == 200
    except OSError:
        return False


def connects(server):
    try:
        server.socket().close()
        return True
    except OSError:
        return False


@unittest.skipUnless(os.path.exists(DEMO), "the demo model is not there")
class Many(unittest.TestCase):
    def test_256_streams(self):
        """All of one seed say the same, whoever leaves meanwhile; afterwards nothing is held."""
        with Serve("--stages", "3") as server:
            fields = {"prompt": "Once upon a time", "max_tokens": 16, "seed": 3, "ignore_eos": True}
            wanted = server.complete(**fields)["choices"][0]["text"]
            before = server.files()
            self.assertEqual(crowd.stream(server.port, 256, 1, wanted, **fields), [])
            until(lambda: server.json("/page/state")[1]["blocks"]["held"] == 0)
            until(lambda: server.files() <= before)
            self.assertEqual(server.end()[0], 0)


@unittest.skipUnless(os.path.exists(DEMO) and shutil.which("curl"), "the demo model or curl is not there")
class Readme(unittest.TestCase):
    def test_examples(self):
        """Each curl of README and manual as it is written, but for the port; what stands under it is what comes."""
        blocks = []
        for name, more_than in (("README.md", 0), ("coordinator/COMMANDS.md", 3)):
            with open(os.path.join(SOURCE, name), encoding="utf-8") as f:
                examples = re.findall(r"```\n\$ (curl .*?)\n```", f.read(), re.S)
            self.assertGreater(len(examples), more_than, name)
            blocks += examples
        with Serve("--stages", "3") as server:
            for block in blocks:
                command, _, shown = re.sub(r"\\\n\s*", " ", block).partition("\n")
                command = command.replace("localhost:8080", f"127.0.0.1:{server.port}")
                done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S,
                                      check=False)
                self.assertEqual(done.returncode, 0, (command, done.stderr))
                found = done.stdout.decode()
                self.assertNotIn('"error"', found, command)
                for piece in shown.replace(",\n", ", ").replace("\n", " ").split("..."):
                    self.assertIn(" ".join(piece.split()), " ".join(found.split()), command)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
