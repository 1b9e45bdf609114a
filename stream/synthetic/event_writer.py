"""Tables to Parquet or CSV files, events counted on the way."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from freshet_graph.schemas.events import Op
from freshet_graph.stream.synthetic.payments import PATTERNS, Part

_LARGEST_ROW_GROUP = 1 << 20


def write_events(path: Path, tables: Iterable[pa.Table], *, interval_s: float) -> dict[str, Any]:
    """Write tables of events to one file, which is replaced: CSV if its name ends in ``.csv``, else Parquet.

    Returns:
        The result of ``synth --json``: file, nodes (distinct ids, not negative), edges (inserts), snapshots (intervals of
        ``interval_s`` that are not empty) and events.
    """
    seen = np.zeros(0, bool)
    intervals: set[int] = set()
    edges = events = 0
    with _TableFile(path) as file:
        for table in tables:
            file.write(table)
            seen = _seen(seen, table)
            intervals.update(np.unique(table["t"].to_numpy() // interval_s).tolist())
            edges += pc.sum(pc.equal(table["op"], int(Op.INSERT))).as_py() or 0
            events += table.num_rows
    return {
        "file": str(path),
        "nodes": int(seen.sum()),
        "edges": edges,
        "snapshots": len(intervals),
        "events": events,
    }


def write_payments(path: Path, parts: Iterable[Part], *, interval_s: float) -> dict[str, Any]:
    """Write payments to a file as ``write_events`` does, and beside *x.parquet* their *x-labels.parquet* and *x-truth.parquet*.

    Returns:
        That of ``write_events``, and labels_file, truth_file, labels (their number) and frauds (by pattern).
    """
    labels_path, truth_path = (
        path.with_name(f"{path.stem}-{what}{path.suffix}") for what in ("labels", "truth")
    )
    count = 0
    frauds = Counter(dict.fromkeys(PATTERNS, 0))
    with _TableFile(labels_path) as labels, _TableFile(truth_path) as truth:

        def events() -> Iterator[pa.Table]:
            nonlocal count
            for part in parts:
                labels.write(part.labels)
                truth.write(part.truth)
                count += len(part.labels)
                for some in pc.value_counts(part.truth["pattern"]).to_pylist():
                    frauds[some["values"]] += some["counts"]
                yield part.events

        written = write_events(path, events(), interval_s=interval_s)
    beside = {"labels_file": str(labels_path), "truth_file": str(truth_path)}
    return {**written, **beside, "labels": count, "frauds": dict(frauds)}


class _TableFile:
    """A file that is replaced: CSV if its name ends in ``.csv``, else Parquet. The first table has its columns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, table: pa.Table) -> None:
        is_csv = self._path.suffix == ".csv"
        if is_csv and "features" in table.schema.names:
            table = _as_text(table)
        if self._writer is None:
            # Ids that differ in each row are no words of a dictionary.
            words = [name for name in table.schema.names if name != "event_id"]
            self._writer = (
                pacsv.CSVWriter(self._path, table.schema)
                if is_csv
                else pq.ParquetWriter(self._path, table.schema, compression="zstd", use_dictionary=words)
            )
        if is_csv:
            self._writer.write_table(table)
        else:
            self._writer.write_table(table, row_group_size=_LARGEST_ROW_GROUP)


def _as_text(table: pa.Table) -> pa.Table:
    lists = table["features"].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    texts = pc.binary_join(pc.cast(lists, pa.list_(pa.string())), " ")
    place = table.schema.get_field_index("features")
    return table.set_column(place, "features", pc.binary_join_element_wise("[", texts, "]", ""))


def _seen(seen: np.ndarray[tuple[int], np.dtype[np.bool_]], table: pa.Table) -> Any:
    for name in ("src", "dst"):
        ids = table[name].drop_null().to_numpy()
        if len(ids) and ids.max() >= len(seen):
            seen = np.concatenate((seen, np.zeros(int(ids.max()) + 1 - len(seen), bool)))
        seen[ids] = True
    return seen
