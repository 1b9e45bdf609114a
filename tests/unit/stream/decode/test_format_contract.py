"""Every registered message format: events come back as they were written, and nothing that a message holds does harm."""

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from decoding import NOW_US, poll
from pydantic import Field
from registry_server import Registry, serving

from freshet_graph.schemas.config import Kafka, StreamConfig, Topic
from freshet_graph.schemas.events import Reason, event_schema
from freshet_graph.schemas.section import Section
from freshet_graph.stream.commands.config import require_parts
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.formats.interface import FORMATS, MessageFormat, create_format
from freshet_graph.stream.decode.formats.plain import JsonFormat
from freshet_graph.stream.service.failure import Failure

NAMES = sorted(FORMATS.all())
LIMIT = 100_000


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def kafka(registry: Registry) -> Kafka:
    topics = [{"name": "edges"}]
    return Kafka(
        bootstrap="unused:9092", topics=topics, max_message_bytes=LIMIT, schema_registry={"url": registry.url}
    )


def made(name: str, registry: Registry, ids: str = "int") -> tuple[MessageFormat, Decoder]:
    section, topic = kafka(registry), Topic(name="edges", format=name)
    widths = {"node": 3, "edge": 2}
    config = StreamConfig(
        graph="g", store="unused", kafka=section, snapshots={"interval_s": 86_400}, ids=ids, features=widths
    )
    return create_format(topic, section, ids), Decoder(topic, config, now_us=lambda: NOW_US)


def events(ids: str, rows: int = 40) -> pa.RecordBatch:
    """Inserts, deletes and node events, whole and in pieces, to the millisecond."""
    listed = []
    for i in range(rows):
        row = {"op": 1, "src": i % 7, "dst": i % 5, "t": 1_100_000_000_000_000 + i * 1_001_000, "weight": 1.0}
        row |= [
            {},
            {"op": -1},
            {"weight": 0.5, "features": [1.5, -2.0], "label": i},
            {"op": 0, "dst": None, "features": [0.5, 1.0, 2.0]},
            {"op": 0, "dst": None, "features": [7.0], "feature_offset": 1},
            {"event_id": f"é{i}"},
        ][i % 6]
        if ids == "string":
            row |= {key: f"n:{row[key]}" for key in ("src", "dst") if row[key] is not None}
        listed.append(row)
    return pa.RecordBatch.from_pylist(listed, schema=event_schema(ids))


def test_names_and_reasons_are_fit_for_configurations_and_metrics() -> None:
    assert {"json", "arrow", "avro", "protobuf", "debezium", "debezium-avro"} <= set(NAMES)
    for name, found in FORMATS.all().items():
        assert found.name == name
        assert found.about
        assert len(found.reasons) <= 4
        assert all(re.fullmatch("[a-z_]{3,40}", reason) and said for reason, said in found.reasons.items())
        assert not set(found.reasons) & set(Reason)


@pytest.mark.parametrize("ids", ["int", "string"])
@pytest.mark.parametrize("name", NAMES)
def test_events_come_back_as_they_were_written(name: str, ids: str, registry: Registry) -> None:
    written, decoder = made(name, registry, ids)
    batch = events(ids)
    encoded = list(written.encode(batch))
    listed = [row for _, row in encoded]
    assert listed == [None] * len(listed) or listed == list(range(len(batch)))
    decoded = decoder.decode(poll([value for value, _ in encoded]))
    assert decoded.rejects.to_pylist() == []
    assert decoded.events.select(batch.schema.names).equals(batch)
    assert ("row" in decoded.events.schema.names) == written.many


