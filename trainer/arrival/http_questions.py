"""Questions over HTTP: paths, tokens, statuses, the OpenAPI description, metrics."""

import hmac
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from pydantic import BaseModel
from pydantic_core import from_json
from waitress.task import ErrorTask

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.trainer_config import Serve
from freshet_graph.schemas.version import version
from freshet_graph.stream.service.endpoint import Channel, HttpServer
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.arrival.questions import (
    EVENTS,
    Desk,
    EventAsked,
    RankAsked,
    Ranking,
    Scores,
    Version,
    WrongQuestionError,
)
from freshet_graph.trainer.arrival.turns import FullError, LateError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

BODY_BYTES = 256 << 10
"""A request's body has fewer bytes than this."""
THREADS = 16
"""More than questions may wait, so that the next one is refused at once."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

METHODS = {"/score": "POST", "/rank": "POST", "/version": "GET", "/openapi.json": "GET", "/readyz": "GET"}
OPEN = {"/openapi.json", "/readyz"}
"""Paths without a token."""
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    422: "Unprocessable Content", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

log = structlog.get_logger()


class QuestionMetrics:
    """Series of questions, listed in docs/metrics.md.

    Args:
        registry: Of the scorer.
        graph: Says the graph's name; empty until the log is open.
    """

    def __init__(self, registry: CollectorRegistry, graph: Callable[[], str]) -> None:
        prefix: dict[str, Any] = {"namespace": "freshet", "registry": registry}
        self._graph = graph
        self._requests = Counter(
            "scorer_requests", "Requests answered over HTTP", ("graph", "path", "status"), **prefix
        )
        self._seconds = Histogram(
            "scorer_answer_seconds",
            "From a whole request to its answer",
            ("graph", "path"),
            buckets=SECONDS,
            **prefix,
        )

    def begin(self) -> None:
        """Show the counts that are known to come, as zeros."""
        for path in METHODS:
            for status in (200, 401, 429) if path not in OPEN else (200,):
                self._requests.labels(self._graph(), path, str(status))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request has its answer."""
        self._requests.labels(self._graph(), path, str(status)).inc()
        if status == 200:
            self._seconds.labels(self._graph(), path).observe(seconds)


