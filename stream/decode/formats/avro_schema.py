"""A writer's Avro schema: checked against hostile costs, and reduced to the fields of events."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from fastavro import parse_schema

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import Reason
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.decode.arrow import MOST_SCALE, SCALE, UNIT, VARIABLE
from freshet_graph.stream.decode.formats.registered import UNKNOWN_SCHEMA
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


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """The arguments of ``fastavro.schemaless_reader`` for messages of one schema.

    Attributes:
        writer: The schema that they were written by, without logical types.
        reader: The part that is built; None: all of it. Lists that no event has are skipped, since a few bytes can make
            many objects.
        columns: Types of the wanted fields that exist.
    """

    writer: Any
    reader: Any
    columns: pa.StructType

    @classmethod
    def of(cls, schemas: list[Any], paths: Iterable[PathKeys], many: PathKeys | None = None) -> "AvroSchema":
        """Check and prepare a schema.

        Args:
            schemas: Parsed JSON; the last is the messages', the others are referred to.
            paths: Of the fields of events.
            many: Of the array whose elements are events.

        Raises:
            RefusedError: It is no schema or no record, is recursive, too large or too deep, or lets a few bytes stand for
                many values; or a field of events has a wrong type.
        """
        try:
            return cls._of(schemas, paths, many)
        except RefusedError:
            raise
        except RecursionError as error:
            raise _refused(f"is nested deeper than {MOST_DEPTH} types") from error
        except (
            Exception
        ) as error:  # fastavro's own, KeyError and TypeError of what is no schema, and any other
            raise _refused(f"cannot be read: {one_line(error)[:200]}") from error

    @classmethod
    def _of(cls, schemas: list[Any], paths: Iterable[PathKeys], many: PathKeys | None) -> "AvroSchema":
        named: dict[str, Any] = {}
        for schema in schemas:
            top = parse_schema(schema, named)
        wanted: Wanted = {}
        for keys in (*paths, *([many] if many else [])):
            level = wanted
            for key in keys:
                level = level.setdefault(key, {})
        names = _Names(named, many)
        if names.measure(top, (), "").spare < -FREE_VALUES:
            raise _refused(f"has messages of more than {VALUES_PER_BYTE} values per byte")
        columns = names.columns(top, wanted)
        whole, part = _Writer(named, None), _Writer(named, names.wanted_fields)
        writer = parse_schema(whole.of(top))
        reader = parse_schema(part.of(top)) if names.lists_elsewhere(top, wanted) or names.mixed else None
        return cls(writer, reader, columns)


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

    def __init__(self, named: dict[str, Any], many: PathKeys | None) -> None:
        self._named, self._many = named, ".".join(many or ())
        self._measured: dict[str, _Size] = {}
        self.mixed = False
        """Whether a wanted field is a union of whole and other numbers, which are read as doubles."""
        self.wanted_fields: dict[str, set[str]] = {}
        """Wanted fields of each record."""

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

    def columns(self, schema: Any, wanted: Wanted) -> pa.StructType:
        """The Arrow type of a record's wanted fields."""
        schema = self.resolved(schema)
        if _kind(schema) != "record":
            raise _refused(f"is {_kind(schema)}, expected a record")
        return self._record(schema, wanted, "")

    def _record(self, schema: Any, wanted: Wanted, above: str) -> pa.StructType:
        wanted_names = self.wanted_fields.setdefault(schema["name"], set())
        fields = []
        for field in schema["fields"]:
            name = field["name"]
            if name in wanted:
                wanted_names.add(name)
                kind = self._type(field["type"], wanted[name], f"{above}{name}")
                fields.append(pa.field(name, kind, metadata=self._meaning(field["type"])))
        return pa.struct(fields)

    def _meaning(self, schema: Any) -> dict[bytes, bytes] | None:
        """The meaning of a type besides Arrow's: the scale of a decimal, or the unit of a time."""
        schema = self.resolved(schema)
        if isinstance(schema, list):
            others = [branch for branch in schema if _kind(self.resolved(branch)) != "null"]
            return self._meaning(others[0]) if len(others) == 1 else None
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

    def _type(self, schema: Any, wanted: Wanted, path: str) -> pa.DataType:
        schema = self.resolved(schema)
        kind = _kind(schema)
        if kind == "union":
            branches = [branch for branch in schema if _kind(self.resolved(branch)) != "null"]
            if len(branches) == 1:
                return self._type(branches[0], wanted, path)
            kinds = {_kind(self.resolved(branch)) for branch in branches}
            if kinds and kinds <= {"int", "long"}:
                return pa.int64()
            if kinds and kinds <= {*_NUMBERS}:
                self.mixed = True
                return pa.float64()
            if not kinds:
                return pa.null()
            raise RefusedError(
                Reason.WRONG_TYPE,
                f"field {path} is a union of {', '.join(sorted(kinds))}, expected one type",
            )
        if kind == "null":
            return pa.null()
        if kind == "record":
            if not wanted and self._meaning(schema) is not None:
                return self._record(schema, {"scale": {}, "value": {}}, f"{path}.")
            if not wanted:
                raise RefusedError(Reason.WRONG_TYPE, f"field {path} is a record. Name a field inside of it")
            return self._record(schema, wanted, f"{path}.")
        if kind == "array" and path == self._many:
            return pa.list_(self._type(schema["items"], wanted, path))
        if wanted:
            raise RefusedError(Reason.WRONG_TYPE, f"field {path} is {kind}, expected a record")
        if kind == "array":
            items = self._type(schema["items"], {}, f"{path}[]")
            if not (pa.types.is_integer(items) or pa.types.is_floating(items)):
                raise RefusedError(
                    Reason.WRONG_TYPE, f"field {path} is an array of {items}, expected numbers"
                )
            return pa.list_(items)
        if kind == "enum":
            return pa.string()
        logical = str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""
        if kind == "long" and "timestamp-" in logical:
            unit = _TIMES.get(logical.rsplit("-", 1)[-1])
            return pa.int64() if unit is None else pa.timestamp(unit)
        if kind == "fixed" and logical == "decimal":
            return pa.binary()
        if kind not in _PRIMITIVES:
            raise RefusedError(Reason.WRONG_TYPE, f"field {path} is {kind}, expected a number or a string")
        return _PRIMITIVES[kind]

    def lists_elsewhere(self, schema: Any, wanted: Wanted | None) -> bool:
        """Whether a value has arrays or maps that are not wanted."""
        schema = self.resolved(schema)
        kind = _kind(schema)
        if kind in ("array", "map"):
            return wanted is None or (kind == "array" and self.lists_elsewhere(schema["items"], wanted))
        if kind == "union":
            return any(self.lists_elsewhere(branch, wanted) for branch in schema)
        if kind != "record":
            return False
        return any(
            self.lists_elsewhere(field["type"], None if wanted is None else wanted.get(field["name"]))
            for field in schema["fields"]
        )


