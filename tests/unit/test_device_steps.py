"""What a GPU would make of a training step: torch's fake tensors on a device that isn't the host's say it without one.

They have shapes and a device and no numbers, so whatever asks for a number, for a shape that depends on numbers, or for
a tensor of another device is an error.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_sessions import learn, lesson_of, session_on
from trainer_streams import make_lane

from schemas.trainer_config import Optimisation, Replay
from stream.service.failure import Failure
from stream.store.lane.reader import LaneReader
from trainer.device import to_device
from trainer.learning.rate import LearningRate
from trainer.learning.step import Learner
from trainer.models.interface import Model, ModelShape, NodeInputs, create_model
from trainer.models.sage_linear import SageLinear
from trainer.nn.csr_graph import CSRGraph
from trainer.ranks import Ranks
from trainer.session import session as assembly
from trainer.session.session import Session

EVENT = {"memory": 8, "time_width": 6}
SAMPLED = {**EVENT, "dropout": 0.0}
KINDS = [
    ("vertex", "sage-linear", {"hidden": 8, "signature": 0}),
    ("vertex", "sage-linear", {"hidden": 8, "signature": 0, "fanouts": [None]}),
    ("sequential", "jodie", EVENT),
    ("sequential", "dyrep", EVENT),
    ("sequential", "tgn", SAMPLED),
    ("sequential", "tgn", {**SAMPLED, "aggregator": "mean", "moment": "batch"}),
    ("sequential", "tige", SAMPLED),
    ("sequential", "tgn-history", SAMPLED),
    ("pac", "tgn-history", SAMPLED),
]
FAR = torch.device("meta")
NETWORKS = ("nn.gated_unit", "nn.temporal_attention", "nn.time_encoding", "models.memory.decoder")


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> LaneReader:
    return make_lane(tmp_path_factory.mktemp("device"))


class Crossings(TorchDispatchMode):
    """Copies between host and device that would make the host wait; fake tensors let them pass."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and "device" in kwargs:
            there = torch.device(kwargs["device"])
            if there != args[0].device and not (there == FAR and kwargs.get("non_blocking")):
                self.found.append(f"{args[0].device} to {there}")
        if func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default):
            asked = [index for index in args[1] if index is not None]
            self.found += [f"index on {index.device}" for index in asked if index.device != args[0].device]
            self.found += ["index of truths" for index in asked if index.dtype == torch.bool]
        return func(*args, **kwargs)


def session(lane: LaneReader, kind: tuple[str, str, dict[str, Any]], ranks: Ranks) -> Session:
    """A strategy's way over a lane's first snapshots, on any device."""
    strategy, name, params = kind
    replay = Replay(ratio=1.0, batches=4) if strategy == "sequential" else Replay()
    optimisation = Optimisation(batch_size=16, learning_rate=0.01, replay=replay)
    return session_on(lane, strategy, name, ranks, optimisation, model_params=params)


