"""Protobuf message types: descriptors of a registry or a file, reduced to the fields of events, which the library parses."""

import base64
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import Reason
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.decode.arrow import SCALE, VARIABLE
from freshet_graph.stream.decode.formats.registered import UNKNOWN_SCHEMA
from freshet_graph.stream.decode.reading import RefusedError

NOT_PROTOBUF = "not_protobuf"
"""Reason of a message without the header, or that is no value of its message type."""

COMPILE_S = 10.0
"""Longest compilation of a schema that the registry sends as text."""

Selector = tuple[int, ...] | int | str
"""A message type of a file: Confluent's indexes, Glue's index, or a name."""
Wanted = dict[str, "Wanted"]
"""Names of fields, each with the wanted fields inside it; empty: the whole value."""
Build = Callable[[list[Any]], pa.Array]
"""Makes a column of the values of some messages, of which absent ones are None."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    **dict.fromkeys((_Field.TYPE_UINT64, _Field.TYPE_FIXED64), pa.uint64()),
    _Field.TYPE_BOOL: pa.bool_(),
    _Field.TYPE_FLOAT: pa.float32(),
    _Field.TYPE_DOUBLE: pa.float64(),
    _Field.TYPE_STRING: pa.string(),
    _Field.TYPE_BYTES: pa.binary(),
}
"""Arrow's types; of all other scalars int64."""
_TIME, _DECIMAL = "google.protobuf.Timestamp", "confluent.type.Decimal"
_WRONG = (ValueError, TypeError, OverflowError, pa.ArrowException)
"""What values that the library parsed may raise where they become a column: texts that are no UTF-8, times beyond all clocks."""


class WantedFields(NamedTuple):
    """The fields of events in a topic's messages.

    Attributes:
        wanted: Their paths.
        many: Path of the array whose elements are events.
        texts: Paths of texts that are absent if they are empty, although their field has no presence.
        most_rows: Most elements of ``many`` in a message.
    """

    wanted: Wanted
    many: PathKeys | None
    texts: frozenset[PathKeys]
    most_rows: int

    @classmethod
    def of(
        cls, paths: Iterable[PathKeys], many: PathKeys | None, texts: frozenset[PathKeys], most_rows: int
    ) -> Self:
        """Those at some paths."""
        wanted: Wanted = {}
        for keys in (*paths, *([many] if many else [])):
            level = wanted
            for key in keys:
                level = level.setdefault(key, {})
        return cls(wanted, many, texts, most_rows)


class ProtobufSchema:
    """The message types of a schema.

    Args:
        contents: Names and contents of files, what is imported first: a descriptor in base64, text, or bytes of a descriptor set.
        fields: Of events.

    Raises:
        RefusedError: It cannot be read.
    """

    def __init__(self, contents: list[tuple[str, str | bytes]], fields: WantedFields) -> None:
        self._fields = fields
        self._readers: dict[Selector, MessageReader | RefusedError] = {}
        try:
            files = _descriptors(contents)
            self._file = files[-1]
            try:
                self._pool = _pool(files)
            except TypeError:  # the library's word for a type that is missing
                for file in files:
                    del file.service[:], file.extension[:]
                    _without_types(file.message_type, {*_names(fields.wanted)})
                self._pool = _pool(files)
        except RefusedError:
            raise
        except Exception as error:  # the library's own, of descriptors that contradict themselves
            raise _refused(f"cannot be read: {one_line(error)[:200]}") from error
        types = sorted(self._types(self._file.package, self._file.message_type))
        self._names: dict[int | str, str] = dict(enumerate(types)) | {name: name for name in types}

    def sample(self, selector: Selector, payload: memoryview) -> dict[str, Any]:
        """A message with all its fields, as JSON would have it.

        Raises:
            RefusedError: There is no such type.
            google.protobuf.message.DecodeError: It is no value of the type.
        """
        message = GetMessageClass(self._descriptor(selector)).FromString(payload)
        return dict(MessageToDict(message, preserving_proto_field_name=True))

    def reader(self, selector: Selector) -> "MessageReader":
        """Reads messages of a type.

        Raises:
            RefusedError: There is no such type, or a field of events has a wrong type.
        """
        if selector not in self._readers:
            descriptor = self._descriptor(selector)
            try:
                self._readers[selector] = MessageReader(descriptor, self._fields)
            except RefusedError as error:
                self._readers[selector] = error
        reader = self._readers[selector]
        if isinstance(reader, RefusedError):
            raise RefusedError(reader.reason, str(reader))
        return reader

    def _descriptor(self, selector: Selector) -> Any:
        try:
            return self._pool.FindMessageTypeByName(self._name(selector))
        except KeyError:
            raise _refused(f"has no message {selector!r:.100}") from None

    def _name(self, selector: Selector) -> str:
        """The full name of a message type.

        Raises:
            KeyError: There is none.
        """
        above = f"{self._file.package}." if self._file.package else ""
        if isinstance(selector, str):
            return self._names.get(f"{above}{selector}") or self._names[selector]
        if isinstance(selector, int):
            return self._names[selector]
        level = self._file.message_type
        for depth, index in enumerate(selector):
            # Confluent's serializers in Java count no entries of maps, which are types in descriptors only.
            listed = dict(enumerate(one for one in level if not one.options.map_entry))
            above += f"{'.' if depth else ''}{listed[index].name}"
            level = listed[index].nested_type
        return above

    def _types(self, above: str, types: Iterable[Any]) -> list[str]:
        names = []
        for one in types:
            name = f"{above}.{one.name}" if above else one.name
            names += [name, *self._types(name, one.nested_type)]
        return names


