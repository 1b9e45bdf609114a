"""Columns of other types to canonical columns, for Arrow messages, Parquet and CSV files.

A column of a wrong type is a ``RefusedError``; a single wrong value becomes a fault of its row.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_graph.schemas.events import MAX_ID_BYTES, OUT_OF_RANGE_US, US_PER_S, IdKind, Op, Reason
from freshet_graph.stream.arrays.kinds import Bool
from freshet_graph.stream.decode.json_kernel import hashed, rfc3339, scan_number, to_float32, to_us
from freshet_graph.stream.decode.reading import RefusedError
from freshet_graph.stream.decode.times import SCALE_DIGITS, TimeUnit, rfc3339_to_us, scaled_to_us
from freshet_graph.stream.decode.validate import Draft, Faults, draft_schema, shorten
from freshet_graph.stream.kernels import njit, read_only

LOOKS_LIKE_ONE = r"^\s*\d{4}-\d\d-\d\d"
"""The begin of a time in RFC 3339, and of no number."""


def read_times(name: str, texts: pa.Array, faults: Faults) -> pa.Array:
    """Times as timestamp[us] [rows]; a text that is no time is null, and a fault of its row."""
    texts = texts.cast(pa.large_string())
    rows = len(texts)
    t, is_time = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if rows:
        _, offsets, data = texts.buffers()
        ends = read_only(offsets, np.int64)[texts.offset : texts.offset + rows + 1]
        _read(read_only(data or b"", np.uint8), ends, t, is_time)
    is_time &= texts.is_valid().to_numpy(zero_copy_only=False)
    bad = texts.is_valid().to_numpy(zero_copy_only=False) & ~is_time
    faults.refuse(bad, Reason.WRONG_TYPE, lambda row: _sentence(name, texts[row].as_py()))
    return pa.array(t, mask=~is_time).cast(pa.timestamp("us"))


def _sentence(name: str, text: str) -> str:
    try:
        rfc3339_to_us(text)
    except ValueError as error:
        return f"column {name} has {shorten(text)}, which {error}"
    raise AssertionError(f"the kernel does not read {text!r}, but its reference does")


@njit(cache=True, nogil=True)
def _read(
    data: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    t: npt.NDArray[np.int64],
    is_time: npt.NDArray[np.bool_],
) -> None:
    for row in range(len(t)):
        is_time[row], t[row] = rfc3339(data, ends[row], ends[row + 1])


WHOLE, REAL, TIME = 0, 1, 2
"""What texts are read as: whole numbers (int64), numbers (float32), or times (int64 microseconds)."""

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_IS_NUMBER = rf"^{_NUMBER.pattern}$"


def is_valid(column: pa.Array) -> Bool:
    """Rows that are not null."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def read_numbers(
    texts: pa.Array, kind: int, faults: Faults, reason: str, sentence: Callable[[str], str], scale: int = 0
) -> pa.Array:
    """Numbers written as JSON writes them, in texts; one that is none is null, and a fault of its row.

    Args:
        texts: string or large_string [rows].
        kind: ``WHOLE``, ``REAL`` (infinite beyond float32) or ``TIME``.
        faults: Gets the rows of other texts.
        reason: Of these.
        sentence: About one of them.
        scale: Decimal places between a unit of times and the microsecond, as ``times.SCALE_DIGITS``.
    """
    texts = texts.cast(pa.large_string())
    rows = len(texts)
    whole, real, known = np.zeros(rows, np.int64), np.zeros(rows, np.float32), np.zeros(rows, np.bool_)
    if rows:
        _, offsets, data = texts.buffers()
        ends = read_only(offsets, np.int64)[texts.offset : texts.offset + rows + 1]
        _read_numbers(read_only(data or b"", np.uint8), ends, kind, scale, whole, real, known)
    valid = texts.is_valid().to_numpy(zero_copy_only=False)
    known &= valid
    for row in np.flatnonzero(valid & ~known).tolist():  # long ones, exponents, and what is no number
        text = texts[row].as_py()
        number = _exact(text, kind, scale)
        if number is not None:
            (real if kind == REAL else whole)[row], known[row] = number, True
    faults.refuse(valid & ~known, reason, lambda row: sentence(texts[row].as_py()))
    return pa.array(real if kind == REAL else whole, mask=~known)


