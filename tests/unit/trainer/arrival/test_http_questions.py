"""Questions over HTTP: right statuses and one sentence for whatever comes, and a server that stands it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bad_connections import KINDS, bad_connections
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry, generate_latest

from freshet_graph.schemas.trainer_config import Serve
from freshet_graph.stream.service import endpoint as served
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.arrival import http_questions as module
from freshet_graph.trainer.arrival.http_questions import (
    BODY_BYTES,
    METHODS,
    QuestionMetrics,
    QuestionServer,
    description,
)
from freshet_graph.trainer.arrival.questions import WrongQuestionError
from freshet_graph.trainer.arrival.turns import FullError, LateError

KNOWN = {
    "graph": "g", "model_version": "v", "checkpoint": 1, "memory": "checkpoint", "learned_until": 2.0, "known_commit": 3,
    "known_rows": None, "known_until": 4.0,
}  # fmt: skip
REASONS = {
    "pair_events": 0, "pair_age_s": None, "source_events": 0, "destination_events": 0, "recent_share": None,
}  # fmt: skip
RANKED = {"dst": 2, "score": 1.5, "percentile": None, "reasons": REASONS}


class FakeDesk:
    """Answers at once, or as a test wants."""

    def __init__(self) -> None:
        self.raised: Exception | None = None
        self.asked: list[Any] = []

    def version(self, version: str) -> dict[str, Any]:
        return {**KNOWN, "version": version, "model": "tgn-history", "ids": "int"}

    def score(self, content: Any) -> dict[str, Any]:
        self.asked.append(content)
        if self.raised is not None:
            raise self.raised
        return {
            **KNOWN,
            "scores": [{"src": 1, "t": 5.0, "event_id": None, **RANKED, "label_probability": None}],
        }

    def rank(self, content: Any) -> dict[str, Any]:
        self.asked.append(content)
        return {**KNOWN, "src": 1, "t": 5.0, "destinations": [RANKED], "ranked": 1, "of": 1}


@contextmanager
def serving(desk: FakeDesk | None, **keys: Any) -> Iterator[QuestionServer]:
    registry = CollectorRegistry()
    metrics = QuestionMetrics(registry, lambda: "g")
    server = QuestionServer(Serve(port=0, **keys), metrics, lambda: "no checkpoint yet")
    if desk is not None:
        server.questions.open(desk)  # type: ignore[arg-type]
    server.registry = registry  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def server(desk: FakeDesk) -> Iterator[QuestionServer]:
    with serving(desk) as one:
        yield one


def asked(
    server: QuestionServer, path: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    method = method or ("GET" if body is None else "POST")
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(content), answer.headers


def raw(server: QuestionServer, *parts: bytes, end: bool = False) -> bytes:
    """All that comes back for some bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        for part in parts:
            client.sendall(part)
        if end:
            client.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionResetError):  # it was closed before all bytes were read
            while piece := client.recv(65536):
                received += piece
        return received


# -- right questions


