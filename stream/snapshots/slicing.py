"""Cut a whole event table into snapshots: the offline counterpart of sealing."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream.arrays.kinds import Int64

_LARGEST = np.iinfo(np.int64).max


def densify(events: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Order canonical events by time and give their nodes dense ids, as the log does.

    Args:
        events: Canonical events (``schemas.events.event_schema``) in file order.

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
