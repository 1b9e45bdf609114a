"""What must hold of every model, strategy and task that is registered, those of other distributions included."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from trainer_streams import make_lane, meetings

from schemas.trainer_config import TrainerConfig
from stream.service.failure import Failure
from stream.store.lane.reader import LaneReader
from trainer.data.signatures import MAX_WIDTH
from trainer.models.interface import MODELS, STRUCTURE, ModelShape, NodeInputs
from trainer.models.stages import CellStage, GraphStage, TimeStage
from trainer.parameters import parameters_of
from trainer.ranks import Ranks
from trainer.scoring.figures import flat_figures
from trainer.session.lessons import Lessons
from trainer.session.session import Session
from trainer.strategies.interface import STRATEGIES, Forgets, strategies_for
from trainer.tasks.interface import TASKS

LESS = {"hidden": 16, "signature": 8, "memory": 8, "time_width": 8}
"""Whichever of them a model has."""

TOGETHER = [
    (model, strategy, task)
    for model in sorted(MODELS.all())
    for strategy in strategies_for(model)
    for task, found in sorted(TASKS.all().items())
    if found.asks in STRATEGIES.find(strategy).answers
]
APART = sorted(set(itertools.product(MODELS.all(), STRATEGIES.all(), TASKS.all())) - set(TOGETHER))
SNAPSHOT_MODELS = sorted(name for name, found in MODELS.all().items() if found.kind == "snapshot")


def config_for(folder: Path, model: str, strategy: str, task: str) -> TrainerConfig:
    params = {name: LESS[name] for name in parameters_of(MODELS.find(model)) if name in LESS}
    return TrainerConfig.model_validate(
        {
            "store": str(folder / "store"), "lane": "hash", "window": 2, "model": model, "model_params": params,
            "strategy": strategy, "task": task, "optimisation": {"epochs": 1, "batch_size": 16, "learning_rate": 0.01},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose events have features and labels."""
    made = tmp_path_factory.mktemp("contract")
    events = meetings(snapshots=4, a_snapshot=40)
    label = [row["src"] % 2 if row["op"] == 1 else None for row in events.to_pylist()]
    at = events.column_names.index("label")
    field = events.schema.field("label")
    make_lane(made / "store", events=events.set_column(at, field, pa.array(label, field.type)))
    return made


def session_for(folder: Path, together: tuple[str, str, str]) -> Session:
    return Session(config_for(folder, *together), LaneReader(folder / "store", "hash"), Ranks())


def learned(session: Session, lessons: Lessons, sequence: int) -> tuple[dict[str, float], object]:
    """A snapshot as the daemon has it: judged, then learned."""
    session.advance(session.lane.manifests[sequence])
    lesson = session.task.lesson(session.view, session.strategy)
    judged = session.task.judge(session.strategy, session.model, session.floor, lesson, session.ranks)
    assert judged is not None
    figures = judged.figures()
    return flat_figures(figures), lessons.learn(lesson, 1.0)


def same_weights(one: Session, other: Session) -> bool:
    theirs = other.model.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.model.state_dict().items())


def test_every_model_strategy_and_task_goes_with_something() -> None:
    for place, registry in enumerate((MODELS, STRATEGIES, TASKS)):
        assert {names[place] for names in TOGETHER} == set(registry.all())