def _exact(text: str, kind: int, scale: int) -> float | int | None:
    """The reference of ``read_numbers`` for one text; None: it is no such number."""
    if not _NUMBER.fullmatch(text):
        return None
    if kind == REAL:
        with np.errstate(over="ignore"):
            return float(np.float64(text).astype(np.float32))
    if kind == TIME:
        return scaled_to_us(text, scale)
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return None
    fits = number.is_zero() or (number.adjusted() < 20 and number == int(number))
    return int(number) if fits and -(2**63) <= number < 2**63 else None


@njit(cache=True, nogil=True)
def _read_numbers(
    data: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    kind: int,
    scale: int,
    whole: npt.NDArray[np.int64],
    real: npt.NDArray[np.float32],
    known: npt.NDArray[np.bool_],
) -> None:
    for row in range(len(known)):
        i, negative, digits, power, exact, integer = scan_number(data, ends[row], ends[row + 1])
        if i != ends[row + 1]:
            continue
        if kind == REAL:
            known[row], real[row] = to_float32(negative, digits, power, exact)
        elif kind == TIME:
            known[row], whole[row] = to_us(negative, digits, power + scale, exact)
        else:
            known[row] = integer and power == 0 and exact
            whole[row] = -digits if negative else digits


REQUIRED = ("src", "dst", "t")
_TICKS_PER_S = {"s": 1, "ms": 1_000, "us": US_PER_S, "ns": 1_000_000_000}
_EXACT_FLOAT = 2.0**53
"""Larger float64 no longer distinguish integers."""

NULL_KINDS = frozenset([pa.int32(), pa.int64(), pa.string(), pa.list_(pa.float32())])
"""Types of canonical columns that may be all null. A few rows of other types may be gigabytes."""

SHARED_ROWS = 1 << 18
"""Longer columns of nulls have buffers of their own."""


def canonical(
    batch: pa.RecordBatch,
    ids: IdKind,
    unit: TimeUnit,
    *,
    faults: Faults | None = None,
    shown: Callable[[str], str] = str,
    time_texts: bool = False,
) -> Draft:
    """Convert a batch with at least the columns src, dst and t to the canonical types, by column name.

    Args:
        batch: Optional columns may be missing; unknown ones are ignored.
        ids: Kind of node ids of the graph.
        unit: Unit of a numeric ``t``; a timestamp column has its own.
        faults: Earlier faults of rows; more are added.
        shown: Names of columns in sentences.
        time_texts: Whether ``t`` may be RFC 3339 texts in a unit of numbers.

    Raises:
        RefusedError: A required column is missing, a name is repeated, or a type is wrong.
    """
    faults = Faults.none(batch.num_rows) if faults is None else faults
    require_columns(batch.schema)
    names = {name: shown(name) for name in draft_schema(ids).names}
    arrays = {name: _column(batch, name, shown_name) for name, shown_name in names.items()}
    read_id = _ints if ids == "int" else _texts
    src = read_id(names["src"], arrays["src"], faults, Reason.BAD_ID)
    dst = read_id(names["dst"], arrays["dst"], faults, Reason.BAD_ID)
    rows = batch.num_rows
    columns = {
        "op": _ops(names["op"], arrays["op"], dst, faults),
        "src": src,
        "dst": dst,
        "t": _times(names["t"], arrays["t"], unit, faults, time_texts or unit == "rfc3339"),
        "weight": _weights(names["weight"], arrays["weight"], rows, faults),
        "features": _features(names["features"], arrays["features"], rows),
        "feature_offset": _int32(names["feature_offset"], arrays["feature_offset"], rows, faults),
        "label": _labels(names["label"], arrays["label"], rows, faults),
        "event_id": _event_ids(names["event_id"], arrays["event_id"], rows, faults),
    }
    schema = draft_schema(ids)
    return Draft(pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema), faults)


