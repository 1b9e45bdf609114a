"""The plan's formulae beside a real store of a stream as it supposes."""

import numpy as np
import pyarrow as pa
import pytest

from schemas.config import Lane
from schemas.events import US_PER_S, event_schema
from stream.store.from_file import build_store
from stream.store.inspect import inspect
from stream.store.lane.reader import LaneReader
from stream.store.plan import DAY_S, Stream, plan
from stream.store.window.view import WindowView

SNAPSHOTS, INTERVAL_S = 6, 100
STREAM = Stream(
    rate=300,
    nodes=5_000,
    features=32,
    interval_s=INTERVAL_S,
    changed=0.2,
    keep_days=SNAPSHOTS * INTERVAL_S / DAY_S,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    schema, tables = event_schema("int"), []
    for k in range(SNAPSHOTS):
        start = k * INTERVAL_S * US_PER_S
        n, v = int(STREAM.rate * INTERVAL_S), int(STREAM.changed * STREAM.nodes)
        edges = {
            "op": np.ones(n, np.int8), "src": rng.integers(0, STREAM.nodes, n), "dst": rng.integers(0, STREAM.nodes, n),
            "t": start + np.sort(rng.integers(0, INTERVAL_S * US_PER_S, n)), "weight": np.ones(n, np.float32),
        }  # fmt: skip
        values = pa.array(rng.standard_normal(v * STREAM.features).astype(np.float32))
        described = {
            "op": np.zeros(v, np.int8), "src": rng.choice(STREAM.nodes, v, replace=False),
            "t": np.full(v, start), "weight": np.ones(v, np.float32),
            "features": pa.ListArray.from_arrays(pa.array(np.arange(v + 1, dtype=np.int32) * STREAM.features), values),
        }  # fmt: skip
        for columns in (described, edges):
            rows = len(columns["op"])
            arrays = [
                pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(rows, f.type)
                for f in schema
            ]
            tables.append(pa.table(arrays, schema=schema))
    return build_store(
        pa.concat_tables(tables), tmp_path_factory.mktemp("planned"), interval_us=INTERVAL_S * US_PER_S,
        lanes=[Lane(name="hash", algorithm="hash", parts=4)], node_features=STREAM.features,
    )  # fmt: skip


def test_log_and_lane_are_as_large_as_planned(store):
    figures, found = plan(STREAM), inspect(store)
    days = STREAM.keep_days
    assert found["log_bytes"] == pytest.approx(figures.log_bytes_a_day * days, rel=0.1)
    lane = LaneReader(store, "hash")
    planned = figures.lane_bytes_a_day * days  # rather too much than too little: every pair in two parts
    assert lane.totals.disk_bytes <= planned <= 1.5 * lane.totals.disk_bytes
    assert lane.manifests[-1].live_edges == pytest.approx(figures.live_pairs, rel=0.05)


def test_a_window_is_as_large_as_planned(store):
    lane = LaneReader(store, "hash")
    view = WindowView(lane, STREAM.window)
    for manifest in lane.manifests:
        view.advance(manifest)
    view.csr(view.taus[-1])
    assert view.memory_bytes == pytest.approx(plan(STREAM).trainer_memory_bytes, rel=0.5)


def test_files_a_day_are_those_that_a_store_has(store):
    snapshots = [path for path in store.rglob("*.arrow") if "snapshots" in path.parts]
    per_snapshot = (len(snapshots) + SNAPSHOTS) / SNAPSHOTS  # and a manifest
    figures = plan(STREAM)
    assert figures.files_a_day / figures.snapshots_a_day == pytest.approx(per_snapshot, abs=0.1)


def test_more_of_anything_takes_more(store):
    usual = plan(STREAM)
    for more in (
        Stream(600, 5_000, 32, 100), Stream(300, 50_000, 32, 100), Stream(300, 5_000, 64, 100), Stream(300, 5_000, 32, 100, 2),
    ):  # fmt: skip
        figures = plan(more)
        assert figures.disk_bytes_a_day > usual.disk_bytes_a_day
        assert figures.stream_memory_bytes > usual.stream_memory_bytes
