"""Messages that nobody should send: random, cut, mutated and forged ones, from a seed; some valid ones among them."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.config import StreamConfig, Topic
from schemas.events import IdKind, event_schema

T0 = 1_100_000_000
HOSTILE_NUMBERS = (
    "1e999", "-1e999", "1e-999", "9" * 400, "-" + "9" * 400, "0." + "1" * 500, "1E+400000", "1e99999999999999999999",
    "9223372036854775808", "-9223372036854775809", "18446744073709551616", "-0", "-0.0", "1.5", "NaN", "Infinity", "-Infinity",
    "0x10", "01", "+1", ".5", "5.", "1e", "--1", "1_000",
)  # fmt: skip
HOSTILE_INTS = (-1, -(2**31), 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 0, 1, 255, 65_536)
FIELDS = (
    "src", "dst", "t", "op", "weight", "features", "label", "event_id", "node", "offset", "values", "x",
)  # fmt: skip

Make = Callable[[np.random.Generator], bytes | None]


@dataclass(frozen=True, slots=True)
class Profile:
    """A topic's configuration and the kinds of messages it is sent."""

    name: str
    config: StreamConfig
    makers: dict[str, Make]

    @property
    def topic(self) -> Topic:
        """The one topic."""
        return self.config.kafka.topics[0]

    def messages(self, rng: np.random.Generator, count: int) -> Iterator[tuple[str, bytes | None]]:
        """So many messages, each with its kind."""
        kinds = list(self.makers)
        for choice in rng.integers(0, len(kinds), count).tolist():
            yield kinds[choice], self.makers[kinds[choice]](rng)


def profiles(**more: Any) -> list[Profile]:
    """JSON and Arrow topics, with ids of both kinds."""
    made = []
    for ids in ("int", "string"):
        made.append(Profile(f"json, {ids} ids", _config("json", ids, **more), _json_makers(ids)))
        made.append(Profile(f"arrow, {ids} ids", _config("arrow", ids, **more), _arrow_makers(ids)))
    return made


def _config(kind: str, ids: str, **more: Any) -> StreamConfig:
    content: dict[str, Any] = {
        "graph": "fuzz",
        "store": "unused",
        "kafka": {"bootstrap": "unused", "topics": [{"name": "fuzz", "format": kind}]},
        "snapshots": {"interval_s": 86_400},
        "features": {"node": 4, "edge": 2},
        "ids": ids,
    }
    return StreamConfig(**(content | more))


# JSON


