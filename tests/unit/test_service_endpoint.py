"""The endpoint: metrics, alive, ready with the reason why not, and a clear answer when the port is taken."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from schemas.config import Metrics
from stream.service.endpoint import Endpoint
from stream.service.failure import Failure


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
        with urllib.request.urlopen(url, timeout=5) as answer:
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
