"""What decoding costs on one core, beside a bare parse of the same bytes: python benchmarks/decode.py.

Each figure is CPU time, the median of several runs of whole polls of 20,000 messages (64 messages of 4,096 rows for
Arrow), after a warm-up. Avro's schemas come from a registry of its own on this machine, asked before the warm-up ends.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyarrow as pa
import pyarrow.json as pajson

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from registry_server import serving

from schemas.config import StreamConfig, Topic
from stream.decode.columns import canonical
from stream.decode.decoder import Decoder
from stream.decode.encode import encode_arrow, encode_json
from stream.microbatch import RawBatch
from stream.synthetic import interactions

RUNS = 9
JSON_MESSAGES, ARROW_MESSAGES = 20_000, 64


def config(**more: object) -> StreamConfig:
    return StreamConfig(
        graph="bench",
        store="unused",
        kafka={"bootstrap": "unused:9092", "topics": [{"name": "edges"}]},
        snapshots={"interval_s": 86_400},
        **more,
    )


def poll(values: list[bytes]) -> RawBatch:
    offsets = pa.array(range(len(values)), pa.int64())
    return RawBatch("edges", 0, 0, len(values), len(values), offsets, pa.array(values, pa.large_binary()))


def events_per_s(work: Callable[[], object], events: int) -> float:
    work()
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return events / statistics.median(seconds)


def show(name: str, rate: float, bare: float | None = None) -> None:
    ratio = "" if bare is None else f"{rate / bare:8.2f}x"
    print(f"{name:<58}{rate / 1e6:8.2f} M events/s{ratio}")


def bare_json(values: list[bytes]) -> pa.Table:
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("t", pa.float64())])
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pajson.read_json(
        pa.BufferReader(b"\n".join(values)), pajson.ReadOptions(use_threads=False), options
    )


def bare_arrow(values: list[bytes]) -> int:
    return sum(pa.ipc.open_stream(value).read_next_batch().num_rows for value in values)


def main() -> None:
    pa.set_cpu_count(1)
    count = ARROW_MESSAGES * 4096
    edges = canonical(interactions(5_000, count, seed=1).combine_chunks().to_batches()[0], "int", "s").batch
    featured = interactions(2_000, 20_000, features=16, seed=1).combine_chunks().to_batches()[0]
    nodes = canonical(featured, "int", "s").batch.slice(0, JSON_MESSAGES)

    messages = encode_json(edges.slice(0, JSON_MESSAGES))
    print(f"JSON, such as {messages[100].decode()}")
    decoder = Decoder(Topic(name="edges"), config())
    bare = events_per_s(lambda: bare_json(messages), JSON_MESSAGES)
    show("  pyarrow.json, joined, explicit schema, unchecked", bare)
    show("  Decoder", events_per_s(lambda: decoder.decode(poll(messages)), JSON_MESSAGES), bare)
    one_bad = [*messages[:-200], *[b'{"src": 1, "t": 2}'] * 200]
    show("  Decoder, 1 % refused", events_per_s(lambda: decoder.decode(poll(one_bad)), JSON_MESSAGES), bare)
    with_nodes = encode_json(nodes)
    features = Decoder(Topic(name="edges"), config(features={"node": 16}))
    rate = events_per_s(lambda: features.decode(poll(with_nodes)), JSON_MESSAGES)
    share = nodes["features"].is_valid().to_numpy(zero_copy_only=False).mean()
    show(f"  Decoder, {share:.0%} node events with 16 features", rate)
    show("  encode_json", events_per_s(lambda: encode_json(edges), count))

    print("Arrow, 4,096 rows a message")
    batches = list(encode_arrow(edges))
    arrow = Decoder(Topic(name="edges", format="arrow"), config())
    bare = events_per_s(lambda: bare_arrow(batches), count)
    show("  pyarrow.ipc, unchecked", bare)
    show("  Decoder", events_per_s(lambda: arrow.decode(poll(batches)), count), bare)
    show("  encode_arrow", events_per_s(lambda: list(encode_arrow(edges)), count))

    print("Avro, behind Confluent's header")
    with serving() as registry:
        rates_of("avro", edges, registry.url)
        print("Debezium's envelopes: in JSON, in JSON with one update in ten to another pair, in Avro")
        rates_of("debezium", edges, registry.url)
        moved = [change(i) for i in range(JSON_MESSAGES)]
        envelopes = made("debezium", registry.url)
        show("  Decoder, one in ten moves", events_per_s(lambda: envelopes.decode(poll(moved)), len(moved)))
        rates_of("debezium-avro", edges, registry.url)


def made(name: str, url: str) -> Decoder:
    kafka = {"bootstrap": "unused:9092", "topics": [{"name": "edges"}], "schema_registry": {"url": url}}
    section = StreamConfig.model_validate({**config().model_dump(), "kafka": kafka})
    return Decoder(Topic(name="edges", format=name), section)


def change(i: int) -> bytes:
    """An envelope with more columns than an event needs; every tenth leads to another pair."""
    row = {"id": i, "src": i % 5_000, "dst": i % 4_999, "note": "as it was"}
    source = {
        "connector": "postgresql",
        "db": "shop",
        "table": "follows",
        "ts_ms": 1_700_000_000_000 + i,
        "lsn": 10**9 + i,
    }
    before = row | {"dst": 7} if i % 10 == 0 else None
    op = "c" if before is None else "u"
    return json.dumps(
        {"before": before, "after": row, "source": source, "op": op, "ts_ms": source["ts_ms"] + 3}
    ).encode()


def rates_of(name: str, edges: pa.RecordBatch, url: str) -> None:
    decoder = made(name, url)
    part = edges.slice(0, JSON_MESSAGES)
    messages = [value for value, _ in decoder._format.encode(part)]
    print(f"  {name}, {len(messages[100])} bytes a message")
    show("  Decoder", events_per_s(lambda: decoder.decode(poll(messages)), JSON_MESSAGES))
    show("  encode", events_per_s(lambda: list(decoder._format.encode(part)), JSON_MESSAGES))


if __name__ == "__main__":
    main()
