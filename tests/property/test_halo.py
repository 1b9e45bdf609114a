"""Rows of other ranks' nodes, fetched from owners or read from the store: ranks learn what one learns."""

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_lanes import TURNOVER, TWO_NODES, lane_of, streams
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_events import event_columns
from rank_equality import begun, learned, require_equal
from thread_ranks import side_by_side
from trainer_sessions import examples_of, learn
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.stream.partition.vertex.foreign_rows import foreign_parts
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.snapshots.halo import MIB
from freshet_graph.trainer.strategies.snapshots.past import STRIDE

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
        {},
        {"fetch": "halo", "halo_mib": 0.0001},
        {"fetch": "owner", "halo_mib": 0.004},
        {"fetch": "halo", "inference_nodes": 7},
        {"halo_mib": 0.0001},
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
def test_a_rank_has_the_closure_of_the_nodes_that_it_asks_about(
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
                own = np.flatnonzero(strategy.owned(whole.num_nodes))
                past, reach = strategy.past, strategy.reach
                known = reach.cover(session.view, past, [own] * len(past.snapshots))
                for place, snapshot in enumerate(past.snapshots):
                    tau, truth = snapshot.tau, whole.csr(snapshot.tau)
                    with_edges, with_inputs = closure(whole, tau, set(own.tolist()), 2)
                    for node in sorted(with_edges):
                        key = np.array([place * STRIDE + node])
                        wanted = truth.indices[truth.indptr[node] : truth.indptr[node + 1]]
                        assert (known.sample(key, None, 0)[1] - place * STRIDE).tolist() == wanted.tolist()
                    nodes = np.array(sorted(with_inputs), np.int64)
                    degrees = truth.indptr[nodes + 1] - truth.indptr[nodes]
                    expected = np.column_stack([whole.features(nodes, tau), degrees])
                    found = reach.inputs(session.view, past, place * STRIDE + nodes)
                    np.testing.assert_array_equal(found, expected.astype(np.float32))

        side_by_side(size, compared)


def test_what_does_not_fit_the_budget_of_one_rank_is_left_to_the_owners_by_all(tmp_path: Path) -> None:
    """From the pass after the one that needed more; a run that resumes has what was chosen."""
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=80), parts=2)

    def reads(ranks: Ranks, mib: float) -> list[bool]:
        session, found = session_of(lane, ranks, halo_mib=mib), []
        for sequence in range(4):
            if sequence == 3:
                state = session.strategy.state()
                session = session_of(lane, ranks, halo_mib=mib)
                session.strategy.restore(state)
            learn(session, examples_of(session, sequence))
            found.append(session.strategy.reach is not None)
        return found

    assert side_by_side(2, partial(reads, mib=64)) == [[True] * 4] * 2
    assert side_by_side(2, partial(reads, mib=1e-6)) == [[True, True, False, False]] * 2
    of_rank = side_by_side(2, lambda ranks: reads(ranks, 64 if ranks.rank else 1e-6))
    assert of_rank == [[True, True, False, False]] * 2


def test_under_halo_gradients_only_cross_ranks(tmp_path: Path) -> None:
    """All that else crosses are the numbers by which ranks decide alike."""
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=80), parts=2)

    def sent(ranks: Ranks) -> set[str]:
        session = session_of(lane, ranks, fetch="halo")
        before = ranks.traffic.copy()
        for sequence in range(4):
            learn(session, examples_of(session, sequence))
            session.strategy.embeddings(np.arange(len(session.names)))
        return {purpose for purpose, count in ranks.traffic.since(before).sent_bytes.items() if count}

    assert side_by_side(2, sent) == [{"gradients", "control"}] * 2


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
            more = {"model_params": params, "strategy_params": {"fetch": "owner"}}
            session = begun(lane, "vertex", "sage-linear", ranks, torch.float64, 0.01, **more)
            found = []
            strategy = session.strategy
            for manifest in lane.manifests:
                session.advance(manifest)
                strategy.embed_before(session.model, np.flatnonzero(strategy.owned(session.view.num_nodes)))
                found.append(strategy.inputs.cache.counts["miss"])
            return found

        whole, expected = WindowView(lane, 1), [0]
        for manifest in lane.manifests:
            whole.advance(manifest)
            graph, home = whole.csr(manifest.tau).rows, whole.owner(manifest.tau) % size
            expected.append(expected[-1] + int(foreign_parts(graph, home.astype(np.int32), size)))
        of_all = np.sum(side_by_side(size, fetched), axis=0)
        assert of_all.tolist() == expected[:-1]  # the newest snapshot is what is predicted


def test_fetched_inputs_are_kept_within_their_budget_or_as_many_as_a_step_needs(tmp_path: Path) -> None:
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=200, nodes=800), parts=2)

    def held(ranks: Ranks, mib: float = 0) -> list[tuple[int, Counter[str]]]:
        """After each of some questions: bytes of rows, and what was done with them."""
        session, found = session_of(lane, ranks, fetch="owner", halo_mib=mib), []
        for manifest in lane.manifests:
            session.advance(manifest)
            past, inputs = session.strategy.past, session.strategy.inputs
            for nodes in (np.arange(3), np.arange(3), np.arange(session.view.num_nodes - 3)):
                inputs.rows(session.view, past, past.keys(nodes).ravel())
                found.append((inputs.nbytes, inputs.cache.since_last()))
        return found

    for every, few in zip(side_by_side(2, held), side_by_side(2, partial(held, mib=1e-6)), strict=True):
        (_, first), (_, again), (all_bytes, _) = every[-3:]
        assert first["hit"] > 0
        assert again["miss"] == 0
        (small, dropped), (_, again), (large, _) = few[-3:]
        assert dropped["evicted"] > 0
        assert small < large == all_bytes
        assert again == Counter(hit=again["hit"])  # of the same step nothing was dropped


def test_rows_from_the_store_are_kept_within_their_budget_or_as_many_as_a_step_needs(tmp_path: Path) -> None:
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=200, nodes=800), parts=2)

    def held(ranks: Ranks, mib: float = 0) -> list[tuple[int, Counter[str]]]:
        """After each of some questions: bytes of rows, and what was done with them."""
        session, found = session_of(lane, ranks, fetch="halo", halo_mib=mib), []
        for manifest in lane.manifests:
            session.advance(manifest)
            for nodes in (np.arange(3), np.arange(3), np.arange(session.view.num_nodes - 3)):
                reach = session.strategy.reach
                past = session.strategy.past
                reach.cover(session.view, past, [nodes] * len(past.snapshots))
                found.append((reach.nbytes, reach.rows.since_last()))
        return found

    for every, few in zip(side_by_side(2, held), side_by_side(2, partial(held, mib=1e-6)), strict=True):
        for (all_bytes, _), (few_bytes, _) in zip(every, few, strict=True):
            assert few_bytes <= all_bytes
        (_, kept), (_, again), _ = every[-3:]
        assert kept["hit"] > 0
        assert again["miss"] == 0
        (small, dropped), (_, again), (large, _) = few[-3:]
        assert dropped["evicted"] > 0
        assert small < large == every[-1][0]
        assert again == Counter(hit=again["hit"])  # of the same step nothing was dropped
    needed = max(bytes_ for bytes_, _ in every)
    for roomy in side_by_side(2, partial(held, mib=1.01 * needed / MIB)):
        assert sum(counts["evicted"] for _, counts in roomy) == 0


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
    build_store(
        event_columns(columns), tmp_path, interval_us=SECOND,
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