def require_columns(schema: pa.Schema) -> None:
    """Check that the required columns exist.

    Raises:
        RefusedError: One is missing.
    """
    for name in REQUIRED:
        if name not in schema.names:
            names = ", ".join(schema.names) or "none"
            raise RefusedError(Reason.MISSING_FIELD, f"column {name} is missing; found {names}")


def id_kind(schema: pa.Schema) -> IdKind:
    """The kind of ids in the ``src`` column of a file."""
    kind = schema.field("src").type
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    return "string" if pt.is_string(kind) or pt.is_large_string(kind) else "int"


def _column(batch: pa.RecordBatch, name: str, shown: str) -> pa.Array | None:
    places = batch.schema.get_all_field_indices(name)
    if len(places) > 1:
        raise RefusedError(Reason.WRONG_TYPE, f"column {name} stands {len(places)} times")
    if not places:
        return None
    column = batch.column(places[0])
    return decoded(shown, column) if pt.is_dictionary(column.type) else plain(column)


def buckets(name: str, column: pa.Array, count: int) -> pa.Array:
    """The bucket (float32) of each category: the hash of its text, modulo ``count``.

    Raises:
        RefusedError: They are neither texts, numbers nor booleans.
    """
    kind = column.type
    if pt.is_dictionary(kind):
        column = decoded(name, column)
    elif not (
        is_text(kind)
        or pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_boolean(kind)
        or pt.is_null(kind)
    ):
        raise _wrong(name, column, ["texts, numbers or booleans"])
    words = column.cast(pa.string()).dictionary_encode()
    contents = [np.frombuffer(word.encode(), np.uint8) for word in words.dictionary.to_pylist()]
    numbers = [float(hashed(word, 0, len(word)) % np.uint64(count)) for word in contents]
    return pa.array(numbers, pa.float32()).take(words.indices)


def side_by_side(parts: Sequence[pa.Array], rows: int) -> pa.Array:
    """Lists of one value per part (float32), null if all are null; a single null value is refused later."""
    flat = pa.concat_arrays(parts).take(
        pa.array(np.arange(rows * len(parts)).reshape(len(parts), rows).T.ravel())
    )
    missing = np.ones(rows, bool)
    for part in parts:
        missing &= part.is_null().to_numpy(zero_copy_only=False)
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(parts))
    return pa.ListArray.from_arrays(ends, flat, mask=pa.array(missing))


def plain(column: pa.Array) -> pa.Array:
    """A column of decimals as texts, which say them exactly; others as they are."""
    return column.cast(pa.string()) if pt.is_decimal(column.type) else column


def decimals(name: str, column: pa.Array, scale: int, faults: Faults) -> pa.Array:
    """Integers in big-endian two's complement (binary), over ten to ``scale``, as texts; longer ones than 16 bytes are faults."""
    lengths = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    is_number = is_valid(column) & (lengths > 0) & (lengths <= _DECIMAL_BYTES)
    faults.refuse(
        is_valid(column) & ~is_number,
        Reason.WRONG_TYPE,
        lambda i: f"{name} is a decimal of {lengths[i]} bytes, expected 1 to {_DECIMAL_BYTES}",
    )
    wide = np.flatnonzero(is_number)
    integers = np.zeros((len(column), _DECIMAL_BYTES), np.uint8)
    if len(wide):
        these = column.take(pa.array(wide)).cast(pa.large_binary())
        data = np.frombuffer(these.buffers()[2], np.uint8)
        of_row = np.repeat(np.arange(len(wide)), lengths[wide])
        ends = np.cumsum(lengths[wide])
        from_end = ends[of_row] - 1 - np.arange(ends[-1])
        first = data[ends - lengths[wide]]
        integers[wide[first >= 0x80]] = 0xFF
        integers[wide[of_row], from_end] = data[: ends[-1]]
    raw = pa.Array.from_buffers(
        pa.decimal128(_DECIMAL_DIGITS, scale), len(column), [None, pa.py_buffer(integers.tobytes())]
    )
    return pc.if_else(pa.array(is_number), raw.cast(pa.string()), None)


