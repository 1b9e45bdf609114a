"""What a lane stores of a snapshot, beside the same in plain Python."""

import numpy as np
import pytest

from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.diff import (
    WholePairs,
    cut_segments,
    full_rows,
    rows_of_all,
    segment_changes,
    segment_width,
)


def random_pairs(rng, batches):
    pairs = {}
    for u, v in rng.integers(9, size=(40, 2)).tolist():
        first, second = (int(p) for p in rng.integers(batches, size=2))
        pairs[u, v] = (float(rng.choice([0.5, 1.0])), {first, second} if rng.random() < 0.5 else {first})
    return pairs


def stored(pairs):
    order = sorted(pairs)
    src, dst = (np.array([pair[k] for pair in order], np.int64) for k in (0, 1))
    parts = [sorted(pairs[pair][1]) for pair in order]
    return WholePairs(
        pair_keys(src, dst),
        np.array([pairs[pair][0] for pair in order], np.float32),
        np.array([p[-1] for p in parts], np.int32),
        np.array([p[0] if len(p) > 1 else -1 for p in parts], np.int32),
    )


def rows_by_part(changes, batches):
    src, dst = split_keys(changes.keys)
    columns = (changes.op.tolist(), src.tolist(), dst.tolist(), changes.weight.tolist())
    rows = list(zip(*columns, strict=True))
    return [rows[changes.offsets[k] : changes.offsets[k + 1]] for k in range(batches)]


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_all_pairs_lie_with_each_of_their_parts_in_order(batches):
    rng = np.random.default_rng(batches)
    for _ in range(20):
        pairs = random_pairs(rng, batches)
        for part, rows in enumerate(rows_by_part(rows_of_all(stored(pairs), batches), batches)):
            assert rows == sorted((1, *pair, w) for pair, (w, parts) in pairs.items() if part in parts)


def test_a_pair_lies_with_both_owners_once_if_they_are_the_same():
    home = np.array([0, 1, 1], np.int32)
    keys = pair_keys(np.array([0, 1]), np.array([1, 2]))
    pairs = WholePairs.by_owner(keys, np.ones(2, np.float32), home)
    assert pairs.count(2).tolist() == [1, 2]
    assert pairs.second.tolist() == [1, -1]


@pytest.mark.parametrize(("features", "segments"), [(1, 1), (5, 3), (6, 3), (2, 8), (7, 1)])
def test_segments_are_equal_slices_padded_with_zeros(features, segments):
    vectors = np.arange(1, 2 * features + 1, dtype=np.float32).reshape(2, features)
    cut = cut_segments(vectors, segments)
    assert cut.shape == (2, segments, segment_width(features, segments))
    for row in range(2):
        values = [v for s in range(segments) for v in cut[row, s].tolist() if v]
        assert values == vectors[row].tolist()
        sizes = [int((cut[row, s] > 0).sum()) for s in range(segments)]
        assert max(sizes) - min(sizes) <= 1


def test_a_newly_placed_node_stores_the_segments_that_are_not_zero():
    vectors = np.array([[0, 0, 1, 0], [0, 0, 0, 0]], np.float32)
    part, node, segment, values = full_rows(np.array([4, 9]), np.array([1, 1], np.int32), vectors, 2)
    assert (part.tolist(), node.tolist(), segment.tolist(), values.tolist()) == ([1], [4], [1], [[1, 0]])


def test_rows_are_ordered_by_part_node_and_segment():
    rows = (
        np.array([1, 0, 1], np.int32),
        np.array([5, 7, 2]),
        np.array([1, 0, 0], np.int32),
        np.eye(3, 2, dtype=np.float32),
    )
    changes = segment_changes([rows], 3, 2)
    assert changes.offsets.tolist() == [0, 1, 3, 3]
    assert changes.node.tolist() == [7, 2, 5]