def test_answers_are_as_described(server: QuestionServer) -> None:
    spec = description()
    got = asked(server, "/openapi.json")
    assert got[:2] == (200, json.loads(json.dumps(spec)))
    assert {(path, method.upper()) for path, methods in spec["paths"].items() for method in methods} == set(
        METHODS.items()
    )
    bodies = {"/score": b'{"src": 1, "dst": 2, "t": 5}', "/rank": b'{"src": 1, "t": 5}'}
    for path, method in METHODS.items():
        operation = spec["paths"][path][method.lower()]
        status, content, _ = asked(server, path, bodies.get(path))
        assert status == 200
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": spec["components"]}).validate(content)
    described = {
        code for path in spec["paths"].values() for one in path.values() for code in one["responses"]
    }
    assert described <= {str(code) for code in {*module.REASONS, *module.UNREADABLE}}


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"src": 1, "dst": "a", "t": 1.5, "weight": 2, "features": [1], "event_id": "x"}, True),
        ([{"src": 1, "dst": 2, "t": 1}] * 100, True), ([], False), ([{"src": 1, "dst": 2, "t": 1}] * 101, False),
        ({"src": 1, "dst": 2}, False), ({"src": 1, "dst": 2, "t": 1, "more": 1}, False), ({"src": True, "dst": 2, "t": 1}, False),
    ],
)  # fmt: skip
def test_the_description_takes_what_the_code_takes(body: Any, fits: bool) -> None:
    spec = description()
    schema = spec["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert Draft202012Validator({**schema, "components": spec["components"]}).is_valid(body) == fits


def test_requests_are_counted_by_path_and_status(server: QuestionServer, desk: FakeDesk) -> None:
    asked(server, "/score", b"{}")
    asked(server, "/score", b"{")
    asked(server, "/nothing/here?x=1")
    raw(server, b"no http\r\n\r\n")
    series = generate_latest(server.registry).decode()  # type: ignore[attr-defined]
    for path, status in [("/score", 200), ("/score", 400), ("other", 404), ("other", 400)]:
        assert f'freshet_scorer_requests_total{{graph="g",path="{path}",status="{status}"}} 1.0' in series
    assert 'freshet_scorer_answer_seconds_count{graph="g",path="/score"} 1.0' in series
    assert "nothing" not in series


def test_a_connection_stays_open_for_more_questions(server: QuestionServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for _ in range(20):
        connection.request("POST", "/score", b"{}")
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
    connection.close()


def test_an_open_connection_lives_from_answer_to_answer(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "REQUEST_S", 1.5)
    monkeypatch.setattr(served, "LOOK_S", 0.1)
    with serving(desk) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.connect()
        first = connection.sock
        for _ in range(6):
            time.sleep(0.5)
            connection.request("GET", "/version")
            assert connection.getresponse().read()
        assert connection.sock is first, "it was never closed"


# -- wrong ones


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is not JSON: it is empty"),
        (b"{", "the body is not JSON: EOF while parsing"),
        (b"[" * 100_000, "the body is not JSON: recursion limit exceeded"),
        (b'{"a":' * 40_000, "the body is not JSON: recursion limit exceeded"),
        (b'{"src": NaN}', "the body is not JSON"),
        (b'{"src": Infinity}', "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b'{"src": "\xff"}', "the body is not JSON"),
        (b'{"src": "\\ud800"}', "the body is not JSON"),
        (b"src=1&dst=2", "the body is not JSON"),
    ],
)
def test_a_body_that_is_no_json(server: QuestionServer, desk: FakeDesk, body: bytes, sentence: str) -> None:
    status, content, _ = asked(server, "/score", body, "POST")
    assert status == 400 and content["error"].startswith(sentence), content
    assert not desk.asked


def test_long_numbers_cost_no_time(server: QuestionServer) -> None:
    status, _, _ = asked(server, "/score", b'{"src": ' + b"9" * (BODY_BYTES - 100) + b"}")
    assert status in (200, 400)


@pytest.mark.parametrize(
    ("raised", "status", "again"),
    [
        (WrongQuestionError("key src is missing"), 422, None), (FullError("12 wait"), 429, "1"), (LateError("late"), 503, "1"),
        (RuntimeError("secret of the code"), 500, None),
    ],
)  # fmt: skip
def test_statuses(
    server: QuestionServer, desk: FakeDesk, raised: Exception, status: int, again: str | None
) -> None:
    desk.raised = raised
    got = asked(server, "/score", b"{}")
    assert (got[0], got[2].get("Retry-After")) == (status, again)
    assert (str(raised) == got[1]["error"]) == (status != 500)
    desk.raised = None
    assert asked(server, "/score", b"{}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/../../etc/passwd", 404), ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404), ("GET", "//score", 405),
        ("POST", "/score/", 404), ("GET", "/score", 405), ("PUT", "/score", 405), ("DELETE", "/version", 405),
        ("HEAD", "/version", 405), ("OPTIONS", "*", 404), ("GET", "/%00", 404),
    ],
)  # fmt: skip
def test_other_paths_and_methods(server: QuestionServer, method: str, path: str, status: int) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    head, _, body = raw(server, request).partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode()
    assert (b"Allow: " in head) == (status == 405)
    assert (body == b"") if method == "HEAD" else json.loads(body)["error"]


def test_bytes_that_are_no_http(server: QuestionServer) -> None:
    for request, status in {
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n": b"400",  # TLS
        b"GET\r\n\r\n": b"400",
        b"POST /score HTTP/1.1\r\nContent-Length: -1\r\n\r\n": b"400",
        b"POST /score HTTP/1.1\r\nContent-Length: 1e9\r\n\r\n": b"400",
        b"POST /score HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n": b"413",
        b"POST /score HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n": b"501",
        b"POST /score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n": b"400",
        b"GET /version HTTP/1.1\r\nX: " + b"x" * 20_000: b"431",
    }.items():
        head, _, body = raw(server, request).partition(b"\r\n\r\n")
        assert head.split()[1] == status, (request[:60], head)
        assert b"application/json" in head and list(json.loads(body)) == ["error"]
    assert asked(server, "/version")[0] == 200