def _refused(problem: str) -> RefusedError:
    return RefusedError(UNKNOWN_SCHEMA, f"its Protobuf schema {problem}")


def _pool(files: list[Any]) -> DescriptorPool:
    """Files, what they import, and all libraries."""
    pool, by_name, added = DescriptorPool(), {file.name: file for file in files}, set[str]()

    def add(file: Any) -> None:
        if file.name not in added:
            added.add(file.name)
            for name in file.dependency:
                add(by_name.get(name) or _library(name))
            pool.Add(file)

    for file in files:
        add(file)
    return pool


def _descriptors(contents: list[tuple[str, str | bytes]]) -> list[Any]:
    """The files of a schema, the one with its messages last."""
    files: list[Any] = []
    texts: dict[str, str] = {}
    for name, content in contents:
        if isinstance(content, bytes):
            files += descriptor_pb2.FileDescriptorSet.FromString(content).file
            continue
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
        except (ValueError, DecodeError):
            texts[name] = content
        else:
            file.name = name
            files.append(file)
    if texts:
        files = list(_compiled(texts).file)
    if not files:
        raise _refused("has no files")
    return files


def _compiled(texts: dict[str, str]) -> Any:
    """The descriptor set of files, as protoc makes it."""
    if find_spec("grpc_tools") is None:
        raise _refused(
            "is text, which has to be compiled. Run pip install 'freshet-graph[protobuf]', or give a descriptor set in "
            "kafka.schema_registry.files"
        )
    *_, last = texts
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            file = Path(folder, name if name != last else f"{name}.proto").resolve()
            if not file.is_relative_to(Path(folder).resolve()):
                raise _refused(f"imports {name}, which is no name of a file")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        compiled = Path(folder, "compiled.desc")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={compiled}", f"{last}.proto"],
            cwd=folder, capture_output=True, text=True, timeout=COMPILE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise _refused(f"cannot be compiled: {' '.join(done.stderr.split())[:200]}")
        return descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())


def _names(wanted: Wanted) -> Iterator[str]:
    for name, below in wanted.items():
        yield name
        yield from _names(below)


def _without_types(messages: Iterable[Any], names: set[str]) -> None:
    """Leave out the types of fields that no path names: their files may be missing."""
    for message in messages:
        del message.extension[:]
        _without_types(message.nested_type, names)
        for field in () if message.options.map_entry else message.field:
            if field.type_name and field.name not in names:
                field.ClearField("type_name")
                field.ClearField("default_value")
                field.type = _Field.TYPE_BYTES


