"""Drift of columns: the population stability index, of sliding spans of event time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.trainer.labels.stability import LEAST_SHARE, SLOTS, Stability, stability_index

SECOND = 1_000_000
SPAN_S = 7 * SLOTS


def test_the_index_is_that_of_shares_between_deciles() -> None:
    """Deciles of 1 to 100 are 10, 20, …; of the others half lie in the first bin, half in the last."""
    reference, newest = np.arange(1.0, 101), np.array([5.0] * 50 + [95.0] * 50)
    expected = 2 * (0.5 - 0.1) * np.log(0.5 / 0.1) + 8 * (LEAST_SHARE - 0.1) * np.log(LEAST_SHARE / 0.1)
    ones = np.ones(100)
    assert stability_index(reference, newest, ones, ones) == pytest.approx(expected)
    assert stability_index(reference, reference, ones, ones) == pytest.approx(0, abs=1e-12)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 3)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 3)), min_size=1, max_size=30),
)
def test_a_weight_is_a_number_of_equal_events(reference, newest) -> None:
    (was, was_weight), (now, now_weight) = (
        (np.array(column, np.float64) for column in zip(*rows, strict=True)) for rows in (reference, newest)
    )
    repeated = [np.repeat(was, was_weight.astype(int)), np.repeat(now, now_weight.astype(int))]
    weighed = stability_index(was, now, was_weight, now_weight)
    assert weighed == pytest.approx(
        stability_index(*repeated, *(np.ones(len(column)) for column in repeated))
    )
    assert weighed >= 0


def test_a_column_that_is_nearly_always_0_drifts_only_if_that_share_does() -> None:
    rng = np.random.default_rng(0)
    rare, as_rare, often = (np.where(rng.random(5000) < share, 7.0, 0.0) for share in (0.02, 0.02, 0.3))
    ones = np.ones(5000)
    assert stability_index(rare, as_rare, ones, ones) < 0.01
    assert stability_index(rare, often, ones, ones) > 0.25


def second(rng: np.random.Generator, t: int, shift: float, count: int = 100) -> tuple[np.ndarray, np.ndarray]:
    rows = rng.normal(size=(count, 3)).astype(np.float32)
    rows[:, 0] += shift
    rows[:, 2] = np.nan
    return rows, np.sort(rng.integers(t * SECOND, (t + 1) * SECOND, count))


def indexes(shift_from: int, seconds: int = 300, interrupted: int | None = None) -> list[dict[str, float]]:
    watch, rng, found = Stability(["a", "b", "never"], SPAN_S, 0), np.random.default_rng(1), []
    for t in range(seconds):
        watch.add(*second(rng, t, 2.0 if t >= shift_from else 0.0))
        found.append(dict(watch.index))
        if t == interrupted:
            state, watch = watch.state(), Stability(["a", "b", "never"], SPAN_S, 0)
            watch.restore(state)
    assert len(watch._samples) <= 2 * SLOTS + 1
    assert watch.memory_bytes <= (2 * SLOTS + 1) * 1000 * 3 * 4
    return found


def test_two_spans_are_compared_after_each_slot_and_a_change_shows_until_it_is_in_both() -> None:
    change = 20 * 7
    found = indexes(change)
    assert not any(found[: 2 * SPAN_S])
    assert all(set(index) == {"a", "b"} for index in found[2 * SPAN_S + 1 :])  # of the third nothing is known
    assert max(index["b"] for index in found if index) < 0.05
    a = np.array([index.get("a", 0.0) for index in found])
    assert a[:change].max() < 0.05
    assert a[change + SPAN_S + 1] > 2
    assert a[change + 2 * SPAN_S + 1 :].max() < 0.05
    assert len(set(a[2 * SPAN_S + 1 :].tolist())) == (300 - 1) // 7 - 2 * SLOTS + 1


@pytest.mark.parametrize("interrupted", [3, 120, 139])
def test_a_copy_made_from_its_state_goes_on_alike_to_the_bit(interrupted) -> None:
    assert indexes(130, 200, interrupted) == indexes(130, 200)


def test_spans_weigh_slots_by_their_events_and_skip_those_without_any() -> None:
    """Half of the reference's events are in one of its slots, of which a sample of the same size is kept."""
    watch, rng = Stability(["a"], 7.0, 0), np.random.default_rng(0)
    for t in range(15):
        if t in (4, 10):
            continue
        count = 30_000 if t == 2 else 6_000
        shift = 5.0 if t == 2 or (t >= 7 and t % 2) else 0.0
        rows, times = second(rng, t, shift, count)
        watch.add(rows[:, :1], times)
    # of the newest span t = 7, 9, 11, 13 are shifted, 8 and 12 not: 4/6; of the reference 30 of 60
    was, now = 0.5, 4 / 6
    assert watch.index["a"] == pytest.approx(
        (now - was) * np.log(now / was) + (was - now) * np.log((1 - now) / (1 - was)), abs=0.02
    )
    watch.add(rows[:, :1], times + 1000 * SECOND)
    assert len(watch._samples) == 1


def test_nothing_is_said_of_few_events() -> None:
    watch, rng = Stability(["a"], 7.0, 0), np.random.default_rng(0)
    for t in range(20):
        rows, times = second(rng, t, 0.0, 70)
        watch.add(rows[:, :1], times)
    assert watch.index == {}
