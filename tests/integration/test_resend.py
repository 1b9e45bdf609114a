"""`resend`: refused messages are read again from where they lie, once the configuration can read them."""

import json
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from streaming import (
    T0,
    configuration,
    edge,
    fresh_topic,
    log_table,
    result,
    run_job,
    send,
    settings,
    triples,
    written,
)

pytestmark = pytest.mark.integration


def test_refused_messages_are_sent_again_and_taken_once_their_fields_are_known(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka, partitions=2)
    other = [json.dumps({"from": 100 + n, "to": n, "t": T0 + n}).encode() for n in range(8)]
    send(kafka, topic, [edge(1, 2, T0), *other[:5], b"no JSON at all"], partition=0)
    send(kafka, topic, [edge(3, 4, T0), *other[5:]], partition=1)
    config = configuration(tmp_path / "store", kafka, topic)
    ran, _ = run_job(config)
    assert (ran.events, ran.refused) == (2, 9)
    mapped = configuration(
        tmp_path / "store", kafka, {"name": topic, "fields": {"src": "from", "dst": "to", "t": "t"}}
    )
    file = written(tmp_path, mapped)
    told = result("resend", "--config", file, "--reason", "missing_field")
    assert {key: told[key] for key in ("refused", "sent", "gone", "partly")} == {
        "refused": 8, "sent": 8, "gone": 0, "partly": 0,
    }  # fmt: skip
    ran, _ = run_job(mapped)
    assert (ran.events, ran.refused) == (8, 0)
    expected = [(100 + n, n) for n in range(8)] + [(1, 2), (3, 4)]
    assert sorted((src, dst) for _, src, dst, _ in triples(log_table(tmp_path / "store"))) == sorted(expected)

    aside = f"{topic}.aside"
    admin = KafkaAdminClient(**settings(kafka))
    admin.delete_records({TopicPartition(topic, 0): 3})
    admin.close()
    told = result("resend", "--config", file, "--to", aside)
    assert (told["refused"], told["sent"], told["gone"]) == (9, 7, 2)
    consumer = KafkaConsumer(
        aside, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **settings(kafka)
    )
    values = [record.value for _, record in zip(range(7), consumer, strict=False)]
    consumer.close()
    assert sorted(values) == sorted([*other[2:], b"no JSON at all"])
