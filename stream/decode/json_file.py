"""Lines of JSON to rows of events: each line is read as a message of a topic is."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.fields import path_keys
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.stream.decode.delimited import open_text
from freshet_graph.stream.decode.file_columns import FileColumns, OpenedFile
from freshet_graph.stream.decode.json_messages import read_json
from freshet_graph.stream.decode.mapping import Mapping
from freshet_graph.stream.decode.reading import FileRows
from freshet_graph.stream.decode.validate import Faults, draft_schema
from freshet_graph.stream.service.failure import Failure

_BLOCK_BYTES = 16 << 20
_LONGEST_LINE_BYTES = 64 << 20
_LOOKED_AT = 1000
"""Lines whose keys are the header."""

_OF_NODES = {name: name for name in ("node", "offset", "values")}

_BLANK = re.compile(rb"\s*")


def json_rows(
    path: Path,
    ids: IdKind | None,
    options: FileOptions,
    *,
    start: int = 0,
    only: tuple[str, ...] | None = None,
) -> OpenedFile:
    """Open a file of JSON objects, one a line; ``.gz`` and the like are unpacked.

    Keys are those of messages (``freshet_graph.schemas.wire.JsonEvent``), or columns name them; dots lead into objects.

    Args:
        path: The file.
        ids: Kind of node ids; None: that of the first line.
        options: Its keys.
        start: Rows to skip at the beginning; empty lines are no rows.
        only: Not used: a line is read as a whole.

    Raises:
        RefusedError: No line looked at has a required key.
        Failure: A line is too long (raised while iterating).
    """
    objects = list(islice(_parsed(_lines(path, options)), _LOOKED_AT))
    keys = dict.fromkeys(key for parsed in objects for key in leaves(parsed))
    header = list(keys)
    if "node" in keys:  # lines of nodes have no others
        header += [options.names.get(name, name) for name in ("src", "dst")]
    columns = FileColumns.of(options, list(dict.fromkeys(header)))
    ids = ids or ("string" if any(_is_text(parsed, columns) for parsed in objects) else "int")
    schema = draft_schema(ids)
    schema = schema.set(schema.get_field_index("t"), pa.field("t", pa.timestamp("us")))
    header = [key for key in keys if key not in _OF_NODES]
    return OpenedFile(_rows(_lines(path, options), ids, columns, start), schema, header, columns)


def _lines(path: Path, options: FileOptions) -> Iterator[pa.LargeBinaryArray]:
    """Blocks of lines that are not empty, as in the file."""
    with open_text(path, options) as file:
        rest, more = b"", True
        while more:
            block = file.read(_BLOCK_BYTES)
            more = bool(block)
            text, newline, rest = (rest + block).rpartition(b"\n") if more else (rest, b"\n", b"")
            if len(rest) > _LONGEST_LINE_BYTES:
                raise Failure(
                    f"{path} has a line of more than {_LONGEST_LINE_BYTES >> 20} MiB. Write an object per line"
                )
            text += newline
            ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
            offsets = pa.py_buffer(np.concatenate(([0], ends)).astype(np.int64))
            lines = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, offsets, pa.py_buffer(text)])
            lengths = np.diff(ends, prepend=0)
            for i in np.flatnonzero(lengths < 3):
                lengths[i] *= not _BLANK.fullmatch(lines[i].as_py())
            yield lines if lengths.all() else lines.filter(pa.array(lengths > 0))


def _parsed(blocks: Iterator[pa.LargeBinaryArray]) -> Iterator[dict[str, Any]]:
    for lines in blocks:
        for line in lines.slice(0, _LOOKED_AT).to_pylist():
            try:
                parsed = json.loads(line)
            except ValueError:
                continue  # a row of its own is refused
            if isinstance(parsed, dict):
                yield parsed


def leaves(content: dict[str, Any], above: str = "") -> Iterator[str]:
    """Paths of keys, as ``freshet_graph.schemas.fields.path_keys`` takes them."""
    for key, value in content.items():
        path = above + key.replace("\\", "\\\\").replace(".", "\\.")
        if isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        else:
            yield path


def _is_text(content: dict[str, Any], columns: FileColumns) -> bool:
    value: Any = content
    for key in path_keys(columns.column("src")):
        value = value.get(key) if isinstance(value, dict) else None
    return isinstance(content.get("node") if value is None else value, str)


def _mapping(columns: FileColumns) -> Mapping:
    events = {name: column for column, name in columns.events.items() if name != "feature_offset"}
    paths = [((name, 0), path_keys(column)) for name, column in {**_OF_NODES, **events}.items()]
    paths += [(("features", part), path_keys(column)) for part, column in enumerate(columns.features)]
    return Mapping(
        paths=tuple(paths), mapped=True, feature_parts=len(columns.features), time_texts=columns.time_texts
    )


def _rows(
    blocks: Iterator[pa.LargeBinaryArray], ids: IdKind, columns: FileColumns, start: int
) -> Iterator[FileRows]:
    mapping = _mapping(columns)
    for lines in blocks:
        if start < len(lines):
            yield _block(lines.slice(start), ids, columns, mapping)
        start = max(0, start - len(lines))


def _block(lines: pa.LargeBinaryArray, ids: IdKind, columns: FileColumns, mapping: Mapping) -> FileRows:
    runs, tables = read_json(lines, ids, columns.unit, mapping)
    drafts = [run.draft.batch for run in runs]
    batch = pa.Table.from_batches(drafts, draft_schema(ids)).combine_chunks()
    place = np.full(len(lines), -1)
    for first, run in zip(np.cumsum([0, *map(len, drafts)]), runs, strict=False):
        place[run.messages] = first + np.arange(len(run.messages))
    rows = batch.take(pa.array(place, mask=place < 0))
    rows = rows.set_column(rows.schema.get_field_index("t"), "t", rows["t"].cast(pa.timestamp("us")))
    faults = Faults.none(len(lines))
    texts: list[str | None] = [None] * len(lines)
    for refused in (row for table in tables for row in table.to_pylist()):
        is_row = np.arange(len(lines)) == refused["message"]
        faults.refuse(is_row, refused["reason"], refused["sentence"])
        texts[refused["message"]] = lines[refused["message"]].as_py().decode("utf-8", "replace").strip()
    (whole,) = rows.combine_chunks().to_batches()
    return FileRows(whole, faults, {"line": pa.array(texts, pa.string())})
