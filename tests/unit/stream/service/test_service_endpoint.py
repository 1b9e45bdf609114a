"""The endpoint: metrics, alive, ready with the reason why not, whoever else is connected; a sentence when the port is taken."""

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import psutil
import pytest
from bad_connections import KINDS, bad_connections
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from freshet_graph.schemas.config import Metrics
from freshet_graph.stream.service import endpoint as served
from freshet_graph.stream.service import heartbeat
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure


class Progress:
    reason: str | None = None

    def __call__(self) -> str | None:
        return self.reason


@pytest.fixture
def progress() -> Progress:
    return Progress()


@pytest.fixture
def endpoint(progress: Progress) -> Iterator[Endpoint]:
    registry = CollectorRegistry()
    Counter("freshet_test_events", "Events.", ["graph"], registry=registry).labels("g").inc(3)
    endpoint = Endpoint(Metrics(port=0), registry, progress)
    yield endpoint
    endpoint.close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_any_free_port_is_taken_on_localhost_and_told(endpoint: Endpoint) -> None:
    assert endpoint.port > 0
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"


def test_metrics_are_in_the_exposition_format(endpoint: Endpoint) -> None:
    status, text = get(f"{endpoint.url}/metrics")
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert ("freshet_test_events_total", {"graph": "g"}, 3.0) in [
        (s.name, s.labels, s.value) for s in samples
    ]


def test_alive_even_when_not_ready_and_the_reason_is_told(endpoint: Endpoint, progress: Progress) -> None:
    assert get(f"{endpoint.url}/readyz") == (200, "ready\n")
    progress.reason = "no commit for 60 s while messages arrive"
    assert get(f"{endpoint.url}/readyz") == (503, "no commit for 60 s while messages arrive\n")
    assert get(f"{endpoint.url}/healthz") == (200, "alive\n")


def test_an_unknown_path_says_what_there_is(endpoint: Endpoint) -> None:
    status, text = get(f"{endpoint.url}/metric")
    assert status == 404
    assert "/healthz" in text


def test_a_taken_port_is_named_with_the_remedy(endpoint: Endpoint) -> None:
    with pytest.raises(Failure, match=rf"127\.0\.0\.1:{endpoint.port}.*metrics\.port"):
        Endpoint(Metrics(port=endpoint.port), CollectorRegistry(), lambda: None)


@pytest.mark.parametrize("host", ["::", "::1"])
def test_ipv6_is_served_and_its_address_can_be_asked(progress: Progress, host: str) -> None:
    with closing(Endpoint(Metrics(host=host, port=0), CollectorRegistry(), progress)) as endpoint:
        assert endpoint.url == f"http://[{host}]:{endpoint.port}"
        assert get(f"{endpoint.url}/readyz") == (200, "ready\n")
        if host == "::":
            assert get(f"http://127.0.0.1:{endpoint.port}/readyz") == (200, "ready\n")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_named_with_the_remedy(host: str) -> None:
    with pytest.raises(Failure, match=r"metrics cannot be served on .*9108: .*Choose another metrics\.host"):
        Endpoint(Metrics(host=host), CollectorRegistry(), lambda: None)


def test_a_closed_endpoint_frees_its_port(progress: Progress) -> None:
    first = Endpoint(Metrics(port=0), CollectorRegistry(), progress)
    first.close()
    second = Endpoint(Metrics(port=first.port), CollectorRegistry(), progress)
    second.close()
    assert second.port == first.port


def test_by_default_nothing_listens_beyond_this_machine() -> None:
    endpoint = Endpoint(Metrics(port=0), CollectorRegistry(), lambda: None)
    try:
        listening = [
            c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN
        ]
        assert [address.ip for address in listening if address.port == endpoint.port] == ["127.0.0.1"]
    finally:
        endpoint.close()


def ended(work: threading.Thread) -> bool:
    """Whether it ends at all; what hangs would wait for a minute and more."""
    work.join(30)
    return not work.is_alive()


