"""Random scripts for tests of lanes: any events, any intervals."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st
from oracle_lane import INTERVAL_US, F, Row

from freshet_graph.schemas.events import event_schema

LANES = ["distdy", "sep", "scatter-vertex", "scatter-edge"]
NODES = 7


@st.composite
def streams(draw):
    """Snapshots in order: (τ, rows by time); some rows late, some snapshots of node events alone."""
    node = st.integers(0, NODES - 1)
    value = st.sampled_from([0.0, 1.0, -2.5])
    sparse = st.integers(0, F - 1).flatmap(
        lambda start: st.tuples(st.just(start), st.lists(value, min_size=1, max_size=F - start))
    )
    edge = st.tuples(st.sampled_from([1, 1, 1, -1]), node, node, st.sampled_from([1.0, 1.0, 0.5]))
    whole = st.lists(value, min_size=F, max_size=F)
    kinds = st.one_of(edge, edge, st.tuples(st.just(0), node, st.one_of(st.none(), whole, sparse)))
    snapshots, tau = [], draw(st.sampled_from([-3, 0, 5]))
    for _ in range(draw(st.integers(1, 14))):
        rows = []
        for kind in draw(st.lists(kinds, min_size=1, max_size=9)):
            t = tau * INTERVAL_US + draw(st.integers(-INTERVAL_US, INTERVAL_US - 1))
            if kind[0] == 0:
                given_features = kind[2]
                offset = given_features[0] if isinstance(given_features, tuple) else None
                values = given_features[1] if isinstance(given_features, tuple) else given_features
                rows.append(Row(0, kind[1], None, t, features=values, offset=offset))
            else:
                rows.append(Row(kind[0], kind[1], kind[2], t, weight=kind[3], label=kind[1] or None))
        snapshots.append((tau, sorted(rows, key=lambda row: row.t)))
        tau += draw(st.integers(1, 3))
    return snapshots


def table_of(rows: list[Row]) -> pa.Table:
    columns = {
        "op": [row.op for row in rows],
        "src": [row.src for row in rows],
        "dst": [row.dst for row in rows],
        "t": [row.t for row in rows],
        "weight": [row.weight for row in rows],
        "features": [row.features for row in rows],
        "feature_offset": [row.offset for row in rows],
        "label": [row.label for row in rows],
        "event_id": [None] * len(rows),
    }
    return pa.table(columns, schema=event_schema("int"))


@contextmanager
def scratch_store():
    """A folder for one example."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
