"""A log that grows by a snapshot a commit."""

from itertools import zip_longest

import pyarrow as pa
from log_events import event

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.log.sealed import tail_schema
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place

HEADER = LogHeader(graph="g", interval_us=10, ids="string")


def snapshot(tau: int) -> tuple[int, pa.Table]:
    return tau, pa.Table.from_pylist([event(f"n{tau}", "hub", tau * 10)], schema=event_schema("string"))


def open_event(tau: int) -> pa.Table:
    rows = snapshot(tau)[1].to_pylist()
    provenance = [{**row, "topic": "a", "partition": 0, "offset": tau, "tau": tau} for row in rows]
    return pa.Table.from_pylist(provenance, schema=tail_schema("string"))


def write(store: Place, *taus: int) -> None:
    with LogWriter.open(store, HEADER) as writer:
        for tau, following in zip_longest(taus, taus[1:]):
            seal = [(tau, rows) for rows in [writer.open_tail()] if rows.num_rows] or [snapshot(tau)]
            writer.commit(seal=seal, tail=None if following is None else open_event(following))
