"""Run one file through several partitioners, for ``freshet-stream partition --algorithm a,b`` and ``all``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshet_graph.schemas.errors import MissingLibraryError, one_line
from freshet_graph.stream.nearest import did_you_mean
from freshet_graph.stream.partition.interface import (
    PARTITIONERS,
    Kind,
    PartitionError,
    algorithms,
    broken_algorithms,
    check_parts,
    create,
)
from freshet_graph.stream.partition.offline import partition_events


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of one partitioner: its figures, or why it has none.

    Attributes:
        algorithm: Its name.
        kind: vertex or edge; None if it can't be loaded.
        figures: As in ``OfflineResult``; None if it refused or failed.
        refusal: Why, a sentence; None if it has figures.
    """

    algorithm: str
    kind: Kind | None
    figures: dict[str, Any] | None
    refusal: str | None


def require_known(names: Sequence[str] | None, params: Mapping[str, Any]) -> None:
    """Check names of partitioners, None for all, and that each parameter is one of theirs.

    Raises:
        PartitionError: A name is unknown, or no named partitioner takes a parameter.
    """
    known = algorithms() if names is None else {name: PARTITIONERS.find(name) for name in names}
    taken = {key for partitioner in known.values() for key in partitioner.Options.model_fields}
    for key in params:
        if key not in taken:
            whose = "no partitioner" if names is None else f"none of {', '.join(names)}"
            raise PartitionError(f"{whose} takes {key}{did_you_mean(key, taken)}")


def chosen_params(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters of several partitioners that one of them takes."""
    return {
        key: value for key, value in params.items() if key in PARTITIONERS.find(name).Options.model_fields
    }


def compare(
    events: pa.Table,
    names: Sequence[str] | None = None,
    *,
    parts: int,
    interval_us: int | None = None,
    num_slices: int | None = None,
    seed: int = 0,
    window: int = 4,
    node_features: int = 0,
    params: dict[str, Any] | None = None,
    begun: Callable[[str], None] = lambda algorithm: None,
    progress: Callable[[int], None] = lambda events: None,
) -> list[Compared]:
    """Run several partitioners on the same snapshots.

    Args:
        events: Canonical events.
        names: Theirs, in the order of the result; None: all, vertex partitioners first.
        parts: K.
        interval_us: Length of a snapshot.
        num_slices: Or their number.
        seed: Seed of all draws.
        window: w.
        node_features: Width of node feature vectors.
        params: Each is given to the partitioners that take it; PartitionError if none does.
        begun: Called with the name of a partitioner before it starts.
        progress: Called with the number of events done.
    """
    check_parts("every partitioner", parts)
    require_known(names, params or {})
    known = algorithms()
    order = sorted(known, key=lambda name: (known[name].kind != "vertex", name)) if names is None else names
    compared: list[Compared] = []
    for name in order:
        kind = known[name].kind
        begun(name)
        chosen = chosen_params(name, params or {})
        try:
            result = partition_events(
                events,
                create(name, chosen, parts=parts, seed=seed, window=window),
                interval_us=interval_us,
                num_slices=num_slices,
                by_span="time_constant" not in chosen,
                node_features=node_features,
                progress=progress,
            )
        except (PartitionError, MissingLibraryError) as error:
            compared.append(Compared(name, kind, None, str(error)))
        except Exception as error:  # noqa: BLE001  one of another package may raise anything; the others have figures
            cause = f"{type(error).__name__}: {one_line(error)}"
            remedy = f"Run it alone, with --algorithm {name}, to see where"
            compared.append(Compared(name, kind, None, f"partitioner {name} failed with {cause}. {remedy}"))
        else:
            compared.append(Compared(name, kind, result.figures, None))
    broken = sorted(broken_algorithms().items()) if names is None else []
    return [*compared, *(Compared(name, None, None, why) for name, why in broken)]
