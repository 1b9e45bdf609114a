"""Rows of any nodes, read from a vertex lane's files, are those of a window over all parts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lane_scripts import scratch_store, streams, table_of
from oracle_lane import INTERVAL_US, F, Row

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.window.rows import NodeRows
from freshet_graph.stream.store.window.view import WindowView

OLD_VECTOR = [
    (0, [Row(1, 0, 1, 0), Row(0, 0, None, 0, features=[7.0] * F)]),
    *((tau, [Row(1, 1, 2, tau * INTERVAL_US)]) for tau in range(1, 4)),
    (4, [Row(0, 0, None, 4 * INTERVAL_US, features=[0.0] * F)]),
    *((tau, [Row(1, 2, 0, tau * INTERVAL_US)]) for tau in range(5, 14)),
]
"""A vector becomes zeros while its node wanders through parts: none may show what it had there before."""


def check(found: NodeRows, view: WindowView, tau: int, nodes: np.ndarray) -> None:
    """Array for array what the window has about these nodes."""
    src, dst, weight = view.pairs(tau)
    about = np.isin(src, nodes) | np.isin(dst, nodes)
    np.testing.assert_array_equal(found.nodes, nodes)
    np.testing.assert_array_equal(found.keys, (src << 32 | dst)[about])
    np.testing.assert_array_equal(found.weight, weight[about])
    np.testing.assert_array_equal(found.features, view.features(nodes, tau))
    owner = np.append(view.owner(tau), [-1, -1])
    np.testing.assert_array_equal(found.has_owner, owner[nodes] >= 0)
    assert (found.keys.dtype, found.weight.dtype, found.features.dtype) == (np.int64, np.float32, np.float32)


@pytest.mark.parametrize("algorithm", ["distdy", "hash", "scatter-vertex"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    snapshots=streams(),
    parts=st.integers(1, 4),
    segments=st.integers(1, 16),
    edge_life=st.sampled_from([None, 1, 2, 4]),
    window=st.integers(1, 6),
    base_every=st.sampled_from([1, 3, 64]),
    kept=st.none() | st.integers(1, 14),
    data=st.data(),
)
@example(OLD_VECTOR, 3, 4, None, 2, 64, None, None)
def test_rows_of_any_nodes_are_those_of_a_window_over_all_parts(
    algorithm, snapshots, parts, segments, edge_life, window, base_every, kept, data
):
    lane = Lane(
        name="lane", algorithm=algorithm, parts=parts, edge_life=edge_life, base_every=base_every, seed=3
    )
    header = LogHeader(graph="g", interval_us=INTERVAL_US, ids="int", node_features=F, segments=segments)
    with scratch_store() as store:
        with LogWriter.open(store, header) as log:
            for tau, rows in snapshots:
                log.commit(seal=[(tau, table_of(rows))])
        with LaneWriter(store, lane) as writer:
            writer.catch_up()
        if kept is not None:
            compact(store, Keep(snapshots=kept), always=True)
        reader = LaneReader(store, "lane")
        part = WindowView(reader, window, [parts - 1])
        whole = WindowView(reader, window)
        for manifest in reader.manifests[:]:
            part.advance(manifest)
            whole.advance(manifest)
            wanted = {}
            for tau in whole.taus:
                every = range(len(whole.owner(tau)) + 2)  # two ids are not in use
                some = every if data is None else data.draw(st.sets(st.sampled_from(every)))
                wanted[tau] = np.array(sorted(some), np.int64)
            for tau, found in part.rows(wanted).items():
                check(found, whole, tau, wanted[tau])
            assert part.rows({}) == {}


def test_a_window_reads_no_rows_of_an_edge_lane():
    with scratch_store() as store:
        header = LogHeader(graph="g", interval_us=INTERVAL_US, ids="int", node_features=F, segments=1)
        with LogWriter.open(store, header) as log:
            log.commit(seal=[(0, table_of([Row(1, 0, 1, 0)]))])
        with LaneWriter(store, Lane(name="lane", algorithm="hdrf", parts=2)) as writer:
            writer.catch_up()
        reader = LaneReader(store, "lane")
        view = WindowView(reader, 1)
        view.advance(reader.manifests[0])
        with pytest.raises(ValueError, match="lane is an edge lane"):
            view.rows({0: np.array([0])})
