# SPDX-License-Identifier: Apache-2.0
"""A port for a server of a test."""
import socket

KEPT = []  # sockets, until this process ends


def free_port():
    """A port of 127.0.0.1 that the kernel gives to nobody else while this process lives: a socket stays bound to it. A
    server may listen there nonetheless, because both sockets have SO_REUSEADDR, and only the server listens."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    KEPT.append(s)
    return s.getsockname()[1]
