"""Check rows of a sealed snapshot for values that no decoder lets through, because readers don't check them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.events import Op
from schemas.store import LogHeader


def wrong_rows(events: pa.Table, header: LogHeader) -> Iterator[str]:
    """Problems of single rows: kinds, ends, weights, widths of features.

    Args:
        events: ``log_event_schema``, in order.
        header: The log's.

    Yields:
        One sentence per problem, with its first row.
    """
    op = events["op"].to_numpy()
    without_dst = events["dst"].is_null().to_numpy()
    given = events["features"].is_valid().to_numpy()
    length = events["features"].combine_chunks().value_lengths().fill_null(0).to_numpy()
    whole = events["feature_offset"].is_null().to_numpy()
    start = events["feature_offset"].fill_null(0).to_numpy().astype(np.int64)
    node = op == Op.NODE
    wrong: dict[str, NDArray[np.bool_]] = {
        "an unknown op": ~np.isin(op, [int(kind) for kind in Op]),
        "a dst though it is a node event, or none though it is an edge's": node != without_dst,
        "a weight that is not finite": ~np.isfinite(events["weight"].to_numpy()),
    }
    if header.node_features:
        fits = np.where(
            whole, length == header.node_features, (start >= 0) & (start + length <= header.node_features)
        )
        wrong[f"features that don't fit the width {header.node_features}"] = node & given & ~fits
    if header.edge_features:
        wrong[f"features of another width than {header.edge_features}"] = (
            ~node & given & (length != header.edge_features)
        )
    for what, rows in wrong.items():
        if rows.any():
            yield f"row {int(np.flatnonzero(rows)[0])} has {what}"
    values = pc.list_flatten(events["features"])
    if values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py():
        yield "some feature values are null or not finite"
