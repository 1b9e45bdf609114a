"""Edge classification: no label and no later event is seen before it is judged."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from structlog.testing import capture_logs

from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.evaluation.classification import LabelledEvents, activity, classify
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import auroc
from freshet_graph.trainer.tasks.edge_classification import Classifier

EVENTS = 1200


def stream(label: np.ndarray | None, *, moved: int | None = None) -> pa.Table:
    """Users of two groups, whose events have other weights; ``moved``: from that event on other weights."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, 20, EVENTS)
    weight = np.where(users < 10, 20.0, -20.0)
    if moved is not None:
        weight[moved:] = 0.5
    columns = {
        "src": users,
        "dst": 20 + rng.integers(0, 5, EVENTS),
        "t": np.arange(EVENTS) * 10,
        "weight": weight.astype(np.float32),
    }
    if label is not None:
        columns["label"] = label
    return pa.table(columns)


def labels() -> np.ndarray:
    """Users of one group are labelled, mostly."""
    rng = np.random.default_rng(1)
    users = stream(None)["src"].to_numpy()
    return ((users < 10) ^ (rng.random(EVENTS) < 0.1)).astype(np.int32)


def judged(folder: Path, table: pa.Table, **more: object) -> dict:
    return judged_and_told(folder, table, **more)[0]


def judged_and_told(folder: Path, table: pa.Table, **more: object) -> tuple[dict, list]:
    """The result of an evaluation, and its log."""
    pq.write_table(table, folder / "events.parquet")
    values = {
        "lane": "hash",
        "model": "tgn",
        "strategy": "sequential",
        "task": "edge-classification",
        "model_params": {"memory": 8, "time_width": 8},
        "optimisation": Optimisation(epochs=1, batch_size=50, learning_rate=0.01),
        "task_params": {"epochs": 10, "batch_size": 50, "learning_rate": 0.01},
        "interval_s": 2000.0,
        **more,
    }
    with capture_logs() as logs:
        found = evaluate(
            TrainerConfig.model_validate(values),
            folder / "events.parquet",
            Ranks(),
            shares=(0.5, 0.2, 0.3),
            seeds=1,
        )
    assert found is not None
    return found, list(logs)


def test_labels_that_follow_from_the_past_are_found_and_no_label_is_an_input(tmp_path: Path) -> None:
    known = judged(tmp_path, stream(labels()))
    assert known["auroc"] > 0.75
    assert {"validation_auroc", "random_auroc", "activity_auroc"} <= known.keys()
    assert "cautions" not in known
    test = stream(None)["t"].to_numpy() > np.quantile(np.arange(EVENTS) * 10, 0.7)
    flipped = judged(tmp_path, stream(np.where(test, 1 - labels(), labels())))
    # Neither the model nor the classifier knew: what they rank is the same, what is right is the contrary.
    assert flipped["runs"][0]["validation_ap"] == known["runs"][0]["validation_ap"]
    assert flipped["validation_auroc"] == known["validation_auroc"]
    assert flipped["auroc"] == pytest.approx(1 - known["auroc"])


def test_what_comes_later_changes_nothing_before(tmp_path: Path) -> None:
    border = int(EVENTS * 0.7) + 1
    one, other = judged(tmp_path, stream(labels())), judged(tmp_path, stream(labels(), moved=border))
    assert one["validation_auroc"] == other["validation_auroc"]
    assert one["auroc"] != other["auroc"]


def test_an_auroc_of_few_positives_carries_a_caution(tmp_path: Path) -> None:
    few = labels()
    few[np.flatnonzero(few & (np.arange(EVENTS) > EVENTS * 0.7))[3:]] = 0
    found, logs = judged_and_told(tmp_path, stream(few))
    caution = {"figures": ["auroc", "random_auroc", "activity_auroc"], "label": 1, "events": 3}
    assert found["cautions"] == [caution]
    (told,) = (line for line in logs if "AUROC" in line["event"])
    assert told["log_level"] == "warning"
    assert told.items() >= caution.items()


def test_what_cannot_be_classified_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="needs labels, and no event has one"):
        judged(tmp_path, stream(None))
    with pytest.raises(Failure, match="knows labels 0 and 1, found 2"):
        judged(tmp_path, stream(labels() * 2))
    with pytest.raises(Failure, match="knows labels 0 and 1, found -5"):
        judged(tmp_path, stream(labels() * -5))
    with pytest.raises(Failure, match="knows labels 0 and 1, found -1"):
        judged(tmp_path, stream(-labels()))
    late = np.where(np.arange(EVENTS) < EVENTS * 0.6, 0, labels())
    with pytest.raises(Failure, match=r"among the training events, found 0 of 1 and \d+ of 0"):
        judged(tmp_path, stream(late))
    with pytest.raises(Failure, match=r"among the test events, found 0 of 1 and \d+ of 0"):
        judged(tmp_path, stream(np.where(late, 0, labels())))


def test_what_vertex_embeds_is_judged_too(tmp_path: Path) -> None:
    small = {"hidden": 8, "signature": 8}
    found = judged(
        tmp_path, stream(labels()), model="sage-linear", strategy="vertex", lane="hash", model_params=small
    )
    assert {"auroc", "validation_auroc", "random_auroc", "activity_auroc"} <= found.keys()


def labelled(label: np.ndarray) -> LabelledEvents:
    count = len(label)
    encounters = torch.zeros(count, len(Encounter))
    encounters[:, Encounter.SRC_OUT_COUNT] = torch.arange(count)
    z = torch.from_numpy(np.stack([label + 0.0, 1.0 - label], axis=1)).float()
    return LabelledEvents([z], encounters, label, *[np.arange(count)] * 3)


def test_a_figure_of_one_kind_of_labels_is_absent() -> None:
    label = np.array([0, 1] * 20 + [0] * 10 + [0, 1] * 5)
    settings = Classifier(epochs=30, batch_size=5, learning_rate=0.01)
    figures, scores = classify(labelled(label), 0, Split(39, 49), settings, history=False, seed=0)
    assert figures == {"auroc": 1.0}  # embeddings that tell, and no positive to pick by
    assert auroc(scores, label, np.arange(60) > 49) == 1.0
    assert activity(labelled(label)).tolist() == (-np.arange(60.0)).tolist()
    assert auroc(np.full(60, np.nan), label, np.arange(60) > 0) is None
