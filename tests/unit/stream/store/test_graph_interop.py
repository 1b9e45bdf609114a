"""A snapshot as a graph of other packages, and SQL over the log: the same nodes, edges, weights and features everywhere."""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lane_stream import FEATURES, SECOND, lane, make_store
from plain_reader import PlainLog

from freshet_graph import open_store
from freshet_graph.schemas.errors import FreshetError, MissingLibraryError
from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.errors import ConfigMissingError, RetainedError
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.graph import read_graph
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter

PAGE = Path(__file__).parents[4] / "docs" / "store-format.md"
LIBRARY = PAGE.with_name("library.md")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(
        tmp_path_factory.mktemp("store"), lane("distdy"), lane("sep"), lane("hdrf", edge_life=1)
    )


def edges_of(graph):
    ends = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
    return dict(zip(ends, graph.weight.tolist(), strict=True))


def test_the_graph_of_every_snapshot_is_that_of_the_events_with_and_without_a_lane(store):
    for tau, edges, vectors in PlainLog(store).graphs():
        for name in (None, "distdy"):
            graph = read_graph(store, lane=name, as_of=AsOf(tau=tau))
            assert graph.tau == tau
            assert edges_of(graph) == edges
            zeros = [0.0] * FEATURES
            there = range(graph.num_nodes) if name is None else np.flatnonzero(graph.owner >= 0).tolist()
            assert graph.features[list(there)].tolist() == [vectors.get(v, zeros) for v in there]
            assert graph.ids.to_pylist() == PlainLog(store).external_ids()[: graph.num_nodes]
            assert (graph.owner is None) == (name is None)
    assert set(read_graph(store, lane="distdy").owner.tolist()) <= {-1, 0, 1, 2}


def test_a_lane_has_its_edge_life(store):
    graph = read_graph(store, lane="hdrf")
    last = LogReader(store).events(graph.tau).to_pylist()
    assert 0 < len(graph.src) < len(read_graph(store).src)
    assert edges_of(graph).keys() <= {(row["src_node"], row["dst_node"]) for row in last}


def test_the_newest_snapshot_is_the_default_and_what_is_not_there_is_said(store, tmp_path):
    assert read_graph(store).tau == LogReader(store).snapshots[-1].tau
    assert read_graph(store, as_of=AsOf(t_us=3_500_000)).tau == 2  # the last that had ended by then
    with pytest.raises(RetainedError, match="has no snapshot as old as -1; it holds 0 to 7"):
        read_graph(store, as_of=AsOf(tau=-1))
    with pytest.raises(ConfigMissingError):
        read_graph(tmp_path)
    LogWriter.open(tmp_path / "empty", LogReader(store).header).close()
    with pytest.raises(RetainedError, match=r"empty has no snapshots yet$"):
        read_graph(tmp_path / "empty")


def test_networkx_has_external_ids_weights_and_features(tmp_path):
    rows = [
        {"op": 1, "src": "ada", "dst": "bob", "t": 0, "weight": 2.0},
        {"op": 1, "src": "bob", "dst": "bob", "t": 1, "weight": 1.0},
        {"op": 0, "src": "ada", "dst": None, "t": 2, "weight": 1.0, "features": [3.0, 4.0]},
        {"op": 1, "src": "cy", "dst": "ada", "t": 3, "weight": 1.0},
        {"op": -1, "src": "cy", "dst": "ada", "t": 4, "weight": 1.0},
    ]
    events = pa.Table.from_pylist(rows, schema=event_schema("string"))
    store = build_store(events, tmp_path / "store", interval_us=10, node_features=2, lanes=[lane("hash")])
    graph = read_graph(store, lane="hash")
    found = graph.to_networkx()
    assert set(found.edges(data="weight")) == {("ada", "bob", 2.0), ("bob", "bob", 1.0)}
    assert {name: data["features"].tolist() for name, data in found.nodes(data=True)} == {
        "ada": [3, 4], "bob": [0, 0], "cy": [0, 0],
    }  # fmt: skip
    assert [data["node"] for _, data in found.nodes(data=True)] == [0, 1, 2]
    assert [data["owner"] for _, data in found.nodes(data=True)] == graph.owner.tolist()
    assert not {"features", "owner"} & set(read_graph_without(tmp_path).to_networkx().nodes["ada"])


def read_graph_without(folder):
    """Neither features nor a lane."""
    events = pa.Table.from_pylist(
        [{"op": 1, "src": "ada", "dst": "bob", "t": 0, "weight": 2.0}], schema=event_schema("string")
    )
    return read_graph(build_store(events, folder / "without", interval_us=10))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="DGL has no wheel for this Python")
def test_dgl_has_the_same_edges_weights_and_features(store):
    graph = read_graph(store, lane="distdy")
    found = graph.to_dgl()
    assert found.num_nodes() == graph.num_nodes
    src, dst = (ends.tolist() for ends in found.edges())
    assert dict(zip(zip(src, dst, strict=True), found.edata["weight"].tolist(), strict=True)) == edges_of(
        graph
    )
    assert found.ndata["feat"].tolist() == graph.features.tolist()
    assert found.ndata["owner"].tolist() == graph.owner.tolist()


def test_pyg_has_the_same_edges_weights_and_features(store):
    graph = read_graph(store, lane="distdy")
    found = graph.to_pyg()
    assert found.validate()
    assert found.edge_index.tolist() == [graph.src.tolist(), graph.dst.tolist()]
    assert found.edge_weight.tolist() == graph.weight.tolist()
    assert found.x.tolist() == graph.features.tolist()
    assert found.owner.tolist() == graph.owner.tolist()
    assert (found.num_nodes, found.tau, found.end_us) == (graph.num_nodes, graph.tau, graph.end_us)
    assert not {"x", "owner"} & set(read_graph_without(store.parent).to_pyg().keys())


