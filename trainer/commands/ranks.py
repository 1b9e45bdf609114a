"""Options of commands that run in several ranks, and the process that does their work."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.trainer.launch import (
    RankRange,
    failed_before,
    launch,
    launched,
    report_failure,
    report_result,
)
from freshet_graph.trainer.lost_peer import PeerLostError

log = structlog.get_logger()

RankCount = Annotated[
    int | None,
    typer.Option("--ranks", min=1, help="Processes to start on this machine. Leave it out under torchrun."),
]


def _rank_numbers(text: str) -> RankRange:
    try:
        return RankRange.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


RankNumbers = Annotated[
    RankRange | None,
    typer.Option(
        "--ranks",
        metavar="N|MIN:MAX",
        parser=_rank_numbers,
        help="Processes to start on this machine. Leave it out under torchrun. 1:4 starts four, and one fewer whenever one dies.",
    ),
]
AsOfMoment = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="MOMENT",
        help="With a store: end at this snapshot (18262), time (2024-05-01T12:00, UTC) or second (@1714564800).",
    ),
]
ConfigFile = Annotated[
    Path, typer.Option("--config", help="The configuration. See freshet-trainer config --example.")
]


def in_ranks(
    ranks: RankRange | None, work: Callable[[], Mapping[str, Any] | None]
) -> Mapping[str, Any] | None:
    """Do a command's work in this process, or in ranks that are started for it.

    Args:
        ranks: How many to start; None or 1: this process is the only one. Under torchrun this process is a rank.
        work: Returns the result on rank 0 and None on others.

    Returns:
        The result in the process that prints it, None in others.
    """
    if not launched():
        return launch(sys.argv[1:], ranks) if ranks is not None and ranks.most > 1 else _worked(work)
    if failed_before():
        return None
    try:
        result = _worked(work)
    except PeerLostError:
        raise  # worth another attempt
    except Exception as error:
        if not isinstance(error, (FreshetError, OSError)):
            # a defect: its text alone says little, and another attempt would not mend it
            log.error("unexpected error", exc_info=error)
        if not report_failure(error):
            raise
        return None
    return None if result is None or report_result(result) else result


def _worked(work: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    from freshet_graph.stream.service.memory import keep_memory

    keep_memory()
    return work()
