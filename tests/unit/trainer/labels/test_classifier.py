"""Classifiers of judged events: they learn, they resume, and they never need numbers to be of one scale."""

import numpy as np
import pytest

from freshet_graph.schemas.errors import MissingLibraryError
from freshet_graph.trainer.labels.boosting import BoostedClassifier
from freshet_graph.trainer.labels.classifier import (
    BINS,
    OPEN_END,
    JudgedClassifier,
    JudgedSample,
    PiecewiseLinear,
    RowSample,
)


def judged(seed: int, count: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Class 1 between two thresholds of the first number, which a line cannot say; vectors say nothing."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 5)).astype(np.float32)
    label = ((rows[:, 0] > 0.2) & (rows[:, 0] < 0.8)).astype(np.int64)
    rows[:, 0] *= scale
    return rows, label


def classifier(seed: int = 0) -> JudgedClassifier:
    return JudgedClassifier(
        3, 2, seed, first=200, last=1600, sample=1000, width=16, learning_rate=1e-2, batch=64
    )


def boosted(seed: int = 0) -> BoostedClassifier:
    return BoostedClassifier(5, seed, first=200, sample=1000)


BOTH = pytest.mark.parametrize("make", [classifier, boosted])


@BOTH
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e-3])
def test_it_learns_a_rule_between_thresholds_in_one_pass_whatever_the_scale(make, scale) -> None:
    ours = make()
    assert np.isnan(ours.scores(judged(9, 3)[0])).all()
    for turn in range(30):
        ours.learn(*judged(turn, 100, scale))
    rows, label = judged(99, 2000, scale)
    scores = ours.scores(rows)
    assert ((scores > 0) == (label == 1)).mean() > 0.9  # without a rule .79


@BOTH
def test_a_copy_made_from_its_state_learns_alike_to_the_bit(make) -> None:
    ours, theirs = make(), make()
    for turn in range(3):
        ours.learn(*judged(turn, 100))
    theirs.restore(ours.state())
    for turn in range(3, 20):
        for one in (ours, theirs):
            one.learn(*judged(turn, 100))
    rows, _ = judged(99, 50)
    assert np.array_equal(ours.scores(rows), theirs.scores(rows))


@BOTH
def test_what_it_says_depends_on_the_seed_and_on_nothing_else(make) -> None:
    said = []
    for seed in (0, 0, 1):
        one = make(seed)
        for turn in range(5):
            one.learn(*judged(turn, 100))
        said.append(one.scores(judged(99, 50)[0]))
        np.random.default_rng().random()
    assert np.array_equal(said[0], said[1])
    assert not np.array_equal(said[0], said[2])


def test_pieces_add_up_to_the_place_between_quantiles_and_zero_is_marked() -> None:
    import torch

    pieces = PiecewiseLinear(2)
    column = np.linspace(1, 17, 1601, dtype=np.float32)
    pieces.fit(np.stack([column, np.zeros(1601, np.float32)], axis=1))
    row = pieces(torch.tensor([[3.5, 0.0], [-1.0, 0.0], [33.0, 5.0]]))
    assert row.shape == (3, pieces.width)
    first = row[:, :BINS].sum(dim=1)
    assert first.tolist() == pytest.approx([2.5, 0, BINS - 1 + OPEN_END], rel=1e-3)
    assert row[:, -2:].tolist() == [[1, 0], [1, 0], [1, 1]]


def test_every_row_is_as_likely_to_be_kept() -> None:
    kept = np.zeros(60)
    for seed in range(2000):
        reservoir, generator = RowSample(12, 1), np.random.default_rng(seed)
        for part in np.split(np.arange(60, dtype=np.float32)[:, None], [5, 20, 21, 47]):
            reservoir.add(part, generator)
        assert len(reservoir.rows) == 12 and reservoir.came == 60
        kept[np.unique(reservoir.rows.astype(int))] += 1
    # binomial: 2000 draws with 0.2, five standard deviations either way
    assert abs(kept / 2000 - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)


def test_a_sample_keeps_the_rare_class_and_weighs_each_row_by_those_that_it_stands_for() -> None:
    sample, generator = JudgedSample(100, 1), np.random.default_rng(0)
    label = np.arange(5000) % 250 == 0
    numbers, weight = np.arange(5000), np.where(label, 1.0, 2.0)
    sample.add(np.column_stack([numbers, weight, label]).astype(np.float32), generator)
    kept = sample.all_rows()
    assert sample.came == 5000 and len(kept) == len(sample) == 120
    ones = kept[:, -1] == 1
    assert sorted(kept[ones, 0]) == numbers[label].tolist()
    # 20 rows stand for themselves, 100 for 4980 of weight 2; 120 rows for 5000
    assert kept[ones, 1] == pytest.approx(120 / 5000) and kept[~ones, 1] == pytest.approx(
        2 * 49.8 * 120 / 5000
    )
    drawn = sample.draw(20_000, generator)
    assert set(map(tuple, drawn)) <= set(map(tuple, kept))
    assert (drawn[:, -1] * drawn[:, 1]).sum() / drawn[:, 1].sum() == pytest.approx(20 / 9980, rel=0.15)


def test_a_classifier_without_its_library_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(MissingLibraryError, match=r"Run pip install 'freshet-graph\[baselines\]'"):
        boosted()
