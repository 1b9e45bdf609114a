"""Sealing: turns open events in order of arrival into snapshots in the log's order."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.store import Key
from freshet_graph.stream.arrays.kinds import Int64


@dataclass(frozen=True, slots=True)
class Run:
    """Open events of one topic partition in order of arrival, at least one.

    Attributes:
        source: The topic partition.
        tau: int64 (E,), the snapshot that each event was accepted for.
        events: Any columns, ``t`` among them, E rows.
        min_tau: Of ``tau``.
        max_tau: Of ``tau``.
    """

    source: Key
    tau: Int64
    events: pa.Table
    min_tau: int
    max_tau: int

    @classmethod
    def of(cls, source: Key, tau: Int64, events: pa.Table) -> Self:
        """A run of events with their snapshots."""
        return cls(source, tau, events, int(tau.min()), int(tau.max()))

    def __len__(self) -> int:
        return len(self.tau)

    def select(self, names: list[str]) -> "Run":
        """The run with some of its columns."""
        return replace(self, events=self.events.select(names))

    def with_nulls(self, name: str, kind: pa.DataType) -> "Run":
        """The run with a further column, of nulls."""
        return replace(self, events=self.events.append_column(name, pa.nulls(len(self), kind)))

    def after(self, through: int | None) -> "Run | None":
        """The events of snapshots after τ = ``through``; None: there are none."""
        if through is None or self.min_tau > through:
            return self
        if self.max_tau <= through:
            return None
        later = np.flatnonzero(self.tau > through)
        return Run.of(self.source, self.tau[later], self.events.take(pa.array(later)))

    def by_snapshot(self, through: int) -> Iterator[tuple[int, pa.Table]]:
        """The events up to τ = ``through``, snapshot by snapshot in ascending order, each in order of arrival."""
        if self.min_tau > through:
            return
        if self.min_tau == self.max_tau:
            yield self.min_tau, self.events
            return
        tau, events = self.tau, self.events
        if not _ascending(tau):
            order = np.argsort(tau, kind="stable")
            tau, events = tau[order], events.take(pa.array(order))
        starts = np.flatnonzero(np.concatenate(([True], tau[1:] != tau[:-1])))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(tau)], strict=True):
            if tau[start] > through:
                return
            yield int(tau[start]), events.slice(start, stop - start)


def runs_of(rows: pa.Table, through: int) -> Iterator[Run]:
    """Rows of the open tail, topic partition by topic partition.

    Args:
        rows: Open events in order of arrival, with ``topic``, ``partition`` and ``tau``; chunks may have different
            dictionaries of topics.
        through: Skip rows of later snapshots.
    """
    for batch in rows.to_batches():
        tau = batch["tau"].to_numpy()
        source = batch["topic"].indices.to_numpy().astype(np.int64) << 32 | batch["partition"].to_numpy()
        closing = np.flatnonzero(tau <= through)
        tau, source = tau[closing], source[closing]
        topics = batch["topic"].dictionary.to_pylist()
        events = pa.Table.from_batches([batch])
        for code in np.unique(source).tolist():
            of_source = source == code
            yield Run.of(
                (topics[code >> 32], code & 0xFFFFFFFF),
                tau[of_source],
                events.take(pa.array(closing[of_source])),
            )


def split_snapshots(runs: Iterable[Run], through: int) -> Iterator[tuple[int, pa.Table]]:
    """The snapshots up to τ = ``through``, each with its events in the log's order.

    The order is by t, then topic name, partition, offset and row: runs of a topic partition come in order of offset and row, and
    a stable sort preserves it among equal (t, topic partition).

    Args:
        runs: Open events with the same columns; runs of one topic partition in order of arrival.
        through: Last τ to seal.

    Yields:
        (τ, events) for every τ with events, ascending; each is sorted on demand.
    """
    closing: defaultdict[int, list[pa.Table]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.source):
        for tau, events in run.by_snapshot(through):
            closing[tau].append(events)
    for tau in sorted(closing):
        yield tau, _in_order(pa.concat_tables(closing.pop(tau)))


def _in_order(events: pa.Table) -> pa.Table:
    t = events["t"].to_numpy()
    if _ascending(t):
        return events
    order = pa.array(np.argsort(t, kind="stable"))
    # One chunk is 3 times as fast. A column of nulls is the same in any order.
    return pa.table(
        [
            column if column.null_count == len(column) else _one_chunk(column).take(order)
            for column in events.columns
        ],
        schema=events.schema,
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([column.combine_chunks()]) if column.num_chunks > 1 else column


def _ascending(values: Int64) -> bool:
    return bool((values[1:] >= values[:-1]).all())


_LARGEST = np.iinfo(np.int64).max


def densify(events: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Order canonical events by time and give their nodes dense ids, as the log does.

    Args:
        events: Canonical events (``freshet_graph.schemas.events.event_schema``) in file order.

    Returns:
        The events in order of ``t``, equal times in file order, with additional columns ``src_node`` and ``dst_node`` (−1 where
        ``dst`` is null), and ``row`` int64, the row in the input; and the external ids in dense order.
    """
    order = np.argsort(events["t"].to_numpy(), kind="stable")
    ordered = events.take(pa.array(order))
    src, dst = ordered["src"].combine_chunks(), ordered["dst"].combine_chunks()
    # First appearance, src before dst within a row: interleave, then number new ids.
    both = pa.concat_arrays([src, dst]).take(pa.array(np.arange(2 * len(src)).reshape(2, -1).T.reshape(-1)))
    known = both.drop_null()
    ids = pc.unique(known)
    dense = pc.index_in(both, value_set=ids).fill_null(-1).to_numpy().astype(np.int64).reshape(-1, 2)
    columns = {"src_node": dense[:, 0].copy(), "dst_node": dense[:, 1].copy(), "row": order}
    for name, values in columns.items():
        ordered = ordered.append_column(pa.field(name, pa.int64(), nullable=False), pa.array(values))
    return ordered, ids


