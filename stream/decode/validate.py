"""Rules of meaning, checked on whole columns: the same for JSON messages, Arrow messages and files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import (
    EARLIEST_US,
    LATEST_US,
    MAX_ID_BYTES,
    US_PER_S,
    IdKind,
    Op,
    Reason,
    event_schema,
    show_time,
)
from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt16
from freshet_graph.stream.decode.times import TimeUnit

DEFAULT_EARLIEST_S = 631_152_000
"""1990-01-01, the default lower bound of event times."""

_FARTHEST_US = 9_200_000_000_000_000_000
"""Readers of columns clip later times to about this."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules an event must meet besides having the right types.

    Attributes:
        ids: Kind of node ids.
        node_features: Width of node feature vectors; 0: none are accepted.
        edge_features: Width of edge feature vectors; 0: none are accepted.
        min_us: Earliest accepted event time, microseconds since the epoch.
        max_us: Latest accepted event time.
        offline: The events come from a file, without a configuration; only sentences differ.
        file_unit: Unit of the times of a file; None: the events are those of a topic. Only sentences differ.
    """

    ids: IdKind
    node_features: int = 0
    edge_features: int = 0
    min_us: int = EARLIEST_US
    max_us: int = LATEST_US
    offline: bool = False
    file_unit: TimeUnit | None = None

    @classmethod
    def of(cls, config: StreamConfig, now_us: int) -> Self:
        """The rules of a configuration at wall time ``now_us``, which bounds times if ``max`` is null."""
        low, high = config.time_bounds or (DEFAULT_EARLIEST_S, None)
        latest = now_us + round(config.time_skew_s * US_PER_S) if high is None else round(high * US_PER_S)
        return cls(
            ids=config.ids,
            node_features=config.features.node,
            edge_features=config.features.edge,
            min_us=max(round(low * US_PER_S), EARLIEST_US),
            max_us=min(latest, LATEST_US),
        )


def other_unit(t_us: int, rules: Rules) -> str:
    """A remark about a refused time of a topic: the date that it would be in another unit, if one is allowed."""
    for factor in (1_000, 1_000_000, 1_000_000_000):
        for scaled_us, how in ((t_us // factor, "Divided by"), (t_us * factor, "Times")):
            if max(rules.min_us, DEFAULT_EARLIEST_S * US_PER_S) <= scaled_us <= rules.max_us:
                return f". {how} {factor:,} it would be {show_time(scaled_us)}: check the topic's time_unit"
    return ". Check the topic's time_unit"


_FINER = {"s": ("ms", "us", "ns"), "ms": ("us", "ns"), "us": ("ns",)}
_CALLED = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def looks_like(t_us: int, unit: TimeUnit = "s") -> str:
    """A remark about a time of a file that, read in ``unit``, lies after the year 9999; empty for an earlier one."""
    finer = _FINER.get(unit, ())
    if t_us <= LATEST_US or not finer:
        return ""
    likely = finer[:1] if t_us < _FARTHEST_US else finer[-2:]
    return f". It looks like {' or '.join(_CALLED[name] for name in likely)}. Give --time-unit {' or '.join(likely)}"


def shorten(value: object, limit: int = 60) -> str:
    """A value in a sentence, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@dataclass(slots=True)
