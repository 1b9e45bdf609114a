"""A client of Confluent's schema registry: schemas by id, kept for ever, and ids for schemas that are written."""

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from schemas.config import SchemaRegistry
from stream.decode.formats.interface import UnavailableError
from stream.service.failure import Failure

ANSWER_BYTES = 8 << 20
"""A longer answer is no schema."""
KEPT_SCHEMAS = 1024
"""Most schemas in memory; the least recently used goes first."""
UNKNOWN_S = 60.0
"""How long an unknown id stays unknown before it is asked for again."""
KEPT_UNKNOWN = 100_000
REFERENCES = 256
"""Most schemas that one refers to, directly or not."""

_UNKNOWN_SCHEMA = 40403
"""Confluent's error code: there is no schema with this id. Any other 404 comes from something else at that address."""
_TYPE = "application/vnd.schemaregistry.v1+json"


class UnknownSchemaError(Exception):
    """The registry has no schema with an id, or one that is not Avro."""


class RegistryClient:
    """Asks one registry and keeps every answer. Used by one thread at a time."""

    def __init__(self, config: SchemaRegistry) -> None:
        self._config, self._url = config, config.url.rstrip("/")
        self._schemas: OrderedDict[int, list[Any]] = OrderedDict()
        self._unknown: dict[int, tuple[float, str]] = {}
        self._context: ssl.SSLContext | None = None

    def known(self, number: int) -> bool:
        """Whether ``schema`` answers without a request."""
        if number in self._schemas:
            return True
        asked_s, _ = self._unknown.get(number, (0.0, ""))
        return asked_s > 0 and time.monotonic() - asked_s < UNKNOWN_S

    def schema(self, number: int) -> list[Any]:
        """The schema with an id as parsed JSON, after those that it refers to.

        Raises:
            UnknownSchemaError: There is none; the sentence names the id and the registry.
            UnavailableError: The registry does not answer, or not as one.
        """
        if number in self._schemas:
            self._schemas.move_to_end(number)
            return self._schemas[number]
        if self.known(number):
            raise UnknownSchemaError(self._unknown[number][1])
        try:
            found = self._fetched(number)
        except UnknownSchemaError as error:
            if len(self._unknown) >= KEPT_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = time.monotonic(), str(error)
            raise
        self._unknown.pop(number, None)
        self._schemas[number] = found
        if len(self._schemas) > KEPT_SCHEMAS:
            self._schemas.popitem(last=False)
        return found

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """The id of a schema under a subject, registered if it is new.

        Raises:
            Failure: The registry refuses it.
            UnavailableError: See ``schema``.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._ask(path, {"schema": json.dumps(schema)})
        if "error_code" in answer:
            raise Failure(f"{self._url} refuses the schema of subject {subject}: {_told(answer)}")
        return int(answer["id"])

    def _fetched(self, number: int) -> list[Any]:
        answer = self._ask(f"/schemas/ids/{number}")
        where = f"the schema registry at {self._url}"
        if "error_code" in answer:
            raise UnknownSchemaError(f"{where} has no schema {number}")
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnknownSchemaError(f"schema {number} of {where} is {kind}, expected AVRO")
        found: dict[tuple[str, int], Any] = {}
        self._follow(answer.get("references") or [], found, number)
        return [*found.values(), self._parsed(answer, number)]

    def _follow(self, references: list[Any], found: dict[tuple[str, int], Any], number: int) -> None:
        """Fetch what a schema refers to, what that refers to first."""
        for each in references:
            key = str(each["subject"]), int(each["version"])
            if key in found:
                continue
            if len(found) >= REFERENCES:
                raise UnknownSchemaError(f"schema {number} refers to more than {REFERENCES} others")
            found[key] = None  # a circle ends here
            answer = self._ask(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}")
            if "error_code" in answer:
                raise UnknownSchemaError(
                    f"schema {number} refers to {key[0]} version {key[1]}: {_told(answer)}"
                )
            self._follow(answer.get("references") or [], found, number)
            del found[key]
            found[key] = self._parsed(answer, number)

    def _parsed(self, answer: dict[str, Any], number: int) -> Any:
        text = answer.get("schema")
        try:
            return json.loads(text)  # type: ignore[arg-type]  # a TypeError is caught
        except (TypeError, ValueError, RecursionError) as error:
            raise UnknownSchemaError(f"schema {number} of {self._url} is not JSON") from error

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; an answer that explains an absence has ``error_code``."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE, **self._login()}
        request = urllib.request.Request(f"{self._url}{path}", data, headers)  # noqa: S310  the key's pattern: http or https
        status = 200
        try:
            with urllib.request.urlopen(  # noqa: S310  likewise
                request, timeout=self._config.timeout_s, context=self._tls()
            ) as found:
                raw = found.read(ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            status, raw = error.code, _rest(error)
        except (
            OSError,
            ValueError,
            HTTPException,
        ) as error:  # time-outs, refused connections, broken answers
            told = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
            raise UnavailableError(f"the schema registry at {self._url} does not answer: {told}") from error
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        said = isinstance(answer, dict)
        if said and status == 200:
            return dict(answer)
        code = answer.get("error_code") if said else None
        gone = status == 404 and (code == _UNKNOWN_SCHEMA or "/subjects/" in path)
        if code is not None and (gone or status in (409, 422)):
            return dict(answer)
        remedy = {
            401: "Check kafka.schema_registry.username and its password",
            403: "Give kafka.schema_registry.username the right to read schemas",
            404: "Check kafka.schema_registry.url",
        }.get(status, "It is asked again")
        raise UnavailableError(
            f"the schema registry at {self._url} answers {path} with HTTP {status}. {remedy}"
        )

    def _login(self) -> dict[str, str]:
        config = self._config
        if config.username is None:
            return {}
        if config.password_file is not None:
            try:
                password = Path(config.password_file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                raise Failure(f"kafka.schema_registry.password_file: {error}") from error
        else:
            password = config.password.get_secret_value() if config.password is not None else ""
        token = base64.b64encode(f"{config.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _tls(self) -> ssl.SSLContext | None:
        if self._context is None and self._url.startswith("https:"):
            try:
                self._context = ssl.create_default_context(cafile=self._config.ssl_cafile)
            except (OSError, ssl.SSLError) as error:
                raise Failure(
                    f"kafka.schema_registry.ssl_cafile {self._config.ssl_cafile}: {error}"
                ) from error
        return self._context


def _rest(error: urllib.error.HTTPError) -> bytes:
    with error, suppress(OSError, HTTPException):
        return error.read(ANSWER_BYTES)
    return b""


def _told(answer: dict[str, Any]) -> str:
    return " ".join(str(answer.get("message", answer["error_code"])).split())
