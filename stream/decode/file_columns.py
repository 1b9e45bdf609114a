"""The columns of a file: which of them are an event's, under what names, and what their values mean."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, Reason
from freshet_graph.schemas.fields import LogFeature
from freshet_graph.schemas.file_options import EVENT_COLUMNS, FileOptions
from freshet_graph.stream.decode.columns import REQUIRED, canonical, side_by_side
from freshet_graph.stream.decode.features import MadeFeatures
from freshet_graph.stream.decode.proposed import columns_flag, proposed
from freshet_graph.stream.decode.reading import FileRows, RefusedError
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.decode.validate import Draft
from freshet_graph.stream.nearest import did_you_mean, nearest

FEATURE_LIST = "comma_separated_list_of_features"
"""The name that JODIE's header has for all features of a row."""

ROW_NUMBER = "idx"
"""DyGLib's column with the row of an event's features in a file of their own."""

_LOG = "log:"
"""Before a name of ``--feature-columns``: its logarithm."""

_USERS_AND_ITEMS = ("user_id", "item_id")
_OTHER_SIDE = "dst:"
_SHOWN = 12
"""Names of columns in a sentence; of others it has the number."""


class ColumnMissingError(RefusedError):
    """A required or named column is not among those of a file."""

    def __init__(self, header: Sequence[str], sentence: str) -> None:
        super().__init__(Reason.MISSING_FIELD, sentence)
        self.header = header


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of one file that are read.

    Attributes:
        events: The event's column by the file's, in the file's order.
        features: Columns whose values, side by side, are an event's features; empty: none, or a column of lists.
        names: The file's column by the event's, where the names differ.
        unit: Of numeric times.
        time_texts: Whether times may be RFC 3339 texts.
        bipartite: Whether sources and destinations are numbered apart.
        passed_over: Columns that need not be read.
        logs: Those of ``features`` of which sign · log(1 + |number|) is taken.
    """

    events: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    unit: TimeUnit = "s"
    time_texts: bool = True
    bipartite: bool = False
    passed_over: Collection[str] = ()
    logs: Collection[str] = ()

    @classmethod
    def of(
        cls, options: FileOptions, header: Sequence[str], *, further: int = 0, first_line: str = ""
    ) -> Self:
        """The columns of a file by its options.

        Args:
            options: As the command line gives them.
            header: Names of all its columns.
            further: Number of columns at the end that its own header does not name: they are features.
            first_line: Of a text, which shows how it could be read.

        Raises:
            RefusedError: A required or named column is missing, or one is repeated.
        """
        names, bipartite = options.names, options.bipartite
        if options.preset == "tgb":
            names, bipartite = _tgb(header), bipartite or set(_USERS_AND_ITEMS) <= set(header)
            names |= options.names
        if further and header[-further - 1] in (FEATURE_LIST, "features"):
            further += 1
        elif FEATURE_LIST in header:
            names.setdefault("features", FEATURE_LIST)  # one cell, which may be a list
        names = {name: _by_number(column, header) for name, column in names.items()}
        taken = set(names.values())
        if len(taken) < len(names):
            raise RefusedError(Reason.WRONG_TYPE, "--columns names a column by its name and by its number")
        rest = [column for column in header[len(header) - further :] if column not in taken]
        events = {column: name for name, column in names.items()}
        events |= {ROW_NUMBER: ROW_NUMBER} if options.preset == "dyglib" else {}
        events |= {name: name for name in EVENT_COLUMNS if name not in names and name not in taken}
        by_name = {name: column for column, name in events.items()}
        for name in (*REQUIRED, *names):
            if name not in by_name or by_name[name] not in header:
                missing = names.get(name, name)
                raise ColumnMissingError(
                    header,
                    f"column {missing} is missing; found {_listed(header)}. "
                    f"{_remedy(options, header, first_line, missing)}",
                )
        read = {column: events[column] for column in header if column in events and column not in rest}
        is_log = (
            _matching(options.feature_columns, header, read) if options.feature_columns is not None else {}
        )
        features = list(is_log) or list(rest)
        if features and "features" in read.values():
            lists = next(column for column, name in read.items() if name == "features")
            raise RefusedError(
                Reason.WRONG_TYPE,
                f"column {lists} has features, and so have {', '.join(features)}. Leave --feature-columns out",
            )
        twice = next((column for column in (*read, *features) if header.count(column) > 1), None)
        if twice is not None:
            raise RefusedError(Reason.WRONG_TYPE, f"column {twice} stands {header.count(twice)} times")
        unit = options.time_unit
        return cls(
            read,
            features,
            {name: column for name, column in names.items() if name != column},
            unit or "s",
            unit in (None, "rfc3339"),
            bipartite,
            [""] if options.preset == "dyglib" else [],
            {column for column, chosen in is_log.items() if chosen},
        )

    def column(self, name: str) -> str:
        """The file's column that an event's is read from."""
        return next(column for column, event_column in self.events.items() if event_column == name)

    def schema(self, kinds: Mapping[str, pa.DataType]) -> pa.Schema:
        """The schema of ``of_events``, given the types of the file's columns."""
        lists = [("features", pa.list_(pa.float32()))] if self.features else []
        return pa.schema([*((name, kinds[column]) for column, name in self.events.items()), *lists])

    @property
    def wanted(self) -> list[str]:
        """All columns of the file that are read."""
        return [*self.events, *self.features]

    @property
    def known(self) -> set[str]:
        """Columns about which nothing is left to say."""
        return {*self.wanted, *self.passed_over}

    def only(self, names: Sequence[str]) -> Self:
        """Those that some of an event's columns are read from."""
        events = {column: name for column, name in self.events.items() if name in names}
        features = self.features if "features" in names else ()
        return replace(self, events=events, features=features, passed_over=self.known)

    def shown(self, name: str) -> str:
        """An event's column in a sentence: its name, and the file's if it differs."""
        return f"{name} ({self.names[name]})" if name in self.names else name

    def of_events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the file's columns under an event's names, with ``features`` made of their columns.

        Raises:
            RefusedError: A column of features has no numbers.
        """
        arrays = {name: batch.column(column) for column, name in self.events.items()}
        if self.features:
            parts = [_numbers(column, batch.column(column)) for column in self.features]
            arrays["features"] = side_by_side(parts, batch.num_rows)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def draft(self, rows: FileRows, ids: IdKind) -> Draft:
        """Rows as drafts of events, before they are checked.

        Raises:
            RefusedError: A column is of a wrong type.
        """
        rows.batch.validate(full=True)
        draft = canonical(
            rows.batch, ids, self.unit, faults=rows.faults, shown=self.shown, time_texts=self.time_texts
        )
        if self.logs:
            sources = [
                LogFeature(log="number") if column in self.logs else column for column in self.features
            ]
            draft = replace(draft, batch=MadeFeatures(sources).made_of(draft.batch))
        return self._apart(draft) if self.bipartite else draft

    def _negative(self, name: str, ids: pa.Array, row: int) -> str:
        return f"{self.shown(name)} is {ids[row]}, but --bipartite takes ids from 0 on"

    def _apart(self, draft: Draft) -> Draft:
        """Destinations under ids that no source has: −1 − id, or the id behind ``dst:``."""
        batch, dst = draft.batch, draft.batch["dst"]
        if pa.types.is_integer(dst.type):
            for name in ("src", "dst"):
                negative = pc.less(batch[name], 0).fill_null(False).to_numpy(zero_copy_only=False)
                draft.faults.refuse(negative, Reason.BAD_ID, partial(self._negative, name, batch[name]))
            apart = pc.bit_wise_not(dst)
        else:
            # An empty id stays empty, and so is refused.
            apart = pc.if_else(pc.equal(dst, ""), dst, pc.binary_join_element_wise(_OTHER_SIDE, dst, ""))
        place = batch.schema.get_field_index("dst")
        return Draft(batch.set_column(place, batch.schema.field(place), apart), draft.faults)


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that is being read.

    Attributes:
        rows: With the columns of events, of any types, under their names.
        schema: Of ``rows``.
        header: Names of all columns of the file.
        columns: Those that are read.
    """

    rows: Iterator[FileRows]
    schema: pa.Schema
    header: Sequence[str]
    columns: FileColumns


