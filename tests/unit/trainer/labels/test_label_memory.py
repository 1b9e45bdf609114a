"""The memory of events and labels against a plain twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.trainer.labels.label_memory import FEATURES, LabelMemory

HALF_LIVES_S = (10.0, 1000.0)
SECOND = 1_000_000


def plain(ends, time_us, values, label_ends, label_us, change):
    """Every count by a sum over the past, from the definition."""
    rows = []
    for event, (pair, now) in enumerate(zip(ends.tolist(), time_us.tolist(), strict=True)):
        row = []
        for end in pair:
            for half in HALF_LIVES_S:
                seen = [
                    (0.5 ** ((now - then) / SECOND / half), value)
                    for other, then, value in zip(ends.tolist(), time_us.tolist(), values, strict=True)
                    if then < now and end in other
                ]
                total = sum(weight for weight, _ in seen)
                row.append(np.log1p(total))
                for feature in range(values.shape[1]):
                    mean = sum(weight * value[feature] for weight, value in seen) / total if total else 0
                    row += [mean, values[event, feature] - mean if total else 0]
                known = [
                    0.5 ** ((now - then) / SECOND / half) * np.array(what)
                    for other, then, what in zip(label_ends.tolist(), label_us.tolist(), change, strict=True)
                    if then < now and end in other
                ]
                labels, ones = np.sum(known, axis=0) if known else (0, 0)
                row += [np.log1p(labels), np.log1p(ones), ones / labels if labels else 0]
        rows.append(row)
    return np.array(rows, np.float32)


@st.composite
def streams(draw):
    events, labels = draw(st.integers(0, 25)), draw(st.integers(0, 15))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = rng.integers(0, 5, (events, 2))
    time_us = np.sort(rng.integers(0, 40, events)) * SECOND
    values = rng.normal(size=(events, draw(st.integers(1, 3)))).astype(np.float32)
    label_ends = rng.integers(-1, 5, (labels, 2))
    label_us = np.sort(rng.integers(0, 50, labels)) * SECOND
    change = np.stack([np.ones(labels), rng.integers(0, 2, labels)], axis=1).astype(np.float64)
    return ends, time_us, values, label_ends, label_us, change


@given(streams(), st.integers(0, 40))
def test_rows_are_sums_over_the_past_however_the_stream_is_cut(stream, cut_s) -> None:
    ends, time_us, values, label_ends, label_us, change = stream
    expected = plain(*stream)
    memory = LabelMemory(HALF_LIVES_S, values.shape[1])
    event, label = (int(np.searchsorted(times, cut_s * SECOND)) for times in (time_us, label_us))
    parts = []
    for index, (here, there) in enumerate(
        ((slice(event), slice(label)), (slice(event, None), slice(label, None)))
    ):
        if index:
            other = LabelMemory(HALF_LIVES_S, values.shape[1])
            other.restore(memory.state())
            memory = other
        parts.append(
            memory.look(
                ends[here], time_us[here], values[here], label_ends[there], label_us[there], change[there], 5
            )
        )
    rows = np.concatenate(parts)
    assert rows.shape == (len(ends), memory.columns)
    np.testing.assert_allclose(rows, expected.reshape(rows.shape), rtol=1e-4, atol=1e-4)


def test_a_label_is_not_seen_at_its_own_time_and_a_forgotten_node_begins_again() -> None:
    memory = LabelMemory([1000.0], 1)
    one = np.array([[3, 4]])
    value = np.zeros((1, 1), np.float32)

    def share(node: int, time_us: int, labels: int) -> float:
        rows = memory.look(
            np.array([[node, 1]]), np.array([time_us]), value, one[:labels], np.array([5])[:labels],
            np.ones((labels, 2)), 5,
        )  # fmt: skip
        return float(memory.shares(rows)[0, 0, 0])

    assert share(4, 5, 1) == 0
    assert share(4, 6, 0) == 1
    memory.keep(np.array([0, 1, 4]))
    assert share(2, 7, 0) == 1
    memory.keep(np.array([0, 1]))
    assert share(2, 8, 0) == 0


def test_a_replaced_label_changes_the_share_only() -> None:
    memory = LabelMemory([1e9], 1)
    rows = memory.look(
        np.array([[0, 1]]), np.array([10]), np.zeros((1, 1), np.float32), np.array([[0, 2], [0, 2], [0, 2]]),
        np.array([1, 2, 3]), np.array([[1, 1], [1, 0], [0, -1]], np.float64), 3,
    )  # fmt: skip
    assert rows[0, 3] == pytest.approx(np.log1p(2))
    assert memory.shares(rows)[0, 0, 0] == pytest.approx(0, abs=1e-6)


def test_only_the_first_features_have_means() -> None:
    assert LabelMemory([1.0], 100).columns == LabelMemory([1.0], FEATURES).columns


@given(streams())
def test_a_peek_is_the_next_row_of_each_event_alone_and_changes_nothing(stream) -> None:
    ends, time_us, values, label_ends, label_us, change = stream
    memory = LabelMemory(HALF_LIVES_S, values.shape[1])
    half = len(ends) // 2
    now_us = int(time_us[half]) if half else 0
    known = label_us < now_us
    memory.look(
        ends[:half], time_us[:half], values[:half], label_ends[known], label_us[known], change[known], 5
    )
    before = {name: column.copy() for name, column in memory.state().items()}
    pending = [column[~known] for column in (label_ends, label_us, change)]
    peeked = memory.peek(ends[half:], time_us[half:], values[half:], *pending)
    for name, column in memory.state().items():
        np.testing.assert_array_equal(column, before[name])
    for row in range(half, len(ends)):
        alone = LabelMemory(HALF_LIVES_S, values.shape[1])
        alone.restore(before)
        event = slice(row, row + 1)
        (wanted,) = alone.look(ends[event], time_us[event], values[event], *pending, 5)
        assert wanted.tobytes() == peeked[row - half].tobytes()
