"""Figures of labels in the continual run: windows by event time, calibration, stopped events, propensities."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_trainers import EVENT_MODEL, config_for, lines, run, trainer_for
from trainer_streams import SECOND, make_lane

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.scoring.calibration import Calibration, sigmoid
from freshet_graph.trainer.scoring.label_figures import (
    DAY_US,
    brier,
    expected_calibration_error,
    label_rankings,
    precision_at_k,
    recall_at_budget,
)
from freshet_graph.trainer.tasks.edge_classification import BOOSTED, LEARNING, SCORERS, LabelScores

DAYS, A_DAY = 8, 60
HALF_DAY_S = DAY_US // 2 // SECOND
STOPPED, PROPENSITY = 1, 2
OPTIONS = {
    "first": 40,
    "delay_s": HALF_DAY_S,
    "precision_k": 5,
    "review_budget": 10.0,
    "window_s": 3 * 86_400,
}


def payments(*, flipped_from: int | None = None, silent: bool = False) -> pa.Table:
    """Cards below 10 of 30 are frauds, mostly. Features: amount, stopped (a fifth), propensity.

    ``flipped_from``: from that day on labels are the other way round. ``silent``: only frauds that were not stopped have labels.
    """
    rng = np.random.default_rng(3)
    count = DAYS * A_DAY
    t = np.sort(rng.choice(DAYS * 86_400, count, replace=False)) * SECOND
    src, dst = rng.integers(0, 30, count), rng.integers(100, 110, count)
    label = (src < 10) ^ (rng.random(count) < 0.1)
    stopped = rng.random(count) < 0.2
    propensity = np.where(label, 0.5, rng.choice([0.25, 1.0, 0.0], count))
    amount = rng.lognormal(size=count)
    if flipped_from is not None:
        label ^= t >= flipped_from * DAY_US
    rows = {
        "op": np.ones(count, np.int8), "src": src, "dst": dst, "t": t, "weight": np.ones(count),
        "features": np.column_stack([amount, stopped, propensity]).astype(np.float32).tolist(),
        "label": pa.array(label.astype(np.int32), mask=(stopped | ~label) if silent else None),
    }  # fmt: skip
    columns = {name: rows.get(name, [None] * count) for name in event_schema("int").names}
    return pa.table(columns, schema=event_schema("int"))


def config_in(folder: Path, name: str, **params: object) -> TrainerConfig:
    chosen = {**EVENT_MODEL, "task_params": {**OPTIONS, **params}}
    return config_for(folder, checkpoint=str(folder / name), task="edge-classification", **chosen)


def judged_by(trainer: Trainer) -> list[LabelScores]:
    """Step through all snapshots; the label scores of each."""
    task, scores = trainer.session.task, []
    evaluate = task.evaluate
    task.evaluate = lambda *args: scores.append(evaluate(*args)) or scores[-1]
    for manifest in trainer.lane.manifests:
        trainer.step(manifest)
    return scores


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_lane(tmp_path / "store", events=payments(), interval_us=DAY_US // 4)
    return tmp_path


def test_a_run_with_all_options_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=payments(silent=True), interval_us=DAY_US // 4)
    every = {
        "calibrate": True, "positive_weight": 3.0, "decision": STOPPED, "propensity": PROPENSITY, "window_s": 8 * 86_400,
        "negative_after_s": 86_400,
    }  # fmt: skip
    straight, broken = (config_in(tmp_path, name, **every) for name in ("straight", "broken"))
    run(straight)
    for end in (5, 13, 14, None):
        run(broken, snapshots=end)
    ours, theirs = lines(straight), lines(broken)
    for line in (*ours, *theirs):
        del line["lag"]
    assert theirs == ours
    assert sum(line["excluded"]["stopped"] for line in ours) > 30
    for metric in ("auroc", "average_precision", "precision_at_k", "recall_at_budget"):
        for scorer in (one for one in SCORERS if one not in BOOSTED):
            assert ("" if scorer == "model" else f"{scorer}_") + f"window_{metric}" in ours[-1]
    for metric in ("base_rate", "brier", "expected_calibration_error", "precision_at_k_ceiling"):
        assert f"window_{metric}" in ours[-1]
    assert "random_window_days" not in ours[-1]


def test_the_window_is_of_all_events_judged_up_to_its_end_by_the_time_of_the_events(store: Path) -> None:
    config = config_in(store, "checkpoints", propensity=PROPENSITY)
    scores = judged_by(trainer_for(config))
    judged = [one for one in scores if len(one.label)]
    columns = ("scores", "probabilities", "label", "src", "time_us", "weight")
    score, probability, label, src, time_us, weight = (
        np.concatenate([getattr(one, name) for one in judged]) for name in columns
    )
    said = ~np.isnan(score[:, 0])
    assert 0 < (~said).sum() < 200
    line = lines(config)[-1]
    until_us = round(line["labels"]["judged_until"] * SECOND)
    assert time_us.max() <= until_us
    here = said & (time_us > until_us - 3 * DAY_US)
    day = time_us // DAY_US
    whole = here & (day * DAY_US > until_us - 3 * DAY_US) & ((day + 1) * DAY_US - 1 <= until_us)
    assert line["window_days"] == len(np.unique(day[whole])) == 2
    first_us = time_us[said].min()
    for earlier in lines(config):
        last = math.floor((earlier["labels"]["judged_until"] * SECOND + 1) / DAY_US)
        assert earlier.get("window_days", 0) <= max(
            0, last - math.ceil(first_us / DAY_US)
        )  # none of half its events
    for column, scorer in enumerate(SCORERS):
        if scorer in BOOSTED:
            continue  # not asked for
        prefix = "window_" if scorer == "model" else f"{scorer}_window_"
        expected = label_rankings(score[here, column], label[here], weight[here])
        cards = precision_at_k(score[whole, column], label[whole], src[whole], day[whole], 5)
        recall = recall_at_budget(score[whole, column], label[whole], day[whole], 10, weight[whole])
        assert cards is not None and recall is not None
        expected |= {"precision_at_k": cards.value, "recall_at_budget": recall.value}
        if scorer == "model":
            expected |= {"precision_at_k_ceiling": cards.ceiling, "recall_at_budget_ceiling": recall.ceiling}
        else:
            del expected["base_rate"]
        if column < len(LEARNING):
            of_label = (probability[here, column], label[here], weight[here])
            expected |= {
                "brier": brier(*of_label), "expected_calibration_error": expected_calibration_error(*of_label)
            }  # fmt: skip
        found = {key.removeprefix(prefix): line[key] for key in line if key.startswith(prefix)}
        assert {name: found.get(name) for name in expected} == pytest.approx(expected), scorer
    assert set(weight.tolist()) == {1.0, 2.0, 4.0}  # a propensity of 0 says nothing
    assert np.array_equal(probability[said], sigmoid(score[said][:, : len(LEARNING)]))


def test_the_figures_of_a_snapshot_are_of_the_events_judged_in_it(store: Path) -> None:
    config = config_in(store, "checkpoints", propensity=PROPENSITY)
    scores = judged_by(trainer_for(config))
    for one, line in zip(scores, lines(config), strict=True):
        said = ~np.isnan(one.scores[:, 0])
        if said.any():
            expected = label_rankings(one.scores[said, 0], one.label[said], one.weight[said])
            expected["brier"] = brier(one.probabilities[said, 0], one.label[said], one.weight[said])
            assert {name: line.get(name) for name in expected} == expected
    assert sum("auroc" in line for line in lines(config)) > 10


def test_a_probability_is_that_of_the_calibration_when_the_event_was_scored(store: Path) -> None:
    """A twin learns what was judged in a snapshot, with its weights, before it says anything of the next one."""
    trainer = trainer_for(config_in(store, "checkpoints", calibrate=True, propensity=PROPENSITY))
    scores = judged_by(trainer)
    twin, slopes = Calibration(), []
    for one in scores:
        slopes.append((twin.slope, twin.intercept))
        twin.learn(one.scores[:, 0], one.label, one.weight)
    checked = 0
    for one in scores:
        for score, probability, t in zip(one.scores[:, 0], one.probabilities[:, 0], one.time_us, strict=True):
            slope, intercept = slopes[t // (DAY_US // 4)]
            if not math.isnan(score):
                assert probability == pytest.approx(sigmoid(np.array(slope * score + intercept)), rel=1e-12)
                checked += slope != 1
    assert checked > 200


def test_later_labels_change_no_earlier_figure(tmp_path: Path) -> None:
    found = []
    for name, flipped in (("ours", None), ("theirs", 5)):
        make_lane(tmp_path / name / "store", events=payments(flipped_from=flipped), interval_us=DAY_US // 4)
        config = config_in(tmp_path / name, "checkpoints", calibrate=True)
        run(config)
        found.append(lines(config))
    ours, theirs = found
    first = 4 * 5 + 2  # labels are half a day late
    assert ours[:first] == theirs[:first]
    assert ours[first] != theirs[first]


def test_class_weights_and_their_correction_leave_probabilities_of_the_base_rate(store: Path) -> None:
    means = {}
    for weight in (1.0, 50.0):
        scores = judged_by(trainer_for(config_in(store, f"checkpoints-{weight}", positive_weight=weight)))
        means[weight] = np.concatenate([one.scores[:, 0] for one in scores[-10:]]).mean()
    assert means[50.0] != means[1.0]
    assert abs(means[50.0] - means[1.0]) < math.log(50) / 2  # the whole of it without the correction


def test_payments_that_were_stopped_are_no_negatives(tmp_path: Path) -> None:
    """Frauds that were not stopped have labels, a payment without one counts as good after a day; unless it was stopped."""
    make_lane(tmp_path / "store", events=payments(silent=True), interval_us=DAY_US // 4)
    told, found = payments(), {}
    times = told["t"].to_numpy()
    true = dict(zip(times.tolist(), told["label"].to_pylist(), strict=True))
    stopped = dict(
        zip(times.tolist(), [bool(row[STOPPED]) for row in told["features"].to_pylist()], strict=True)
    )
    for name, decision in (("with", STOPPED), ("without", None)):
        config = config_in(tmp_path, name, negative_after_s=86_400, decision=decision)
        scores = judged_by(trainer_for(config))
        time_us, label = (
            np.concatenate([getattr(one, key) for one in scores]) for key in ("time_us", "label")
        )
        found[name] = {
            t: (y, true[t], stopped[t]) for t, y in zip(time_us.tolist(), label.tolist(), strict=True)
        }
        excluded = sum(line["excluded"]["stopped"] for line in lines(config))
        due = times < DAYS * DAY_US - DAY_US
        assert excluded == (sum(stopped[t] for t in times[due].tolist()) if name == "with" else 0)
    assert all(y == truth and not was_stopped for y, truth, was_stopped in found["with"].values())
    wrong = [t for t, (y, truth, _) in found["without"].items() if y != truth]
    assert len(wrong) > 10 and all(stopped[t] for t in wrong)
    assert found["with"].keys() == {t for t in found["without"] if not stopped[t]}


def test_what_is_known_after_the_score_is_no_input(tmp_path: Path) -> None:
    """Decisions and propensities of the last day change no score of that day, neither of classifiers nor of baselines."""
    found = []
    for factor in (1.0, 3.0):
        events = payments()
        t = events["t"].to_numpy()
        features = np.array(events["features"].to_pylist(), np.float32)
        features[t >= (DAYS - 1) * DAY_US + DAY_US // 4 * 3, 1:] *= factor
        place = events.schema.get_field_index("features")
        column = pa.array(features.tolist(), events.schema.field("features").type)
        folder = tmp_path / str(factor)
        make_lane(
            folder / "store", events=events.set_column(place, "features", column), interval_us=DAY_US // 4
        )
        config = config_in(folder, "checkpoints", decision=STOPPED, propensity=PROPENSITY, delay_s=0)
        found.append(judged_by(trainer_for(config))[-1].scores)
    fitted = [scorer not in BOOSTED for scorer in SCORERS]
    assert np.array_equal(found[0][:, fitted], found[1][:, fitted])
    assert not np.isnan(found[0][:, fitted]).any()


def test_drift_is_watched_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts are in another unit from the fifth day on; days four and five are compared with the two before."""
    monkeypatch.setattr("freshet_graph.trainer.labels.stability._FEWEST", 50)
    events = payments()
    features = np.array(events["features"].to_pylist(), np.float32)
    features[events["t"].to_numpy() >= 5 * DAY_US, 0] *= 100
    place = events.schema.get_field_index("features")
    column = pa.array(features.tolist(), events.schema.field("features").type)
    make_lane(
        tmp_path / "store", events=events.set_column(place, "features", column), interval_us=DAY_US // 4
    )
    config = config_in(tmp_path, "checkpoints", window_s=2 * 86_400, decision=STOPPED)
    run(config)
    found = [line["labels"]["psi"] for line in lines(config)]
    assert found[15] == {}
    every = {"score", "surprise", "label_share", "weight", "feature_0", "feature_1", "feature_2"}
    assert every - {"score"} <= found[17].keys() <= found[-1].keys() == every
    assert found[19]["feature_0"] < 0.7 < 2 < found[26]["feature_0"]  # of a hundred events each
    for name in ("weight", "feature_1", "feature_2"):
        assert found[26][name] < 0.25