def _tgb(header: Sequence[str]) -> dict[str, str]:
    """Columns of TGB's edge lists: those of users and items by name, in all others the time comes first."""
    user, item = _USERS_AND_ITEMS
    if user in header and item in header:
        names = {"src": user, "dst": item}
        times = [name for name in ("timestamp", "ts", "time", "t") if name in header]
        names["t"] = times[0] if times else "timestamp"
    else:
        names = {"t": "0", "src": "1", "dst": "2"}
    names |= {"label": "state_label"} if "state_label" in header else {}
    weights = [name for name in ("weight", "w") if name in header]
    return names | ({"weight": weights[0]} if weights else {})


def _by_number(column: str, header: Sequence[str]) -> str:
    """A column's name if it is given by its number, from 0."""
    if column not in header and column.isascii() and column.isdigit() and int(column) < len(header):
        return header[int(column)]
    return column


def _listed(header: Sequence[str]) -> str:
    more = f" and {len(header) - _SHOWN} more" if len(header) > _SHOWN else ""
    return (", ".join(header[:_SHOWN]) or "none") + more


def _remedy(options: FileOptions, header: Sequence[str], first_line: str, missing: str) -> str:
    """The flags that would read a file without the columns src, dst and t, as far as its begin shows them."""
    cells = first_line.split()
    marks = [mark for mark in ";|: " if mark in first_line.strip()]
    if {*_USERS_AND_ITEMS, "timestamp"} <= set(header):
        return "JODIE's files have such a header. Give --as jodie"
    if list(header[1:4]) == ["u", "i", "ts"]:
        return "DyGLib's files have such a header. Give --as dyglib"
    numbers = "--no-header --columns src=0,dst=1,t=2"
    if options.comment is None and first_line.startswith("#"):
        return (
            "The file begins with a comment. Give --as snap, or --comment '#' with --delimiter and --columns"
        )
    if options.comment is None and first_line.startswith("%"):
        return f"The file begins with a comment. Give --comment % --delimiter ' ' {numbers}, or as its columns are"
    if len(cells) > 2 and all(map(_is_number, cells)):
        return "The first line is a row of numbers between blanks. Give --as snap"
    if len(header) > 2 and not options.no_header and all(map(_is_number, header)):
        return f"The first line is a row of numbers. Give {numbers}"
    if len(header) == 1 and marks:
        return f"If cells end with {marks[0]!r}, give --delimiter {marks[0]!r}"
    if len(header) > 2 and header[0] in ("ts", "day", "time", "timestamp", "year"):
        return "TGB's edge lists have such a header. Give --as tgb"
    if options.no_header:
        return "Give the numbers of the columns, such as --columns src=0,dst=1,t=2"
    fields = {name: column for name, column in proposed(header).items() if name in REQUIRED}
    if options.columns is None and len(fields) == len(REQUIRED):
        return f"Give --columns {columns_flag(fields)}"
    meant = nearest(missing, header)
    question = f"Did you mean {meant}? " if meant else ""
    return f"{question}Name the columns of the file, such as --columns src=user,dst=item,t=ts"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _matching(patterns: str, header: Sequence[str], read: Mapping[str, str]) -> dict[str, bool]:
    """The columns that names, numbers and globs match, and whether their logarithms are taken.

    They are in the order of the patterns. Globs leave out an event's columns. The last pattern that matches a column counts.
    """
    features: dict[str, bool] = {}
    for pattern in map(str.strip, patterns.split(",")):
        is_log = pattern.startswith(_LOG) and pattern not in header
        exact = _by_number(pattern.removeprefix(_LOG) if is_log else pattern, header)
        matched = (
            [exact]
            if exact in header
            else [name for name in header if name not in read and fnmatchcase(name, exact)]
        )
        if not matched and exact != "*":
            raise RefusedError(
                Reason.MISSING_FIELD,
                f"no column matches {exact} of --feature-columns; found {_listed(header)}{did_you_mean(exact, header)}",
            )
        features |= dict.fromkeys(matched, is_log)
    both = next((name for name in features if name in read and read[name] != "features"), None)
    if both is not None:
        raise RefusedError(
            Reason.WRONG_TYPE,
            f"column {both} is {read[both]} of an event, and so cannot be one of --feature-columns",
        )
    return features


def _numbers(name: str, column: pa.Array) -> pa.Array:
    try:
        return pc.cast(column, pa.float32(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise RefusedError(
            Reason.WRONG_TYPE, f"column {name} is {column.type}, expected numbers (--feature-columns)"
        ) from None
