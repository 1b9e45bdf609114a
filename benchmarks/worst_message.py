"""What a kilobyte costs at worst in each message format: python benchmarks/worst_message.py.

Each shape is one message of about 20 kB that is valid or nearly so and whose cost an attacker, or a careless producer, might
drive up. The figure is processor time of the whole decoder for one poll of it, the median of several runs, per kB of the
message. A format's ratio is its worst shape over the median of its shapes.
"""

import gc
import os
import time
from collections.abc import Iterator
from io import BytesIO
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import harness
import pyarrow as pa
from decoding import decoder, poll
from fastavro import parse_schema, schemaless_writer
from registry_server import Registry, confluent, serving

from freshet_graph.stream.decode.encode import ipc_stream

RUNS = 7
SIZE = 20_000
T_S = 1_100_000_000
BOUND = 10
"""Most times the median of its format that any shape may cost: a fast format must not make another one look worse."""


def filled(piece: str) -> str:
    """A piece again and again, about ``SIZE`` bytes."""
    return piece * (SIZE // len(piece.encode()))


def json_values() -> dict[str, str]:
    """Values of a key that no event has, and some that make their message wrong."""
    deep = "[" * 40 + "]" * 40
    return {
        "a text": f'"{filled("x")}"',
        "a text of escapes": f'"{filled(chr(92) + "u00e9")}"',
        "a text of four-byte characters": f'"{filled("😀")}"',
        "digits": filled("7"),
        "an array of digits": f"[{filled('0,')}0]",
        "an array of numbers": f"[{filled('-1.5e-3,')}0]",
        "an array of texts": f"[{filled(chr(34) * 2 + ',')}0]",
        "nested arrays": f"[{filled(deep + ',')}0]",
        "empty objects": f"[{filled('{},')}0]",
        "objects of a key": "[" + filled('{"":0},') + "0]",
        "one object of many keys": "{" + ",".join(f'"{i:x}":0' for i in range(SIZE // 8)) + "}",
        "one key again and again": "{" + filled('"src":0,') + '"src":0}',
        "white space": filled(" ") + "0",
        "words": f"[{filled('null,')}0]",
        "not closed": f"[{filled('[0],')}",
        "no UTF-8 at its end": f'"{filled("x")}\\ud800"',
    }


def json_shapes() -> Iterator[tuple[str, bytes]]:
    ends = f'"src":1,"dst":2,"t":{T_S}'
    for name, value in json_values().items():
        yield name, f'{{{ends},"x":{value}}}'.encode()
        yield (
            f"{name}, an escaped key",
            f'{{{ends},"\\u0078":{value}}}'.encode(),
        )  # the scanner knows only the first
    yield "features", f'{{{ends},"features":[{filled("0,")}0]}}'.encode()
    yield "features that are no numbers", f'{{{ends},"features":[{filled("0,")}true]}}'.encode()


def debezium_shapes() -> Iterator[tuple[str, bytes]]:
    ends = f'"op":"u","source":{{"ts_ms":{T_S}000}}'
    for name, value in json_values().items():
        row = f'{{"src":1,"dst":2,"x":{value}}}'
        payload = f'"payload":{{"after":{{"src":1,"dst":2}},{ends}}}'
        yield f"{name}, before and after", f'{{"before":{row},"after":{row},{ends}}}'.encode()
        yield f"{name}, wrapped", f'{{"schema":{value},{payload}}}'.encode()
        yield f"{name}, wrapped, an escaped key", f'{{"\\u0073chema":{value},{payload}}}'.encode()


def arrow_shapes() -> Iterator[tuple[str, bytes]]:
    def table(rows: int, **more: Any) -> pa.Table:
        return pa.table({"src": [1] * rows, "dst": [2] * rows, "t": [T_S * 10**6] * rows} | more)

    def batches(count: int, rows: int) -> bytes:
        sink, whole = pa.BufferOutputStream(), table(rows)
        columns = [column.combine_chunks() for column in whole.columns]
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            for _ in range(count):
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=whole.schema))
        return bytes(sink.getvalue().to_pybytes())

    words = pa.array(["x" * 100, "y"]).take(pa.array([0, 1] * (SIZE // 80))).dictionary_encode()
    deep = pa.int8()
    for _ in range(60):
        deep = pa.struct([("a", deep)])
    rows = SIZE // 24
    for name, shape in {
        "rows": table(rows),
        "rows of texts": table(SIZE // 40, event_id=[f"e{i}" for i in range(SIZE // 40)]),
        "columns of a row": table(1, **{f"c{i}": [0] for i in range(SIZE // 150)}),
        "a dictionary": table(len(words), event_id=words),
        "rows that are refused": table(rows, t=[0] * rows),
        "a deep column": table(rows, x=pa.nulls(rows, deep)),
    }.items():
        yield name, ipc_stream(shape).to_pybytes()
    yield "batches of a row", batches(SIZE // 250, 1)
    yield "batches of no row", batches(SIZE // 250, 0)


def avro_record(name: str, **fields: Any) -> dict[str, Any]:
    columns = [{"name": key, "type": kind} for key, kind in fields.items()]
    return {"type": "record", "name": name, "fields": columns}


def avro_values() -> dict[str, tuple[Any, Any]]:
    """Types of a field that no event has, each with a value."""
    # Three values per byte, as many as a schema may have.
    nulls, empty = avro_record("Nulls", n="null", b="boolean"), {"n": None, "b": True}
    deep: Any = "boolean"
    for i in range(2):
        deep = avro_record(f"D{i}", a=deep)
    inner: Any = True
    for _ in range(2):
        inner = {"a": inner}
    listed = {"type": "array", "items": {"type": "array", "items": "boolean"}}
    return {
        "a text": ("string", "x" * SIZE),
        "an array of booleans": ({"type": "array", "items": "boolean"}, [True] * SIZE),
        "an array of absent texts": ({"type": "array", "items": ["null", "string"]}, [None] * SIZE),
        "an array of records of nulls": ({"type": "array", "items": nulls}, [empty] * SIZE),
        "an array of nested records": ({"type": "array", "items": deep}, [inner] * SIZE),
        "an array of empty arrays": (listed, [[]] * SIZE),
        "a map": ({"type": "map", "values": "boolean"}, {f"{i:x}": True for i in range(SIZE // 5)}),
        "a wide record": (
            avro_record("Wide", **{f"f{i}": ["null", "long"] for i in range(SIZE // 2)}),
            {f"f{i}": 7 for i in range(SIZE // 2)},
        ),
    }


def avro_shapes(registry: Registry, *, envelope: bool) -> Iterator[tuple[str, bytes]]:
    def written(schema: Any, event: Any) -> tuple[int, bytes]:
        sink = BytesIO()
        schemaless_writer(sink, parse_schema(schema), event)
        return registry.add(schema), sink.getvalue()

    ends, event = {"src": "long", "dst": "long"}, {"src": 1, "dst": 2}
    source = avro_record("Source", ts_ms="long")
    for name, (kind, value) in avro_values().items():
        if envelope:
            row = avro_record("Row", **ends, x=kind)
            schema = avro_record("Envelope", before="null", after=row, op="string", source=source)
            after = {
                "before": None,
                "after": {**event, "x": value},
                "op": "c",
                "source": {"ts_ms": T_S * 1_000},
            }
            number, message = written(schema, after)
        else:
            number, message = written(
                avro_record("Edge", **ends, t="long", x=kind), {**event, "t": T_S * 10**6, "x": value}
            )
        yield name, confluent(number, message)
        yield f"{name}, cut", confluent(number, message[:-1])
    if not envelope:
        schema = avro_record("Edge", **ends, t="long", features={"type": "array", "items": "float"})
        yield (
            "features",
            confluent(*written(schema, {**event, "t": T_S * 10**6, "features": [1.0] * (SIZE // 4)})),
        )


def protobuf_shapes(registry: Registry) -> Iterator[tuple[str, bytes]]:
    text = """syntax = "proto3"; message Edge { int64 src = 1; int64 dst = 2; int64 t = 3; Card card = 4;
    repeated float features = 5; string event_id = 6; Edge x = 7; repeated Card cards = 8; map<string, int32> marks = 9; }
    message Card { int64 id = 1; }"""
    number = registry.add(text, schemaType="PROTOBUF")
    ends = b"\0\x08\x01\x10\x02\x18" + varint(T_S * 10**6)
    shapes = {
        "a text": sized(6, b"x" * SIZE),
        "a text of four-byte characters": sized(6, filled("😀").encode()),
        "a text that is no UTF-8": sized(6, b"\xff" * SIZE),
        "features": sized(5, b"\0\0\x80\x3f" * (SIZE // 4)),
        "features, not packed": b"\x2d\0\0\x80\x3f" * (SIZE // 5),
        "a field again and again": b"\x08\x01" * (SIZE // 2),
        "empty messages": b"\x42\0" * (SIZE // 2),
        "entries of a map": sized(9, b"\x0a\0") * (SIZE // 4),
        "unknown fields": b"\x78\x01" * (SIZE // 2),
        "nested groups": (b"\x7b" * 50 + b"\x7c" * 50) * (SIZE // 100),
    }
    for _ in range(90):
        shapes["nested messages"] = sized(7, shapes.get("nested messages", b"\x08\x01" * (SIZE // 2)))
    for name, shape in shapes.items():
        yield name, confluent(number, ends + shape)
        yield f"{name}, cut", confluent(number, (ends + shape)[:-1])


def varint(value: int) -> bytes:
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def sized(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def seconds_per_kb(name: str, value: bytes, registry: Registry) -> float:
    """Processor seconds of the decoder per kB of a message; what is done once per schema is not counted."""
    made, raw = decoder(topic={"format": name}, registry={"url": registry.url}), poll([value] * 4)
    batch = made.decode(raw)
    harness.require(batch.events.num_rows + batch.rejects.num_rows > 0, f"{name}: a poll gave nothing")
    gc.collect()
    gc.freeze()  # as freshet-stream run does: the libraries' objects are not looked through again
    seconds = [harness.seconds_of(lambda: made.decode(raw), time.process_time) for _ in range(RUNS)]
    return median(seconds) / (len(raw.values) * len(value) / 1_000)


def main() -> None:
    harness.options(__doc__)
    with serving() as registry:
        shapes = {
            "json": json_shapes(),
            "arrow": arrow_shapes(),
            "avro": avro_shapes(registry, envelope=False),
            "protobuf": protobuf_shapes(registry),
            "debezium": debezium_shapes(),
            "debezium-avro": avro_shapes(registry, envelope=True),
        }
        found = {
            name: {shape: seconds_per_kb(name, value, registry) for shape, value in some}
            for name, some in shapes.items()
        }
    print(f"{sum(map(len, found.values()))} shapes")
    ratios = {name: max(costs.values()) / median(costs.values()) for name, costs in found.items()}

    def row(name: str, costs: dict[str, float]) -> list[str]:
        shape = max(costs, key=costs.__getitem__)
        own = f"{median(costs.values()) * 1e6:.1f}", f"{costs[shape] * 1e6:.1f}"
        return [name, *own, f"{ratios[name]:.1f}", shape]

    titles = "format | median, µs per kB | worst | worst, of the median | its shape"
    harness.table(titles, (row(*each) for each in found.items()))
    worst = max(ratios.values())
    harness.require(
        worst <= BOUND,
        f"the worst of any format is {worst:.1f} times the median, at most {BOUND} are allowed",
    )


if __name__ == "__main__":
    main()
