"""Topics that are held: nothing of them can be read for a reason that a key of the configuration mends."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import Reason
from freshet_graph.schemas.store import Key, Position
from freshet_graph.stream.decode.arrow import NOT_ARROW
from freshet_graph.stream.decode.formats.avro import NOT_AVRO
from freshet_graph.stream.decode.formats.protobuf_schema import NOT_PROTOBUF
from freshet_graph.stream.decode.formats.registered import UNKNOWN_SCHEMA
from freshet_graph.stream.decode.json_messages import NOT_JSON
from freshet_graph.stream.microbatch import MicroBatch

HOLD_MESSAGES = 100
"""A topic is held if the first so many messages read are all refused. Fewer may be a few bad ones at its begin."""

STRAYS = 10
"""So many of them may have other reasons: real topics have odd messages. The others have one that a key mends."""

MENDED_BY: Mapping[str, str] = {
    Reason.MISSING_FIELD: "kafka.topics.fields",
    Reason.WRONG_TYPE: "kafka.topics.fields",
    Reason.BAD_ID: "ids",
    Reason.UNKNOWN_OP: "kafka.topics.ops",
    Reason.FEATURE_WIDTH: "features.edge",
    Reason.TIME_OUT_OF_BOUNDS: "kafka.topics.time_unit",
    Reason.TOO_LARGE: "kafka.max_message_bytes",
    NOT_JSON: "kafka.topics.format",
    NOT_ARROW: "kafka.topics.format",
    NOT_AVRO: "kafka.topics.format",
    NOT_PROTOBUF: "kafka.topics.format",
    UNKNOWN_SCHEMA: "kafka.schema_registry.url",
}
"""The key that mends a reason, unless the refusal's sentence names another."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """Why a topic is held.

    Attributes:
        name: The topic.
        messages: How many of the first are refused for this reason.
        reason: Why, as in dead letters.
        key: Of the configuration, that mends it.
        example: Place and sentence of the first refusal.
    """

    name: str
    messages: int
    reason: str
    key: str
    example: str

    def __str__(self) -> str:
        return (
            f"topic {self.name} is held: its first {HOLD_MESSAGES} messages are refused, {self.messages} of them for "
            f"{self.reason}. The first is {self.example}. Correct {self.key} and start again: the topic is then read from "
            "where it began. If the messages are wrong, not the key, hold: false for the topic makes them dead letters"
        )


@dataclass(slots=True)
class _Suspect:
    """A topic without an accepted event so far.

    Attributes:
        passed: Refused messages that were passed on, by reason.
        first: The first refusal for each reason.
        waiting: Batches of others.
        since_s: When the first of them came.
    """

    passed: Counter[str] = field(default_factory=Counter)
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    waiting: list[MicroBatch] = field(default_factory=list)
    since_s: float = 0.0


class HeldTopics:
    """Between decoding and the log: keeps back topics that the configuration can't read, and passes on everything else.

    A topic is under suspicion from its first message until an event of it is accepted, or more than ``STRAYS`` messages are
    refused for other reasons than the most frequent one that a key mends: then it is passed on for ever. Meanwhile its batches
    wait for each other, at most ``commit_every_s``, and fewer than ``HOLD_MESSAGES`` are passed on as they are. The first
    ``HOLD_MESSAGES`` in the order of reading decide, of all partitions together, whatever the same poll has after them. A held
    topic stays held until the job is started again, and its offsets are not committed.

    Args:
        config: Of the stream.
        positions: Of the log, when the job starts. A topic of which it has an event is never held, nor a label topic that it
            has read from.
        clock: Seconds.

    Attributes:
        by_name: The held topics by name.
    """

    def __init__(
        self,
        config: StreamConfig,
        positions: Mapping[Key, Position],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.by_name: dict[str, HeldTopic] = {}
        self._patience_s, self._clock = config.snapshots.commit_every_s, clock
        self._kafka = config.kafka
        self._passing = {
            topic
            for (topic, _), position in positions.items()
            if position.max_t_us is not None or (position.next and self._kafka.has_labels(topic))
        }
        self._suspects: dict[str, _Suspect] = {}

    def begin(self) -> None:
        """Reading resumes where the log ends: what waits here is read again."""
        for suspect in self._suspects.values():
            suspect.waiting = []

    def passed(self, batch: MicroBatch) -> list[MicroBatch]:
        """The batches to take in now that this one came, in order."""
        suspect = self._suspect(batch.topic)
        if suspect is None:
            return [batch]
        if batch.topic in self.by_name:
            return []
        counted = suspect.passed + sum(map(_reasons, suspect.waiting), Counter())
        decisive = _messages(batch)[: HOLD_MESSAGES - counted.total()]
        counted += Counter(decisive["reason"].to_pylist())
        rows = batch.events if batch.labels is None else batch.labels
        enough, accepted = counted.total() == HOLD_MESSAGES, rows.num_rows > 0
        if enough:  # what comes after the last of them decides nothing
            accepted = pc.any(pc.less_equal(rows["offset"], decisive["offset"][-1])).as_py() or False
        for reject in decisive.to_pylist():
            suspect.first.setdefault(reject["reason"], reject)
        mended = {reason: count for reason, count in counted.items() if reason in MENDED_BY}
        reason = max(mended, key=mended.__getitem__, default="")
        if accepted or counted.total() - mended.get(reason, 0) > STRAYS:
            self._passing.add(batch.topic)
            return [*self._suspects.pop(batch.topic).waiting, batch]
        if not len(decisive) and not any(w.partition == batch.partition for w in suspect.waiting):
            return [batch] if not self._due(suspect) else [*self._released(suspect), batch]
        suspect.since_s = suspect.since_s if suspect.waiting else self._clock()
        suspect.waiting.append(batch)
        if enough:
            suspect.waiting = []
            self._hold(batch.topic, suspect.first[reason], mended[reason])
            return []
        return self._released(suspect) if self._due(suspect) else []

    def rest(self) -> list[MicroBatch]:
        """What waits: too few messages to hold their topics."""
        return [batch for suspect in self._suspects.values() for batch in self._released(suspect)]

    def _suspect(self, name: str) -> _Suspect | None:
        topic = self._kafka.topic_of(name)
        if name in self._passing or topic is None or not topic.hold:
            return None
        return self._suspects.setdefault(name, _Suspect())

    def _due(self, suspect: _Suspect) -> bool:
        return bool(suspect.waiting) and self._clock() - suspect.since_s >= self._patience_s

    def _released(self, suspect: _Suspect) -> list[MicroBatch]:
        released, suspect.waiting = suspect.waiting, []
        suspect.passed += sum(map(_reasons, released), Counter())
        return released

    def _hold(self, topic: str, first: dict[str, Any], messages: int) -> None:
        reason, sentence = first["reason"], first["sentence"]
        example = f"{topic}[{first['partition']}] offset {first['offset']}: {sentence}"
        held_topic = HeldTopic(topic, messages, reason, _key(reason, sentence), example)
        self.by_name = self.by_name | {topic: held_topic}
        _log.error(
            "topic held", topic=topic, reason=reason, key=held_topic.key, messages=messages, example=example
        )


def _messages(batch: MicroBatch) -> pa.RecordBatch:
    """The first refusal of each refused message, of which several rows may be refused."""
    _, first = np.unique(batch.rejects["offset"].to_numpy(), return_index=True)
    return batch.rejects.take(pa.array(np.sort(first)))


def _reasons(batch: MicroBatch) -> Counter[str]:
    return Counter(_messages(batch)["reason"].to_pylist())


def _key(reason: str, sentence: str) -> str:
    named = re.search(r"config key ([\w.]*\w)", sentence)
    if named is not None:
        return named[1]
    if reason == Reason.WRONG_TYPE and re.match(r"((column|field) )?t\b", sentence):
        return "kafka.topics.time_unit"
    return MENDED_BY[reason]
