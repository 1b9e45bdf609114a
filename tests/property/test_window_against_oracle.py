"""Any stream, any lane: what a window view reads at any snapshot equals what the events say, part by part."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lane_scripts import LANES, NODES, scratch_store, streams, table_of
from lane_stream import live_nodes
from oracle_lane import INTERVAL_US, F, OracleLane, Row

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.stream.store.window.pairs import ChangedPairs
from freshet_graph.stream.store.window.view import WindowView

Pair = tuple[int, int]


def check(view: WindowView, oracle: OracleLane, at: int, window: int, parts: list[int] | None) -> None:
    """Every read of the view, at every snapshot it holds."""
    chosen = set(range(oracle.parts + 1)) if parts is None else set(parts)
    first = max(0, at - window + 1)
    expected = oracle.snapshots[first : at + 1]
    assert view.taus == [snapshot.tau for snapshot in expected]
    assert view.num_nodes == expected[-1].num_nodes
    for index, snapshot in enumerate(expected):
        tau, n = snapshot.tau, snapshot.num_nodes
        pairs = snapshot.undirected(chosen)
        csr = view.csr(tau)
        rows = np.repeat(np.arange(csr.num_nodes), np.diff(csr.indptr)).tolist()
        entries = {
            (u, v): w for u, v, w in zip(rows, csr.indices.tolist(), csr.weights.tolist(), strict=True)
        }
        assert csr.num_nodes == n
        assert len(entries) == len(csr.indices)
        assert list(entries) == sorted(entries)
        assert entries == {**pairs, **{(v, u): w for (u, v), w in pairs.items()}}
        owned = oracle.kind == "vertex" and parts is not None
        assert live_nodes(view, tau).tolist() == snapshot.nodes(chosen, owned=owned)
        assert view.owner(tau).tolist() == [snapshot.home.get(v, -1) for v in range(n)]
        ids = np.array([*range(n), NODES + 3, 0, 0], np.int64)
        vectors = np.stack([snapshot.vector(v, chosen) for v in ids.tolist()])
        np.testing.assert_array_equal(view.features(ids, tau), vectors)
        found = view.event_parts(tau)
        assert (None if found is None else found.tolist()) == oracle.event_parts[first + index]
        stored = snapshot.stored(chosen)
        every = np.array([src << 32 | dst for src in range(n) for dst in range(n)], np.int64)
        held = every[view.holds(every, tau)].tolist()
        assert [(key >> 32, key & 0xFFFFFFFF) for key in held] == sorted(stored)
        if index:
            check_changes(view.changes(tau), expected[index - 1].stored(chosen), stored)
    with pytest.raises(RetainedError, match="is the oldest in the window"):
        view.changes(view.taus[0])
    assert view.memory_bytes > 0


def check_changes(found: ChangedPairs, before: dict[Pair, float], after: dict[Pair, float]) -> None:
    """The pairs that two snapshots do not have alike, with both weights."""
    differ = sorted(pair for pair in before | after if before.get(pair) != after.get(pair))
    assert found.keys.tolist() == [src << 32 | dst for src, dst in differ]
    for weights, stored in ((found.before, before), (found.after, after)):
        assert weights.dtype == np.float32
        np.testing.assert_array_equal(weights, np.array([stored.get(pair, np.nan) for pair in differ]))


def check_union(reader: LaneReader, oracle: OracleLane) -> None:
    """Of every snapshot, the parts together are the graph; an owner of each live node, its vector with every copy."""
    views = [WindowView(reader, 1, [k]) for k in range(oracle.parts)]
    everything = WindowView(reader, 1)
    for manifest, snapshot in zip(reader.manifests, oracle.snapshots, strict=True):
        tau = manifest.tau
        for view in (everything, *views):
            view.advance(manifest)
        found = set()
        for view in views:
            csr = view.csr(tau)
            rows = np.repeat(np.arange(csr.num_nodes), np.diff(csr.indptr))
            found |= set(zip(rows.tolist(), csr.indices.tolist(), strict=True))
        kept = {pair for pair, parts in snapshot.pair_parts.items() if parts != {oracle.parts}}
        assert found == {end for u, v in kept if u != v for end in ((u, v), (v, u))}
        owned = [live_nodes(view, tau).tolist() for view in views]
        if oracle.kind == "vertex":
            assert sorted(v for nodes in owned for v in nodes) == live_nodes(everything, tau).tolist()
        live = live_nodes(everything, tau)
        assert (everything.owner(tau)[live] >= 0).all()
        vectors = everything.features(live, tau)
        for k, view in enumerate(views):
            there = np.array([k in snapshot.placed[v] for v in live.tolist()], bool)
            np.testing.assert_array_equal(view.features(live, tau), np.where(there[:, None], vectors, 0))


def check_events(view: WindowView, oracle: OracleLane, rows_of: dict[int, list[Row]]) -> None:
    for tau in view.taus:
        rows = [row for row in rows_of[tau] if row.op != 0]
        events = view.events(tau)
        start = tau * INTERVAL_US
        assert len(events) == len(rows)
        assert events.op.tolist() == [row.op for row in rows]
        assert events.src.tolist() == [oracle.ids[row.src] for row in rows]
        assert events.dst.tolist() == [oracle.ids[row.dst] for row in rows]
        assert events.t.tolist() == [row.t for row in rows]
        assert events.visible_t.tolist() == [max(row.t, start) for row in rows]
        assert events.late.tolist() == [row.t < start for row in rows]
        assert events.weight.tolist() == [row.weight for row in rows]
        assert events.has_label.tolist() == [row.label is not None for row in rows]
        assert events.label.tolist() == [row.label or 0 for row in rows]


@pytest.mark.parametrize("algorithm", LANES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    snapshots=streams(),
    parts=st.integers(1, 4),
    segments=st.integers(1, 16),
    edge_life=st.sampled_from([None, 1, 2, 4]),
    window=st.integers(1, 12),
    base_every=st.sampled_from([1, 3, 64]),
    data=st.data(),
)
def test_every_snapshot_of_the_window_is_what_the_events_say(
    algorithm, snapshots, parts, segments, edge_life, window, base_every, data
):
    lane = Lane(
        name="lane", algorithm=algorithm, parts=parts, edge_life=edge_life, base_every=base_every, seed=3
    )
    header = LogHeader(graph="g", interval_us=INTERVAL_US, ids="int", node_features=F, segments=segments)
    oracle = OracleLane(algorithm, parts, edge_life, segments)
    some = data.draw(st.none() | st.lists(st.integers(0, parts - 1), min_size=1, unique=True))
    late_start = data.draw(st.integers(0, len(snapshots) - 1))
    with scratch_store() as store:
        with LogWriter.open(store, header) as log:
            log.commit(seal=[(snapshots[0][0], table_of(snapshots[0][1]))])
            writer = LaneWriter(store, lane)
            writer.catch_up()
            reader = LaneReader(store, "lane")
            view = WindowView(reader, window, some)
            for at, (tau, rows) in enumerate(snapshots):
                if at:
                    log.commit(seal=[(tau, table_of(rows))])
                    if data.draw(st.booleans()):  # a restart: the state comes from the disk, or from the log
                        writer.close()
                        writer = LaneWriter(store, lane)
                    assert writer.lag == 1
                    assert writer.catch_up() == 1
                    reader.refresh()
                oracle.apply(tau, rows, LogReader(store).events(tau))
                view.advance(reader.manifests[at])
                check(view, oracle, at, window, some)
            check_events(view, oracle, dict(snapshots))
            writer.close()
        assert verify(store).problems == []
        jumping = WindowView(reader, window, some)
        for at in (late_start, len(snapshots) - 1):
            if not jumping.taus or reader.manifests[at].tau > jumping.taus[-1]:
                jumping.advance(reader.manifests[at])
                check(jumping, oracle, at, window, some)
        check_union(reader, oracle)
        whole = oracle.snapshots[-1]
        assert reader.manifests[-1].live_edges == len(whole.pairs)
        assert reader.manifests[-1].live_nodes == len({v for pair in whole.pairs for v in pair})
        for part, summary in enumerate(reader.manifests[-1].parts):
            assert summary.nodes == sum(part in placed for placed in whole.placed.values())
            assert summary.edges == len(whole.stored({part}))
