"""A client of Confluent's schema registry: schemas by id, also from files, and ids for schemas that are written."""

import base64
import io
import json
import socket
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit

from freshet_graph.schemas.config import SchemaRegistry
from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.decode.confluent import GUIDS, is_guid
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.service.failure import Failure

ANSWER_BYTES = 8 << 20
"""A longer answer is no schema."""
REFERENCES = 256
"""Most schemas that one refers to, directly or not."""
REDIRECTIONS = 5
"""Most redirections of a request. The login goes to the configured origin only."""

_REDIRECTED = (301, 302, 303, 307, 308)
_SOON_S = 0.001
"""Time-out once the time is up: 0 would mean not to wait for anything."""

_UNKNOWN_SCHEMA = 40403
"""Confluent's error code: there is no schema with this id. Any other 404 comes from something else at that address."""
_TYPE = "application/vnd.schemaregistry.v1+json"


class UnknownSchemaError(Exception):
    """The registry has no schema with an id, or one of another kind."""


class RegistryClient:
    """Asks one registry, at each call. Used by one thread at a time."""

    def __init__(self, config: SchemaRegistry) -> None:
        self._config = config
        self._urls = deque(config.urls)  # the first one answered last
        self._context: ssl.SSLContext | None = None

    def schema(self, number: int) -> list[Any]:
        """The Avro schema of a number as parsed JSON, after those that it refers to.

        Args:
            number: Its id, or the number of its GUID (``confluent.GUIDS``).

        Raises:
            UnknownSchemaError: There is none; the sentence names the id and the registry.
            UnavailableError: The registry does not answer, or not as one; or a file of schemas, of its password or of
                certificates can't be read, as for a moment while it is replaced.
        """
        return [
            _json(content, GUIDS.name(number), self._where) for _, content in self._contents(number, "AVRO")
        ]

    def protobuf(self, number: int) -> list[tuple[str, str | bytes]]:
        """The Protobuf schema of a number, after those that it imports: the name of each, and its content as the registry has it.

        A registry sends a descriptor in base64 if it can, otherwise text. The content of a file is bytes.

        Raises:
            UnknownSchemaError, UnavailableError: See ``schema``.
        """
        return self._contents(number, "PROTOBUF", "?format=serialized")

    def kind(self, number: int) -> str:
        """The kind of a schema in the registry: AVRO, PROTOBUF or JSON.

        Raises:
            UnknownSchemaError, UnavailableError: See ``schema``.
        """
        return str(self._answer(number, "", self._until_s()).get("schemaType", "AVRO"))

    def _contents(self, number: int, kind: str, query: str = "") -> list[tuple[str, Any]]:
        name, until_s = GUIDS.name(number), self._until_s()
        path = self._config.files.get(name)
        if path is not None:
            try:
                return [(name, Path(path).read_bytes())]
            except OSError as error:
                raise UnavailableError(f"kafka.schema_registry.files[{name}]: {one_line(error)}") from error
        answer = self._answer(number, query, until_s)
        found_kind = answer.get("schemaType", "AVRO")
        if found_kind != kind:
            raise UnknownSchemaError(
                f"schema {name} of {self._where} is {found_kind}, expected {kind} (config key kafka.topics.format)"
            )
        references: dict[tuple[str, int], Any] = {}
        self._follow(answer, references, name, until_s, query)
        return [*references.values(), (name, answer["schema"])]

    def _answer(self, number: int, query: str, until_s: float) -> dict[str, Any]:
        name = GUIDS.name(number)
        if not self._urls:
            raise UnknownSchemaError(
                f"schema {name} is not in kafka.schema_registry.files. Name its file there"
            )
        answer = self._ask(
            f"/schemas/{'guids' if is_guid(number) else 'ids'}/{name}{query}", "schema", str, until_s
        )
        if "error_code" in answer:
            raise UnknownSchemaError(f"{self._where} has no schema {name}")
        return answer

    @property
    def _where(self) -> str:
        return f"the schema registry at {self._urls[0]}" if self._urls else "kafka.schema_registry.files"

    def register(self, subject: str, schema: dict[str, Any] | str, kind: str = "AVRO") -> int:
        """The id of a schema of a kind (AVRO, JSON, PROTOBUF) under a subject, registered if it is new.

        Raises:
            Failure: The registry refuses it, or schemas are in files.
            UnavailableError: See ``schema``.
        """
        if not self._urls:
            raise Failure(
                "kafka.schema_registry has no url, so no schema can be registered. Give its address"
            )
        path = f"/subjects/{quote(subject, safe='')}/versions"
        body = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema),
            **({} if kind == "AVRO" else {"schemaType": kind}),
        }
        answer = self._ask(path, "id", int, self._until_s(), body)
        if "error_code" in answer:
            raise Failure(f"{self._urls[0]} refuses the schema of subject {subject}: {_reason(answer)}")
        return int(answer["id"])

    def _follow(
        self,
        schema: dict[str, Any],
        references: dict[tuple[str, int], Any],
        number: str,
        until_s: float,
        query: str,
    ) -> None:
        """Fetch what a schema refers to, what that refers to first: the name by which it does, and the content."""
        try:
            keys = {
                (str(reference["subject"]), int(reference["version"])): str(reference.get("name"))
                for reference in schema.get("references") or []
            }
        except (LookupError, TypeError, ValueError, AttributeError):
            raise UnknownSchemaError(
                f"schema {number} refers to others without subject and version"
            ) from None
        for key, name in keys.items():
            if key in references:
                continue
            if len(references) >= REFERENCES:
                raise UnknownSchemaError(f"schema {number} refers to more than {REFERENCES} others")
            references[key] = None  # a circle ends here
            path = f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}{query}"
            answer = self._ask(path, "schema", str, until_s)
            if "error_code" in answer:
                raise UnknownSchemaError(
                    f"schema {number} refers to {key[0]} version {key[1]}: {_reason(answer)}"
                )
            self._follow(answer, references, number, until_s, query)
            del references[key]
            references[key] = name, answer["schema"]

    def _until_s(self) -> float:
        return time.monotonic() + self._config.timeout_s

    def _ask(
        self, path: str, key: str, kind: type, until_s: float, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The answer of the first address that gives one: ``key`` of type ``kind``, or an ``error_code``."""
        silent = []
        for left in range(len(self._urls), 0, -1):
            share_s = (until_s - time.monotonic()) / left
            try:
                return self._ask_one(path, key, kind, time.monotonic() + share_s, body)
            except UnavailableError as error:
                silent.append(str(error))
                self._urls.rotate(-1)
        raise UnavailableError("; ".join(silent))

    def _ask_one(
        self, path: str, key: str, kind: type, until_s: float, body: dict[str, Any] | None
    ) -> dict[str, Any]:
        where = self._where
        via = _proxy_of(self._urls[0])
        try:
            status, raw = self._answered(f"{self._urls[0]}{path}", until_s, body)
        except (
            OSError,
            ValueError,
            HTTPException,
        ) as error:  # time-outs, refused connections, broken answers
            self._context = None  # its file may have been replaced
            cause = one_line(
                error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
            )
            raise UnavailableError(f"{where} does not answer: {cause}{via}") from error
        if len(raw) > ANSWER_BYTES:
            raise UnavailableError(
                f"{where} answers {path} with more than {ANSWER_BYTES >> 20} MiB. It is asked again{via}"
            )
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        content = answer if isinstance(answer, dict) else {}
        code = content.get("error_code")
        if status == HTTPStatus.OK and code is None and isinstance(content.get(key), kind):
            return content
        gone = status == HTTPStatus.NOT_FOUND and (code == _UNKNOWN_SCHEMA or "/subjects/" in path)
        if code is not None and (gone or status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)):
            return content
        remedy = {
            200: f"It has no {key}. Check kafka.schema_registry.url",
            401: "Check kafka.schema_registry.username and its password",
            403: "Give kafka.schema_registry.username the right to read schemas",
            404: "Check kafka.schema_registry.url",
        }.get(status, "It is asked again")
        raise UnavailableError(f"{where} answers {path} with HTTP {status}. {remedy}{via}")

    def _answered(self, url: str, until_s: float, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """Status and content, at most a byte more than ``ANSWER_BYTES``, after redirections of a request without a body."""
        data = None if body is None else json.dumps(body).encode()
        opener = (
            urllib.request.OpenerDirector()
        )  # with HTTP only: neither files, nor redirections that take a login along
        opener.add_handler(urllib.request.ProxyHandler())
        opener.add_handler(_Timely(until_s, self._tls))
        login, first_origin = self._login(), _origin(url)
        for _ in range(REDIRECTIONS + 1):
            headers = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE}
            if _origin(url) == first_origin:
                headers |= login
            request = urllib.request.Request(url, data, headers)  # noqa: S310  http or https, by _origin
            with opener.open(request, timeout=max(until_s - time.monotonic(), _SOON_S)) as answer:
                target = answer.headers.get("Location")
                if answer.status not in _REDIRECTED or target is None or data is not None:
                    return answer.status, answer.read(ANSWER_BYTES + 1)
                url = urljoin(url, target)
        raise ValueError(f"more than {REDIRECTIONS} redirections")

    def _login(self) -> dict[str, str]:
        config = self._config
        if config.username is None:
            return {}
        if config.password_file is not None:
            try:
                password = Path(config.password_file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                raise UnavailableError(f"kafka.schema_registry.password_file: {one_line(error)}") from error
        else:
            password = config.password.get_secret_value() if config.password is not None else ""
        token = base64.b64encode(f"{config.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            try:
                self._context = ssl.create_default_context(cafile=self._config.ssl_cafile)
            except (OSError, ssl.SSLError) as error:
                raise UnavailableError(
                    f"kafka.schema_registry.ssl_cafile {self._config.ssl_cafile}: {error.strerror or error}"
                ) from error
        return self._context


class _Timely(urllib.request.AbstractHTTPHandler):
    """HTTP and HTTPS, whose answers have to be there by a time of ``time.monotonic``, however slowly they come."""

    def __init__(self, until_s: float, tls: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._until_s, self._tls = until_s, tls

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPSConnection), request, context=self._tls())

    def _connection(self, kind: type[HTTPConnection], host: str, **how: Any) -> HTTPConnection:
        made = kind(host, **how)
        made.response_class = self._response  # type: ignore[assignment]  # it is only called
        return made

    def _response(self, connected: socket.socket, **how: Any) -> HTTPResponse:
        return HTTPResponse(cast(socket.socket, _Timed(connected, self._until_s)), **how)


class _Timed(io.RawIOBase):
    """The bytes of a connection up to a time: the time-out of a socket is one for each piece."""

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self._connected, self._until_s = connected, until_s
        self._bytes = connected.makefile("rb", buffering=0)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What ``HTTPResponse`` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(left_s)
        return self._bytes.readinto(into)

    def close(self) -> None:
        self._bytes.close()
        super().close()


def _origin(url: str) -> tuple[str, str | None, int]:
    """Scheme, host and port of an address.

    Raises:
        ValueError: It is not HTTP, or has a login.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise ValueError("a redirection to an address that is not HTTP, or has a login")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _proxy_of(url: str) -> str:
    """A sentence about the proxy of an address, which the environment names; empty without one."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is None or urllib.request.proxy_bypass(parts.netloc):
        return ""
    shown = proxy.rpartition("@")[2].rpartition("//")[2]  # without a login
    return (
        f". The proxy {shown} was asked, which {parts.scheme}_proxy in the environment names. Put {parts.hostname} into "
        "no_proxy to go past it"
    )


def _json(content: str | bytes, name: str, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnknownSchemaError(f"schema {name} of {where} is not JSON") from error


def _reason(answer: dict[str, Any]) -> str:
    return " ".join(str(answer.get("message", answer["error_code"])).split())
