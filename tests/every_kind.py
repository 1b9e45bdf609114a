"""A small store with every kind of file that a record names, and what a flipped byte in it must lead to."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from lane_stream import lane
from log_events import SECOND, event, stream_config

from schemas.events import REJECT_SCHEMA, event_schema
from schemas.store import History, HistoryFile, Position
from stream.sink.snapshot_sink import log_header
from stream.snapshots.border import HISTORY
from stream.store.compact.retention import Keep
from stream.store.compact.store import compact
from stream.store.lane.writer import LaneWriter
from stream.store.log.tail import tail_schema
from stream.store.log.writer import LogWriter
from stream.store.verify.store import verify

LOCKS = {"lock", "compaction.lock"}
LANES = {
    "hash": lane("hash", parts=1, base_every=1, window=1),
    "hdrf": lane("hdrf", parts=1, base_every=1, window=1),
}


def make_every_kind(
    store: Path, *lanes: str, src: int = 1, snapshots: int = 2, compacted: bool = False
) -> Path:
    """Some snapshots, open events, a refused message, a history; lanes by name, of vertices or edges.

    Compacted: older snapshots are dropped, indexes and bases stand for them.
    """

    def rows(tau: int) -> list[dict[str, Any]]:
        return [event(src, src + 1, tau * SECOND), event(src + tau, src, tau * SECOND + 1)]

    refused = {
        "topic": "a", "partition": 0, "offset": 0, "row": None, "reason": "not_json", "sentence": "no", "raw": b"{",
    }  # fmt: skip
    origin = {"topic": "a", "partition": 0, "offset": 1, "tau": snapshots}
    position = Position(topic="a", partition=0, next=2, max_t_us=snapshots * SECOND)
    file = HistoryFile(name="past.parquet", rows=0, bytes=0, checksum="")
    history = History(files=[file], until_us=0, rows=0, after=0, disorder_us=0, ends=[])
    with LogWriter.open(store, log_header(stream_config(str(store)))) as log:
        log.begin_with(history)
        log.commit(
            tail=pa.Table.from_pylist(
                [{**row, **origin} for row in rows(snapshots)], schema=tail_schema("int")
            ),
            rejects=pa.Table.from_pylist([refused], schema=REJECT_SCHEMA),
            refused={"not_json": 1},
            positions={("a", 0): position, HISTORY: Position(topic=HISTORY[0], partition=HISTORY[1], next=0)},
        )
        log.commit(
            seal=[
                (tau, pa.Table.from_pylist(rows(tau), schema=event_schema("int"))) for tau in range(snapshots)
            ]
        )
    for name in lanes:
        with LaneWriter(store, LANES[name]) as writer:
            writer.catch_up()
    if compacted:
        done = compact(store, Keep(snapshots=1), always=True)
        assert done.dropped > 0, done
    return store


def files_of(store: Path) -> list[Path]:
    """Everything but locks, which say nothing once they are given back."""
    return [path for path in sorted(store.rglob("*")) if path.is_file() and path.name not in LOCKS]


def missed_flips(store: Path, *, every: int) -> Iterator[str]:
    """Flip every so many bytes of a store, one at a time, and say which of the flips ``verify`` lets pass."""
    count = 0
    for path in files_of(store):
        descriptor = os.open(path, os.O_RDWR)
        for at in range(count % every, path.stat().st_size, every):
            byte = os.pread(descriptor, 1, at)
            os.pwrite(descriptor, bytes([byte[0] ^ (1 + (37 * at + count) % 255)]), at)
            count += 1
            if not any(str(path) in problem for problem in verify(store).problems):
                yield f"byte {at} of {path}"
            os.pwrite(descriptor, byte, at)
        os.close(descriptor)
