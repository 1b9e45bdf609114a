"""``freshet-trainer models``: what can be trained, and how."""

from inspect import Parameter, cleandoc, signature
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
        _describe(show, entry, f"a {entry['kind']}-based model, for {' or '.join(entry['strategies'])}")
    for entry in listed["strategies"]:
        _describe(show, entry, f"a strategy, for {entry['trains']}-based models")


def _describe(show: Console, entry: dict[str, Any], what: str) -> None:
    show.print(f"[bold]{entry['name']}[/bold]  {what}")
    show.print(Padding(f"{entry['summary']}\nparameters: {_inline(entry['params'])}\n", (0, 0, 0, 4)))


def _about(kind: Any) -> dict[str, Any]:
    params = {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    return {"params": params, "summary": cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")}


def _inline(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in params.items())
