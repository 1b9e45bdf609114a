"""Any lane: a timeline has the changes that the live graph has of the same events, array for array."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lane_scripts import scratch_store
from log_events import event_columns
from oracle_lane import ScatterEdge, ScatterVertex

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import WHOLE_PAIRS
from freshet_graph.schemas.trainer_config import Smoothing
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import Change, pair_keys
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.pairs import ChangedPairs
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.timeline.graph import Snapshot, TimelineView

SECOND = 1_000_000
SNAPSHOTS = 10
ALGORITHMS = ["hash", "distdy", "byte-lp", "sep", "hdrf", ScatterVertex.name, ScatterEdge.name]


@dataclass(frozen=True)
class Expected:
    """One snapshot as the live graph has it."""

    live: np.ndarray
    entered: np.ndarray
    left: np.ndarray
    undirected: tuple[np.ndarray, ...]
    directed: tuple[np.ndarray, ...]
    pairs: tuple[int, int]


def stream_of(seed: int, nodes: int) -> pa.Table:
    """Inserts of three weights, deletes, self-loops, and one snapshot that deletes nearly all pairs."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int, float]] = []
    met: list[tuple[int, int]] = []
    emptied, tau = int(rng.integers(4, SNAPSHOTS)), 0
    for number in range(SNAPSHOTS):
        tau += int(rng.integers(1, 3))
        if number == emptied:
            rows += [(-1, src, dst, tau, 1.0) for src, dst in sorted(set(met))[2:]]
        for _ in range(int(rng.integers(1, 25))):
            known = len(met) > 0 and rng.random() < 0.5
            src, dst = met[rng.integers(len(met))] if known else rng.integers(0, nodes, 2).tolist()
            if known and rng.random() < 0.3:
                src, dst = dst, src
            met.append((src, dst))
            rows.append((-1 if rng.random() < 0.3 else 1, src, dst, tau, rng.choice([1.0, 0.5, 2.0])))
    op, src, dst, t, weight = zip(*rows, strict=True)
    times = [each * SECOND for each in t]
    return event_columns({"op": op, "src": src, "dst": dst, "t": times, "weight": weight})


def live_graphs(lane: LaneReader) -> Iterator[Expected]:
    graph, nan = LiveGraph(edge_life=lane.header.edge_life), np.float32(np.nan)
    for manifest in lane.manifests:
        delta = graph.apply(manifest.tau, lane.log.events(manifest.tau))
        changed, live = graph.changed(), graph.pairs()
        before = np.where(changed.change == Change.ADDED, nan, changed.weight_before)
        after = np.where(changed.change == Change.REMOVED, nan, changed.weight)
        kept = (changed.src != changed.dst) & (before.view(np.int32) != after.view(np.int32))
        keys = pair_keys(changed.src, changed.dst)[kept]
        turned = np.concatenate([pair_keys(*pairs.T) for pairs in (delta.added, delta.removed)])
        order, came = np.argsort(turned), np.arange(len(turned)) < len(delta.added)
        values = [np.where(each, np.float32(1), nan)[order] for each in (~came, came)]
        yield Expected(
            live=graph.live(), entered=delta.entered, left=delta.left,
            undirected=(turned[order], *values), directed=(keys, before[kept], after[kept]),
            pairs=(graph.num_pairs, int((live.src != live.dst).sum())),
        )  # fmt: skip


def check(found: Snapshot, expected: Expected, *, begins: bool) -> None:
    assert found.pairs == expected.pairs
    np.testing.assert_array_equal(found.entered, expected.live if begins else expected.entered)
    np.testing.assert_array_equal(found.left, [] if begins else expected.left)
    for part, arrays in ((found.undirected, expected.undirected), (found.directed, expected.directed)):
        if begins:
            assert part is None
            continue
        assert isinstance(part, ChangedPairs)
        for one, other in zip((part.keys, part.before, part.after), arrays, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    algorithm=st.sampled_from(ALGORITHMS), edge_life=st.sampled_from([None, 1, 3]), seed=st.integers(0, 2**16),
    nodes=st.sampled_from([5, 12]), base_every=st.sampled_from([2, 64]), snapshots=st.integers(1, 5),
    late=st.integers(1, SNAPSHOTS - 1), gap=st.integers(1, 7),
)  # fmt: skip
@example(
    algorithm="scatter-vertex", edge_life=None, seed=0, nodes=12, base_every=64, snapshots=2, late=6, gap=4
)
@example(algorithm="scatter-edge", edge_life=3, seed=1, nodes=5, base_every=2, snapshots=4, late=7, gap=2)
@example(algorithm="byte-lp", edge_life=3, seed=2, nodes=12, base_every=64, snapshots=1, late=3, gap=3)
@example(algorithm="hdrf", edge_life=None, seed=3, nodes=12, base_every=64, snapshots=5, late=8, gap=6)
def test_changes_are_those_of_the_live_graph(
    algorithm: str,
    edge_life: int | None,
    seed: int,
    nodes: int,
    base_every: int,
    snapshots: int,
    late: int,
    gap: int,
) -> None:
    """From the first snapshot on, from a later one, and with gaps; the window slides past all that it began with."""
    lane_of = Lane(
        name="lane", algorithm=algorithm, parts=3, edge_life=edge_life, base_every=base_every, seed=seed
    )
    with scratch_store() as folder:
        build_store(stream_of(seed, nodes), folder, interval_us=SECOND, lanes=[lane_of], graph="g")
        lane = LaneReader(folder, "lane")
        manifests = list(lane.manifests)
        assert WHOLE_PAIRS in {manifest.format_version for manifest in manifests}
        expected = list(live_graphs(lane))
        for chosen in (manifests, manifests[late:], manifests[::gap]):
            view, seen, begun = TimelineView(lane, snapshots, Smoothing(), NodeNames()), -1, 0
            for manifest in chosen:
                view.advance(manifest)
                timeline = view.timeline
                for at, found in enumerate(timeline.snapshots):
                    if found.number > seen:
                        check(found, expected[found.number], begins=timeline.begun > begun and at == 0)
                assert timeline.snapshots[-1].number == manifest.sequence
                seen, begun = manifest.sequence, timeline.begun
