"""Messages of every format that nobody should send, from a seed; good ones of the format are among them."""

import json

import numpy as np
import pyarrow as pa
from hostile_arrow import arrow_makers
from hostile_avro import avro_makers
from hostile_draws import Make, any_of, mutate, random_bytes
from hostile_json import json_makers
from hostile_protobuf import protobuf_makers
from registry_server import Registry

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.decode.formats.interface import MessageFormat


def good(written: MessageFormat, src: int) -> bytes:
    """One event as a message of a format."""
    first, second = (src, 2) if written.ids == "int" else (f"n{src}", "n2")
    row = {"op": 1, "src": first, "dst": second, "t": 1_100_000_000_000_000, "weight": 1.0}
    return next(iter(written.encode(pa.RecordBatch.from_pylist([row], schema=event_schema(written.ids)))))[0]


def makers_of(written: MessageFormat, registry: Registry) -> dict[str, Make]:
    """The kinds of messages for a format, those of its own kind first."""

    def encode(rng: np.random.Generator) -> bytes:
        return good(written, int(rng.integers(1, 100)))

    def truncated(rng: np.random.Generator) -> bytes:
        whole = encode(rng)
        return whole[: int(rng.integers(0, len(whole)))]

    of_json = json_makers(written.ids)

    def change(rng: np.random.Generator) -> bytes:
        rows = [
            (of_json[any_of(rng, list(of_json))](rng) or b"null").decode("utf-8", "replace") for _ in range(2)
        ]
        op = any_of(rng, ("c", "u", "u", "d", "t", 3, None, ["c"]))
        return f'{{"before":{rows[0]},"after":{rows[1]},"source":{{"ts_ms":1100000000000}},"op":{json.dumps(op)}}}'.encode()

    own: dict[str, dict[str, Make]] = {
        "json": of_json,
        "arrow": arrow_makers(written.ids),
        "debezium": {"change": change, "change again": change},
    }
    for name in ("avro", "debezium-avro"):
        own[name] = avro_makers(registry, encode, envelope=name != "avro")
    own["protobuf"] = protobuf_makers(registry, encode)
    return {
        "good": encode,
        "cut": truncated,
        "changed": lambda rng: mutate(rng, encode(rng)),
        "bytes": random_bytes,
        "gone": lambda rng: None,
    } | own.get(written.name, {})