def slice_events(
    events: pa.Table, *, interval_us: int | None = None, num_slices: int | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """Cut events into snapshots, oldest first, without empty ones.

    Args:
        events: Rows in order of ``t`` (int64 µs).
        interval_us: Snapshot τ holds t in [τ·interval, (τ+1)·interval).
        num_slices: Or N slices of equal event count that keep equal times together: the cut after i/N of the events moves back
            to the first event of its time. Neither: one snapshot, τ = 0.

    Yields:
        τ and its rows, in order. With ``num_slices``, τ is the number of the slice, 0 … N − 1.

    Raises:
        ValueError: Both are given, or one is below 1 or beyond int64.
    """
    if interval_us is not None and num_slices is not None:
        raise ValueError("give an interval or a number of snapshots, not both")
    for value, name in ((interval_us, "interval_us"), (num_slices, "num_slices")):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, found {value}")
        if value is not None and value > _LARGEST:
            raise ValueError(f"{name} must be at most {_LARGEST}, found {value}")
    t = events["t"].to_numpy()
    if interval_us is not None:
        return _cut(events, t // interval_us)
    return _cut(events, _equal_counts(t, num_slices or 1))


def _equal_counts(t: Int64, num_slices: int) -> Int64:
    if not len(t):
        return np.empty(0, np.int64)
    first_times = t[np.arange(1, num_slices) * len(t) // num_slices]
    return np.searchsorted(first_times, t, side="right")


def _cut(events: pa.Table, tau: Int64) -> Iterator[tuple[int, pa.Table]]:
    starts = np.flatnonzero(np.diff(tau, prepend=tau[:1] - 1))
    for start, end in zip(starts, [*starts[1:], len(tau)], strict=True):
        yield int(tau[start]), events.slice(start, end - start)
