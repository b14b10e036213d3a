# SPDX-License-Identifier: Apache-2.0
"""The HTTP server by itself: requests good and bad, slow and vanishing clients, keys, origins, TLS, draining."""
import http.client
import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from probe import LIMIT_S, Server, error_code, read_all, read_until, until

GET = b"GET /fixed HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-body", "100000", "--ping", "1")

    @classmethod
    def tearDownClass(cls):
        status, out, err = cls.server.end()
        begun, ended = out.split()[1::2]
        assert status == 0 and begun == ended, (status, out, err)

    def code(self, data):
        """The status in the first line of what comes back for these bytes; 0: nothing came."""
        answer = self.server.raw(data)
        return int(answer.split()[1]) if answer else 0

    def test_answers(self):
        ask = self.server.ask
        self.assertEqual(ask("GET", "/fixed")[::2], (200, b"fixed\n"))
        self.assertEqual(ask("HEAD", "/fixed")[::2], (200, b""))
        self.assertEqual(ask("HEAD", "/fixed")[1]["Content-Length"], "6")
        self.assertEqual(ask("POST", "/echo", b"x" * 100000)[2], b"x" * 100000)
        self.assertEqual(ask("POST", "/echo", b"")[::2], (200, b""))
        self.assertEqual(ask("GET", "/item/a/b%20c")[2], b"a/b c")
        self.assertEqual(ask("POST", "/wait?ms=30")[2], b"said 0\n")
        self.assertEqual(ask("POST", "/wait?n=3&ms=5")[2], b"said 0\nsaid 1\nsaid 2\n")
        self.assertEqual(ask("POST", "/stream?n=3&ms=1")[2], b"data: 0\n\ndata: 1\n\ndata: 2\n\n")

    def test_heads(self):
        status, head, _ = self.server.ask("POST", "/stream?n=2")
        self.assertEqual((status, head["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        self.assertEqual(head["Transfer-Encoding"], "chunked")
        self.assertIn("no-cache", head["Cache-Control"])
        self.assertEqual(self.server.ask("GET", "/fixed")[1]["X-Content-Type-Options"], "nosniff")
        status, head, body = self.server.ask("POST", "/fail")
        self.assertEqual((status, head["Retry-After"], error_code(body)), (429, "7", "rate_limit_exceeded"))

    def test_chunked_body(self):
        c = self.server.connection()
        c.request("POST", "/echo", iter([b"abc", b"", b"def"]), encode_chunked=True,
                  headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(c.getresponse().read(), b"abcdef")

    def test_ids(self):
        ids = [self.server.ask("GET", "/fixed", headers=h)[1]["X-Request-Id"]
               for h in ({}, {}, {"X-Request-Id": "mine-1._"}, {"X-Request-Id": "no\"good"}, {"X-Request-Id": "x" * 200})]
        self.assertEqual(len(set(ids)), 5)
        self.assertEqual(ids[2], "mine-1._")
        self.assertTrue(all(i.startswith("req-") and len(i) == 36 for i in ids[:2] + ids[3:]), ids)

    def test_errors(self):
        for method, path, status, code in (("GET", "/none", 404, "unknown_url"), ("GET", "/item/", 404, "unknown_url"),
                                           ("GET", "/", 404, "unknown_url"), ("GET", "/echo", 405, "method_not_allowed"),
                                           ("DELETE", "/fixed", 405, "method_not_allowed"),
                                           ("BREW", "/fixed", 405, "method_not_allowed")):
            found, head, body = self.server.ask(method, path, b"some body")
            self.assertEqual((found, error_code(body)), (status, code), (method, path))
            self.assertEqual(head["Content-Type"], "application/json")
            self.assertEqual("Allow" in head, status == 405)
        status, head, _ = self.server.ask("OPTIONS", "/echo")
        self.assertEqual((status, head["Allow"]), (204, "POST"))

    def test_malformed(self):
        self.assertIn(self.code(b"nonsense\r\n\r\n"), (0, 400))
        self.assertIn(self.code(b"GET /fixed HTTP/9.9\r\nHost: localhost\r\n\r\n"), (0, 400, 505))
        self.assertEqual(self.code(b"GET /fixed HTTP/1.1\r\n\r\n"), 400)  # no Host
        self.assertEqual(self.code(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n"), 400)
        self.assertIn(self.code(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"), (0, 400))
        self.assertIn(self.code(b"\0" * 1000 + b"\r\n\r\n"), (0, 400))
        self.assertEqual(self.server.ask("GET", "/fixed")[0], 200)

    def test_huge_heads(self):
        line = b"X-Long: " + b"a" * 200000 + b"\r\n"
        self.assertIn(self.code(b"GET /fixed HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n"), (0, 413, 431))
        many = b"".join(b"X-%d: a\r\n" % i for i in range(20000))
        self.assertIn(self.code(b"GET /fixed HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n"), (0, 413, 431))
        self.assertIn(self.code(b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"), (0, 414))
        self.assertEqual(self.server.ask("GET", "/fixed")[0], 200)

    def test_huge_bodies(self):
        for headers in ({}, {"Content-Length": "1000000"}):
            body = b"x" * 1000000 if headers else (b"x" * 10000 for _ in range(100))
            status, _, answer = self.server.ask("POST", "/echo", body, headers)
            self.assertEqual((status, error_code(answer)), (413, "request_too_large"))
        with self.server.socket() as s:  # refused before it is sent
            s.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\n")
            self.assertIn(b" 413 ", read_until(s, b"request_too_large"))
        with self.server.socket() as s:
            s.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\nExpect: 100-continue\r\n\r\n")
            self.assertTrue(read_until(s, b"\r\n").startswith(b"HTTP/1.1 413 "))

    def test_expect(self):
        with self.server.socket() as s:
            s.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            self.assertTrue(read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 100 "))
            s.sendall(b"hello")
            self.assertTrue(read_until(s, b"hello").startswith(b"HTTP/1.1 200 "))

    def test_http_1_0(self):
        answer = self.server.raw(b"GET /fixed HTTP/1.0\r\n\r\n")
        self.assertTrue(answer.endswith(b"\r\n\r\nfixed\n"))
        with self.server.socket() as s:
            s.sendall(b"POST /stream?n=3&ms=2 HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
            answer = read_all(s)
        self.assertTrue(answer.endswith(b"\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n"), answer)
        self.assertNotIn(b"chunked", answer)

    def test_keep_alive_and_pipelining(self):
        with self.server.socket() as s:
            for _ in range(3):
                s.sendall(GET)
                self.assertTrue(read_until(s, b"fixed\n").startswith(b"HTTP/1.1 200 "))
        wait = b"POST /wait?ms=20 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        echo = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
        with self.server.socket() as s:
            s.sendall(GET + wait + echo + wait + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            bodies = [a.split(b"\r\n\r\n", 1)[1] for a in read_all(s).split(b"HTTP/1.1 200 OK\r\n")[1:]]
        self.assertEqual(bodies, [b"fixed\n", b"said 0\n", b"abc", b"said 0\n", b"fixed\n"])

    def test_bytes_one_by_one(self):
        with self.server.socket() as s:
            for byte in b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd":
                s.sendall(bytes([byte]))
            self.assertTrue(read_until(s, b"abcd").startswith(b"HTTP/1.1 200 "))

    def test_events_are_not_held_back(self):
        """An event comes while the next one is minutes away."""
        with self.server.socket() as s:
            s.sendall(b"POST /stream?n=2&first=300&ms=600000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            read_until(s, b"data: 0\n\n")

    def test_pings(self):
        """In each second of silence; the event comes nonetheless."""
        answer = self.server.ask("POST", "/stream?n=1&ms=2500")[2]
        self.assertRegex(answer, rb"\A(: ping\n\n)+data: 0\n\n\Z")

    def test_hosts(self):
        for host, status in (("localhost", 200), ("127.0.0.1:99", 200), ("[::1]", 200), ("rebound.example", 403)):
            found, _, body = self.server.ask("GET", "/fixed", headers={"Host": host})
            self.assertEqual(found, status, host)
        self.assertEqual(error_code(body), "wrong_host")

    def test_foreign_pages(self):
        for origin, status in ((f"http://127.0.0.1:{self.server.port}", 200), ("http://evil.example", 403), ("null", 403)):
            found, head, _ = self.server.ask("POST", "/echo", b"{}", {"Origin": origin, "Content-Type": "text/plain"})
            self.assertEqual(found, status, origin)
            self.assertNotIn("Access-Control-Allow-Origin", head)


class Vanishing(unittest.TestCase):
    def test_while_it_waits(self):
        with Server() as server:
            before = server.files()
            begins = [b"POST /wait?ms=60000", b"POST /stream?ms=60000", b"POST /stream?n=100000000"]
            sockets = []
            for i in range(30):
                s = server.socket()
                s.sendall(begins[i % 3] + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
                if i % 3 == 2:
                    read_until(s, b"data: 1")
                sockets.append(s)
            until(lambda: server.counts()["live"] == 30)
            begin = time.monotonic()
            for i, s in enumerate(sockets):
                if i % 2:  # a reset instead of an end
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                s.close()
            until(lambda: server.counts()["live"] == 0)
            self.assertLess(time.monotonic() - begin, 15)  # the time of slow clients is 30 s
            until(lambda: server.files() <= before)
            self.assertEqual(server.end()[:2], (0, "begun 30 ended 30\n"))

    def test_in_a_head_or_a_body(self):
        with Server() as server:
            before = server.files()
            for data in (b"", b"POST", GET[:-2], b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc"):
                for _ in range(5):
                    with server.socket() as s:
                        s.sendall(data)
            until(lambda: server.counts() == {"live": 0, "requests": 1, "connections": 1})
            until(lambda: server.files() <= before)

    def test_many_at_once(self):
        """256 streams, a third of which leave in their midst."""
        with Server() as server:
            before = server.files()
            body = b"".join(b"data: %d\n\n" % i for i in range(40))
            bad = []

            def client(i):
                try:
                    if i % 3 == 0:
                        with server.socket() as s:
                            s.sendall(b"POST /stream?n=100000&ms=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
                            read_until(s, b"data: %d\n" % (i % 20))
                    elif server.ask("POST", "/stream?n=40&ms=5")[2] != body:
                        bad.append(i)
                except (OSError, AssertionError, http.client.HTTPException) as e:
                    bad.append((i, repr(e)))

            threads = [threading.Thread(target=client, args=(i,)) for i in range(256)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(bad, [])
            until(lambda: server.counts()["live"] == 0)
            until(lambda: server.files() <= before)
            self.assertEqual(server.end()[:2], (0, "begun 256 ended 256\n"))


class Slow(unittest.TestCase):
    def test_slow_clients_are_cut_off(self):
        with Server("--timeout", "1") as server:
            parts = [b"", b"GET /fixed HTTP/1.1\r\nHost: loc", b"GET /fixed HTTP/1.1\r\n",
                     b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc"]
            begin = time.monotonic()
            sockets = [server.socket() for _ in parts]
            for s, part in zip(sockets, parts):
                s.sendall(part)
            left = list(sockets)
            while left and time.monotonic() - begin < LIMIT_S:
                for s in list(left):
                    readable, _, _ = select.select([s], [], [], 0.03)
                    if readable:
                        left.remove(s)
                        continue
                    try:
                        s.send(b"x" if s is not sockets[0] else b"")  # never silent for long
                    except OSError:
                        left.remove(s)
            self.assertEqual(left, [])
            self.assertGreater(time.monotonic() - begin, 0.8)
            for s in sockets:
                s.close()
            self.assertEqual(server.ask("POST", "/wait?ms=1500")[2], b"said 0\n")  # the server's own time does not count

    def test_who_takes_nothing_holds_nobody_up(self):
        with Server("--timeout", "1") as server, server.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(b"POST /stream?n=100000000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            read_until(s, b"data: 0\n\n")
            self.assertEqual(server.ask("GET", "/fixed")[0], 200)
            until(lambda: server.counts()["live"] == 0)

    def test_too_many_connections_wait(self):
        with Server("--max-connections", "3") as server:
            sockets = [server.socket() for _ in range(3)]
            for s in sockets:
                s.sendall(GET)
                read_until(s, b"fixed\n")
            late = server.socket()
            late.sendall(GET)
            late.settimeout(0.3)
            self.assertRaises(socket.timeout, late.recv, 1)
            sockets[0].close()
            late.settimeout(LIMIT_S)
            read_until(late, b"fixed\n")
            for s in (late, *sockets):
                s.close()


class Doors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-http-")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_keys(self):
        with Server("--key", "alpha", "--key", "beta") as server:
            for headers, status in (({}, 401), ({"Authorization": "Bearer alpha"}, 200), ({"Authorization": "Bearer beta"}, 200),
                                    ({"Authorization": "Bearer alph"}, 401), ({"X-Api-Key": "beta"}, 200),
                                    ({"X-Api-Key": "gamma"}, 401), ({"Authorization": "Basic alpha"}, 401)):
                found, head, body = server.ask("POST", "/echo", b"secret body", headers)
                self.assertEqual(found, status, headers)
                if status == 401:
                    self.assertEqual((error_code(body), head["WWW-Authenticate"]), ("invalid_api_key", "Bearer"))
            proxied = {"Authorization": "Bearer alpha", "Host": "api.example"}
            self.assertEqual(server.ask("POST", "/echo", b"", proxied)[0], 200)
            self.assertEqual(server.ask("GET", "/open")[0], 200)
            self.assertEqual(server.ask("GET", "/nowhere")[0], 401)  # what there is, is for those with a key

    def test_origins(self):
        ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type"}
        with Server("--origin", "https://app.example", "--key", "k") as server:
            status, head, _ = server.ask("OPTIONS", "/echo", headers=ask)
            self.assertEqual((status, head["Access-Control-Allow-Origin"]), (204, "https://app.example"))
            self.assertIn("POST", head["Access-Control-Allow-Methods"])
            self.assertEqual(head["Access-Control-Allow-Headers"], "authorization,content-type")
            status, head, _ = server.ask("OPTIONS", "/echo", headers={**ask, "Origin": "https://other.example"})
            self.assertEqual((status, "Access-Control-Allow-Origin" in head), (403, False))
            status, head, _ = server.ask("POST", "/echo", b"x", {"Origin": "https://app.example", "Authorization": "Bearer k"})
            self.assertEqual((status, head["Access-Control-Allow-Origin"], head["Vary"]),
                             (200, "https://app.example", "Origin"))
            status, head, _ = server.ask("POST", "/echo", b"x", {"Origin": "https://app.example"})
            self.assertEqual((status, head["Access-Control-Allow-Origin"]), (401, "https://app.example"))
        with Server("--origin", "*") as server:
            self.assertEqual(server.ask("OPTIONS", "/echo", headers=ask)[0], 204)
            self.assertEqual(server.ask("GET", "/fixed", headers={"Origin": "null"})[0], 200)

    def test_unix_socket(self):
        path = self.path("socket")
        with Server("--unix", path) as server:
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertEqual(server.ask("POST", "/echo", b"hello", {"Host": "anything"})[2], b"hello")
            self.assertEqual(server.ask("POST", "/stream?n=2&ms=2")[2], b"data: 0\n\ndata: 1\n\n")
            with self.assertRaises(AssertionError) as failed:
                Server("--unix", path)
            self.assertIn("another server", str(failed.exception))
            server.run.kill()
        with Server("--unix", path) as server:  # over what the killed one left
            self.assertEqual(server.ask("GET", "/fixed")[0], 200)
            self.assertEqual(server.end()[0], 0)
        self.assertFalse(os.path.exists(path))
        with open(path, "w", encoding="ascii"):
            pass
        self.assertRaises(AssertionError, Server, "--unix", path)  # a file of somebody else stays
        self.assertTrue(os.path.exists(path))

    def test_beyond_loopback(self):
        with self.assertRaises(AssertionError) as failed:
            Server("--host", "0.0.0.0")
        self.assertIn("--insecure", str(failed.exception))
        with Server("--host", "0.0.0.0", "--insecure") as server:
            self.assertEqual(server.ask("GET", "/fixed", headers={"Host": "my.name"})[0], 200)
        with Server("--host", "0.0.0.0", "--key", "k") as server:
            self.assertEqual(server.ask("GET", "/fixed")[0], 401)
        with Server() as server, self.assertRaises(AssertionError) as failed:
            Server("--port", str(server.port))
        self.assertIn("another --port", str(failed.exception))

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate with")
    def test_tls(self):
        cert, key = self.path("cert.pem"), self.path("key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], check=True,
                       stderr=subprocess.DEVNULL)
        with Server("--cert", cert, "--key-file", key) as server:
            self.assertTrue(server.url.startswith("https://"))
            before = server.files()
            context = ssl.create_default_context(cafile=cert)

            def ask(method, path, body=None):
                c = http.client.HTTPSConnection("localhost", server.port, timeout=LIMIT_S, context=context)
                c.request(method, path, body)
                found = c.getresponse().read()
                c.close()
                return found

            for method, path, body, wanted in (("GET", "/fixed", None, b"fixed\n"), ("POST", "/echo", b"y" * 300000, b"y" * 300000),
                                               ("POST", "/wait?ms=20", b"", b"said 0\n"),
                                               ("POST", "/stream?n=2&ms=20", b"", b"data: 0\n\ndata: 1\n\n")):
                self.assertEqual(ask(method, path, body), wanted)
            s = context.wrap_socket(server.socket(), server_hostname="localhost")
            s.sendall(b"POST /wait?ms=60000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            until(lambda: json.loads(ask("GET", "/counts"))["live"] == 1)
            s.close()
            with server.socket() as plain:
                plain.sendall(GET)
                self.assertNotIn(b"fixed", read_all(plain))
            until(lambda: server.files() <= before)
            status, out, _ = server.end()
            self.assertEqual((status, out), (0, "begun 3 ended 3\n"))
        self.assertRaises(AssertionError, Server, "--cert", cert, "--key-file", cert)


class Ends(unittest.TestCase):
    def test_drain(self):
        """Answers come to their ends; idle connections and new ones do not hold it up."""
        with Server() as server:
            idle = server.socket()
            idle.sendall(GET)
            read_until(idle, b"fixed\n")
            s = server.socket()
            s.sendall(b"POST /stream?n=4&ms=250 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            read_until(s, b"data: 0\n\n")
            server.run.send_signal(signal.SIGTERM)
            self.assertEqual(read_all(idle), b"")
            self.assertRaises(OSError, server.socket)
            self.assertIn(b"data: 3\n\n", read_all(s))
            out, _ = server.run.communicate(timeout=LIMIT_S)
            self.assertEqual((server.run.returncode, out), (0, b"begun 1 ended 1\n"))

    def test_drain_is_bounded(self):
        with Server("--drain", "0") as server:
            sockets = []
            for begin in (b"POST /stream?ms=60000", b"POST /wait?ms=60000", b"POST /stream?n=1000000000"):
                s = server.socket()
                s.sendall(begin + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
                sockets.append(s)
            until(lambda: server.counts()["live"] == 3)
            begin = time.monotonic()
            self.assertEqual(server.end()[:2], (0, "begun 3 ended 3\n"))
            self.assertLess(time.monotonic() - begin, 3)
            for s in sockets:
                s.close()

    def test_log(self):
        with Server("--json") as server:
            server.ask("POST", "/wait?ms=20", headers={"X-Request-Id": "abc"})
            server.raw(b"GET /%22%5C%0A\xc3\xa9 HTTP/1.0\r\n\r\n")
            lines = [json.loads(line) for line in server.end()[2].splitlines()]
        lines = [line for line in lines if line["component"] == "http"]
        self.assertEqual(len(lines), 2)
        second, first = sorted(lines, key=lambda line: line["path"])  # threads of the server may finish them in any order
        self.assertEqual([first[k] for k in ("id", "client", "method", "path", "status", "prompt_tokens", "new_tokens", "outcome")],
                         ["abc", "127.0.0.1", "POST", "/wait", 200, 3, 1, "ok"])
        self.assertTrue(20 <= first["ms"] < 10000)
        self.assertEqual((second["status"], second["path"][:4], second["outcome"]), (404, "/???", "refused"))

    def test_outcomes(self):
        """A stream has said 200 long before it fails, is cut off or loses its reader: the outcome tells."""
        head = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
        with Server("--json", "--drain", "0") as server:
            def named(name):
                return {"X-Request-Id": name}
            server.ask("GET", "/fixed", headers=named("fixed"))
            server.ask("GET", "/none", headers=named("none"))
            server.ask("POST", "/fail", headers=named("busy"))
            server.ask("POST", "/fail?status=503", headers=named("late"))
            server.ask("POST", "/stream?n=2", headers=named("whole"))
            server.ask("POST", "/stream?n=2&fails=1", headers=named("broken"))
            server.raw(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: chunks\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n")
            for path, name in ((b"/stream?ms=60000", b"left"), (b"/wait?ms=60000", b"unread"), (b"/stream?ms=60000", b"cut")):
                s = server.socket()
                s.sendall(b"POST " + path + head + b"X-Request-Id: " + name + b"\r\n\r\n")
                until(lambda: server.counts()["live"] == 1)
                if name != b"cut":
                    s.close()
                    until(lambda: server.counts()["live"] == 0)
            lines = [json.loads(line) for line in server.end()[2].splitlines()]
            s.close()
        found = {line["id"]: (line["status"], line["outcome"]) for line in lines if line["component"] == "http"}
        self.assertEqual(found, {"fixed": (200, "ok"), "none": (404, "refused"), "busy": (429, "refused"), "late": (503, "failed"), "whole": (200, "ok"),
                                 "broken": (200, "failed"), "chunks": (400, "refused"), "left": (200, "cancelled"),
                                 "unread": (499, "cancelled"), "cut": (200, "failed")})
        with tempfile.TemporaryDirectory() as folder, Server("--unix", folder + "/socket") as server:
            server.ask("GET", "/fixed")
            self.assertRegex(server.end()[2], r"GET /fixed 200 [0-9.]+ ms, from unix, req-")


if __name__ == "__main__":
    unittest.main()
