"""What parts store anew, found by what changed, against all pairs compared with those of the snapshot before."""

import numpy as np
from edge_events import edge_events
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.partition.interface import Assignment, Why
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.store.lane.diff import rows_of_all
from freshet_graph.stream.store.lane.placement import Placement
from freshet_graph.stream.store.lane.state import AssignedPairs, OwnedPairs

PARTS = 3
ids = st.integers(0, 6)
events = st.lists(st.tuples(st.sampled_from([1, 1, 1, -1]), ids, ids), max_size=12)
streams = st.lists(st.tuples(st.integers(1, 2), events, st.integers(0, 2**32 - 1)), min_size=1, max_size=6)
lives = st.sampled_from([None, 1, 2])


def plain_changes(before, after):
    """Rows (part, key, op, weight) in order; ``before`` and ``after`` are {(part, key): weight}."""
    rows = []
    for part, key in sorted(before.keys() | after.keys()):
        old, new = before.get((part, key)), after.get((part, key))
        if old != new:
            rows.append((part, key, -1 if new is None else 1 if old is None else 0, new or 0.0))
    return sorted(rows, key=lambda row: (row[0], row[2], row[1]))


def rows_of(changes):
    part = np.repeat(np.arange(len(changes.offsets) - 1), np.diff(changes.offsets))
    columns = part, changes.keys, changes.op, changes.weight
    return list(zip(*(column.tolist() for column in columns), strict=True))


def held(graph, parts_of):
    """{(part, key): weight} of all live pairs; ``parts_of(src, dst)`` gives the parts."""
    pairs = graph.pairs()
    columns = (pairs.src.tolist(), pairs.dst.tolist(), pairs.weight.tolist())
    return {(p, u << 32 | v): w for u, v, w in zip(*columns, strict=True) for p in parts_of(u, v)}


def reweighted(rows, draws):
    """The events with other weights, so that a refreshed pair may be stored anew."""
    table = edge_events(rows)
    at = table.schema.get_field_index("weight")
    return table.set_column(at, table.schema.field(at), [draws.integers(1, 3, len(rows)).astype(np.float32)])


def agree(graph, pairs, changes, before, after):
    assert rows_of(changes) == plain_changes(before, after)
    from_nothing = rows_of_all(pairs.whole(), len(pairs.count))
    assert rows_of(from_nothing) == plain_changes({}, after)
    counts = [sum(part == p for part, _ in after) for p in range(len(pairs.count))]
    assert pairs.count.tolist() == counts


@settings(max_examples=80, deadline=None)
@given(streams, lives, st.integers(0, 6))
def test_pairs_follow_their_owners(stream, edge_life, restart_at):
    graph, placement = LiveGraph(edge_life=edge_life), Placement("vertex", PARTS)
    pairs, before, tau = OwnedPairs("script", graph, placement), {}, 0
    for step, (gap, rows, seed) in enumerate(stream):
        if step == restart_at:
            state, kept = graph.state(), pairs.state()
            graph = LiveGraph(edge_life=edge_life)
            graph.restore(state)
            pairs = OwnedPairs("script", graph, placement)
            pairs.restore(kept)
        tau += gap
        draws = np.random.default_rng(seed)
        delta = graph.apply(tau, reweighted(rows, draws))
        moving = np.union1d(delta.entered, delta.live[draws.random(delta.num_live) < 0.4])
        node = np.concatenate([moving, delta.left])
        part = np.concatenate([draws.integers(PARTS, size=len(moving)), np.full(len(delta.left), -1)])
        why = np.repeat([Why.MOVED, Why.GONE], [len(moving), len(delta.left)])
        order = np.argsort(node)
        assignment = Assignment(node[order], part[order].astype(np.int32), why[order].astype(np.int8))
        transition = placement.apply(assignment.node, assignment.part, assignment.why, delta.num_nodes)
        changes = pairs.advance(delta, assignment, transition)
        home = placement.home.tolist()
        after = held(graph, lambda u, v, home=home: {home[u], home[v]})
        agree(graph, pairs, changes, before, after)
        before = after


@settings(max_examples=80, deadline=None)
@given(streams, lives, st.integers(0, 6))
def test_pairs_follow_the_part_of_their_latest_insert(stream, edge_life, restart_at):
    graph = LiveGraph(edge_life=edge_life)
    pairs, before, tau = AssignedPairs("script", graph, PARTS), {}, 0
    part_of, nothing = {}, np.empty(0, np.int64)
    placement = Placement("edge", PARTS)
    for step, (gap, rows, seed) in enumerate(stream):
        if step == restart_at:
            state, kept = graph.state(), pairs.state()
            graph = LiveGraph(edge_life=edge_life)
            graph.restore(state)
            pairs = AssignedPairs("script", graph, PARTS)
            pairs.restore(kept)
        tau += gap
        draws = np.random.default_rng(seed)
        delta = graph.apply(tau, reweighted(rows, draws))
        event_part = np.where(delta.op > 0, draws.integers(-1, PARTS, len(rows)), -1).astype(np.int32)
        for (op, u, v), part in zip(rows, event_part.tolist(), strict=True):
            if op > 0:
                part_of[u, v] = PARTS if part < 0 else part
        assignment = Assignment(nothing, nothing.astype(np.int32), nothing.astype(np.int8), event_part)
        transition = placement.apply(
            *(nothing, nothing.astype(np.int32), nothing.astype(np.int8)), delta.num_nodes
        )
        changes = pairs.advance(delta, assignment, transition)
        after = held(graph, lambda u, v: {part_of[u, v]})
        agree(graph, pairs, changes, before, after)
        before = after
