"""Baselines know as much as the model beside them: as of its snapshot, its batch, or the event itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from offline_protocol import config_for
from structlog.testing import capture_logs

from freshet_graph.trainer.data.history import BATCH
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.scoring.metrics import batched_figures

SMALL = {"model_params": {"memory": 8, "time_width": 8}}
BESIDE: dict[str, dict[str, Any]] = {
    "snapshot": {"model": "dysat", "strategy": "whole", "model_params": {"hidden": 16, "encounters": False}},
    "batch of a snapshot": {"model": "dysat", "strategy": "whole", "model_params": {"hidden": 16}},
    "event in a snapshot": {
        "model": "dysat", "strategy": "whole", "model_params": {"hidden": 16}, "history_moment": "event",
    },
    "batch": {"model": "tgn-history", "strategy": "sequential", **SMALL},
    "event": {"model": "tgn-history", "strategy": "sequential", "history_moment": "event", **SMALL},
    "batch without encounters": {
        "model": "tgn", "strategy": "sequential", "history_moment": "event", **SMALL,
    },
    "event without a memory": {
        "model": "graphmixer", "strategy": "sequential", "history_moment": "event",
        "model_params": {"hidden": 8, "time_width": 8},
    },
}  # fmt: skip
"""A configuration by the moment of its baselines."""

SHARES = (0.7, 0.15, 0.15)


def loyal(events: int, users: int = 20) -> pa.Table:
    """Users who mostly meet their last partner again; a tenth of the events have the time of the event before."""
    rng = np.random.default_rng(events)
    t = 1_700_000_000 + 60 * np.arange(events)
    t = np.where(rng.random(events) < 0.1, t - 60, t)
    src, last = rng.integers(0, users, events), 1000 + np.arange(users)
    dst = np.empty(events, np.int64)
    for row, user in enumerate(src.tolist()):
        last[user] = last[user] if rng.random() < 0.8 else 1000 + rng.integers(users)
        dst[row] = last[user]
    return pa.table({"src": src, "dst": dst, "t": np.maximum.accumulate(t)})


def last_met(src: np.ndarray, dst: np.ndarray, t: np.ndarray, u: int, v: int, now: int) -> float:
    """The later u met v, the higher; below that, the later anybody met v."""
    pair, any_met = np.flatnonzero((src == u) & (dst == v)), np.flatnonzero(dst == v)
    if len(pair):
        return float(t[pair[-1]] - now)
    return -1e12 + float(t[any_met[-1]] - now) if len(any_met) else -np.inf


def lately_and_often_met(src: np.ndarray, dst: np.ndarray, t: np.ndarray, u: int, v: int, now: int) -> float:
    """The later u met v and the more often anybody did, the higher; below that, the later and the more often anybody did."""
    pair, any_met = np.flatnonzero((src == u) & (dst == v)), np.flatnonzero(dst == v)
    if len(pair):
        return float(len(any_met) / (now - t[pair[-1]]))
    return -float((now - t[any_met[-1]]) / len(any_met)) if len(any_met) else -np.inf


RULES = {"recency_ap": last_met, "recency_popularity_ap": lately_and_often_met}


def oracle(
    rule: Callable[..., float], moment: str, data: pa.Table, negatives: pa.Table, interval_s: float
) -> float:
    """AP of a rule, by a plain scan of all that was before the moment."""
    src, dst, t = (data[name].to_numpy() for name in ("src", "dst", "t"))
    borders = np.quantile(t, np.cumsum(SHARES[:2])).tolist()
    first = {int(np.count_nonzero(t <= border)) for border in borders} | {0}
    if "snapshot" in moment:
        first |= {int(np.searchsorted(t, at * interval_s)) for at in np.unique(t // interval_s)}
    begins = sorted(first)
    test = negatives.filter(pa.array([part == "test" for part in negatives["part"].to_pylist()]))
    positive, negative = [], []
    for number, other in zip(test["event"].to_pylist(), test["random"].to_pylist(), strict=True):
        if "event" in moment:
            until = t[number]
        elif moment == "snapshot":
            until = t[number] // interval_s * interval_s
        else:
            begin = max(each for each in begins if each <= number)
            until = t[begin + (number - begin) // BATCH * BATCH]
        known = int(np.searchsorted(t, until))
        past = src[:known], dst[:known], t[:known]
        positive.append(rule(*past, src[number], dst[number], t[number]))
        negative.append(rule(*past, src[number], other, t[number]))
    return batched_figures(np.array(positive), np.array(negative))["ap"]


def evaluated(data: pa.Table, folder: Path, **more: Any) -> tuple[dict[str, Any], pa.Table]:
    pq.write_table(data, folder / "data.parquet")
    negatives = str(folder / "negatives.parquet")
    with capture_logs():
        found = evaluate(config_for(**more), folder / "data.parquet", shares=SHARES, negatives=negatives)
    assert found is not None
    return found, pq.read_table(negatives)


@pytest.mark.parametrize("moment", BESIDE)
@pytest.mark.parametrize(("events", "interval_s"), [(150, 1_800.0), (1_900, 20_000.0)])
def test_recency_and_popularity_equal_an_oracle_as_of_the_models_moment(
    events: int, interval_s: float, moment: str, tmp_path: Path
) -> None:
    data = loyal(events)
    found, negatives = evaluated(data, tmp_path, interval_s=interval_s, **BESIDE[moment])
    for name, rule in RULES.items():
        assert found[name] == pytest.approx(oracle(rule, moment, data, negatives, interval_s), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("moment", BESIDE)
def test_recency_and_popularity_equal_an_oracle_on_many_events(moment: str, tmp_path: Path) -> None:
    data = loyal(20_000, users=300)
    found, negatives = evaluated(data, tmp_path, interval_s=20_000.0, **BESIDE[moment])
    for name, rule in RULES.items():
        assert found[name] == pytest.approx(oracle(rule, moment, data, negatives, 20_000.0), abs=1e-9)


def test_a_file_of_one_batch_has_baselines_that_know_its_training_part(tmp_path: Path) -> None:
    """Ten users who always meet the same partner: whoever knows the training part knows the test."""
    u = np.arange(150) % 10
    data = pa.table({"src": u, "dst": 1000 + u, "t": 1_700_000_000 + 60 * np.arange(150)})
    found, _ = evaluated(data, tmp_path, interval_s=1_800.0, **BESIDE["batch"])
    assert found["recency_ap"] == found["recency_popularity_ap"] == found["edgebank_ap"] == 1


SHIFTED: dict[str, dict[str, Any]] = {
    "sequential": BESIDE["batch"],
    "pac": {**BESIDE["batch"], "strategy": "pac", "lane": "sep"},
    **{
        strategy: {"model": model, "strategy": strategy, "model_params": {"hidden": 8}}
        for strategy, model in {"whole": "tgcn", "snapshot": "tmgcn", "group": "tgcn"}.items()
    },
    "hybrid": {
        "model": "tgcn", "strategy": "hybrid", "model_params": {"hidden": 8}, "strategy_params": {"steps": 4},
    },
    "vertex": {
        "model": "sage-linear", "strategy": "vertex", "model_params": {"hidden": 8, "fanouts": [1, 1]},
    },
}  # fmt: skip
"""A configuration by its strategy."""


@pytest.mark.parametrize("strategy", SHIFTED)
def test_times_shifted_by_whole_intervals_change_neither_negatives_nor_scores(
    strategy: str, tmp_path: Path
) -> None:
    data, results, files = loyal(300), [], []
    for name, shift in (("one", 0), ("two", 1_800 * 12_345)):
        (tmp_path / name).mkdir()
        t = pa.array(data["t"].to_numpy() - 1_700_000_000 // 1_800 * 1_800 + shift)
        shifted = data.set_column(2, "t", t)
        result, negatives = evaluated(shifted, tmp_path / name, interval_s=1_800.0, **SHIFTED[strategy])
        results.append({name: result[name] for name in ("ap", "auc", "mrr", "recency_ap", "random_ap")})
        files.append(negatives.drop_columns(["t"]))
    assert results[0] == results[1]
    assert files[0].equals(files[1])


def test_events_without_a_negative_are_counted_null_in_the_file_and_in_no_figure(tmp_path: Path) -> None:
    """In every hour all meet all, but for source 0, who meets one of two."""
    rows = [(u, 10 + v, 3_600 * hour) for hour in range(40) for u in range(1, 4) for v in range(2)]
    rows += [(0, 10 + hour % 2, 3_600 * hour) for hour in range(40)]
    src, dst, t = (np.array(column) for column in zip(*sorted(rows, key=lambda row: row[2]), strict=True))
    data = pa.table({"src": src, "dst": dst, "t": t})
    for _ in range(2):  # the file is made, then read
        found, negatives = evaluated(data, tmp_path, interval_s=3_600.0, **BESIDE["batch"])
        assert negatives["random"].is_null().to_pylist() == [u != 0 for u in negatives["src"].to_pylist()]
        test = sum(part == "test" for part in negatives["part"].to_pylist())
        assert found["no_negative"]["test"] == test - test // 7
        assert found["no_negative"]["training"] == 28 * 6
        assert "ap" in found
