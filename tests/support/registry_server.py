"""A schema registry for tests: Confluent's HTTP interface as far as producers and consumers of Avro use it."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import unquote

from google.protobuf import descriptor_pb2


class Registry:
    """What a running registry knows, and how it misbehaves.

    Attributes:
        url: Its address.
        asked: Paths of requests, in order.
        login: ``user:password`` that it wants; None: none.
        status: Answers this to everything, without a body; None: as it should.
        act: Answers in its place; None: it answers itself.
        guids: Numbers of schemas by GUID.
        serializes: Whether it sends descriptors of Protobuf if asked for them, as Confluent's does.
        logins: Value of ``Authorization`` of each request; None: there was none.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.login: str | None = None
        self.status: int | None = None
        self.act: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.logins: list[str | None] = []
        self.guids: dict[str, int] = {}
        self.serializes = True
        self._schemas: dict[int, dict[str, Any]] = {}
        self._versions: dict[str, list[int]] = {}

    def add(self, schema: Any, subject: str = "s", **more: object) -> int:
        """Register a schema (parsed JSON) as a version of a subject; an equal one keeps its id."""
        entry = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        number = next((n for n, each in self._schemas.items() if each == entry), len(self._schemas) + 1)
        self._schemas[number] = entry
        versions = self._versions.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Status and JSON."""
        path, _, query = path.partition("?")
        status, content = self._answer(path, body)
        text = content.get("schema", "") if isinstance(content, dict) else ""
        if query == "format=serialized" and content.get("schemaType") == "PROTOBUF" and self.serializes:
            content = content | {
                "schema": serialized(text, [ref["name"] for ref in content.get("references", [])])
            }
        return status, content

    def _answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] in (["schemas", "ids"], ["schemas", "guids"]):
            number = int(parts[2]) if parts[1] == "ids" else self.guids.get(parts[2], 0)
            found = self._schemas.get(number)
            return (
                (404, {"error_code": 40403, "message": "Schema not found"}) if found is None else (200, found)
            )
        if parts[0] == "subjects" and len(parts) == 3 and body is not None:
            schema = body["schema"] if body.get("schemaType") == "PROTOBUF" else json.loads(body["schema"])
            if not isinstance(schema, dict | list | str):
                return 422, {"error_code": 42201, "message": "Invalid schema"}
            more = {key: value for key, value in body.items() if key != "schema"}
            return 200, {"id": self.add(schema, parts[1], **more)}
        if parts[0] == "subjects" and len(parts) == 4:
            versions = self._versions.get(parts[1], [])
            version = int(parts[3])
            if version > len(versions):
                return 404, {"error_code": 40402, "message": "Version not found."}
            number = versions[version - 1]
            return 200, {"subject": parts[1], "version": version, "id": number, **self._schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def serialized(text: str, imports: list[str]) -> str:
    """The descriptor of a Protobuf file in base64, as Confluent's registry makes it; what is imported need not be there."""
    if not text.lstrip().startswith(("syntax", "//", "edition")):
        return text  # it is one
    with TemporaryDirectory() as folder:
        for name, content in {"main.proto": text, **{name: FILES[name] for name in imports}}.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(content)
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            f"--descriptor_set_out={folder}/set",
        ]
        subprocess.run([*command, "main.proto"], check=True)
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes()).file
    return base64.b64encode(file.SerializeToString()).decode()


FILES: dict[str, str] = {}
"""Protobuf files by the names under which others import them."""


def confluent(number: int, value: bytes) -> bytes:
    """A value behind the header that names its schema."""
    return b"\0" + number.to_bytes(4, "big") + value


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry on a port of its own."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            registry.asked.append(self.path)
            registry.logins.append(self.headers.get("Authorization"))
            if registry.act is not None:
                registry.act(self)
                return
            wanted = registry.login
            token = "" if wanted is None else "Basic " + base64.b64encode(wanted.encode()).decode()
            if registry.status is not None:
                status, found = registry.status, None
            elif token and self.headers.get("Authorization") != token:
                status, found = 401, {"error_code": 40101, "message": "Unauthorized"}
            else:
                status, found = registry.answer(self.path, body)
            raw = b"" if found is None else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield registry
        finally:
            server.shutdown()
