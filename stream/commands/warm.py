"""``freshet-stream warm``: compile the stream's kernels, so that the first start need not."""

import json as json_text
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet_graph.stream.compiled import compiling
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, print_result
from freshet_graph.stream.service.progress import steps

if TYPE_CHECKING:
    import pyarrow as pa

    from freshet_graph.schemas.config import StreamConfig
    from freshet_graph.schemas.events import IdKind

SPAN_S, SNAPSHOTS, EVENTS, NODES, FEATURES = 40, 4, 2400, 1500, 4
ROWS_A_BATCH = 64
"""Small enough that tables grow."""
IDLE_S = 0.3
TOPIC = "warm"
MAPPED = {"fields": {"src": "from.id", "dst": "dst", "t": "at"}}
TOPICS: dict[str, dict[str, Any]] = {"json": {}, "mapped": MAPPED, "arrow": {"format": "arrow"}}
"""Keys of a topic for each way of reading with kernels of its own; other formats use the same ones, and Avro's needs no topic."""


def warm(json: Json = False, debug: Debug = False) -> None:
    """Compile the kernels of all partitioners, formats and kinds of ids and keep them, as a live job would use them.

    Takes a minute or two of processor time the first time, then seconds. Run it once on the services' machine: kernels are
    for its kind of processor and this version. Docker images have them already.

    Example: freshet-stream warm
    """

    def body() -> None:
        configure_logs(level="ERROR", as_json=False)
        began = time.monotonic()
        with compiling() as compiled, steps("kernels of the stream: {} of {} ({} ids, {})") as reached:
            _avro()
            _sessions(reached)
        result = {"compiled": len(compiled), "seconds": time.monotonic() - began}
        print_result("kernels of the stream", result, as_json=json)

    finish(body, debug=debug)


def _sessions(reached: Callable[..., None]) -> None:
    """A small job for every kind of ids and messages, through Kafka's protocol; the first with all partitioners."""
    from freshet_graph.stream.commands.run import quiet_beam
    from freshet_graph.stream.kafka.embedded import EmbeddedBroker
    from freshet_graph.stream.partition.interface import lane_algorithms
    from freshet_graph.stream.service.scratch import scratch_folder

    quiet_beam(debug=False)
    with scratch_folder("warm") as folder, EmbeddedBroker() as broker:
        all_ids: tuple[IdKind, ...] = ("int", "string")
        kinds = [(ids, form) for ids in all_ids for form in TOPICS]
        for number, (ids, form) in enumerate(kinds):
            reached(number + 1, len(kinds), ids, form)
            lanes = (
                sorted(lane_algorithms().keys() - {"kl"}) if number == 0 else ["hash"]
            )  # kl has no kernels, and needs networkx
            topic = f"{TOPIC}-{ids}-{form}"
            config = _configuration(folder / topic, broker.address, topic, ids, form, lanes)
            events = _events(ids)
            half = len(events) // 2
            for part in (
                events.slice(0, half),
                events.slice(half),
            ):  # the second job resumes
                _send(broker.address, topic, _messages(part, config, form))
                _run(config)


def _avro() -> None:
    """A message in Avro, by the program that reads those of all schemas."""
    import numpy as np

    from freshet_graph.stream.decode.formats.avro import AvroFormat
    from freshet_graph.stream.decode.formats.avro_schema import AvroSchema
    from freshet_graph.stream.kernels import read_only

    schema = AvroFormat.schema("string")
    reader = AvroSchema([schema], [(field["name"],) for field in schema["fields"]])
    reader.read(read_only(b"\0", np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64))


def _events(ids: "IdKind") -> "pa.Table":
    import numpy as np
    import pyarrow as pa

    from freshet_graph.schemas.events import US_PER_S, event_schema
    from freshet_graph.stream.synthetic import interactions

    made = interactions(NODES, EVENTS, features=FEATURES, start_s=0.0, span_s=float(SPAN_S))
    op = made["op"].to_numpy().copy()
    op[np.flatnonzero(made["dst"].is_valid().to_numpy())[::15]] = -1
    known = {**{name: made[name] for name in made.column_names}, "op": pa.array(op)}
    known["t"] = pa.array((made["t"].to_numpy() * US_PER_S).astype(np.int64))
    schema = event_schema(ids)
    columns = [
        known[field.name].cast(field.type) if field.name in known else pa.nulls(len(made), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _messages(events: "pa.Table", config: "StreamConfig", form: str) -> list[bytes]:
    """Events as messages, with some that are refused."""
    from freshet_graph.schemas.config import Topic
    from freshet_graph.stream.decode.formats.interface import create_format

    name = TOPICS[form].get("format", "json")
    written = create_format(Topic(name=TOPIC, format=name), config.kafka, config.ids)
    batches = events.to_batches(max_chunksize=ROWS_A_BATCH)
    messages = [value for batch in batches for value, _ in written.encode(batch)]
    if TOPICS[form] is MAPPED:
        rows = [json_text.loads(message) for message in messages]
        edges = [row for row in rows if "src" in row]
        messages = [
            json_text.dumps({**row, "from": {"id": row["src"]}, "at": row["t"]}).encode() for row in edges
        ]
    return [*messages, b"?", b'{"src": 1, "dst": "', b'{"src": true}']


def _send(address: str, topic: str, messages: list[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    partitions = len(producer.list_topics(topic, timeout=10).topics[topic].partitions)
    for number, message in enumerate(messages):
        producer.produce(topic, message, partition=number * partitions // len(messages))
    producer.flush(30)


def _configuration(
    store: Path, address: str, topic: str, ids: str, form: str, lanes: list[str]
) -> "StreamConfig":
    from freshet_graph.schemas.config import StreamConfig

    return StreamConfig.model_validate(
        {
            "graph": "warm",
            "store": str(store),
            "ids": ids,
            "time_bounds": [0, None],
            "kafka": {
                "bootstrap": address,
                "topics": [{"name": topic, **TOPICS[form]}],
                "dead_letters": f"{topic}.dead",
                "api_version": [2, 1],
            },
            "snapshots": {"interval_s": SPAN_S / SNAPSHOTS, "commit_every_s": 0.1},
            "features": {"node": FEATURES, "segments": 4},
            "lanes": [{"name": name, "algorithm": name, "parts": 2, "window": 2} for name in lanes],
            "metrics": {"port": 0},
        }
    )


def _run(config: "StreamConfig") -> None:
    from freshet_graph.stream.job.loop import StreamJob
    from freshet_graph.stream.metrics import StreamMetrics

    StreamJob(config, StreamMetrics(config), until_idle_s=IDLE_S).run()
