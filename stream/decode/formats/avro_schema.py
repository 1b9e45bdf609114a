"""A writer's Avro schema: checked against hostile costs, and made a program that reads the fields of events into columns."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from fastavro import parse_schema

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import Reason
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt8
from freshet_graph.stream.decode import avro_kernel as op
from freshet_graph.stream.decode.arrow import MOST_SCALE, SCALE, UNIT, VARIABLE
from freshet_graph.stream.decode.confluent import HEADER_BYTES
from freshet_graph.stream.decode.formats.registered import UNKNOWN_SCHEMA
from freshet_graph.stream.decode.json_kernel import copy_pieces
from freshet_graph.stream.decode.reading import RefusedError
from freshet_graph.stream.decode.times import TIME_UNITS

MOST_TYPES = 20_000
"""Most types in a schema once every name is replaced by its type."""
MOST_DEPTH = 64
"""Most types inside of each other."""
VALUES_PER_BYTE = 3
"""Most values that a byte of a message may stand for: a null takes none, and a record only those of its fields. A record whose
only field is optional and absent has three (itself, the union and the null) in one byte."""
FREE_VALUES = 256
"""Values of a message beyond these, such as columns that are always null."""

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_NUMBERS = ("int", "long", "float", "double")
_TIMES = {"millis": "ms", "micros": "us", "nanos": "ns"}

Wanted = dict[str, "Wanted"]
"""Names of fields, each with the wanted fields inside it; empty: the whole value."""


_SENTENCES = {
    op.CUT: "the message ends inside of it",
    op.LONG_NUMBER: "a number has more than 64 bits",
    op.NO_LENGTH: "its length is negative",
    op.NO_BRANCH: "its union has no such branch",
    op.NO_SYMBOL: "its enum has no such symbol",
    op.NO_TEXT: "its text is not UTF-8",
    op.NO_COUNT: "its number of items has more than 63 bits",
}
FIRST_ROWS, BYTES_AN_ITEM = 1024, 8
"""Room for items at first: so many, or one for so many bytes of the messages. It is doubled until they fit."""

_OPERATIONS = {
    "boolean": op.BOOLEAN,
    "int": op.LONG,
    "long": op.LONG,
    "float": op.FLOAT,
    "double": op.DOUBLE,
    "bytes": op.BYTES,
    "string": op.TEXT,
    "fixed": op.FIXED,
    "enum": op.SYMBOL,
}
_AS_DOUBLES = _OPERATIONS | {"int": op.LONG_AS_DOUBLE, "long": op.LONG_AS_DOUBLE, "float": op.FLOAT_AS_DOUBLE}
_SKIPPED = _OPERATIONS | {"string": op.BYTES, "enum": op.LONG}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Column:
    """Where the kernel leaves the values of a wanted field.

    Attributes:
        type: Their Arrow type.
        slot: See ``avro_kernel``; −1: all are null, or none is but with what is around it.
        inner: Columns of a record's fields, or of a list's items.
        symbols: Of an enum.
    """

    type: pa.DataType
    slot: int = -1
    inner: "tuple[_Column, ...]" = ()
    symbols: tuple[str, ...] = ()


class AvroSchema:
    """The reader of messages of one schema.

    Args:
        schemas: Parsed JSON; the last is the messages', the others are referred to.
        paths: Of the fields of events. A field that a record lacks may be the former name (alias) of another.
        many: Of the array whose elements are events.

    Attributes:
        columns: Types of the wanted fields that exist.

    Raises:
        RefusedError: It is no schema or no record, is recursive, too large or too deep, or lets a few bytes stand for
            many values; or a field of events has a wrong type.
    """

    def __init__(self, schemas: list[Any], paths: Iterable[PathKeys], many: PathKeys | None = None) -> None:
        try:
            program = self._program(schemas, paths, many)
        except RefusedError:
            raise
        except RecursionError as error:
            raise _refused(f"is nested deeper than {MOST_DEPTH} types") from error
        except (
            Exception
        ) as error:  # fastavro's own, KeyError and TypeError of what is no schema, and any other
            raise _refused(f"cannot be read: {one_line(error)[:200]}") from error
        self.columns = self._message.type
        self._code, self._places = np.array(program.code, np.int32), program.places
        self._levels = np.array(program.levels, np.int64)
        self._num_levels = program.num_levels

    def _program(self, schemas: list[Any], paths: Iterable[PathKeys], many: PathKeys | None) -> "_Program":
        named: dict[str, Any] = {}
        for schema in schemas:
            top = parse_schema(schema, named)
        wanted: Wanted = {}
        for keys in (*paths, *([many] if many else [])):
            level = wanted
            for key in keys:
                level = level.setdefault(key, {})
        names = _Names(named)
        if names.measure(top, (), "").spare < -FREE_VALUES:
            raise _refused(f"has messages of more than {VALUES_PER_BYTE} values per byte")
        program = _Program(names, many)
        self._message = program.message(top, wanted)
        return program

    def read(self, data: UInt8, starts: Int64, ends: Int64) -> tuple[pa.RecordBatch, Int64, list[str]]:
        """The wanted columns of messages.

        Args:
            data: uint8, read-only; their bytes.
            starts: int64 [n], where each message's value begins.
            ends: int64 [n], where its message ends.

        Returns:
            A row for each message that is a value of the schema; and the indices (int64) of the others, with a sentence each.
        """
        room = np.full(self._num_levels, max(FIRST_ROWS, int((ends - starts).sum()) // BYTES_AN_ITEM))
        room[0] = len(starts)
        rows, faults = np.zeros(self._num_levels, np.int64), np.zeros((len(starts), 3), np.int64)
        bases, cells, valid = self._cells(room)
        done, full = 0, -1
        while True:
            of = starts, ends, self._code, self._levels, bases, room, cells, valid, rows, faults
            done, full = op.read_values(data, *of, done)
            if full < 0:
                break
            room[full] *= 2
            smaller, small_cells, small_valid = bases, cells, valid
            bases, cells, valid = self._cells(room)
            for old, new, count in zip(
                smaller.tolist(), bases.tolist(), rows[self._levels].tolist(), strict=True
            ):
                cells[new : new + count] = small_cells[old : old + count]
                valid[new : new + count] = small_valid[old : old + count]
        read = _Cells(data, bases.tolist(), cells, valid)
        batch = pa.RecordBatch.from_struct_array(read.array(self._message, int(rows[0])))
        bad = np.flatnonzero(faults[:, 0])
        of_bad = zip(faults[bad].tolist(), starts[bad].tolist(), ends[bad].tolist(), strict=True)
        return batch, bad, [self._sentence(*one) for one in of_bad]

    def _cells(self, room: Int64) -> tuple[Int64, Int64, Bool]:
        """The place of each slot, and cells and their flags for so many rows of each level."""
        lengths = room[self._levels]
        ends = np.cumsum(lengths)
        size = int(lengths.sum())
        return ends - lengths, np.zeros(size, np.int64), np.zeros(size, np.bool_)

    def _sentence(self, wrong: list[int], start: int, end: int) -> str:
        fault, pc, begin = wrong
        if fault == op.MORE:
            return f"has {end - begin} bytes after its value"
        where = f"field {self._places[pc]}, byte {HEADER_BYTES + begin - start}"
        return f"is no value of its Avro schema: {where}: {_SENTENCES[fault]}"


@dataclass(frozen=True, slots=True)
class _Cells:
    """What the kernel left: see ``avro_kernel.read_values``."""

    data: UInt8
    bases: list[int]
    cells: Int64
    valid: Bool

    def array(self, column: _Column, count: int) -> pa.Array:
        """The first ``count`` values of a column."""
        kind, slot = column.type, column.slot
        if pt.is_null(kind):
            return pa.nulls(count)
        bitmap = None
        if slot >= 0:
            valid = self.valid[self.bases[slot] :][:count]
            bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if pt.is_struct(kind):
            inner = [self.array(field, count) for field in column.inner]
            return pa.Array.from_buffers(kind, count, [bitmap], children=inner)
        values = self.cells[self.bases[slot] :][:count]
        if pt.is_list(kind):
            ends = np.concatenate([[0], np.cumsum(values)]).astype(np.int32)
            items = self.array(column.inner[0], int(ends[-1]))
            return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(ends)], children=[items])
        if column.symbols:
            places = pa.Array.from_buffers(pa.int64(), count, [bitmap, pa.py_buffer(values)])
            return pa.array(column.symbols).take(places)
        if pt.is_string(kind) or pt.is_binary(kind):
            lengths = self.cells[self.bases[slot + 1] :][:count]
            ends, pieces = copy_pieces(self.data, values, lengths)
            buffers = [bitmap, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(pieces)]
            return pa.Array.from_buffers(kind, count, buffers)
        if pt.is_boolean(kind):
            bits = np.packbits(values != 0, bitorder="little")
            return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(bits)])
        content = values.astype(np.uint32) if pt.is_float32(kind) else values
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(content)])


def _refused(problem: str) -> RefusedError:
    return RefusedError(UNKNOWN_SCHEMA, f"its Avro schema {problem}")


class _Size(NamedTuple):
    """What a type can cost.

    Attributes:
        types: Number of types in it.
        depth: Types inside of each other.
        spare: The least, over all its values, of ``VALUES_PER_BYTE`` times their bytes less their number.
    """

    types: int
    depth: int
    spare: int


def _kind(schema: Any) -> str:
    """Avro's word for a type: ``union`` for a list, else its ``type``."""
    if isinstance(schema, list):
        return "union"
    return _kind(schema["type"]) if isinstance(schema, dict) else str(schema)


