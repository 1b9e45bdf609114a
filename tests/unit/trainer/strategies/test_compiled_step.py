"""The key ``compile``: a compiled training step is the plain one, captures what it says, and leaves no trace in a checkpoint.

Both compute in float64 and without dropout, whose draws torch's compiler makes of another generator. Compiled sums are in
another order, so losses and weights agree to rounding, which Adam makes larger where a gradient is near zero: 10⁻⁹ is a
thousand times what was found. Encounters of tgn-history are float32 always, and so are the bumps made of them: 10⁻⁷, twenty
times what was found.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from offline_protocol import SHARES, write_events
from offline_protocol import config_for as config_to_check
from small_trainers import EVENT_MODEL, config_for, lines, run
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from trainer_sessions import examples_of, learn, session_on, small_params
from trainer_streams import make_lane

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.models.event_model import EventDecoder, EventModel, Hop
from freshet_graph.trainer.models.interface import ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.events.remembering import compile_step
from freshet_graph.trainer.validation import require_trainable

CLOSE = {"tgn-history": 1e-7}


@pytest.fixture(scope="module", autouse=True)
def _in_this_process() -> Iterator[None]:
    """torch's compiler starts no processes of its own: each would load torch."""
    from torch._inductor import config  # loading it takes seconds

    with config.patch(compile_threads=1):
        yield


@pytest.fixture
def captured_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured with their gradients as always, and run operation by operation: C++ takes a minute to compile."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture(autouse=True)
def _without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(self: torch.nn.Dropout, p: float = 0.0, inplace: bool = False) -> None:
        made(self, 0.0, inplace)

    made = torch.nn.Dropout.__init__
    monkeypatch.setattr(torch.nn.Dropout, "__init__", still)


@pytest.fixture
def lane(tmp_path: Path, double: None) -> LaneReader:
    return make_lane(tmp_path, parts=1)


def session(lane: LaneReader, model: str, *, compiled: bool, strategy: str = "sequential") -> Session:
    return session_on(lane, strategy, model, compile=compiled)


@dataclass
class Learned:
    """What a session learned from some snapshots."""

    losses: list[float | None]
    regions: Counter[str]
    operations: int

    @classmethod
    def by(cls, session: Session, *sequences: int) -> "Learned":
        with profile(activities=[ProfilerActivity.CPU]) as traced:
            losses = [learn(session, examples_of(session, sequence)).loss for sequence in sequences]
        found = {each.key: each.count for each in traced.key_averages()}
        regions = {key: count for key, count in found.items() if key.startswith("Torch-Compiled Region")}
        return cls(
            losses,
            Counter(regions),
            sum(count for key, count in found.items() if key.startswith("aten::")),
        )


def require_equal(one: Session, other: Session) -> None:
    """Weights, by the same names."""
    close = CLOSE.get(one.config.model, 1e-9)
    first, second = one.model.state_dict(), other.model.state_dict()
    assert list(first) == list(second)
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=0, atol=close, msg=name)


def graphs() -> tuple[int, dict[str, int]]:
    """Graphs that torch has captured in this process since it was reset, and its graph breaks."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], dict(counters["graph_break"])


def check(
    lane: LaneReader, model: str, captured: int, strategy: str = "sequential"
) -> tuple[Session, Session]:
    """A compiled session learns what a plain one does; ``captured``: compiled graphs of a step."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    plain, compiled = (session(lane, model, compiled=on, strategy=strategy) for on in (False, True))
    require_equal(plain, compiled)
    assert graphs() == (captured, {})
    expected, found = (Learned.by(each, 0, 1, 2) for each in (plain, compiled))
    assert found.losses == pytest.approx(expected.losses, rel=0, abs=CLOSE.get(model, 1e-9))
    require_equal(plain, compiled)
    assert graphs() == (captured, {})  # nothing is compiled later
    assert len(found.regions) == captured
    assert not expected.regions
    return plain, compiled


@pytest.mark.slow
@pytest.mark.usefixtures("captured_only")
def test_a_captured_step_of_tgn_is_the_plain_one(lane: LaneReader) -> None:
    plain, compiled = check(lane, "tgn", 3)  # states with and without a gradient, and answers
    copied = copy.deepcopy(compiled.model)
    assert copied.answer._model is copied  # type: ignore[attr-defined]
    # each continues from the other's checkpoint
    states = [each.state() for each in (plain, compiled)]
    for each, state in zip((compiled, plain), copy.deepcopy(states), strict=True):
        each.restore(state)
    assert Learned.by(compiled, 3).regions
    learn(plain, examples_of(plain, 3))
    require_equal(plain, compiled)


