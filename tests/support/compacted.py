"""Stores for tests of compaction: a log that grows snapshot by snapshot, a commit each, and what readers see of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lane_stream import FEATURES, SECOND, SEGMENTS, random_events

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.labels import arrived_schema
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.window.view import WindowView

SNAPSHOTS = 20
EVENTS = random_events(snapshots=SNAPSHOTS)
HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int", node_features=FEATURES, segments=SEGMENTS)


def seal(store: Path, first: int, end: int, events: pa.Table = EVENTS) -> None:
    """Commit snapshots ``first`` to ``end`` − 1, one a commit, each with a label of an event and one of a node."""
    tau = events["t"].to_numpy() // SECOND
    with LogWriter.open(store, HEADER) as log:
        for k in range(first, end):
            log.commit(seal=[(k, events.filter(pa.array(tau == k)))], **labelled(k))


def labelled(k: int) -> dict[str, Any]:
    """The labels of commit ``k`` and how far their topic is read then, as arguments of ``LogWriter.commit``."""
    read = Position(topic="labels", partition=0, next=k + 1)
    return {"positions": {("labels", 0): read}, "labels": labels_of(k)}


def labels_of(k: int) -> pa.Table:
    """Two labels of one message with offset ``k``; the second is visible three snapshots later."""
    common = {"label": k, "priority": k % 2, "topic": "labels", "partition": 0, "offset": k}
    rows = [
        {"event_id": f"e{k}", "t": 0, **common},
        {"node": k, "t": (k + 3) * SECOND, "source": "a", **common},
    ]
    return pa.Table.from_pylist(rows, schema=arrived_schema("int"))


def catch_up(store: Path, *lanes: Lane) -> None:
    """Bring lanes up to date."""
    for lane in lanes:
        with LaneWriter(store, lane) as writer:
            writer.catch_up()


def grown(store: Path, *lanes: Lane, end: int = SNAPSHOTS) -> Path:
    """A store of the first snapshots with lanes up to date."""
    seal(store, 0, end)
    catch_up(store, *lanes)
    return store


def indexed(store: Path, *lanes: Lane, end: int, kept: int) -> Path:
    """A store that was compacted once: it has an index and a base of the log and of all lanes."""
    compact(grown(store, *lanes, end=end), Keep(snapshots=kept), always=True)
    return store


def seen(store: Path, lane: str, first: int, window: int = 3) -> list[tuple[object, ...]]:
    """All that a window view shows of every snapshot from number ``first`` on."""
    reader = LaneReader(store, lane)
    shown: list[tuple[object, ...]] = []
    view = WindowView(reader, window)
    for manifest in reader.manifests[first:]:
        view.advance(manifest)
        ids = np.arange(view.num_nodes)
        for tau in view.taus if manifest.sequence >= first + window else [manifest.tau]:
            csr = view.csr(tau)
            arrays = (view.features(ids, tau), view.owner(tau), csr.indptr, csr.indices, csr.weights)
            shown.append((tau, *(array.tobytes() for array in arrays)))
    return shown


def log_content(store: Path, first: int) -> list[object]:
    """Ids, all events of the snapshots from number ``first`` on, and the labels that are visible from there on."""
    log = LogReader(store)
    events = [log.events(s.tau).to_pylist() for s in log.snapshots[first:]]
    start_us = log.snapshots[first].tau * SECOND
    labels = [row for row in log.labels().to_pylist() if row["visible_us"] >= start_us]
    return [log.external_ids().to_pylist(), *events, labels]