def test_a_window_is_the_last_graphs_of_a_lane_in_every_library(store):
    opened = open_store(store)
    assert opened.lanes == ["distdy", "hdrf", "sep"]
    window = opened.window("distdy", 3, as_of="6")
    taus = [graph.tau for graph in window]
    assert (taus, len(window)) == ([4, 5, 6], 3)
    for graph in window:
        alone = read_graph(store, lane="distdy", as_of=AsOf(tau=graph.tau))
        assert edges_of(graph) == edges_of(alone)
        assert graph.features.tolist() == alone.features.tolist()
        assert graph.owner.tolist() == alone.owner.tolist()
        assert graph.end_us == (graph.tau + 1) * SECOND
    for found, graph in zip(window.to_networkx(), window, strict=True):
        assert (found.number_of_nodes(), found.number_of_edges()) == (graph.num_nodes, len(graph.src))
    assert [found.tau for found in window.to_pyg()] == taus
    if sys.version_info < (3, 12):
        assert [found.num_edges() for found in window.to_dgl()] == [len(graph.src) for graph in window]
    assert len(opened.window("distdy", 100)) == len(LogReader(store).snapshots)
    with pytest.raises(ValueError, match="at least one snapshot, found 0"):
        opened.window("distdy", 0)
    assert edges_of(opened.graph(as_of="6")) == edges_of(graph)
    for moment in (6, datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), pandas.Timestamp("1970-01-01T00:00:07.5")):
        assert [one.tau for one in opened.window("distdy", 3, as_of=moment)] == taus
        assert opened.graph(as_of=moment).tau == graph.tau
        assert opened.events(as_of=moment).equals(opened.events(as_of="6"))
    for refused in (opened.graph, opened.events):
        with pytest.raises(FreshetError, match="as_of takes a snapshot such as 18262, a datetime"):
            refused(as_of=6.5)
    assert opened.events(as_of="0").num_rows == LogReader(store).events(0).num_rows


def test_the_data_frames_of_a_window_have_every_node_and_edge_of_each_snapshot(store):
    window = open_store(store).window("distdy", 3)
    nodes, edges = window.to_pandas()
    for graph in window:
        of = edges[edges["tau"] == graph.tau]
        ends = zip(of["src_node"], of["dst_node"], strict=True)
        assert dict(zip(ends, of["weight"], strict=True)) == edges_of(graph)
        names = graph.ids.to_pylist()
        assert [names[node] for node in graph.src] == of["src"].tolist()
        assert [names[node] for node in graph.dst] == of["dst"].tolist()
        there = nodes[nodes["tau"] == graph.tau]
        assert there["node"].tolist() == list(range(graph.num_nodes))
        assert there["id"].tolist() == names
        assert there["owner"].tolist() == graph.owner.tolist()
        assert np.stack(there["features"]).tolist() == graph.features.tolist()
        assert set(there["t"].astype("int64")) == set(of["t"].astype("int64")) == {graph.end_us}
    assert len(nodes) == sum(graph.num_nodes for graph in window)
    assert len(edges) == sum(len(graph.src) for graph in window)
    assert str(edges["t"].dtype) == "datetime64[us, UTC]"


@pytest.mark.parametrize(
    ("method", "package"),
    [("to_networkx", "networkx"), ("to_pandas", "pandas"), ("to_dgl", "dgl"), ("to_pyg", "torch_geometric")],
)
def test_a_package_that_is_missing_is_named_with_how_to_get_it(store, monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.data", None)
    with pytest.raises(
        MissingLibraryError,
        match=rf"{method}\(\) needs {package}, .*\. Run pip install ({package}|'freshet-graph\[{package}\]')$",
    ):
        getattr(read_graph(store), method)()


def test_the_line_of_sql_on_the_page_reads_every_event(store, tmp_path, monkeypatch):
    line = re.search(r"^python -c '(import duckdb.*)'$", PAGE.read_text(), re.MULTILINE)[1]
    (tmp_path / "store").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    shown = []
    exec(line, {"print": shown.append})
    counts = {row[0]: row[1] for row in shown[0].fetchall()}
    events = [
        row
        for snapshot in LogReader(store).snapshots
        for row in LogReader(store).events(snapshot.tau)["op"].to_pylist()
    ]
    assert counts == {op: events.count(op) for op in set(events)}


def test_the_data_frame_on_the_page_has_every_event(store, tmp_path, monkeypatch):
    program = re.search(r"^```python\n(import glob\n.*?)```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "store").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(program, found)
    log = LogReader(store)
    assert len(found["events"]) == sum(log.events(snapshot.tau).num_rows for snapshot in log.snapshots) > 0
    assert {"src", "dst", "t"} <= set(found["events"].columns)


def test_the_programs_on_the_page_of_the_library_run(store, tmp_path, monkeypatch, capsys):
    programs = re.findall(r"^```python\n(.*?)```$", LIBRARY.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "store").symlink_to(store)
    events = open_store(store).events()
    inserts = events.filter(pc.equal(events["op"], 1)).select(["src", "dst", "t"])
    pq.write_table(inserts, tmp_path / "events.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in programs:
        try:
            exec(program, names)
        except MissingLibraryError as missing:  # neither is required
            assert re.search("torch_geometric|dgl", str(missing))
    assert (len(programs), len(capsys.readouterr().out.splitlines()) > 8) == (6, True)
