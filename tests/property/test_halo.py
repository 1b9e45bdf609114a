"""The halo: it is the closure of a rank's nodes, ranks that have it learn what one learns, and send gradients only."""

import re
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from drawn_lanes import TURNOVER, TWO_NODES, lane_of, streams
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rank_equality import begun, learned, require_equal
from thread_ranks import side_by_side
from trainer_sessions import learn, lesson_of
from trainer_streams import SECOND, make_lane, meetings

from schemas.config import Lane
from schemas.events import event_schema
from stream.partition.vertex.quality import foreign_parts
from stream.service.failure import Failure
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from stream.store.window.view import WindowView
from trainer.ranks import Ranks
from trainer.strategies.snapshots.halo import MIB

MOVES = [
    [(1, 0, 1), (1, 1, 2), (1, 3, 4), (1, 4, 5)],
    [(1, 0, 3), (1, 0, 4), (1, 0, 5), (-1, 0, 1)],
    [(1, 2, 5), (1, 2, 4), (-1, 1, 2), (0, 2, 2)],
]
"""Nodes change sides, so that partitioners move them."""


def session_of(lane: LaneReader, ranks: Ranks, model: str = "sage-linear", **params: Any) -> Any:
    return begun(lane, "vertex", model, ranks, torch.float64, 0.01, strategy_params=params)


@pytest.mark.parametrize("model", ["sage-linear", "dysat"])
@pytest.mark.parametrize(
    "params",
    [
        {"fetch": "halo"},
        {"fetch": "halo", "cache_mib": 0.004},
        {"fetch": "owner", "cache_mib": 0.004},
        {"fetch": "halo", "inference_nodes": 7},
    ],
    ids=str,
)
@settings(max_examples=1)
@given(streams, st.sampled_from(["hash", "kl"]))
@example(TWO_NODES, "hash")
@example(TURNOVER, "hash")
@example(MOVES, "kl")
def test_ranks_learn_what_one_learns_however_rows_are_fetched(
    params: dict[str, Any], model: str, stream: Any, algorithm: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lane = lane_of(folder, stream, algorithm)
        one = learned(session_of(lane, Ranks(), model))
        for size in (2, 3):
            for found in side_by_side(size, lambda ranks: learned(session_of(lane, ranks, model, **params))):
                require_equal(found, one, torch.float64)


def closure(view: WindowView, tau: int, roots: set[int], hops: int) -> tuple[set[int], set[int]]:
    """Nodes fewer than ``hops`` away, and at most so far, by a plain search."""
    graph, reached, frontier = (
        view.csr(tau),
        set[int](),
        {node for node in roots if node < view.csr(tau).num_nodes},
    )
    for _ in range(hops):
        reached |= frontier
        frontier = {
            int(other)
            for node in frontier
            for other in graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        } - reached
    return reached, reached | frontier


@settings(max_examples=5)
@given(streams, st.sampled_from(["hash", "kl", "distdy"]), st.sampled_from([2, 3]))
@example(TURNOVER, "kl", 2)
@example(MOVES, "kl", 2)
@example(MOVES, "distdy", 2)
def test_after_every_snapshot_the_halo_is_the_closure_of_a_ranks_nodes(
    stream: Any, algorithm: str, size: int
) -> None:
    """Edges and inputs, of all snapshots in the window, whatever came and went and whoever had a node before."""
    with tempfile.TemporaryDirectory() as folder:
        lane = lane_of(folder, stream, algorithm)

        def compared(ranks: Ranks) -> None:
            session = session_of(lane, ranks, fetch="halo")
            whole = WindowView(lane, 4)
            strategy = session.strategy
            for manifest in lane.manifests:
                session.advance(manifest)
                whole.advance(manifest)
                own = set(np.flatnonzero(strategy.owned(whole.num_nodes)).tolist())
                assert set(strategy.halo.edges) == {s.tau for s in strategy.past.snapshots}
                for snapshot in strategy.past.snapshots:
                    tau, edges = snapshot.tau, strategy.halo.edges[snapshot.tau]
                    foreign = set(np.flatnonzero(snapshot.home != ranks.rank).tolist())
                    with_edges, with_inputs = closure(whole, tau, own, 2)
                    assert set(np.flatnonzero(edges.held).tolist()) == with_edges & foreign
                    graph, truth = edges.alone.graph, whole.csr(tau)
                    for node in sorted(with_edges):
                        wanted = truth.indices[truth.indptr[node] : truth.indptr[node + 1]]
                        assert graph.indices[graph.start[node] : graph.end[node]].tolist() == wanted.tolist()
                    nodes = np.array(sorted(with_inputs & foreign), np.int64)
                    cache = strategy.inputs.cache
                    np.testing.assert_array_equal(cache.nodes(tau), nodes)
                    degrees = np.log1p(truth.indptr[nodes + 1] - truth.indptr[nodes])
                    expected = np.concatenate([whole.features(nodes, tau), degrees[:, None]], axis=1)
                    np.testing.assert_array_equal(cache.find(tau, nodes)[1], expected.astype(np.float32))

        side_by_side(size, compared)


def test_with_the_halo_complete_a_pass_sends_gradients_only(tmp_path: Path) -> None:
    """All that else crosses are the numbers by which ranks decide alike."""
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=80), parts=2)

    def sent(ranks: Ranks) -> list[set[str]]:
        session = session_of(lane, ranks, fetch="halo")
        for sequence in range(4):
            lesson = lesson_of(session, sequence)
        found = []
        for epoch in range(3):
            before = ranks.traffic.copy()
            learn(session, lesson, epoch)
            bytes_ = ranks.traffic.since(before).sent_bytes
            found.append({purpose for purpose, count in bytes_.items() if count})
        return found

    for first, *others in side_by_side(2, sent):
        assert {"edges", "gradients"} <= first
        assert others == [{"gradients", "control"}] * 2