class BearerTokens:
    """The tokens of a file, which is read for each question, so that a new file counts at once.

    Args:
        file: One token per line; None: none is needed.

    Raises:
        Failure: It cannot be read, or has no token.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        self.read()

    def read(self) -> list[bytes]:
        """The tokens.

        Raises:
            Failure: See the class.
        """
        if self._file is None:
            return []
        try:
            lines = Path(self._file).read_bytes().splitlines()
        except OSError as error:
            raise Failure(f"key serve.token_file: {one_line(error)}") from error
        tokens = [line.strip() for line in lines if line.strip()]
        if not tokens:
            raise Failure(f"key serve.token_file: {self._file} has no token. Write one per line")
        return tokens

    def allow(self, authorization: str) -> bool:
        """Whether a header's value has a token; all are compared, in the same time whatever it is.

        Raises:
            Failure: See the class.
        """
        if self._file is None:
            return True
        kind, _, given = authorization.partition(" ")
        token = given.strip().encode("latin-1", "replace")
        same = [hmac.compare_digest(token, one) for one in self.read()]
        return kind.lower() == "bearer" and any(same)


class QuestionApplication:
    """The WSGI application.

    Args:
        tokens: Who may ask.
        metrics: Counts.
        obstacle: Says why nothing can be answered yet.

    Attributes:
        desk: Answers; None until there is a scorer, see ``open``.
    """

    def __init__(
        self, tokens: BearerTokens, metrics: QuestionMetrics, obstacle: Callable[[], str | None]
    ) -> None:
        self._tokens, self._metrics, self._obstacle = tokens, metrics, obstacle
        self.desk: Desk | None = None

    def open(self, desk: Desk) -> None:
        """Answer from now on."""
        self._metrics.begin()
        self.desk = desk

    @property
    def not_ready(self) -> str | None:
        """Why questions cannot be answered; None: they can."""
        try:
            self._tokens.read()
        except Failure as error:
            return one_line(error)
        return None if self.desk is not None else self._obstacle() or "starting"

    def refused(self, status: int) -> None:
        """A request could not be read."""
        self._metrics.answered("other", status, 0.0)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        began_s, path = time.perf_counter(), environ.get("PATH_INFO", "/")
        headers: list[tuple[str, str]] = []
        try:
            status, content = self._answer(path, environ, headers)
        except Exception:
            log.exception("a question could not be answered", path=path if path in METHODS else "other")
            status, content = 500, _error("this question met a defect, which the log shows. Report it")
        body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        start_response(f"{status} {REASONS[status]}", [*_JSON, *headers])
        self._metrics.answered(path if path in METHODS else "other", status, time.perf_counter() - began_s)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _answer(
        self, path: str, environ: "WSGIEnvironment", headers: list[tuple[str, str]]
    ) -> tuple[int, dict[str, Any]]:
        again = ("Retry-After", "1")
        if path not in METHODS:
            return 404, _error(f"there is no such path. Try {', '.join(METHODS)}")
        if environ["REQUEST_METHOD"] != METHODS[path]:
            headers.append(("Allow", METHODS[path]))
            return 405, _error(f"{path} is asked with {METHODS[path]}")
        if path == "/openapi.json":
            return 200, description()
        if path == "/readyz":
            reason = self.not_ready
            return (503, _error(reason)) if reason else (200, {"ready": True})
        try:
            if not self._tokens.allow(environ.get("HTTP_AUTHORIZATION", "")):
                headers.append(("WWW-Authenticate", "Bearer"))
                return 401, _error(
                    "the token is missing or wrong. Send the header Authorization: Bearer and a token of "
                    "serve.token_file"
                )
        except Failure as error:
            headers.append(again)
            return 503, _error(one_line(error))
        content = None
        if METHODS[path] == "POST":
            try:
                content = from_json(_body(environ), allow_inf_nan=False)
            except ValueError as error:
                return 400, _error(f"the body is not JSON: {one_line(error):.200}")
        if self.desk is None:
            headers.append(again)
            return 503, _error(self._obstacle() or "starting")
        try:
            return 200, self._of_desk(self.desk, path, content)
        except WrongQuestionError as error:
            return 422, _error(str(error))
        except FullError as error:
            headers.append(again)
            return 429, _error(str(error))
        except LateError as error:
            headers.append(again)
            return 503, _error(str(error))

    def _of_desk(self, desk: Desk, path: str, content: Any) -> dict[str, Any]:
        if path == "/version":
            return desk.version(version())
        return desk.score(content) if path == "/score" else desk.rank(content)


_JSON = [("Content-Type", "application/json")]


def _body(environ: "WSGIEnvironment") -> bytes:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if not body:
        raise ValueError("it is empty")
    return bytes(body)


def _error(sentence: str) -> dict[str, Any]:
    return {"error": sentence}


UNREADABLE = {
    413: f"the body has {BODY_BYTES} bytes or more. Ask several questions",
    431: "the header has 16384 bytes or more. Send a shorter one",
    500: "this request met a defect. Report it",
    501: "a transfer encoding is not known. Send the body plain or chunked",
}


class _Unreadable(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """The answer to a request that is no HTTP, or too large."""

    def execute(self) -> None:
        error = self.request.error
        sentence = (
            UNREADABLE.get(error.code) or f"the request is not HTTP: {one_line(ValueError(error.body))}"
        )
        body = json.dumps(_error(sentence)).encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers.extend(_JSON)
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)
        self.channel.refused(error.code)


class _Channel(Channel):
    error_task_class = _Unreadable
    refused: Callable[[int], None]


class QuestionServer(HttpServer):
    """Serves questions as the key ``serve`` says, from daemon threads until ``close``.

    Args:
        serve: The key.
        metrics: Counts.
        obstacle: Says why nothing can be answered yet.

    Attributes:
        questions: The application.

    Raises:
        Failure: The address cannot be bound, or there is no token in the file.
    """

    def __init__(self, serve: Serve, metrics: QuestionMetrics, obstacle: Callable[[], str | None]) -> None:
        self.questions = QuestionApplication(BearerTokens(serve.token_file), metrics, obstacle)
        channel = type("CountedChannel", (_Channel,), {"refused": staticmethod(self.questions.refused)})
        super().__init__(
            self.questions, serve.host, serve.port, "serve",
            threads=THREADS, body_bytes=BODY_BYTES, channel=channel,
        )  # fmt: skip


def description() -> dict[str, Any]:
    """The OpenAPI description of all paths, made of the classes that requests and answers are checked by."""
    schemas: dict[str, Any] = {}

    def of(kind: type[BaseModel]) -> dict[str, str]:
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[kind.__name__] = schema
        return {"$ref": f"#/components/schemas/{kind.__name__}"}

    def content(schema: dict[str, Any], about: str) -> dict[str, Any]:
        return {"description": about, "content": {"application/json": {"schema": schema}}}

    error = {
        "type": "object", "required": ["error"], "additionalProperties": False,
        "properties": {"error": {"type": "string", "description": "What is wrong, and the remedy."}},
    }  # fmt: skip
    schemas["Error"] = error
    refused = {"$ref": "#/components/schemas/Error"}
    event = of(EventAsked)
    bodies = {
        "/score": {"oneOf": [event, {"type": "array", "items": event, "minItems": 1, "maxItems": EVENTS}]},
        "/rank": of(RankAsked),
    }
    answers: dict[str, tuple[dict[str, Any], str]] = {
        "/score": (of(Scores), "Scores of events that may happen next, each as if it alone came now."),
        "/rank": (of(Ranking), "Destinations of a source by their scores."),
        "/version": (of(Version), "What answers at present."),
        "/openapi.json": ({"type": "object"}, "This description."),
        "/readyz": ({"type": "object", "properties": {"ready": {"const": True}}}, "Questions are answered."),
    }
    faults = {
        "400": "The body is not JSON, or the request is not HTTP.", "401": "The token is missing or wrong.",
        "413": "The body is too large.", "422": "A key is missing, unknown or wrong.",
        "429": "Too many questions wait.", "503": "It cannot be answered yet, or was not in time.",
    }  # fmt: skip
    paths: dict[str, Any] = {}
    for path, method in METHODS.items():
        wanted = [code for code in faults if method == "POST" or code in ("401", "429", "503")]
        if path in OPEN:
            wanted = ["503"] if path == "/readyz" else []
        operation: dict[str, Any] = {
            "operationId": path.strip("/").partition(".")[0],
            "summary": answers[path][1],
            "responses": {
                "200": content(*answers[path]),
                **{code: content(refused, faults[code]) for code in wanted},
            },
            "security": [] if path in OPEN else [{"token": []}],
        }
        if path in bodies:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": bodies[path]}},
            }
        paths[path] = {method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Freshet: questions to a scorer", "version": version()},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