def test_a_body_without_end_is_cut(server: QuestionServer) -> None:
    """By chunks, whose length nobody said before."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(b"POST /score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        head = b""
        client.settimeout(0.01)
        for _ in range(2 * BODY_BYTES // 4096):
            try:
                client.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                head += client.recv(100)
            except TimeoutError:
                continue
            except OSError:
                break
            if head:
                break
    assert head.split()[1] == b"413"


def test_clients_of_many_kinds_are_answered(server: QuestionServer, desk: FakeDesk) -> None:
    whole = b'{"src":1}'
    head = b"POST /score HTTP/1.1\r\nConnection: close\r\n"
    chunked = head + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"sr\r\n5\r\nc":1}\r\n0\r\n\r\n'
    old = b"POST /score HTTP/1.0\r\nContent-Length: 9\r\n\r\n" + whole
    plain = b"POST /score HTTP/1.1\r\nContent-Length: 9\r\n\r\n" + whole
    assert raw(server, chunked).startswith(b"HTTP/1.1 200")
    assert raw(server, old).startswith(b"HTTP/1.0 200")
    assert raw(server, plain, end=True).startswith(b"HTTP/1.1 200"), "half closed"
    assert raw(server, head + b"\r\n").startswith(b"HTTP/1.1 400")
    assert desk.asked == [{"src": 1}] * 3
    last = plain.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert raw(server, plain * 50 + last).count(b"HTTP/1.1 200 OK") == 51, "sent ahead"


def test_bad_clients_hold_nobody_up(desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "REQUEST_S", 1)
    monkeypatch.setattr(served, "LOOK_S", 0.1)
    with serving(desk) as server, bad_connections(server.port, 500) as bad:
        assert asked(server, "/score", b"{}")[0] == 200
        slow = bad[KINDS.index("slow")]
        slow.settimeout(30)
        assert slow.recv(1) == b""


# -- tokens


def test_a_question_needs_a_token_of_the_file(desk: FakeDesk, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-token\n\n  second-token\n")
    with serving(desk, token_file=str(file)) as server:
        for header, status in {
            "Bearer first-token": 200, "bearer second-token": 200, "Bearer first": 401, "Basic first-token": 401,
            "Bearer ": 401, "first-token": 401, "Bearer \u00e9": 401,
        }.items():  # fmt: skip
            assert asked(server, "/version", Authorization=header)[0] == status, header
        status, content, headers = asked(server, "/score", b"{}")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer" in content["error"] and "first-token" not in content["error"]
        assert not desk.asked
        assert asked(server, "/readyz")[:2] == (200, {"ready": True})
        assert asked(server, "/openapi.json")[0] == 200

        (tmp_path / "new").write_text("third-token")
        (tmp_path / "new").rename(file)
        assert asked(server, "/version", Authorization="Bearer first-token")[0] == 401
        assert asked(server, "/version", Authorization="Bearer third-token")[0] == 200

        file.unlink()
        status, content, _ = asked(server, "/version", Authorization="Bearer third-token")
        assert status == 503 and content["error"].startswith(f"key serve.token_file: {file}")
        assert asked(server, "/readyz")[0] == 503


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n \n")
    for name, sentence in {"token": "has no token. Write one per line", "none": "none"}.items():
        with (
            pytest.raises(Failure, match=f"key serve.token_file: .*{sentence}"),
            serving(None, token_file=str(tmp_path / name)),
        ):
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_without_a_token_only_this_machine_may_ask(host: str) -> None:
    with pytest.raises(ValueError, match=r"can be reached from other machines.*Set serve.token_file"):
        Serve(host=host)
    assert Serve(host=host, token_file="t").host == host
    for own in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert Serve(host=own).host == own


# -- the beginning and the end


def test_before_there_is_a_scorer_it_says_why(server: QuestionServer) -> None:
    server.questions.desk = None
    status, content, headers = asked(server, "/score", b"{}")
    assert (status, content, headers["Retry-After"]) == (503, {"error": "no checkpoint yet"}, "1")
    assert asked(server, "/readyz")[:2] == (503, {"error": "no checkpoint yet"})


def test_a_port_that_is_taken_is_named(server: QuestionServer) -> None:
    with pytest.raises(
        Failure,
        match=r"questions cannot be served .*Choose another serve.port",
    ):
        QuestionServer(Serve(port=server.port), QuestionMetrics(CollectorRegistry(), str), lambda: None)


def test_it_ends_while_clients_are_connected(desk: FakeDesk) -> None:
    with serving(desk) as server, bad_connections(server.port, 50):
        ending = threading.Thread(target=server.close, daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()
        server.close = lambda: None  # type: ignore[method-assign]