_DECIMAL_BYTES, _DECIMAL_DIGITS = 16, 38


def decoded(name: str, column: pa.DictionaryArray) -> pa.Array:
    """A dictionary-coded column with its values in place.

    Raises:
        RefusedError: They are neither text nor numbers.
    """
    words = column.dictionary
    is_text = pt.is_string(words.type) or pt.is_large_string(words.type)
    if not (is_text or pt.is_integer(words.type) or pt.is_floating(words.type)):
        raise _wrong(name, column, ["a dictionary of strings or numbers"])
    if is_text and (pc.max(pc.binary_length(words)).as_py() or 0) > MAX_ID_BYTES:
        # Cut words that are refused as too long anyway, or a few bytes of indices would become gigabytes of text.
        words = pc.utf8_slice_codeunits(words, 0, MAX_ID_BYTES + 1)
        column = pa.DictionaryArray.from_arrays(column.indices, words)
    return column.dictionary_decode()


def _wrong(name: str, column: pa.Array, expected: Iterable[str]) -> RefusedError:
    return RefusedError(
        Reason.WRONG_TYPE, f"column {name} is {column.type}, expected {' or '.join(expected)}"
    )


def _integers(
    name: str, column: pa.Array, low: int, high: int, faults: Faults, reason: Reason = Reason.WRONG_TYPE
) -> pa.Array:
    """A column of whole numbers as int64 with nulls; values outside [low, high] are faults."""
    kind = column.type
    if pt.is_null(kind):
        return nulls(pa.int64(), len(column))
    if pt.is_floating(kind):
        values = pc.cast(column, pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        missing = np.isnan(values)
        whole = np.where(missing, 0.0, values)
        exact = np.abs(whole) <= _EXACT_FLOAT
        fits = exact & (np.trunc(whole) == whole) & (whole >= low) & (whole <= high)
        faults.refuse(
            ~fits,
            reason,
            lambda i: f"{name} is {values[i]}, expected a whole number between {low} and {high}",
        )
        return pa.array(np.where(fits, whole, 0).astype(np.int64), mask=missing)
    if is_text(kind):

        def sentence(text: str) -> str:
            return f"{name} is the string {shorten(text)}, expected a whole number"

        column = read_numbers(column, WHOLE, faults, reason, sentence)
    elif not pt.is_integer(kind):
        raise _wrong(name, column, ["integers"])
    if pt.is_uint64(kind):
        filled = column.fill_null(0).to_numpy(zero_copy_only=False)
        fits = filled <= np.uint64(high)
        faults.refuse(
            ~fits, reason, lambda i: f"{name} is {filled[i]}, expected a number between {low} and {high}"
        )
        column = pc.cast(column, pa.int64(), safe=False)
        return column if fits.all() else pc.if_else(pa.array(fits), column, pa.scalar(0, pa.int64()))
    column = column if pt.is_int64(kind) else pc.cast(column, pa.int64())
    if low > -(2**63) or high < 2**63 - 1:
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        fits = (values >= low) & (values <= high)
        faults.refuse(
            ~fits, reason, lambda i: f"{name} is {values[i]}, expected a number between {low} and {high}"
        )
        if not fits.all():
            column = pc.if_else(pa.array(fits), column, pa.scalar(0, pa.int64()))
    return column


def _ints(name: str, column: pa.Array, faults: Faults, reason: Reason) -> pa.Array:
    if is_text(column.type):

        def sentence(text: str) -> str:
            return f"{name} is the string {shorten(text)}, but ids are int64 (config key ids)"

        return read_numbers(column, WHOLE, faults, reason, sentence)
    return _integers(name, column, -(2**63), 2**63 - 1, faults, reason)


def _texts(name: str, column: pa.Array, faults: Faults, reason: Reason) -> pa.Array:
    if pt.is_null(column.type):
        return nulls(pa.string(), len(column))
    if pt.is_integer(column.type):
        return pc.cast(_integers(name, column, -(2**63), 2**63 - 1, faults, reason), pa.string())
    if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
        raise RefusedError(reason, f"column {name} is {column.type}, but ids are strings (config key ids)")
    return column if pt.is_string(column.type) else pc.cast(column, pa.string())


def _int32(name: str, column: pa.Array | None, rows: int, faults: Faults) -> pa.Array:
    if column is None or pt.is_null(column.type):
        return nulls(pa.int32(), rows)
    if pt.is_int32(column.type):
        return column
    return pc.cast(_integers(name, column, -(2**31), 2**31 - 1, faults), pa.int32())


def _labels(name: str, column: pa.Array | None, rows: int, faults: Faults) -> pa.Array:
    is_boolean = column is not None and pt.is_boolean(column.type)
    return pc.cast(column, pa.int32()) if is_boolean else _int32(name, column, rows, faults)


def _ops(name: str, column: pa.Array | None, dst: pa.Array, faults: Faults) -> pa.Array:
    """Without an op, events are inserts, or node events if ``dst`` is null; so are inserts without dst."""
    if column is not None and pt.is_int8(column.type) and column.null_count == dst.null_count == 0:
        span = pc.min_max(column).as_py()
        if len(column) and span["min"] >= -1 and span["max"] <= 1:
            return column
    has_dst = dst.is_valid().to_numpy(zero_copy_only=False)
    default = np.where(has_dst, np.int8(Op.INSERT), np.int8(Op.NODE))
    if column is None or pt.is_null(column.type):
        return pa.array(default)
    if is_text(column.type):
        raise _wrong(name, column, ["integers"])
    wide = _integers(name, column, -1, 1, faults, Reason.UNKNOWN_OP)
    missing = wide.is_null().to_numpy(zero_copy_only=False)
    op = wide.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int8)
    return pa.array(np.where(missing | ((op == Op.INSERT) & ~has_dst), default, op))


