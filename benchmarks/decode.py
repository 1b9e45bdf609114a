"""What decoding costs on one core: python benchmarks/decode.py [formats] [topics] [duplicates].

- ``formats``: each format beside a bare parse of the same bytes. Schemas of Avro and Protobuf come from a registry of its own on
  this machine.
- ``topics``: existing topics. Nested messages are read through ``fields``; beside them are flat ones with the same content.
  Then polls in which every message is refused.
- ``duplicates``: what dropping duplicates costs and holds: polls of 20,000 events, each with an event_id of 36 characters (a
  UUID's length), every tenth a repeat.

CPU time, medians of whole polls of 20,000 messages (64 messages of 4,096 rows for Arrow), after a
warm-up. Ways take turns. Each poll must end as events or as rejects, as it is meant to.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import harness
import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
from harness import in_turns, medians, require
from registry_server import serving

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.stream.decode.columns import canonical
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.encode import encode_arrow, encode_json
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.snapshots.event_ids import EventIds
from freshet_graph.stream.synthetic import interactions

RUNS = 9
MESSAGES, ARROW_ROWS = 20_000, 64 * 4096
FIELDS = {"src": "card.id", "dst": "merchant.id", "t": "created_at", "weight": "amount", "event_id": "id"}
Work = Callable[[], object]


def decoder(topic: dict[str, Any] | None = None, registry: str | None = None, **more: Any) -> Decoder:
    named = {"name": "edges", **(topic or {})}
    own = {"schema_registry": {"url": registry}} if registry else {}
    every = {"interval_s": 86_400}
    keys = harness.stream_keys(Path("unused"), "unused:9092", named, snapshots=every, kafka=own, **more)
    return Decoder(Topic.model_validate(named), StreamConfig.model_validate(keys))


def decoding(messages: Sequence[bytes], made: Decoder, *, events: int, rejects: int = 0) -> Work:
    """Decode a poll, which must give so many events and rejects."""
    offsets, values = pa.array(range(len(messages)), pa.int64()), pa.array(messages, pa.large_binary())
    poll = RawBatch("edges", 0, 0, len(messages), len(messages), offsets, values)
    batch = made.decode(poll)
    found = batch.events.num_rows, batch.rejects.num_rows
    require(found == (events, rejects), f"{found} events and rejects, not {events, rejects}")
    return lambda: made.decode(poll)


def bare_json(values: list[bytes]) -> pa.Table:
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("t", pa.float64())])
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pajson.read_json(
        pa.BufferReader(b"\n".join(values)), pajson.ReadOptions(use_threads=False), options
    )


def bare_arrow(values: list[bytes]) -> int:
    return sum(pa.ipc.open_stream(value).read_next_batch().num_rows for value in values)


def change(i: int) -> bytes:
    """An envelope with more columns than an event needs; every tenth leads to another pair."""
    row = {"id": i, "src": i % 5_000, "dst": i % 4_999, "note": "as it was"}
    at_ms = 1_700_000_000_000 + i
    source = {"connector": "postgresql", "db": "shop", "table": "follows", "ts_ms": at_ms, "lsn": 10**9 + i}
    before = row | {"dst": 7} if i % 10 == 0 else None
    op = "c" if before is None else "u"
    return json.dumps(
        {"before": before, "after": row, "source": source, "op": op, "ts_ms": at_ms + 3}
    ).encode()


def rates(group: str, ways: dict[str, tuple[int, Work]], bare: str | None = None) -> Iterator[list[str]]:
    """Rows: M events per CPU second, and the ratio to the bare way."""
    seconds = medians(in_turns({name: work for name, (_, work) in ways.items()}, RUNS))
    found = {name: ways[name][0] / took / 1e6 for name, took in seconds.items()}
    for name, rate in found.items():
        yield [group, name, f"{rate:.2f}", f"{rate / found[bare]:.2f}" if bare else "–"]


def formats() -> Iterator[list[str]]:
    edges = canonical(
        interactions(5_000, ARROW_ROWS, seed=1).combine_chunks().to_batches()[0], "int", "s"
    ).batch
    featured = interactions(2_000, 20_000, features=16, seed=1).combine_chunks().to_batches()[0]
    nodes = canonical(featured, "int", "s").batch.slice(0, MESSAGES)
    part = edges.slice(0, MESSAGES)
    messages, with_nodes = encode_json(part), encode_json(nodes)
    one_bad = [*messages[:-200], *[b'{"src": 1, "t": 2}'] * 200]
    share = nodes["features"].is_valid().to_numpy(zero_copy_only=False).mean()
    bare = "pyarrow.json, joined, explicit schema, unchecked"
    yield from rates("JSON", {
        bare: (MESSAGES, lambda: bare_json(messages)),
        "Decoder": (MESSAGES, decoding(messages, decoder(), events=MESSAGES)),
        "Decoder, 1 % refused": (MESSAGES, decoding(one_bad, decoder(), events=MESSAGES - 200, rejects=200)),
        f"Decoder, {share:.0%} node events with 16 features": (
            MESSAGES, decoding(with_nodes, decoder(features={"node": 16}), events=MESSAGES)
        ),
        "encode_json": (ARROW_ROWS, lambda: encode_json(edges)),
    }, bare)  # fmt: skip
    batches = list(encode_arrow(edges))
    yield from rates("Arrow, 4,096 rows per message", {
        "pyarrow.ipc, unchecked": (ARROW_ROWS, lambda: bare_arrow(batches)),
        "Decoder": (ARROW_ROWS, decoding(batches, decoder({"format": "arrow"}), events=ARROW_ROWS)),
        "encode_arrow": (ARROW_ROWS, lambda: list(encode_arrow(edges))),
    }, "pyarrow.ipc, unchecked")  # fmt: skip
    with serving() as registry:
        for name in ("avro", "protobuf", "debezium", "debezium-avro"):
            made = decoder({"format": name}, registry.url)
            encoded = [value for value, _ in made._format.encode(part)]
            ways = {
                "Decoder": (MESSAGES, decoding(encoded, made, events=MESSAGES)),
                "encode": (MESSAGES, lambda made=made: list(made._format.encode(part))),
            }
            if name == "debezium":
                moved = [change(i) for i in range(MESSAGES)]
                work = decoding(moved, made, events=MESSAGES + MESSAGES // 10)
                ways["Decoder, one update in ten to another pair"] = MESSAGES, work
            yield from rates(f"{name}, {len(encoded[100])} bytes per message", ways)


def topics() -> Iterator[list[str]]:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 5000, (MESSAGES, 2)).tolist()
    rows = [(i, a, b, 1.7e9 + i / 100) for i, (a, b) in enumerate(ends)]
    flat = [
        {"event_id": f"e{i}", "src": a, "type": "x", "dst": b, "mcc": 5411, "t": t, "weight": 12.5}
        for i, a, b, t in rows
    ]
    nested = [
        {"id": f"e{i}", "card": {"id": a, "type": "x"}, "merchant": {"id": b, "mcc": 5411}, "created_at": t, "amount": 12.5}
        for i, a, b, t in rows
    ]  # fmt: skip
    flat_, nested_ = ([json.dumps(message).encode() for message in of] for of in (flat, nested))
    escaped = [json.dumps({"src": f"é{a}", "dst": f"ü{b}", "t": t}).encode() for _, a, b, t in rows]
    prefixed = {"fields": FIELDS, "id_prefix": {"src": "card:", "dst": "merchant:"}}
    taken = {
        "flat messages of the same content": (flat_, decoder()),
        "nested, by fields": (nested_, decoder({"fields": FIELDS})),
        "nested, by fields, ids with prefixes": (nested_, decoder(prefixed, ids="string")),
        "text ids with \\u escapes": (escaped, decoder(ids="string")),
    }
    ways = {name: (MESSAGES, decoding(*case, events=MESSAGES)) for name, case in taken.items()}
    print(f"nested messages are such as {nested_[0].decode()}")
    yield from (row[:3] for row in rates("taken", ways))
    refused = {
        "text that is not JSON": b"hello %d",
        "bytes that are not UTF-8": b"\x00\xff%d",
        "JSON cut off": b'{"src":%d,"dst":7,"t":170',
        "dst is missing": b'{"src":%d,"t":1700000000}',
        "ids of the wrong kind": b'{"src":"u%d","dst":7,"t":1700000000}',
        "times out of bounds": b'{"src":%d,"dst":7,"t":1700000000000}',
        "unknown op": b'{"src":%d,"dst":7,"t":1.7e9,"op":"upsert"}',
        "unexpected features": b'{"src":%d,"dst":7,"t":1.7e9,"features":[1,2]}',
    }
    ways = {
        name: (
            MESSAGES,
            decoding([shape % i for i in range(MESSAGES)], decoder(), events=0, rejects=MESSAGES),
        )
        for name, shape in refused.items()
    }
    yield from (row[:3] for row in rates("refused", ways))


def duplicates() -> Iterator[list[str]]:
    for window_ids in (10_000, 1_000_000):
        ids, rng, seconds, dropped = EventIds(window_ids, 10**9), np.random.default_rng(0), [], 0
        for n in range(2 * window_ids // MESSAGES + 60):
            fresh = np.arange(n * MESSAGES, (n + 1) * MESSAGES)
            again = np.maximum(fresh - rng.integers(1, max(2, window_ids // 2), MESSAGES), 0)
            names = [f"{i:036d}" for i in np.where(rng.random(MESSAGES) < 0.1, again, fresh)]
            column = pa.chunked_array([pa.array(names)])
            began = time.process_time()
            dropped += int(np.sum(ids.duplicates(column, fresh, np.zeros(MESSAGES, bool))))
            seconds.append(time.process_time() - began)
        require(dropped > 0, "no duplicate was dropped")
        steady = seconds[len(seconds) // 2 :]  # growing and forgetting included
        alive = min(ids.size, int(0.9 * window_ids))
        rate = MESSAGES * len(steady) / sum(steady) / 1e6
        yield [f"{window_ids:,}", f"{rate:.1f}", f"{ids.nbytes / alive:.0f}"]


PARTS = {
    "formats": (formats, "format | way | M events/s | of the bare parse"),
    "topics": (topics, "all messages are | such as | M messages/s"),
    "duplicates": (duplicates, "ids in the window | M events/s | bytes per id"),
}


def main() -> None:
    given = harness.options(__doc__, {"parts": []})
    pa.set_cpu_count(1)
    harness.tables(PARTS, given.parts)


if __name__ == "__main__":
    main()
