"""The limit of open events: what was read is committed, the sentence says what to do, and nothing is lost by it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_events import SECOND, Clock, event, poll, stream_config

from freshet_graph.stream.sink import OpenLimitError, SnapshotSink, log_header
from freshet_graph.stream.snapshots.border import HISTORY
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter

A, B = ("a", 0), ("a", 1)
LIMIT = 4_000


@pytest.fixture
def writers() -> Iterator[list[LogWriter]]:
    """Those that a test has opened."""
    opened: list[LogWriter] = []
    yield opened
    for writer in opened:
        writer.close()


def opened(store: Path, writers: list[LogWriter], limit: int) -> SnapshotSink:
    config = stream_config(str(store), max_open_bytes=limit)
    for writer in writers:
        writer.close()
    writers.append(LogWriter.open(config.store, log_header(config)))
    return SnapshotSink(writers[-1], config, clock=Clock())


def offer(sink: SnapshotSink, key: tuple[str, int], first: int, second: float, count: int = 20) -> None:
    messages = [(first + i, [event(first + i, key[1], round(second * SECOND))]) for i in range(count)]
    sink.offer(poll(*key, messages, first=first, end=first + count, high_watermark=first + count + 1))


def test_beyond_the_limit_everything_read_is_committed_and_the_sentence_names_the_keys(
    tmp_path: Path, writers: list[LogWriter]
) -> None:
    sink = opened(tmp_path, writers, LIMIT)
    sink.assign([A, B])
    offer(sink, B, 0, 0.5)  # holds event time in the first snapshot
    read = 0
    with pytest.raises(
        OpenLimitError, match=r"snapshots\.max_open_bytes 4,000[.] Event time stands at 1970"
    ) as told:
        for read in range(0, 2_000, 20):
            offer(sink, A, read, 0.6 + read / 10)
    assert "Shorten snapshots.interval_s" in str(told.value)
    last = LogReader(tmp_path).last
    assert last is not None
    assert {p.partition: p.next for p in last.positions} == {0: read, 1: 20}
    assert last.tail_events == read + 20


def test_beyond_the_limit_a_history_is_told_of_its_rows_order(
    tmp_path: Path, writers: list[LogWriter]
) -> None:
    sink = opened(tmp_path, writers, LIMIT)
    sink.assign([HISTORY])
    with pytest.raises(
        OpenLimitError, match=r"max_open_bytes 4,000[.] .* give rows in order of their times"
    ) as told:
        for read in range(0, 2_000, 20):
            offer(sink, HISTORY, read, 0.6)
    assert "producer" not in str(told.value)


def test_a_higher_limit_goes_on_where_it_stopped(tmp_path: Path, writers: list[LogWriter]) -> None:
    sink = opened(tmp_path, writers, LIMIT)
    sink.assign([A, B])
    offer(sink, B, 0, 0.5)
    with pytest.raises(OpenLimitError):
        for first in range(0, 2_000, 20):
            offer(sink, A, first, 0.6)
    again = opened(tmp_path, writers, LIMIT)
    with pytest.raises(OpenLimitError):
        offer(again, A, again.next_offset(A) or 0, 0.7)
    more = opened(tmp_path, writers, 1 << 30)
    begin = more.next_offset(A) or 0
    offer(more, A, begin, 0.7)
    more.seal_all()
    assert sum(s.num_events for s in LogReader(tmp_path).snapshots) == begin + 40


def test_what_event_time_has_closed_makes_room_and_idle_polls_never_fail(
    tmp_path: Path, writers: list[LogWriter]
) -> None:
    sink = opened(tmp_path, writers, LIMIT)
    sink.assign([A])
    for first in range(0, 2_000, 20):
        offer(sink, A, first, first / 10)  # each poll closes the one before
    sealed = LogReader(tmp_path).snapshots
    assert sum(snapshot.num_events for snapshot in sealed) > 1_500
    offer(sink, A, 2_000, 201.0, count=200)
    sink.offer(poll(*A, [], first=2_200, end=2_200))
