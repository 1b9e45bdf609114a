"""What must hold of every model, strategy and task that is registered, those of other distributions included."""

import copy
import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch
from trainer_streams import make_lane, meetings
from triples import TOGETHER, Triple, config_for, every_triple

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.neighbours import MAX_WIDTH
from freshet_graph.trainer.models.interface import (
    MODELS,
    STRUCTURE,
    ModelShape,
    NodeInputs,
    SnapshotModel,
    create_model,
)
from freshet_graph.trainer.models.stages import CellStage, GraphStage, TimeStage
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import flat_figures
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.strategies.interface import STRATEGIES, require_together
from freshet_graph.trainer.tasks.interface import TASKS

PARAMS = {"hybrid": {"snapshots": [1.0]}}
"""Its batches have one snapshot of so few by default, which moves no weight of a state."""

APART = sorted(set(itertools.product(MODELS.all(), STRATEGIES.all(), TASKS.all())) - set(TOGETHER))
SNAPSHOT_MODELS = sorted(name for name, found in MODELS.all().items() if found.kind == "snapshot")


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> LaneReader:
    """Events with features and labels."""
    events = meetings(snapshots=4, a_snapshot=40)
    label = [row["src"] % 2 if row["op"] == 1 else None for row in events.to_pylist()]
    at = events.column_names.index("label")
    field = events.schema.field("label")
    labelled = events.set_column(at, field, pa.array(label, field.type))
    return make_lane(tmp_path_factory.mktemp("contract") / "store", events=labelled)


def session_for(lane: LaneReader, together: Triple) -> Session:
    return Session(config_for(together, strategy_params=PARAMS.get(together[1], {})), lane, Ranks())


def learned(
    session: Session, snapshot_trainer: SnapshotTrainer, sequence: int
) -> tuple[dict[str, float], object]:
    """A snapshot as the daemon has it: judged, then learned."""
    session.advance(session.lane.manifests[sequence])
    examples = session.task.examples(session.view, session.strategy)
    judged = session.task.evaluate(
        session.strategy, session.model, session.untrained, examples, session.ranks
    )
    assert judged is not None
    figures = judged.figures()
    return flat_figures(figures), snapshot_trainer.learn(examples, 1.0)


def same_weights(one: Session, other: Session) -> bool:
    theirs = other.model.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.model.state_dict().items())


def flat(state: object, name: str = "") -> dict[str, object]:
    """Arrays, tensors and plain values of nested dictionaries and lists, by their place."""
    if isinstance(state, dict):
        state = list(state.items())
    elif isinstance(state, list | tuple):
        state = list(enumerate(state))
    else:
        return {name: state}
    return {place: value for key, part in state for place, value in flat(part, f"{name}.{key}").items()}


def same(one: object, other: object) -> bool:
    """Whether two values of a state are equal; what is unknown in both, too."""
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def test_every_model_strategy_and_task_goes_with_something() -> None:
    for place, registry in enumerate((MODELS, STRATEGIES, TASKS)):
        assert {names[place] for names in TOGETHER} == set(registry.all())


@every_triple
def test_it_learns_predicts_finite_numbers_and_goes_on_bit_by_bit(together: Triple, lane: LaneReader) -> None:
    straight = session_for(lane, together)
    baseline = {name: value.clone() for name, value in straight.untrained.state_dict().items()}
    snapshot_trainer = SnapshotTrainer(straight)
    for sequence in range(3):
        figures, report = learned(straight, snapshot_trainer, sequence)
    assert figures
    assert all(np.isfinite(value) for value in figures.values())
    assert report.steps > 0
    assert report.nonfinite == 0
    assert report.events > 0
    assert report.loss is not None
    assert np.isfinite(report.loss)
    assert report.seconds["train"] > 0
    assert {"backward", "synchronise", "update"} <= report.seconds.keys()
    assert [
        name for name, value in straight.model.state_dict().items() if torch.equal(value, baseline[name])
    ] == []
    assert all(torch.equal(value, baseline[name]) for name, value in straight.untrained.state_dict().items())
    state = copy.deepcopy(straight.state() | {"lessons": snapshot_trainer.book.state()})
    resumed = session_for(lane, together)
    resumed.restore(copy.deepcopy(state))
    resumed.restore_generators(state)
    kept, restored = flat(straight.state()), flat(resumed.state())
    assert kept.keys() == restored.keys()
    assert [name for name, value in kept.items() if not same(value, restored[name])] == []
    again = SnapshotTrainer(resumed)
    again.book.restore(state["lessons"])
    found = []
    for session, each in ((straight, snapshot_trainer), (resumed, again)):
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


