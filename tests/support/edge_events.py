"""Edge events of one snapshot with dense ids, as a live graph takes them."""

import pyarrow as pa

from freshet_graph.schemas.events import log_event_schema


def edge_events(rows):
    """(op, src, dst) rows as a table; t counts up."""
    plain = {"weight": 1.0, "features": None, "feature_offset": None, "label": None, "event_id": None}
    events = [
        {"op": op, "src": src, "dst": dst, "t": i, "src_node": src, "dst_node": dst, **plain}
        for i, (op, src, dst) in enumerate(rows)
    ]
    return pa.Table.from_pylist(events, schema=log_event_schema("int"))
