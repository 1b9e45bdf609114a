"""HTTP of a service: a bounded server, and the endpoint with /metrics for Prometheus, /healthz (does not hang) and /readyz."""

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, make_wsgi_app
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from freshet_graph.schemas.config import Metrics
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat, silent_s

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Readiness = Callable[[], str | None]
"""Returns None if the service makes progress, else the reason why it does not."""

CONNECTIONS = 300
"""Connections open at once. Further ones wait until one of these is closed."""

REQUEST_S = 10
"""A connection is closed this long after it was opened or last answered unless it is being answered, so silent and slow ones
don't pile up."""

LOOK_S = 1
"""How often connections are checked for that."""

CLOSE_S = 1
"""How long the end of a process waits for answers under way."""


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection, which begins again with each answer."""

    def service(self) -> None:
        """Answer a request."""
        super().service()
        self.creation_time = time.time()


class _Server(TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """Waitress, which reads requests without blocking and gives threads only complete ones."""

    def maintenance(self, now: float) -> None:
        """Close connections by age; waitress alone would wait as long as bytes of a slow request arrive."""
        for channel in self.active_channels.values():
            if not channel.requests and now - channel.creation_time > REQUEST_S:
                channel.will_close = True

    def end(self) -> None:
        """End the loop, on its own thread. Its wake-up socket stays open, because answering threads write to it by number."""
        self.trigger.del_channel()
        for channel in list(self._map.values()):
            wasyncore.dispatcher.close(channel)


class HttpServer:
    """Serves an application from daemon threads until ``close``, within bounds of connections, seconds and bytes.

    Args:
        application: Answers.
        host: Address.
        port: 0: any free one.
        section: Of the configuration, with the keys ``host`` and ``port``; it names the threads, too.
        threads: That answer.
        body_bytes: Bytes of a request's body, fewer than this.
        channel: Of a connection.

    Attributes:
        port: The port in use.

    Raises:
        Failure: The address cannot be bound.
    """

    def __init__(
        self,
        application: "WSGIApplication",
        host: str,
        port: int,
        section: str,
        *,
        threads: int,
        body_bytes: int,
        channel: type[Channel] = Channel,
    ) -> None:
        try:
            bound = _bound(host, port)
        except OSError as error:
            remedy = (
                f"Choose another {section}.port (0: any free one)"
                if error.errno in (errno.EADDRINUSE, errno.EACCES)
                else f"Choose another {section}.host: an address of this machine, or 0.0.0.0 or :: for all"
            )
            reason = str(error.strerror).partition(" (")[0]  # Python repeats the address there
            what = "metrics" if section == "metrics" else "questions"
            raise Failure(f"{what} cannot be served on {_origin(host, port)}: {reason}. {remedy}") from error
        # Busy threads and a full house are no news, and neither is a client that goes away.
        for name in ("waitress", "waitress.queue"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._server = _Server(
            application,
            _sock=bound,
            bind_socket=False,
            threads=threads,
            connection_limit=CONNECTIONS,
            cleanup_interval=LOOK_S,
            log_socket_errors=False,
            max_request_header_size=16 << 10,
            max_request_body_size=body_bytes,
            asyncore_loop_timeout=LOOK_S,
            asyncore_use_poll=True,
        )
        self._server.channel_class = channel
        self.host = host
        self.port: int = bound.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, name=section, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://{_origin(self.host, self.port)}"

    def close(self) -> None:
        """Stop serving, even while clients are connected."""
        trigger, answering = self._server.trigger, self._server.task_dispatcher
        trigger.pull_trigger(self._server.end)
        self._thread.join()
        answering.shutdown(timeout=CLOSE_S)
        if not answering.threads:  # else one of them still uses it
            trigger.close()


class Endpoint(HttpServer):
    """Serves a registry and two health answers.

    /healthz fails if ``freshet_graph.stream.service.heartbeat.beat`` was not called for ``metrics.hung_after_s``.

    Args:
        metrics: Address, port (0: any free one) and the bound of /healthz.
        registry: Content of /metrics.
        readiness: Called at every /readyz.

    Raises:
        Failure: The address cannot be bound.
    """

    def __init__(self, metrics: Metrics, registry: CollectorRegistry, readiness: Readiness) -> None:
        beat()
        application = _application(make_wsgi_app(registry), readiness, metrics.hung_after_s)
        super().__init__(application, metrics.host, metrics.port, "metrics", threads=4, body_bytes=1 << 10)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket. The address of all IPv6 interfaces takes IPv4 clients too, where the system can."""
    if ":" not in host:
        return socket.create_server((host, port))
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=both)


def _origin(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _application(
    exposition: "WSGIApplication", readiness: Readiness, hung_after_s: float
) -> "WSGIApplication":
    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return exposition(environ, start_response)
        if path == "/healthz":
            silence_s = silent_s()
            hangs = silence_s > hung_after_s
            reason = (
                f"the main loop has not moved for {silence_s:.0f} s (metrics.hung_after_s: {hung_after_s:g})"
            )
            return _text(start_response, reason if hangs else None, "alive")
        if path == "/readyz":
            return _text(start_response, readiness(), "ready")
        start_response("404 Not Found", _PLAIN)
        return [b"try /metrics, /healthz or /readyz\n"]

    return application


_PLAIN = [("Content-Type", "text/plain; charset=utf-8")]


def _text(start_response: "StartResponse", reason: str | None, well: str) -> Iterable[bytes]:
    start_response("503 Service Unavailable" if reason else "200 OK", _PLAIN)
    return [f"{reason or well}\n".encode()]
