"""Models, strategies and tasks that go together, by the registries; those of other distributions included."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from schemas.trainer_config import TrainerConfig
from trainer.models.interface import MODELS
from trainer.parameters import parameters_of
from trainer.strategies.interface import STRATEGIES, strategies_for
from trainer.tasks.interface import TASKS

LESS = {
    "hidden": 16,
    "signature": 8,
    "memory": 8,
    "time_width": 8,
    "channels": 8,
    "around": 20,
    "neighbours": 7,
}
"""Whichever of them a model has."""

Triple = tuple[str, str, str]
"""Names of a model, a strategy and a task."""


def covering(triples: Iterable[Triple]) -> list[Triple]:
    """Few triples that together have every pair of names that occurs in any: each time the one with most missing pairs."""
    pairs = {each: _pairs(each) for each in triples}
    missing = set[tuple[int, int, str, str]]().union(*pairs.values())
    chosen: list[Triple] = []
    while missing:
        chosen.append(max(pairs, key=lambda each: len(pairs[each] & missing)))
        missing -= pairs[chosen[-1]]
    return chosen


def _pairs(triple: Triple) -> set[tuple[int, int, str, str]]:
    return {(i, j, triple[i], triple[j]) for i, j in itertools.combinations(range(3), 2)}


TOGETHER: list[Triple] = [
    (model, strategy, task)
    for model in sorted(MODELS.all())
    for strategy in strategies_for(model)
    for task, found in sorted(TASKS.all().items())
    if found.asks in STRATEGIES.find(strategy).answers
]
COVERING = covering(TOGETHER)

every_triple = pytest.mark.parametrize(
    "together",
    [pytest.param(each, marks=() if each in COVERING else pytest.mark.slow) for each in TOGETHER],
    ids=["-".join(each) for each in TOGETHER],
)
"""All triples; ``make test`` takes those of ``COVERING``."""


def config_for(together: Triple, **more: Any) -> TrainerConfig:
    """A small model that learns in small steps on a lane named ``hash``; more are keys of the configuration."""
    model, strategy, task = together
    params = {name: LESS[name] for name in parameters_of(MODELS.find(model)) if name in LESS}
    return TrainerConfig.model_validate(
        {
            "store": "store", "lane": "hash", "window": 2, "model": model, "model_params": params,
            "strategy": strategy, "task": task, "optimisation": {"epochs": 1, "batch_size": 16, "learning_rate": 0.01},
            "classifier": {"epochs": 2}, "scoring": {"sample": 60},
            **more,
        }
    )  # fmt: skip
