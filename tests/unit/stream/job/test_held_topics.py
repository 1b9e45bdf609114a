"""Which topics are held: those whose first 100 messages are refused, nearly all for one reason that a key mends."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from log_events import SECOND, Clock, event, poll, stream_config

from freshet_graph.schemas.events import REJECT_SCHEMA, Reason
from freshet_graph.schemas.store import Position
from freshet_graph.stream.job.held_topics import HOLD_MESSAGES, STRAYS, HeldTopics
from freshet_graph.stream.microbatch import MicroBatch

CONFIG = stream_config("store")
TOPIC = CONFIG.kafka.topics[0].name


def refused(
    count: int,
    *,
    first: int = 0,
    partition: int = 0,
    reason: str = Reason.BAD_ID,
    sentence: str = "src is 'x'",
) -> MicroBatch:
    """A poll of messages that are all refused."""
    rows = [
        {"topic": TOPIC, "partition": partition, "offset": first + i, "reason": reason, "sentence": sentence}
        for i in range(count)
    ]
    rejects = pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)
    return replace(poll(TOPIC, partition, [], first=first, end=first + count), rejects=rejects)


def accepted(first: int) -> MicroBatch:
    return poll(TOPIC, 0, [(first, [event(1, 2, SECOND)])], first=first, end=first + 1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topics(clock: Clock) -> HeldTopics:
    return HeldTopics(CONFIG, {}, clock=clock)


def passed(topics: HeldTopics, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
    return [one for batch in batches for one in topics.passed(batch)]


def test_a_hundred_in_two_partitions_are_enough_and_one_less_is_not(topics: HeldTopics) -> None:
    some = [refused(50), refused(HOLD_MESSAGES - 51, partition=1)]
    assert passed(topics, some) == [] and not topics.by_name
    assert topics.passed(refused(1, first=50)) == []
    held = topics.by_name[TOPIC]
    assert (held.reason, held.key) == (Reason.BAD_ID, "ids")
    assert str(held).startswith(
        f"topic {TOPIC} is held: its first 100 messages are refused, 100 of them for bad_id. The first is {TOPIC}[0] "
    )
    assert passed(topics, [accepted(51), refused(1, first=52)]) == [], "until the next start"
    assert topics.rest() == []


OTHERS = {
    "an event": accepted,
    "another reason": lambda first: refused(STRAYS + 1, first=first, reason=Reason.NOT_FINITE),
    "one that no key mends": lambda first: refused(STRAYS + 1, first=first, reason="decoder_error"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_else_comes_before_sets_it_free_for_ever_in_order(
    topics: HeldTopics, other: Callable[[int], MicroBatch]
) -> None:
    batches = [refused(60), other(60), refused(500, first=90)]
    assert passed(topics, batches) == batches
    assert not topics.by_name


def joined(*batches: MicroBatch) -> MicroBatch:
    """Polls that follow each other as one."""
    return replace(
        batches[0],
        end_offset=batches[-1].end_offset,
        events=pa.concat_batches([batch.events for batch in batches]),
        rejects=pa.concat_batches([batch.rejects for batch in batches]),
    )


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_first_hundred_decide_whatever_comes_later_in_the_same_poll(
    topics: HeldTopics, other: Callable[[int], MicroBatch]
) -> None:
    before = refused(60, partition=1)
    last = HOLD_MESSAGES - len(before.rejects)
    assert passed(topics, [before, joined(refused(last), other(last), refused(5, first=last + 20))]) == []
    assert topics.by_name[TOPIC].reason == Reason.BAD_ID
    earlier = joined(refused(last - 20), other(last - 20), refused(500, first=last))
    again = HeldTopics(CONFIG, {})
    assert passed(again, [before, earlier]) == [before, earlier]
    assert not again.by_name


def test_odd_messages_among_the_first_do_not_use_a_topic_up(topics: HeldTopics, clock: Clock) -> None:
    strays = [
        refused(1, reason=Reason.MISSING_FIELD),
        refused(STRAYS - 1, first=1, partition=1, reason="decoder_error"),
    ]
    assert passed(topics, strays) == []
    clock.now += CONFIG.snapshots.commit_every_s
    last = refused(HOLD_MESSAGES - STRAYS, first=20)
    assert topics.rest() == strays
    assert topics.passed(last) == []
    held = topics.by_name[TOPIC]
    assert (held.messages, held.reason, held.key) == (HOLD_MESSAGES - STRAYS, Reason.BAD_ID, "ids")
    assert held.example == f"{TOPIC}[0] offset 20: src is 'x'"


def test_fewer_are_passed_on_after_a_while_and_count_with_later_ones(
    topics: HeldTopics, clock: Clock
) -> None:
    first, nothing = refused(60), poll(TOPIC, 0, [], first=60, end=60)
    assert topics.passed(first) == []
    clock.now += CONFIG.snapshots.commit_every_s
    assert topics.passed(nothing) == [first, nothing]
    assert topics.passed(refused(HOLD_MESSAGES - 60, first=60)) == []
    assert TOPIC in topics.by_name


def test_what_waits_is_read_again_in_the_next_cycle_and_passed_on_at_the_end(topics: HeldTopics) -> None:
    assert topics.passed(refused(60)) == []
    topics.begin()
    again = refused(60)
    assert topics.passed(again) == []
    assert not topics.by_name, "the same messages count once"
    assert topics.rest() == [again]


def test_a_topic_of_which_the_log_has_an_event_or_that_may_not_be_held_is_passed_on() -> None:
    many = refused(HOLD_MESSAGES)
    position = Position(topic=TOPIC, partition=1, next=3, max_t_us=SECOND)
    assert HeldTopics(CONFIG, {(TOPIC, 1): position}).passed(many) == [many]
    named = [topic.model_copy(update={"hold": False}) for topic in CONFIG.kafka.topics]
    kafka = CONFIG.kafka.model_copy(update={"topics": named})
    assert HeldTopics(CONFIG.model_copy(update={"kafka": kafka}), {}).passed(many) == [many]


@pytest.mark.parametrize(
    ("reason", "sentence", "key"),
    [
        (Reason.WRONG_TYPE, "t (created_at) is '2024', expected a number", "kafka.topics.time_unit"),
        (Reason.WRONG_TYPE, "weight is 'x', expected a number", "kafka.topics.fields"),
        (Reason.FEATURE_WIDTH, "features has 2 values, but config key features.node is 0", "features.node"),
        (Reason.BAD_ID, "src is the string 'a', but ids are int64 (config key ids)", "ids"),
        (
            Reason.TIME_OUT_OF_BOUNDS,
            "t is outside (config keys time_bounds and time_skew_s)",
            "kafka.topics.time_unit",
        ),
    ],
)
def test_the_key_is_the_one_that_the_sentence_names(
    topics: HeldTopics, reason: str, sentence: str, key: str
) -> None:
    topics.passed(refused(HOLD_MESSAGES, reason=reason, sentence=sentence))
    assert topics.by_name[TOPIC].key == key
