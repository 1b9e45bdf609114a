"""A log written commit by commit, to be cut off anywhere."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from log_events import SECOND, event, refusal, stream_config

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import HistoryFile, HistoryRecord, Position
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.errors import ConfigMissingError, StoreError
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import tail_schema
from freshet_graph.stream.store.log.writer import LogWriter

HISTORY = HistoryRecord(
    files=[HistoryFile(name="past.parquet", rows=0, bytes=0, checksum="")],
    until_us=0, rows=0, after=0, disorder_us=0, ends=[],
)  # fmt: skip


def commits() -> list[dict[str, Any]]:
    """What each commit is given: open events, refused messages, snapshots sealed one and two at a time."""
    config = stream_config("unused")
    assert config.ids == "int"

    def rows(tau: int, count: int) -> list[dict[str, Any]]:
        return [
            event(tau + i, 2 * i, tau * SECOND + i, features=[float(i)] if i else None) for i in range(count)
        ]

    def tail(tau: int, count: int) -> pa.Table:
        origin = {"topic": "a", "partition": 0, "offset": tau, "tau": tau}
        return pa.Table.from_pylist(
            [{**row, **origin} for row in rows(tau, count)], schema=tail_schema("int")
        )

    def sealed(tau: int, count: int) -> tuple[int, pa.Table]:
        return tau, pa.Table.from_pylist(rows(tau, count), schema=event_schema("int"))

    at = {"topic": "a", "partition": 0}
    return [
        {"tail": tail(1, 3), "positions": {("a", 0): Position(**at, next=2, max_t_us=SECOND)}},
        {
            "tail": tail(2, 2),
            "rejects": refusal(2),
            "refused": {"not_json": 1},
            "positions": {("a", 0): Position(**at, next=3, max_t_us=2 * SECOND)},
        },
        {"seal": [sealed(1, 3)]},
        {
            "seal": [sealed(2, 2), sealed(4, 2)],
            "tail": tail(5, 2),
            "positions": {("a", 0): Position(**at, next=6, max_t_us=5 * SECOND)},
        },
    ]


def write_log(store: Path, acknowledge: Callable[[], None]) -> None:
    """Go on where the log stands: a history first, then all commits."""
    with LogWriter.open(store, log_header(stream_config(str(store)))) as writer:
        acknowledge()
        if writer.last is None and writer.history is None:
            writer.begin_with(HISTORY)
            acknowledge()
        begun = 0 if writer.last is None else writer.last.n + 1
        for arguments in commits()[begun:]:
            writer.commit(**arguments)
            acknowledge()


def durable_in_log(store: Path) -> int:
    """How much of what ``write_log`` acknowledges is there."""
    try:
        log = LogReader(store)
    except ConfigMissingError:
        return 0
    return 1 + (log.history is not None) + (0 if log.last is None else log.last.n + 1)


def write_log_again_and_again(store: Path) -> None:
    """As ``write_log``, with each commit tried again by the same writer while it can, else by a new one."""
    while True:
        with (
            suppress(OSError, StoreError),
            LogWriter.open(store, log_header(stream_config(str(store)))) as writer,
        ):
            if writer.last is None and writer.history is None:
                writer.begin_with(HISTORY)
            while (n := 0 if writer.last is None else writer.last.n + 1) < len(commits()):
                with suppress(OSError):
                    writer.commit(**commits()[n])
            return
