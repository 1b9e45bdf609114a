"""``freshet-trainer models``: models, strategies and tasks with their parameters."""

import json as json_text
from inspect import cleandoc
from typing import Any

from rich.console import Console
from rich.padding import Padding

from stream.service.output import Json, note, print_json


def models(json: Json = False) -> None:
    """List models, strategies and tasks with their parameters, and which go together.

    Example: freshet-trainer models --json
    """
    from trainer.models.interface import MODELS
    from trainer.strategies.interface import STRATEGIES, strategies_for
    from trainer.tasks.interface import TASKS

    listed: dict[str, Any] = {
        "models": [
            {
                "name": name,
                "kind": model.kind,  # type: ignore[attr-defined]  # registered classes have one
                "strategies": strategies_for(name),
                **_about(model, model),
            }
            for name, model in sorted(MODELS.all().items())
        ],
        "strategies": [
            {
                "name": name,
                "trains": strategy.trains,
                "tasks": [
                    task for task, found in sorted(TASKS.all().items()) if found.asks in strategy.answers
                ],
                **_about(strategy, strategy.Options),
            }
            for name, strategy in sorted(STRATEGIES.all().items())
        ],
        "tasks": [
            {"name": name, "asks": task.asks, "summary": _summary(task)}
            for name, task in sorted(TASKS.all().items())
        ],
        "broken": MODELS.broken() | STRATEGIES.broken() | TASKS.broken(),
    }
    if json:
        print_json(listed)
        return
    show = Console(highlight=False)
    for entry in listed["models"]:
        _describe(show, entry, f"model on {entry['kind']}s, for strategy {' or '.join(entry['strategies'])}")
    for entry in listed["strategies"]:
        _describe(show, entry, f"strategy, for models on {entry['trains']}s and {', '.join(entry['tasks'])}")
    for entry in listed["tasks"]:
        show.print(f"[bold]{entry['name']}[/bold]  task, about {entry['asks']}")
        show.print(Padding(f"{entry['summary']}\n", (0, 0, 0, 4)))
    for sentence in listed["broken"].values():
        note(sentence)


def _describe(show: Console, entry: dict[str, Any], what: str) -> None:
    show.print(f"[bold]{entry['name']}[/bold]  {what}")
    show.print(Padding(f"{entry['summary']}\nparameters: {_inline(entry['params'])}\n", (0, 0, 0, 4)))


def _about(kind: Any, options: Any) -> dict[str, Any]:
    from trainer.parameters import parameters_of

    return {"params": parameters_of(options), "summary": _summary(kind)}


def _summary(kind: Any) -> str:
    return cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _inline(params: dict[str, Any]) -> str:
    """Parameters as a configuration takes them."""
    shown = (
        (name, each if isinstance(each, str) else json_text.dumps(each)) for name, each in params.items()
    )
    return "{" + ", ".join(f"{name}: {value}" for name, value in shown) + "}"