def _times(name: str, column: pa.Array, unit: TimeUnit, faults: Faults, texts: bool) -> pa.Array:
    kind = column.type
    if is_text(kind):
        return _time_texts(name, column, unit, faults, dates=texts)
    if pt.is_timestamp(kind):
        return _scaled(column.view(pa.int64()), _TICKS_PER_S[kind.unit])
    if pt.is_null(kind):
        return nulls(pa.int64(), len(column))
    if unit == "rfc3339" or not (pt.is_integer(kind) or pt.is_floating(kind)):
        expected = ["timestamps"] if unit == "rfc3339" else ["timestamps", f"numbers (time_unit {unit})"]
        raise _wrong(name, column, [*expected, *(["RFC 3339 strings"] if texts else [])])
    per_s = 10 ** (6 - SCALE_DIGITS[unit])
    if pt.is_integer(kind):
        return _scaled(_integers(name, column, -(2**63), 2**63 - 1, faults, Reason.TIME_OUT_OF_BOUNDS), per_s)
    values = pc.cast(column, pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    faults.refuse(~np.isfinite(values), Reason.NOT_FINITE, lambda i: f"{name} is {values[i]}")
    # A float64 of seconds near today is within 0.12 µs of the decimal it stands for: rounding restores it.
    factor = US_PER_S / per_s
    limit = 9.2e18 / max(factor, 1)  # within int64 once multiplied; far outside every bound
    micros = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit) * factor
    nearest = np.copysign(np.floor(np.abs(micros) + 0.5), micros).astype(np.int64)
    return pa.array(nearest, mask=column.is_null().to_numpy(zero_copy_only=False))


