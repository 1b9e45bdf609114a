"""``evaluate`` tests the epoch that was best on the validation events: its weights, and the memory that goes with them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from offline_protocol import FIGURES, SHARES, config_for, write_events
from structlog.testing import capture_logs

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.evaluation.classification import LabelledEvents, classify
from freshet_graph.trainer.evaluation.evaluate import NONE, _Run, evaluate
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events.sequential import SequentialStrategy
from freshet_graph.trainer.tasks.edge_classification import Classifier

EPOCHS = 4
SNAPSHOT_MODEL = {"model": "sage-linear", "strategy": "vertex", "model_params": {}, "window": 3}


def judged(
    data: str, epochs: int, patience: int | None = None, **more: object
) -> tuple[dict, list[float | None]]:
    """The run of one seed, and the validation's average precision after each epoch."""
    optimisation = Optimisation(epochs=epochs, patience=patience, batch_size=50, learning_rate=0.05)
    with capture_logs() as logs:
        result = evaluate(
            config_for(optimisation=optimisation, **more), data, Ranks(), shares=SHARES, seeds=1
        )
    assert result is not None
    return result["runs"][0], [line.get("validation_ap") for line in logs if line["event"] == "epoch"]


@pytest.mark.parametrize(
    "more", [{}, {"strategy": "pac"}, SNAPSHOT_MODEL], ids=["sequential", "pac", "vertex"]
)
def test_the_best_epoch_is_tested_as_if_training_had_ended_with_it(
    more: dict[str, object], tmp_path: Path
) -> None:
    data = write_events(tmp_path / "events.parquet", seed=1)
    run, validation = judged(data, EPOCHS, **more)
    best = int(np.argmax(validation))
    assert 0 < best < EPOCHS - 1, "choose other data: the first or the last epoch is the best"
    assert run["best_epoch"] == best
    assert run["validation_ap"] == validation[best]
    ended, _ = judged(data, best + 1, **more)
    assert [run[name] for name in FIGURES] == [ended[name] for name in FIGURES]


@pytest.mark.parametrize(
    ("patience", "validation", "best"),
    [
        (2, [0.1, 0.5, 0.4, 0.5], 1),  # an equal figure is no better one
        (2, [0.1, 0.5, 0.4, 0.6, 0.5, 0.5], 3),
        (3, [0.1, 0.5, 0.4, 0.4, 0.6, 0.7], 5),
        (None, [0.5, 0.4, 0.4, 0.4, 0.4, 0.4], 0),
        (1, [NONE] * 6, 5),  # without a figure no epoch is better or worse
    ],
)
def test_training_ends_after_epochs_without_a_better_validation(
    patience: int | None,
    validation: list[float],
    best: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, scores = write_events(tmp_path / "events.parquet"), iter(validation)
    monkeypatch.setattr(_Run, "_agree", lambda run, figures: next(scores))
    run, shown = judged(data, 6, patience, **SNAPSHOT_MODEL)
    assert shown == [None if score == NONE else score for score in validation]
    assert (run["epochs"], run["best_epoch"]) == (len(validation), best)


def test_the_test_goes_on_with_the_memory_that_training_and_validation_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a single epoch nothing is to be gone back to: a replay through the weights of its end is another memory."""
    data = write_events(tmp_path / "events.parquet")
    run, _ = judged(data, 1)
    restore, calls = SequentialStrategy.restore, []

    def only_what_warming_up_changed(strategy: SequentialStrategy, state: dict[str, Any]) -> None:
        calls.append(1)
        if len(calls) == 1:
            restore(strategy, state)

    monkeypatch.setattr(SequentialStrategy, "restore", only_what_warming_up_changed)
    went_on, _ = judged(data, 1)
    assert len(calls) == 2
    assert [run[name] for name in FIGURES] == [went_on[name] for name in FIGURES]


def test_labels_are_judged_by_the_epoch_that_was_best_on_the_validation_events() -> None:
    rng = np.random.default_rng(0)
    events, known = 300, torch.from_numpy(rng.normal(size=(300, 4)).astype(np.float32))
    label = (known[:, 0].numpy() + rng.normal(size=events) > 0).astype(np.int64)
    labelled = LabelledEvents([known], torch.zeros(events, 8), label, *[np.arange(events)] * 3)
    found = [
        classify(
            labelled,
            0,
            Split(100.0, 200.0),
            Classifier(epochs=epochs, batch_size=20, learning_rate=0.003),
            history=False,
            seed=0,
        )[0]
        for epochs in range(1, 9)
    ]
    validation = [figures["validation_auroc"] for figures in found]
    assert validation == sorted(validation)
    assert 1 < len(set(validation)) < len(validation), "choose other data: each epoch is better than the last"
    for before, after in pairwise(found):
        assert before["validation_auroc"] < after["validation_auroc"] or before == after