@pytest.mark.parametrize("ids", ["int", "string"])
@pytest.mark.parametrize("name", NAMES)
def test_node_events_are_labels_of_events_in_a_topic_that_says_so(
    name: str, ids: str, registry: Registry
) -> None:
    written, _ = made(name, registry, "string")
    rows = [
        {
            "op": 0,
            "src": f"é{i}",
            "t": 1_100_000_000_000_000 + i * 1_000,
            "weight": 1.0,
            "label": i,
            "event_id": "bank",
        }
        for i in range(5)
    ]
    values = [
        value for value, _ in written.encode(pa.RecordBatch.from_pylist(rows, schema=event_schema("string")))
    ]
    of = "node" if name in ("json", "debezium") else "src"
    fields = {"event_id": of, "label": "label", "source": "event_id", "t": "t"}
    if name.startswith("debezium"):
        fields = {field: f"after.{path}" for field, path in fields.items()} | {"t": "source.ts_ms"}
    topic = Topic(name="edges", kind="labels", sources=["bank"], format=name, fields=fields)
    config = StreamConfig(graph="g", store="unused", kafka=kafka(registry), ids=ids)
    decoded = Decoder(topic, config, now_us=lambda: NOW_US).decode(poll(values))
    assert decoded.rejects.to_pylist() == []
    assert decoded.events.num_rows == 0
    assert decoded.labels is not None
    found = decoded.labels.drop_columns(["offset"]).to_pylist()
    common = {"node": None, "source": "bank", "priority": 1, "visible_us": None}
    assert found == [{"event_id": row["src"], "label": row["label"], "t": row["t"], **common} for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_a_message_takes_a_bounded_multiple_of_its_bytes(name: str, registry: Registry) -> None:
    written, decoder = made(name, registry)
    good = next(iter(written.encode(events("int", 1))))[0]
    bombs = [
        good[:5] + filler * (LIMIT // len(filler) - 5)
        for filler in (
            b"\0",
            b"\x02",
            b"\xff",
            b"\xfe",
            b"[",
            b'{"a":',
            b'"d""u"',
            b"0,",
            b"\x80\x80\x80\x80\x01",
        )
    ]
    decoder.decode(poll([good, *bombs]))  # what is loaded once
    tracemalloc.start()
    try:
        for bomb in bombs:
            arrow = pa.default_memory_pool().bytes_allocated()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert decoder.decode(poll([bomb])).events.num_rows == 0
            assert tracemalloc.get_traced_memory()[1] - before < 200 * LIMIT
            assert pa.default_memory_pool().bytes_allocated() - arrow < 200 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", NAMES)
def test_its_schema_is_json_for_either_kind_of_ids(name: str) -> None:
    found = FORMATS.find(name)
    for ids in (None, "int", "string"):
        assert json.loads(json.dumps(found.schema(ids)))
    assert found.schema("int") != found.schema("string")


def test_an_unknown_format_names_the_topic_and_the_nearest_known_one(registry: Registry) -> None:
    with pytest.raises(
        Failure,
        match=r"kafka\.topics\[edges\]\.format: unknown message format 'arow'; expected one of .*arrow",
    ):
        made("arow", registry)
    config = {"graph": "g", "store": "unused", "snapshots": {"interval_s": 1}}
    unknown = StreamConfig(
        kafka={"bootstrap": "unused:9092", "topics": [{"name": "a", "format": "arow"}]}, **config
    )
    with pytest.raises(Failure, match=r"kafka\.topics\[a\]\.format: unknown message format 'arow'"):
        require_parts(unknown)


def test_a_format_declares_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class PaddedOptions(Section):
        """Options of a format of another package."""

        padding: int = Field(0, ge=0, le=8, description="Bytes before the object.")

    class Padded(JsonFormat):
        """JSON after some bytes."""

        name = "padded"
        Options = PaddedOptions

    monkeypatch.setattr(FORMATS, "registered", {**FORMATS.registered, "padded": Padded})
    kafka = Kafka(bootstrap="unused:9092", topics=[Topic(name="edges")])

    def padding(**params: object) -> int:
        topic = Topic(name="edges", format="padded", format_params=params)
        return create_format(topic, kafka, "int").options.padding  # type: ignore[no-any-return]

    assert (padding(), padding(padding=3)) == (0, 3)
    for params, sentence in (
        ({"padding": 9}, "padding: must be at most 8, found 9"),
        ({"paddings": 1}, "unknown key paddings. Did you mean padding?"),
    ):
        with pytest.raises(
            Failure, match=re.escape(f"kafka.topics[edges].format: format_params of padded: {sentence}")
        ):
            padding(**params)
    plain = Topic(name="edges", format="json", format_params={"padding": 1})
    with pytest.raises(Failure, match=r"format_params of json: unknown key padding\. It has none"):
        create_format(plain, kafka, "int")


def test_formats_are_compared_by_name_nowhere() -> None:
    package = Path(__file__).parents[4]
    files = [file for folder in ("schemas", "stream", "trainer") for file in (package / folder).rglob("*.py")]
    compared = re.compile(r"""(?<!\bform) [=!]= ["'](json|arrow|avro|debezium)["']""")  # a log has a form
    found = [
        str(file.relative_to(package)) for file in files if compared.search(file.read_text(encoding="utf-8"))
    ]
    assert found == ["stream/store/compact/index_files.py"], "that one is a file's suffix"
