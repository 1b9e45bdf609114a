"""Figures of labelled events against loops that follow their definitions; the window against a list of all events."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.stream.kernels.mixing import mixed
from freshet_graph.trainer.scoring.label_figures import (
    COLUMNS,
    DAY_US,
    JudgedEvents,
    SlidingLabelFigures,
    brier,
    expected_calibration_error,
    inverse_propensity,
    label_rankings,
    precision_at_k,
    recall_at_budget,
)

scores = st.integers(-3, 3).map(lambda step: step / 2) | st.sampled_from([np.inf, -np.inf])
labels = st.integers(0, 1)
weights = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0])
probabilities = st.integers(0, 10).map(lambda step: step / 10)
days = st.integers(-1, 2)
sources = st.integers(0, 4)


def columns(*of, least=0, most=14):
    """A table of some events as columns."""
    return st.lists(st.tuples(*of), min_size=least, max_size=most).map(
        lambda rows: [
            np.array(column, np.int64 if draw in (labels, days, sources) else np.float64)
            for draw, column in zip(of, zip(*rows, strict=True) if rows else [()] * len(of), strict=True)
        ]
    )


@given(columns(scores, labels, weights))
def test_rankings_are_those_of_all_pairs_and_all_thresholds(events):
    score, label, weight = events
    rows = list(zip(*(column.tolist() for column in events), strict=True))
    true = sum(w for _, y, w in rows if y)
    false = sum(w for _, y, w in rows if not y)
    expected = {"base_rate": true / (true + false)} if true + false else {}
    if true and false:
        above = sum(w * v * ((s > r) + (s == r) / 2) for s, y, w in rows if y for r, z, v in rows if not z)
        expected["auroc"] = above / (true * false)
        precision, recall_before = 0.0, 0.0
        for threshold in sorted({s for s, _, w in rows if w}, reverse=True):
            hit = sum(w for s, y, w in rows if y and s >= threshold)
            precision += (hit / true - recall_before) * hit / sum(w for s, _, w in rows if s >= threshold)
            recall_before = hit / true
        expected["average_precision"] = precision
    assert label_rankings(score, label, weight) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    if (weight == 1).all():
        assert label_rankings(score, label) == pytest.approx(expected)


@given(columns(scores, labels, least=1), st.data())
def test_a_weight_is_a_number_of_equal_events(events, data):
    score, label = events
    times = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(score), max_size=len(score))))
    day, repeated = np.arange(len(score)) % 2, np.repeat(np.arange(len(score)), times)
    probability = np.clip(score, 0, 1)
    weight = times.astype(np.float64)
    assert label_rankings(score, label, weight) == pytest.approx(
        label_rankings(score[repeated], label[repeated])
    )
    for figure in (brier, expected_calibration_error):
        assert figure(probability, label, weight) == pytest.approx(
            figure(probability[repeated], label[repeated])
        )
    weighed = recall_at_budget(score, label, day, 2.0, weight)
    single = recall_at_budget(score[repeated], label[repeated], day[repeated], 2.0)
    assert (weighed is None) == (single is None)
    if weighed is not None:
        assert (weighed.value, weighed.ceiling) == pytest.approx((single.value, single.ceiling))


@given(columns(probabilities, labels, weights), st.integers(1, 5))
def test_probabilities_are_judged_by_their_distance_and_by_bins_of_equal_mass(events, bins):
    probability, label, weight = events
    rows = sorted(zip(*(column.tolist() for column in events), strict=True))
    total = sum(w for _, _, w in rows)
    if not total:
        assert brier(probability, label, weight) is None
        assert expected_calibration_error(probability, label, weight, bins) is None
        return
    assert brier(probability, label, weight) == pytest.approx(
        sum(w * (p - y) ** 2 for p, y, w in rows) / total
    )
    excess, below = [0.0] * bins, 0.0
    for value in sorted({p for p, _, _ in rows}):
        mass = sum(w for p, _, w in rows if p == value)
        middle = (below + mass / 2) / total
        excess[min(bins - 1, int(bins * middle))] += sum(w * (p - y) for p, y, w in rows if p == value)
        below += mass
    expected = sum(map(abs, excess)) / total
    assert expected_calibration_error(probability, label, weight, bins) == pytest.approx(expected, abs=1e-12)


def most_found(positives, k, left_out=frozenset()):
    """The largest number of sources found by any choice on each day, in the order of days."""
    if not positives:
        return 0
    here = positives[0] - left_out
    return max(
        len(chosen) + most_found(positives[1:], k, left_out | set(chosen))
        for size in range(min(k, len(here)) + 1)
        for chosen in combinations(sorted(here), size)
    )


def check_precision_at_k(events, k, leave_found):
    score, label, source, day = events
    rows = list(zip(*(column.tolist() for column in events), strict=True))
    figure = precision_at_k(score, label, source, day, k, leave_found=leave_found)
    if not rows:
        assert figure is None
        return
    found, hits, positives = set(), 0, []
    numbers = sorted({d for *_, d in rows})
    for number in numbers:
        highest, right = {}, set()
        for s, y, u, d in rows:
            if d == number:
                highest[u] = max(highest.get(u, -np.inf), s)
                right |= {u} if y else set()
        tie = {u: int(mixed(number, np.array([u]))[0]) for u in highest}
        order = sorted(set(highest) - found, key=lambda u: (-highest[u], tie[u]))
        hit = right & set(order[:k])
        hits += len(hit)
        found |= hit if leave_found else set()
        positives.append(right)
    most = most_found(positives, k) if leave_found else sum(min(k, len(right)) for right in positives)
    assert figure.value == pytest.approx(hits / k / len(numbers))
    assert figure.ceiling == pytest.approx(most / k / len(numbers))
    assert figure.days == len(numbers)
    assert figure.value <= figure.ceiling


@given(columns(scores, labels, sources, days), st.integers(1, 3), st.booleans())
def test_precision_at_k_looks_at_the_highest_sources_of_each_day(events, k, leave_found):
    check_precision_at_k(events, k, leave_found)


@pytest.mark.parametrize("leave_found", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_precision_at_k_of_busy_days(seed, leave_found):
    """Many ties, and sources that are right on several days, which short lists rarely have."""
    rng = np.random.default_rng(seed)
    events = (
        rng.integers(0, 3, 40) / 2,
        rng.integers(0, 2, 40),
        rng.integers(0, 6, 40),
        rng.integers(0, 3, 40),
    )
    check_precision_at_k(events, 1 + seed % 3, leave_found)


def test_a_source_that_was_found_makes_room_for_the_next():
    score, label = np.array([9.0, 5, 1, 9, 5, 1, 9]), np.array([1, 0, 1, 1, 1, 1, 1])
    source, day = np.array([0, 1, 2, 0, 1, 2, 0]), np.array([3, 3, 3, 4, 4, 4, 6])
    figure = precision_at_k(score, label, source, day, 1)  # 0, then 1, then nothing is left
    assert (figure.value, figure.ceiling, figure.days) == pytest.approx((2 / 3, 1, 3))
    always = precision_at_k(score, label, source, day, 1, leave_found=False)
    assert (always.value, always.ceiling) == (1, 1)


def test_the_ceiling_moves_sources_to_their_other_days():
    source = np.array([0, 1, 2, 3, 2, 4])  # two places a day: 2 makes room, 3 finds none, 4 still does
    day = np.array([0, 0, 0, 0, 1, 1])
    assert precision_at_k(np.ones(6), np.ones(6), source, day, 2).ceiling == 1
    chain = np.array([0, 1, 1, 2, 2, 0]), np.array([0, 0, 1, 1, 2, 2])
    assert precision_at_k(np.ones(6), np.ones(6), *chain, 1).ceiling == 1


@given(columns(scores, labels, days, weights), st.sampled_from([0.5, 1.0, 2.0, 3.5, 100.0]))
def test_recall_at_budget_pours_the_budget_over_equal_scores(events, budget):
    score, label, day, weight = events
    rows = list(zip(*(column.tolist() for column in events), strict=True))
    true = sum(w for _, y, _, w in rows if y)
    figure = recall_at_budget(score, label, day, budget, weight)
    if not true:
        assert figure is None
        return
    hits = ceiling = 0.0
    for number in {d for _, _, d, _ in rows}:
        left = budget
        for threshold in sorted({s for s, _, d, _ in rows if d == number}, reverse=True):
            here = [(y, w) for s, y, d, w in rows if d == number and s == threshold]
            mass = sum(w for _, w in here)
            share = min(1.0, left / mass) if mass else 0.0
            hits += share * sum(w for y, w in here if y)
            left = max(0.0, left - mass)
        ceiling += min(budget, sum(w for _, y, d, w in rows if y and d == number))
    assert (figure.value, figure.ceiling) == pytest.approx((hits / true, ceiling / true))
    assert figure.value <= figure.ceiling <= 1
    assert figure.days == len({d for _, _, d, _ in rows})


def test_equal_scores_at_the_end_of_a_budget_count_as_the_mean_of_all_orders():
    label = np.array([1, 0, 0, 1, 0])
    score, day = np.array([3.0, 2, 2, 2, 1]), np.zeros(5, np.int64)
    figure = recall_at_budget(score, label, day, 2)
    orders = [label[[0, *order]][:2].sum() / 2 for order in permutations([1, 2, 3])]
    assert figure.value == pytest.approx(np.mean(orders))


@given(columns(scores, labels, sources, days, weights, probabilities, least=1), st.randoms())
def test_the_order_of_events_plays_no_part(events, random):
    score, label, source, day, weight, probability = events
    rows = list(range(len(score)))
    random.shuffle(rows)
    judged = JudgedEvents.of(score, label, source, day * DAY_US, probability=probability, weight=weight)
    assert judged.select(np.array(rows)).figures(2, 2) == pytest.approx(judged.figures(2, 2), abs=1e-12)


@given(columns(scores, labels, sources, days, least=1), st.data())
def test_scores_that_are_not_numbers_have_no_figures(events, data):
    score, label, source, day = events
    score[data.draw(st.integers(0, len(score) - 1))] = np.nan
    assert JudgedEvents.of(score, label, source, day * DAY_US).figures(2, 2) == {}


def test_a_perfect_and_a_useless_scorer():
    rng = np.random.default_rng(0)
    label, source, day = rng.random(4000) < 0.05, rng.integers(0, 300, 4000), rng.integers(0, 7, 4000)
    perfect = JudgedEvents.of(label, label, source, day * DAY_US, probability=label).figures(20, 20)
    assert (perfect["auroc"], perfect["average_precision"], perfect["brier"]) == (1, 1, 0)
    assert perfect["expected_calibration_error"] == 0
    assert perfect["recall_at_budget"] == perfect["recall_at_budget_ceiling"] < 1
    rate = np.full(4000, label.mean())
    useless = JudgedEvents.of(rate, label, source, day * DAY_US, probability=rate).figures(20, 20)
    assert useless["auroc"] == 0.5
    assert [useless["average_precision"], useless["base_rate"]] == pytest.approx([label.mean()] * 2)
    assert useless["brier"] == pytest.approx(label.mean() * (1 - label.mean()))
    assert useless["expected_calibration_error"] == pytest.approx(0, abs=1e-12)
    assert useless["recall_at_budget"] == pytest.approx(
        sum(20 * label[day == d].mean() for d in range(7)) / label.sum()
    )


def test_labels_of_one_kind_have_the_figures_that_need_no_other():
    time = np.zeros(3, np.int64)
    for label in (np.ones(3), np.zeros(3)):
        figures = JudgedEvents.of(np.arange(3.0), label, time, time, probability=np.full(3, 0.5)).figures(
            1, 1
        )
        assert "auroc" not in figures
        assert "average_precision" not in figures
        assert figures["brier"] == 0.25
        assert ("recall_at_budget" in figures) == bool(label.any())
        assert figures["precision_at_k"] == label[0]


def test_a_logit_is_no_probability():
    for wrong in (-0.1, 1.1):
        with pytest.raises(AssertionError, match="logit"):
            brier(np.array([0.5, wrong]), np.array([0, 1]))


def test_weights_undo_the_choice_of_events_that_got_a_label():
    rng = np.random.default_rng(3)
    label = rng.random(200_000) < 0.1
    score = rng.normal(label * 1.0, 1)
    propensity = 1 / (1 + np.exp(score - 1))  # the riskier, the rarer it gets a label
    judged = rng.random(len(label)) < propensity
    weight = inverse_propensity(propensity[judged])
    probability = 1 / (1 + np.exp(-score))
    of_all = label_rankings(score, label) | {"brier": brier(probability, label)}
    weighed = label_rankings(score[judged], label[judged], weight) | {
        "brier": brier(probability[judged], label[judged], weight)
    }
    plain = label_rankings(score[judged], label[judged])
    assert weighed == pytest.approx(of_all, rel=0.1)
    assert plain["average_precision"] < 0.9 * of_all["average_precision"]
    unknown = inverse_propensity(np.array([np.nan, 1.0, 0.5, 0.0]))
    assert unknown.tolist() == [1, 1, 2, 100]


HOUR_US = DAY_US // 24
moments = st.integers(-30, 60).map(lambda hours: hours * HOUR_US)
judgements = st.lists(
    st.tuples(st.lists(st.tuples(moments, sources, labels, scores), max_size=6), moments), max_size=8
)


def judged(rows):
    t_us, source, label, score = zip(*rows, strict=True) if rows else [()] * 4
    return JudgedEvents.of(np.array(score), np.array(label), np.array(source), np.array(t_us))


@given(
    judgements, st.integers(1, 12), st.sampled_from([None, 6, 24, 49]), st.integers(0, 9), st.integers(0, 9)
)
def test_the_window_has_the_newest_events_whatever_comes_between(
    added, capacity, span_h, interrupted, looked
):
    span_s = None if span_h is None else span_h * 3600
    window, every, until = SlidingLabelFigures(capacity, span_s), [], None
    for number, (rows, now_until) in enumerate(added):
        window.add(judged(rows), now_until)
        every += rows
        until = now_until if until is None else max(until, now_until)
        if number == looked:
            window.figures(2, 2)
        if number == interrupted:
            state = {name: np.copy(value) for name, value in window.state().items()}
            window = SlidingLabelFigures(capacity, span_s)
            window.restore(state)
    if until is None:
        assert window.figures(2, 2) == {}
        return
    in_time = sorted(every, key=lambda row: row[0])  # stable
    kept = [row for row in in_time[-capacity:] if span_h is None or row[0] > until - span_h * HOUR_US]
    counted = [row for row in kept if row[0] <= until]
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(window.counted(), column), getattr(judged(counted), column))
    dropped = in_time[: len(in_time) - len(kept)]
    last_dropped = dropped[-1][0] if dropped else -np.inf
    whole = [
        last_dropped < row[0] // DAY_US * DAY_US and row[0] // DAY_US * DAY_US + DAY_US <= until + 1
        for row in counted
    ]
    expected = judged(counted).figures(2, 2, np.array(whole, np.bool_))
    assert window.figures(2, 2) == pytest.approx(expected)
    daily = [row for row, is_whole in zip(counted, whole, strict=True) if is_whole]
    assert ("precision_at_k" in expected) == bool(daily)


def test_the_memory_of_the_window_is_bounded():
    window, rng = SlidingLabelFigures(100, span_s=None), np.random.default_rng(0)
    most = 0
    for step in range(3000):
        t_us = np.full(7, step * HOUR_US)
        window.add(JudgedEvents.of(rng.random(7), rng.integers(0, 2, 7), np.arange(7), t_us), step * HOUR_US)
        most = max(most, sum(map(len, window._parts)))
    assert most <= 200
    assert len(window.counted()) == 100
    for _ in range(3000):
        window.add(judged([]), 0)
    assert len(window._parts) <= 1000


def test_a_window_resumes_with_fewer_events():
    window = SlidingLabelFigures(10)
    window.add(judged([(hour * HOUR_US, 0, 0, 0.0) for hour in range(10)]), 10 * HOUR_US)
    smaller = SlidingLabelFigures(3)
    smaller.restore(window.state())
    assert smaller.counted().t_us.tolist() == [7 * HOUR_US, 8 * HOUR_US, 9 * HOUR_US]


@pytest.mark.parametrize(("until", "days_of_window"), [(2 * DAY_US - 1, 2), (2 * DAY_US - 2, 1), (0, 0)])
def test_a_day_counts_once_all_of_it_is_judged(until, days_of_window):
    window = SlidingLabelFigures(10)
    window.add(judged([(t_us, 0, 1, 0.0) for t_us in (0, DAY_US - 1, DAY_US, 2 * DAY_US - 1)]), until)
    assert window.figures(1, 1).get("days", 0) == days_of_window


def test_a_day_of_which_an_event_was_dropped_does_not_count():
    window = SlidingLabelFigures(2)
    window.add(judged([(t_us, 0, 1, 0.0) for t_us in (DAY_US, DAY_US, DAY_US + 1)]), 2 * DAY_US - 1)
    assert "days" not in window.figures(1, 1)
    window.add(judged([(5, 0, 1, 0.0)]), 0)  # late, and dropped at once
    assert "days" not in window.figures(1, 1)
    resumed = SlidingLabelFigures(2)
    resumed.restore(window.state())
    assert "days" not in resumed.figures(1, 1)
    assert resumed.figures(1, 1)["base_rate"] == 1
