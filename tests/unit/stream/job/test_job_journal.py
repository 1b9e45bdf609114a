"""What a job's log says of commits: all seals, and refusals by reason, not too often, with one example."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import stream_config
from structlog.testing import capture_logs

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.stream.job import open_log
from freshet_graph.stream.job.open_log import LOGGED_EVERY_S, Journal
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.errors import CorruptError
from freshet_graph.stream.store.log.writer import LogWriter


class Refusing:
    """A log that refuses messages, with the journal of its job."""

    def __init__(self, store: Path) -> None:
        self.now_s = 0.0
        self.writer = LogWriter.open(str(store), log_header(stream_config(str(store))))
        self.journal = Journal("g", str(store), self.writer.last, clock=lambda: self.now_s)

    def refuse(self, *reasons: str) -> list[dict[str, Any]]:
        """Commit a refused message for each reason; returns the lines."""
        rows = [
            {
                "topic": "edges",
                "partition": 0,
                "offset": offset,
                "reason": reason,
                "sentence": f"{reason} {offset}",
            }
            for offset, reason in enumerate(reasons)
        ]
        record = self.writer.commit(
            rejects=pa.Table.from_pylist(rows, schema=REJECT_SCHEMA),
            refused={reason: reasons.count(reason) for reason in set(reasons)},
        )
        with capture_logs() as told:
            self.journal.committed(record)
        return [dict(line) for line in told]


@pytest.fixture
def refusing(tmp_path: Path) -> Refusing:
    return Refusing(tmp_path)


def test_a_reason_is_told_with_its_number_and_an_example(refusing: Refusing) -> None:
    (line,) = refusing.refuse("json", "json")
    assert line | {"event": "messages refused", "log_level": "warning"} == line
    assert (line["reason"], line["messages"], line["total"]) == ("json", 2, 2)
    assert (line["topic"], line["partition"], line["offset"], line["sentence"]) == ("edges", 0, 0, "json 0")


def test_it_is_told_again_only_after_a_while_with_all_that_came_meanwhile(refusing: Refusing) -> None:
    refusing.refuse("json")
    refusing.now_s = LOGGED_EVERY_S - 1
    assert [line["reason"] for line in refusing.refuse("json", "json", "time")] == ["time"]
    refusing.now_s = LOGGED_EVERY_S
    (line,) = refusing.refuse("json")
    assert (line["messages"], line["total"]) == (3, 4)


def test_refusals_of_runs_before_are_not_told_again(refusing: Refusing, tmp_path: Path) -> None:
    refusing.refuse("json")
    refusing.writer.close()
    (line,) = Refusing(tmp_path).refuse("json")
    assert (line["messages"], line["total"]) == (1, 2)


def test_an_example_that_cannot_be_read_fails_nothing(
    refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object, **__: object) -> pa.Table:
        raise CorruptError("damaged")

    monkeypatch.setattr(open_log, "read_table", damaged)
    (line,) = refusing.refuse("json")
    assert line["messages"] == 1
    assert "sentence" not in line


def test_commits_that_seal_nothing_and_refuse_nothing_are_not_told(refusing: Refusing) -> None:
    with capture_logs() as told:
        refusing.journal.committed(refusing.writer.commit())
    assert told == []
