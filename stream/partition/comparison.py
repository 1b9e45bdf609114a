"""One file through every partitioner: what ``freshet-stream partition --algorithm all`` does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stream.nearest import did_you_mean
from stream.partition.interface import Kind, PartitionError, algorithms, broken_algorithms, check_parts
from stream.partition.offline import Mode, TwoPass, accepted_params, partition_events


@dataclass(frozen=True, slots=True)
class Compared:
    """What became of one partitioner: its figures, or why it has none.

    Attributes:
        algorithm: Its name.
        kind: vertex or edge; None where it cannot be loaded.
        figures: As ``partition_events`` gives them; None where it refused.
        refusal: The sentence it refused with; None where it did not.
    """

    algorithm: str
    kind: Kind | None
    figures: dict[str, Any] | None
    refusal: str | None


def compare(
    events: pa.Table,
    *,
    parts: int,
    interval_us: int | None = None,
    num_slices: int | None = None,
    mode: Mode = "online",
    seed: int = 0,
    window: int = 4,
    node_features: int = 0,
    params: dict[str, Any] | None = None,
    begun: Callable[[str], None] = lambda algorithm: None,
    progress: Callable[[int], None] = lambda events: None,
) -> list[Compared]:
    """Run every partitioner on the same snapshots, vertex partitioners first.

    Args:
        events: As of ``partition_events``, like all others that are not named here.
        parts: K.
        interval_us: Length of a snapshot.
        num_slices: Or their number.
        mode: two-pass: those that can look at the whole file first, the others don't.
        seed: Of all draws.
        window: w.
        node_features: Width of node feature vectors.
        params: Each goes to the partitioners that take it.
        begun: Told the name of a partitioner before it starts.
        progress: Told the events that it has done.

    Raises:
        PartitionError: K is out of range, or a parameter is taken by none.
        ValueError: The snapshots are wrong.
    """
    check_parts("every partitioner", parts)
    known = algorithms()
    takes = {name: accepted_params(name) for name in known}
    for given in params or {}:
        if not any(given in taken for taken in takes.values()):
            raise PartitionError(
                f"no partitioner takes {given}{did_you_mean(given, set().union(*takes.values()))}"
            )
    compared: list[Compared] = []
    for name in sorted(known, key=lambda name: (known[name].kind != "vertex", name)):  # type: ignore[attr-defined]
        kind: Kind = known[name].kind  # type: ignore[attr-defined]
        begun(name)
        own = {key: value for key, value in (params or {}).items() if key in takes[name]}
        try:
            result = partition_events(
                events,
                name,
                parts=parts,
                interval_us=interval_us,
                num_slices=num_slices,
                mode=mode if hasattr(known[name], TwoPass.foresee.__name__) else "online",
                seed=seed,
                window=window,
                node_features=node_features,
                params=own,
                progress=progress,
            )
        except PartitionError as error:
            compared.append(Compared(name, kind, None, str(error)))
        else:
            compared.append(Compared(name, kind, result.figures, None))
    broken = sorted(broken_algorithms().items())
    return [*compared, *(Compared(name, None, None, told) for name, told in broken)]