@pytest.mark.parametrize("key", ["decision", "propensity"])
def test_a_feature_that_events_do_not_have_is_refused_by_its_key(store: Path, key: str) -> None:
    with pytest.raises(Failure, match=f"key task_params: {key} is feature 3, but events have 3 features"):
        run(config_in(store, "checkpoints", **{key: 3}))


def test_sources_keep_their_numbers_when_nodes_are_forgotten(store: Path) -> None:
    few = config_in(store, "few").model_copy(
        update={"budget": TrainerConfig.model_validate({"budget": {"nodes": 25}}).budget}
    )
    trainer = trainer_for(few)
    every, forgetful = judged_by(trainer_for(config_in(store, "every"))), judged_by(trainer)
    t, src = (np.concatenate([getattr(one, name) for one in forgetful]) for name in ("time_us", "src"))
    window = trainer.session.task._window.counted()
    by_time = dict(zip(t.tolist(), src.tolist(), strict=True))
    assert window.source.tolist() == [by_time[one] for one in window.t_us.tolist()]
    source_of = {
        t: src for one in every for t, src in zip(one.time_us.tolist(), one.src.tolist(), strict=True)
    }
    true = [source_of[one] for one in t.tolist()]
    pairs = set(zip(true, src.tolist(), strict=True))
    assert len(pairs) > len(set(true))  # some came again as new nodes
    assert len({number for _, number in pairs}) == len(pairs)  # and no number is of two sources