class Faults:
    """Refused rows with their reasons: the first fault of each row.

    Attributes:
        code: uint16 [rows]; 0: the row is accepted.
    """

    code: UInt16
    kinds: list[tuple[str, str | Callable[[int], str]]] = field(default_factory=list)

    @classmethod
    def none(cls, rows: int) -> "Faults":
        """No row refused yet."""
        return cls(np.zeros(rows, np.uint16))

    def refuse(self, where: Bool, reason: str, sentence: str | Callable[[int], str]) -> None:
        """Refuse the rows of a mask that aren't refused yet; ``sentence`` may depend on the row."""
        if where.any():
            self.kinds.append((reason, sentence))
            self.code[where & (self.code == 0)] = len(self.kinds)

    @property
    def accepted(self) -> Bool:
        """Mask of the rows without a fault."""
        return cast(Bool, self.code == 0)

    def refused_rows(self) -> npt.NDArray[np.intp]:
        """Indices of the refused rows, ascending."""
        return np.flatnonzero(self.code)

    def of(self, row: int) -> tuple[str, str]:
        """Reason and sentence of a refused row."""
        reason, sentence = self.kinds[int(self.code[row]) - 1]
        return reason, sentence(row) if callable(sentence) else sentence

    def alike(self) -> Iterator[tuple[npt.NDArray[np.intp], str, str | list[str]]]:
        """Refused rows by kind of fault: their indices, the reason, and one sentence or one each."""
        for code, (reason, sentence) in enumerate(self.kinds, start=1):
            rows = np.flatnonzero(self.code == code)
            if len(rows):
                yield rows, reason, [sentence(i) for i in rows.tolist()] if callable(sentence) else sentence


@dataclass(slots=True)
class Draft:
    """Rows that are to become events: canonical types, but with nulls and bad values.

    Attributes:
        batch: Columns as ``draft_schema``.
        faults: Faults found so far.
    """

    batch: pa.RecordBatch
    faults: Faults

    def events(self, accepted: Bool | None = None) -> pa.RecordBatch:
        """The accepted rows under the canonical schema, those without a fault by default; call after ``check``."""
        ids: IdKind = "int" if pa.types.is_integer(self.batch.schema.field("src").type) else "string"
        batch = self.batch
        accepted = self.faults.accepted if accepted is None else accepted
        if not accepted.all():
            batch = batch.filter(pa.array(accepted))
        return pa.RecordBatch.from_arrays(batch.columns, schema=event_schema(ids))


def draft_schema(ids: IdKind) -> pa.Schema:
    """The canonical schema with every column nullable."""
    return pa.schema([pa.field(f.name, f.type) for f in event_schema(ids)])


def check(draft: Draft, rules: Rules, shown: Callable[[str], str] = str) -> None:
    """Add every row that breaks a rule to ``draft.faults``; ``shown`` gives the names of columns in sentences.

    Columns ``op`` and ``weight`` must have no nulls (their readers put the defaults in).
    """
    batch, faults = draft.batch, draft.faults
    op = _numpy(batch["op"])
    has_dst = _present(batch["dst"])
    node = op == Op.NODE
    src, dst, op_name, t_name = (shown(name) for name in ("src", "dst", "op", "t"))
    faults.refuse(~_present(batch["src"]), Reason.MISSING_FIELD, f"{src} is missing")
    faults.refuse(~_present(batch["t"]), Reason.MISSING_FIELD, f"{t_name} is missing")
    faults.refuse(
        (op < -1) | (op > 1), Reason.UNKNOWN_OP, lambda i: f"{op_name} is {op[i]}, expected 1, -1 or 0"
    )
    faults.refuse(
        node & has_dst,
        Reason.UNKNOWN_OP,
        f"{op_name} is 0, a node event, but {dst} is not null",
    )
    faults.refuse(~node & ~has_dst, Reason.MISSING_FIELD, f"{dst} is missing")
    if rules.ids == "string":
        _check_text(faults, batch["src"], src)
        _check_text(faults, batch["dst"], dst)
    _check_text(faults, batch["event_id"], shown("event_id"))

    t = _numpy(batch["t"].fill_null(0))
    allowed = f"outside {show_time(rules.min_us)} to {show_time(rules.max_us)}"
    if not rules.offline:
        allowed += " (config keys time_bounds and time_skew_s)"

    def out_of_bounds(i: int) -> str:
        t_us = int(t[i])
        remark = other_unit(t_us, rules) if rules.file_unit is None else looks_like(t_us, rules.file_unit)
        return f"{t_name} is {show_time(t_us)}, {allowed}{remark}"

    faults.refuse(
        (t < rules.min_us) | (t > rules.max_us),
        Reason.TIME_OUT_OF_BOUNDS,
        out_of_bounds,
    )
    weight = _numpy(batch["weight"])
    faults.refuse(
        ~np.isfinite(weight),
        Reason.NOT_FINITE,
        # What is too large became infinite when it was read.
        lambda i: (
            f"{shown('weight')} is {'nan' if np.isnan(weight[i]) else 'infinite or beyond float32 (±3.4e38)'}"
        ),
    )
    _check_features(faults, batch, node, rules, shown)


