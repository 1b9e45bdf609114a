"""Files of past events for a log: surveyed once, then read like polls of a topic partition, from any row."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import REJECT_SCHEMA, event_schema
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.decode.columns import canonical
from freshet_graph.stream.decode.decoder import RAW_LIMIT_BYTES
from freshet_graph.stream.decode.file_columns import FileColumns
from freshet_graph.stream.decode.files import open_rows, readable, warn_of_columns, warn_of_sides
from freshet_graph.stream.decode.reading import FileRows
from freshet_graph.stream.decode.validate import Draft, Rules, check, looks_like
from freshet_graph.stream.microbatch import MicroBatch

_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Survey:
    """The times of a file, without rows that have no time or one out of bounds.

    Attributes:
        rows: All rows of the file.
        first_us: Earliest time, microseconds; None: no row has one.
        last_us: Latest time.
        disorder_us: How far a row lies at most before an earlier row in time; 0: the file is in order.
        remark: About times after the year 9999; empty without such.
    """

    rows: int
    first_us: int | None
    last_us: int | None
    disorder_us: int
    remark: str = ""


def survey(path: Path, rules: Rules, options: FileOptions = AS_EVENTS) -> Survey:
    """Read the times of a file once, columnar, whatever its size; warnings say what is not read of it.

    Raises:
        Failure: The file cannot be read, or a column is missing or wrong.
    """
    rows = disorder = 0
    first = last = None
    remark = ""
    with readable(path):
        opened = open_rows(path, rules.ids, only=("t",), options=options)
        for some in opened.rows:
            every = _times(some, rules, opened.columns)
            remark = remark or looks_like(int(every.max(initial=_LOWEST)), opened.columns.unit)
            t = every[(every >= rules.min_us) & (every <= rules.max_us)]
            rows += some.batch.num_rows
            if len(t) == 0:
                continue
            reached = np.maximum.accumulate(np.maximum(t, _LOWEST if last is None else last))
            disorder = max(disorder, int((reached - t).max()))
            first = int(t.min()) if first is None else min(first, int(t.min()))
            last = int(reached[-1])
        warn_of_columns(path, opened, last or 0)
    return Survey(rows, first, last, disorder, remark)


def count_from(path: Path, rules: Rules, until_us: int, options: FileOptions = AS_EVENTS) -> int:
    """The number of rows at or after a time, within the bounds.

    Raises:
        Failure: As ``survey``.
    """
    with readable(path):
        opened = open_rows(path, rules.ids, only=("t",), options=options)
        times = (_times(some, rules, opened.columns) for some in opened.rows)
        low = max(until_us, rules.min_us)
        return sum(int(np.count_nonzero((t >= low) & (t <= rules.max_us))) for t in times)


def read_polls(
    path: Path,
    config: StreamConfig,
    rules: Rules,
    *,
    key: tuple[str, int],
    first: int,
    start: int,
    until_us: int,
    options: FileOptions = AS_EVENTS,
) -> Iterator[MicroBatch]:
    """A file's rows as polls of a topic partition whose offsets are rows.

    Args:
        path: The file.
        config: The stream's.
        rules: Of the stream.
        key: Topic and partition of the polls.
        first: Offset of the file's first row.
        start: Rows to skip at the beginning.
        until_us: Rows from this time on are left out, in whatever order.
        options: How the file is read.

    Yields:
        Accepted events in file order, and a reject for each row that breaks a rule.

    Raises:
        Failure: As ``survey``.
    """
    with readable(path):
        opened = open_rows(path, config.ids, start=start, options=options)
        rules = replace(rules, file_unit=opened.columns.unit)
        offset = first + start
        for some in opened.rows:
            draft = opened.columns.draft(some, config.ids)
            check(draft, rules, opened.columns.shown)
            if offset == first and not opened.columns.bipartite:
                warn_of_sides(path, draft.events())
            texts = {"dst": some.batch["dst"]} if opened.columns.bipartite else {}  # as in the file
            yield _poll(draft, {**texts, **some.texts}, key, offset, rules, until_us)
            offset += some.batch.num_rows


def _poll(
    draft: Draft,
    texts: Mapping[str, pa.Array],
    key: tuple[str, int],
    offset: int,
    rules: Rules,
    until_us: int,
) -> MicroBatch:
    rows = draft.batch.num_rows
    t = draft.batch["t"].fill_null(_LOWEST).to_numpy(zero_copy_only=False)
    is_taken = (t < until_us) | (t > rules.max_us)
    events = draft.events()
    offsets = np.arange(offset, offset + rows)[draft.faults.accepted]
    schema = event_schema(rules.ids).append(pa.field("offset", pa.int64(), nullable=False))
    events = events.append_column(schema.field("offset"), pa.array(offsets))
    if not is_taken.all():
        events = events.filter(pa.array(is_taken[draft.faults.accepted]))
    refused = draft.faults.refused_rows()
    return MicroBatch(
        topic=key[0],
        partition=key[1],
        first_offset=offset,
        end_offset=offset + rows,
        high_watermark=offset + rows + 1,  # never idle: its reader ends the file
        events=events,
        rejects=_rejects(draft, texts, refused[is_taken[refused]], key, offset),
    )


def _rejects(
    draft: Draft, texts: Mapping[str, pa.Array], rows: np.ndarray, key: tuple[str, int], offset: int
) -> pa.RecordBatch:
    """Refused rows as JSON; cells that could not be read are as in the file."""
    refusals = [draft.faults.of(int(row)) for row in rows]
    taken = pa.array(rows, pa.int64())
    contents = draft.batch.take(taken).to_pylist() if len(rows) else []
    for name, column in texts.items():
        for content, cell in zip(contents, column.take(taken).to_pylist(), strict=True):
            if cell is not None:
                content[name] = cell
    columns = {
        "topic": [key[0]] * len(rows),
        "partition": [key[1]] * len(rows),
        "offset": (rows + offset).tolist(),
        "row": [None] * len(rows),
        "reason": [reason for reason, _ in refusals],
        "sentence": [sentence for _, sentence in refusals],
        "raw": [json.dumps(content).encode()[:RAW_LIMIT_BYTES] for content in contents],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in REJECT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECT_SCHEMA)


def _times(rows: FileRows, rules: Rules, columns: FileColumns) -> np.ndarray:
    """The times of rows that have one, microseconds, within the bounds or not."""
    batch = rows.batch
    none = pa.nulls(batch.num_rows, pa.int64() if rules.ids == "int" else pa.string())
    named = pa.RecordBatch.from_arrays([none, none, batch["t"]], names=["src", "dst", "t"])
    draft = canonical(named, rules.ids, columns.unit, time_texts=columns.time_texts)
    t = draft.batch["t"]
    has_time = draft.faults.accepted & t.is_valid().to_numpy(zero_copy_only=False)
    return t.fill_null(_LOWEST).to_numpy(zero_copy_only=False)[has_time]