def _json_makers(ids: IdKind) -> dict[str, Make]:
    def valid(rng: np.random.Generator) -> bytes:
        return json.dumps(_event(rng, ids)).encode()

    def mutated(rng: np.random.Generator) -> bytes:
        return mutate(rng, valid(rng))

    def truncated(rng: np.random.Generator) -> bytes:
        whole = valid(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    def other_value(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        event[_any(rng, FIELDS)] = _value(rng, 3)
        return json.dumps(event).encode()

    def number(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        event[_any(rng, FIELDS)] = "@"
        return json.dumps(event).replace('"@"', _any(rng, HOSTILE_NUMBERS)).encode()

    def long(rng: np.random.Generator) -> bytes:
        event = _event(rng, ids)
        size = int(10 ** rng.uniform(1, 4.5))
        field = _any(rng, FIELDS)
        event[field] = [_value(rng, 0)] * min(size, 3_000) if rng.random() < 0.5 else "é" * size
        return json.dumps(event, ensure_ascii=bool(rng.integers(2))).encode()

    def twice(rng: np.random.Generator) -> bytes:
        text = valid(rng)
        extra = json.dumps({_any(rng, FIELDS): _value(rng, 1)}).encode()
        return text[:-1] + b", " + extra[1:]

    def characters(rng: np.random.Generator) -> bytes:
        wrong = _any(
            rng, (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\\ud800", b"\\u0000", b"\\", b"\n")
        )
        whole = valid(rng)
        at = int(rng.integers(0, len(whole)))
        return whole[:at] + wrong + whole[at:]

    def framed(rng: np.random.Generator) -> bytes:
        whole = valid(rng)
        return _any(
            rng,
            (
                b"\xef\xbb\xbf" + whole,
                whole + whole,
                b"[" + whole + b"]",
                whole + b"\x00",
                b" \t\r\n" + whole,
            ),
        )

    return {
        "valid": valid, "random bytes": _random_bytes, "truncated": truncated, "mutated": mutated,
        "deep nesting": lambda rng: _deep(rng, valid(rng)), "hostile number": number, "other value": other_value,
        "long": long, "key twice": twice, "wrong characters": characters, "wrongly framed": framed,
        "tombstone": lambda rng: None,
    }  # fmt: skip


def _event(rng: np.random.Generator, ids: IdKind) -> dict[str, Any]:
    def node() -> int | str:
        number = int(rng.integers(0, 1000))
        return number if ids == "int" else f"n{number}"

    event: dict[str, Any] = {"t": T0 + int(rng.integers(0, 10_000_000))}
    if rng.random() < 0.2:
        return event | {"node": node(), "features": rng.random(4).round(3).tolist()}
    event |= {"src": node(), "dst": node()}
    if rng.random() < 0.3:
        event |= {"features": rng.random(2).round(3).tolist(), "weight": float(rng.random().__round__(3))}
    if rng.random() < 0.2:
        event |= {"op": "delete"}
    if rng.random() < 0.2:
        event |= {"label": int(rng.integers(-5, 5)), "event_id": f"e{rng.integers(1 << 40)}"}
    return event


def _value(rng: np.random.Generator, depth: int) -> Any:
    choice = int(rng.integers(0, 9 if depth else 7))
    if choice == 7:
        return [_value(rng, depth - 1) for _ in range(int(rng.integers(0, 5)))]
    if choice == 8:
        return {_any(rng, FIELDS): _value(rng, depth - 1) for _ in range(int(rng.integers(0, 4)))}
    return (None, True, False, "", "text", int(rng.integers(-(2**62), 2**62)), float(rng.standard_normal()))[
        choice
    ]


def _deep(rng: np.random.Generator, valid: bytes) -> bytes:
    depth = int(10 ** rng.uniform(1.5, 4.3))
    opening, closing = _any(rng, ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"src":', b"}]")))
    closed = closing * depth if rng.random() < 0.7 else b""
    nested = opening * depth + b"1" + closed
    return nested if rng.random() < 0.3 else valid[:-1] + b', "x": ' + nested + b"}"


# Arrow


def _arrow_makers(ids: IdKind) -> dict[str, Make]:
    def valid(rng: np.random.Generator) -> bytes:
        return stream([_batch(rng, ids)])

    def dictionary(rng: np.random.Generator) -> bytes:
        return stream([_with_dictionary(rng, ids)])

    def any_stream(rng: np.random.Generator) -> bytes:
        return _any(rng, (valid, dictionary))(rng)

    def truncated(rng: np.random.Generator) -> bytes:
        whole = any_stream(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    def forged(rng: np.random.Generator) -> bytes:
        """Hostile integers where lengths, offsets, counts and validity lie, in headers or bodies."""
        forged = bytearray(any_stream(rng))
        headers, bodies = frames(bytes(forged))
        begin, end = _any(rng, headers if rng.random() < 0.5 else bodies or headers)
        for _ in range(int(rng.integers(1, 4))):
            width = int(rng.choice([1, 2, 4, 8]))
            if end - begin <= width:
                continue
            at = begin + int(rng.integers(0, (end - begin) // width)) * width
            number = int(_any(rng, HOSTILE_INTS)) & ((1 << (8 * width)) - 1)
            forged[at : at + width] = number.to_bytes(width, "little")
        return bytes(forged)

    def other_schema(rng: np.random.Generator) -> bytes:
        return stream([_other_columns(rng, ids)])

    def several(rng: np.random.Generator) -> bytes:
        batch = _batch(rng, ids)
        return stream(
            [batch.slice(0, int(rng.integers(0, len(batch) + 1))) for _ in range(int(rng.integers(0, 6)))],
            batch.schema,
        )

    def trailing(rng: np.random.Generator) -> bytes:
        return any_stream(rng) + _any(rng, (b"\0", b"\xff" * 8, _random_bytes(rng), any_stream(rng)))

    def without_a_frame(rng: np.random.Generator) -> bytes:
        """Frames left out, repeated or in another order: batches before schemas, dictionaries missing."""
        whole = any_stream(rng)
        headers, bodies = frames(whole)
        pieces = [whole[h[0] - 8 : b[1]] for h, b in zip(headers, bodies, strict=True)]
        chosen = rng.integers(0, len(pieces), int(rng.integers(1, 5))).tolist()
        end = b"\xff\xff\xff\xff\0\0\0\0" if rng.random() < 0.5 else b""
        return b"".join(pieces[i] for i in chosen) + end

    def compressed(rng: np.random.Generator) -> bytes:
        sink = pa.BufferOutputStream()
        batch = _batch(rng, ids)
        codec = _any(rng, ("lz4", "zstd"))
        with pa.ipc.new_stream(
            sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as writer:
            writer.write_batch(batch)
        whole = bytearray(sink.getvalue().to_pybytes())
        if rng.random() < 0.7:  # the length before each buffer lies
            begin, _ = frames(bytes(whole))[1][-1]
            struct.pack_into("<q", whole, begin, int(_any(rng, HOSTILE_INTS)) % 2**63)
        return bytes(whole)

    def file(rng: np.random.Generator) -> bytes:
        sink = pa.BufferOutputStream()
        batch = _batch(rng, ids)
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    return {
        "valid": valid, "valid, dictionary": dictionary, "random bytes": _random_bytes, "truncated": truncated,
        "mutated": lambda rng: mutate(rng, any_stream(rng)), "forged": forged, "other schema": other_schema,
        "bad rows": lambda rng: stream([_bad_rows(rng, ids)]), "several batches": several, "trailing": trailing,
        "frames astray": without_a_frame, "compressed": compressed, "file": file,
        "swollen": lambda rng: stream([_swollen(rng)] * int(rng.integers(1, 4))), "tombstone": lambda rng: None,
    }  # fmt: skip


def stream(batches: list[pa.RecordBatch], schema: pa.Schema | None = None) -> bytes:
    """Batches as one IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def frames(value: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the headers and the bodies of a valid stream's messages lie: [begin, end) each."""
    headers, bodies = [], []
    with pa.BufferReader(value) as source:
        while True:
            begin = source.tell()
            try:
                message = pa.ipc.read_message(source)
            except EOFError:
                return headers, bodies
            end = source.tell()
            body = 0 if message.body is None else message.body.size
            headers.append((begin + 8, end - body))
            bodies.append((end - body, end))


def _batch(rng: np.random.Generator, ids: IdKind) -> pa.RecordBatch:
    rows = int(rng.integers(1, 30))
    edges = rng.integers(0, 1000, (2, rows)).astype(np.int64)
    columns: dict[str, pa.Array] = {
        "op": pa.array(rng.choice(np.array([1, 1, -1], np.int8), rows)),
        "src": _ids(edges[0], ids),
        "dst": _ids(edges[1], ids),
        "t": pa.array((T0 + rng.integers(0, 10_000_000, rows)) * 1_000_000),
        "weight": pa.array(rng.random(rows).astype(np.float32)),
        "features": pa.array([None if x < 0.5 else [x, x] for x in rng.random(rows)], pa.list_(pa.float32())),
        "label": pa.array(rng.integers(-3, 3, rows).astype(np.int32), mask=rng.random(rows) < 0.5),
        "event_id": pa.array([f"e{x}" if x % 2 else None for x in rng.integers(0, 1 << 40, rows).tolist()]),
    }
    optional = [name for name in columns if name not in ("src", "dst", "t")]
    for name in optional:
        if rng.random() < 0.4:
            del columns[name]
    return pa.record_batch(columns)


def _ids(numbers: np.ndarray, ids: IdKind) -> pa.Array:
    return pa.array(numbers) if ids == "int" else pa.array([f"n{number}" for number in numbers.tolist()])


def _with_dictionary(rng: np.random.Generator, ids: IdKind) -> pa.RecordBatch:
    batch = _batch(rng, ids)
    names = batch.schema.names
    columns = [
        c.dictionary_encode() if n in ("src", "dst") else c for n, c in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names)


def _bad_rows(rng: np.random.Generator, ids: IdKind) -> pa.RecordBatch:
    rows = int(rng.integers(1, 20))
    whole = event_schema(ids)
    kind = whole.field("src").type

    def id_of() -> Any:
        if ids == "int":
            return int(_any(rng, HOSTILE_INTS)) % 2**62
        return _any(rng, ("", "a", "é" * 200, "x" * 257))

    values = [
        {
            "op": int(rng.integers(-4, 4)),
            "src": id_of() if rng.random() < 0.9 else None,
            "dst": id_of() if rng.random() < 0.8 else None,
            "t": int(_any(rng, (*HOSTILE_INTS[:-1], T0 * 1_000_000)) % 2**62),
            "weight": float(_any(rng, (np.nan, np.inf, -np.inf, 1.0, 1e38))),
            "features": [float(_any(rng, (np.nan, 0.5, np.inf)))] * int(rng.integers(0, 6)) if rng.random() < 0.7 else None,
            "feature_offset": int(rng.integers(-3, 6)) if rng.random() < 0.4 else None,
            "label": int(rng.integers(-9, 9)) if rng.random() < 0.4 else None,
            "event_id": _any(rng, (None, "", "x" * 300, "e")),
        }
        for _ in range(rows)
    ]  # fmt: skip
    schema = pa.schema([pa.field(f.name, kind if f.name in ("src", "dst") else f.type) for f in whole])
    return pa.RecordBatch.from_pylist(values, schema)


def _other_columns(rng: np.random.Generator, ids: IdKind) -> pa.RecordBatch:
    rows = int(rng.integers(0, 10))
    names, columns = [], []
    whole = _batch(rng, ids).slice(0, rows)
    rows = len(whole)
    for name in event_schema(ids).names:
        if rng.random() < 0.5 and name in whole.schema.names:
            names.append(name)
            columns.append(whole[name])
        elif rng.random() < 0.7:
            names.append(name)
            columns.append(_column(rng, rows))
    if not names or rng.random() < 0.1:
        names.append(_any(rng, ("src", "", "\0", "x" * 5_000, "t")))
        columns.append(_column(rng, rows))
    return pa.RecordBatch.from_arrays(columns, names)


def _column(rng: np.random.Generator, rows: int) -> pa.Array:
    number = rng.integers(0, 100, rows)
    choices: list[Callable[[], pa.Array]] = [
        lambda: pa.nulls(rows),
        lambda: pa.array(number.astype(np.uint64) + np.uint64(2**63)),
        lambda: pa.array(number.astype(np.int8)),
        lambda: pa.array(number + 0.5),
        lambda: pa.array(number.astype(np.float16)),
        lambda: pa.array(number.astype(bool)),
        lambda: pa.array(number).cast(pa.timestamp("ns", "Europe/Berlin")),
        lambda: pa.array(number).cast(pa.duration("s")),
        lambda: pa.array(number).cast(pa.decimal128(20, 0)),
        lambda: pa.array([bytes([x]) * 3 for x in number.tolist()], pa.binary()),
        lambda: pa.array([bytes([x]) * 3 for x in number.tolist()], pa.binary(3)),
        lambda: pa.array([str(x) for x in number.tolist()], pa.large_string()),
        lambda: pa.array([str(x) for x in number.tolist()], pa.string_view()),
        lambda: pa.array([[x] for x in number.tolist()], pa.list_(pa.int64())),
        lambda: pa.array([[x, None] for x in number.tolist()], pa.large_list(pa.float64())),
        lambda: pa.array([[x, 1.0] for x in number.tolist()], pa.list_(pa.float32(), 2)),
        lambda: pa.array([[[x]] for x in number.tolist()], pa.list_(pa.list_(pa.float32()))),
        lambda: pa.array([{"a": x} for x in number.tolist()], pa.struct([("a", pa.int64())])),
        lambda: pa.array([[(str(x), x)] for x in number.tolist()], pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([str(x) for x in number.tolist()]).dictionary_encode(),
        lambda: pa.array([bool(x % 2) for x in number.tolist()], pa.bool_()).dictionary_encode(),
        lambda: pa.RunEndEncodedArray.from_arrays(pa.array([rows or 1], pa.int32()), pa.array([7])).slice(0, rows),
        lambda: pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), [pa.array(number)]),
        lambda: pa.array(number).cast(pa.date64()),
    ]  # fmt: skip
    return choices[int(rng.integers(0, len(choices)))]()


def _swollen(rng: np.random.Generator) -> pa.RecordBatch:
    """A few bytes that stand for many rows or much text."""
    rows = int(10 ** rng.uniform(3, 6))
    one = pa.array([1])

    def repeated(text: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(min(rows, 50_000), np.int8)), pa.array([text])
        )

    choice = int(rng.integers(0, 3))
    if choice == 0:
        column = pa.nulls(rows)
    elif choice == 1:
        column = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), one)
    else:
        column = repeated("x" * 10_000)
    return pa.RecordBatch.from_arrays([column] * 3, ["src", "dst", "t"])


# Both


def mutate(rng: np.random.Generator, value: bytes) -> bytes:
    """A few bytes flipped, put in, left out, repeated or set to zero."""
    changed = bytearray(value)
    for _ in range(int(rng.integers(1, 6))):
        if not changed:
            break
        at = int(rng.integers(0, len(changed)))
        span = int(rng.integers(1, 9))
        choice = int(rng.integers(0, 5))
        if choice == 0:
            changed[at] ^= 1 << int(rng.integers(0, 8))
        elif choice == 1:
            changed[at:at] = rng.bytes(span)
        elif choice == 2:
            del changed[at : at + span]
        elif choice == 3:
            changed[at:at] = changed[at : at + span]
        else:
            changed[at : at + span] = bytes(len(changed[at : at + span]))
    return bytes(changed)


def _random_bytes(rng: np.random.Generator) -> bytes:
    return rng.bytes(int(10 ** rng.uniform(0, 3)) - 1)


def _any(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(0, len(choices)))]
