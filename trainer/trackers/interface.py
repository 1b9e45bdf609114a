"""The interface of experiment trackers, and the registry that finds them by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from freshet_graph.schemas.section import Section
from freshet_graph.stream.registry import Registry, require_members
from freshet_graph.stream.service.failure import Failure


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run, as its tracker sees it when it begins.

    Attributes:
        name: For people: graph, lane and model.
        params: The configuration by dotted keys, without the tracker's own.
        tags: Version, graph and lane.
    """

    name: str
    params: dict[str, str]
    tags: dict[str, str]


class Tracker(Protocol):
    """Sends a run to a service. Made by ``(options)`` in a thread of its own on rank 0, which makes all calls.

    Whatever a method raises is reported and tried again; training never waits for it.

    Attributes:
        name: Key in the registry and in configurations.
        Options: Its parameters, a section with defaults, descriptions and bounds.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Section]]

    def open(self, run: TrackedRun, earlier: str | None) -> str:
        """Begin a run, or continue an earlier one.

        Args:
            run: What it is.
            earlier: The id of the run that this checkpoint folder belongs to; None: there is none.

        Returns:
            The service's id of the run.
        """
        ...

    def log(self, figures: Sequence[tuple[Mapping[str, float], int, int]]) -> None:
        """Send figures.

        Args:
            figures: Of each snapshot: figures by name, its number, and the time of its newest event in milliseconds.
        """
        ...

    def upload(self, files: Mapping[str, Path]) -> None:
        """Send files, by their paths in the run."""
        ...

    def close(self, *, failed: bool) -> None:
        """End the run for now; a later start continues it."""
        ...


def _require_tracker(candidate: Any) -> None:
    """Check that an entry point leads to a tracker's class."""
    require_members(candidate, Tracker, "tracker")


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    "tracker_params",
    "freshet.trackers",
    ("freshet_graph.trainer.trackers.mlflow",),
    error=Failure,
    check=_require_tracker,
)
