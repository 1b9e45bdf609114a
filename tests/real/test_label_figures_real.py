"""Figures of labels on real payments: those that the handbook's protocol is known to have."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from real_data import real_file

from freshet_graph.trainer.scoring.label_figures import label_rankings, precision_at_k, recall_at_budget

pytestmark = pytest.mark.real

DELAY, TRAINED, TESTED = 7, range(115, 122), range(129, 136)
"""Days until a label is known; days of the training week and of the test week."""


@pytest.fixture(scope="module")
def payments() -> dict[str, np.ndarray]:
    """Columns of all payments, ``day``, and the test's rows: those of cards that no known fraud has stopped."""
    table = pq.read_table(real_file("handbook_payments.parquet"))
    columns = {name: table[name].to_numpy().astype(np.int64) for name in ("src", "dst", "t", "label")}
    columns |= {"amount": table["amount"].to_numpy().astype(np.float64), "day": columns["t"] // 86_400}
    src, day, fraud = columns["src"], columns["day"], columns["label"] == 1
    stopped, rows = np.unique(src[fraud & np.isin(day, TRAINED)]), []
    for number in TESTED:
        if number > TESTED[0]:
            stopped = np.union1d(stopped, src[fraud & (day == number - DELAY - 1)])
        rows.append(np.flatnonzero((day == number) & ~np.isin(src, stopped)))
    return columns | {"test": np.concatenate(rows)}


def delayed_share(payments: dict[str, np.ndarray], days: int) -> np.ndarray:
    """Each payment's share of frauds among its terminal's payments in the days before the delay; 0 without any."""
    dst, t, span = payments["dst"], payments["t"], np.int64(1) << 32
    order = np.lexsort((t, dst))
    keys, frauds = dst[order] * span + t[order], np.append(0, np.cumsum(payments["label"][order]))
    ends, begins = (
        np.searchsorted(keys, dst * span + np.maximum(t - back * 86_400, -1), side="right")
        for back in (DELAY, DELAY + days)
    )
    return (frauds[ends] - frauds[begins]) / np.maximum(ends - begins, 1)


def test_the_handbooks_week_has_its_figures(payments: dict[str, np.ndarray]) -> None:
    test = payments["test"]
    label, source, day = (payments[name][test] for name in ("label", "src", "day"))
    scorers = {
        "share": delayed_share(payments, 7)[test],
        "amount": payments["amount"][test],
        "perfect": label.astype(np.float64),
        "none": np.zeros(len(test)),
    }
    ap = {name: label_rankings(score, label)["average_precision"] for name, score in scorers.items()}
    assert ap["share"] == pytest.approx(0.325, abs=0.0005)
    assert ap["none"] == pytest.approx(label.mean())
    assert ap["none"] < ap["amount"] < ap["share"] < ap["perfect"] == 1
    cards = {name: precision_at_k(score, label, source, day, 100) for name, score in scorers.items()}
    (ceiling,) = {figure.ceiling for figure in cards.values()}
    assert ceiling == pytest.approx(0.397, abs=0.0005)
    assert {figure.days for figure in cards.values()} == {7}
    value = {name: figure.value for name, figure in cards.items()}
    assert value["none"] < value["amount"] < value["share"] < 0.291, "below the published models"
    assert value["perfect"] == cards["perfect"].ceiling
    recall = {name: recall_at_budget(score, label, day, 100) for name, score in scorers.items()}
    assert recall["amount"].value < recall["share"].value < recall["perfect"].value == 1


def test_a_review_that_does_not_leave_out_found_cards_has_a_higher_ceiling(
    payments: dict[str, np.ndarray],
) -> None:
    test = payments["test"]
    score = delayed_share(payments, 7)[test]
    label, source, day = (payments[name][test] for name in ("label", "src", "day"))
    every, fresh = (
        precision_at_k(score, label, source, day, 100, leave_found=leave_found)
        for leave_found in (False, True)
    )
    cards_per_day = [len(np.unique(source[(day == number) & (label == 1)])) for number in TESTED]
    assert every.ceiling == pytest.approx(np.mean(cards_per_day) / 100)
    assert fresh.ceiling < every.ceiling
    assert fresh.value < every.value
