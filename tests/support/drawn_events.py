"""Drawn snapshots of events with features."""

import pyarrow as pa
from hypothesis import strategies as st

from freshet_graph.schemas.events import log_event_schema

F, S = 5, 3


def event_table(rows):
    """Rows (op, src, dst, weight, features, feature_offset) as a sealed snapshot; t counts up."""
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
    op, src, dst, weight, features, offset = map(list, columns)
    return pa.table(
        {
            "op": op,
            "src": src,
            "dst": [None if d < 0 else d for d in dst],
            "t": list(range(len(rows))),
            "weight": weight,
            "features": features,
            "feature_offset": offset,
            "label": [None] * len(rows),
            "event_id": [None] * len(rows),
            "src_node": src,
            "dst_node": dst,
        },
        schema=log_event_schema("int"),
    )


ids = st.integers(0, 6)

weights = st.sampled_from([1.0, 0.5, 0.1, -2.0])

values = st.sampled_from([0.0, 1.0, -0.25])

inserts = st.tuples(st.just(1), ids, ids, weights, st.none(), st.none())

deletes = st.tuples(st.just(-1), ids, ids, st.just(1.0), st.none(), st.none())

full_vectors = st.tuples(
    st.just(0), ids, st.just(-1), st.just(1.0), st.lists(values, min_size=F, max_size=F), st.none()
)

sparse_vectors = st.integers(0, F - 1).flatmap(
    lambda offset: st.tuples(
        st.just(0),
        ids,
        st.just(-1),
        st.just(1.0),
        st.lists(values, min_size=1, max_size=F - offset),
        st.just(offset),
    )
)

rows = st.lists(inserts | inserts | deletes | full_vectors | sparse_vectors, max_size=12)