@pytest.mark.slow
@pytest.mark.usefixtures("captured_only")
@pytest.mark.parametrize(
    ("model", "captured", "strategy"),
    [
        ("tgn-history", 3, "sequential"),
        ("jodie", 3, "sequential"),
        ("graphmixer", 1, "sequential"),
        ("tgn", 3, "pac"),
    ],
)
def test_so_is_that_of_other_models_and_strategies(
    lane: LaneReader, model: str, captured: int, strategy: str
) -> None:
    check(lane, model, captured, strategy)


@pytest.mark.slow
def test_a_step_of_tgn_by_compiled_code_is_the_plain_one(lane: LaneReader) -> None:
    """With C++, which takes one to six minutes to compile for a model: of ``tgn`` only."""
    plain, compiled = check(lane, "tgn", 3)
    expected, found = (Learned.by(each, 3) for each in (plain, compiled))
    assert found.operations < 0.6 * expected.operations


@pytest.mark.slow
@pytest.mark.usefixtures("captured_only", "double")
def test_a_run_resumes_with_the_key_from_a_checkpoint_without_it_and_back(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    plain = config_for(tmp_path, **EVENT_MODEL, compile=False)
    compiled = plain.model_copy(update={"compile": True})
    mixed = {"checkpoint": str(tmp_path / "mixed")}
    run(plain)
    run(plain.model_copy(update=mixed), 2)
    run(compiled.model_copy(update=mixed), 4)
    run(plain.model_copy(update=mixed))
    expected, found = lines(plain), lines(plain.model_copy(update=mixed))
    assert len(found) == len(expected) == 6
    for one, other in zip(expected, found, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=0, abs=1e-6)
        assert other["ap"] == pytest.approx(one["ap"], rel=0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("captured_only", "double")
def test_an_evaluation_with_the_key_comes_to_the_same_figures(tmp_path: Path) -> None:
    data = write_events(tmp_path / "events.parquet")
    config = config_to_check(**EVENT_MODEL)
    plain, compiled = (
        evaluate(config.model_copy(update={"compile": on}), data, Ranks(), shares=SHARES, seeds=1)
        for on in (False, True)
    )
    assert plain is not None
    assert compiled is not None
    for figure in ("ap", "auc", "mrr"):
        assert compiled[figure] == pytest.approx(plain[figure], rel=0, abs=1e-6)


class Asking(EventModel):
    """Its embeddings depend on a number that the host asks for."""

    name = "asking"

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, 4)
        self.neighbours = 1
        self.layer = torch.nn.Linear(self.edges, 4)
        self.decoder = EventDecoder(4, history=False, walks=0)

    def embed(self, below: Tensor, hops: list[Hop]) -> Tensor:
        rows: Tensor = self.layer(hops[0].edge[:, 0])
        return rows if float(rows.sum()) > 0 else -rows


def test_a_model_that_cannot_be_compiled_is_one_sentence_at_the_start() -> None:
    with pytest.raises(
        Failure,
        match=r"^key compile: torch cannot compile a training step of asking: .*Leave the key out, or",
    ) as raised:
        compile_step(Asking(ModelShape(0, 1)), torch.device("cpu"), 0, 16)
    assert "\n" not in str(raised.value)
    assert "TORCHDYNAMO" not in str(raised.value)


@pytest.mark.slow
def test_so_is_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    monkeypatch.setattr(config.cpp, "cxx", ("absent-compiler",))
    model: Any = create_model("jodie", ModelShape(0, 1), small_params("jodie"))
    with (
        fresh_cache(),
        pytest.raises(Failure, match=r"No working C\+\+ compiler .*install a C\+\+ compiler"),
    ):
        compile_step(model, torch.device("cpu"), 0, 16)


def test_a_snapshot_model_with_the_key_is_refused() -> None:
    config = TrainerConfig(model="tgcn", strategy="whole", compile=True)
    with pytest.raises(Failure, match="key compile is about event models, but tgcn is a snapshot model"):
        require_trainable(config)
