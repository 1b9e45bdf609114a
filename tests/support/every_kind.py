"""A small store with every kind of file that a record names, and what a flipped byte in it must lead to."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from lane_stream import lane
from log_events import SECOND, event, refusal, stream_config
from placed import files_of, flipped, problems_of, write

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import HistoryFile, HistoryRecord, Position
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.snapshots.border import HISTORY
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.sealed import tail_schema
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place

LANES = {
    "hash": lane("hash", parts=1, base_every=1, window=1),
    "hdrf": lane("hdrf", parts=1, base_every=1, window=1),
}


def make_every_kind(
    store: Place, *lanes: str, src: int = 1, snapshots: int = 2, compacted: bool = False
) -> Place:
    """Some snapshots, open events, a refused message, a history; lanes by name, of vertices or edges.

    Compacted: older snapshots are dropped, indexes and bases stand for them.
    """

    def rows(tau: int) -> list[dict[str, Any]]:
        return [event(src, src + 1, tau * SECOND), event(src + tau, src, tau * SECOND + 1)]

    origin = {"topic": "a", "partition": 0, "offset": 1, "tau": snapshots}
    position = Position(topic="a", partition=0, next=2, max_t_us=snapshots * SECOND)
    file = HistoryFile(name="past.parquet", rows=0, bytes=0, checksum="")
    history = HistoryRecord(files=[file], until_us=0, rows=0, after=0, disorder_us=0, ends=[])
    with LogWriter.open(store, log_header(stream_config(str(store)))) as log:
        log.begin_with(history)
        log.commit(
            tail=pa.Table.from_pylist(
                [{**row, **origin} for row in rows(snapshots)], schema=tail_schema("int")
            ),
            rejects=refusal(0),
            refused={"not_json": 1},
            positions={("a", 0): position, HISTORY: Position(topic=HISTORY[0], partition=HISTORY[1], next=0)},
        )
        log.commit(
            positions={("a", 0): position.model_copy(update={"next": 3})},
            seal=[
                (tau, pa.Table.from_pylist(rows(tau), schema=event_schema("int"))) for tau in range(snapshots)
            ],
        )
    for name in lanes:
        with LaneWriter(store, LANES[name]) as writer:
            writer.catch_up()
    if compacted:
        done = compact(store, Keep(snapshots=1), always=True)
        assert done.dropped > 0, done
    return store


def missed_flips(store: Place, *, every: int, together: bool = False) -> Iterator[str]:
    """Flip every so many bytes of a store, and say which of the flips ``verify`` lets pass.

    Args:
        store: The store; it is left as it was.
        every: Distance of the bytes of a file.
        together: Flip a byte of every data file at a time, all of which must be told; else one byte at a time.
    """
    files = files_of(store)
    data = {name for name in files if together and name.endswith(".arrow") and "/index/" not in name}
    count = 0
    for group in [*([name] for name in files if name not in data), sorted(data)]:
        contents = {name: files[name].read_bytes() for name in group}
        longest = max(map(len, contents.values()), default=0)
        for turn in range(0, longest, every):
            flips = {}
            for name, content in contents.items():
                at = turn + count % every
                if at < len(content):
                    flips[name] = at
                    write(files[name], flipped(content, at, 1 + (37 * at + count) % 255))
                    count += 1
            problems = problems_of(store) if flips else []
            for name, at in flips.items():
                if not any(str(files[name]) in problem for problem in problems):
                    yield f"byte {at} of {files[name]}"
                write(files[name], contents[name])
