"""Placements beside sets in plain Python, for any number of parts."""

import numpy as np
import pytest

from freshet_graph.stream.partition.interface import Why
from freshet_graph.stream.store.lane.placement import Placement

NODES = 30


def random_rows(rng, kind, parts, home, sets):
    """One snapshot's assignment, as a partitioner could make it, and what it leads to in ``home`` and ``sets``."""
    rows = []
    for v in range(NODES):
        if rng.random() < 0.5:
            continue
        p = int(rng.integers(parts))
        if v in home and rng.random() < 0.3:
            rows.append((v, -1, Why.GONE))
            del home[v], sets[v]
        elif v not in home:
            rows.append((v, p, Why.NEW))
            home[v], sets[v] = p, {p}
        elif home[v] != p:
            rows.append((v, p, Why.MOVED))
            if kind == "edge":
                sets[v].add(p)
                if rng.random() < 0.5:
                    rows.append((v, home[v], Why.DEMOTED))
                    sets[v].remove(home[v])
            else:
                sets[v] = {p}
            home[v] = p
        elif kind == "edge":
            q = int(rng.integers(parts))
            if q not in sets[v]:
                rows.append((v, q, Why.REPLICATED))
                sets[v].add(q)
    rows.sort()
    node, part, why = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(node, np.int64), np.array(part, np.int32), np.array(why, np.int8)


@pytest.mark.parametrize(
    ("kind", "parts"), [("vertex", 1), ("vertex", 5), ("edge", 1), ("edge", 64), ("edge", 130)]
)
def test_transitions_and_placements_are_those_of_plain_sets(kind, parts):
    rng = np.random.default_rng(parts)
    placement, home, sets = Placement(kind, parts), {}, {}
    for step in range(20):
        before_home, before = dict(home), {(v, p) for v, ps in sets.items() for p in ps}
        transition = placement.apply(*random_rows(rng, kind, parts, home, sets), NODES)
        after = {(v, p) for v, ps in sets.items() for p in ps}
        entered = list(zip(transition.entered_node.tolist(), transition.entered_part.tolist(), strict=True))
        left = list(zip(transition.left_node.tolist(), transition.left_part.tolist(), strict=True))
        assert entered == sorted(after - before), step
        assert left == sorted(before - after)
        assert placement.home.tolist() == [home.get(v, -1) for v in range(NODES)]
        rehomed = {v: before_home.get(v, -1) for v in range(NODES) if before_home.get(v) != home.get(v)}
        assert dict(zip(transition.rehomed.tolist(), transition.former_home.tolist(), strict=True)) == rehomed
        assert list(zip(*(a.tolist() for a in placement.all()), strict=True)) == sorted(after)
        selected = rng.random(parts) < 0.4
        nodes = rng.integers(NODES, size=9)
        expected = [any(selected[p] for p in sets.get(v, ())) for v in nodes.tolist()]
        assert placement.in_any(selected, nodes).tolist() == expected
