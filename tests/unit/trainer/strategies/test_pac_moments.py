"""``pac`` predicts a snapshot of many moments: exactly as one rank, and with one exchange for all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_rank import STILL, Rank
from thread_ranks import side_by_side
from trainer_streams import SECOND, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.trainer.data.history import BATCH
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.speed import sharded_stream
from freshet_graph.trainer.tasks.link_prediction import predict
from freshet_graph.trainer.wire.traffic import Traffic

MOMENTS, NODES = 3, 1_500
"""So many nodes that most neighbours of those that are asked about have no event in the snapshot."""
UNIFORM = {"how": "uniform", "neighbours": 3}


def made(folder: Path, moments: int) -> Path:
    events = meetings(snapshots=2, a_snapshot=moments * BATCH, nodes=NODES, features=False)
    lane = Lane(name="sep", algorithm="sep", parts=5, params={"hubs": 0.2})
    build_store(events, folder, interval_us=SECOND, lanes=[lane])
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("moments"), MOMENTS)


def predicted(store: Path, ranks: Ranks, name: str, **model_params: object) -> list[Any]:
    """What crossed ranks for the second snapshot, embeddings after it, and on rank 0 its scores."""
    keys = {"model_params": model_params, "scoring": {"sample": 20}}
    rank = Rank(store, ranks, name, "pac", STILL, keys, group=30)
    for sequence in range(2):
        examples = rank.examples(sequence)
        before = ranks.traffic.copy()
        predictions = predict(rank.strategy, rank.model, rank.model, examples, ranks)
    assert len(examples.inserts) < BATCH or len(np.unique(examples.positive.before_us)) >= MOMENTS
    found = [ranks.traffic.since(before), rank.strategy.embeddings(np.arange(NODES)).numpy()]
    mailbox = rank.strategy.memories.trained.stream.mailbox
    assert rank.strategy.owned(NODES)[mailbox.places.nodes()].all(), "what was lent is given back"
    if predictions is not None:
        found += [
            predictions.positive,
            predictions.negative,
            predictions.historical_negative,
            predictions.ranks,
        ]
    return found


@pytest.mark.parametrize(
    ("name", "model_params", "at_once"),
    [
        ("tgn-history", {}, None),
        ("tgn", UNIFORM | {"layers": 2}, None),
        ("dyrep", UNIFORM, 70),
        ("tige", UNIFORM, None),
    ],
)
def test_every_moment_is_predicted_as_by_one_rank(
    name: str,
    model_params: dict[str, object],
    at_once: int | None,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if at_once is not None:  # rows are borrowed for a few events, or nodes, at a time
        monkeypatch.setattr(sharded_stream, "BORROWED_AT_ONCE", at_once)
        monkeypatch.setattr(sharded_stream, "ROWS_AT_ONCE", at_once // 10)
    _, embedded, *alone = predicted(store, Ranks(), name, **model_params)
    for size in (2, 3):
        everyones = side_by_side(size, lambda ranks: predicted(store, ranks, name, **model_params))
        for ours, theirs in zip(everyones[0][2:], alone, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
        for found in everyones:
            np.testing.assert_allclose(found[1], embedded, atol=1e-6)


def test_ranks_exchange_as_often_however_many_moments_and_groups_a_snapshot_has(
    store: Path, tmp_path: Path
) -> None:
    def exchanged(store: Path) -> Traffic:
        return side_by_side(2, lambda ranks: predicted(store, ranks, "tgn-history"))[0][0]

    many, one = exchanged(store), exchanged(made(tmp_path, 1))
    assert many.begun.keys() == one.begun.keys() == {"ids", "memory", "scores"}
    assert many.begun["memory"] == one.begun["memory"] == 2, "once for each model"
    for crossed in (
        many,
        one,
    ):  # ids of moments and of nodes, for each model; twice if there are more than before
        assert 4 <= crossed.begun["ids"] <= 8
        assert 1 <= crossed.begun["scores"] <= 2