class _Writer:
    """A schema reduced to types, for ``fastavro``.

    ``wanted_fields`` are the fields of records to keep, by the record's name: with them it is a reader's schema, in which a
    union of numbers is a double.
    """

    def __init__(self, named: dict[str, Any], wanted_fields: dict[str, set[str]] | None) -> None:
        self._named, self._wanted_fields = named, wanted_fields
        self._written: set[str] = set()

    def of(self, schema: Any) -> Any:
        """One type; a named one in full where it first occurs."""
        if isinstance(schema, list):
            branches = [self.of(branch) for branch in schema]
            others = [branch for branch in branches if branch != "null"]
            numbers = len(others) > 1 and all(branch in _NUMBERS for branch in others)
            if self._wanted_fields is not None and numbers and ("float" in others or "double" in others):
                return [*(branch for branch in branches if branch == "null"), "double"]
            return branches
        if isinstance(schema, str):
            if schema in _PRIMITIVES or schema in self._written:
                return schema
            schema = self._named[schema]
        kind, name = schema["type"], schema.get("name")
        if name is not None:
            self._written.add(name)
        if kind == "record":
            return {"type": kind, "name": name, "fields": list(self._fields(schema))}
        if kind == "array":
            return {"type": kind, "items": self.of(schema["items"])}
        if kind == "map":
            return {"type": kind, "values": self.of(schema["values"])}
        if name is not None:  # enum and fixed
            return {key: schema[key] for key in ("type", "name", "symbols", "size") if key in schema}
        return self.of(kind)

    def _fields(self, schema: Any) -> Iterator[dict[str, Any]]:
        wanted_names = None if self._wanted_fields is None else self._wanted_fields.get(schema["name"], set())
        for field in schema["fields"]:
            if wanted_names is None or field["name"] in wanted_names:
                yield {"name": field["name"], "type": self.of(field["type"])}
