"""Labels that come later under evaluate: the scores of run to the bit, judged by the events of the test part."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from late_labels import EVENT, SNAPSHOT_MODEL, Learned, config_of, learn
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import label_schema
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.trainer.evaluation.details import Details
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.labels.waiting import Waiting
from freshet_graph.trainer.scoring.metrics import auroc, average_precision

SECOND = 1_000_000
EVENTS, SPAN_S = 300, 10.0

KINDS = pytest.mark.parametrize("kind", [SNAPSHOT_MODEL, EVENT], ids=["snapshot-model", "event-model"])


def events(own_share: float) -> pa.Table:
    """Ten seconds; sources of one half are frauds, mostly."""
    rng = np.random.default_rng(5)
    src = rng.integers(0, 20, EVENTS)
    label = ((src < 6) ^ (rng.random(EVENTS) < 0.1)).astype(np.int32)
    t = np.sort(rng.random(EVENTS)) * SPAN_S
    t[[0, -1]] = 0.0, SPAN_S
    return pa.table(
        {
            "src": src,
            "dst": rng.integers(20, 30, EVENTS),
            "t": t,
            "weight": rng.random(EVENTS).astype(np.float32) + 0.5,
            "event_id": [f"e{row}" for row in range(EVENTS)],
            "label": pa.array(label, mask=rng.random(EVENTS) >= own_share),
        }
    )


def topic(rows: pa.Table) -> pa.Table:
    """Labels of every other event, two seconds later; some are withdrawn by a source of a higher rank half a second after."""
    rng = np.random.default_rng(6)
    of = np.flatnonzero(rng.random(EVENTS) < 0.5)
    t_us = np.round((rows["t"].to_numpy()[of] + 2) * SECOND).astype(np.int64)
    label = (rows["src"].to_numpy()[of] < 6).astype(np.int32)
    again = rng.random(len(of)) < 0.2
    said = {
        "event_id": [f"e{row}" for row in [*of, *of[again]]],
        "node": pa.nulls(len(of) + again.sum(), pa.int64()),
        "label": np.concatenate([label, 1 - label[again]]),
        "t": np.concatenate([t_us, t_us[again] + SECOND // 2]),
        "commit": np.zeros(len(of) + again.sum(), np.int32),
        "source": pa.nulls(len(of) + again.sum(), pa.string()),
        "priority": np.concatenate([np.zeros(len(of), np.int32), np.ones(again.sum(), np.int32)]),
    }
    said["visible_us"] = said["t"]
    schema = label_schema("int")
    return pa.table({name: said[name] for name in schema.names}).cast(schema)


def stored(folder: Path, rows: pa.Table, labels: pa.Table | None) -> Path:
    pq.write_table(rows, folder / "events.parquet")
    lane = Lane(name="hash", algorithm="hash", parts=2)
    build_store(folder / "events.parquet", folder / "store", interval_us=SECOND, lanes=[lane], labels=labels)
    return folder / "store"


def judged(config: Any, data: Path, **more: Any) -> tuple[dict[str, Any], Learned]:
    """The result of an evaluation, and the scores of all events."""
    learned, scored = Learned(), Waiting.scored

    def record(waiting: Waiting, first: int, rows: Any, scores: Any, *rest: Any) -> None:
        scored(waiting, first, rows, scores, *rest)
        for place in range(len(scores)):
            learned.scores[first + place] = scores[place].tobytes(), rows[place].tobytes()

    keys = {"interval_s": 1.0, "parts": 2, "store": None}
    with patch.object(Waiting, "scored", record):
        result = evaluate(config.model_copy(update=keys), data, **more)
    assert result is not None
    return result, learned


@KINDS
@pytest.mark.parametrize("of_topic", [False, True], ids=["own-labels", "labels-of-a-topic"])
def test_scores_are_those_of_run_to_the_bit_and_figures_are_of_the_test_by_its_own_times(
    kind: dict[str, Any], of_topic: bool, tmp_path: Path
) -> None:
    rows = events(0.0 if of_topic else 0.8)
    store = stored(tmp_path, rows, topic(rows) if of_topic else None)
    delay = {} if of_topic else {"delay_s": 2.0}
    params = {"first": 30, **delay, **({"messages": True} if kind is EVENT else {})}
    config = config_of(tmp_path, "run", "store", task="edge-classification", task_params=params, **kind)
    run = learn(config, None, ())
    scores = tmp_path / "scores.parquet"
    details = Details(scores_out=scores, per_snapshot=tmp_path / "snapshots.parquet")
    data = store if of_topic else tmp_path / "events.parquet"
    result, evaluated = judged(config, data, details=details)
    assert len(run.scores) == EVENTS
    assert evaluated.scores == run.scores

    written = pq.read_table(scores)
    number, score, label = (written[name].to_numpy() for name in ("event", "score", "label"))
    t = rows["t"].to_numpy()
    of_test = t > np.quantile(t, 0.85)
    given = rows["label"].is_valid().to_numpy()
    if of_topic:
        labels = topic(rows)
        first = {one["event_id"]: one["label"] for one in reversed(labels.to_pylist())}
        expected = {row: first[f"e{row}"] for row in np.flatnonzero(of_test) if f"e{row}" in first}
    else:
        expected = {row: rows["label"][int(row)].as_py() for row in np.flatnonzero(of_test & given)}
    assert t[-1] in t[number], "it is judged after the last event, too"
    assert dict(zip(number.tolist(), label.tolist(), strict=True)) == expected
    for row, said in zip(number.tolist(), score.tolist(), strict=True):
        assert np.frombuffer(run.scores[row][0])[0] == said
    assert result["judged"] == len(expected)
    assert result["auroc"] == auroc(score, label, np.ones(len(label), np.bool_))
    assert result["ap"] == average_precision(score[label == 1], score[label == 0])
    assert result["baselines"]["label_rate"]["ap"] == result["label_share_ap"]
    assert result["baselines"]["base_rate"] == {"auroc": 0.5, "ap": label.mean()}
    assert set(result["baselines"]) >= {"activity", "degrees", "surprise", "amount", "random_weights"}
    by_snapshot = pq.read_table(tmp_path / "snapshots.parquet")
    assert sum(by_snapshot["scored"].to_pylist()) == len(expected)


def test_the_flag_makes_labels_of_a_file_late_and_needs_no_epochs(tmp_path: Path) -> None:
    pq.write_table(events(0.8), tmp_path / "events.parquet")
    small = {"model": "sage-linear", "strategy": "vertex", "model_params": {"hidden": 8, "signature": 8}}
    config = write(tmp_path, **small, task="edge-classification", interval_s=1.0, task_params={"first": 30})
    asked = ["evaluate", "--config", config, "--data", str(tmp_path / "events.parquet")]
    code, result, error = invoke(*asked, "--label-delay", "1.5", "--seeds", "2")
    assert code == 0, error
    assert {"auroc", "ap", "auroc_spread", "baselines", "random_ap"} <= result.keys()
    assert not {"validation_auroc", "edgebank_ap", "mrr"} & result.keys()
    code, by_epochs, error = invoke(*asked)
    assert code == 0, error
    assert "validation_auroc" in by_epochs["runs"][0]
    for option in (["--masked-nodes", "0.1"], ["--negatives", str(tmp_path / "n.parquet")]):
        code, _, error = invoke(*asked, "--label-delay", "1.5", *option)
        assert code == 1
        assert f"{option[0]} does not go with labels that come later" in error
    code, _, error = invoke(
        "evaluate", "--config", write(tmp_path, **small), "--data", str(tmp_path / "events.parquet"),
        "--label-delay", "1",
    )  # fmt: skip
    assert code == 1
    assert "--label-delay is about labels of events, but the task is link-prediction" in error
