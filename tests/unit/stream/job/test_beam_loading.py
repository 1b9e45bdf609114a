"""Beam is loaded beside connecting, waited for before the first pipeline, and silences nobody else meanwhile."""

import logging
import threading
from pathlib import Path

import pytest
from streaming import configuration

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream import background
from freshet_graph.stream.job import beam
from freshet_graph.stream.job.beam import BeamLoading
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.kafka import greeting
from freshet_graph.stream.kafka.client import NoBrokerError
from freshet_graph.stream.metrics import StreamMetrics


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Beam is loaded once this is set."""
    loads = threading.Event()
    monkeypatch.setattr(beam, "load_beam", loads.wait)
    monkeypatch.setattr(background, "_left_behind", [])
    return loads


def test_the_wait_ends_with_the_loading_also_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def fail() -> None:
        order.append("loaded")
        raise ImportError("no Beam here")

    monkeypatch.setattr(beam, "load_beam", fail)
    monkeypatch.setattr(background, "_left_behind", [])
    with BeamLoading() as loading:
        loading.wait()
        order.append("waited")
    assert order == ["loaded", "waited"]
    assert background.left_behind() == []


def test_a_broker_that_is_not_there_is_reported_before_beam_is_loaded(
    loads: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_S", 0.1)
    config = StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges"))
    with pytest.raises(NoBrokerError):
        StreamJob(config, StreamMetrics(config)).run()
    assert background.left_behind() == ["beam"]  # so the process ends under it
    loads.set()


def test_only_the_thread_that_loads_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    with beam._without_warnings():
        logging.warning("of the loader")
        other = threading.Thread(target=logging.warning, args=["of another"])
        other.start()
        other.join()
    logging.warning("afterwards")
    assert [record.message for record in caplog.records] == ["of another", "afterwards"]