def _time_texts(name: str, column: pa.Array, unit: TimeUnit, faults: Faults, *, dates: bool) -> pa.Array:
    """Texts of numbers in a unit, or of times in RFC 3339 if ``dates``, as int64 microseconds."""
    if unit == "rfc3339":
        return read_times(name, column, faults).view(pa.int64())
    # Of a text that is neither, the sentence is about a time.
    is_date = pa.repeat(False, len(column))
    if dates:
        is_date = pc.invert(pc.match_substring_regex(column, _IS_NUMBER)).fill_null(False)
    read = read_times(name, pc.if_else(is_date, column, None), faults).view(pa.int64())

    def sentence(text: str) -> str:
        return f"{name} is the string {shorten(text)}, expected a number in {unit}{' or an RFC 3339 string' if dates else ''}"

    scale = SCALE_DIGITS[unit]
    numbers = pc.if_else(is_date, None, column)
    micros = read_numbers(numbers, TIME, faults, Reason.WRONG_TYPE, sentence, scale)
    return pc.coalesce(read, micros)


def _scaled(ticks: pa.Array, per_s: int) -> pa.Array:
    """Ticks (int64) to microseconds; beyond int64 they become ±OUT_OF_RANGE_US, finer ones are rounded."""
    if per_s == US_PER_S:
        return ticks
    missing = ticks.is_null().to_numpy(zero_copy_only=False)
    values = ticks.fill_null(0).to_numpy(zero_copy_only=False)
    if per_s > US_PER_S:
        divisor = per_s // US_PER_S
        whole, rest = np.divmod(values, divisor)
        # Halves away from zero: floor division left them below for either sign.
        micros = whole + (2 * rest + (values >= 0) > divisor)
    else:
        factor = US_PER_S // per_s
        limit = OUT_OF_RANGE_US // factor
        micros = np.where(
            values > limit,
            OUT_OF_RANGE_US,
            np.where(values < -limit, -OUT_OF_RANGE_US, np.clip(values, -limit, limit) * factor),
        )
    return pa.array(micros.astype(np.int64), mask=missing)


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """``pyarrow.nulls`` of one of ``NULL_KINDS``, which share a block of buffers: most streams have several."""
    return _block(kind)[:rows] if rows <= SHARED_ROWS else pa.nulls(rows, kind)


@cache
def _block(kind: pa.DataType) -> pa.Array:
    return pa.nulls(SHARED_ROWS, kind)


def _weights(name: str, column: pa.Array | None, rows: int, faults: Faults) -> pa.Array:
    if column is None or pt.is_null(column.type):
        return pa.array(np.ones(rows, np.float32))
    return float32s(name, column, faults).fill_null(np.float32(1.0))


def float32s(name: str, column: pa.Array, faults: Faults) -> pa.Array:
    """Numbers of any type, or texts of numbers, as float32; a text that is none is null, and a fault of its row.

    Raises:
        RefusedError: They are neither.
    """
    if is_text(column.type):

        def sentence(text: str) -> str:
            return f"{name} is the string {shorten(text)}, expected a number"

        return read_numbers(column, REAL, faults, Reason.WRONG_TYPE, sentence)
    if pt.is_decimal(column.type):
        return pc.cast(column, pa.float64()).cast(pa.float32(), safe=False)
    if not (pt.is_floating(column.type) or pt.is_integer(column.type) or pt.is_null(column.type)):
        raise _wrong(name, column, ["numbers"])
    return pc.cast(column, pa.float32(), safe=False)


def _features(name: str, column: pa.Array | None, rows: int) -> pa.Array:
    target = pa.list_(pa.float32())
    if column is None or pt.is_null(column.type):
        return nulls(target, rows)
    kind = column.type
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    is_number = is_list and (
        pt.is_floating(kind.value_type) or pt.is_integer(kind.value_type) or pt.is_decimal(kind.value_type)
    )
    if not is_number:
        raise _wrong(name, column, ["list<float32>"])
    return column if kind == target else pc.cast(column, target, safe=False)


def _event_ids(name: str, column: pa.Array | None, rows: int, faults: Faults) -> pa.Array:
    if column is None or pt.is_null(column.type):
        return nulls(pa.string(), rows)
    if pt.is_integer(column.type):
        whole = _integers(name, column, -(2**63), 2**63 - 1, faults, Reason.BAD_ID)
        return pc.cast(whole, pa.string())
    if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
        raise _wrong(name, column, ["strings", "integers"])
    return column if pt.is_string(column.type) else pc.cast(column, pa.string())
