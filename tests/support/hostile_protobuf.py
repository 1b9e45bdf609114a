"""Protobuf messages that nobody should send: values of legal but odd schemas, of other schemas, and broken ones."""

import base64
from collections.abc import Callable

import numpy as np
from google.protobuf import descriptor_pb2
from hostile_draws import HOSTILE_INTS, Make, any_of, mutate, random_bytes
from registry_server import Registry, confluent

_Field = descriptor_pb2.FieldDescriptorProto
_NAMES = ("src", "dst", "t", "op", "weight", "features", "feature_offset", "label", "event_id", "x")
_INDEXES = (b"\0", b"\x02\0", b"\x02\x02", b"\x04\0\0", b"\x03", b"\x80\x80", b"\xff" * 6, b"")
_TEXTS = (b"", b"a", b"\xff", b"insert", b"1", b"\0", "é".encode() * 200, b"2024-01-01T00:00:00Z")


def protobuf_makers(registry: Registry, encode: Callable[[np.random.Generator], bytes]) -> dict[str, Make]:
    """Messages of a Protobuf topic; ``encode`` makes good ones."""

    def odd(rng: np.random.Generator) -> bytes:
        number = registry.add(_schema(rng), schemaType="PROTOBUF")
        return confluent(number, any_of(rng, _INDEXES) + _value(rng, 3))

    def other(rng: np.random.Generator) -> bytes:
        return confluent(int(rng.integers(1, 9)), b"\0" + _value(rng, 2))

    return {
        "valid": encode,
        "odd": odd,
        "odd again": odd,
        "of another schema": other,
        "mutated": lambda rng: mutate(rng, encode(rng)),
        "mutated odd": lambda rng: mutate(rng, odd(rng)),
        "random bytes": lambda rng: confluent(int(rng.integers(1, 9)), random_bytes(rng)),
    }


def _schema(rng: np.random.Generator) -> str:
    """A descriptor in base64, as a registry sends it; some contradict themselves."""
    syntax = any_of(rng, ("proto2", "proto3"))
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", syntax=syntax, package="odd")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("insert", "delete")):
        kind.value.add(name=name, number=number)
    event = file.message_type.add(name="Event")
    file.message_type.add(name="Inner").field.add(name="y", number=1, type=_Field.TYPE_INT64, label=1)
    for number, name in enumerate(_NAMES, start=1):
        if rng.random() < 0.2:
            continue
        usual = {"event_id": _Field.TYPE_STRING, "weight": _Field.TYPE_FLOAT, "features": _Field.TYPE_FLOAT}
        drawn = usual.get(name, _Field.TYPE_INT64) if rng.random() < 0.7 else int(rng.integers(1, 19))
        repeated = rng.random() < (0.8 if name == "features" else 0.1)
        field = event.field.add(name=name, number=number, type=drawn, label=3 if repeated else 1)
        if drawn in (_Field.TYPE_MESSAGE, _Field.TYPE_GROUP):
            field.type = _Field.TYPE_MESSAGE
            field.type_name = any_of(rng, (".odd.Inner", ".odd.Event", ".odd.Missing"))
        elif drawn == _Field.TYPE_ENUM:
            field.type_name = ".odd.Kind"
    return base64.b64encode(file.SerializeToString()).decode()


def _varint(number: int) -> bytes:
    digits = []
    number &= 2**64 - 1
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _value(rng: np.random.Generator, depth: int) -> bytes:
    """Fields of any wire type, most of them events'."""
    parts = []
    for number in range(1, len(_NAMES) + 1):
        for _ in range(int(rng.integers(0, 3))):
            wire = int(any_of(rng, (0, 0, 0, 1, 2, 2, 3, 5)))
            content = {
                0: lambda: _varint(int(any_of(rng, (1, 2, 1_100_000_000_000_000, *HOSTILE_INTS)))),
                1: lambda: rng.bytes(8),
                2: lambda: _sized(
                    _value(rng, depth - 1) if depth and rng.random() < 0.3 else any_of(rng, _TEXTS)
                ),
                3: lambda number=number: bytes([number << 3 | 4]),
                5: lambda: rng.bytes(4),
            }[wire]()
            parts.append(bytes([number << 3 | wire]) + content)
    return b"".join(parts)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content
