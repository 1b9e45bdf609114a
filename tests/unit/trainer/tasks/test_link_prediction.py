"""ESDG's protocol of link prediction: a share of the events as samples, and one layer over both embeddings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_sessions import examples_of, session_on
from trainer_streams import make_lane

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.scoring.predictions import Predictions

A_TENTH = {"sample": 0.1}


def test_a_share_of_the_events_is_learned_and_all_are_judged(tmp_path: Path) -> None:
    lane = make_lane(tmp_path)
    found: dict[tuple[int, int], Any] = {}
    for seed in (0, 1):
        for epoch in (0, 1):
            session = session_on(lane, "whole", "tgcn", task_params=A_TENTH, seed=seed)
            for manifest in lane.manifests[:2]:
                session.advance(manifest)
                examples = session.task.examples(session.view, session.strategy, epoch=epoch)
            found[seed, epoch] = examples
            assert len(examples.positive) == examples.items > 50
            assert len(examples) == len(examples.training) == int(np.ceil(0.1 * examples.items))
            assert examples.learned.event.tolist() == examples.training.event.tolist()
            gaps = np.diff(examples.learned.event)
            assert gaps.min() >= 1
            assert gaps.max() <= 20, "evenly over the snapshot"
    learned = {key: examples.learned.event.tolist() for key, examples in found.items()}
    assert learned[0, 0] == learned[0, 1], "the same samples in every epoch"
    assert learned[0, 0] != learned[1, 0]
    assert found[0, 0].training.dst.tolist() != found[0, 1].training.dst.tolist()


def test_the_linear_decoder_is_one_layer_over_both_embeddings(tmp_path: Path) -> None:
    lane = make_lane(tmp_path)
    session = session_on(lane, "whole", "tgcn", task_params={"decoder": "linear"})
    assert [tuple(weights.shape) for weights in session.model.decoder.parameters()] == [(1, 16), (1,)]
    for sequence in range(3):
        examples = examples_of(session, sequence)
        assert session.strategy.learn([examples], 0).loss is not None
    with pytest.raises(Failure, match="key task_params: decoder is of snapshot models, and tgn has its own"):
        session_on(lane, "sequential", "tgn", task_params={"decoder": "linear"})


def test_accuracy_is_the_share_of_pairs_on_the_right_side() -> None:
    """Of three events and their negatives; the model misses one event and one negative, EdgeBank one event."""
    model, edgebank = [(2.0, -1.0), (-0.5, -3.0), (1.0, 0.5)], [(1, 0), (0, 0), (1, 0)]
    columns = [model, model, edgebank, edgebank, model, model]
    positive, negative = (
        np.array([[pair[side] for pair in one] for one in columns], float).T for side in (0, 1)
    )
    every, none = np.ones(3, np.bool_), np.zeros((0, 6))
    predictions = Predictions(
        positive, negative, ~every, none, none, none, np.arange(3), every, every, ~every
    )
    accuracy = {
        scorer: value for (metric, _, scorer), value in predictions.figures().items() if metric == "accuracy"
    }
    of_model, of_edgebank = pytest.approx(4 / 6), pytest.approx(5 / 6)
    assert accuracy == {
        "model": of_model, "random": of_model, "edgebank": of_edgebank, "edgebank_window": of_edgebank
    }  # fmt: skip
    predictions.positive[0, 0] = np.nan
    assert ("accuracy", "all", "model") not in predictions.figures()
