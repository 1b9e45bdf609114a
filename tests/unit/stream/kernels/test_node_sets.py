"""Sets of nodes as sorted arrays."""

import numpy as np

from freshet_graph.stream.kernels.node_sets import distinct, locate


def test_places_among_known_ones_are_found_and_others_are_marked() -> None:
    known = np.array([2, 5, 9])
    places, there = locate(known, np.array([9, 0, 5, 10, 3, 2]))
    assert there.tolist() == [True, False, True, False, False, True]
    assert places[there].tolist() == [2, 1, 0]
    assert set(places.tolist()) <= {0, 1, 2}
    places, there = locate(np.empty(0, np.int64), np.array([4, 0]))
    assert (places.tolist(), there.tolist()) == ([0, 0], [False, False])


def test_distinct_ids_of_any_number_of_arrays_are_ascending() -> None:
    assert distinct(np.array([7, 1]), np.array([1, 3])).tolist() == [1, 3, 7]
    assert distinct().tolist() == []