@contextmanager
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crossings]:
    """A device without numbers, and who crosses over to it."""
    adam = sys.modules[torch.optim.Adam.__module__]
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda weight: None)
    ended: dict[Learner, int] = {}
    make = assembly.create_model

    def settled(learner: Learner) -> list[tuple[float, bool]]:
        """In place of the only question to the device, at a snapshot's end."""
        before, ended[learner] = ended.get(learner, 0), learner.steps
        return [(0.0, False)] * (learner.steps - before)

    def made_there(*inputs: Any) -> Model:
        with FAR:
            return make(*inputs)

    monkeypatch.setattr(Learner, "settled", settled)
    monkeypatch.setattr(assembly, "create_model", made_there)
    monkeypatch.setattr(Model, "to", lambda model, device: model)  # fakes cannot be moved
    crossings = Crossings()
    with FakeTensorMode(allow_non_fake_inputs=True), crossings:
        yield crossings


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind[:2]))
def test_nothing_in_a_step_makes_the_host_wait_for_the_device(
    kind: tuple[str, str, dict[str, Any]], lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind[0] == "vertex":  # signatures are drawn from the ids' numbers, which are the host's

        def encode(self: SageLinear, inputs: NodeInputs) -> torch.Tensor:
            assert inputs.nodes.device.type == "cpu"
            return torch.cat([inputs.features, inputs.structure], dim=1)

        monkeypatch.setattr(SageLinear, "encode", encode)
    with far_away(monkeypatch) as crossings:
        steps = session(lane, kind, Ranks(device=FAR))
        for sequence in range(3):
            report = learn(steps, lesson_of(steps, sequence))
    assert report.steps > 1
    assert {weight.device for weight in steps.model.parameters()} == {FAR}
    assert all(weight.grad is not None for weight in steps.model.decoder.parameters())
    assert not crossings.found


def test_the_fakes_tell_what_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with far_away(monkeypatch) as crossings:
        x = torch.ones(3, device=FAR)
        for waits in (lambda: float(x.sum()), lambda: x[x > 0], lambda: x + torch.ones(3)):
            with pytest.raises(Exception, match=r"."):
                waits()
        x[torch.tensor([0])].to("cpu")
        torch.ones(3).to(FAR)
    assert crossings.found == ["index of truths", "index on cpu", "meta to cpu", "cpu to meta"]


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the host do what a GPU does."""
    for module in NETWORKS:
        monkeypatch.setattr(f"trainer.{module}.kernels_fit", lambda tensor: False)


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: "-".join(kind[:2]))
def test_operations_of_a_gpu_learn_and_score_as_the_hosts_kernels_do(
    kind: tuple[str, str, dict[str, Any]], lane: LaneReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores() -> list[np.ndarray]:
        steps = session(lane, kind, Ranks())
        for dropout in (module for module in steps.model.modules() if isinstance(module, torch.nn.Dropout)):
            dropout.p = 0.0
        found = []
        for sequence in range(3):
            examples = lesson_of(steps, sequence)
            found += steps.strategy.answer(steps.model, [examples.positive, examples.random])
            learn(steps, examples)
        return found

    compiled = scores()
    without_kernels(monkeypatch)
    for ours, theirs in zip(compiled, scores(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_graph_is_turned_over_as_counted_by_hand() -> None:
    graph = CSRGraph(torch.tensor([0, 2, 2, 3, 5]), torch.tensor([1, 4, 0, 4, 4]), 6)
    assert graph.transpose.indptr.tolist() == [0, 1, 2, 2, 2, 5, 5]
    assert graph.transpose.sources.tolist() == [2, 0, 0, 3, 3]


def test_a_step_whose_gradient_is_not_finite_changes_neither_weights_nor_moments() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    rate = LearningRate(Optimisation(learning_rate=0.1), [weight])
    weight.grad = torch.ones(3)
    assert rate.step(torch.tensor(1.0)) == 0
    before, moments = weight.detach().clone(), rate.state()["optimiser"]["state"][0]["exp_avg"].clone()
    weight.grad = torch.full((3,), torch.nan)
    for norm in (torch.nan, torch.inf):
        assert rate.step(torch.tensor(norm)) == 1
    assert torch.equal(weight, before)
    assert torch.equal(rate.state()["optimiser"]["state"][0]["exp_avg"], moments)


def test_an_optimiser_of_an_older_checkpoint_leaves_steps_out_too() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    older = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.ones(3)
    older.step()
    rate = LearningRate(Optimisation(learning_rate=0.1), [weight])
    rate.restore({"optimiser": older.state_dict(), "steps": 1})
    before = weight.detach().clone()
    rate.step(torch.tensor(torch.nan))
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("wanted", "devices", "environment", "place"),
    [
        ("auto", 0, {}, "cpu"),
        ("auto", 1, {}, "cuda:0"),
        ("cpu", 4, {}, "cpu"),
        ("cuda", 2, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cuda:1"),
        ("auto", 2, {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "cuda:1"),
        ("auto", 1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cpu"),
        ("cuda", 1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "2 ranks share 1 CUDA"),
        ("cuda", 0, {}, "no CUDA device here"),
    ],
)
def test_every_rank_has_a_device_of_its_own_or_all_are_on_the_host(
    wanted: Any, devices: int, environment: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if " " in place:
        with pytest.raises(Failure, match=place):
            Ranks.from_environment(wanted)
        return
    assert str(Ranks.from_environment(wanted).device) == place
    assert [str(device) for device in chosen] == ([place] if place.startswith("cuda") else [])


def test_a_model_moved_to_a_device_has_all_it_needs_there() -> None:
    model: Model = create_model("tgn-history", ModelShape(0, 1), SAMPLED)
    moved = model.to(FAR)
    assert {tensor.device for tensor in (*moved.parameters(), *moved.buffers())} == {FAR}


def test_an_array_stays_where_it_is_on_the_host() -> None:
    array = np.arange(3)
    to_device(array, torch.device("cpu"))[0] = 7
    assert array[0] == 7
