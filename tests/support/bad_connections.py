"""Connections that want nothing good of an HTTP server: silent, slow, half-open, and ones that never read."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: freshet\r\n"
KINDS = ("silent", "slow", "half-open", "deaf")


@contextmanager
def bad_connections(port: int, many: int, *, host: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Hold so many connections open, of all kinds in turn; slow ones send a header now and then for as long."""
    over = threading.Event()
    with ExitStack() as stack:
        found = [stack.enter_context(_bad(host, port, KINDS[k % len(KINDS)])) for k in range(many)]
        dripping = threading.Thread(target=_drip, args=(found[KINDS.index("slow") :: len(KINDS)], over))
        dripping.start()
        stack.callback(dripping.join)
        stack.callback(over.set)
        yield found


def _bad(host: str, port: int, kind: str) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(30)
    if kind == "deaf":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((host, port))
    if kind == "slow":
        connection.sendall(REQUEST)
    elif kind == "half-open":
        connection.sendall(REQUEST)
        connection.shutdown(socket.SHUT_WR)
    elif kind == "deaf":
        connection.sendall(REQUEST + b"\r\n")
    return connection


def _drip(slow: list[socket.socket], over: threading.Event) -> None:
    while not over.wait(0.1):
        for connection in slow:
            with suppress(OSError):  # it was closed, as it should be
                connection.sendall(b"A: b\r\n")
