# SPDX-License-Identifier: Apache-2.0
"""Many clients of a server that streams, some of which leave in the midst of an answer."""
import http.client
import json
import random
import socket
import threading

LIMIT_S = 120


def post(port, path, body):
    """(status, bytes) of a request on a connection of its own."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        c.request("POST", path, body, {"Content-Type": "application/json"})
        answer = c.getresponse()
        return answer.status, answer.read()
    finally:
        c.close()


def text_of(data):
    """The text of a completion's events, which have to come to their end."""
    events = data.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        raise AssertionError(f"the stream ends with {data[-300:]!r}")
    return "".join(json.loads(e[6:])["choices"][0]["text"] for e in events if e.startswith("data: {"))


def leave(port, path, body, n_bytes):
    """Asks, reads some bytes, and goes away; with a reset if their number is odd."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as s:
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        while n_bytes > 0:
            piece = s.recv(n_bytes)
            if not piece:
                return
            n_bytes -= len(piece)
        if n_bytes % 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def stream(port, n, luck, wanted, **fields):
    """n clients at once stream a completion; a third of them leave. What went wrong, as a list: an answer that is not `wanted`."""
    rng, bad = random.Random(luck), []
    body = json.dumps({**fields, "stream": True}).encode()

    def client(leaves_after):
        try:
            if leaves_after is not None:
                leave(port, "/v1/completions", body, leaves_after)
                return
            status, data = post(port, "/v1/completions", body)
            if status != 200 or text_of(data) != wanted:
                bad.append((status, data[-300:]))
        except (OSError, AssertionError, http.client.HTTPException) as e:
            bad.append(repr(e))

    threads = [threading.Thread(target=client, args=(rng.choice([None, None, rng.randrange(4000)]),)) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return bad
