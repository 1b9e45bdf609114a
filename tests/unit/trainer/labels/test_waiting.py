"""Events that wait for labels: each is judged once, when its label becomes visible, with its own row."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.trainer.labels.waiting import LABELS, Events, Waiting

SECOND = 1_000_000


def events(times_s, own, *, first: int = 0, stopped=()) -> Events:
    count = len(times_s)
    number = np.arange(first, first + count)
    return Events(
        src=number % 7, dst=number % 5, time_us=np.asarray(times_s, np.int64) * SECOND, given=np.asarray(own, np.int8),
        values=np.zeros((count, 1), np.float32), rows=np.zeros((count, 1, 2), np.float16), scores=np.zeros((count, 1)),
        probabilities=np.zeros((count, 1)), source=number, stopped=np.isin(number, stopped), weight=np.ones(count),
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([-1, 0, 1])), max_size=30),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 10),
)
def test_every_event_is_judged_once_when_its_label_is_visible(stream, delay_s, silent_s, interval_s) -> None:
    stream.sort(key=lambda event: event[0])
    waiting = Waiting(delay_s, silent_s, 1000)
    judged = {}
    for begin in range(0, 120, interval_s):
        now = [event for event in stream if begin <= event[0] < begin + interval_s]
        first = waiting.add(
            events(*(zip(*now, strict=True) if now else ((), ())), first=waiting.first + len(waiting))
        )
        number = np.arange(first, first + len(now))
        waiting.scored(
            first,
            np.stack([number, -number], axis=1)[:, None].astype(np.float16),
            number[:, None].astype(float),
            number[:, None] / 100,
        )
        arrived = waiting.arrive((begin + interval_s) * SECOND)
        assert (np.diff(arrived.visible_us) >= 0).all()
        taken = waiting.of(arrived.number)
        assert taken.rows[:, 0, 0].tolist() == arrived.number.tolist() == taken.scores[:, 0].tolist()
        assert taken.probabilities[:, 0].tolist() == (arrived.number / 100).tolist()
        assert arrived.given.tolist() == [
            stream[number][1] != -1 and (silent_s is None or delay_s <= silent_s)
            for number in arrived.number.tolist()
        ]
        for one, label, visible_us in zip(
            *(column.tolist() for column in (arrived.number, arrived.label, arrived.visible_us)), strict=True
        ):
            assert begin <= visible_us / SECOND < begin + interval_s
            assert one not in judged
            judged[one] = (label, visible_us // SECOND)
        undecided = [
            t for number, (t, _) in enumerate(stream) if t < begin + interval_s and number not in judged
        ]
        for _ in range(2):  # before and after events that are judged are let go of
            assert (
                waiting.judged_until_us
                == min([t * SECOND for t in undecided] or [(begin + interval_s) * SECOND]) - 1
            )
            assert waiting.unjudged == len(undecided)
            waiting.clear_judged()
    expected = {}
    for number, (t, own) in enumerate(stream):
        silent = silent_s is not None and (own == -1 or silent_s < delay_s)
        if silent or own != -1:
            expected[number] = (0, t + silent_s) if silent else (own, t + delay_s)
    assert judged == {number: what for number, what in expected.items() if what[1] < 120}
    assert waiting.forgotten == 0


def labels(*rows: tuple[str, int, int, int]) -> pa.Table:
    """Of event, label, seconds, priority."""
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    names, label, visible_s, priority = map(list, columns)
    return pa.table([names, label, [t * SECOND for t in visible_s], priority], schema=LABELS)


def test_a_label_of_a_topic_judges_its_event_and_better_or_later_ones_replace_it() -> None:
    waiting = Waiting(1000, None, 100)
    waiting.add(events([1, 2, 3], [-1, -1, 1]), pa.array(["a", "b", None]))
    arrived = waiting.arrive(
        20 * SECOND,
        labels(
            ("b", 1, 5, 1), ("a", 0, 6, 0), ("b", 0, 7, 0), ("b", 1, 8, 1), ("a", 1, 9, 0), ("b", 0, 10, 2)
        ),
    )
    assert list(zip(arrived.number.tolist(), arrived.label.tolist(), arrived.former.tolist(), strict=True)) == [
        (1, 1, -1), (0, 0, -1), (0, 1, 0), (1, 0, 1),
    ]  # fmt: skip
    assert arrived.judging.number.tolist() == [1, 0]
    assert arrived.change.tolist() == [[1, 1], [1, 0], [0, 1], [0, -1]]
    assert waiting.arrive(30 * SECOND, labels(("a", 1, 25, 5), ("b", 1, 26, 1))).number.tolist() == []
    waiting.clear_judged()
    assert (waiting.first, len(waiting)) == (2, 1)
    assert waiting.arrive(2000 * SECOND, labels()).number.tolist() == [2]


def test_a_label_waits_for_its_event_and_is_never_visible_before_it() -> None:
    waiting, other = (Waiting(0, None, 4) for _ in range(2))
    waiting.add(events([1], [-1]), pa.array(["a"]))
    early = labels(("never", 1, 2, 0), ("later", 1, 2, 0), ("über", 0, 3, 0), ("x", 0, 3, 0), ("y", 0, 4, 0))
    assert waiting.arrive(10 * SECOND, early).number.tolist() == []
    assert waiting.unknown == 1  # the oldest beyond the bound
    other.restore(waiting.state())
    for one in (waiting, other):
        one.add(events([15, 16, 17], [-1, -1, -1], first=1), pa.array(["later", None, "über"]))
        arrived = one.arrive(20 * SECOND, labels())
        assert arrived.number.tolist() == [1, 3]
        assert arrived.label.tolist() == [1, 0]
        assert arrived.visible_us.tolist() == [15 * SECOND, 17 * SECOND]


def test_beyond_its_bound_the_oldest_are_forgotten_and_counted() -> None:
    waiting = Waiting(100, None, 3)
    waiting.add(events([1, 2, 3, 4, 5], [1, 1, -1, 0, 1]))
    assert (len(waiting), waiting.first, waiting.forgotten) == (3, 2, 2)
    waiting.scored(0, np.arange(10, dtype=np.float16).reshape(5, 1, 2), *np.ones((2, 5, 1)))
    arrived = waiting.arrive(1000 * SECOND)
    assert arrived.number.tolist() == [3, 4]
    assert waiting.of(arrived.number).rows[:, 0, 0].tolist() == [6, 8]


def test_a_stopped_event_is_no_0_by_silence_but_waits_for_a_label_and_is_then_left_out() -> None:
    waiting, other = (Waiting(0, 10, 100) for _ in range(2))
    waiting.add(events([1, 2, 3, 4], [-1, -1, -1, -1], stopped=[0, 1, 2]), pa.array(["a", "b", "c", "d"]))
    assert waiting.arrive(5 * SECOND, labels(("b", 1, 4, 0))).number.tolist() == [1]
    assert waiting.judged_until_us == SECOND - 1
    other.restore(waiting.state())
    for one in (waiting, other):
        arrived = one.arrive(13 * SECOND, labels(("c", 0, 12, 0)))
        assert (arrived.number.tolist(), arrived.given.tolist()) == ([2], [True])
        assert (one.left_out, one.unjudged, one.forgotten) == (1, 1, 0)  # a; d waits
        assert one.judged_until_us == 4 * SECOND - 1
        arrived = one.arrive(20 * SECOND, labels(("a", 1, 15, 0)))  # a was not let go of yet
        assert list(zip(arrived.number.tolist(), arrived.label.tolist(), arrived.given.tolist(), strict=True)) == [
            (3, 0, False), (0, 1, True),
        ]  # fmt: skip
        assert arrived.judging.number.tolist() == [3, 0]
        one.clear_judged()
        assert (len(one), one.left_out) == (0, 1)


def test_a_stopped_event_whose_label_came_with_it_is_judged_by_that() -> None:
    waiting = Waiting(20, 10, 100)
    waiting.add(events([1, 2], [1, 1], stopped=[0]))
    arrived = [waiting.arrive(until_s * SECOND) for until_s in (15, 30)]
    assert [one.number.tolist() for one in arrived] == [[1], [0]]
    assert [one.label.tolist() for one in arrived] == [[0], [1]]  # of the second event silence came first
    assert waiting.left_out == 0


def test_a_copy_made_from_its_state_goes_on_alike() -> None:
    waiting, other = (Waiting(10, 50, 100) for _ in range(2))
    waiting.add(events([1, 2, 3], [1, -1, 0]))
    waiting.arrive(12 * SECOND)
    other.restore(waiting.state())
    for one in (waiting, other):
        one.clear_judged()
    ours, theirs = (one.arrive(99 * SECOND) for one in (waiting, other))
    assert ours.number.tolist() == theirs.number.tolist() == [2, 1]
    assert ours.label.tolist() == theirs.label.tolist() == [0, 0]


@pytest.mark.parametrize("kept", [[0, 2, 4], [1], [0, 1, 2, 3, 4, 5, 6]])
def test_ends_follow_nodes_that_were_renumbered(kept) -> None:
    waiting = Waiting(10, None, 100)
    waiting.add(replace(events([1, 2, 3], [1, 1, 1]), src=np.array([0, 2, 4]), dst=np.array([1, 1, -1])))
    waiting.keep(np.array(kept))
    ends = waiting.of(waiting.arrive(99 * SECOND).number)
    assert ends.src.tolist() == [kept.index(node) if node in kept else -1 for node in (0, 2, 4)]
    assert ends.dst.tolist() == [kept.index(node) if node in kept else -1 for node in (1, 1, -1)]
