"""What a kilobyte costs at worst in each message format: python benchmarks/worst_message.py.

Each shape is one message of about 20 kB that is valid or nearly so and whose cost an attacker, or a careless producer, might
drive up. The figure is processor time of the whole decoder for one poll of it, the median of several runs, per kB of the
message. A format's ratio is its worst shape over the median of all shapes of all formats.
"""

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from decoding import decoder, poll
from fastavro import parse_schema, schemaless_writer
from registry_server import Registry, confluent, serving

from stream.decode.encode import ipc_stream

RUNS = 7
SIZE = 20_000
T_S = 1_100_000_000
BOUND = 10
"""Most times the median that any shape may cost."""


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
    for name, value in json_values().items():
        for key, more in (
            ("x", name),
            ("\\u0078", f"{name}, an escaped key"),
        ):  # the scanner knows only the first
            yield more, f'{{"src":1,"dst":2,"t":{T_S},"{key}":{value}}}'.encode()
    yield "features", f'{{"src":1,"dst":2,"t":{T_S},"features":[{filled("0,")}0]}}'.encode()
    yield (
        "features that are no numbers",
        f'{{"src":1,"dst":2,"t":{T_S},"features":[{filled("0,")}true]}}'.encode(),
    )


def debezium_shapes() -> Iterator[tuple[str, bytes]]:
    for name, value in json_values().items():
        row = f'{{"src":1,"dst":2,"x":{value}}}'
        ends = f'"op":"u","source":{{"ts_ms":{T_S}000}}'
        yield f"{name}, before and after", f'{{"before":{row},"after":{row},{ends}}}'.encode()
        yield (
            f"{name}, wrapped",
            f'{{"schema":{value},"payload":{{"after":{{"src":1,"dst":2}},{ends}}}}}'.encode(),
        )
        yield (
            f"{name}, wrapped, an escaped key",
            (f'{{"\\u0073chema":{value},"payload":{{"after":{{"src":1,"dst":2}},{ends}}}}}'.encode()),
        )


def arrow_shapes() -> Iterator[tuple[str, bytes]]:
    def table(rows: int, **more: Any) -> pa.Table:
        return pa.table({"src": [1] * rows, "dst": [2] * rows, "t": [T_S * 10**6] * rows} | more)

    def batches(count: int, rows: int) -> bytes:
        sink, whole = pa.BufferOutputStream(), table(rows)
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            for _ in range(count):
                writer.write_batch(
                    pa.RecordBatch.from_arrays(
                        [c.combine_chunks() for c in whole.columns], schema=whole.schema
                    )
                )
        return bytes(sink.getvalue().to_pybytes())

    yield "rows", ipc_stream(table(SIZE // 24)).to_pybytes()
    yield (
        "rows of texts",
        ipc_stream(table(SIZE // 40, event_id=[f"e{i}" for i in range(SIZE // 40)])).to_pybytes(),
    )
    yield "batches of a row", batches(SIZE // 250, 1)
    yield "batches of no row", batches(SIZE // 250, 0)
    yield "columns of a row", ipc_stream(table(1, **{f"c{i}": [0] for i in range(SIZE // 150)})).to_pybytes()
    words = pa.array(["x" * 100, "y"]).take(pa.array([0, 1] * (SIZE // 80))).dictionary_encode()
    yield "a dictionary", ipc_stream(table(len(words), event_id=words)).to_pybytes()
    yield (
        "rows that are refused",
        ipc_stream(table(SIZE // 24).set_column(2, "t", pa.array([0] * (SIZE // 24)))).to_pybytes(),
    )
    kind = pa.int8()
    for _ in range(60):
        kind = pa.struct([("a", kind)])
    yield "a deep column", ipc_stream(table(SIZE // 24, x=pa.nulls(SIZE // 24, kind))).to_pybytes()


def avro_record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": kind} for key, kind in fields.items()],
    }


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
    for name, (kind, value) in avro_values().items():
        if envelope:
            row = avro_record("Row", src="long", dst="long", x=kind)
            schema = avro_record(
                "Envelope", before="null", after=row, op="string", source=avro_record("Source", ts_ms="long")
            )
            event = {
                "before": None,
                "after": {"src": 1, "dst": 2, "x": value},
                "op": "c",
                "source": {"ts_ms": T_S * 1_000},
            }
        else:
            schema = avro_record("Edge", src="long", dst="long", t="long", x=kind)
            event = {"src": 1, "dst": 2, "t": T_S * 10**6, "x": value}
        written = BytesIO()
        schemaless_writer(written, parse_schema(schema), event)
        number = registry.add(schema)
        yield name, confluent(number, written.getvalue())
        yield f"{name}, cut", confluent(number, written.getvalue()[:-1])
    if not envelope:
        schema = avro_record(
            "Edge", src="long", dst="long", t="long", features={"type": "array", "items": "float"}
        )
        written = BytesIO()
        event = {"src": 1, "dst": 2, "t": T_S * 10**6, "features": [1.0] * (SIZE // 4)}
        schemaless_writer(written, parse_schema(schema), event)
        yield "features", confluent(registry.add(schema), written.getvalue())


def seconds_per_kb(name: str, value: bytes, registry: Registry) -> float:
    """Processor seconds of the decoder per kB of a message; what is done once per schema is not counted."""
    given = decoder(topic={"format": name}, registry={"url": registry.url})
    raw = poll([value] * 4)
    given.decode(raw)
    gc.collect()
    gc.freeze()  # as freshet-stream run does: the libraries' objects are not looked through again
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        given.decode(raw)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds) / (len(raw.values) * len(value) / 1_000)


def main() -> None:
    found: dict[str, dict[str, float]] = {}
    with serving() as registry:
        for name, shapes in (
            ("json", json_shapes()),
            ("arrow", arrow_shapes()),
            ("avro", avro_shapes(registry, envelope=False)),
            ("debezium", debezium_shapes()),
            ("debezium-avro", avro_shapes(registry, envelope=True)),
        ):
            found[name] = {shape: seconds_per_kb(name, value, registry) for shape, value in shapes}
    median = statistics.median(cost for costs in found.values() for cost in costs.values())
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(
        f"{'format':<14}{'median':>10}{'worst':>10}  µs per kB      worst, of the median of all ({median * 1e6:.1f})"
    )
    for name, costs in found.items():
        shape = max(costs, key=costs.__getitem__)
        middle = statistics.median(costs.values())
        ratio = costs[shape] / median
        print(f"{name:<14}{middle * 1e6:>10.1f}{costs[shape] * 1e6:>10.1f}  {ratio:>6.1f}  {shape}")
    worst = max(cost for costs in found.values() for cost in costs.values())
    print(f"worst of any format: {worst / median:.1f} times the median, at most {BOUND} are allowed")
    if worst > BOUND * median:
        sys.exit(1)


if __name__ == "__main__":
    main()
