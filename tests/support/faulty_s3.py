"""A service in front of the S3 service of the tests that does what networks and busy services do."""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import urlsplit

ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    Attributes:
        status: Answered instead of the service's answer; 0: the connection is closed without one.
        code: The error's name in the answer.
        taken: The service gets the request all the same.
        delay_s: Wait before anything else.
        unconditional: The service is not told of If-None-Match and If-Match.
    """

    status: int | None = None
    code: str = "InternalError"
    taken: bool = False
    delay_s: float = 0.0
    unconditional: bool = False


Rule = Callable[[str, str], Fault | None]
"""Given method and path of a request, what happens to it; None: nothing."""


@dataclass
class FaultyS3:
    """The service; ``rule`` may be set at any time.

    Attributes:
        endpoint: Its URL.
        rule: What happens to requests.
        seen: Method and path of each request.
    """

    endpoint: str = ""
    rule: Rule = lambda method, path: None
    seen: list[tuple[str, str]] = field(default_factory=list)

    def once(self, fault: Fault, method: str, part: str, times: int = 1) -> None:
        """From now on the next so many requests whose path has a part meet a fault."""
        left, lock = [times], Lock()

        def rule(found: str, path: str) -> Fault | None:
            with lock:
                if found != method or part not in path or left[0] == 0:
                    return None
                left[0] -= 1
                return fault

        self.rule = rule


@contextmanager
def faulty(service: str) -> Iterator[FaultyS3]:
    """A faulty front of the service at an endpoint."""
    there = urlsplit(service)
    front = FaultyS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            front.seen.append((self.command, self.path))
            fault = front.rule(self.command, self.path) or Fault()
            time.sleep(fault.delay_s)
            answer = None
            if fault.status is None or fault.taken:
                answer = self._forwarded(body, fault.unconditional)
            if fault.status == 0:
                self.close_connection = True
            elif fault.status is not None:
                self._answer(fault.status, {}, ERROR.format(code=fault.code).encode())
            else:
                assert answer is not None
                self._answer(*answer)

        def _forwarded(self, body: bytes, unconditional: bool) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(there.hostname or "", there.port, timeout=30)
            without = {"if-none-match", "if-match"} if unconditional else set()
            headers = {k: v for k, v in self.headers.items() if k.lower() not in without}
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            content = found.read()
            answered = {
                k: v for k, v in found.getheaders() if k.lower() not in {"connection", "date", "server"}
            }
            connection.close()
            return found.status, answered, content

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() != "transfer-encoding":
                    self.send_header(name, value)
            if "content-length" not in {name.lower() for name in headers}:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    for method in ("GET", "PUT", "HEAD", "DELETE", "POST"):
        setattr(Handler, f"do_{method}", Handler.serve)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    front.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        server.server_close()
