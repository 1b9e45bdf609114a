"""Calibration learned online, against the exact minimum and against its own rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from freshet_graph.trainer.scoring.calibration import LEAST_SLOPE, Calibration, sigmoid
from freshet_graph.trainer.scoring.label_figures import brier, expected_calibration_error, label_rankings

NEVER = 1e12
"""A half-life that forgets nothing, and learns everything at once."""

logits = st.integers(-40, 40).map(lambda step: step / 4)
judged = st.lists(st.tuples(logits, st.integers(0, 1), st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=30)


def columns(rows):
    score, label, weight = zip(*rows, strict=True) if rows else [()] * 3
    return np.array(score, np.float64), np.array(label, np.int64), np.array(weight, np.float64)


def drawn(rng, n, slope=0.5, intercept=-2.0):
    """Logits whose probability of label 1 is σ(slope · logit + intercept)."""
    score = rng.normal(1, 3, n)
    return score, (rng.random(n) < sigmoid(slope * score + intercept)).astype(np.int64)


@given(judged)
def test_events_at_once_are_learned_to_the_minimum_of_their_cost(rows):
    score, label, weight = columns(rows)
    calibration = Calibration(NEVER)
    calibration.learn(score, label, weight)

    def cost(parameters):
        logit, (a, b) = parameters[0] * score + parameters[1], parameters
        return weight @ (np.logaddexp(0, logit) - label * logit) + 0.05 * ((a - 1) ** 2 + b**2)

    best = minimize(cost, [1.0, 0.0], bounds=[(LEAST_SLOPE, None), (None, None)], method="L-BFGS-B")
    assert cost([calibration.slope, calibration.intercept]) <= best.fun + 1e-9
    assert [calibration.slope, calibration.intercept] == pytest.approx(best.x.tolist(), abs=2e-3)


@given(judged, judged, st.sampled_from([1.0, 10.0, NEVER]))
def test_ranks_stay_as_they_are(rows, later, half_life):
    calibration = Calibration(half_life)
    calibration.learn(*columns(rows))
    assert calibration.slope >= LEAST_SLOPE
    score, label, weight = columns(later)
    probability = calibration.probability(score)
    assert ((probability >= 0) & (probability <= 1)).all()
    order = np.argsort(score, kind="stable")
    assert (np.diff(probability[order]) >= 0).all()
    clear = np.abs(calibration.slope * score + calibration.intercept) < 25  # float64 tells them apart
    of_scores, of_probabilities = (
        label_rankings(ranking[clear], label[clear], weight[clear]) for ranking in (score, probability)
    )
    assert of_probabilities == of_scores


@given(judged, judged, st.sampled_from([1.0, 10.0, NEVER]))
def test_a_resumed_calibration_continues_bit_for_bit(rows, later, half_life):
    one = Calibration(half_life)
    one.learn(*columns(rows))
    state = {name: np.copy(value) for name, value in one.state().items()}
    other = Calibration(half_life)
    other.restore(state)
    for calibration in (one, other):
        calibration.learn(*columns(later))
    assert (one.slope, one.intercept) == (other.slope, other.intercept)
    np.testing.assert_array_equal(one.state()["precision"], other.state()["precision"])


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_batch_by_batch_comes_close_to_all_at_once(batch):
    score, label = drawn(np.random.default_rng(batch), 4000)
    at_once, online = Calibration(NEVER), Calibration(NEVER)
    at_once.learn(score, label)
    for begin in range(0, len(score), batch):
        online.learn(score[begin : begin + batch], label[begin : begin + batch])
    error = np.sqrt(np.diag(np.linalg.inv(at_once.state()["precision"])))
    off = np.abs([online.slope - at_once.slope, online.intercept - at_once.intercept]) / error
    assert (off < 0.3).all(), f"standard errors: {off}"
    assert [at_once.slope, at_once.intercept] == pytest.approx([0.5, -2], abs=0.15)


def test_it_mends_scale_and_base_rate():
    rng = np.random.default_rng(0)
    score, label = drawn(rng, 30_000, slope=0.6, intercept=-5)
    calibration = Calibration()
    calibration.learn(score[:20_000], label[:20_000])
    later = slice(20_000, None)
    for figure in (brier, expected_calibration_error):
        raw, mended, ideal = (
            figure(p, label[later])
            for p in (
                sigmoid(score[later]),
                calibration.probability(score[later]),
                sigmoid(0.6 * score[later] - 5),
            )
        )
        assert mended < raw / 3
        assert mended == pytest.approx(ideal, abs=0.003)


def test_what_was_long_ago_is_forgotten_after_half_lives():
    rng, forgets, keeps = np.random.default_rng(1), Calibration(1000), Calibration(NEVER)
    for intercept in (2.0, -2.0):
        score, label = drawn(rng, 10_000, 1.0, intercept)
        for calibration in (forgets, keeps):
            calibration.learn(score, label)
    assert forgets.intercept == pytest.approx(-2, abs=0.5)
    assert keeps.intercept > -1


def test_only_events_that_are_handed_over_are_learned():
    calibration = Calibration()
    before = calibration.state()
    calibration.probability(np.array([3.0, np.nan, np.inf, -np.inf]))
    calibration.learn(np.array([np.nan, np.inf, -np.inf]), np.array([1, 0, 1]))
    calibration.learn(np.empty(0), np.empty(0, np.int64))
    after = calibration.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_probabilities_of_logits_that_are_no_numbers():
    probability = Calibration().probability(np.array([np.nan, np.inf, -np.inf, 0, 800, -800], np.float32))
    np.testing.assert_array_equal(probability, [np.nan, 1, 0, 0.5, 1, 0])
    assert probability.dtype == np.float64


def test_scores_worse_than_chance_keep_their_order():
    score, label = drawn(np.random.default_rng(2), 2000, slope=-1.0, intercept=0.0)
    calibration = Calibration()
    calibration.learn(score, label)
    assert calibration.slope == LEAST_SLOPE
    assert brier(calibration.probability(score), label) == pytest.approx(
        label.mean() * (1 - label.mean()), abs=0.01
    )


def test_a_slope_between_0_and_the_least_is_the_least():
    score = np.tile([10.0, -10.0], 1000)
    label = np.concatenate([np.tile([1, 0], 510), np.tile([0, 1], 490)])  # a slope of .004 fits best
    calibration = Calibration(NEVER)
    calibration.learn(score, label)
    assert calibration.slope == LEAST_SLOPE


def test_events_that_say_nothing_of_the_slope_leave_it_as_it_was():
    calibration = Calibration(8)
    calibration.learn(np.zeros(1600), np.tile([0, 0, 0, 1], 400))  # 200 half-lives
    assert calibration.slope == pytest.approx(1)
    calibration.learn(np.array([0.1]), np.array([0]))
    assert 0.5 < calibration.slope < 1
