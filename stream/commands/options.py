"""Options that several commands have."""

from typing import Annotated, Any

import typer

from freshet_graph.stream.service.failure import Failure

Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter of the algorithm, such as reward=paper. May be repeated.",
    ),
]

_SEALED_BY = "what was sealed by this snapshot (18262), time (2024-05-01T12:00, UTC) or second (@1714564800)."

StoreMoment = Annotated[str | None, typer.Option("--as-of", metavar="MOMENT", help=f"Only {_SEALED_BY}")]
AsOfMoment = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="MOMENT",
        help=f"Of a store: only {_SEALED_BY}",
    ),
]


def parameters(pairs: list[str] | None) -> dict[str, Any]:
    """The values of ``--param``, which are YAML.

    Raises:
        Failure: One is no pair, or its value is not YAML.
    """
    import yaml

    params: dict[str, Any] = {}
    for pair in pairs or []:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise Failure(f"--param takes name=value, found {pair!r}")
        try:
            params[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise Failure(
                f"--param {name} takes a YAML value, such as 3, text or [1, 2], found {value!r}"
            ) from error
    return params