@pytest.mark.parametrize("together", TOGETHER, ids="-".join)
def test_it_learns_predicts_finite_numbers_and_goes_on_bit_by_bit(
    together: tuple[str, str, str], folder: Path
) -> None:
    straight = session_for(folder, together)
    floor = {name: value.clone() for name, value in straight.floor.state_dict().items()}
    lessons = Lessons(straight)
    for sequence in range(3):
        figures, report = learned(straight, lessons, sequence)
    assert figures
    assert all(np.isfinite(value) for value in figures.values())
    assert report.steps > 0
    assert report.nonfinite == 0
    assert report.events > 0
    assert report.loss is not None
    assert np.isfinite(report.loss)
    assert report.seconds["train"] > 0
    assert {"backward", "synchronise", "update"} <= report.seconds.keys()
    assert not same_weights(straight, session_for(folder, together)), "weights have moved"
    assert all(torch.equal(value, floor[name]) for name, value in straight.floor.state_dict().items())
    state = copy.deepcopy(straight.state() | {"lessons": lessons.book.state()})
    resumed = session_for(folder, together)
    resumed.restore(state)
    again = Lessons(resumed)
    again.book.restore(state["lessons"])
    found = []
    for session, each in ((straight, lessons), (resumed, again)):
        session.restore_generators(state)
        found.append(learned(session, each, 3))
    assert found[0][0] == found[1][0]
    assert found[0][1].loss == found[1][1].loss
    assert same_weights(straight, resumed)
    nodes = np.arange(straight.view.num_nodes)
    tables = [session.strategy.embeddings(nodes) for session in (straight, resumed)]
    assert tables[0].shape == (len(nodes), straight.model.width)
    assert torch.isfinite(tables[0]).all()
    assert torch.equal(*tables)
    assert straight.strategy.owned(len(nodes)).all(), "one rank owns every node"
    assert straight.strategy.step_events >= 1
    assert all(held >= 0 for held in straight.strategy.held_bytes.values())
    for _ in range(2):
        straight.close()
    resumed.close()


@pytest.mark.parametrize("together", TOGETHER, ids="-".join)
def test_rewound_it_begins_again_and_what_it_learned_stays(
    together: tuple[str, str, str], folder: Path
) -> None:
    session = session_for(folder, together)
    lessons = Lessons(session)
    for sequence in range(3):
        learned(session, lessons, sequence)
    answers = []
    for _ in range(2):
        session.rewind()
        for sequence in range(3):
            session.advance(session.lane.manifests[sequence])
            lesson = session.task.lesson(session.view, session.strategy)
            asked, _ = lesson.part(np.arange(len(lesson)))
            answers.append(session.strategy.answer(session.model, [asked])[0])
    for once, again in zip(answers[:3], answers[3:], strict=True):
        np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("apart", APART, ids="-".join)
def test_what_cannot_go_together_is_refused_in_a_sentence_that_names_it(
    apart: tuple[str, str, str], folder: Path
) -> None:
    with pytest.raises(Failure) as refused:
        session_for(folder, apart)
    sentence = str(refused.value)
    assert any(name in sentence for name in apart)
    assert "\n" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize("name", sorted(STRATEGIES.all()))
def test_a_strategy_says_what_it_needs_and_whether_it_forgets(name: str, folder: Path) -> None:
    together = next(each for each in TOGETHER if each[1] == name)
    session = session_for(folder, together)
    needs = session.strategy.needs
    assert needs.lessons >= 1
    if session.model.kind == "snapshot":
        assert needs.view in ("graph", "timeline")
        assert needs.snapshots >= 1
    if needs.view == "events":
        assert needs.snapshots == 0
    assert isinstance(session.strategy, Forgets) is hasattr(session.strategy, "forget")
    session.close()


@pytest.mark.parametrize("name", sorted(MODELS.all()))
def test_a_model_is_drawn_from_torchs_seed_alone(name: str) -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(MODELS.find(name)(ModelShape(2, 2)).state_dict())
    first, second, other = drawn
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", SNAPSHOT_MODELS)
@pytest.mark.parametrize("task", sorted(name for name, found in TASKS.all().items() if found.asks == "nodes"))
@pytest.mark.parametrize("features", [0, 3])
def test_a_snapshot_model_is_a_row_of_stages_over_inputs_without_weights(
    name: str, task: str, features: int
) -> None:
    model = MODELS.find(name)(ModelShape(features, 2, head=TASKS.find(task).head))
    assert model.stages
    assert all(isinstance(stage, GraphStage | TimeStage | CellStage) for stage in model.stages)
    assert all(stage.along in ("graph", "time", "both") for stage in model.stages)
    inputs = NodeInputs(torch.arange(5), torch.randn(5, features), torch.randn(5, STRUCTURE))
    x = model.encode(inputs)
    assert x.shape[1] == model.inputs <= features + MAX_WIDTH + STRUCTURE
    assert not x.requires_grad, "no rank needs its gradient"