def test_bad_connections_hold_up_neither_a_scrape_nor_the_end(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "REQUEST_S", 3600)  # none of them is closed meanwhile
    registry = CollectorRegistry()
    many = Counter("freshet_test_events", "Events.", ["graph"], registry=registry)
    for graph in range(1_000):  # an answer that doesn't fit into what the kernel holds for who doesn't read
        many.labels(str(graph)).inc()
    endpoint = Endpoint(Metrics(port=0), registry, progress)
    with bad_connections(endpoint.port, 200):
        assert get(f"{endpoint.url}/metrics")[0] == 200
        assert get(f"{endpoint.url}/healthz") == (200, "alive\n")
        assert get(f"{endpoint.url}/readyz") == (200, "ready\n")
        closing_it = threading.Thread(target=endpoint.close, daemon=True)
        closing_it.start()
        assert ended(closing_it)


def test_beyond_the_limit_bad_connections_are_closed_by_their_age(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "CONNECTIONS", 8)
    monkeypatch.setattr(served, "REQUEST_S", 0.5)
    monkeypatch.setattr(served, "LOOK_S", 0.1)
    with (
        closing(Endpoint(Metrics(port=0), CollectorRegistry(), progress)) as endpoint,
        bad_connections(endpoint.port, 5 * len(KINDS)) as bad,
    ):
        assert get(f"{endpoint.url}/readyz") == (200, "ready\n")
        slow = bad[KINDS.index("slow")]
        assert slow.recv(1) == b"", "its bytes, one after the other, don't keep it open"


def test_a_request_whose_header_does_not_end_is_refused_before_it_fills_memory(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client:
        client.sendall(b"GET /readyz HTTP/1.1\r\nX: ".ljust(32 << 10, b"x"))
        assert client.recv(64).split()[1] == b"431"


def test_not_more_connections_are_taken_than_the_limit(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "CONNECTIONS", 8)
    monkeypatch.setattr(served, "REQUEST_S", 3600)
    with (
        closing(Endpoint(Metrics(port=0), CollectorRegistry(), progress)) as endpoint,
        bad_connections(endpoint.port, 40),
    ):
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"{endpoint.url}/readyz", timeout=2)
        taken = [
            c for c in psutil.Process().net_connections("tcp")
            if c.status == psutil.CONN_ESTABLISHED and c.laddr.port == endpoint.port
        ]  # fmt: skip
        assert len(taken) <= 8


def test_a_process_that_hangs_is_not_alive(progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now_s))
    metrics = Metrics(port=0, hung_after_s=120)
    with closing(Endpoint(metrics, CollectorRegistry(), progress)) as endpoint:
        heartbeat.beat()
        now_s = 1120.0
        assert get(f"{endpoint.url}/healthz") == (200, "alive\n")
        now_s = 1121.0
        status, reason = get(f"{endpoint.url}/healthz")
        assert (status, "metrics.hung_after_s" in reason) == (503, True)
        assert get(f"{endpoint.url}/readyz") == (200, "ready\n"), "readiness is a question of its own"
        heartbeat.beat()
        assert get(f"{endpoint.url}/healthz") == (200, "alive\n")


def test_an_answer_that_outlives_the_endpoint_writes_into_nobody_else_s_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waitress wakes its loop through a pipe, by the number of a descriptor that may be another file's by then."""
    monkeypatch.setattr(served, "CLOSE_S", 0.1)
    asked, over = threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        over.wait(60)

    endpoint = Endpoint(Metrics(port=0), CollectorRegistry(), slow)
    answering = set(threading.enumerate())
    with bad_connections(endpoint.port, 1) as (connection,):
        connection.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        assert asked.wait(30)
        endpoint.close()
        pipes = [os.pipe() for _ in range(10)]  # they get the numbers that are free now
        endpoint._server.pull_trigger()  # as an answer does that was being sent when its connection was closed
        over.set()
        for thread in answering:
            if thread.name.startswith("waitress"):
                assert ended(thread)
        for read, write in pipes:
            os.close(write)
            assert os.read(read, 1) == b""
            os.close(read)
