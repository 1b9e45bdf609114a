"""``freshet-trainer models``: models, strategies, tasks and trackers with their parameters."""

import json as json_text
from inspect import cleandoc
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from freshet_graph.schemas.section import Section
from freshet_graph.stream.nearest import did_you_mean
from freshet_graph.stream.registry import Registry
from freshet_graph.stream.service.example import described
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Json, finish, note, print_json

KINDS = ("models", "strategies", "tasks", "trackers")


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only the model, strategy, task or tracker of this name, its parameters with their meaning and bounds.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List models, strategies, tasks and experiment trackers with their parameters, and which go together.

    Example: freshet-trainer models vertex
    """
    finish(lambda: _show(name, json=json))


def _show(name: str | None, *, json: bool) -> None:
    from freshet_graph.trainer.models.interface import MODELS
    from freshet_graph.trainer.strategies.interface import STRATEGIES, strategies_for
    from freshet_graph.trainer.tasks.interface import TASKS
    from freshet_graph.trainer.trackers.interface import TRACKERS

    listed: dict[str, Any] = {
        "models": [
            {
                "name": name,
                "kind": model.kind,
                "strategies": strategies_for(name),
                **_about(model),
            }
            for name, model in sorted(MODELS.all().items())
        ],
        "strategies": [
            {
                "name": name,
                "trains": strategy.trains,
                "tasks": [
                    task
                    for task, task_class in sorted(TASKS.all().items())
                    if task_class.subject in strategy.answers
                ],
                **_about(strategy),
            }
            for name, strategy in sorted(STRATEGIES.all().items())
        ],
        "tasks": [
            {"name": name, "asks": task.subject, **_about(task)} for name, task in sorted(TASKS.all().items())
        ],
        "trackers": [{"name": name, **_about(tracker)} for name, tracker in sorted(TRACKERS.all().items())],
        "broken": MODELS.broken() | STRATEGIES.broken() | TASKS.broken() | TRACKERS.broken(),
    }
    if name is not None:
        known = [entry["name"] for kind in KINDS for entry in listed[kind]]
        if name not in known:
            raise Failure(f"there is no model, strategy, task or tracker {name!r}{did_you_mean(name, known)}")
        for kind in KINDS:
            listed[kind] = [entry for entry in listed[kind] if entry["name"] == name]
    if json:
        print_json(listed)
        return
    show = Console(highlight=False)
    registries: tuple[Registry[Any], ...] = (MODELS, STRATEGIES, TASKS, TRACKERS)
    for kind, registry in zip(KINDS, registries, strict=True):
        for entry in listed[kind]:
            options = registry.find(entry["name"]).Options if name else None
            _describe(show, entry, options)
    for sentence in listed["broken"].values():
        note(sentence)


def _describe(show: Console, entry: dict[str, Any], options: type[Section] | None) -> None:
    """Print an entry; with ``options`` each of its parameters with meaning, bounds and default."""
    if "kind" in entry:
        what = f"model on {entry['kind']}s, for strategy {' or '.join(entry['strategies'])}"
    elif "trains" in entry:
        what = f"strategy, for models on {entry['trains']}s and {', '.join(entry['tasks'])}"
    elif "asks" in entry:
        what = f"task, about {entry['asks']}"
    else:
        what = "experiment tracker"
    parameters = f" {_inline(entry['params'])}" if options is None else f"\n{escape(described(options))}"
    show.print(f"[bold]{entry['name']}[/bold]  {what}")
    show.print(Padding(f"{entry['summary']}\nparameters:{parameters}\n", (0, 0, 0, 4)))


def _about(entry_class: Any) -> dict[str, Any]:
    return {
        "params": {name: field.default for name, field in entry_class.Options.model_fields.items()},
        "summary": cleandoc(entry_class.__doc__ or "").split("\n\n")[0].replace("\n", " "),
    }


def _inline(params: dict[str, Any]) -> str:
    """Parameters as a configuration takes them."""
    shown = (
        (name, default if isinstance(default, str) else json_text.dumps(default))
        for name, default in params.items()
    )
    return "{" + ", ".join(f"{name}: {value}" for name, value in shown) + "}"
