"""Labels of label topics: read as node events whose id is that of the labelled event or node, and whose own id is the source.

So each message format reads labels, too, and bounds, refusals and paths are those of events.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.events import IdKind, Reason, label_schema
from freshet_graph.stream.decode.validate import Draft


def taken_schema(ids: IdKind) -> pa.Schema:
    """Labels on their way to the log: ``label_schema`` without ``commit``, and ``offset``, int64.

    ``visible_us`` is the earliest time that a file gives; null: the commit alone decides.
    """
    fields = [field for field in label_schema(ids) if field.name not in ("visible_us", "commit")]
    more = [pa.field("visible_us", pa.int64()), pa.field("offset", pa.int64(), nullable=False)]
    return pa.schema([*fields, *more])


def require_label(draft: Draft, shown: Callable[[str], str]) -> None:
    """Refuse the rows of a draft that have no label; ``shown`` gives the names of columns in sentences."""
    missing = draft.batch["label"].is_null().to_numpy(zero_copy_only=False)
    draft.faults.refuse(missing, Reason.MISSING_FIELD, f"{shown('label')} is missing")


class LabelRows:
    """Makes labels of the node events that a label topic is read as.

    Args:
        topic: Its fields and the rank of its sources.
        ids: Kind of node ids of the graph.

    Attributes:
        of_events: Whether they are labels of events, not of nodes.
    """

    def __init__(self, topic: Topic, ids: IdKind) -> None:
        self.of_events = topic.labels_events
        self._sources = pa.array(topic.sources or [], pa.string())
        self._schema = taken_schema(ids)

    def as_labels(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of node events under the names of a label's fields."""
        names = ["event_id" if self.of_events else "node", "label", "t", "source"]
        columns = [rows[name] for name in ("src", "label", "t", "event_id")]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def of(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The labels, ``taken_schema``.

        Args:
            events: Accepted node events with ``offset``.
        """
        count = len(events)
        place = pc.index_in(events["event_id"], self._sources).fill_null(len(self._sources))
        columns = {
            "event_id": events["src"] if self.of_events else pa.nulls(count, pa.string()),
            "node": pa.nulls(count, self._schema.field("node").type) if self.of_events else events["src"],
            "label": events["label"],
            "t": events["t"],
            "source": events["event_id"],
            "priority": pa.array(len(self._sources) - place.to_numpy(zero_copy_only=False), pa.int32()),
            "visible_us": pa.nulls(count, pa.int64()),
            "offset": events["offset"],
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
