"""What every model and every strategy must keep, whichever it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_strategy import KINDS, NAMES, TRAINED, session_in
from grid_layout import Grid
from trainer_sessions import examples_of, learn, session_on, small_params
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.models.interface import (
    STRUCTURE,
    Model,
    ModelShape,
    NodeInputs,
    SnapshotModel,
    create_model,
)
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events import remembering
from freshet_graph.trainer.strategies.interface import STRATEGIES, require_together
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction, predict

SNAPSHOT_MODELS = [name for name, kind in KINDS.items() if kind == "snapshot"]


def small(name: str, features: int, window: int = 2) -> Model:
    torch.manual_seed(0)
    return create_model(name, ModelShape(features, window), small_params(name))


def refuse(strategy: str, model: str) -> None:
    require_together(strategy, small(model, 0), LinkPrediction, Optimisation(), None, 1)


def newest(model: SnapshotModel, graph: CSRGraph, x: torch.Tensor) -> torch.Tensor:
    """Embeddings after a snapshot that nobody had come by, and one in which all are there."""
    there = torch.tensor([[False], [True]]).expand(2, len(x))
    layout = Grid([graph, graph], torch.stack([torch.zeros_like(x), x]), there)
    return unroll(model.stages, layout, last=True)[0][0]


@pytest.mark.parametrize("name", SNAPSHOT_MODELS)
def test_every_snapshot_model_takes_no_rows_at_all(name: str) -> None:
    model = small(name, 2)
    x = model.encode(NodeInputs(torch.arange(0), torch.zeros(0, 2), torch.zeros(0, STRUCTURE)))
    empty = CSRGraph(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0, symmetric=True)
    z = newest(model, empty, x)
    logits = model.decoder(z, z, torch.zeros(0, len(Encounter)))
    logits.sum().backward()
    assert logits.shape == (0,)


@pytest.mark.parametrize("strategy", NAMES)
def test_every_strategy_learns(strategy: str, tmp_path: Path) -> None:
    name = TRAINED[strategy]
    events = meetings(snapshots=5, a_snapshot=200, features=False)
    session = session_in(tmp_path, strategy, name, events=events)
    losses = []
    for sequence in range(5):
        examples = examples_of(session, sequence)
        predictions = predict(session.strategy, session.model, session.untrained, examples, Ranks())
        assert predictions is not None
        assert len(predictions.positive) == len(examples.inserts)
        # a pass of group over one snapshot is one step over all events
        passes = 16 if strategy == "group" else 4
        reports = [learn(session, examples, epoch) for epoch in range(passes)]
        assert reports[0].events == len(examples.inserts)
        losses.append([report.loss for report in reports])
    assert losses[-1][-1] < losses[0][0] - 0.05
    ap = predictions.figures()
    assert ap["ap", "all", "model"] > 0.6


@pytest.mark.parametrize("strategy", NAMES)
def test_every_strategy_leaves_out_steps_that_are_not_finite(strategy: str, tmp_path: Path) -> None:
    name = TRAINED[strategy]
    session = session_in(tmp_path, strategy, name)
    learn(session, examples_of(session, 0), 0)
    examples = examples_of(session, 1)
    examples.learned.encounters[:, Encounter.PAIR_COUNT] = np.nan
    before = {key: value.clone() for key, value in session.model.state_dict().items()}
    report = learn(session, examples, 0)
    assert report.nonfinite == report.steps > 0
    assert all(torch.equal(before[key], value) for key, value in session.model.state_dict().items())


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(Failure, match=r"unknown model 'sage'; expected one of .*sage-linear"):
        create_model("sage", ModelShape(0, 2), {})
    with pytest.raises(Failure, match=r"unknown strategy 'vertices'; expected one of .*vertex"):
        STRATEGIES.find("vertices")
    with pytest.raises(Failure, match=r"model_params of tgcn: .*dragons"):
        create_model("tgcn", ModelShape(0, 2), {"dragons": 3})
    with pytest.raises(Failure, match="strategy_params of vertex"):
        STRATEGIES.options("vertex", {"inference_nodes": 0})


@pytest.mark.parametrize(
    ("strategy", "model", "kinds"),
    [("vertex", "tgn", "snapshot models, and tgn is among the event models"),
     ("sequential", "sage-linear", "event models, and sage-linear is among the snapshot models")],
)  # fmt: skip
def test_a_model_of_another_kind_is_refused_with_both_names(strategy: str, model: str, kinds: str) -> None:
    with pytest.raises(Failure, match=f"strategy {strategy} trains {kinds}"):
        refuse(strategy, model)


def test_vertex_refuses_states_that_are_convolved() -> None:
    with pytest.raises(Failure, match=r"strategy vertex .* stage DiffusionCell of dcrnn convolves states"):
        refuse("vertex", "dcrnn")


def test_sequential_refuses_several_ranks_and_groups_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="strategy sequential learns on one rank, found 2"):
        session_on(make_lane(tmp_path), "sequential", "tgn", Ranks(0, 2))
    with pytest.raises(Failure, match="strategy_params of sequential: group: must be at least 1, found 0"):
        STRATEGIES.options("sequential", {"group": 0})
    with pytest.raises(Failure, match="precision: must be 'float32' or 'bfloat16', found 'float16'"):
        STRATEGIES.options("sequential", {"precision": "float16"})


def test_a_second_pass_over_a_snapshot_sees_its_events_once(tmp_path: Path) -> None:
    session = session_in(tmp_path, "sequential", "tgn-history")
    for sequence in range(3):
        examples = examples_of(session, sequence)
        predict(session.strategy, session.model, session.untrained, examples, Ranks())
        for epoch in range(2):
            learn(session, examples, epoch)
    state = session.strategy.state()
    assert int(state["streams"]["0"]["position"]) <= len(state["feed"]["src"])
    sizes = state["feed"]["graph_size"]
    assert sizes.sum() == 2 * len(state["feed"]["src"])
    once = session.strategy.answer(session.model, [examples.positive])[0]
    again = session.strategy.answer(session.model, [examples.positive])[0]
    np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize(
    ("name", "params"),
    [("jodie", {}), ("tgn", {"layers": 2}), ("tgn-history", {}), ("tgn-history", {"moment": "event"})],
    ids=str,
)
def test_moments_answered_together_get_the_answers_that_each_gets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any]
) -> None:
    lane = make_lane(tmp_path, events=meetings(snapshots=2, a_snapshot=700))
    keys = {"model_params": {**small_params(name), **params}}
    session = session_on(lane, "sequential", name, **keys)
    for sequence in range(2):
        examples = examples_of(session, sequence)
    asked = [examples.positive, examples.random, examples.candidates]
    assert len(np.unique(examples.positive.before_us)) > 2
    together = session.strategy.answer(session.model, asked)
    monkeypatch.setattr(remembering, "ANSWERED_AT_ONCE", 1)
    alone = session.strategy.answer(session.model, asked)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
        assert len(one) < 2 or np.ptp(one) > 1e-3


def test_a_step_of_vertex_weighs_its_queries_among_those_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_in(tmp_path, "vertex", "sage-linear")
    examples = [examples_of(session, sequence) for sequence in range(2)][-1]
    items, batch = len(examples), 16
    assert items > 0
    # Another rank has twice as many queries: first it says how many batches, then how long each is.
    sizes = [min(batch, 2 * items - at) for at in range(0, 2 * items, batch)]
    others = iter([[len(sizes), 0], sizes])
    monkeypatch.setattr(session.ranks, "gather_numbers", lambda ours: np.array([ours, next(others)]))
    found: list[float] = []
    step = session.strategy.learner.step

    def told(loss: torch.Tensor, weight: float, scale: float) -> None:
        found.append(weight)
        step(loss, weight, scale)

    monkeypatch.setattr(session.strategy.learner, "step", told)
    learn(session, examples)
    rest = [(max(0, items - at), max(0, 2 * items - at)) for at in range(0, 2 * items, batch)]
    both = [min(batch, ours) + min(batch, theirs) for ours, theirs in rest]
    assert found == [1 / (examples.queries_per_example * total) for total in both]


def test_vertex_refuses_an_edge_lane_and_more_ranks_than_parts(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"strategy vertex .* lane sep is made by sep, an edge partitioner"):
        session_in(tmp_path / "edge", "vertex", "sage-linear", algorithm="sep")
    lane = make_lane(tmp_path / "vertex", parts=2)
    with pytest.raises(Failure, match="2 parts for 3 ranks"):
        session_on(lane, "vertex", "sage-linear", Ranks(0, 3))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden": 0}, "model_params of sage-linear: hidden: must be at least 1, found 0"),
        ({"hidden": 10**12}, "hidden: must be at most 4096, found 1000000000000"),
        ({"fanouts": []}, "fanouts: list should have at least 1 item"),
        ({"fanouts": [5, 0]}, r"fanouts\[1\]: must be at least 1, found 0"),
        ({"signature": 65}, "signature: must be at most 64, found 65"),
    ],
)
def test_sage_linear_says_what_it_cannot_be(params: dict, message: str) -> None:
    with pytest.raises(Failure, match=message):
        create_model("sage-linear", ModelShape(0, 4), params)
