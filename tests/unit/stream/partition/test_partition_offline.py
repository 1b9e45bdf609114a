"""A file through a partitioner: snapshots, figures and the parts that come back in input order."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from log_events import event_columns
from typer.testing import CliRunner

from freshet_graph.stream.commands.partition import partition
from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.partition.offline import partition_events
from freshet_graph.stream.snapshots.sealing import densify, slice_events

KEYS = [
    "algorithm",
    "kind",
    "parts",
    "nodes",
    "edges",
    "snapshots",
    "seconds",
    "snapshot_seconds",
    "edges_per_s",
    "cut",
    "cut_final",
    "replication_factor",
    "training_replication_factor",
    "shared_share",
    "node_balance",
    "edge_balance",
    "utility",
    "moved_share",
    "lambda",
]


def canonical(rows, ids="int"):
    """(op, src, dst, t in s) rows in file order."""
    op, src, dst, t = map(list, zip(*rows, strict=True))
    return event_columns({"op": op, "src": src, "dst": dst, "t": [round(x * 1_000_000) for x in t]}, ids)


def partitioned(events, algorithm, *, parts, params=None, **how):
    return partition_events(events, create(algorithm, params, parts=parts), **how)


def random_file(n=400, nodes=40, seed=0):
    draws = np.random.default_rng(seed)
    t = draws.integers(0, 1000, n)
    ends = draws.integers(0, nodes, (n, 2)) * 10 + 7
    op = np.where(draws.random(n) < 0.2, -1, 1)
    return canonical(
        list(zip(op.tolist(), ends[:, 0].tolist(), ends[:, 1].tolist(), t.tolist(), strict=True))
    )


def test_dense_ids_follow_the_order_of_time_src_before_dst():
    events = canonical([(1, "d", "a", 5), (1, "b", "c", 3), (0, "a", None, 1), (1, "c", "b", 3)], "string")
    ordered, ids = densify(events)
    assert ids.to_pylist() == ["a", "b", "c", "d"]
    assert ordered["src_node"].to_pylist() == [0, 1, 2, 3]
    assert ordered["dst_node"].to_pylist() == [-1, 2, 1, 0]
    assert ordered["row"].to_pylist() == [2, 1, 3, 0]


def test_intervals_are_aligned_to_the_epoch_half_open_and_skip_what_is_empty():
    ordered, _ = densify(canonical([(1, 0, 1, t) for t in (0, 9.999999, 10, 45)]))
    slices = [(tau, s.num_rows) for tau, s in slice_events(ordered, interval_us=10_000_000)]
    assert slices == [(0, 2), (1, 1), (4, 1)]


def test_slices_of_equal_count_keep_equal_times_together():
    """Cuts after 4 and 8 of 12 events; the second falls into the run of 7s and moves back to its start."""
    times = [1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 8, 9]
    ordered, _ = densify(canonical([(1, 0, 1, t) for t in times]))
    slices = [
        (tau, [t // 1_000_000 for t in s["t"].to_pylist()]) for tau, s in slice_events(ordered, num_slices=3)
    ]
    assert slices == [(0, [1, 2, 3, 4]), (1, [5, 6]), (2, [7, 7, 7, 7, 8, 9])]


def test_more_slices_than_times_leave_none_empty_and_lose_nothing():
    ordered, _ = densify(canonical([(1, 0, 1, t) for t in (1, 1, 1, 2)]))
    slices = [s.num_rows for _, s in slice_events(ordered, num_slices=50)]
    assert slices == [3, 1]


def test_no_slicing_is_one_snapshot():
    ordered, _ = densify(canonical([(1, 0, 1, 3), (1, 1, 2, 99)]))
    assert [(tau, s.num_rows) for tau, s in slice_events(ordered)] == [(0, 2)]


def test_slicing_both_ways_or_into_nothing_is_refused():
    ordered, _ = densify(canonical([(1, 0, 1, 3)]))
    with pytest.raises(ValueError, match="not both"):
        slice_events(ordered, interval_us=1, num_slices=1)
    with pytest.raises(ValueError, match="num_slices must be at least 1, found 0"):
        slice_events(ordered, num_slices=0)
    with pytest.raises(ValueError, match="interval_us must be at most 9223372036854775807"):
        slice_events(ordered, interval_us=2**63)


def test_a_vertex_partitioner_gives_every_node_its_last_owner():
    """Node 30 leaves and keeps the owner it had; node 50 was only described and has none."""
    events = canonical([(1, 10, 20, 0), (1, 20, 30, 1), (-1, 20, 30, 10), (0, 50, None, 11)])
    result = partitioned(events, "hash", parts=3, interval_us=5_000_000)
    parts = dict(zip(*result.placement.to_pydict().values(), strict=True))
    assert parts.keys() == {10, 20, 30, 50}
    assert parts[50] == -1
    assert all(parts[v] in range(3) for v in (10, 20, 30))
    assert result.figures["snapshots"] == 2
    assert result.figures["edges"] == 2
    assert result.figures["nodes"] == 4
    assert list(result.figures) == KEYS


def test_vertex_figures_equal_those_counted_from_the_owners():
    events = random_file()
    result = partitioned(events, "hash", parts=3, num_slices=1)
    owner = dict(zip(*result.placement.to_pydict().values(), strict=True))
    ordered = sorted(
        zip(*(events[c].to_pylist() for c in ("op", "src", "dst", "t")), strict=True), key=lambda e: e[3]
    )
    live = set()
    for op, src, dst, _ in ordered:
        (live.add if op > 0 else live.discard)((src, dst))
    pairs = {tuple(sorted(p)) for p in live if p[0] != p[1]}
    cut = sum(owner[u] != owner[v] for u, v in pairs) / len(pairs)
    degree = {v: sum(v in p for p in pairs) for v in {x for p in live for x in p}}
    chance = {v: min(d, 10) / d for v, d in degree.items() if d}
    weight = {p: chance[p[0]] + chance[p[1]] for p in pairs}
    inside = sum(w for (u, v), w in weight.items() if owner[u] == owner[v])
    nodes = [sum(owner[v] == k for v in degree) for k in range(3)]
    stored = [sum(k in (owner[u], owner[v]) for u, v in pairs) for k in range(3)]
    figures = result.figures
    assert math.isclose(figures["cut"], cut)
    assert figures["cut_final"] == figures["cut"]
    assert math.isclose(figures["utility"], inside / sum(weight.values()))
    parts_near = {v: {owner[u] for p in pairs if v in p for u in p if u != v} for v in chance}
    assert math.isclose(
        figures["lambda"], sum(len(near - {owner[v]}) for v, near in parts_near.items()) / len(chance)
    )
    assert math.isclose(figures["node_balance"], max(nodes) * 3 / sum(nodes))
    assert math.isclose(figures["edge_balance"], max(stored) * 3 / sum(stored))
    assert (figures["replication_factor"], figures["shared_share"], figures["moved_share"]) == (1, 0, 0)


def test_lambda_is_the_mean_over_all_snapshots_nodes_with_a_neighbour():
    """A hub that gains two neighbours a snapshot, and a node that has only itself."""
    rows = [(1, 99, 99, 0)] + [(1, 0, v, t) for t in range(4) for v in (2 * t + 1, 2 * t + 2)]
    result = partitioned(canonical(rows), "hash", parts=4, interval_us=1_000_000)
    owner = dict(zip(*result.placement.to_pydict().values(), strict=True))
    foreign = nodes = 0
    for t in range(4):
        leaves = range(1, 2 * t + 3)
        foreign += len({owner[v] for v in leaves} - {owner[0]}) + sum(owner[v] != owner[0] for v in leaves)
        nodes += 1 + len(leaves)
    assert foreign > 0
    assert math.isclose(result.figures["lambda"], foreign / nodes)
    assert math.isnan(partitioned(canonical(rows), "sep", parts=4).figures["lambda"])


@pytest.mark.parametrize("algorithm", ["sep", "sep-centrality", "sep-two-pass"])
def test_edge_figures_equal_those_counted_from_the_parts(algorithm):
    """Parts come back in input order, so joining them with the file tells cut, sets of parts and balance."""
    events = random_file()
    result = partitioned(events, algorithm, parts=4, num_slices=7, params={"hubs": 0.2})
    inserts = events.filter(np.array(events["op"].to_pylist()) > 0)
    table = result.placement
    for name in ("src", "dst"):
        assert table[name].to_pylist() == inserts[name].to_pylist()
    assert table["t"].to_pylist() == [t // 1_000_000 for t in inserts["t"].to_pylist()]
    part = np.array(table["part"].to_pylist())
    figures = result.figures
    assert math.isclose(figures["cut"], (part < 0).mean())
    assert math.isclose(figures["edge_balance"], np.bincount(part[part >= 0]).max() * 4 / (part >= 0).sum())
    if algorithm == "sep-two-pass":  # nothing is demoted: the sets of parts follow from the edges alone
        sets = {}
        for src, dst, p in zip(
            table["src"].to_pylist(), table["dst"].to_pylist(), part.tolist(), strict=True
        ):
            for v in (src, dst) if p >= 0 else ():
                sets.setdefault(v, set()).add(p)
        seen = figures["nodes"]
        replicas = sum(map(len, sets.values())) + seen - len(sets)
        shared = {v for v, ps in sets.items() if len(ps) > 1}
        assert math.isclose(figures["replication_factor"], replicas / seen)
        assert math.isclose(figures["shared_share"], len(shared) / seen)
        assert math.isclose(figures["training_replication_factor"], 1 + 3 * len(shared) / seen)
        uncovered = [
            not ({src, dst} & shared) and sets[src] != sets[dst]
            for src, dst in zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True)
        ]
        assert math.isclose(figures["cut_final"], np.mean(uncovered))
    assert figures["shared_share"] <= 0.2
    assert figures["replication_factor"] <= 0.2 * 4 + 0.8


def test_fractions_of_a_second_stay():
    result = partitioned(canonical([(1, 0, 1, 0.25), (1, 1, 2, 3)]), "sep", parts=2)
    assert result.placement["t"].to_pylist() == [0.25, 3.0]


@pytest.mark.parametrize(("nodes", "edges"), [(100, 2000), (30, 200)])
@pytest.mark.parametrize("slices", [4, 20])
@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_distdy_spreads_small_dense_graphs_without_being_told(nodes, edges, slices, parts):
    """Neighbours pull far above the price of memory here: all nodes on one server would cut nothing."""
    draws = np.random.default_rng(0)
    src, dst = draws.integers(0, nodes, (2, edges)).tolist()
    events = canonical([(1, i, j, t) for t, (i, j) in enumerate(zip(src, dst, strict=True))])
    figures = partitioned(events, "distdy", parts=parts, num_slices=slices).figures
    assert figures["node_balance"] <= 1.2 + parts / nodes + 1e-9


@pytest.mark.parametrize("algorithm", ["sep", "sep-centrality", "sep-two-pass"])
def test_a_time_constant_is_a_tenth_of_the_span_unless_it_is_given(algorithm):
    events = random_file()
    t = events["t"].to_numpy()
    span_s = (t.max() - t.min()) / 1e6
    parts = [
        partitioned(events, algorithm, parts=4, num_slices=7, **how).placement["part"].to_pylist()
        for how in (
            {},
            {"params": {"time_constant": span_s / 10}, "by_span": False},
            {"params": {"time_constant": span_s / 1000}, "by_span": False},
        )
    ]
    assert parts[0] == parts[1] != parts[2]


app = typer.Typer()
app.command()(partition)


@pytest.fixture
def file(tmp_path):
    events = random_file()
    path = tmp_path / "events.parquet"
    columns = {name: events[name] for name in ("op", "src", "dst")}
    pq.write_table(pa.table({**columns, "t": [t // 1_000_000 for t in events["t"].to_pylist()]}), path)
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("algorithm", ["distdy", "hash", "hdrf", "sep-two-pass"])
def test_json_is_one_object_with_every_key(file, algorithm):
    result = call(file, "--algorithm", algorithm, "--parts", 3, "--snapshots", 5, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert list(figures) == KEYS
    assert figures["snapshots"] == len(figures["snapshot_seconds"]) == 5
    assert figures["edges_per_s"] > 0


def test_the_same_seed_writes_the_same_file_and_the_table_is_for_people(file, tmp_path):
    for name in ("a", "b"):
        result = call(
            file, "--algorithm", "sep", "--parts", 3, "--interval", 100, "--seed", 4, "--out", tmp_path / name
        )
        assert result.exit_code == 0, result.output
        assert "replication_factor" in result.stdout
        assert "{" not in result.stdout
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.read_schema(tmp_path / "a").names == ["src", "dst", "t", "part"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--algorithm", "metsi", "--parts", 2], "error: unknown partitioner 'metsi'; expected one of"),
        (["--algorithm", "hash", "--parts", 0], "error: hash needs at least one part, found parts = 0"),
        (["--algorithm", "sep", "--parts", 2, "--param", "hubs=1.2"], "hubs: must be at most 1, found 1.2"),
        (
            ["--algorithm", "sep-centrality", "--parts", 2, "--param", "balance_weight=3"],
            "(λ) must be in (0, 1], found 3",
        ),
        (
            ["--algorithm", "distdy", "--parts", 2, "--param", "capacity=200"],
            "servers have [64, 64] bytes left",
        ),
        (["--algorithm", "distdy", "--parts", 2, "--param", "capacity"], "--param takes name=value"),
        (["--algorithm", "sep", "--parts", 2, "--param", "x=["], "--param x takes a YAML value"),
        (["--algorithm", "sep", "--parts", 2, "--param", "seed=3"], "seed is not a parameter of sep"),
        (
            ["--algorithm", "sep", "--parts", 2, "--param", "x=1"],
            "params of sep: unknown key x. Expected one of hubs",
        ),
        (["--algorithm", "sep", "--parts", 2, "--param", "hubs=x"], "hubs: must be a number, found 'x'"),
        (
            ["--algorithm", "hash", "--parts", 2, "--seed", 10**23],
            "hash takes a seed from 0 to 9223372036854775807",
        ),
        (
            ["--algorithm", "load-aware", "--parts", 2, "--param", "layers=1000"],
            "layers: must be at most 8, found 1000",
        ),
        (["--algorithm", "hash", "--parts", 2, "--out", "/nowhere/x.parquet"], "a folder that exists"),
    ],
)
def test_errors_are_one_sentence_and_exit_1(file, arguments, sentence):
    result = call(file, *arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("interval", ["inf", "1e15", "nan", "0", "-1"])
def test_an_interval_that_microseconds_cannot_hold_is_a_usage_error(file, interval):
    result = call(file, "--algorithm", "hash", "--parts", 2, "--interval", interval)
    assert result.exit_code == 2
    assert "--interval must be from a microsecond to 9e+12 seconds" in " ".join(result.stderr.split())


def test_the_longest_interval_is_one_snapshot(file):
    result = call(file, "--algorithm", "hash", "--parts", 2, "--interval", "9e12", "--json")
    assert json.loads(result.stdout)["snapshots"] == 1


def test_interval_and_snapshots_together_are_a_usage_error(file):
    assert call(file, "--algorithm", "hash", "--parts", 2, "--interval", 5, "--snapshots", 2).exit_code == 2
