"""The HTTP endpoint of a service: /metrics for Prometheus, /healthz (alive) and /readyz (making progress)."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from schemas.config import Metrics
from stream.service.failure import Failure

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Readiness = Callable[[], str | None]
"""Returns None when the service makes progress, else the reason why it does not."""


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line each."""


class Endpoint:
    """Serves a registry and two health answers from a daemon thread until ``close``.

    Args:
        metrics: Address and port; port 0 takes any free one.
        registry: What /metrics shows.
        readiness: Asked at every /readyz.

    Attributes:
        port: The port in use.

    Raises:
        Failure: The address cannot be bound.
    """

    def __init__(self, metrics: Metrics, registry: CollectorRegistry, readiness: Readiness) -> None:
        exposition = make_wsgi_app(registry)
        try:
            self._server: WSGIServer = make_server(
                metrics.host, metrics.port, _application(exposition, readiness), handler_class=_QuietHandler
            )
        except OSError as error:
            raise Failure(
                f"metrics cannot be served on {metrics.host}:{metrics.port}: {error.strerror}; "
                "choose another metrics.port (0: any free one)"
            ) from error
        self.host = metrics.host
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Base address of the endpoint."""
        return f"http://{self.host}:{self.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _application(exposition: "WSGIApplication", readiness: Readiness) -> "WSGIApplication":
    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return exposition(environ, start_response)
        if path == "/healthz":
            return _text(start_response, "200 OK", "alive")
        if path == "/readyz":
            reason = readiness()
            return _text(start_response, "503 Service Unavailable" if reason else "200 OK", reason or "ready")
        return _text(start_response, "404 Not Found", "try /metrics, /healthz or /readyz")

    return application


def _text(start_response: "StartResponse", status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
