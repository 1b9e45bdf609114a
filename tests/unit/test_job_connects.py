"""When the last message came, as a new cycle of the job knows it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from streaming import configuration

from schemas.config import StreamConfig
from stream.job import connecting
from stream.kafka.greeting import NoBrokerError

MADE_S, ARRIVAL_S = 100.0, 7.0


def test_the_end_of_an_outage_that_a_cycle_meets_while_it_connects_counts_as_an_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StreamConfig(**configuration(tmp_path / "store", "127.0.0.1:1", "edges"))
    made = connecting.Connecting(config, lambda: False, lambda topic, offsets: None)
    silent = 0

    def connect(*_: object, **__: object) -> SimpleNamespace:
        nonlocal silent
        silent -= 1
        if silent >= 0:
            raise NoBrokerError("no broker answers")
        return SimpleNamespace(last_arrival_s=MADE_S)

    monkeypatch.setattr(connecting, "PartitionReader", connect)
    assert made.reader(lambda key: None, ARRIVAL_S) is not None
    silent = 2
    after_outage, after_that = (made.reader(lambda key: None, ARRIVAL_S) for _ in range(2))
    assert after_outage is not None and after_outage.last_arrival_s == MADE_S
    assert after_that is not None and after_that.last_arrival_s == ARRIVAL_S
