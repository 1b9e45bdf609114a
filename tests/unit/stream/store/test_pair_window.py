"""The pairs of a window beside a dictionary for every snapshot."""

import numpy as np
import pytest

from freshet_graph.stream.snapshots.pairs import pair_keys
from freshet_graph.stream.store.window.pairs import PairWindow, RowSet


@pytest.mark.parametrize("window", [1, 3, 7])
def test_every_snapshot_of_the_window_is_read_as_it_was(window):
    rng = np.random.default_rng(window)
    pairs, history = PairWindow(), {}
    held = [{}, {}]  # two parts store pairs; weights are the graph's
    for sequence in range(60):
        weights = {p: float(rng.integers(1, 4)) for p in range(20)}
        rows = []
        for part in held:
            for pair in rng.choice(20, 4, replace=False).tolist():
                if pair in part and rng.random() < 0.5:
                    del part[pair]
                    rows.append((-1, pair, 0.0))
                elif pair not in part:
                    part[pair] = None
                    rows.append((1, pair, weights[pair]))
            for pair in part:
                if not any(row[1] == pair and row[0] == 1 for row in rows):
                    rows.append((0, pair, weights[pair]))
        op, pair, weight = (np.array(column) for column in zip(*rows, strict=True))
        pairs.append(sequence, op.astype(np.int8), pair_keys(pair, pair), weight.astype(np.float32))
        history[sequence] = {p: weights[p] for part in held for p in part}
        pairs.fold(sequence - window + 1)
        for then in range(max(0, sequence - window + 1), sequence + 1):
            keys, found = pairs.as_of(then)
            expected = sorted(history[then])
            assert keys.tolist() == pair_keys(np.array(expected, int), np.array(expected, int)).tolist()
            assert dict(zip(expected, found.tolist(), strict=True)) == history[then]


def test_a_list_of_all_pairs_changes_copies_and_weights_at_once():
    """A pair that two parts had is left in one of them with another weight, and the other way round."""
    pairs, both = PairWindow(), np.array([0, 0, 1, 2, 2])
    pairs.append(0, np.ones(5, np.int8), pair_keys(both, both), np.full(5, 1, np.float32))
    one = np.array([0, 1, 1, 2])
    pairs.append(1, None, pair_keys(one, one), np.array([7, 8, 8, 1], np.float32), whole=True)
    keys, weight = pairs.as_of(1)
    assert keys.tolist() == pair_keys(np.arange(3), np.arange(3)).tolist()
    assert weight.tolist() == [7, 8, 1]
    none = np.array([1, 2])  # one of each copy goes: of pair 1 one is left
    pairs.append(2, np.full(2, -1, np.int8), pair_keys(none, none), np.zeros(2, np.float32))
    assert pairs.as_of(2)[0].tolist() == pair_keys(np.arange(2), np.arange(2)).tolist()


@pytest.mark.parametrize("a_snapshot", [5, 400])
def test_few_and_many_changes_of_a_large_table_are_read_as_they_were(a_snapshot):
    """Rows that go are numbers where they are few and bits where they are many; both survive the folding of older ones."""
    rng, n, window = np.random.default_rng(0), 1_000, 3
    pairs, live, history = PairWindow(), {}, {}
    for sequence in range(30):
        rows = {}
        for pair in rng.choice(n, n // 2 if sequence == 0 else a_snapshot, replace=False).tolist():
            kind = (1 if pair not in live else int(rng.choice([-1, 0]))) if sequence else 1
            rows[pair] = (kind, float(rng.integers(1, 4)))
            if kind < 0:
                del live[pair]
            else:
                live[pair] = rows[pair][1]
        key = np.array(list(rows))
        op, weight = (np.array(column) for column in zip(*rows.values(), strict=True))
        pairs.append(sequence, op.astype(np.int8), pair_keys(key, key), weight.astype(np.float32))
        pairs.fold(sequence - window + 1)
        history[sequence] = dict(live)
        for then in range(max(0, sequence - window + 1), sequence + 1):
            expected = np.array(sorted(history[then]))
            keys, found = pairs.as_of(then)
            assert keys.tolist() == pair_keys(expected, expected).tolist()
            assert found.tolist() == [history[then][pair] for pair in expected.tolist()]


@pytest.mark.parametrize("count", [0, 3, 31, 32, 500, 1_000])
def test_a_set_of_rows_is_the_same_in_either_form_and_takes_the_fewer_bytes(count):
    rows = np.random.default_rng(count).permutation(1_000)[:count]
    held = RowSet.of(rows, 1_000)
    assert held.rows().tolist() == sorted(rows.tolist())
    assert held.nbytes == min(4 * count, 125)
    flags, bits = np.zeros(1_003, np.bool_), np.zeros(126, np.uint8)
    held.mark(flags)
    held.mark_bits(bits)
    assert np.flatnonzero(flags).tolist() == sorted(rows.tolist())
    assert np.unpackbits(bits, bitorder="little")[:1_003].tolist() == flags.tolist()


def test_changes_that_left_the_window_are_folded_once_they_are_worth_it():
    pairs, n = PairWindow(), 8_000
    everything = np.arange(n)
    pairs.append(0, np.ones(n, np.int8), pair_keys(everything, everything), np.ones(n, np.float32))
    pairs.fold(0, always=True)
    table = pairs.memory_bytes
    for sequence in range(1, 200):
        some = np.arange(100)
        pairs.append(sequence, np.zeros(100, np.int8), pair_keys(some, some), np.ones(100, np.float32))
        pairs.fold(sequence - 1)
        assert pairs.memory_bytes <= table * 1.25
