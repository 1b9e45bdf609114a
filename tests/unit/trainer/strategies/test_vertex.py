"""``vertex``: steps that share what they look at, and what a rank keeps of the others'."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun, learned, require_equal
from thread_ranks import side_by_side
from trainer_sessions import examples_of, learn, session_on
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks

MODELS = pytest.mark.parametrize("model", ["sage-linear", "dysat"])


def session_at(folder: Path, model: str, sequence: int = 4, **more: Any) -> tuple[Any, Any]:
    """A session that has taken in snapshots up to one, and that one's examples."""
    lane = make_lane(folder, events=meetings(snapshots=6, a_snapshot=80))
    session = session_on(lane, "vertex", model, optimisation=Optimisation(batch_size=10), window=3, **more)
    example_sets = [examples_of(session, number) for number in range(sequence + 1)]
    return session, example_sets[-1]


@MODELS
def test_a_step_embeds_from_the_shared_sample_what_it_would_from_its_own(model: str, tmp_path: Path) -> None:
    session, _ = session_at(tmp_path, model)
    strategy, draw = session.strategy, 5
    stages = strategy.graph_stages(session.model)
    with torch.no_grad():
        shared = strategy.layout(session.model, strategy.past, np.arange(30), draw).share(stages[0])
        for nodes in (np.array([2, 3, 17, 29]), np.arange(30), np.array([], np.int64)):
            found, _ = unroll(
                session.model.stages,
                strategy.layout(session.model, strategy.past, nodes, draw, shared),
                last=True,
            )
            wanted, _ = unroll(
                session.model.stages, strategy.layout(session.model, strategy.past, nodes, draw), last=True
            )
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@MODELS
def test_the_steps_of_a_pass_ask_for_inputs_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as their nodes fit into ``inference_nodes``: three of a step of ten events, at most."""
    session, examples = session_at(tmp_path, model, strategy_params={"inference_nodes": 60})
    asked = 0
    inputs = session.strategy.reach.inputs

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return inputs(*arguments)

    monkeypatch.setattr(session.strategy.reach, "inputs", counted)
    report = learn(session, examples)
    assert report.steps > 4
    assert asked == -(-report.steps // 2)


def test_node_batches_have_all_events_of_their_sources(tmp_path: Path) -> None:
    """DistDy section 5.1: ten training nodes make a step."""
    session, examples = session_at(tmp_path, "sage-linear", strategy_params={"batch_of": "nodes"})
    batches = session.strategy._batches(examples, epoch=1)
    sources = [set(examples.learned.src[batch].tolist()) for batch in batches]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(examples)))
    assert [len(nodes) for nodes in sources[:-1]] == [10] * (len(sources) - 1)
    assert len(set.union(*sources)) == sum(map(len, sources)) == len(set(examples.learned.src.tolist()))
    report = learn(session, examples)
    assert (report.steps, report.events) == (len(batches), len(examples))
    assert {*map(len, session.strategy._batches(examples, epoch=2))} != {10}  # events differ by step


def test_events_train_if_their_source_is_a_training_node(tmp_path: Path) -> None:
    """The same nodes in every snapshot and pass."""
    session, _ = session_at(tmp_path, "sage-linear", sequence=1, strategy_params={"training_nodes": 0.7})
    trained, idle = set[int](), set[int]()
    for sequence in range(2, 6):
        examples = examples_of(session, sequence)
        for epoch in range(2):
            taken = np.concatenate(session.strategy._batches(examples, epoch))
            trained |= set(examples.learned.src[taken].tolist())
            idle |= set(np.delete(examples.learned.src, taken).tolist())
        assert learn(session, examples).events == len(taken) < len(examples)
    assert not trained & idle
    assert 0.5 < len(trained) / len(trained | idle) < 0.9


def test_ranks_learn_from_training_nodes_in_batches_what_one_rank_learns(tmp_path: Path) -> None:
    lane = make_lane(tmp_path, events=meetings(snapshots=5, a_snapshot=60), parts=3)

    def work(ranks: Ranks) -> Any:
        params = {"training_nodes": 0.7, "batch_of": "nodes"}
        return learned(
            begun(lane, "vertex", "sage-linear", ranks, torch.float64, 0.01, strategy_params=params)
        )

    one = work(Ranks())
    for found in side_by_side(3, work):
        require_equal(found, one, torch.float64)
