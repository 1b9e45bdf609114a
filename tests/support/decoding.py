"""A decoder with small limits, and messages for it."""

import pyarrow as pa

from freshet_graph.schemas.config import Kafka, StreamConfig, Topic
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.encode import encode_arrow
from freshet_graph.stream.decode.formats.interface import MessageFormat, create_format
from freshet_graph.stream.microbatch import MicroBatch, RawBatch

NOW_US = 1_800_000_000_000_000
GOOD = b'{"src":1,"dst":2,"t":1082040961}'


def decoder(
    *,
    topic: dict[str, object] | None = None,
    max_message_rows: int = 1 << 20,
    registry: dict[str, object] | None = None,
    **more: object,
) -> Decoder:
    limits = {"max_message_bytes": 100_000, "max_message_rows": max_message_rows}
    config = StreamConfig(
        graph="g",
        store="unused",
        kafka={
            "bootstrap": "unused:9092",
            "topics": [{"name": "edges", **(topic or {})}],
            **limits,
            "schema_registry": registry,
        },
        snapshots={"interval_s": 86_400},
        **more,
    )
    return Decoder(config.kafka.topics[0], config, now_us=lambda: NOW_US)


def poll(values: list[bytes | None], first: int = 100, **beside: list[object]) -> RawBatch:
    """Messages at every second offset: holes are normal. ``beside``: timestamp (ms), key, and other names are headers."""
    offsets = pa.array([first + 2 * i for i in range(len(values))], pa.int64())
    end = first + 2 * len(values)
    columns = {
        f"${name}" if name in ("timestamp", "key") else f"$headers.{name}": pa.array(
            cells, pa.timestamp("ms") if name == "timestamp" else pa.large_binary()
        )
        for name, cells in beside.items()
    }
    content = pa.array(values, pa.large_binary())
    return RawBatch("edges", 3, first, end, end + 7, offsets, content, beside=columns)


def message_format(name: str) -> MessageFormat:
    """A format for Freshet's own fields."""
    return create_format(
        Topic(name="edges", format=name), Kafka(bootstrap="unused:9092", topics=[{"name": "edges"}]), "int"
    )


def decode(*values: bytes | None, topic: dict[str, object] | None = None, **more: object) -> MicroBatch:
    return decoder(topic=topic, **more).decode(poll(list(values)))


def reasons(batch: MicroBatch) -> list[str]:
    return batch.rejects["reason"].to_pylist()


def message(**columns: object) -> bytes:
    table = {"src": [1, 2, 3], "dst": [4, 5, 6], "t": [10**15] * 3} | columns
    return next(encode_arrow(pa.table({name: value for name, value in table.items() if value is not None})))


def arrow(*values: bytes, **more: object) -> MicroBatch:
    return decode(*values, topic={"format": "arrow"} | more.pop("topic", {}), **more)


def ipc(rows: dict[str, object] | pa.Table | list[pa.RecordBatch], compression: str | None = None) -> bytes:
    """Columns, a table or batches of one schema as an Arrow stream."""
    batches = rows if isinstance(rows, list) else pa.table(rows).to_batches()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
