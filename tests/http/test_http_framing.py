# SPDX-License-Identifier: Apache-2.0
"""Requests of which a proxy and the server could disagree where they end get one refusal and the end of the connection: what
stands behind them is never read as a request. Legal requests of rare forms are answered."""
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest

from probe import Server, error_code, read_all, read_until, until

HOST = b"Host: localhost\r\n"
HIDDEN = b"GET /open HTTP/1.1\r\n" + HOST + b"\r\n"  # no request of ours: what an attacker hides
LIMIT_S = 15  # well under the server's 30 s for slow clients, of which a refusal must not make use


def post(headers, body=b"", line=b"POST /echo HTTP/1.1", host=HOST):
    return line + b"\r\n" + host + headers + b"\r\n" + body


def get(line=b"GET /fixed HTTP/1.1", host=HOST, headers=b""):
    return line + b"\r\n" + host + headers + b"\r\n"


CL3 = b"Content-Length: 3\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
END = b"0\r\n\r\n"

# name: (bytes, statuses that are right)
BAD = {
    "Content-Length and Transfer-Encoding": (post(b"Content-Length: %d\r\n" % (5 + len(HIDDEN)) + TE, END), 400),
    "Transfer-Encoding and Content-Length": (post(TE + b"Content-Length: 5\r\n", END), 400),
    "two lengths, the first is right": (post(CL3 + b"Content-Length: 30\r\n", b"abc"), 400),
    "two lengths, the second is right": (post(b"Content-Length: 30\r\n" + CL3, b"abc"), 400),
    "two equal lengths": (post(CL3 + CL3, b"abc"), 400),
    "a list of lengths": (post(b"Content-Length: 3, 3\r\n", b"abc"), 400),
    "a length with a space before the colon": (post(b"Content-Length : 3\r\n", b"abc"), 400),
    "a length with a tab before the colon": (post(b"Content-Length\t: 3\r\n", b"abc"), 400),
    "a coding with a space before the colon": (post(b"Transfer-Encoding : chunked\r\n" + CL3, END), 400),
    "a space before a name": (get(host=b" Host: localhost\r\n" + HOST), 400),
    "a space within a name": (get(headers=b"X Y: z\r\n"), 400),
    "no name": (get(headers=b": z\r\n"), 400),
    "a control character in a name": (get(headers=b"X\x01Y: z\r\n"), 400),
    "no colon": (get(headers=b"nothing\r\n"), 400),
    "a length with a sign": (post(b"Content-Length: +3\r\n", b"abc"), 400),
    "a negative length": (post(b"Content-Length: -3\r\n", b"abc"), 400),
    "a hexadecimal length": (post(b"Content-Length: 0x3\r\n", b"abc"), 400),
    "a length with a point": (post(b"Content-Length: 3.0\r\n", b"abc"), 400),
    "no digits for a length": (post(b"Content-Length: \r\n", b"abc"), 400),
    "a length over 64 bits": (post(b"Content-Length: 18446744073709551619\r\n", b"abc"), 413),
    "a length that is none, of HEAD": (get(b"HEAD /fixed HTTP/1.1", headers=b"Content-Length: x\r\n"), 400),
    "cookies that are too large": (get(headers=b"Cookie: a=%s\r\n" % (b"b" * 40000)), 431),
    "cookies that are too large, and a length that is none": (
        get(headers=b"Cookie: a=%s\r\nContent-Length: x\r\n" % (b"b" * 40000)), 400),
    "an unknown coding": (post(b"Transfer-Encoding: xchunked\r\n", END), 400),
    "an unknown coding and a length": (post(b"Transfer-Encoding: xchunked\r\n" + CL3, b"abc"), 400),
    "identity": (post(b"Transfer-Encoding: identity\r\n", b"abc"), 400),
    "a coding behind chunked": (post(b"Transfer-Encoding: chunked, gzip\r\n", END), 400),
    "a coding before chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n", END), 501),
    "two codings": (post(TE + TE, END), 400),
    "two codings, one unknown": (post(TE + b"Transfer-Encoding: identity\r\n", END), 400),
    "a quoted coding": (post(b"Transfer-Encoding: \"chunked\"\r\n", END), 400),
    "a coding behind a vertical tab": (post(b"Transfer-Encoding: \x0bchunked\r\n", END), 400),
    "a coding in HTTP/1.0": (post(TE, END, line=b"POST /echo HTTP/1.0"), 400),
    "a folded header": (get(headers=b"X-A: b\r\n c\r\n"), 400),
    "a folded last header": (get(headers=b"X-A: b\r\n\tc\r\n"), 400),
    "a folded coding": (post(b"Transfer-Encoding:\r\n chunked\r\n" + CL3, END), 400),
    "a folded length": (post(b"Content-Length:\r\n 3\r\n", b"abc"), 400),
    "a header folded to nothing": (post(b"X-A: b\r\n \r\n" + CL3, b"abc"), 400),
    "a NUL in a value": (get(headers=b"X-A: b\0c\r\n"), 400),
    "a NUL behind a length": (post(b"Content-Length: 3\x000\r\n", b"abc"), 400),
    "a NUL at the end of a head": (get(headers=b"X-A: b\0\r\n"), 400),
    "a NUL in a name": (get(headers=b"X\0: b\r\n"), 400),
    "a NUL in the target": (get(b"GET /fixed\0/x HTTP/1.1"), 400),
    "a control character in the target": (get(b"GET /fixed?\x01 HTTP/1.1"), 400),
    "a lone CR in a value": (get(headers=b"X-A: b\rContent-Length: 3\r\n"), 400),
    "a lone LF behind a header": (post(b"X-A: b\n" + CL3, b"abc"), 400),
    "a lone LF behind the last header": (post(b"Content-Length: 3\n", b"abc"), 400),
    "a lone LF behind the head": (b"GET /fixed HTTP/1.1\r\nHost: localhost\r\n\n", 400),
    "a lone LF behind the request line": (b"GET /fixed HTTP/1.1\n" + HOST + b"\r\n", 400),
    "lone LFs": (b"GET /fixed HTTP/1.1\nHost: localhost\n\n", 400),
    "two hosts": (get(host=HOST + b"Host: evil.example\r\n"), 400),
    "two hosts, evil first": (get(host=b"Host: evil.example\r\n" + HOST), 400),
    "two equal hosts": (get(host=HOST + HOST), 400),
    "no host": (get(host=b""), 400),
    "a target of another host": (get(b"GET http://evil.example/fixed HTTP/1.1"), 400),
    "a target without a slash": (get(b"GET fixed HTTP/1.1"), 400),
    "a space in the target": (get(b"GET /fixed x HTTP/1.1"), 400),
    "two spaces before the target": (get(b"GET  /fixed HTTP/1.1"), 400),
    "two spaces before the version": (get(b"GET /fixed  HTTP/1.1"), 400),
    "a version with a lower-case name": (get(b"GET /fixed http/1.1"), 400),
    "no version": (get(b"GET /fixed"), 400),
    "version 2": (get(b"GET /fixed HTTP/2.0"), 505),
    "a chunk size with 0x": (post(TE, b"0x3\r\nabc\r\n" + END), 400),
    "a chunk size with a sign": (post(TE, b"+3\r\nabc\r\n" + END), 400),
    "a chunk size with a space before it": (post(TE, b" 3\r\nabc\r\n" + END), 400),
    "no chunk size": (post(TE, b"\r\nabc\r\n" + END), 400),
    "a chunk size of letters": (post(TE, b"xyz\r\nabc\r\n" + END), 400),
    "a chunk size over 64 bits": (post(TE, b"1000000000000000f\r\nabc\r\n" + END), 413),
    "a chunk that is longer than it says": (post(TE, b"3\r\nabcdef\r\n" + END), 400),
    "trailers that are none": (post(TE, b"3\r\nabc\r\n0\r\nnothing\r\n\r\n"), 400),
}

