"""``freshet-trainer models``: what can be trained, and how."""

from inspect import Parameter, cleandoc, signature
from typing import Any

from rich.console import Console
from rich.table import Table

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
    table = Table(title="Models and strategies", title_justify="left")
    for heading in ("name", "what", "goes with", "parameters", ""):
        table.add_column(heading)
    for entry in listed["models"]:
        table.add_row(
            entry["name"], f"{entry['kind']}-based model", ", ".join(entry["strategies"]),
            _inline(entry["params"]), entry["summary"],
        )  # fmt: skip
    for entry in listed["strategies"]:
        table.add_row(
            entry["name"],
            "strategy",
            f"{entry['trains']}-based models",
            _inline(entry["params"]),
            entry["summary"],
        )
    Console().print(table)


def _about(kind: Any) -> dict[str, Any]:
    params = {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    return {"params": params, "summary": cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")}


def _inline(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in params.items())