def _check_text(faults: Faults, column: pa.Array, name: str) -> None:
    if column.null_count == len(column):
        return
    lengths = _numpy(pc.binary_length(column).fill_null(1))
    faults.refuse(lengths == 0, Reason.BAD_ID, f"{name} is an empty string")
    faults.refuse(
        lengths > MAX_ID_BYTES,
        Reason.ID_TOO_LONG,
        lambda i: f"{name} has more than {MAX_ID_BYTES} bytes of UTF-8",
    )


def _check_features(
    faults: Faults, batch: pa.RecordBatch, node: Bool, rules: Rules, shown: Callable[[str], str]
) -> None:
    name = shown("features")
    features, offsets = batch["features"], batch["feature_offset"]
    present = _present(features)
    partial = _present(offsets)
    faults.refuse(
        node & ~present & ~_present(batch["label"]),
        Reason.MISSING_FIELD,
        "a node event without features (or offset and values, or label)",
    )
    faults.refuse(
        partial & ~node,
        Reason.WRONG_TYPE,
        f"{shown('feature_offset')} is given, which only node events can have",
    )
    faults.refuse(partial & ~present, Reason.MISSING_FIELD, "an offset is given without values")
    if not present.any():
        return
    lengths = _numpy(features.value_lengths().fill_null(0)).astype(np.int64)
    first = _numpy(offsets.fill_null(0)).astype(np.int64)
    expected = np.where(node, rules.node_features, rules.edge_features)

    def width_sentence(i: int) -> str:
        kind = "node" if node[i] else "edge"
        width = (
            f"the first {kind} row with features has" if rules.offline else f"config key features.{kind} is"
        )
        if partial[i]:
            return f"{lengths[i]} values from position {first[i]} on, but {width} {expected[i]}"
        return f"{name} has {lengths[i]} values, but {width} {expected[i]}"

    whole = present & ~partial
    faults.refuse(whole & (lengths != expected), Reason.FEATURE_WIDTH, width_sentence)
    out_of_range = (first < 0) | (lengths == 0) | (first + lengths > expected)
    faults.refuse(partial & out_of_range, Reason.FEATURE_WIDTH, width_sentence)
    values = features.flatten()
    ends = np.cumsum(lengths)
    if values.null_count:
        faults.refuse(_any_in_row(~_present(values), ends), Reason.WRONG_TYPE, f"a value of {name} is null")
        values = values.fill_null(0)
    finite = np.isfinite(_numpy(values))
    if not finite.all():
        faults.refuse(
            _any_in_row(~finite, ends), Reason.NOT_FINITE, f"a value of {name} is not a finite float32"
        )


def _any_in_row(flat: Bool, ends: Int64) -> Bool:
    """Rows with at least one True of ``flat``, given the running ends of the rows."""
    rows = np.zeros(len(ends), bool)
    rows[np.searchsorted(ends, np.flatnonzero(flat), side="right")] = True
    return rows


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    return cast(npt.NDArray[Any], array.to_numpy(zero_copy_only=False))


def _present(array: pa.Array) -> Bool:
    if array.null_count == 0:
        return np.ones(len(array), bool)
    if array.null_count == len(array):
        return np.zeros(len(array), bool)
    return cast(Bool, _numpy(array.is_valid()))