@settings(max_examples=5)
@given(streams)
def test_every_row_is_fetched_once_by_each_rank_that_has_a_neighbour(stream: Any) -> None:
    """With one hop and all neighbours, where all nodes stay: what all ranks fetch is Σ λ over snapshots."""
    ring = [(1, node, (node + 1) % 10) for node in range(10)]
    stream = [ring, *([row for row in snapshot if row[0] == 1] + ring[:1] for snapshot in stream)]
    with tempfile.TemporaryDirectory() as folder:
        lane, size = lane_of(folder, stream, "hash"), 3

        def fetched(ranks: Ranks) -> list[int]:
            params = {"hidden": 8, "signature": 8, "fanouts": [None]}
            more = {"strategy_params": {"fetch": "halo"}, "model_params": params}
            session = begun(lane, "vertex", "sage-linear", ranks, torch.float64, 0.01, **more)
            found = []
            for manifest in lane.manifests:
                session.advance(manifest)
                found.append(session.strategy.inputs.cache.counts["miss"])
            return found

        whole, expected = WindowView(lane, 1), [0]
        for manifest in lane.manifests:
            whole.advance(manifest)
            graph, home = whole.csr(manifest.tau).rows, whole.owner(manifest.tau) % size
            expected.append(expected[-1] + int(foreign_parts(graph, home.astype(np.int32), size)))
        of_all = np.sum(side_by_side(size, fetched), axis=0)
        assert of_all.tolist() == expected[:-1]  # the newest snapshot is what is predicted


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_nothing_in_a_halo_is_older_than_its_bound(bound: int, tmp_path: Path) -> None:
    """Edges and inputs are those of one snapshot, and some are as old as they may be."""
    lane = make_lane(tmp_path, events=meetings(snapshots=9, a_snapshot=30), parts=2)

    def oldest(ranks: Ranks) -> int:
        session = session_of(lane, ranks, fetch="halo", halo_refresh=bound)
        every, found = WindowView(lane, 20), 0
        strategy = session.strategy
        for manifest in lane.manifests:
            learn(session, lesson_of(session, manifest.sequence))
            every.advance(manifest)
            newest = 0
            for snapshot in strategy.past.snapshots:
                edges, cache = strategy.halo.edges[snapshot.tau], strategy.inputs.cache
                for node in np.flatnonzero(edges.held).tolist():
                    truth = every.csr(lane.manifests[int(edges.born[node])].tau)
                    row = edges.alone.graph.indices[
                        edges.alone.graph.start[node] : edges.alone.graph.end[node]
                    ]
                    assert row.tolist() == truth.indices[truth.indptr[node] : truth.indptr[node + 1]].tolist()
                nodes = cache.nodes(snapshot.tau)
                there, rows, born = cache.find(snapshot.tau, nodes)
                assert there.all()
                for node, row, number in zip(nodes.tolist(), rows, born.tolist(), strict=True):
                    tau = lane.manifests[number].tau
                    np.testing.assert_array_equal(row[:-1], every.features(np.array([node]), tau)[0])
                    degree = np.diff(every.csr(tau).indptr)[node]
                    assert row[-1] == np.log1p(degree).astype(np.float32)
                ages = snapshot.number - np.concatenate([born, edges.born[edges.held]])
                assert not len(ages) or 0 <= ages.min() <= ages.max() <= bound
                newest = max(newest, int(ages.max(initial=0)))
            found = max(found, newest)
            assert strategy.halo.figures(strategy.past)["halo_age_snapshots"] == newest
        return found

    assert side_by_side(2, oldest) == [bound, bound]


