"""Features of a window beside a copy of everything for every snapshot."""

import numpy as np
import pytest

from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.store.lane.diff import cut_segments
from freshet_graph.stream.store.window.features import (
    LINE_BYTES,
    MASK,
    ROW,
    SMALL,
    START,
    FeatureVersions,
    Slots,
    joined,
    look_up,
    on_lines,
    read,
    run_columns,
    sort_by_row,
)

NODES = 12


WIDTHS = [(1, 1), (5, 3), (4, 8), (6, 2), (80, 70), (8, 2), (64, 2), (50, 3), (48, 1)]


@pytest.mark.parametrize(("features", "segments"), WIDTHS)
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
        node, segment = np.repeat(chosen, segments), np.tile(np.arange(segments, dtype=np.int32), len(chosen))
        cut = cut_segments(values, segments).reshape(-1, versions.width)
        changed = rng.random(len(node)) < (0.7 if sequence % 2 else 1)  # some segments, or all of a vector
        before = history.get(sequence - 1, np.zeros_like(now))
        for place in np.flatnonzero(~changed).tolist():
            low, high = segment_bounds(features, segments)[segment[place] : segment[place] + 2]
            now[node[place], low:high] = before[node[place], low:high]
        history[sequence] = now.copy()
        gone = np.setdiff1d(np.flatnonzero(rng.random(NODES) < 0.1), chosen)
        now[gone] = history[sequence][gone] = 0
        versions.clear(sequence, gone, undo=True)
        versions.write(sequence, node[changed], segment[changed], cut[changed], NODES, undo=True)
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


def drawn_runs(rng, rows, features, segments, count):
    """Runs in the order that they came, with values of their own; every third one small."""
    runs = np.zeros((count, run_columns(segments)), np.int32)
    values, small = [], []
    for run in runs:
        run[ROW] = rng.integers(rows)
        chosen = np.flatnonzero(rng.random(segments) < rng.choice([0.2, 1]))
        table = small if rng.random() < 0.3 else values
        run[START] = len(table) | (SMALL if table is small else 0)
        for segment in chosen.tolist():
            run[MASK + segment // 32] |= np.uint32(1 << segment % 32).astype(np.int32)
        table.extend(rng.integers(0, 256, -(-features // segments)) for _ in chosen)
    width = -(-features // segments)
    as_table = [np.array(t, kind).reshape(-1, width) for t, kind in ((values, np.float32), (small, np.uint8))]
    return runs, *as_table


def plainly_sorted(runs, rows):
    """The twin of ``sort_by_row``."""
    order = sorted(range(len(runs)), key=lambda number: (runs[number, ROW], number))
    begin = [sum(row < r for row in runs[:, ROW].tolist()) for r in range(rows + 1)]
    by_row = runs[order].copy()
    by_row[:, ROW] = order
    return begin, by_row


def plainly_read(slots, since, runs, bounds, table, values, small):
    """The twin of ``read``, from runs in the order that they came."""
    out = np.zeros((len(slots), table.shape[1]), np.float32)
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        out[i] = table[slot]
        for run in runs[since:][::-1]:
            if run[ROW] != slot:
                continue
            saved = small[run[START] - SMALL :] if run[START] >= SMALL else values[run[START] :]
            held = [s for s in range(len(bounds) - 1) if int(run[MASK + s // 32]) >> s % 32 & 1]
            for entry, s in enumerate(held):
                out[i, bounds[s] : bounds[s + 1]] = saved[entry][: bounds[s + 1] - bounds[s]]
    return out


@pytest.mark.parametrize(("features", "segments"), WIDTHS)
def test_runs_are_sorted_and_read_as_their_plain_twins_have_it(features, segments):
    rng = np.random.default_rng(features)
    rows = 9
    bounds = segment_bounds(features, segments)
    table = rng.standard_normal((rows, features)).astype(np.float32)
    for count in (0, 1, 60):
        runs, values, small = drawn_runs(rng, rows, features, segments, count)
        begin, by_row = sort_by_row(runs, rows)
        expected_begin, expected = plainly_sorted(runs, rows)
        assert begin.tolist() == expected_begin
        np.testing.assert_array_equal(by_row, expected)
        slots = rng.integers(-1, rows, 150).astype(np.int32)
        for since in (0, count // 2, count):
            out = np.full((len(slots), features), np.nan, np.float32)
            read(slots, since, begin, by_row, bounds, table, values, small, out)
            np.testing.assert_array_equal(out, plainly_read(slots, since, runs, bounds, table, values, small))


def test_slots_of_any_snapshot_with_nodes_that_come_go_and_come_back():
    rng = np.random.default_rng(0)
    slots, now, history = Slots(), {}, []
    for sequence in range(30):
        nodes = 5 + sequence
        slots.grow(nodes)
        leaving = np.array([node for node in sorted(now) if rng.random() < 0.2], np.int64)
        slots.give_back(sequence, leaving, undo=True)
        for node in leaving.tolist():
            del now[node]
        coming = np.array([n for n in range(nodes) if n not in now and rng.random() < 0.3], np.int64)
        now.update(zip(coming.tolist(), slots.take(sequence, coming, undo=True).tolist(), strict=True))
        assert len(set(now.values())) == len(now)
        history.append(dict(now))
        slots.forget(sequence - 6)
        ids = rng.integers(0, nodes + 3, 50)
        for then in range(max(0, sequence - 6), sequence + 1):
            expected = [history[then].get(node, -1) for node in ids.tolist()]
            assert slots.as_of(ids, then).tolist() == expected


def test_looking_up_slots_equals_its_plain_twin():
    rng = np.random.default_rng(0)
    of = rng.integers(-1, 9, 20).astype(np.int32)
    notes = [sorted(rng.choice(9, rng.integers(0, 4), replace=False).tolist()) for _ in range(20)]
    begin = np.cumsum([0, *map(len, notes)]).astype(np.int32)
    noted = np.array([[0, changed, rng.integers(-1, 9)] for each in notes for changed in each], np.int32)
    for length in (0, 1, 100):
        node = rng.integers(0, 23, length)
        for sequence in (-1, 3, 9):
            expected = []
            for v in node.tolist():
                after = [k for k in range(begin[v], begin[v + 1]) if noted[k, 1] > sequence] if v < 20 else []
                expected.append(noted[after[0], 2] if after else of[v] if v < 20 else -1)
            slots = np.full(length, 7, np.int32)
            look_up(node, sequence, of, begin, noted, slots)
            assert slots.tolist() == expected
            look_up(node, sequence, of, begin[:0], noted[:0], slots)
            assert slots.tolist() == [of[v] if v < 20 else -1 for v in node.tolist()]


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_tables_begin_at_a_line_of_the_cache_also_when_joined(kind):
    for rows, width in ((0, 4), (3, 5), (40_000, 32)):
        table = on_lines(rows, width, kind)
        table[:] = np.arange(rows * width).reshape(rows, width) % 251
        longer = joined(table, table[:1])
        for found, expected in ((table, rows), (longer, rows + min(rows, 1))):
            assert found.shape == (expected, width)
            assert found.dtype == kind
            assert found.flags["C_CONTIGUOUS"]
            assert expected == 0 or found.ctypes.data % LINE_BYTES == 0
        np.testing.assert_array_equal(longer, np.concatenate([table, table[:1]]))
