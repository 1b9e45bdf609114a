"""``freshet-stream savings``: what it counts, on graphs whose answer is known."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from log_events import event_columns

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.decode.files import EventFile
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.savings import PAIR_BYTES, measure
from freshet_graph.stream.synthetic.table2 import PaperGraph, paper_snapshots


def paper_file(nodes: int, edges: int, change: float, features: int) -> EventFile:
    graph = PaperGraph(nodes, edges, 5)
    tables = list(paper_snapshots(graph, change=change, features=features))
    whole = pa.concat_tables(tables, promote_options="default")
    t = (whole["t"].to_numpy() * 1e6).astype(np.int64)
    columns = {name: whole[name] for name in whole.column_names} | {"t": t, "weight": np.ones(len(t))}
    return EventFile(Path("paper"), event_columns(columns), "int", features, 0, True)


def run(file: EventFile, **more: object) -> dict[str, float]:
    options = {"algorithm": "hash", "parts": 4, "snapshots": 5, "window": 5, "segments": 4, **more}
    return measure(file, **options)  # type: ignore[arg-type, return-value]


def test_the_papers_savings_are_reached_where_nodes_stay():
    """DistDy, figures 8 and 9: sparse graph, 128 binary features, 30 % of edges replaced a snapshot."""
    for change, least in ((0.1, 0.614), (0.3, 0.471)):
        assert run(paper_file(2_000, 6_000, change, 128))["saving"] >= least


def test_pairs_alone_save_what_the_paper_publishes():
    """DistDy, figure 9(b): 39.9 to 50.4 % at its ratios of edges that change."""
    assert run(paper_file(2_000, 6_000, 0.3, 0))["edge_saving"] >= 0.504


def test_full_bytes_are_every_snapshot_of_the_window_whole():
    found = run(paper_file(500, 1_500, 0.002, 8), parts=1)
    assert found["full_bytes"] == pytest.approx(
        5 * (500 * (4 + 8 * 4) + 1_500 * PAIR_BYTES),
        rel=0.005,  # a node or two without an edge
    )
    once = 1 - 8 / (5 * PAIR_BYTES)  # instead of five times, and their one weight not at all
    assert found["edge_saving"] == pytest.approx(once, abs=0.01)
    assert found["disk_saving"] > 0.5
    assert found["additive_bytes"] < found["full_bytes"] / 2


def test_features_are_made_up_where_the_file_has_none_and_only_there():
    bare = paper_file(2_000, 6_000, 0.3, 0)
    assert np.isnan(run(bare)["feature_saving"])
    made_up = run(bare, features=64, change=0.5)
    assert 0 < made_up["feature_saving"] < run(bare, features=64, change=0.1)["feature_saving"]
    own = paper_file(300, 900, 0.3, 8)
    assert run(own, features=64) == run(own)


def test_the_same_seed_counts_the_same_bytes():
    bare = paper_file(300, 900, 0.3, 0)
    assert run(bare, features=16, seed=3) == run(bare, features=16, seed=3)


def test_a_file_without_events_is_refused():
    empty = EventFile(Path("empty"), event_schema("int").empty_table(), "int", 0, 0, True)
    with pytest.raises(StoreError, match="no events"):
        run(empty)
