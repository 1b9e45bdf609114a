"""Messages of every format, hostile ones too, through a real broker and one job: what decoders say of them ends up where."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from broken_format import FAULTS, NAME, BrokenFormat, asking
from hostile_formats import good, makers_of
from registry_server import confluent, serving
from streaming import configuration, fresh_topic, log_table, read_topic, run_job, send

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

MESSAGES = 250
T_MS = 1_100_000_000_000


def change(op: str, before: Any, after: Any, lsn: int) -> bytes:
    rows = {"before": before, "after": after, "op": op, "source": {"ts_ms": T_MS + lsn, "lsn": lsn}}
    return json.dumps(rows).encode()


FOLLOWS = {
    "format": "debezium",
    "fields": {"src": "after.who", "dst": "after.whom", "t": "source.ts_ms", "event_id": "source.lsn"},
}
MOVE = change("u", {"who": 1001, "whom": 1007}, {"who": 1001, "whom": 1009}, 2)
MOVES = [change("c", None, {"who": 1001, "whom": 1007}, 1), MOVE, MOVE]
OURS = (1001, 1002)
PAYMENTS = {"format": "json", "fields": {"src": "card.id", "dst": "merchant.id", "t": "created_at"}}
PAYMENT = json.dumps(
    {"card": {"id": 1002}, "merchant": {"id": 1003}, "created_at": "2004-11-09T11:33:20Z"}
).encode()


@dataclass
class Ended:
    """A job that has read everything.

    Attributes:
        told: What a decoder says of each hostile topic.
        letters: The dead-letter topic.
    """

    store: Path
    metrics: StreamMetrics
    events: int
    refused: int
    told: list[MicroBatch]
    letters: list[dict[str, Any]]

    def counted(self, series: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(series, {"graph": "test", **labels}) or 0


@pytest.fixture(scope="module")
def ended(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    store, dead = tmp_path_factory.mktemp("hostile") / "store", fresh_topic(kafka, stem="dead")
    with pytest.MonkeyPatch.context() as patch, serving() as registry:
        patch.setitem(FORMATS.registered, NAME, BrokenFormat)
        topics = [{"name": fresh_topic(kafka, stem=name), "format": name} for name in sorted(FORMATS.all())]
        moves, payments = (fresh_topic(kafka, stem=stem) for stem in ("moves", "payments"))
        content = configuration(
            store, kafka, *topics, {"name": moves, **FOLLOWS}, {"name": payments, **PAYMENTS},
            kafka={"dead_letters": dead, "schema_registry": {"url": registry.url}},
            features={"node": 4, "edge": 2}, dedup_window_s=1e9,
        )  # fmt: skip
        content["time_bounds"] = None
        config, rng = StreamConfig(**content), np.random.default_rng(7)
        decoders = {topic["name"]: Decoder(Topic(**topic), config) for topic in topics}
        messages: dict[str, list[bytes | None]] = {}
        for topic in topics:
            decoder = decoders[topic["name"]]
            makers = list(makers_of(decoder._format, registry).values())
            sent = [makers[i % len(makers)](rng) for i in range(MESSAGES)]
            if topic["format"] == NAME:
                sent[10:10] = [asking(fault) for fault in FAULTS]
            messages[topic["name"]] = [good(decoder._format, 1), *sent, good(decoder._format, 2)]
            send(kafka, topic["name"], messages[topic["name"]])
        told = []
        for name, sent in messages.items():  # once every schema is registered
            count, values = len(sent), pa.array(sent, pa.large_binary())
            raw = RawBatch(name, 0, 0, count, count, pa.array(range(count)), values)
            told.append(decoders[name].decode(raw))
        send(kafka, moves, MOVES)
        send(kafka, payments, [PAYMENT, confluent(3, PAYMENT)])
        ran, metrics = run_job(content)
    letters = [json.loads(value or b"") for _, value in read_topic(kafka, dead)]
    yield Ended(store, metrics, ran.events, ran.refused, told, letters)


def test_nothing_of_a_hostile_topic_is_lost_or_counted_twice(ended: Ended) -> None:
    events = [row for batch in ended.told for row in batch.events.to_pylist()]
    rejects = [row for batch in ended.told for row in batch.rejects.to_pylist()]
    duplicates = ended.counted("freshet_stream_duplicates_total")
    ours = len(MOVES) * 2 - 1 + 2
    assert (ended.events + duplicates, ended.refused) == (len(events) + ours, len(rejects))
    for batch in ended.told:
        assert ended.counted("freshet_stream_tombstones_total", topic=batch.topic) == batch.tombstones
        last = max(batch.events["offset"].to_pylist())
        assert last == batch.end_offset - 1, "what comes after bad messages is taken"
    assert all(letter["sentence"] for letter in ended.letters)
    keys = ("topic", "offset", "row", "reason")
    places = [sorted(str([row[key] for key in keys]) for row in rows) for rows in (ended.letters, rejects)]
    assert places[0] == places[1]
    columns = ["src", "dst", "t", "op"]
    kept = [row for row in log_table(ended.store).select(columns).to_pylist() if row["src"] not in OURS]
    assert {str(row) for row in kept} <= {str({key: row[key] for key in columns}) for row in events}
    assert len(kept) == len(events) - (duplicates - 2), "of ours, two events are repeats"
    assert not verify(ended.store).problems


def test_a_format_whose_code_raises_has_dead_letters_that_are_counted(ended: Ended) -> None:
    failed = [each for each in ended.letters if each["reason"] == "decoder_error"]
    assert len(failed) == len(FAULTS)
    (topic,) = {each["topic"] for each in failed}
    assert ended.counted("freshet_stream_refused_total", topic=topic, reason="decoder_error") == len(FAULTS)


def test_events_of_a_change_stand_or_fall_together(ended: Ended) -> None:
    """One id for both events of a move: neither is a duplicate of the other, both are of a repeat."""
    rows = [row for row in log_table(ended.store).to_pylist() if row["src"] == 1001]
    assert [(row["op"], row["dst"]) for row in rows] == [(1, 1007), (-1, 1007), (1, 1009)]


def test_times_as_rfc_3339_need_no_key(ended: Ended) -> None:
    rows = [row for row in log_table(ended.store).to_pylist() if row["src"] == 1002]
    assert [(row["dst"], row["t"]) for row in rows] == [(1003, T_MS * 1_000)] * 2
