"""Models, strategies and tasks that go together, by the registries; those of other distributions included."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from labels_of_nodes import labels_file

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.strategies.interface import STRATEGIES, strategies_for
from freshet_graph.trainer.tasks.interface import TASKS

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


def covering(triples: Iterable[Triple], facets: Callable[[Triple], set[Any]]) -> list[Triple]:
    """Few triples that together have every facet that occurs in any: each time the one with most missing facets."""
    found = {each: facets(each) for each in triples}
    missing = set[Any]().union(*found.values())
    chosen: list[Triple] = []
    while missing:
        chosen.append(max(found, key=lambda each: len(found[each] & missing)))
        missing -= found[chosen[-1]]
    return chosen


def _pairs(triple: Triple) -> set[Any]:
    return {(i, j, triple[i], triple[j]) for i, j in itertools.combinations(range(3), 2)}


def _model_and_rest(triple: Triple) -> set[Any]:
    model, *rest = triple
    return {model, tuple(rest)}


TOGETHER: list[Triple] = [
    (model, strategy, task)
    for model in sorted(MODELS.all())
    for strategy in strategies_for(model)
    for task, found in sorted(TASKS.all().items())
    if found.subject in STRATEGIES.find(strategy).answers
]


def _quick(chosen: list[Triple]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "together",
        [pytest.param(each, marks=() if each in chosen else pytest.mark.slow) for each in TOGETHER],
        ids=["-".join(each) for each in TOGETHER],
    )


every_triple = _quick(covering(TOGETHER, _pairs))
"""All triples; ``make test`` takes some that have all pairs of names."""
each_model = _quick(covering(TOGETHER, _model_and_rest))
"""All triples; ``make test`` takes some that have all models, and all pairs of a strategy and a task."""


def config_for(together: Triple, **more: Any) -> TrainerConfig:
    """A small model on a lane named ``hash``; more are keys of the configuration.

    Its batches give the lanes of the contracts two steps per snapshot: what happens in each step shows in the second.
    """
    model, strategy, task = together
    params = {name: LESS[name] for name in MODELS.find(model).Options.model_fields if name in LESS}
    of_task = {"edge-classification": {"first": 40}, "node-classification": {"labels": labels_file()}}
    return TrainerConfig.model_validate(
        {
            "store": "store", "lane": "hash", "window": 2, "model": model, "model_params": params,
            "strategy": strategy, "task": task, "task_params": of_task.get(task, {}),
            "optimisation": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01},
            "scoring": {"sample": 60},
            **more,
        }
    )  # fmt: skip