class _Names:
    """A schema whose named types are in a table."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._measured: dict[str, _Size] = {}

    def resolved(self, schema: Any) -> Any:
        """The type of a name."""
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            return self._named[schema]
        return schema

    def measure(self, schema: Any, inside: tuple[str, ...], path: str) -> _Size:
        """The size of a type at a path, inside of named types.

        Raises:
            RefusedError: Too many types or too deep; a record inside itself; items of which a few bytes are many values.
        """
        schema = self.resolved(schema)
        kind, name = _kind(schema), schema.get("name") if isinstance(schema, dict) else None
        if name in inside:
            raise _refused(f"is recursive: {name} is inside of itself")
        if name in self._measured:
            return self._measured[name]
        within = (*inside, name) if name else inside
        spare = VALUES_PER_BYTE - 1
        inner: list[_Size] = []
        if kind == "record":
            for field in schema["fields"]:
                inner.append(self.measure(field["type"], within, f"{path}.{field['name']}".lstrip(".")))
            spare = sum(size.spare for size in inner) - 1
        elif kind == "union":
            inner = [self.measure(branch, within, path) for branch in schema]
            spare += min((size.spare for size in inner), default=0)
        elif kind in ("array", "map"):
            inner = [self.measure(schema["items" if kind == "array" else "values"], within, path)]
            # A map's entry has a key, too.
            if inner[0].spare + (spare if kind == "map" else 0) < 0:
                raise _refused(f"has more than {VALUES_PER_BYTE} values per byte in the items of {path}")
        elif kind == "fixed":
            if not (isinstance(schema["size"], int) and schema["size"] >= 0):
                raise _refused(f"has a fixed type {name} of size {schema['size']!r:.20}")
            spare = VALUES_PER_BYTE * schema["size"] - 1
        else:
            spare = VALUES_PER_BYTE * {"null": 0, "float": 4, "double": 8}.get(kind, 1) - 1
        size = _Size(
            1 + sum(inner_size.types for inner_size in inner),
            1 + max((inner_size.depth for inner_size in inner), default=0),
            spare,
        )
        if size.types > MOST_TYPES:
            raise _refused(f"has more than {MOST_TYPES} types")
        if size.depth > MOST_DEPTH:
            raise _refused(f"is nested deeper than {MOST_DEPTH} types")
        if name:
            self._measured[name] = size
        return size

    def meaning(self, schema: Any) -> dict[bytes, bytes] | None:
        """The meaning of a type besides Arrow's: the scale of a decimal, or the unit of a time."""
        schema = self.resolved(schema)
        if isinstance(schema, list):
            others = [branch for branch in schema if _kind(self.resolved(branch)) != "null"]
            return self.meaning(others[0]) if len(others) == 1 else None
        if not isinstance(schema, dict):
            return None
        kind = _kind(schema)
        if kind == "record":
            fields = {field["name"]: _kind(self.resolved(field["type"])) for field in schema["fields"]}
            return {SCALE: VARIABLE} if fields == {"scale": "int", "value": "bytes"} else None
        if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
            scale = schema.get("scale", 0)
            return {SCALE: str(scale).encode()} if type(scale) is int and abs(scale) <= MOST_SCALE else None
        name = str(schema.get("connect.name", schema.get("logicalType", "")))
        unit = TIME_UNITS.get(name.rpartition(".")[2] if "." in name else name)
        return {UNIT: unit.encode()} if unit is not None and kind in ("int", "long") else None


