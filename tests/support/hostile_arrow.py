"""Arrow messages that nobody should send."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hostile_draws import HOSTILE_INTS, T0, Make, any_of, mutate, random_bytes

from freshet_graph.schemas.events import IdKind, event_schema


def arrow_makers(ids: IdKind) -> dict[str, Make]:
    def valid(rng: np.random.Generator) -> bytes:
        return stream([_batch(rng, ids)])

    def dictionary(rng: np.random.Generator) -> bytes:
        return stream([_with_dictionary(rng, ids)])

    def any_stream(rng: np.random.Generator) -> bytes:
        return any_of(rng, (valid, dictionary))(rng)

    def truncated(rng: np.random.Generator) -> bytes:
        whole = any_stream(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    def forged(rng: np.random.Generator) -> bytes:
        """Hostile integers where lengths, offsets, counts and validity lie, in headers or bodies."""
        forged = bytearray(any_stream(rng))
        headers, bodies = frames(bytes(forged))
        begin, end = any_of(rng, headers if rng.random() < 0.5 else bodies or headers)
        for _ in range(int(rng.integers(1, 4))):
            width = int(rng.choice([1, 2, 4, 8]))
            if end - begin <= width:
                continue
            at = begin + int(rng.integers(0, (end - begin) // width)) * width
            number = int(any_of(rng, HOSTILE_INTS)) & ((1 << (8 * width)) - 1)
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
        return any_stream(rng) + any_of(rng, (b"\0", b"\xff" * 8, random_bytes(rng), any_stream(rng)))

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
        codec = any_of(rng, ("lz4", "zstd"))
        with pa.ipc.new_stream(
            sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as writer:
            writer.write_batch(batch)
        whole = bytearray(sink.getvalue().to_pybytes())
        if rng.random() < 0.7:  # the length before each buffer lies
            begin, _ = frames(bytes(whole))[1][-1]
            struct.pack_into("<q", whole, begin, int(any_of(rng, HOSTILE_INTS)) % 2**63)
        return bytes(whole)

    def file(rng: np.random.Generator) -> bytes:
        sink = pa.BufferOutputStream()
        batch = _batch(rng, ids)
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    return {
        "valid": valid, "valid, dictionary": dictionary, "random bytes": random_bytes, "truncated": truncated,
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
            return int(any_of(rng, HOSTILE_INTS)) % 2**62
        return any_of(rng, ("", "a", "é" * 200, "x" * 257))

    values = [
        {
            "op": int(rng.integers(-4, 4)),
            "src": id_of() if rng.random() < 0.9 else None,
            "dst": id_of() if rng.random() < 0.8 else None,
            "t": int(any_of(rng, (*HOSTILE_INTS[:-1], T0 * 1_000_000)) % 2**62),
            "weight": float(any_of(rng, (np.nan, np.inf, -np.inf, 1.0, 1e38))),
            "features": [float(any_of(rng, (np.nan, 0.5, np.inf)))] * int(rng.integers(0, 6)) if rng.random() < 0.7 else None,
            "feature_offset": int(rng.integers(-3, 6)) if rng.random() < 0.4 else None,
            "label": int(rng.integers(-9, 9)) if rng.random() < 0.4 else None,
            "event_id": any_of(rng, (None, "", "x" * 300, "e")),
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
        names.append(any_of(rng, ("src", "", "\0", "x" * 5_000, "t")))
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
