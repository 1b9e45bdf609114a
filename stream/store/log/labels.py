"""The labels of label topics in the log: a file for each commit that took some, gathered into larger ones by compaction.

A label lies in no snapshot. ``visible_us`` says from when on events may know it: it is the largest of the label's own t, of all
event times that the log had accepted with or before its commit, and of the start of the first snapshot that this commit leaves
open. So an event that came before a label, or with it, never sees it, and a sealed snapshot never gets one more.
"""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, label_schema
from freshet_graph.schemas.store import FileRef, Key, LogHeader, LogIndex
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.log.layout import MAX_BATCH_ROWS
from freshet_graph.stream.store.log.sealed import canonical_batches
from freshet_graph.stream.store.places.interface import plain
from freshet_graph.stream.store.places.place import Place

_GATHERED = re.compile(r".*/labels-\d+-(\d+)-(\d+)\.arrow")

_ORIGIN = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
)


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A file with the labels of commits ``first`` to ``last``."""

    first: int
    last: int
    reference: FileRef


def arrived_schema(ids: IdKind) -> pa.Schema:
    """Labels that no commit has yet: ``label_schema`` without ``commit``, and their topic, partition and offset.

    ``visible_us`` is the earliest time at which one may be visible; null: any.
    """
    fields = [field for field in label_schema(ids) if field.name not in ("visible_us", "commit")]
    return pa.schema([*fields, pa.field("visible_us", pa.int64()), *_ORIGIN])


def arrived(labels: pa.Table, key: Key) -> pa.Table:
    """Labels, with ``offset``, of a topic partition as ``arrived_schema``."""
    topic, partition = (
        pa.repeat(pa.scalar(value, field.type), len(labels))
        for value, field in zip(key, _ORIGIN, strict=False)
    )
    place = len(labels.schema) - 1
    return labels.add_column(place, _ORIGIN[0], topic).add_column(place + 1, _ORIGIN[1], partition)


def file_schema(ids: IdKind) -> pa.Schema:
    """Columns of a file of labels: ``label_schema``, and their topic, partition and offset."""
    return pa.schema([*label_schema(ids), *_ORIGIN])


def stamped(labels: pa.Table, header: LogHeader, n: int, visible_from_us: int | None) -> pa.Table:
    """Labels as commit n has them: ``file_schema``, in order of topic, partition, offset and row.

    Args:
        labels: ``arrived_schema``; those of a topic partition are in order.
        header: The log's.
        n: Number of the commit.
        visible_from_us: The earliest time at which they are visible; None: any.
    """
    topics = labels["topic"].combine_chunks().dictionary_encode()
    rank = np.argsort(np.argsort(topics.dictionary.to_numpy(zero_copy_only=False), kind="stable"))
    order = np.lexsort((labels["partition"].to_numpy(), rank[topics.indices.to_numpy()]))
    visible = pc.max_element_wise(labels["t"], labels["visible_us"], pa.scalar(visible_from_us, pa.int64()))
    labels = labels.set_column(labels.schema.get_field_index("visible_us"), "visible_us", visible)
    labels = labels.append_column("commit", pa.array(np.full(len(labels), n, np.int32)))
    schema = file_schema(header.ids)
    return labels.select(schema.names).cast(schema).take(pa.array(order))


def encode_labels(labels: pa.Table) -> list[pa.RecordBatch]:
    """Labels as record batches of canonical bytes."""
    return canonical_batches(labels, MAX_BATCH_ROWS)


def read_labels(root: Place, reference: FileRef, ids: IdKind, *, verify: bool = True) -> pa.Table:
    """The labels of a file: ``file_schema``, not copied.

    Raises:
        CorruptError: It is missing or doesn't match its record.
    """
    return read_table(root, reference, schema=file_schema(ids), verify=verify)


def gathered(index: LogIndex) -> list[LabelFile]:
    """The files of labels that an index names."""
    files = []
    for reference in index.labels:
        match = _GATHERED.fullmatch(plain(reference.path))
        assert match is not None, f"{reference.path} is no name of a file of labels"
        files.append(LabelFile(int(match[1]), int(match[2]), reference))
    return files


def visible_from(labels: pa.Table, t_us: int) -> pa.Table:
    """The labels with ``visible_us`` at or after a time."""
    return labels.filter(pc.greater_equal(labels["visible_us"], t_us))
