"""Parts of a training step that a GPU needs; whole steps are in ``test_device_contract``."""

from typing import Any

import numpy as np
import pytest
import structlog
import torch

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.learning.step import LearningRate
from freshet_graph.trainer.models.interface import Model, ModelShape, create_model
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.ranks import Ranks

FAR = torch.device("meta")


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
        ("auto", 1, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "cpu"),
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
    with structlog.testing.capture_logs() as lines:
        assert str(Ranks.from_environment(wanted).device) == place
    shared = "LOCAL_RANK" in environment and devices == 1
    assert [(line["ranks"], line["devices"]) for line in lines] == ([(2, 1)] if shared else [])
    assert [str(device) for device in chosen] == ([place] if place.startswith("cuda") else [])


def test_a_model_moved_to_a_device_has_all_it_needs_there() -> None:
    model: Model = create_model("tgn-history", ModelShape(0, 1), {"memory": 8, "time_width": 6})
    moved = model.to(FAR)
    assert {tensor.device for tensor in (*moved.parameters(), *moved.buffers())} == {FAR}


def test_an_array_stays_where_it_is_on_the_host() -> None:
    array = np.arange(3)
    to_device(array, torch.device("cpu"))[0] = 7
    assert array[0] == 7
