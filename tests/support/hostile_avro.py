"""Avro messages that nobody should send: values of legal but odd schemas, of other schemas, and broken ones."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from fastavro import parse_schema, schemaless_writer
from hostile_draws import HOSTILE_INTS, Make, any_of, mutate, random_bytes
from registry_server import Registry, confluent

T_US = 1_100_000_000_000_000
_PLAIN = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL: tuple[dict[str, Any], ...] = (
    *({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")),
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
)
_TEXTS = ("", "a", "\0", "é" * 200, "c", "u", "d", "insert", "2024-01-01T00:00:00Z", "X19kZWJleml1bQ==")
_FLOATS = (0.5, 7.0, float("nan"), float("-inf"), 1e308, 2.0**60, -0.0)


def avro_makers(
    registry: Registry, encode: Callable[[np.random.Generator], bytes], *, envelope: bool
) -> dict[str, Make]:
    """Messages of an Avro topic; ``encode`` makes good ones, and ``envelope`` asks for Debezium's."""

    def odd(rng: np.random.Generator) -> bytes:
        schema = _envelope(rng) if envelope else _event(rng, "Event")
        written = BytesIO()
        # A second schema has other types: its value is none of the first one.
        other = _event(rng, "Event") if rng.random() < 0.2 else schema
        schemaless_writer(written, parse_schema(other), any_value(rng, other))
        return confluent(registry.add(schema), written.getvalue())

    def truncated(rng: np.random.Generator) -> bytes:
        whole = odd(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    return {
        "valid": encode,
        "odd": odd,
        "odd again": odd,
        "truncated": truncated,
        "mutated": lambda rng: mutate(rng, encode(rng)),
        "mutated odd": lambda rng: mutate(rng, odd(rng)),
        "random bytes": lambda rng: confluent(int(rng.integers(1, 9)), random_bytes(rng)),
        "unknown": lambda rng: confluent(10**6 + int(rng.integers(3)), b"\2"),
    }


def _event(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """A record with the fields of an event, some of other types."""
    usual = {"src": "long", "dst": ["null", "long"], "t": "long", "op": "int", "event_id": ["null", "string"]}
    usual |= {"weight": ["long", "double"], "features": {"type": "array", "items": ["float", "int"]}}
    names = [key for key in usual if key in ("src", "dst", "t") or rng.random() < 0.4] + ["x"]
    kinds = [
        any_type(rng, 3, f"{name}_{key}") if key == "x" or rng.random() < 0.15 else usual[key]
        for key in names
    ]
    fields = [{"name": key, "type": kind} for key, kind in zip(names, kinds, strict=True)]
    return {"type": "record", "name": name, "fields": fields}


def _envelope(rng: np.random.Generator) -> dict[str, Any]:
    def perhaps(name: str, usual: Any) -> dict[str, Any]:
        return {"name": name, "type": any_type(rng, 2, f"of_{name}") if rng.random() < 0.15 else usual}

    source = {"type": "record", "name": "Source", "fields": [perhaps("ts_ms", "long")]}
    fields = [
        perhaps("before", ["null", _event(rng, "Before")]),
        perhaps("after", ["null", _event(rng, "After")]),
        perhaps("source", source),
        perhaps("op", "string"),
    ]
    return {"type": "record", "name": "Envelope", "fields": fields}


def any_type(rng: np.random.Generator, depth: int, name: str) -> Any:
    """Any type; named ones begin with ``name``."""
    choice = int(rng.integers(0, 9 if depth else 4))
    if choice == 0:
        return any_of(rng, _LOGICAL)
    if choice == 1:
        return {"type": "enum", "name": name, "symbols": ["c", "u", "insert"]}
    if choice == 2:
        return {"type": "fixed", "name": name, "size": int(rng.integers(0, 9))}
    if choice == 3:
        return any_of(rng, _PLAIN)
    if choice == 4:
        return {"type": "array", "items": any_type(rng, depth - 1, f"{name}_i")}
    if choice == 5:
        return {"type": "map", "values": any_type(rng, depth - 1, f"{name}_v")}
    if choice == 6:
        return rng.choice(_PLAIN, int(rng.integers(1, 4)), replace=False).tolist()
    if choice == 7:
        inner = any_type(rng, depth - 1, f"{name}_o")
        return (
            inner
            if isinstance(inner, list) or inner == "null"
            else any_of(rng, (["null", inner], [inner, "null"]))
        )
    fields: list[dict[str, Any]] = [
        {"name": f"f{i}", "type": any_type(rng, depth - 1, f"{name}_{i}")}
        | ({"aliases": [f"was{i}"]} if rng.random() < 0.3 else {})
        for i in range(int(rng.integers(0, 4)))
    ]
    return {"type": "record", "name": name, "fields": fields}


def any_value(rng: np.random.Generator, schema: Any) -> Any:
    """Any value of a type."""
    if isinstance(schema, list):
        return any_value(rng, any_of(rng, schema))
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return any_value(rng, kind)
    if kind == "record":
        return {each["name"]: _field(rng, each) for each in schema["fields"]}
    if kind == "array":
        return [any_value(rng, schema["items"]) for _ in range(int(rng.integers(0, 4)))]
    if kind == "map":
        return {f"k{i}": any_value(rng, schema["values"]) for i in range(int(rng.integers(0, 3)))}
    if kind == "enum":
        return any_of(rng, schema["symbols"])
    if kind == "fixed":
        return rng.bytes(schema["size"])
    small = [n for n in HOSTILE_INTS if -(2**31) <= n < 2**31]
    return {
        "null": lambda: None,
        "boolean": lambda: bool(rng.integers(2)),
        "int": lambda: any_of(rng, small),
        "long": lambda: any_of(rng, [n for n in HOSTILE_INTS if -(2**63) <= n < 2**63]),
        "float": lambda: any_of(rng, _FLOATS[:4]),
        "double": lambda: any_of(rng, _FLOATS),
        "bytes": lambda: any_of(rng, (b"", b"c", b"\xff", rng.bytes(5))),
        "string": lambda: any_of(rng, _TEXTS),
    }[kind]()


def _field(rng: np.random.Generator, field: dict[str, Any]) -> Any:
    """A field's value; times are mostly such as events have."""
    if field["name"] in ("t", "ts_ms") and field["type"] == "long" and rng.random() < 0.8:
        return T_US if field["name"] == "t" else T_US // 1_000
    return any_value(rng, field["type"])