@every_triple
def test_rewound_it_begins_again_and_what_it_learned_stays(together: Triple, lane: LaneReader) -> None:
    session = session_for(lane, together)
    snapshot_trainer = SnapshotTrainer(session)
    for sequence in range(2):
        learned(session, snapshot_trainer, sequence)
    weights = {name: value.clone() for name, value in session.model.state_dict().items()}
    answers = []
    for _ in range(2):
        session.rewind()
        for sequence in range(2):
            session.advance(session.lane.manifests[sequence])
            examples = session.task.examples(session.view, session.strategy)
            asked, _ = examples.part(np.arange(len(examples)))
            answers.append(session.strategy.answer(session.model, [asked])[0])
    for once, again in zip(answers[:2], answers[2:], strict=True):
        np.testing.assert_array_equal(once, again)
    assert all(torch.equal(value, weights[name]) for name, value in session.model.state_dict().items())
    session.close()


@pytest.mark.parametrize("model", sorted(MODELS.all()))
def test_what_cannot_go_together_is_refused_in_a_sentence_that_names_it(model: str, lane: LaneReader) -> None:
    made = create_model(model, ModelShape(0, 2), {})
    for apart in (each for each in APART if each[0] == model):
        _, strategy, task = apart
        with pytest.raises(Failure) as refused:
            require_together(strategy, made, TASKS.find(task), Optimisation(), lane.header, 1)
        sentence = str(refused.value)
        assert any(name in sentence for name in apart)
        assert "\n" not in sentence
        assert len(sentence) < 300


def test_a_session_refuses_what_cannot_go_together(lane: LaneReader) -> None:
    with pytest.raises(Failure, match=f"strategy {APART[0][1]} "):
        session_for(lane, APART[0])


@pytest.mark.parametrize("name", sorted(STRATEGIES.all()))
def test_a_strategy_says_what_it_needs_and_whether_it_forgets(name: str, lane: LaneReader) -> None:
    together = next(each for each in TOGETHER if each[1] == name)
    session = session_for(lane, together)
    needs = session.strategy.needs
    assert needs.example_sets >= 1
    if session.model.kind == "snapshot":
        assert needs.view in ("graph", "timeline")
        assert needs.snapshots >= 1
    if needs.view == "events":
        assert needs.snapshots == 0
    assert (session.strategy.memory is not None) is hasattr(session.strategy, "forget")
    session.close()


@pytest.mark.parametrize("name", sorted(MODELS.all()))
def test_a_model_is_drawn_from_torchs_seed_alone(name: str) -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(create_model(name, ModelShape(2, 2), {}).state_dict())
    first, second, other = drawn
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", SNAPSHOT_MODELS)
@pytest.mark.parametrize(
    "task", sorted(name for name, found in TASKS.all().items() if found.subject == "nodes")
)
@pytest.mark.parametrize("features", [0, 3])
def test_a_snapshot_model_is_a_row_of_stages_over_inputs_without_weights(
    name: str, task: str, features: int
) -> None:
    model = create_model(name, ModelShape(features, 2, head=TASKS.find(task).head), {})
    assert isinstance(model, SnapshotModel)
    assert model.stages
    assert all(isinstance(stage, GraphStage | TimeStage | CellStage) for stage in model.stages)
    assert all(stage.along in ("graph", "time", "both") for stage in model.stages)
    inputs = NodeInputs(torch.arange(5), torch.randn(5, features), torch.randn(5, STRUCTURE))
    x = model.encode(inputs)
    assert x.shape[1] == model.inputs <= features + MAX_WIDTH + STRUCTURE
    assert not x.requires_grad, "no rank needs its gradient"
