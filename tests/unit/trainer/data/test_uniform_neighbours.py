"""``how: uniform``: every batch draws neighbours of its own, and the same ones when it is done again."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from trainer_sessions import examples_of, learn, session_on

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data import temporal_sampler
from freshet_graph.trainer.data.examples import Examples
from freshet_graph.trainer.session.session import Session

SECOND, HUB, BATCH = 1_000_000, 0, 8
OPTIMISATION = Optimisation(epochs=2, batch_size=BATCH, learning_rate=0.01)


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> LaneReader:
    """The hub meets 40 others; in each of the next two seconds it meets them again, all at one time.

    It never meets node 41, which is the one possible negative.
    """
    folder = tmp_path_factory.mktemp("hub")
    times = [10 * i for i in range(40)] + [SECOND + 5] * 40 + [2 * SECOND + 5] * 40
    rows = [{"op": 1, "src": HUB, "dst": 1 + i % 40, "t": t, "weight": 1.0} for i, t in enumerate(times)]
    rows.insert(40, {"op": 1, "src": 1, "dst": 41, "t": SECOND - 1, "weight": 1.0})
    columns = {name: [row.get(name) for row in rows] for name in event_schema("int").names}
    table = pa.table(columns, schema=event_schema("int"))
    build_store(table, folder, interval_us=SECOND, lanes=[Lane(name="hash", algorithm="hash", parts=2)])
    return LaneReader(folder, "hash")


def session(lane: LaneReader, strategy: str) -> Session:
    params = {"memory": 6, "time_width": 4, "neighbours": 4, "how": "uniform", "dropout": 0.0}
    return session_on(lane, strategy, "tgn", None, OPTIMISATION, window=1, model_params=params)


@contextmanager
def drawn() -> Iterator[list[tuple[int, ...]]]:
    """Which interactions of the hub were looked at, call by call."""
    found: list[tuple[int, ...]] = []
    sample = temporal_sampler.sample_before

    def seen(graph: Any, nodes: Any, *rest: Any) -> Any:
        sampled = sample(graph, nodes, *rest)
        found.extend(tuple(sampled.event[i]) for i in np.flatnonzero(nodes == HUB) if sampled.count[i])
        return sampled

    with patch.object(temporal_sampler, "sample_before", seen):
        yield found


def trained(learner: Session, examples: Examples, epoch: int) -> list[tuple[int, ...]]:
    with drawn() as found:
        learn(learner, examples, epoch)
    return found


@pytest.mark.parametrize("strategy", ["sequential", "pac"])
def test_every_batch_draws_neighbours_of_its_own(strategy: str, lane: LaneReader) -> None:
    learner = session(lane, strategy)
    examples_of(learner, 0)
    examples = examples_of(learner, 1)
    first = trained(learner, examples, 0)
    assert len(first) == len(set(first)) == 40 // BATCH
    second = trained(learner, examples, 1)
    assert len(second) == 40 // BATCH
    assert not set(first) & set(second)


@pytest.mark.parametrize("strategy", ["sequential", "pac"])
def test_the_same_question_draws_the_same_again(strategy: str, lane: LaneReader) -> None:
    """What is predicted follows from the events and the seed, however often it was learned or asked before."""
    learner = session(lane, strategy)
    examples_of(learner, 0)
    one = examples_of(learner, 1)
    with drawn() as before:
        learner.strategy.answer(learner.model, [one.learned])
    trained(learner, one, 0)
    with drawn() as after:
        learner.strategy.answer(learner.model, [one.learned])
    assert before == after
    assert before
    two = examples_of(learner, 2)
    with drawn() as later:
        learner.strategy.answer(learner.model, [two.learned])
    assert set(later).isdisjoint(before)


@pytest.mark.parametrize("strategy", ["sequential", "pac"])
def test_a_run_that_goes_on_from_a_checkpoint_draws_what_it_would_have(
    strategy: str, lane: LaneReader
) -> None:
    whole, resumed = session(lane, strategy), session(lane, strategy)
    for learner in (whole, resumed):
        examples_of(learner, 0)
    trained(whole, examples_of(whole, 1), 0)
    state = deepcopy(whole.strategy.state())
    examples_of(resumed, 1)
    resumed.strategy.restore(state)
    goes_on, would_have = (trained(learner, examples_of(learner, 2), 0) for learner in (resumed, whole))
    assert goes_on == would_have
    assert len(set(would_have)) == 40 // BATCH
