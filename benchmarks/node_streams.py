"""Streams for tasks about nodes, made of published data sets, for snapshot_accuracy.py and hybrid.py.

Each becomes a Parquet file that ``freshet-trainer evaluate`` takes: rows with ``dst`` are edges, rows without set the features
of ``src``, so that a node's newest value is its feature 0. What goes with a file (length of a snapshot, edge life, target) is
in STREAMS. A stream for node classification also has a file NAME.labels.parquet.

- slashdot: DynaHB's protocol (section 6.1). 200 intervals of the file, of which the last 80 have the replies; an edge lives for
  30 of them; all nodes are known from the first one on, as the published code has it; the target is log(1 + in-degree).
- england_covid, twitter_tennis, chickenpox: of PyTorch Geometric Temporal. The target is a node's next value, of twitter_tennis
  log(1 + mentions). Edges of the first two live for one snapshot; those of the last never change.
- patent: the class of a patent (of six) is asked in the snapshot in which it first cites or is cited. It is a feature of the
  patent from the next snapshot on, so that later ones see the classes of their neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import DATA
from numpy.typing import NDArray

INTERVALS, WITH_REPLIES = 200, 80
DAY_S = 86_400

Edges = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Stream:
    """A data set as a stream.

    Attributes:
        source: File in the folder of real graphs.
        make: From the source to the table.
        split: Shares of training, validation and test; the published ones, with some of training to pick the epoch by.
        config: Keys of a trainer's configuration.
        labels: From the source to the table of labels; None: the stream has none.
    """

    source: str
    make: Callable[[Path], pa.Table]
    split: str = "0.6,0.1,0.3"
    config: dict[str, Any] = field(default_factory=dict)
    labels: Callable[[Path], pa.Table] | None = None


def stream_table(edges: Edges, values: NDArray[np.floating], every_s: int) -> pa.Table:
    """Edges (src, dst, snapshot) and a value of every node in each snapshot, as rows of a file.

    Args:
        edges: int64 each.
        values: (snapshots, nodes).
        every_s: Length of a snapshot, seconds.
    """
    src, dst, tau = edges
    steps, nodes = values.shape
    of_nodes = pa.ListArray.from_arrays(
        np.arange(steps * nodes + 1, dtype=np.int32), pa.array(values.ravel(), pa.float32())
    )
    parts = {
        "src": [pa.array(src), pa.array(np.tile(np.arange(nodes), steps))],
        "dst": [pa.array(dst), pa.nulls(steps * nodes, pa.int64())],
        "t": [pa.array(tau * every_s), pa.array(np.repeat(np.arange(steps), nodes) * every_s)],
        "features": [pa.nulls(len(src), of_nodes.type), of_nodes],
    }
    table = pa.table({name: pa.chunked_array(columns) for name, columns in parts.items()})
    return table.sort_by("t")


def slashdot(path: Path) -> pa.Table:
    """The replies of the last intervals, seconds from the first reply on; nodes come with the feature 0."""
    table = pq.read_table(path, columns=["src", "dst", "t"])
    src, dst, t = (table[name].to_numpy() for name in ("src", "dst", "t"))
    since = t - t[t > 0].min()
    begin = -(-since.max() * (INTERVALS - WITH_REPLIES) // INTERVALS)
    kept = since >= begin
    rows = stream_table(
        (src[kept], dst[kept], since[kept]), np.zeros((1, int(max(src.max(), dst.max())) + 1)), 1
    )
    t_rows = np.maximum(rows["t"].to_numpy(), begin)
    return rows.set_column(2, "t", pa.array(t_rows))


def changing(path: Path, transform: Callable[[Any], Any] = lambda y: y) -> pa.Table:
    """Other edges in every snapshot."""
    data = np.load(path)
    src, dst = data["edge_index"].astype(np.int64)
    tau = np.repeat(np.arange(len(data["y"])), np.diff(data["snapshot_ptr"]))
    return stream_table((src, dst, tau), transform(data["y"]), DAY_S)


def chickenpox(path: Path) -> pa.Table:
    """Edges that come once."""
    data = np.load(path, allow_pickle=True)
    src, dst = data["edge_index"].astype(np.int64)
    return stream_table((src, dst, np.zeros_like(src)), data["fx"], DAY_S)


PATENT_S, CLASSES = 9, 6
"""Length of a snapshot: a hundredth of the stream."""


def patent_labels(path: Path) -> pa.Table:
    """The class of each patent from its first edge on."""
    edges = pq.read_table(path).sort_by("t")
    ends = np.stack([edges["src"].to_numpy(), edges["dst"].to_numpy()], axis=1)
    node, first = np.unique(ends.ravel(), return_index=True)
    label = np.load(path.with_name("patent_node_labels.npz"))["label"][node] - 1
    return pa.table({"node": node, "t": edges["t"].to_numpy()[first // 2], "label": label.astype(np.int32)})


def patent(path: Path) -> pa.Table:
    """Citations, and the class of each patent as features of the next snapshot."""
    edges, labels = pq.read_table(path, columns=["src", "dst", "t"]), patent_labels(path)
    one_hot = np.eye(CLASSES, dtype=np.float32)[labels["label"].to_numpy()]
    features = pa.array(one_hot.tolist(), pa.list_(pa.float32()))
    next_s = (labels["t"].to_numpy() // PATENT_S + 1) * PATENT_S
    classes = pa.table(
        {"src": labels["node"], "dst": pa.nulls(len(labels), pa.int64()), "t": next_s, "features": features}
    )
    classes = classes.filter(next_s <= edges["t"].to_numpy().max())
    without = edges.append_column("features", pa.nulls(len(edges), features.type))
    return pa.concat_tables([classes, without]).sort_by("t")


_NEXT_VALUE = {"interval_s": DAY_S, "task_params": {"next": "feature", "of": 0}}
STREAMS = {
    "slashdot": Stream(
        "slashdot_reply.parquet",
        slashdot,
        "0.35,0.05,0.6",
        {"interval_s": 84_444_600 / INTERVALS, "edge_life": 30, "task_params": {"next": "in_degree"}},
    ),
    "england_covid": Stream("dtdg_england_covid.npz", changing, config={**_NEXT_VALUE, "edge_life": 1}),
    "twitter_tennis": Stream(
        "dtdg_twitter_tennis_rg17.npz",
        lambda path: changing(path, np.log1p),
        config={**_NEXT_VALUE, "edge_life": 1},
    ),
    "chickenpox": Stream("dtdg_chickenpox.npz", chickenpox, config=_NEXT_VALUE),
    "patent": Stream(
        "patent.parquet",
        patent,
        "0.7,0.15,0.15",
        {"task": "node-classification", "interval_s": PATENT_S, "task_params": {"classes": CLASSES}},
        patent_labels,
    ),
}


def written(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file of a stream, made where it is missing, and the keys of a configuration that go with it."""
    stream, config = STREAMS[name], dict(STREAMS[name].config)
    path, labels = folder / f"{name}.parquet", folder / f"{name}.labels.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if stream.labels is not None:
            pq.write_table(stream.labels(DATA / stream.source), labels)
        temporary = path.with_suffix(".tmp")
        pq.write_table(stream.make(DATA / stream.source), temporary)
        temporary.replace(path)
    if stream.labels is not None:
        config["task_params"] = {**config["task_params"], "labels": str(labels)}
    return path, config
