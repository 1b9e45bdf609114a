"""One pass: what is taken, added up over ranks and reported, beside plain arithmetic."""

import copy
import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import side_by_side
from torch import Tensor, nn

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.learning.step import NEVER, Learner
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.strategies.passes import Step, run

FRESH = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1)).double()


def passed(steps: Any, ranks: Ranks | None = None, **more: Any) -> tuple[StepReport, nn.Module]:
    """The report of a pass, and the model that it taught; ``steps`` makes them of the model."""
    model, ranks = copy.deepcopy(FRESH), ranks or Ranks()
    learner = Learner(model, Optimisation(learning_rate=0.01), ranks, **more)
    return run(model, learner, ranks, steps(model)), model


def constant(model: nn.Module, loss: float) -> Tensor:
    """A loss of a value, with a gradient."""
    return next(model.parameters()).sum() * 0 + loss


def test_what_was_left_out_counts_as_such_and_nowhere_else() -> None:
    def steps(model: nn.Module) -> Iterator[Step]:
        yield Step(constant(model, 3.0), queries=4, items=2)
        yield Step(constant(model, math.nan), queries=100, items=50, replayed=7)
        yield Step(constant(model, 9.0), queries=0, items=0, weight=1, scale=0, replayed=5)
        yield Step(constant(model, 0.5), queries=6, items=3, weight=1, scale=6)
        yield Step(None, queries=0, items=0)

    report, _ = passed(steps)
    assert (report.steps, report.nonfinite, report.events, report.replayed) == (3, 1, 5, 5)
    assert report.loss == (3.0 + 6 * 0.5) / 10
    assert report.seconds.keys() == {"backward", "synchronise", "update"}
    assert passed(lambda _: ())[0].loss is None


def test_items_of_several_steps_are_counted_once() -> None:
    def steps(model: nn.Module) -> Iterator[Step]:
        for numbers, loss in (([1, 2, 3], 1.0), ([3, 4], 1.0), ([5], math.inf), ([], 1.0)):
            yield Step(constant(model, loss), queries=1, items=np.array(numbers, np.int64))

    assert passed(steps)[0].events == 4


def test_the_model_trains_during_the_pass_only_and_no_graph_outlives_its_step() -> None:
    seen: list[bool] = []
    held: list[weakref.ref[Tensor]] = []

    def steps(model: nn.Module) -> Iterator[Step]:
        model.eval()
        yield Step(None, 0, 0)
        for _ in range(3):
            seen.append(model.training)
            loss = constant(model, 1.0)
            held.append(weakref.ref(loss))
            yield Step(loss, 1, 1)
            del loss
            gc.collect()
            assert held[-1]() is None

    model = copy.deepcopy(FRESH).eval()
    before = []

    def watched() -> Iterator[Step]:
        before.append(model.training)
        yield from ()

    run(model, Learner(model, Optimisation(), Ranks()), Ranks(), watched())
    assert before == [True]
    assert not model.training
    assert not passed(steps)[1].training
    assert seen == [False] * 3, "a strategy may turn it off while it delivers mails"


@pytest.mark.parametrize("alone", [False, True])
def test_counts_are_those_of_all_ranks(alone: bool) -> None:
    def work(ranks: Ranks) -> StepReport:
        def steps(model: nn.Module) -> Iterator[Step]:
            mine = ranks.rank + 1
            for _ in range(2):
                loss = constant(model, 2.0 * mine)
                yield Step(loss, queries=mine if alone else 3, items=mine if alone else 3)

        return passed(steps, ranks, averages_every=NEVER if alone else None)[0]

    for report in side_by_side(2, work):
        assert report.loss == (2 * 2.0 + 2 * 4.0) / 6
        assert (report.steps, report.events) == (2, 6)


@pytest.mark.parametrize(("weight", "factor"), [(None, 1 / 4), (1.0, 1.0), (0.5, 0.5)])
def test_a_loss_weighs_as_its_step_says(weight: float | None, factor: float) -> None:
    gradients = []

    def steps(model: nn.Module) -> Iterator[Step]:
        weights = next(model.parameters())
        yield Step(weights.sum(), queries=4, items=4, weight=weight)
        gradients.append(weights.grad.clone())

        def backward() -> Tensor:
            (weights.sum() * 7).backward()
            return weights.detach().sum()

        yield Step(backward, queries=4, items=4, weight=weight)
        gradients.append(weights.grad.clone())

    model = copy.deepcopy(FRESH)
    run(model, Learner(model, Optimisation(grad_clip=None), Ranks()), Ranks(), steps(model))
    assert torch.equal(gradients[0], torch.full_like(gradients[0], factor))
    assert torch.equal(gradients[1], torch.full_like(gradients[1], 7.0))
