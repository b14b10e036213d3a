# SPDX-License-Identifier: Apache-2.0
"""What the tests of the HTTP server share: a server under test, and requests as bytes."""
import http.client
import json
import os
import signal
import socket
import subprocess
import time

BIN = os.path.dirname(os.path.abspath(os.environ.get("MILLRACE_BIN", "build/release/bin/millrace")))
PROBE = os.path.join(BIN, "http_probe")
LIMIT_S = 60


def until(what, limit_s=LIMIT_S):
    """What what() returns, as soon as that is something."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it did not happen: " + what.__name__)


class Server:
    """A running http_probe, or another program that prints its address first."""

    def __init__(self, *args, program=(PROBE,), env=None):
        self.run = subprocess.Popen([*program, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        self.url = self.run.stdout.readline().decode().strip()
        if not self.url:
            raise AssertionError(self.run.communicate()[1].decode())
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else None
        self.path = self.url[5:] if self.url.startswith("unix:") else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.run.poll() is None:
            self.run.kill()
        self.run.communicate()

    def socket(self):
        if self.path:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(LIMIT_S)
            s.connect(self.path)
            return s
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def connection(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port or 80, timeout=LIMIT_S)
        if self.path:
            c.sock = self.socket()
        return c

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body) of a request on a connection of its own."""
        c = self.connection()
        c.request(method, path, body, headers or {})
        answer = c.getresponse()
        found = answer.status, answer.headers, answer.read()
        c.close()
        return found

    def raw(self, data):
        """All that comes back for these bytes, which are the last ones."""
        with self.socket() as s:
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before it was all sent
            return read_all(s)

    def counts(self):
        return json.loads(self.ask("GET", "/counts")[2])

    def files(self):
        return len(os.listdir(f"/proc/{self.run.pid}/fd"))

    def end(self, number=signal.SIGTERM):
        """Ends it by a signal: (exit status, standard output, standard error)."""
        self.run.send_signal(number)
        out, err = self.run.communicate(timeout=LIMIT_S)
        return self.run.returncode, out.decode(), err.decode()


def read_all(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def read_until(s, mark):
    data = b""
    while mark not in data:
        piece = s.recv(65536)
        if not piece:
            raise AssertionError(f"the connection ended after {data!r}")
        data += piece
    return data


def error_code(body):
    """The code of OpenAI's error object, which has to be whole."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"], error
    return error["code"]
