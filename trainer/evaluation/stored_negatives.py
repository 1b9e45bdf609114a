"""Negatives in a file: drawn once and read again, so that every model and every tool is judged by the same ones.

The file is Parquet, with a row for each validation and test event in order of time; docs/training.md lists its columns.
It is valid only for the data and the split that it was made for: every row must match its event.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import id_type
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.examples import Examples
from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.data.negatives import NONE, Negatives, meets
from freshet_graph.trainer.evaluation.split import Split


def read_given(
    path: Path, option: str, required: Sequence[str], optional: Sequence[str] = (), *, csv: bool = False
) -> pa.Table:
    """Read the named columns; others are ignored.

    Args:
        path: Parquet.
        option: The option of the command line, such as ``--scores``, which begins every sentence.
        required: Columns that must exist.
        optional: Columns that may exist.
        csv: Whether a file that ends in ``.csv`` is accepted too.

    Raises:
        Failure: It cannot be read, lacks a required column, or has a column twice.
    """
    named = f"{option} {path}"
    try:
        if csv and path.suffix.lower() == ".csv":
            table = pyarrow.csv.read_csv(path)
            return table.select(_wanted(named, table.column_names, required, optional))
        with pq.ParquetFile(path) as file:
            return file.read(columns=_wanted(named, file.schema_arrow.names, required, optional))
    except (OSError, pa.ArrowException) as error:
        raise Failure(f"{named} cannot be read: {one_line(error)}") from None


def whole_numbers(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """A column as int64; ``option``, with the file, begins every sentence.

    Raises:
        Failure: A value is missing, or is not a whole number.
    """
    column = table[name]
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowException:
        raise Failure(f"{option}: column {name} is {column.type}, expected whole numbers") from None
    if numbers.null_count:
        raise Failure(f"{option}: column {name} has {numbers.null_count} rows without a number")
    return numbers


def _wanted(named: str, present: list[str], required: Sequence[str], optional: Sequence[str]) -> list[str]:
    missing = [name for name in required if name not in present]
    if missing:
        raise Failure(f"{named} has no column {', '.join(missing)}. docs/training.md lists the columns")
    names = [*required, *(name for name in optional if name in present)]
    twice = [name for name in names if present.count(name) > 1]
    if twice:
        raise Failure(f"{named} has column {twice[0]} more than once")
    return names


FORMAT = 1
METADATA = b"freshet.negatives"
COLUMNS = ("event", "part", "src", "dst", "t", "random", "historical_src", "historical_dst", "candidates")


class StoredNegatives:
    """The negatives of a file, by snapshot.

    Attributes:
        num_candidates: M, of every ranked event.
        random: int64 (E,), random negative of every insert event; ``NONE`` for training events and those without one.
    """

    def __init__(self, path: str | Path, lane: LaneReader, inserts: Inserts, split: Split) -> None:
        """Read a file and check that it is about these events, all inserts in log order.

        Raises:
            Failure: It cannot be read, has other columns, or was made for other events; the sentence names the first.
        """
        table = _read(Path(path), lane)
        external = lane.log.external_ids().combine_chunks()
        scored_events = np.flatnonzero(~split.train(inserts.visible_us))
        _require_same(Path(path), table, scored_events, inserts, external)
        ids = _Ids(Path(path), external)
        random = ids.dense(table, "random")
        _require_no_events(path, "random", inserts, scored_events, random)
        old_src, old_dst = ids.dense(table, "historical_src"), ids.dense(table, "historical_dst")
        if ((old_src == NONE) != (old_dst == NONE)).any():
            half = scored_events[np.flatnonzero((old_src == NONE) != (old_dst == NONE))[0]]
            raise Failure(
                f"--negatives {path}: event {half} has half a historical pair. Give both ends or neither"
            )
        lists = table["candidates"].combine_chunks()
        ranked = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
        widths = np.unique(lists.drop_null().value_lengths().to_numpy(zero_copy_only=False))
        if len(widths) > 1:
            raise Failure(
                f"--negatives {path}: events have {widths[0]} to {widths[-1]} candidates. Give all the same number"
            )
        self.num_candidates = int(widths[0]) if len(widths) else 0
        flat = ids.dense(pa.table({"candidates": lists.drop_null().flatten()}), "candidates")
        candidates = flat.reshape(len(ranked), self.num_candidates)
        if (candidates == NONE).any():
            absent = scored_events[ranked[(candidates == NONE).any(axis=1)][0]]
            raise Failure(f"--negatives {path}: event {absent} has a candidate that is null")
        _require_no_events(
            path,
            "candidates",
            inserts,
            np.repeat(scored_events[ranked], self.num_candidates),
            candidates.ravel(),
        )
        self.random, self._old = np.full(len(inserts), NONE), np.full((2, len(inserts)), NONE)
        self.random[scored_events] = random
        self._old[:, scored_events] = old_src, old_dst
        self._ranked, self._candidates = scored_events[ranked], candidates
        self._begin: dict[int, tuple[int, int]] = {}
        end = 0
        for snapshot in lane.log.snapshots:
            self._begin[snapshot.tau] = end, end + snapshot.num_inserts
            end += snapshot.num_inserts

    def negatives_of(self, tau: int) -> Negatives:
        """The negatives of snapshot ``tau``."""
        begin, end = self._begin[tau]
        first, last = np.searchsorted(self._ranked, [begin, end])
        return Negatives(
            self.random[begin:end],
            self._old[0, begin:end],
            self._old[1, begin:end],
            self._ranked[first:last] - begin,
            self._candidates[first:last],
        )


def write_negatives(
    path: str | Path,
    lane: LaneReader,
    inserts: Inserts,
    split: Split,
    snapshots: Iterable[Examples],
    about: dict[str, Any],
) -> None:
    """Write the negatives of all validation and test events; the file appears whole.

    Args:
        path: Of the file.
        lane: Gives ids.
        inserts: All insert events, in log order.
        split: By time.
        snapshots: Examples of every snapshot, of all events.
        about: Further metadata of the file, for people.

    Raises:
        OSError: The disk refuses.
    """
    count = len(inserts)
    random, old = np.full(count, NONE), np.full((2, count), NONE)
    candidates: dict[int, Int64] = {}
    begin = 0
    for examples in snapshots:
        random[begin + examples.random.event] = examples.random.dst
        old[0, begin + examples.historical.event] = examples.historical.src
        old[1, begin + examples.historical.event] = examples.historical.dst
        by_event = examples.candidates.dst.reshape(-1, max(1, examples.num_candidates))
        ranked = examples.candidates.event[:: max(1, examples.num_candidates)]
        candidates |= {begin + event: row for event, row in zip(ranked.tolist(), by_event, strict=True)}
        begin += len(examples.inserts)
    scored_events = np.flatnonzero(~split.train(inserts.visible_us))
    test = split.test(inserts.visible_us)
    external = lane.log.external_ids().combine_chunks()
    lists = [candidates.get(event) if test[event] else None for event in scored_events.tolist()]
    lengths = np.array([0 if row is None else len(row) for row in lists])
    flat = np.concatenate([np.empty(0, np.int64), *(row for row in lists if row is not None)])
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    table = pa.table(
        {
            "event": scored_events,
            "part": pa.array(np.where(test[scored_events], "test", "validation")),
            "src": external.take(pa.array(inserts.src[scored_events])),
            "dst": external.take(pa.array(inserts.dst[scored_events])),
            "t": inserts.visible_us[scored_events],
            "random": _external(external, random[scored_events]),
            "historical_src": _external(external, old[0, scored_events]),
            "historical_dst": _external(external, old[1, scored_events]),
            "candidates": pa.ListArray.from_arrays(
                offsets, _external(external, flat), mask=pa.array([row is None for row in lists])
            ),
        }
    ).replace_schema_metadata({METADATA: json.dumps({"format": FORMAT, **about})})
    temporary = Path(path).with_name(Path(path).name + ".tmp")
    try:
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _external(external: pa.Array, dense: Int64) -> pa.Array:
    return external.take(pa.array(dense, mask=dense == NONE))


def _read(path: Path, lane: LaneReader) -> pa.Table:
    table = read_given(path, "--negatives", COLUMNS)
    said = (table.schema.metadata or {}).get(METADATA)
    if said is not None and (file_format := _format_of(said)) != FORMAT:
        raise Failure(f"--negatives {path} has format {file_format}, this release reads {FORMAT}")
    ids = id_type(lane.log.header.ids)
    wanted = dict.fromkeys(("src", "dst", "random", "historical_src", "historical_dst"), ids)
    wanted |= {"event": pa.int64(), "t": pa.int64(), "candidates": pa.list_(ids)}
    for name, kind in wanted.items():
        column = table.schema.get_field_index(name)
        try:
            table = table.set_column(column, name, table[name].cast(kind))
        except pa.ArrowException:
            raise Failure(
                f"--negatives {path}: column {name} is {table[name].type}, expected {kind}"
            ) from None
    return table.sort_by("event")


def _format_of(metadata: bytes) -> Any:
    try:
        return json.loads(metadata)["format"]
    except (ValueError, TypeError, KeyError):
        return "unknown"


def _require_same(
    path: Path, table: pa.Table, scored_events: Int64, inserts: Inserts, external: pa.Array
) -> None:
    """Check that the rows are the judged events, each equal to the data."""
    file_events = table["event"].to_numpy()
    if not np.array_equal(file_events, scored_events):
        absent, other = np.setdiff1d(scored_events, file_events), np.setdiff1d(file_events, scored_events)
        said = (
            f"event {absent[0]} (counted from 0 in order of time) has no row"
            if len(absent)
            else f"it has a row for event {other[0]}"
            if len(other)
            else "it has two rows for one event"
        )
        raise Failure(
            f"--negatives {path} was made for other data or another --split: the validation and test events are "
            f"{len(scored_events)}, the file has {len(file_events)} rows, and {said}. Give a path that does not exist yet to "
            "create it"
        )
    wanted = {
        "src": external.take(pa.array(inserts.src[scored_events])),
        "dst": external.take(pa.array(inserts.dst[scored_events])),
        "t": pa.array(inserts.visible_us[scored_events]),
    }
    for name, column in wanted.items():
        same = pc.equal(table[name].combine_chunks(), column).fill_null(False)
        if not pc.all(same).as_py():
            row = pc.index(same, False).as_py()
            raise Failure(
                f"--negatives {path} was made for other data: event {scored_events[row]} has {name} {column[row].as_py()}, the "
                f"file says {table[name][row].as_py()}. Give a path that does not exist yet to create it"
            )


def _require_no_events(path: str | Path, name: str, inserts: Inserts, of: Int64, dst: Int64) -> None:
    """Check that negatives, given with their events' numbers, did not happen at the event's time; ``NONE`` is none."""
    is_given = dst != NONE
    happened = np.flatnonzero(is_given)[meets(inserts, of[is_given], dst[is_given])]
    if len(happened):
        raise Failure(
            f"--negatives {path}: column {name} of event {of[happened[0]]} names a destination that its source meets at "
            f"that time ({len(happened)} in all). A negative must not happen. If they are your own, draw others or set "
            f"{'the lists of such events' if name == 'candidates' else 'these'} to null. Otherwise give a path that does not "
            "exist yet to have new ones drawn"
        )


class _Ids:
    """From producers' ids to dense ones."""

    def __init__(self, path: Path, external: pa.Array) -> None:
        self._path, self._external = path, external

    def dense(self, table: pa.Table, name: str) -> Int64:
        """Dense ids of a column; ``NONE`` for nulls."""
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)
        dense_ids = pc.index_in(column, self._external)
        unknown = pc.and_(column.is_valid(), dense_ids.is_null())
        if pc.any(unknown).as_py():
            first = column.filter(unknown)[0].as_py()
            raise Failure(
                f"--negatives {self._path}: column {name} names {first}, which is not a node of the data"
            )
        dense: Int64 = dense_ids.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
        return dense
