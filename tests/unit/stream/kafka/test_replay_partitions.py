"""Where replay puts an event: by the hash of its source, the same everywhere."""

import numpy as np
import pyarrow as pa
import pytest
from decoding import message_format

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.kafka import producer
from freshet_graph.stream.kafka.producer import partition_of, replay
from freshet_graph.stream.service.failure import Failure


def test_one_source_is_always_in_one_partition_whatever_the_others_are() -> None:
    ids = pa.array([5, 9, 5, 7, 9, 5])
    together = partition_of(ids, 4)
    for value in (5, 7, 9):
        alone = partition_of(pa.array([value]), 4)[0]
        assert set(together[np.array(ids) == value]) == {alone}


def test_sources_spread_evenly() -> None:
    counts = np.bincount(partition_of(pa.array(np.arange(8_000)), 4), minlength=4)
    assert counts.min() > 1_800
    names = pa.array([f"card:{i}" for i in range(8_000)])
    assert np.bincount(partition_of(names, 4), minlength=4).min() > 1_800


def test_an_id_hashes_as_its_text_so_that_a_source_keeps_its_partition_when_ids_become_strings() -> None:
    numbers = np.arange(100)
    assert np.array_equal(partition_of(pa.array(numbers), 8), partition_of(pa.array(map(str, numbers)), 8))


class Kept:
    """Stands for the brokers: takes every message."""

    def __init__(self, *_: object) -> None: ...

    def send(self, value: bytes, partition: int, row: int | None = None) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_row_too_long_for_an_arrow_message_is_named_as_in_the_file(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    rows = [{"op": 0, "src": i, "t": i, "weight": 1.0, "features": [0.5]} for i in range(100)]
    rows[72]["features"] = [0.5] * 300_000
    monkeypatch.setattr(producer, "Deliveries", Kept)
    monkeypatch.setattr(producer, "ensure_topic", lambda *_: partitions)
    monkeypatch.setattr(producer, "ROWS_A_CHUNK", 40)
    events = pa.Table.from_pylist(rows, schema=event_schema("int"))
    with pytest.raises(
        Failure, match=r"^row 73 is 1,20\d,\d+ bytes as a message of its own, but at most 900,000"
    ):
        replay(events, settings={}, bootstrap="b", topic="t", message_format=message_format("arrow"))
    assert (
        replay(events, settings={}, bootstrap="b", topic="t", message_format=message_format("json")).sent
        == 100
    )
