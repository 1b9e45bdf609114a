"""Measure what additive storage saves on a file: a window, and a lane's files, against whole snapshots.

Both sides use the same representation: values are float32, and a pair has its own weight only if the weights differ. In
memory: what the window views of all parts hold, index structures included, against the plain arrays of every snapshot of the
window. On the disk: the files of the lane against a base of every snapshot.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import Op, event_schema
from freshet_graph.schemas.store import LaneManifest, LogHeader
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.files import EventFile
from freshet_graph.stream.service.scratch import scratch_folder
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.lane.diff import segment_width
from freshet_graph.stream.store.lane.index import disk_bytes
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.tables import BUNDLE_SCHEMA, bundle_batches
from freshet_graph.stream.store.lane.writer import LaneWriter, stored_batches
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.window.held import HeldParts
from freshet_graph.stream.store.window.view import WindowView

NODE_BYTES = 4
"""A node's dense id in a snapshot held whole, int32."""
PAIR_BYTES = 4 + 4
"""A pair's ends, int32."""
WEIGHT_BYTES = 4
"""A pair's weight, float32, if the weights of the window differ."""
VALUE_BYTES = 4

Progress = Callable[[int, int], None]
"""Called with the snapshots done and their total."""


@dataclass(slots=True)
class _Bytes:
    features: int = 0
    edges: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.features + self.edges + self.other


def measure(
    file: EventFile,
    *,
    algorithm: str,
    parts: int,
    snapshots: int,
    window: int,
    segments: int,
    features: int = 0,
    change: float = 0.3,
    params: dict[str, object] | None = None,
    seed: int = 0,
    progress: Progress = lambda done, of: None,
) -> dict[str, float | int | str]:
    """Measure what a lane saves on a file.

    Args:
        file: Its events.
        algorithm: Partitioner of the lane.
        parts: K.
        snapshots: N, of equal length; those without an event are skipped.
        window: w, snapshots that are held.
        segments: S, slices of a feature vector.
        features: F, binary features to make up if the file has none; 0: none.
        change: Share of the nodes seen so far that get a new vector per snapshot; made-up features only.
        params: Parameters of the partitioner.
        seed: Seed of made-up features and the partitioner.
        progress: Called after every snapshot.

    Returns:
        ``full_bytes`` and ``additive_bytes``: memory, mean over the snapshots with a full window (or the last one, if none
        has); ``saving`` = 1 − additive / full, ``feature_saving`` and ``edge_saving`` of features and of pairs alone, NaN
        without any; ``disk_full_bytes``, ``disk_bytes``, ``disk_saving``: files of the lane; ``moved_share`` of nodes.

    Raises:
        StoreError: The file has no events, or features and no room for made-up ones.
        PartitionError: The partitioner can't do what is asked.
        OSError: The disk refuses.
    """
    if file.events.num_rows == 0:
        raise StoreError("the file has no events")
    made_up = features if file.node_features == 0 else 0
    width = file.node_features or features
    header = LogHeader(
        graph="savings",
        interval_us=_interval(file.events, snapshots),
        ids=file.ids,
        node_features=width,
        edge_features=0,
        segments=segments,
    )
    lane = Lane.model_validate(
        {
            "name": "lane", "algorithm": algorithm, "parts": parts, "window": window, "seed": seed,
            "params": params or {},
        }
    )  # fmt: skip
    with scratch_folder("savings") as scratch:
        folder = place_of(scratch)
        with LogWriter.open(folder, header) as log:
            for tau, events in _snapshots(file, header.interval_us, made_up, change, seed):
                log.commit(seal=[(tau, events)])
            count = len(log.snapshots)
        with LaneWriter(folder, lane, observer=lambda m: progress(m.sequence + 1, count)) as writer:
            writer.catch_up()
        return {"algorithm": algorithm, "parts": parts, **_measured(LaneReader(folder, "lane"), window)}


def _measured(lane: LaneReader, window: int) -> dict[str, float | int | str]:
    manifests = lane.manifests[:]
    views = [WindowView(lane, window, [part]) for part in range(lane.header.parts)]
    additive, full, counted = _Bytes(), _Bytes(), 0
    last = len(manifests) - 1
    for manifest in manifests:
        for view in views:
            view.advance(manifest)
        if manifest.sequence + 1 < window and manifest.sequence != last:
            continue
        counted += 1
        weighted = False
        for view in views:
            sizes = view.held_bytes()
            additive.features += sizes.features + sizes.spared
            additive.edges += sizes.pairs
            additive.other += sizes.placement
            weighted = weighted or sizes.weighted
        pair_bytes = PAIR_BYTES + (WEIGHT_BYTES if weighted else 0)
        for past in manifests[max(0, manifest.sequence + 1 - window) : manifest.sequence + 1]:
            _add_whole(full, past, lane.header.node_features, pair_bytes)
    disk, disk_full = _on_disk(lane)
    moved = [m.quality.moved_share for m in manifests[-1:]]
    return {
        "snapshots": len(manifests),
        "window": window,
        "full_bytes": full.total // counted,
        "additive_bytes": additive.total // counted,
        "saving": _saving(additive.total, full.total),
        "feature_saving": _saving(additive.features, full.features),
        "edge_saving": _saving(additive.edges, full.edges),
        "disk_full_bytes": disk_full,
        "disk_bytes": disk,
        "disk_saving": _saving(disk, disk_full),
        "moved_share": float("nan") if moved[0] is None else moved[0],
    }


