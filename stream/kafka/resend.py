"""Refused messages once more into their topics, as they lie in Kafka, for a stream that now can read them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.kafka.client import client_settings, connected, kafka_failures
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.kafka.topics import producer_to
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader

SILENT_S = 30.0
"""How long a partition may give nothing before the command gives up."""

NEAR = 1000
"""Messages between two refused ones that are read over; beyond that the consumer seeks."""


@dataclass(frozen=True, slots=True)
class Resent:
    """The result of a call.

    Attributes:
        sent: Messages that the brokers have acknowledged.
        gone: Messages that Kafka no longer has.
        partly: Messages of which some rows were taken; they are left out, because the others would be in the log twice.
    """

    sent: int
    gone: int
    partly: int


def refused_messages(log: LogReader, kafka: Kafka, reasons: Sequence[str]) -> pa.Table:
    """The kept refusals of the topics that are read, ``REJECT_SCHEMA``, for some reasons or, without any, for all."""
    tables = [REJECT_SCHEMA.empty_table()]
    for n in log.with_rejects:
        reference = read_record(log.root / commit_name(n), CommitRecord).rejects
        assert reference is not None, "the commits listed have rejects"
        tables.append(read_table(log.root, reference, schema=REJECT_SCHEMA))
    refused = pa.concat_tables(tables)
    topics = [name for name in refused["topic"].unique().to_pylist() if kafka.topic_of(name) is not None]
    chosen = pc.is_in(refused["topic"], pa.array(topics, pa.string()))
    if reasons:
        chosen = pc.and_(chosen, pc.is_in(refused["reason"], pa.array(reasons, pa.string())))
    return refused.filter(chosen)


def resend(
    kafka: Kafka,
    refused: pa.Table,
    to: str | None,
    progress: Callable[[int, int], None] = lambda done, messages: None,
) -> Resent:
    """Send refused messages again, with their keys, headers and timestamps.

    Args:
        kafka: The stream's section.
        refused: ``REJECT_SCHEMA``.
        to: Another topic, whose partitions follow from the keys; None: each message's own topic and partition.
        progress: Called with the messages done, and all of them.

    Raises:
        Failure: No broker answers, or a topic can be neither read nor written.
    """
    greet(kafka, "sending refused messages again")
    is_row = refused["row"].is_valid()
    places = _places(refused.filter(pc.invert(is_row)))
    partly = sum(map(len, _places(refused.filter(is_row)).values()))
    messages, done, sent, gone = sum(map(len, places.values())), 0, 0, 0
    settings = client_settings(kafka) | {"enable_auto_commit": False, "metrics_enabled": False}
    with ExitStack() as stack, kafka_failures(kafka.bootstrap, "sending refused messages again", "Read"):
        consumer = stack.enter_context(closing(connected(KafkaConsumer, settings)))
        producers: dict[str, KafkaProducer] = {}
        for (topic, partition), offsets in places.items():
            target = to or topic
            if target not in producers:
                producers[target] = stack.enter_context(closing(producer_to(kafka, target, 1)))
            futures = []
            for record in _records(consumer, TopicPartition(topic, partition), offsets):
                done += 1
                if record is None:
                    gone += 1
                else:
                    same_partition = {} if to else {"partition": partition}
                    futures.append(
                        producers[target].send(
                            target,
                            record.value,
                            key=record.key,
                            headers=list(record.headers),
                            timestamp_ms=record.timestamp,
                            **same_partition,
                        )
                    )
                progress(done, messages)
            producers[target].flush(timeout=SILENT_S)
            for future in futures:
                future.get(timeout=SILENT_S)
            sent += len(futures)
    return Resent(sent, gone, partly)


def _places(refused: pa.Table) -> dict[tuple[str, int], list[int]]:
    """Offsets of distinct messages, ascending, by topic and partition."""
    places: dict[tuple[str, int], set[int]] = {}
    for topic, partition, offset in zip(
        *(refused[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True
    ):
        places.setdefault((topic, partition), set()).add(offset)
    return {key: sorted(offsets) for key, offsets in sorted(places.items())}


def _records(consumer: Any, place: TopicPartition, offsets: Sequence[int]) -> Iterator[Any]:
    """The record at each offset, ascending; None where Kafka has none any more."""
    consumer.assign([place])
    begin, end = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
    waiting = np.array(offsets)
    yield from [None] * int(np.count_nonzero((waiting < begin) | (waiting >= end)))
    wanted = [offset for offset in offsets if begin <= offset < end]
    position, until_s = -NEAR, time.monotonic() + SILENT_S
    while wanted:
        if not 0 <= wanted[0] - position < NEAR:
            consumer.seek(place, wanted[0])
        records = consumer.poll(timeout_ms=1000).get(place, [])
        by_offset = {record.offset: record for record in records}
        position = max(consumer.position(place), max(by_offset, default=-1) + 1)
        if position > wanted[0]:
            until_s = time.monotonic() + SILENT_S
        elif time.monotonic() > until_s:
            raise Failure(
                f"topic {place.topic}, partition {place.partition}: nothing came from offset {wanted[0]} on for {SILENT_S:g} "
                "seconds. Look after the brokers, then call this again"
            )
        while wanted and wanted[0] < position:
            yield by_offset.get(wanted.pop(0))
