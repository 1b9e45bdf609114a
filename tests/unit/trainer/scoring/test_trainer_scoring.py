"""Ranking figures against their definitions; baselines against what they promise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trainer_sessions import examples_of, session_on
from trainer_streams import make_lane

from freshet_graph.trainer.data.examples import spread
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.data.negatives import Draw
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.baselines import edgebank, edgebank_window, recency, recency_popularity
from freshet_graph.trainer.scoring.metrics import (
    area_under_roc,
    average_precision,
    batched_figures,
    jackknife,
    ranks_among,
)
from freshet_graph.trainer.scoring.predictions import SCORERS, Predictions, join, scored_queries, side_by_side


def slow_average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    total, before = 0.0, 0.0
    for threshold in sorted({*positive.tolist(), *negative.tolist()}, reverse=True):
        true, false = (positive >= threshold).sum(), (negative >= threshold).sum()
        total += (true / len(positive) - before) * true / (true + false)
        before = true / len(positive)
    return total


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_figures_equal_their_definitions_with_and_without_ties(levels: int) -> None:
    rng = np.random.default_rng(levels)
    positive, negative = rng.integers(0, levels, 60) / 1.0 + 0.3, rng.integers(0, levels, 45) / 1.0 + 0.3
    assert average_precision(positive, negative) == pytest.approx(slow_average_precision(positive, negative))
    above = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    assert area_under_roc(positive, negative) == pytest.approx(above)


def test_a_perfect_and_a_useless_predictor() -> None:
    assert average_precision(np.array([2.0, 3.0]), np.array([1.0, 0.0])) == 1
    assert average_precision(np.ones(4), np.ones(4)) == 0.5
    assert area_under_roc(np.ones(4), np.ones(4)) == 0.5


def test_batches_are_weighted_by_their_events() -> None:
    positive, negative = np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
    found = batched_figures(positive, negative, batch=2)
    assert found == pytest.approx({"ap": (2 * 1.0 + 0.5) / 3, "auc": 2 / 3})


def by_batches(
    figure_of: Callable[[np.ndarray, np.ndarray], float], positive: np.ndarray, negative: np.ndarray
) -> float:
    batches = [slice(begin, begin + 200) for begin in range(0, len(positive), 200)]
    figures = [figure_of(positive[here], negative[here]) for here in batches]
    return float(np.average(figures, weights=[len(positive[here]) for here in batches]))


@pytest.mark.parametrize("events", [1, 9, 10, 199, 200, 201, 455])
@pytest.mark.parametrize("levels", [1, 4, 10_000])
def test_figures_of_batches_and_their_errors_are_those_of_each_batch_by_itself(
    events: int, levels: int
) -> None:
    rng = np.random.default_rng(events)
    positive, negative = rng.integers(0, levels, (2, events)).astype(np.float64) - levels / 3
    rankings = {"ap": average_precision, "auc": area_under_roc}
    expected = {name: by_batches(of, positive, negative) for name, of in rankings.items()}
    assert batched_figures(positive, negative) == pytest.approx(expected, rel=1e-12)
    tenth, errors = np.arange(events) % 10, {}
    if events >= 10:
        for name, of in rankings.items():
            left = [by_batches(of, positive[tenth != k], negative[tenth != k]) for k in range(10)]
            errors[name] = np.sqrt(9 * np.var(left))
    found = {name: error for name, error in jackknife(positive, negative).items() if not np.isnan(error)}
    assert found == pytest.approx(errors, rel=1e-9, abs=1e-12)


def test_scores_that_are_no_numbers_have_no_figure() -> None:
    sound = np.arange(20.0)
    for one, other in [(sound, np.append(sound[1:], np.nan)), (sound[:0], sound[:0])]:
        figures = {**batched_figures(one, other), **jackknife(one, other)}
        assert np.isnan(list(figures.values())).all()
    two = np.stack([sound, np.append(sound[1:], np.nan)], axis=1)
    assert np.isnan(batched_figures(two, two)["ap"]).tolist() == [False, True], (
        "scorers stand beside each other"
    )


def test_ranks_count_ties_half() -> None:
    candidates = np.array([[3.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    assert ranks_among(np.array([2.0, 0.0]), candidates).tolist() == [2.5, 2.5]


def encounter(**known: float) -> np.ndarray:
    row = np.array([np.inf] * 6 + [0.0] * 6, np.float32)
    for name, value in known.items():
        row[Encounter[name.upper()]] = value
    return row


def test_recency_puts_seen_pairs_above_unseen_ones_and_recent_above_old() -> None:
    order = [
        encounter(pair_age=1, dst_in_age=1, pair_count=1),
        encounter(pair_age=5_000_000, dst_in_age=3, pair_count=9),
        encounter(dst_in_age=2),
        encounter(dst_in_age=90_000_000),
        encounter(),
    ]
    scores = recency(np.stack(order))
    assert (np.diff(scores) < 0).all()
    assert edgebank(np.stack(order)).tolist() == [1, 1, 0, 0, 0]
    assert edgebank_window(np.stack(order), 4_999_999).tolist() == [1, 0, 0, 0, 0]
    assert edgebank_window(np.stack(order), 5_000_000).tolist() == [1, 1, 0, 0, 0]


def test_a_popular_destination_makes_up_for_an_older_meeting_but_not_for_none() -> None:
    order = [
        encounter(pair_age=0, dst_in_age=0, pair_count=1, dst_in_count=2),  # as after a late event
        encounter(pair_age=0, dst_in_age=0, pair_count=1, dst_in_count=1),
        encounter(pair_age=10, dst_in_age=1, pair_count=1, dst_in_count=30),
        encounter(pair_age=5, dst_in_age=5, pair_count=9, dst_in_count=10),
        encounter(pair_age=5, dst_in_age=1, pair_count=1, dst_in_count=9),
        encounter(pair_age=1e9, dst_in_age=1e9, pair_count=1, dst_in_count=1),
        encounter(dst_in_age=2, dst_in_count=1_000),
        encounter(dst_in_age=2, dst_in_count=3),
        encounter(dst_in_age=1, dst_in_count=1),
        encounter(),
    ]
    assert (np.diff(recency_popularity(np.stack(order))) < 0).all()


def test_figures_that_cannot_be_computed_are_absent_and_joined_predictions_keep_order() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((6, len(SCORERS)))
    new, every = np.zeros(6, np.bool_), np.ones(6, np.bool_)
    one = Predictions(table, 1 - table, new, *[table[:0]] * 3, np.arange(6), every, every, new)
    figures = one.figures()
    assert ("ap", "all", "model") in figures
    assert ("ap", "transductive", "recency") in figures
    assert not any(subset in ("inductive", "historical") for _, subset, _ in figures)
    assert not any(metric == "mrr" for metric, _, _ in figures)
    np.testing.assert_array_equal(join([one, one]).positive, np.concatenate([table, table]))


def test_the_tenth_of_all_is_a_hit_and_what_ties_with_it_is_none() -> None:
    ranks = np.tile(np.array([[1.0], [10.0], [10.5], [11.0]]), (1, len(SCORERS)))
    some = np.ones((4, len(SCORERS)))
    new, every = np.zeros(4, np.bool_), np.ones(4, np.bool_)
    figures = Predictions(
        some, some, new, some[:0], some[:0], ranks, np.arange(4), every, every, new
    ).figures()
    assert figures["hits_at_10", "all", "model"] == 0.5
    assert figures["mrr", "all", "model"] == pytest.approx((1 + 1 / 10 + 1 / 10.5 + 1 / 11) / 4)


def test_an_event_with_a_candidate_whose_score_is_no_number_has_no_rank(tmp_path: Path) -> None:
    """NaN stands above nothing: a model that breaks on all but the truth would rank it first."""
    examples = examples_of(session_on(make_lane(tmp_path), "sequential", "tgn"), 0)
    asked = scored_queries(examples)
    scores, untrained = ([np.zeros(len(queries)) for queries in asked] for _ in range(2))
    scores[3][examples.num_candidates] = np.nan  # the first candidate of the second event that is ranked
    found = side_by_side(examples, asked, scores, untrained, Ranks(), 1.0)
    assert found is not None
    assert not np.isnan(found.ranks[:, 1:]).any()
    assert np.flatnonzero(np.isnan(found.ranks[:, 0])).tolist() == [1]


def test_scores_that_are_no_numbers_have_no_figure_and_the_others_keep_theirs() -> None:
    """Sorted, NaN stands last and equals nothing: a broken model would come out as perfect."""
    sound = np.tile(np.array([[2.0], [0.0], [2.0]]), (1, len(SCORERS)))
    broken, ranks = sound.copy(), np.ones((3, len(SCORERS)))
    broken[1, 0] = ranks[1, 0] = np.nan
    predictions = Predictions(
        broken,
        sound - 1,
        np.array([True, False, False]),
        sound,
        broken - 1,
        ranks,
        np.arange(3),
        np.ones(3, np.bool_),
        np.ones(3, np.bool_),
        np.zeros(3, np.bool_),
    )
    figures = predictions.figures()
    of_the_model = {key[:2] for key in figures if key[2] == "model"}
    assert of_the_model == {("ap", "inductive"), ("auc", "inductive")}
    assert {
        ("ap", "all", "recency"),
        ("mrr", "all", "recency"),
        ("ap", "historical", "random"),
    } <= figures.keys()


def test_a_positive_that_is_no_number_has_no_rank() -> None:
    assert np.isnan(ranks_among(np.array([np.nan]), np.array([[1.0, 2.0]]))).all()


def test_figures_of_samples_are_unbiased_and_their_errors_are_how_far_they_lie() -> None:
    rng = np.random.default_rng(0)
    events, columns = 1_000, len(SCORERS)
    positive, negative = rng.normal(1, 1, (events, columns)), rng.normal(0, 1, (events, columns))
    rank = rng.integers(1, 52, (events, columns)).astype(float)
    fresh, every = rng.random(events) < 0.3, np.arange(events)

    def judged(chosen: np.ndarray, ranked: np.ndarray) -> Predictions:
        sampled = np.isin(every, chosen)
        here = [
            np.where((sampled | (np.arange(columns) != 1)[:, None]).T, table, np.nan)
            for table in (positive, negative)
        ]
        return Predictions(
            *here,
            fresh,
            positive[chosen],
            negative[chosen],
            rank[ranked],
            every,
            sampled,
            every >= 0,
            every < 0,
        )

    full, keys = (
        judged(every, every),
        [("ap", "all", "random"), ("auc", "historical", "model"), ("mrr", "all", "model")],
    )
    assert not full.errors()
    drawn = [
        judged(chosen, chosen) for seed in range(200) for chosen in [spread(events, 600, Draw(seed, 7, 4))]
    ]
    figures = [each.figures() for each in drawn]
    for key in keys:
        found = np.array([each[key] for each in figures])
        assert found.mean() == pytest.approx(full.figures()[key], abs=0.002)
        told = np.mean([each.errors()[key] for each in drawn])
        assert 0.8 < told / found.std() < 1.5
    for key in (("ap", "all", "model"), ("auc", "inductive", "recency")):
        assert {each[key] for each in figures} == {full.figures()[key]}
        assert key not in drawn[0].errors()
    assert drawn[0].sizes == {"sampled": 600, "ranked": 600}


def test_a_sample_is_spread_over_the_snapshot_and_no_event_is_likelier_than_another() -> None:
    drawn = np.array([spread(7, 3, Draw(seed, 0, 4)) for seed in range(6_000)])
    gaps = np.diff(np.column_stack([drawn, drawn[:, 0] + 7]))
    assert gaps.min() >= 1
    assert gaps.max() <= 5  # two stretches of at most three, less one
    assert np.bincount(drawn.ravel(), minlength=7) / len(drawn) == pytest.approx(3 / 7, abs=0.03)
    np.testing.assert_array_equal(spread(5, 5, Draw(0, 0, 4)), np.arange(5))
    np.testing.assert_array_equal(spread(5, None, Draw(0, 0, 4)), np.arange(5))


def test_a_smaller_sample_changes_sampled_figures_only_and_asks_less(tmp_path: Path) -> None:
    lane = make_lane(tmp_path)
    found = {}
    for sample in ("all", 20):
        session = session_on(lane, "sequential", "tgn-history", scoring={"sample": sample})
        for sequence in range(3):
            examples = examples_of(session, sequence)
        judged = session.task.evaluate(session.strategy, session.model, session.untrained, examples, Ranks())
        found[sample] = examples, judged
    examples, judged = found[20]
    assert len(examples.sampled) == 20
    assert len(examples.candidates) == examples.num_candidates
    assert len(examples.historical) <= 20 < len(found["all"][0].historical)
    assert set(examples.historical.event) <= set(examples.sampled)
    all_of_it, sampled = (found[sample][1].figures() for sample in ("all", 20))
    exact = [
        key for key in all_of_it if key[0] in ("ap", "auc") and key[1] != "historical" and key[2] != "random"
    ]
    assert len(exact) >= 16
    for key in exact:
        assert sampled[key] == pytest.approx(all_of_it[key], abs=1e-6)
    assert sampled.keys() == all_of_it.keys()
    assert {("ap", "all", "random"), ("ap", "historical", "recency")} <= judged.errors().keys()