LEGAL = {
    "a chunked body": (post(TE, b"3\r\nabc\r\n" + END), b"abc"),
    "chunked in capitals": (post(b"TRANSFER-ENCODING: CHUNKED\r\n", b"3\r\nabc\r\n" + END), b"abc"),
    "chunks with extensions": (post(TE, b"2;a=b\r\nab\r\n1;c\r\nc\r\n" + END), b"abc"),
    "chunks with trailers": (post(TE, b"3\r\nabc\r\n0\r\nX-Sum: 5\r\nContent-Length: 7\r\n\r\n"), b"abc"),
    "chunk sizes with zeros": (post(TE, b"0003\r\nabc\r\n00\r\n\r\n"), b"abc"),
    "a length without a space": (post(b"Content-Length:3\r\n", b"abc"), b"abc"),
    "a length behind tabs": (post(b"Content-Length: \t 3\r\n", b"abc"), b"abc"),
    "a length with zeros": (post(b"Content-Length: 0003\r\n", b"abc"), b"abc"),
    "an empty value": (post(b"X-Empty:\r\nX-Space: \r\n" + CL3, b"abc"), b"abc"),
    "a tab and other bytes in a value": (post(b"X-A: a\tb \xc3\xa9\r\n" + CL3, b"abc"), b"abc"),
    "a name of signs": (post(b"!#$%&'*+-.^_`|~1: a\r\n" + CL3, b"abc"), b"abc"),
    "cookies": (post(b"Cookie: a=b; c=\"d\"; e\r\n" + CL3, b"abc"), b"abc"),
    "many headers": (post(b"".join(b"X-%d: %s\r\n" % (i, b"v" * i) for i in range(200)) + CL3, b"abc"), b"abc"),
    "arguments": (get(b"GET /fixed?a=b&c=%20d&e&=f HTTP/1.1"), b"fixed\n"),
    "an escaped path": (get(b"GET /item/a%2fb%41 HTTP/1.1"), b"a/bA"),
    "an absolute target": (get(b"GET http://localhost/fixed HTTP/1.1"), b"fixed\n"),
    "an absolute target with a port": (get(b"GET http://LOCALHOST:80/item/x?a=b HTTP/1.1", host=b"Host: localhost:80\r\n"), b"x"),
    "a body of a GET": (get(headers=CL3) + b"abc", b"fixed\n"),
    "HTTP/1.0": (get(b"GET /fixed HTTP/1.0", host=b""), b"fixed\n"),
    "a length in HTTP/1.0": (post(CL3, b"abc", line=b"POST /echo HTTP/1.0"), b"abc"),
    "an empty line before": (b"\r\n" + get(), b"fixed\n"),
}


