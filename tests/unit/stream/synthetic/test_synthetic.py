"""Synthetic streams: their sizes, their structure and their determinism."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer import Typer
from typer.testing import CliRunner

from freshet_graph.stream.commands.synth import synth
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.synthetic import PAPER_GRAPHS, START_S, PaperGraph, interactions, paper_snapshots
from freshet_graph.stream.synthetic.interactions import community_edges


def columns(table: pa.Table, *names: str) -> list[np.ndarray]:
    return [table[name].to_numpy() for name in names]


@pytest.mark.parametrize("shape", ["community", "rmat"])
@pytest.mark.parametrize(("nodes", "edges"), [(2, 1), (2, 50), (50, 7), (300, 5000)])
def test_a_plain_stream_has_exactly_the_edges_asked_for_in_order_of_time(shape, nodes, edges):
    table = interactions(nodes, edges, shape=shape, span_s=1000.0)
    src, dst, t, op = columns(table, "src", "dst", "t", "op")
    assert table.num_rows == edges
    assert (op == 1).all()
    assert min(src.min(), dst.min()) >= 0
    assert max(src.max(), dst.max()) < nodes
    assert (np.diff(t) >= 0).all()
    assert t[0] >= START_S
    assert t[-1] < START_S + 1000.0


def test_the_same_seed_gives_the_same_stream_and_another_another():
    assert interactions(100, 2000, features=3, seed=5).equals(interactions(100, 2000, features=3, seed=5))
    assert not interactions(100, 2000, seed=5).equals(interactions(100, 2000, seed=6))
    assert interactions(100, 2000, shape="rmat").equals(interactions(100, 2000, shape="rmat"))


def test_nodes_arrive_over_time_and_all_of_them_do():
    src, dst = columns(interactions(1000, 30_000), "src", "dst")
    assert len(np.union1d(src, dst)) == 1000
    assert (src != dst).all()
    half = len(np.union1d(src[:15_000], dst[:15_000]))
    assert 500 < half < 900


def test_features_come_with_the_node_and_again_when_its_community_changes():
    table = interactions(200, 4000, features=6, seed=2)
    src, t, op = columns(table, "src", "t", "op")
    assert (op == 1).sum() == 4000
    assert (np.diff(t) >= 0).all()
    is_node = op == 0
    assert table["dst"].is_null().to_numpy().tolist() == is_node.tolist()
    lengths = pa.compute.list_value_length(table["features"]).to_pylist()
    assert all(length == (6 if node else None) for length, node in zip(lengths, is_node, strict=True))
    first_feature = {}
    first_edge = {}
    for i, (node, of_node) in enumerate(zip(src, is_node, strict=True)):
        (first_feature if of_node else first_edge).setdefault(node, i)
    assert len(first_feature) == 200
    assert all(first_feature[node] < first_edge[node] for node in first_edge)
    assert is_node.sum() > 220


def average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """AP with ties at the same rank, one negative a positive."""
    scores = np.concatenate((positive, negative))
    hits = np.concatenate((np.ones(len(positive)), np.zeros(len(negative))))
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)
    found = np.cumsum(hits[order])[last]
    precision = found / (np.flatnonzero(last) + 1)
    return float(np.sum(np.diff(np.concatenate(([0.0], found / len(positive)))) * precision))


def baselines(src: np.ndarray, dst: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    """EdgeBank's and Recency's AP over the last 15 %, batches of 200, negatives among seen nodes."""
    rng = np.random.default_rng(0)
    pair_at: dict[tuple[int, int], float] = {}
    node_at: dict[int, float] = {}
    bank, recency = [], []
    for first in range(0, len(src), 200):
        batch = slice(first, min(first + 200, len(src)))
        if first >= 0.85 * len(src):
            seen = np.array(list(node_at))
            negative = seen[rng.integers(0, len(seen), len(src[batch]))]

            def scores(ends: np.ndarray, batch: slice = batch) -> tuple[np.ndarray, np.ndarray]:
                at = [pair_at.get(pair) for pair in zip(src[batch], ends, strict=True)]
                last = [
                    1e12 + a if a is not None else node_at.get(e, 0.0) for a, e in zip(at, ends, strict=True)
                ]
                return np.array([a is not None for a in at], float), np.array(last)

            (bank_1, last_1), (bank_0, last_0) = scores(dst[batch]), scores(negative)
            bank.append(average_precision(bank_1, bank_0))
            recency.append(average_precision(last_1, last_0))
        for u, v, when in zip(src[batch], dst[batch], t[batch], strict=True):
            pair_at[u, v] = node_at[u] = node_at[v] = when
    return float(np.mean(bank)), float(np.mean(recency))


def test_remembering_pairs_predicts_little_and_knowing_communities_much():
    nodes, edges = 1500, 40_000
    src, dst, t = columns(interactions(nodes, edges, seed=1), "src", "dst", "t")
    bank, recency = baselines(src, dst, t)
    assert 0.52 < bank < 0.7
    assert 0.52 < recency < 0.72

    # The same stream with its hidden communities: who shares one is told apart.
    stream = community_edges(nodes, edges, _after_times(edges, seed=1))
    assert stream.src.tolist() == src.tolist()
    current = np.full(nodes, -1)
    joins = defaultdict(list)
    for node, at, community in zip(
        stream.joined_node, stream.joined_at, stream.joined_community, strict=True
    ):
        joins[at].append((node, community))
    same = np.zeros(edges, bool)
    for i in range(edges):
        for node, community in joins.get(i, ()):
            current[node] = community
        same[i] = current[src[i]] == current[dst[i]]
    assert same[edges // 2 :].mean() > 0.8
    assert stream.communities >= 8


def _after_times(edges: int, seed: int) -> np.random.Generator:
    """The generator as ``interactions`` hands it on: the times are drawn first."""
    rng = np.random.default_rng(seed)
    rng.standard_exponential(edges + 1)
    return rng


def test_rmat_is_skewed():
    src, _ = columns(interactions(4096, 60_000, shape="rmat"), "src", "dst")
    degrees = np.sort(np.bincount(src, minlength=4096))[::-1]
    assert degrees[:41].sum() > 0.1 * 60_000
    assert (degrees == 0).sum() > 400


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes": 1, "edges": 5}, "at least 2 nodes"),
        ({"nodes": 5, "edges": 5, "span_s": 0.0}, "span positive"),
        ({"nodes": 5, "edges": 5, "features": 2, "shape": "rmat"}, "shape rmat does not have"),
    ],
)
def test_impossible_streams_are_told_why(arguments, words):
    with pytest.raises(ValueError, match=words):
        interactions(**arguments)


def test_paper_graphs_have_the_sizes_of_table_2():
    assert PAPER_GRAPHS["uni500k"] == PaperGraph(500_000, 2_500_000, 20)
    assert PAPER_GRAPHS["ex500k"].hot
    assert PAPER_GRAPHS["10k-sparse"] == PaperGraph(10_000, 30_000, 5)
    assert PAPER_GRAPHS["100k-dense"] == PaperGraph(100_000, 2_000_000, 5)


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("change", [0.0, 0.3, 1.0])
def test_a_paper_graph_keeps_its_size_and_changes_the_share_asked_for(hot, change):
    graph = PaperGraph(400, 1200, 4, hot=hot)
    live: set[tuple[int, int]] = set()
    degrees = np.zeros(400)
    for tau, table in enumerate(paper_snapshots(graph, change=change, seed=3)):
        src, t, op = columns(table, "src", "t", "op")
        dst = table["dst"].to_numpy()
        assert (np.diff(t) >= 0).all()
        assert (t // 1000 == 1_704_068 + tau).all()
        features = table["features"].drop_null()
        assert set(np.unique(pa.compute.list_flatten(features).to_numpy())) <= {0.0, 1.0}
        assert len(features) == (op == 0).sum() == (400 if tau == 0 else round(change * 400))
        assert (op == 1).sum() == (1200 if tau == 0 else round(change * 1200))
        for u, v, o in zip(src, dst, op, strict=True):
            if o == 1:
                assert (u, v) not in live
                assert u < v
                live.add((u, int(v)))
            elif o == -1:
                live.remove((u, int(v)))
        assert len(live) == 1200
    for u, v in live:
        degrees[[u, v]] += 1
    assert (degrees[:40].sum() > 0.35 * degrees.sum()) == hot


def run(*arguments: str) -> tuple[int, str, str]:
    app = Typer()
    app.command()(synth)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_synth_writes_a_file_that_reads_back_and_counts_it(tmp_path: Path):
    for name in ("a.parquet", "a.csv"):
        out = tmp_path / name
        code, text, _ = run(
            *(
                "--nodes",
                "40",
                "--edges",
                "500",
                "--features",
                "3",
                "--rate",
                "0.01",
                "--out",
                str(out),
                "--json",
            )
        )
        assert code == 0
        result = json.loads(text)
        file = read_events(out)
        op, t = file.events["op"].to_numpy(), file.events["t"].to_numpy()
        assert result["file"] == str(out)
        assert (result["nodes"], result["edges"]) == (40, 500) == (40, (op == 1).sum())
        assert result["snapshots"] == len(np.unique(t // 86_400_000_000)) == 1
        assert file.node_features == 3
        assert file.sorted_by_time


def test_synth_writes_paper_graphs(tmp_path: Path):
    out = tmp_path / "p.parquet"
    code, text, _ = run(
        "--paper", "10k-sparse", "--snapshots", "2", "--change", "0.1", "--out", str(out), "--json"
    )
    assert code == 0
    assert json.loads(text) == {
        "file": str(out),
        "nodes": 10_000,
        "edges": 33_000,
        "snapshots": 2,
        "events": 47_000,
    }
    assert read_events(out).node_features == 128


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--nodes", "5"], 2, "give both --nodes and --edges"),
        ([], 2, "give --nodes and --edges, or --paper"),
        (["--paper", "uni500k", "--nodes", "5", "--edges", "5"], 2, "or --paper"),
        (["--nodes", "5", "--edges", "5", "--change", "0.5"], 2, "go with --paper"),
        (["--nodes", "5", "--edges", "5", "--rate", "0"], 2, "must be positive"),
        (["--paper", "uni1k"], 1, "unknown graph 'uni1k' of --paper, expected one of uni500k"),
        (
            ["--nodes", "5", "--edges", "5", "--shape", "rmat", "--features", "2"],
            1,
            "shape rmat does not have",
        ),
    ],
)
def test_synth_tells_what_is_wrong_with_its_options(tmp_path, arguments, code, words):
    found, _, error = run(*arguments, "--out", str(tmp_path / "x.parquet"))
    assert found == code
    assert words in " ".join(error.replace("│", "").split())
