"""Stores for tests of compaction: a log that grows snapshot by snapshot, a commit each, and what readers see of it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from lane_stream import FEATURES, SECOND, SEGMENTS, random_events

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.window.view import WindowView

SNAPSHOTS = 20
EVENTS = random_events(snapshots=SNAPSHOTS)
HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int", node_features=FEATURES, segments=SEGMENTS)


def seal(store: Path, first: int, end: int, events: pa.Table = EVENTS) -> None:
    """Commit snapshots ``first`` to ``end`` − 1, one a commit."""
    tau = events["t"].to_numpy() // SECOND
    with LogWriter.open(store, HEADER) as log:
        for k in range(first, end):
            log.commit(seal=[(k, events.filter(pa.array(tau == k)))])


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
    """Ids, and all events of the snapshots from number ``first`` on."""
    log = LogReader(store)
    return [log.external_ids().to_pylist(), *(log.events(s.tau).to_pylist() for s in log.snapshots[first:])]
