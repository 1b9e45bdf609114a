"""A file or a store through partitioners, for the command and for other programs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.partition.interface import check_parts, create
from freshet_graph.stream.partition.offline import OfflineResult, partition_events
from freshet_graph.stream.store.as_of import Moment
from freshet_graph.stream.store.store_events import read_source

if TYPE_CHECKING:
    from freshet_graph.stream.partition.comparison import Compared


def partition(
    source: str | Path | Sequence[str],
    algorithm: str,
    *,
    parts: int,
    interval_s: float | None = None,
    snapshots: int | None = None,
    seed: int = 0,
    window: int = 4,
    params: dict[str, Any] | None = None,
    as_of: Moment | None = None,
    reading: FileOptions = AS_EVENTS,
    progress: Callable[[int, int], None] = lambda done, events: None,
) -> OfflineResult:
    """Partition a file or a store snapshot by snapshot and measure the partition, like ``freshet-stream partition``.

    Args:
        source: A file or several, or a store's folder or address.
        algorithm: A name of ``freshet_graph.stream.partition.interface.algorithms``.
        parts: K.
        interval_s: Length of a snapshot in seconds, aligned to the epoch.
        snapshots: Or their number, of equal event count. Neither: the file is one snapshot.
        seed: Of all draws.
        window: w, snapshots that trainers look back.
        params: The algorithm's own parameters.
        as_of: Of a store: events up to this moment, as ``AsOf.of`` takes it.
        reading: How files are read.
        progress: Called with the events done and all events, after every snapshot.

    Raises:
        PartitionError: The algorithm or a parameter is unknown or out of range, or nothing fits.
        Failure: The file can't be read or has no events.
        StoreError: The store can't be read, or not so far back.
    """
    chosen = params or {}
    partitioner = create(algorithm, chosen, parts=parts, seed=seed, window=window)  # before the file is read
    read = read_source(_source(source), as_of, reading)
    return partition_events(
        read.events,
        partitioner,
        interval_us=None if interval_s is None else round(interval_s * US_PER_S),
        num_slices=snapshots,
        by_span="time_constant" not in chosen,
        node_features=read.node_features,
        progress=lambda done: progress(done, read.events.num_rows),
    )


def compare_file(
    source: str | Path | Sequence[str],
    names: Sequence[str] | None,
    *,
    parts: int,
    interval_s: float | None,
    snapshots: int | None,
    seed: int,
    window: int,
    params: dict[str, Any],
    as_of: Moment | None,
    reading: FileOptions,
    begun: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> "list[Compared]":
    """Run several partitioners, or all, on the same snapshots; see ``partition_file`` and ``comparison.compare``."""
    from freshet_graph.stream.partition.comparison import compare, require_known

    check_parts("every partitioner", parts)  # refuses before the file is read
    require_known(names, params)
    read = read_source(_source(source), as_of, reading)
    return compare(
        read.events,
        names,
        parts=parts,
        interval_us=None if interval_s is None else round(interval_s * US_PER_S),
        num_slices=snapshots,
        seed=seed,
        window=window,
        node_features=read.node_features,
        params=params,
        begun=begun,
        progress=lambda done: progress(done, read.events.num_rows),
    )


def _source(source: str | Path | Sequence[str]) -> str | Sequence[str]:
    return str(source) if isinstance(source, Path) else source
