"""Kernighan-Lin through networkx: halves of halves, from where nodes were, and where it stops."""

from pathlib import Path

import numpy as np
import pytest
from edge_events import edge_events

from freshet_graph.stream.partition.interface import PartitionError, create
from freshet_graph.stream.snapshots.graph import LiveGraph


def cliques(count, size):
    """``count`` cliques, each joined to the next by one pair, their nodes dealt in turn: clique of v is v mod count."""
    of = [[c + count * i for i in range(size)] for c in range(count)]
    pairs = [(1, a, b) for nodes in of for a in nodes for b in nodes if a < b]
    return pairs + [(1, of[c][0], of[c + 1][0]) for c in range(count - 1)]


@pytest.mark.parametrize("parts", [2, 4])
def test_cliques_are_found(parts):
    partitioner = create("kl", parts=parts)
    partitioner.update(LiveGraph().apply(0, edge_events(cliques(parts, 6))))
    assert partitioner.quality().cut == (parts - 1) / (15 * parts + parts - 1)


@pytest.mark.parametrize("parts", [3, 5, 7])
def test_parts_that_are_no_power_of_two_are_even(parts):
    draws = np.random.default_rng(0)
    rows = [(1, *pair) for pair in draws.integers(100, size=(300, 2)).tolist()]
    delta = LiveGraph().apply(0, edge_events(rows))
    partitioner = create("kl", parts=parts)
    partitioner.update(delta)
    held = np.bincount(partitioner.home()[delta.live], minlength=parts)
    assert held.max() - held.min() <= 2


def test_a_graph_that_does_not_change_moves_no_node():
    graph, partitioner = LiveGraph(), create("kl", parts=4, max_iterations=50)
    draws = np.random.default_rng(1)
    rows = [(1, *pair) for pair in draws.integers(80, size=(200, 2)).tolist()]
    partitioner.update(graph.apply(0, edge_events(rows)))
    partitioner.update(graph.apply(1, edge_events([])))
    assert partitioner.quality().moved_share == 0


def test_a_large_graph_is_refused_with_what_to_choose_instead():
    partitioner = create("kl", parts=2, max_pairs=3)
    delta = LiveGraph().apply(5, edge_events(cliques(2, 3)))
    with pytest.raises(
        PartitionError,
        match=r"kl takes 3 live pairs at most \(parameter max_pairs\), snapshot 5 has 7\. Choose byte-lp",
    ):
        partitioner.update(delta)


def test_the_documentation_says_the_limit_once_and_truly():
    text = (Path(__file__).parents[4] / "docs/partitioning.md").read_text(encoding="utf-8")
    section = text.split("\n## kl\n")[1].split("\n## ")[0]
    limit = create("kl", parts=2).max_pairs
    assert f"`max_pairs` ({limit:,})" in section
    others = [line for line in text.replace(section, "").splitlines() if "kl" in line and "000" in line]
    others = [line for line in others if f"max_pairs: {limit}" not in line]  # the table of parameters
    assert others == []