def _add_whole(full: _Bytes, manifest: LaneManifest, features: int, pair_bytes: int) -> None:
    """Add a snapshot held whole: each part's nodes with a row of features each, and its pairs."""
    nodes = sum(part.nodes for part in manifest.parts)
    full.features += nodes * features * VALUE_BYTES
    full.edges += sum(part.edges for part in manifest.parts) * pair_bytes
    full.other += nodes * NODE_BYTES


def _on_disk(lane: LaneReader) -> tuple[int, int]:
    """Bytes of the files of the differences, and of every snapshot as a base, both compressed."""
    width = segment_width(lane.header.node_features, lane.header.segments)
    content = HeldParts(lane.root, lane.header)
    added = whole = 0
    for manifest in lane.manifests:
        content.advance(manifest)
        added += disk_bytes(manifest) - (manifest.base.bytes if manifest.base else 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, BUNDLE_SCHEMA) as writer:
            for batch in bundle_batches(stored_batches(content.whole(manifest.sequence), width)):
                writer.write_batch(batch)
        whole += sink.getvalue().size
    return added, whole


def _saving(additive: int, full: int) -> float:
    return 1 - additive / full if full else float("nan")


def _interval(events: pa.Table, snapshots: int) -> int:
    """Length of a snapshot, microseconds: the file's span in equal pieces, rounded up to three digits."""
    t = events["t"].to_numpy()
    exact = max(1, -(-(int(t.max()) - int(t.min()) + 1) // snapshots))
    step = 10 ** max(0, len(str(exact)) - 3)
    return -(-exact // step) * step


def _snapshots(
    file: EventFile, interval_us: int, features: int, change: float, seed: int
) -> Iterator[tuple[int, pa.Table]]:
    """The file's snapshots from 0 on, ordered by time, with made-up features if requested."""
    rng = np.random.default_rng(seed)
    events = file.events.cast(event_schema(file.ids))
    t = events["t"].to_numpy()
    order = np.argsort(t, kind="stable")
    events, t = events.take(pa.array(order)), t[order]
    t = t - t[0]
    events = events.set_column(events.schema.get_field_index("t"), events.schema.field("t"), pa.array(t))
    tau = t // interval_us
    seen: set[object] = set()
    known: list[object] = []
    for k in np.unique(tau).tolist():
        piece = events.slice(
            int(np.searchsorted(tau, k)), int(np.searchsorted(tau, k, "right") - np.searchsorted(tau, k))
        )
        if features:
            redrawn = [known[i] for i in _share(len(known), change, rng)]
            ends = pa.chunked_array([*piece["src"].chunks, *piece["dst"].drop_null().chunks]).unique()
            fresh = [node for node in ends.to_pylist() if node not in seen]
            seen.update(fresh)
            known += fresh
            piece = pa.concat_tables(
                [_described([*redrawn, *fresh], features, int(k) * interval_us, piece.schema, rng), piece]
            )
        yield int(k), piece


def _share(count: int, share: float, rng: np.random.Generator) -> Int64:
    return rng.choice(count, round(share * count), replace=False) if count else np.empty(0, np.int64)


def _described(
    nodes: list[object], features: int, t_us: int, schema: pa.Schema, rng: np.random.Generator
) -> pa.Table:
    """Node events that give nodes a new binary vector each."""
    n = len(nodes)
    values = rng.integers(0, 2, n * features).astype(np.float32)
    offsets = np.arange(n + 1, dtype=np.int64) * features
    columns = {
        "op": pa.array(np.full(n, int(Op.NODE), np.int8)),
        "src": pa.array(nodes, schema.field("src").type),
        "t": pa.array(np.full(n, t_us, np.int64)),
        "weight": pa.array(np.ones(n, np.float32)),
        "features": pa.LargeListArray.from_arrays(offsets, values).cast(pa.list_(pa.float32())),
    }
    arrays = [columns.get(field.name, pa.nulls(n, field.type)) for field in schema]
    return pa.table(arrays, schema=schema)