def exchange(s, data):
    """All that comes back until the connection ends, which it has to do by itself."""
    s.settimeout(LIMIT_S)
    try:
        s.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended before all was sent
    return read_all(s)


def statuses(answer):
    return [int(n) for n in re.findall(rb"HTTP/1\.1 (\d+) ", answer)]


class Framing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        status, out, err = cls.server.end()
        begun, ended = out.split()[1::2]
        assert status == 0 and begun == ended, (status, out, err)

    def refused(self, s, name, data, status):
        try:
            answer = exchange(s, data)
        except socket.timeout:
            self.fail(f"{name}: still open after {LIMIT_S} s")
        self.assertEqual(statuses(answer), [status], (name, answer))
        return answer

    def test_ambiguous_requests_are_refused(self):
        """As the first request of a connection, and behind another one; a hidden request follows each."""
        for name, (data, status) in BAD.items():
            with self.subTest(name), self.server.socket() as s:
                self.refused(s, name, data + HIDDEN, status)
            with self.subTest("behind another: " + name), self.server.socket() as s:
                s.sendall(get())
                read_until(s, b"fixed\n")
                self.refused(s, name, data + HIDDEN, status)

    def test_refusals_say_why(self):
        for name, word in (("two hosts", "Host"), ("a folded header", "folded"), ("two equal lengths", "Content-Length"),
                           ("a coding before chunked", "chunked"), ("a length with a tab before the colon", "colon")):
            with self.server.socket() as s:
                head, body = self.refused(s, name, *BAD[name]).split(b"\r\n\r\n", 1)
            self.assertIn(b"connection: close", head.lower())
            self.assertEqual(error_code(body), "unknown_transfer_encoding" if b" 501 " in head else "invalid_http")
            self.assertIn(word, body.decode())

    def test_in_pieces(self):
        """Whatever the pieces are in which a head comes."""
        for name in ("a folded header", "a NUL in a value", "lone LFs", "two hosts",
                     "a length that is none, of HEAD"):  # their last byte ends the head
            data, status = BAD[name]
            with self.subTest(name), self.server.socket() as s:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for byte in data[:-1]:
                    s.sendall(bytes([byte]))
                self.refused(s, name, data[-1:], status)
        for name in ("many headers", "an absolute target", "a chunked body"):
            data, body = LEGAL[name]
            with self.subTest(name), self.server.socket() as s:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(0, len(data), 7):
                    s.sendall(data[at:at + 7])
                read_until(s, b"\r\n\r\n" + body)

    def test_legal_requests_are_answered(self):
        for name, (data, body) in LEGAL.items():
            with self.subTest(name), self.server.socket() as s:
                s.settimeout(LIMIT_S)
                s.sendall(data)
                answer = read_until(s, b"\r\n\r\n" + body)
                self.assertEqual(statuses(answer), [200], (name, answer))

    def test_a_refusal_is_for_its_head_alone(self):
        """Whatever heads are half there meanwhile, on whichever thread."""
        bad, status = BAD["a length that is none, of HEAD"]
        halves = [(post(b"Cookie: a=b\r\n" + CL3, b"abc"), 200), (bad, status)] * 8
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(self.server.socket()) for _ in halves]
            for s, (data, _) in zip(sockets, halves):
                s.sendall(get())
                read_until(s, b"fixed\n")
                s.sendall(data[:-5])  # all but the end of the head
            for _ in range(16):
                with self.server.socket() as s:
                    self.refused(s, "whole", bad, status)
            for s, (data, status) in zip(sockets, halves):
                s.sendall(data[-5:])
                answer = read_until(s, b"\r\n\r\n" + (b"abc" if status == 200 else b""))
                self.assertEqual(statuses(answer), [status])
                self.assertEqual(status == 200 or s.recv(1) == b"", True)

    def test_a_refused_connection_is_closed(self):
        """By the server, while the client keeps its side open."""
        before = self.server.files()
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                self.refused(stack.enter_context(self.server.socket()), "a list", *BAD["a list of lengths"])
            until(lambda: self.server.files() <= before, LIMIT_S)

    def test_the_largest_chunk_ends_with_the_clients_time(self):
        """libmicrohttpd takes the size; what comes behind it are bytes of the chunk."""
        with Server("--timeout", "1") as server:
            for behind in (b"", HIDDEN, b"a" * 3000000):
                with self.subTest(behind[:9]), server.socket() as s:
                    self.assertEqual(exchange(s, post(TE, b"ffffffffffffffff\r\n" + behind)), b"")
            self.assertEqual(server.ask("GET", "/fixed")[0], 200)

    def test_a_chunked_body_is_the_last_request(self):
        """libmicrohttpd is lenient about the ends of lines in chunked bodies, so nothing behind one is a request."""
        for body in (b"3\r\nabc\r\n" + END, b"3\nabc\n0\n\n", b"3;\nabc\r\n" + END):
            with self.server.socket() as s:
                answer = exchange(s, post(TE, body + HIDDEN))
            self.assertEqual(len(statuses(answer)), 1, answer)
            self.assertIn(b"connection: close", answer.lower())

    def test_expect(self):
        for headers, body in ((CL3, b"abc"), (TE, b"3\r\nabc\r\n" + END)):
            with self.server.socket() as s:
                s.sendall(post(headers + b"Expect: 100-continue\r\n"))
                self.assertEqual(statuses(read_until(s, b"\r\n\r\n")), [100])
                s.sendall(body)
                self.assertEqual(statuses(read_until(s, b"\r\n\r\nabc")), [200])
        with self.server.socket() as s:
            self.refused(s, "expect", post(CL3 + CL3 + b"Expect: 100-continue\r\n"), 400)

    def test_pipelined_requests(self):
        last = get(headers=b"Connection: close\r\n")
        with self.server.socket() as s:
            answer = exchange(s, get() + post(CL3, b"abc") + get(b"GET http://localhost/item/x HTTP/1.1") + last)
        self.assertEqual(re.findall(rb"\r\n\r\n(abc|x|fixed\n)", answer), [b"fixed\n", b"abc", b"x", b"fixed\n"])
        with self.server.socket() as s:  # those before a refused one are answered, those behind it are not
            answer = exchange(s, get() + post(CL3, b"abc") + BAD["two hosts"][0] + last)
        self.assertEqual(statuses(answer), [200, 200, 400])

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate with")
    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = folder + "/cert.pem", folder + "/key.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                            "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
            with Server("--cert", cert, "--key-file", key) as server:
                context = ssl.create_default_context(cafile=cert)
                context.check_hostname = False
                for name in ("a folded header", "a NUL in a value", "two equal lengths", "lone LFs",
                             "a list of lengths", "a length over 64 bits", "cookies that are too large"):
                    with context.wrap_socket(server.socket()) as s:
                        self.refused(s, name, BAD[name][0] + HIDDEN, BAD[name][1])
                    with self.subTest("behind another: " + name), context.wrap_socket(server.socket()) as s:
                        s.sendall(get())
                        read_until(s, b"fixed\n")
                        self.refused(s, name, BAD[name][0] + HIDDEN, BAD[name][1])
                with context.wrap_socket(server.socket()) as s:
                    s.sendall(LEGAL["many headers"][0])
                    self.assertEqual(statuses(read_until(s, b"\r\n\r\nabc")), [200])


if __name__ == "__main__":
    unittest.main()