def _library(name: str) -> Any:
    """A file that schemas import without a reference, of the library or Confluent's; another one is empty."""
    file = descriptor_pb2.FileDescriptorProto(name=name)
    if name == "confluent/type/decimal.proto":
        file.package, file.syntax = _DECIMAL.rsplit(".", 1)[0], "proto3"
        decimal = file.message_type.add(name="Decimal")
        kinds = {"value": _Field.TYPE_BYTES, "precision": _Field.TYPE_UINT32, "scale": _Field.TYPE_INT32}
        for number, (field, kind) in enumerate(kinds.items(), start=1):
            decimal.field.add(name=field, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    folder, _, stem = name.removesuffix(".proto").rpartition("/")
    if folder == "google/protobuf" and stem.isidentifier():
        with suppress(ImportError):
            import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


class _Value(NamedTuple):
    """How values become a column: its type, the meaning of it besides, and the column of a list of values."""

    type: pa.DataType
    build: Build
    metadata: dict[bytes, bytes] | None = None


class MessageReader:
    """Reads the wanted fields of one message type.

    The library parses a type that has these fields only. So a few bytes of others cannot become many objects, and what is not
    wanted costs little.

    Raises:
        RefusedError: A field of events has a wrong type.
    """

    def __init__(self, descriptor: Any, fields: WantedFields) -> None:
        _, self._many, self._texts, self._most_rows = fields
        # As proto2 every field says whether it was written, whatever the syntax of the schema.
        file = descriptor_pb2.FileDescriptorProto(name="wanted.proto", package="freshet", syntax="proto2")
        top = file.message_type.add(name="Wanted")
        self._columns = self._message(descriptor, fields.wanted, (), top, ".freshet.Wanted").build
        pool = DescriptorPool()
        pool.Add(file)
        self._parse = GetMessageClass(pool.FindMessageTypeByName("freshet.Wanted")).FromString
        self._name = descriptor.full_name

    def read(
        self, payloads: Sequence[memoryview]
    ) -> tuple[pa.RecordBatch, list[int], list[tuple[int, str, str]]]:
        """The wanted columns of messages.

        Returns:
            A row for each message that is a value of the type, their indices, and the others with a reason and a sentence each.
        """
        messages, places, bad = [], [], []
        for i, payload in enumerate(payloads):
            try:
                messages.append(self._parse(payload))
                places.append(i)
            except DecodeError:
                bad.append((i, NOT_PROTOBUF, f"is no value of its Protobuf message {self._name}"))
        try:
            return pa.RecordBatch.from_struct_array(self._columns(messages)), places, bad
        except (*_WRONG, RefusedError):
            pass
        good = []
        for i, message in zip(places, messages, strict=True):
            try:
                self._columns([message])
                good.append((i, message))
            except RefusedError as error:
                bad.append((i, error.reason, str(error)))
            except _WRONG as error:
                sentence = f"is no value of its Protobuf message {self._name}: {one_line(error)[:100]}"
                bad.append((i, NOT_PROTOBUF, sentence))
        batch = pa.RecordBatch.from_struct_array(self._columns([message for _, message in good]))
        return batch, [i for i, _ in good], bad

    def _message(self, descriptor: Any, wanted: Wanted, above: PathKeys, into: Any, into_name: str) -> _Value:
        """A struct of the wanted fields, which are written into a descriptor."""
        described = descriptor_pb2.DescriptorProto()
        descriptor.CopyToProto(described)
        columns = [
            self._field(
                field, descriptor.fields_by_name[field.name], wanted[field.name], above, into, into_name
            )
            for field in described.field
            if field.name in wanted
        ]
        kind = pa.struct([field for field, _ in columns])

        def build(messages: list[Any]) -> pa.Array:
            if not columns:
                return pa.array([{}] * len(messages), kind)
            arrays = [column(messages) for _, column in columns]
            return pa.StructArray.from_arrays(arrays, fields=list(kind))

        return _Value(kind, build)

    def _field(
        self, field: Any, descriptor: Any, wanted: Wanted, above: PathKeys, into: Any, into_name: str
    ) -> tuple[pa.Field, Build]:
        """A field of events: its Arrow field, and the column of the messages around it."""
        name, path = field.name, (*above, field.name)
        reduced = into.field.add(name=name, number=field.number, type=descriptor.type, label=field.label)
        is_list = field.label == _Field.LABEL_REPEATED
        if not is_list:
            reduced.label = _Field.LABEL_OPTIONAL
        message = descriptor.message_type
        if message is not None and message.GetOptions().map_entry:
            value, get = self._map(reduced, message, wanted, path, into, into_name)
            return pa.field(name, value.type), lambda messages: value.build([get(one) for one in messages])
        value = self._value(reduced, descriptor, wanted, path, into, into_name)
        if is_list:
            if path != self._many and not (
                pa.types.is_integer(value.type) or pa.types.is_floating(value.type)
            ):
                raise RefusedError(
                    Reason.WRONG_TYPE,
                    f"field {'.'.join(path)} is repeated, expected numbers, or the path of many",
                )
            return pa.field(name, pa.list_(value.type)), self._list(name, path, value)
        has_default = field.HasField("default_value")
        if has_default:
            is_enum = descriptor.enum_type is not None
            reduced.default_value = str(descriptor.default_value) if is_enum else field.default_value
        always = message is None and (has_default or not (descriptor.has_presence or path in self._texts))

        def build(messages: list[Any]) -> pa.Array:
            if always:
                return value.build([None if one is None else getattr(one, name) for one in messages])
            return value.build(
                [getattr(one, name) if one is not None and one.HasField(name) else None for one in messages]
            )

        return pa.field(name, value.type, metadata=value.metadata), build

    def _list(self, name: str, path: PathKeys, value: _Value) -> Build:
        """Lists; an empty one is null, unless its elements are events."""

        def build(messages: list[Any]) -> pa.Array:
            lists = [() if one is None else getattr(one, name) for one in messages]
            lengths = np.array([len(one) for one in lists], np.int64)
            if path == self._many and lengths.max(initial=0) > self._most_rows:
                raise RefusedError(
                    Reason.TOO_LARGE,
                    f"{lengths.max()} elements, but config key kafka.max_message_rows is {self._most_rows}",
                )
            absent = [one is None for one in messages] if path == self._many else lengths == 0
            ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
            values = value.build(list(chain.from_iterable(lists)))
            return pa.ListArray.from_arrays(ends, values, mask=pa.array(absent, pa.bool_()))

        return build

    def _map(
        self, reduced: Any, entry: Any, wanted: Wanted, path: PathKeys, into: Any, into_name: str
    ) -> tuple[_Value, Callable[[Any], Any]]:
        """A struct of a map's wanted keys, and the map of a message."""
        shown = ".".join(path)
        if not wanted:
            raise RefusedError(Reason.WRONG_TYPE, f"field {shown} is a map. Name a key inside of it")
        key, content = entry.fields_by_name["key"], entry.fields_by_name["value"]
        inner = into.nested_type.add(name=entry.name)
        inner.options.map_entry = True
        reduced.type_name = f"{into_name}.{entry.name}"
        inner.field.add(name="key", number=1, type=key.type, label=_Field.LABEL_OPTIONAL)
        held_by = inner.field.add(name="value", number=2, type=content.type, label=_Field.LABEL_OPTIONAL)
        deeper: Wanted = {}
        for below in wanted.values():
            deeper |= below
        value = self._value(held_by, content, deeper, (*path, "*"), into, into_name)
        try:
            keys = [name if key.type == _Field.TYPE_STRING else int(name) for name in wanted]
        except ValueError:
            raise RefusedError(Reason.WRONG_TYPE, f"field {shown} has keys that are numbers") from None
        kind = pa.struct([pa.field(name, value.type, metadata=value.metadata) for name in wanted])

        def build(maps: list[Any]) -> pa.Array:
            arrays = [
                value.build([one[name] if one is not None and name in one else None for one in maps])
                for name in keys
            ]
            return pa.StructArray.from_arrays(arrays, fields=list(kind))

        return _Value(kind, build), lambda one: None if one is None else getattr(one, reduced.name)

    def _value(
        self, reduced: Any, descriptor: Any, wanted: Wanted, path: PathKeys, into: Any, into_name: str
    ) -> _Value:
        """The values of a field, each alone."""
        shown, message, enum = ".".join(path), descriptor.message_type, descriptor.enum_type
        if message is None:
            if wanted:
                raise RefusedError(
                    Reason.WRONG_TYPE, f"field {shown} is no message, so nothing lies inside of it"
                )
            if enum is None:
                kind = _SCALARS.get(descriptor.type, pa.int64())
                return _Value(kind, lambda values: pa.array(values, kind))
            reduced.type = _Field.TYPE_INT32  # so that a number without a name is seen
            names = _EnumNames({number: one.name for number, one in enum.values_by_number.items()})
            names.shown, names.enum = shown, enum.full_name
            return _Value(
                pa.string(),
                lambda values: pa.array([None if one is None else names[one] for one in values], pa.string()),
            )
        inner = into.nested_type.add(name=f"M{len(into.nested_type)}")
        inner_name = f"{into_name}.{inner.name}"
        reduced.type_name = inner_name

        def inside(names: Wanted) -> _Value:
            return self._message(message, names, path, inner, inner_name)

        if wanted:
            return inside(wanted)
        if message.full_name == _TIME:
            inside({"seconds": {}, "nanos": {}})
            return _Value(pa.timestamp("us"), _times)
        if message.full_name == _DECIMAL:
            return inside({"value": {}, "scale": {}})._replace(metadata={SCALE: VARIABLE})
        if message.file.name == "google/protobuf/wrappers.proto":
            (kind, build) = inside({"value": {}})[:2]
            return _Value(kind.field(0).type, lambda values: build(values).field(0))
        raise RefusedError(Reason.WRONG_TYPE, f"field {shown} is a message. Name a field inside of it")


def _times(values: list[Any]) -> pa.Array:
    numbers = [None if one is None else one.seconds * 1_000_000 + one.nanos // 1_000 for one in values]
    return pa.array(numbers, pa.int64()).cast(pa.timestamp("us"))


class _EnumNames(dict[int, str]):
    """Names of an enum's numbers; another number is refused."""

    shown: str
    enum: str

    def __missing__(self, number: int) -> str:
        raise RefusedError(
            Reason.WRONG_TYPE, f"field {self.shown} is {number}, which enum {self.enum} has no name for"
        )
