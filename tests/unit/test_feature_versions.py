"""Features of a window beside a copy of everything for every snapshot."""

import numpy as np
import pytest

from stream.store.lane.diff import cut_segments
from stream.store.window.feature_versions import FeatureVersions

NODES = 12


@pytest.mark.parametrize(("features", "segments"), [(1, 1), (5, 3), (4, 8), (6, 2), (80, 70)])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_any_node_reads_as_it_was_at_any_snapshot_of_the_window(features, segments, window):
    rng = np.random.default_rng(features * 10 + window)
    versions = FeatureVersions(features, segments)
    now, history = np.zeros((NODES, features), np.float32), {}
    for sequence in range(40):
        chosen = np.sort(rng.choice(NODES, rng.integers(0, 6), replace=False))
        values = rng.integers(-1, 2, (len(chosen), features)).astype(np.float32)
        values[rng.random(len(chosen)) < 0.3] = 0
        now[chosen] = values
        history[sequence] = now.copy()
        node, segment = np.repeat(chosen, segments), np.tile(np.arange(segments, dtype=np.int32), len(chosen))
        cut = cut_segments(values, segments).reshape(-1, versions.width)
        versions.write(sequence, node, segment, cut, NODES, undo=True)
        versions.forget(sequence - window + 1)
        for then in range(max(0, sequence - window + 1), sequence + 1):
            ids = rng.integers(NODES + 3, size=20)
            expected = np.where((ids < NODES)[:, None], history[then][ids % NODES], 0)
            np.testing.assert_array_equal(versions.read(ids, then), expected)


def test_what_left_the_window_and_nodes_without_features_take_no_room():
    versions = FeatureVersions(8, 2)
    ids = np.arange(1000)
    node, segment = np.repeat(ids, 2), np.tile(np.array([0, 1], np.int32), 1000)
    ones, zeros = np.ones((2000, 4), np.float32), np.zeros((2000, 4), np.float32)
    versions.write(0, node, segment, ones, 1000, undo=True)
    full = versions.memory_bytes
    for sequence in range(1, 20):  # all leave, all come back, with a window of two snapshots
        versions.write(sequence, node, segment, zeros if sequence % 2 else ones, 1000, undo=True)
        versions.forget(sequence - 1)
    assert versions.memory_bytes <= 2 * full
    versions.forget(20)
    versions.write(21, node, segment, zeros, 1000, undo=True)
    versions.forget(21)
    assert not versions.holds(ids).any()


def test_writing_what_is_there_already_stores_no_version():
    versions = FeatureVersions(4, 1)
    row = (np.array([2]), np.array([0], np.int32), np.ones((1, 4), np.float32), 5)
    versions.write(0, *row, undo=True)
    before = versions.memory_bytes
    versions.write(1, *row, undo=True)
    assert versions.memory_bytes == before
