"""What existing topics and broken ones cost, one core: python benchmarks/topics.py.

CPU time of decoding whole polls of 20,000 messages, medians of interleaved runs. Nested messages are read through
``fields``; beside them are flat ones with the same content. Then polls in which every message is refused.
"""

import json
import statistics
import time

import numpy as np
import pyarrow as pa

from schemas.config import StreamConfig, Topic
from stream.decode.decoder import Decoder
from stream.microbatch import RawBatch

RUNS = 9
MESSAGES = 20_000
FIELDS = {"src": "card.id", "dst": "merchant.id", "t": "created_at", "weight": "amount", "event_id": "id"}

Case = tuple[Decoder, RawBatch]


def case(values: list[bytes], *, ids: str = "int", **topic: object) -> Case:
    config = StreamConfig(
        graph="bench",
        store="unused",
        kafka={"bootstrap": "unused:9092", "topics": [{"name": "edges", **topic}]},
        snapshots={"interval_s": 86_400},
        ids=ids,
    )
    offsets, packed = pa.array(range(len(values)), pa.int64()), pa.array(values, pa.large_binary())
    raw = RawBatch("edges", 0, 0, len(values), len(values), offsets, packed)
    return Decoder(Topic(**config.kafka.topics[0].model_dump()), config), raw


def measure(title: str, cases: dict[str, Case], *, refused: bool) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for name, (decoder, raw) in cases.items():
        assert decoder.decode(raw).rejects.num_rows == refused * MESSAGES, name
    for _ in range(RUNS):
        for name, (decoder, raw) in cases.items():
            start = time.process_time()
            decoder.decode(raw)
            seconds[name].append(time.process_time() - start)
    print(title)
    for name, taken in seconds.items():
        print(f"  {name:<52}{MESSAGES / statistics.median(taken) / 1e6:8.2f} M messages/s")


def main() -> None:
    pa.set_cpu_count(1)
    rng = np.random.default_rng(0)
    rows = [
        (i, int(a), int(b), 1.7e9 + i / 100) for i, (a, b) in enumerate(rng.integers(0, 5000, (MESSAGES, 2)))
    ]
    flat = [
        {"event_id": f"e{i}", "src": a, "type": "x", "dst": b, "mcc": 5411, "t": t, "weight": 12.5}
        for i, a, b, t in rows
    ]
    nested = [
        {
            "id": f"e{i}",
            "card": {"id": a, "type": "x"},
            "merchant": {"id": b, "mcc": 5411},
            "created_at": t,
            "amount": 12.5,
        }
        for i, a, b, t in rows
    ]
    as_bytes = [json.dumps(message).encode() for message in nested]
    prefix = {"src": "card:", "dst": "merchant:"}
    measure(
        f"Existing topics, such as {as_bytes[0].decode()}",
        {
            "flat messages of the same content": case([json.dumps(message).encode() for message in flat]),
            "nested, by fields": case(as_bytes, fields=FIELDS),
            "nested, by fields, ids with prefixes": case(
                as_bytes, fields=FIELDS, ids="string", id_prefix=prefix
            ),
            "text ids with \\u escapes": case(
                [json.dumps({"src": f"é{a}", "dst": f"ü{b}", "t": t}).encode() for _, a, b, t in rows],
                ids="string",
            ),
        },
        refused=False,
    )
    every = range(MESSAGES)
    measure(
        "Polls of refused messages only",
        {
            "text that is not JSON": case([b"hello %d" % i for i in every]),
            "bytes that are not UTF-8": case([b"\x00\xff%d" % i for i in every]),
            "JSON cut off": case([b'{"src":%d,"dst":7,"t":170' % i for i in every]),
            "dst is missing": case([b'{"src":%d,"t":1700000000}' % i for i in every]),
            "ids of the wrong kind": case([b'{"src":"u%d","dst":7,"t":1700000000}' % i for i in every]),
            "times out of bounds": case([b'{"src":%d,"dst":7,"t":1700000000000}' % i for i in every]),
            "unknown op": case([b'{"src":%d,"dst":7,"t":1.7e9,"op":"upsert"}' % i for i in every]),
            "features nobody asked for": case(
                [b'{"src":%d,"dst":7,"t":1.7e9,"features":[1,2]}' % i for i in every]
            ),
        },
        refused=True,
    )


if __name__ == "__main__":
    main()
