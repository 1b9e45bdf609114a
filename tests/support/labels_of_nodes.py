"""Labels of nodes that change, in a file or of a topic in a store."""

import atexit
import functools
import tempfile
from pathlib import Path

import pyarrow as pa
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import label_schema
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader

NODES, SNAPSHOTS = 60, 8


@functools.cache
def labels_file(*, flipped_from: int = SNAPSHOTS, classes: int = 2) -> str:
    """Every third node has no label at first, and a label changes in every third second of its node.

    ``flipped_from``: all labels from that second on are other ones.
    """
    rows = ["node,t,label"]
    for tau in range(SNAPSHOTS):
        for node in range(NODES):
            if (node + tau) % 3 == 0:
                label = (node // 2 + tau // 2 + (tau >= flipped_from)) % classes
                rows.append(f"{node},{tau + 0.5},{label}")
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
        file.write("\n".join(rows))
    atexit.register(Path(file.name).unlink)
    return file.name


def topic_of(rows: list[tuple[int, float, int, int]], kind: str = "int") -> pa.Table:
    """Labels of a topic in order of arrival: node, seconds from which it is visible, label, priority."""
    node, t, label, priority = zip(*rows, strict=True)
    t_us = [round(moment * SECOND) for moment in t]
    columns = {
        "event_id": [None] * len(rows), "node": [str(one) if kind == "string" else one for one in node], "label": label,
        "t": t_us, "visible_us": t_us, "commit": range(len(rows)), "source": [None] * len(rows), "priority": priority,
    }  # fmt: skip
    return pa.table({name: pa.array(columns[name]) for name in label_schema("int").names}).cast(
        label_schema(kind)
    )


def store_of(folder: Path, labels: pa.Table, events: pa.Table | None = None) -> LaneReader:
    """A store of events (default: ``meetings()``) with these labels, and a lane ``hash``."""
    lane = Lane(name="hash", algorithm="hash", parts=2)
    build_store(
        meetings() if events is None else events, folder, interval_us=SECOND, lanes=[lane], node_features=4,
        segments=2, labels=labels,
    )  # fmt: skip
    return LaneReader(folder, "hash")