def test_a_halo_beyond_its_budget_is_refused_with_its_size(tmp_path: Path) -> None:
    lane = make_lane(tmp_path, parts=2)

    def refused(ranks: Ranks, mib: float) -> tuple[int, str]:
        """The snapshot at which a halo is refused, one after the last if none is, and the error."""
        session = session_of(lane, ranks, fetch="halo", halo_mib=mib)
        for manifest in lane.manifests:
            try:
                session.advance(manifest)
            except Failure as error:
                return manifest.sequence, str(error)
        return manifest.sequence + 1, ""

    one, other = side_by_side(2, partial(refused, mib=0.0005))
    assert one == other
    said = re.match(
        r"the halo of a rank takes (0\.00\d+) MiB, but strategy_params\.halo_mib is 0\.0005\. Choose a lane .* byte-lp",
        one[1],
    )
    assert said
    need = float(said[1])
    assert side_by_side(2, partial(refused, mib=0.98 * need))[0][0] == one[0]
    assert side_by_side(2, partial(refused, mib=1.02 * need))[0][0] > one[0]


@pytest.mark.parametrize("fetch", ["owner", "halo"])
def test_what_is_kept_stays_within_its_budget(fetch: str, tmp_path: Path) -> None:
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=200, nodes=800), parts=2)

    def held(ranks: Ranks, **params: Any) -> tuple[int, int, Counter[str]]:
        session, most, rows = session_of(lane, ranks, fetch=fetch, **params), 0, Counter[str]()
        for manifest in lane.manifests:
            rows += learn(session, lesson_of(session, manifest.sequence)).figures["cache_rows"]
            most = max(most, session.strategy.held_bytes["cache"])
        return most, session.strategy.inputs.cache.block_bytes, rows

    need = min(most for most, _, _ in side_by_side(2, held))
    for most, block, rows in side_by_side(2, partial(held, cache_mib=need / 4 / MIB)):
        assert 0 < most <= need / 4 + block
        assert min(rows[outcome] for outcome in ("hit", "miss", "evicted")) > 0


@pytest.mark.parametrize(("share", "most"), [(0.3, 0.40), (0.1, 0.17)])
def test_only_segments_that_changed_travel_again(share: float, most: float, tmp_path: Path) -> None:
    """Of 128 features in four segments: bytes of the next snapshot's rows, beside those of rows that nobody has yet."""
    rng, nodes = np.random.default_rng(0), 200
    values, rows = rng.normal(size=(nodes, 4, 32)), []
    for tau in range(3):
        changed = rng.random((nodes, 4)) < (share if tau else 1)
        values[changed] = rng.normal(size=(changed.sum(), 32))
        rows += [(0, node, None, values[node].ravel().tolist(), tau * SECOND) for node in range(nodes)]
        rows += [(1, node, (node + 1) % nodes, None, tau * SECOND + 1) for node in range(nodes)]
    names = ("op", "src", "dst", "features", "t")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    empty = {name: [1.0 if name == "weight" else None] * len(rows) for name in event_schema("int").names}
    build_store(
        pa.table(empty | columns, schema=event_schema("int")), tmp_path, interval_us=SECOND,
        lanes=[Lane(name="hash", algorithm="hash", parts=2)], node_features=128, segments=4, graph="features",
    )  # fmt: skip
    lane = LaneReader(tmp_path, "hash")

    def sent(ranks: Ranks) -> float:
        session = session_of(lane, ranks)
        strategy, found = session.strategy, []
        for manifest in lane.manifests:
            session.advance(manifest)
        past, view = strategy.past, strategy.view
        truth = WindowView(lane, 4)
        for manifest in lane.manifests:
            truth.advance(manifest)
        for place in range(2):
            before = ranks.traffic.copy()
            keys = past.keys(np.arange(nodes))[place]
            read = strategy.inputs.rows(view, past, keys)
            np.testing.assert_array_equal(
                read[:, :-1], truth.features(np.arange(nodes), past.snapshots[place].tau)
            )
            bytes_ = ranks.traffic.since(before).sent_bytes
            found.append(bytes_["features"] + bytes_["ids"])
        return found[1] / found[0]

    for ratio in side_by_side(2, sent):
        assert 0 < ratio <= most