class _Program:
    """Instructions of ``avro_kernel`` for one schema.

    Attributes:
        code: The instructions.
        places: The path of the field that each is about.
        levels: The level of each slot.
        num_levels: Number of levels.
    """

    def __init__(self, names: _Names, many: PathKeys | None) -> None:
        self._names, self._many = names, ".".join(many or ())
        self._place = ""
        self.code: list[list[int]] = []
        self.places: list[str] = []
        self.levels: list[int] = []
        self.num_levels = 1

    def message(self, schema: Any, wanted: Wanted) -> _Column:
        """Read a whole message, a record with wanted fields."""
        schema = self._names.resolved(schema)
        if _kind(schema) != "record":
            raise _refused(f"is {_kind(schema)}, expected a record")
        column = self._record(schema, wanted, "", 0)
        self._emit(op.END)
        return column

    def _emit(self, operation: int, slot: int = -1, level: int = 0, argument: int = 0) -> int:
        self.code.append([operation, slot, level, argument])
        self.places.append(self._place)
        return len(self.code) - 1

    def _slot(self, level: int, count: int = 1) -> int:
        self.levels += [level] * count
        return len(self.levels) - count

    def _skip(self, schema: Any) -> None:
        schema = self._names.resolved(schema)
        kind = _kind(schema)
        if kind == "record":
            for field in schema["fields"]:
                self._skip(field["type"])
        elif kind == "union":
            self._union(schema, self._skip)
        elif kind in ("array", "map"):
            self._list(kind, -1, -1, lambda: self._skip(schema["items" if kind == "array" else "values"]))
        elif kind != "null":
            self._emit(_SKIPPED[kind], argument=schema["size"] if kind == "fixed" else 0)

    def _union(self, schema: list[Any], read: Callable[[Any], T]) -> list[T]:
        """A union, whose branches are read one by one; what they gave."""
        kinds = [_kind(self._names.resolved(branch)) for branch in schema]
        if len(kinds) == 2 and "null" in kinds:
            null = kinds.index("null")
            option = self._emit(op.OPTION, level=null)
            given = [read(schema[1 - null])]
            self.code[option][3] = len(self.code)
            return given
        first = self._emit(op.UNION, argument=len(schema)) + 1
        jumps = [self._emit(op.JUMP) for _ in schema]
        given = []
        for place, inner in enumerate(schema):
            self.code[first + place][3] = len(self.code)
            given.append(read(inner))
            jumps.append(self._emit(op.JUMP))
        for jump in jumps[len(schema) :]:
            self.code[jump][3] = len(self.code)
        return given

    def _list(self, kind: str, slot: int, level: int, item: Callable[[], T]) -> T:
        self._emit(op.LIST, slot, level)
        begin = self._emit(op.ITEM if kind == "array" else op.ENTRY, slot, level)
        given = item()
        self._emit(op.JUMP, argument=begin)
        self.code[begin][3] = len(self.code)
        return given

    def _record(self, schema: Any, wanted: Wanted, above: str, level: int, slot: int = -1) -> _Column:
        """A record's wanted fields, each by its name, or else by a former one that no field has now."""
        present = {field["name"] for field in schema["fields"]}
        fields, columns = [], []
        for field in schema["fields"]:
            former = [name for name in field.get("aliases", ()) if name in wanted and name not in present]
            name = field["name"] if field["name"] in wanted else (former or [None])[0]
            self._place = f"{above}{field['name']}"
            if name is None:
                self._skip(field["type"])
                continue
            present.add(name)
            columns.append(self._value(field["type"], wanted[name], f"{above}{name}", level))
            fields.append(pa.field(name, columns[-1].type, metadata=self._names.meaning(field["type"])))
        return _Column(pa.struct(fields), slot, tuple(columns))

    def _value(
        self, schema: Any, wanted: Wanted, path: str, level: int, *, optional: bool = False
    ) -> _Column:
        """A value of a wanted field.

        Raises:
            RefusedError: Its type is none that a field can have.
        """
        schema = self._names.resolved(schema)
        kind = _kind(schema)
        if kind == "union":
            return self._branches(schema, wanted, path, level)
        if kind == "null":
            return _Column(pa.null())
        if kind == "record":
            if not wanted and self._names.meaning(schema) is not None:
                wanted = {"scale": {}, "value": {}}
            elif not wanted:
                raise RefusedError(Reason.WRONG_TYPE, f"field {path} is a record. Name a field inside of it")
            slot = -1
            if optional:
                slot = self._slot(level)
                self._emit(op.PRESENT, slot, level)
            return self._record(schema, wanted, f"{path}.", level, slot)
        if kind == "array" and path == self._many:
            return self._items(schema, wanted, path, path, level)
        if wanted:
            raise RefusedError(Reason.WRONG_TYPE, f"field {path} is {kind}, expected a record")
        if kind == "array":
            column = self._items(schema, {}, path, f"{path}[]", level)
            items = column.type.value_type
            if not (pt.is_integer(items) or pt.is_floating(items)):
                raise RefusedError(
                    Reason.WRONG_TYPE, f"field {path} is an array of {items}, expected numbers"
                )
            return column
        logical = str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""
        if kind not in _PRIMITIVES and kind != "enum" and not (kind == "fixed" and logical == "decimal"):
            raise RefusedError(Reason.WRONG_TYPE, f"field {path} is {kind}, expected a number or a string")
        slot = self._slot(level, 2 if kind in ("bytes", "string", "fixed") else 1)
        symbols = tuple(schema["symbols"]) if kind == "enum" else ()
        self._emit(_OPERATIONS[kind], slot, level, schema["size"] if kind == "fixed" else len(symbols))
        if kind == "enum":
            return _Column(pa.string(), slot, symbols=symbols)
        if kind == "long" and "timestamp-" in logical:
            unit = _TIMES.get(logical.rsplit("-", 1)[-1])
            return _Column(pa.int64() if unit is None else pa.timestamp(unit), slot)
        return _Column(pa.binary() if kind == "fixed" else _PRIMITIVES[kind], slot)

    def _branches(self, schema: list[Any], wanted: Wanted, path: str, level: int) -> _Column:
        """A union of null and one type, or of numbers, which are doubles if one of them is no whole number."""
        kinds = [_kind(self._names.resolved(branch)) for branch in schema]
        others = [kind for kind in kinds if kind != "null"]
        if len(others) == 1:
            given = self._union(
                schema, lambda branch: self._value(branch, wanted, path, level, optional=True)
            )
            return next((column for column in given if not pt.is_null(column.type)), given[0])
        if not {*others} <= {*_NUMBERS}:
            raise RefusedError(
                Reason.WRONG_TYPE,
                f"field {path} is a union of {', '.join(sorted({*others}))}, expected one type",
            )
        if not others:
            self._skip(schema)
            return _Column(pa.null())
        whole = {*others} <= {"int", "long"}
        slot, operations = self._slot(level), _OPERATIONS if whole else _AS_DOUBLES

        def number(branch: Any) -> None:
            kind = _kind(self._names.resolved(branch))
            if kind != "null":
                self._emit(operations[kind], slot, level)

        self._union(schema, number)
        return _Column(pa.int64() if whole else pa.float64(), slot)

    def _items(self, schema: Any, wanted: Wanted, path: str, inside: str, level: int) -> _Column:
        slot, below = self._slot(level), self.num_levels
        self.num_levels += 1
        item = self._list("array", slot, below, lambda: self._value(schema["items"], wanted, inside, below))
        return _Column(pa.list_(item.type), slot, (item,))
