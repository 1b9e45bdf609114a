"""``freshet-trainer models``: what can be trained, and how."""

import json as json_text
from inspect import cleandoc
from typing import Any

from rich.console import Console
from rich.padding import Padding

from stream.service.output import Json, print_json


def models(json: Json = False) -> None:
    """List models and strategies, their parameters, and which go together.

    Example: freshet-trainer models --json
    """
    from trainer.models.interface import models as known_models
    from trainer.strategies.interface import strategies as known_strategies

    listed = {
        "models": [
            {
                "name": name,
                "kind": model.kind,  # type: ignore[attr-defined]  # registered classes have one
                "strategies": [
                    strategy_name
                    for strategy_name, strategy in sorted(known_strategies().items())
                    if strategy.trains == model.kind  # type: ignore[attr-defined]  # likewise
                ],
                **_about(model),
            }
            for name, model in sorted(known_models().items())
        ],
        "strategies": [
            {"name": name, "trains": strategy.trains, **_about(strategy)}  # type: ignore[attr-defined]  # likewise
            for name, strategy in sorted(known_strategies().items())
        ],
    }
    if json:
        print_json(listed)
        return
    show = Console(highlight=False)
    for entry in listed["models"]:
        _describe(show, entry, f"model on {entry['kind']}s, for strategy {' or '.join(entry['strategies'])}")
    for entry in listed["strategies"]:
        _describe(show, entry, f"strategy, for models on {entry['trains']}s")


def _describe(show: Console, entry: dict[str, Any], what: str) -> None:
    show.print(f"[bold]{entry['name']}[/bold]  {what}")
    show.print(Padding(f"{entry['summary']}\nparameters: {_inline(entry['params'])}\n", (0, 0, 0, 4)))


def _about(kind: Any) -> dict[str, Any]:
    from trainer.parameters import parameters_of

    return {
        "params": parameters_of(kind),
        "summary": cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " "),
    }


def _inline(params: dict[str, Any]) -> str:
    """As a configuration takes them."""
    shown = {
        name: value if isinstance(value, str) else json_text.dumps(value) for name, value in params.items()
    }
    return "{" + ", ".join(f"{name}: {value}" for name, value in shown.items()) + "}"
