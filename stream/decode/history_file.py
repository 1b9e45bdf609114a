"""Files of past events for a log: surveyed once, then read like polls of a topic partition, from any row."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.schemas.events import OUT_OF_RANGE_US, REJECT_SCHEMA, IdKind, event_schema
from freshet_graph.schemas.fields import Fields
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.decode.arrow import event_rows
from freshet_graph.stream.decode.columns import canonical
from freshet_graph.stream.decode.decoder import RAW_LIMIT_BYTES
from freshet_graph.stream.decode.file_columns import FileColumns
from freshet_graph.stream.decode.files import open_rows, readable, warn_of_columns, warn_of_sides
from freshet_graph.stream.decode.labels import LabelRows, require_label
from freshet_graph.stream.decode.mapping import Mapping as Places
from freshet_graph.stream.decode.reading import FileRows
from freshet_graph.stream.decode.validate import Draft, Faults, Rules, check, looks_like
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure

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
            yield _poll(draft.batch, draft, {**texts, **some.texts}, key, offset, rules, until_us)
            offset += some.batch.num_rows


def label_rows(path: Path) -> int:
    """The number of rows of a file of labels.

    Raises:
        Failure: The file cannot be read, or lacks a column.
    """
    with readable(path):
        return sum(batch.num_rows for batch in _label_batches(path)[1])


def label_polls(
    path: Path,
    config: StreamConfig,
    rules: Rules,
    *,
    key: tuple[str, int],
    first: int,
    start: int,
    until_us: int | None,
    sources: list[str] | None,
) -> Iterator[MicroBatch]:
    """A file of labels as polls of a topic partition whose offsets are rows.

    Args:
        path: Parquet, or CSV with a header: ``event_id`` or ``node``, ``label``, ``t`` (seconds, timestamps or RFC 3339) and
            maybe ``source`` and ``visible``, the earliest time at which the label is visible (as ``t``).
        config: The stream's.
        rules: Of the stream.
        key: Topic and partition of the polls.
        first: Offset of the file's first row.
        start: Rows to skip at the beginning.
        until_us: Rows from this time on are left out; None: none are.
        sources: Sources by rank, see ``Topic.sources``.

    Yields:
        Labels in file order, and a reject for each row that breaks a rule.

    Raises:
        Failure: As ``label_rows``.
    """
    until = OUT_OF_RANGE_US if until_us is None else until_us
    for one in label_drafts(path, config.ids, rules, start, sources):
        of_label = replace(rules, ids="string" if one.made.of_events else config.ids)
        offset = first + one.row
        poll = _poll(one.made.as_labels(one.draft.batch), one.draft, {}, key, offset, of_label, until)
        labels = one.made.of(poll.events)
        if one.visible is not None:
            visible = one.visible.take(pc.subtract(labels["offset"], offset))
            place = labels.schema.get_field_index("visible_us")
            labels = labels.set_column(place, labels.schema.field(place), visible)
        yield replace(poll, events=poll.events[:0], labels=labels)


@dataclass(frozen=True, slots=True)
class LabelDraft:
    """Rows of a file of labels, read as node events and checked.

    Attributes:
        row: Number of the first.
        draft: The node events.
        made: Makes labels of them.
        visible: The earliest time at which each is visible, int64 microseconds or null; None: the file has no such column.
    """

    row: int
    draft: Draft
    made: LabelRows
    visible: pa.Array | None


def label_drafts(
    path: Path, ids: IdKind, rules: Rules, start: int = 0, sources: list[str] | None = None
) -> Iterator[LabelDraft]:
    """A file's labels, see ``label_polls``."""
    with readable(path):
        names, batches = _label_batches(path)
        fields = Fields.model_validate({name: name for name in names if name != _VISIBLE})
        topic = Topic(
            name="labels", kind="labels", fields=fields, sources=sources if "source" in names else None
        )
        made, mapping = LabelRows(topic, ids), Places.of(topic)
        read_ids: IdKind = "string" if made.of_events else ids
        row = 0
        for batch in batches:
            rows = batch[max(0, start - row) :]
            if rows.num_rows:
                draft = event_rows(rows, np.arange(rows.num_rows), read_ids, "s", mapping).draft
                visible = _seconds(rows[_VISIBLE], draft.faults) if _VISIBLE in names else None
                require_label(draft, mapping.column)
                check(draft, replace(rules, ids=read_ids, file_unit="s"), mapping.column)
                yield LabelDraft(max(start, row), draft, made, visible)
            row += batch.num_rows


def label_ids(path: Path) -> IdKind:
    """The kind of ids that a file of labels has."""
    with readable(path):
        names, batches = _label_batches(path)
        first = next(batches, None)
    is_number = first is not None and "node" in names and pa.types.is_integer(first.schema.field("node").type)
    return "int" if is_number else "string"


_VISIBLE = "visible"
_LABEL_COLUMNS = ("event_id", "node", "label", "t", "source", _VISIBLE)


def _seconds(column: pa.Array, faults: Faults) -> pa.Array:
    """Times of a column, int64 microseconds; what is none is a fault of its row."""
    none = pa.nulls(len(column), pa.int64())
    named = pa.RecordBatch.from_arrays([none, none, column], names=["src", "dst", "t"])
    return canonical(named, "int", "s", faults=faults, shown=lambda _: _VISIBLE, time_texts=True).batch["t"]


def _label_batches(path: Path) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    """The columns of a file of labels, and its rows."""
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        parquet = pq.ParquetFile(path, memory_map=True)
        header, batches = parquet.schema_arrow.names, parquet.iter_batches
    else:
        as_text = {name: pa.string() for name in ("event_id", "source")}
        reader = pacsv.open_csv(path, convert_options=pacsv.ConvertOptions(column_types=as_text))
        header = reader.schema.names

        def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
            return (batch.select(columns) for batch in reader)

    names = [name for name in _LABEL_COLUMNS if name in header]
    if not {"label", "t"} <= {*names} or ("event_id" in names) == ("node" in names):
        raise Failure(
            f"{path} has the columns {', '.join(header)}. Labels have event_id or node, label, t, and maybe source and "
            "visible"
        )
    return names, batches(columns=names)


def _poll(
    shown: pa.RecordBatch,
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
        rejects=_rejects(shown, draft.faults, texts, refused[is_taken[refused]], key, offset),
    )


def _rejects(
    batch: pa.RecordBatch,
    faults: Faults,
    texts: Mapping[str, pa.Array],
    rows: np.ndarray,
    key: tuple[str, int],
    offset: int,
) -> pa.RecordBatch:
    """Refused rows as JSON; cells that could not be read are as in the file."""
    refusals = [faults.of(int(row)) for row in rows]
    taken = pa.array(rows, pa.int64())
    contents = batch.take(taken).to_pylist() if len(rows) else []
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
