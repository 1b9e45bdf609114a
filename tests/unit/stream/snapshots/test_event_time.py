"""Event time: snapshots, the watermark, idle partitions, lateness, order and the split into snapshots."""

import numpy as np
import pyarrow as pa
import pytest
from log_events import SECOND

from freshet_graph.stream.snapshots.event_time import EventClock, closed_by, place
from freshet_graph.stream.snapshots.sealing import Run, runs_of, split_snapshots

A, B = ("a", 0), ("b", 0)


def clock(out_of_orderness_s: float = 0, idle_timeout_s: float = 30) -> EventClock:
    return EventClock(out_of_orderness_us=round(out_of_orderness_s * SECOND), idle_timeout_s=idle_timeout_s)


def hear(
    of: EventClock,
    key: tuple[str, int],
    max_t_us: int | None = None,
    *,
    unread: bool = False,
    now: float = 0,
    quiet: tuple[float, float] = (0, 0),
) -> None:
    of.hear(
        key,
        max_t_us=max_t_us,
        messages=max_t_us is not None,
        quiet=None if unread else quiet,
        now_s=now,
    )


def test_intervals_are_half_open_and_aligned_to_the_epoch() -> None:
    tau, late = place(np.array([-1, 0, 9, 10, -10, -11]), 10, None)
    assert tau.tolist() == [-1, 0, 0, 1, -1, -2]
    assert not late.any()


def test_an_event_of_a_closed_snapshot_is_late_and_goes_to_the_first_open_one() -> None:
    tau, late = place(np.array([5, 19, 20, 45]), 10, 1)
    assert late.tolist() == [True, True, False, False]
    assert tau.tolist() == [2, 2, 2, 4]


@pytest.mark.parametrize(("watermark", "last"), [(0, -1), (9, -1), (10, 0), (19, 0), (20, 1), (-1, -2)])
def test_a_snapshot_is_closed_when_the_watermark_reaches_its_end(watermark: int, last: int) -> None:
    assert closed_by(watermark, 10) == last


def test_the_slowest_partition_holds_the_watermark() -> None:
    event_clock = clock(out_of_orderness_s=2)
    event_clock.assign([A, B])
    hear(event_clock, A, 100 * SECOND, unread=True)
    assert event_clock.watermark_us() is None, "b may still bring anything"
    hear(event_clock, B, 50 * SECOND, unread=True)
    assert event_clock.watermark_us() == 48 * SECOND


def test_the_watermark_never_goes_back() -> None:
    event_clock = clock()
    hear(event_clock, A, 100, unread=True)
    assert event_clock.watermark_us() == 100
    hear(event_clock, B, 7, unread=True)
    assert event_clock.watermark_us() == 100


def test_a_partition_with_unread_messages_is_never_idle() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, unread=True)
    hear(event_clock, B, 50, unread=True)
    hear(event_clock, B, unread=True, now=1e6)
    assert event_clock.watermark_us() == 50


def test_a_partition_with_nothing_unread_is_left_out_after_the_timeout() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, unread=True)
    hear(event_clock, B, 50, now=0)
    for now in (9, 18, 27, 29.9):
        hear(event_clock, B, now=now)
    assert event_clock.watermark_us() == 50
    hear(event_clock, B, now=30)
    assert event_clock.watermark_us() == 100
    hear(event_clock, B, 60, now=31)
    hear(event_clock, A, 140, unread=True, now=31)
    assert event_clock.watermark_us() == 100, "b is back and holds it where it is"


def test_a_partition_looked_at_seldom_is_idle_by_what_brokers_said_in_between() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, unread=True)
    hear(event_clock, B, 50, now=0)
    hear(event_clock, B, now=200, quiet=(200, 3))
    assert event_clock.watermark_us() == 100


def test_messages_without_events_begin_the_idle_time_anew() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, unread=True)
    hear(event_clock, B, 50, now=0)
    hear(event_clock, B, now=25, quiet=(25, 0))
    event_clock.hear(B, max_t_us=None, messages=True, quiet=(0, 0), now_s=26)
    hear(event_clock, B, now=35, quiet=(9, 0))
    assert event_clock.watermark_us() == 50


def test_a_partition_that_never_had_an_event_holds_the_watermark_until_it_is_idle() -> None:
    event_clock = clock(idle_timeout_s=30)
    event_clock.assign([A, B])
    hear(event_clock, A, 100, unread=True)
    hear(event_clock, B, now=34, quiet=(29, 0))
    assert event_clock.watermark_us() is None
    hear(event_clock, B, now=35, quiet=(30, 0))
    assert event_clock.watermark_us() == 100


def test_when_all_are_idle_the_latest_event_alone_holds_the_watermark() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, now=0)
    hear(event_clock, B, 50, now=0)
    for key in (A, B):
        hear(event_clock, key, now=29, quiet=(29, 0))
    assert event_clock.all_idle_s() is None
    for key in (A, B):
        hear(event_clock, key, now=37, quiet=(37, 0))
    assert event_clock.watermark_us() == 100
    assert event_clock.all_idle_s() == 7


def test_brokers_that_do_not_answer_make_nothing_idle_and_the_time_begins_anew_after_them() -> None:
    event_clock = clock(idle_timeout_s=30)
    for key, t in ((A, 100), (B, 50)):
        hear(event_clock, key, t, now=0)
        hear(event_clock, key, now=20, quiet=(20, 0))
    for now in (25, 100, 1000):  # the last answer was at 20
        for key in (A, B):
            hear(event_clock, key, now=now, quiet=(now, now - 20))
    assert (event_clock.all_idle_s(), event_clock.watermark_us()) == (None, 50)
    for key in (A, B):
        hear(event_clock, key, now=1001, quiet=(0, 0))
    assert event_clock.all_idle_s() is None, "producers had no broker either: give them the time again"
    for key in (A, B):
        hear(event_clock, key, now=1031, quiet=(30, 0))
    assert event_clock.all_idle_s() == 0


def test_idle_time_goes_on_over_a_new_reader() -> None:
    event_clock = clock(idle_timeout_s=30)
    hear(event_clock, A, 100, now=0)
    hear(event_clock, A, now=25, quiet=(25, 1))
    hear(event_clock, A, now=32, quiet=(1, 0))  # its reader knows of the last second only
    assert event_clock.all_idle_s() == 2


def test_a_partition_that_is_no_longer_read_lets_go_of_the_watermark() -> None:
    event_clock = clock()
    event_clock.restore(A, 100)
    event_clock.restore(B, 50)
    assert event_clock.watermark_us() == 50
    event_clock.assign([A])
    assert event_clock.watermark_us() == 100


def test_without_partitions_there_is_no_watermark_and_nothing_is_idle() -> None:
    assert clock().watermark_us() is None
    assert clock().all_idle_s() is None


def rows(*events: tuple[int, int, str, int]) -> pa.Table:
    """(tau, t, topic, partition), in order of arrival; ``label`` says which row it was."""
    tau, t, topic, partition = zip(*events, strict=True)
    return pa.table(
        {
            "t": pa.array(t, pa.int64()),
            "label": pa.array(range(len(t)), pa.int32()),
            "topic": pa.array(topic).dictionary_encode(),
            "partition": pa.array(partition, pa.int32()),
            "offset": pa.array(range(len(t)), pa.int64()),
            "tau": pa.array(tau, pa.int64()),
        }
    )


def labels(table: pa.Table, through: int) -> list[tuple[int, list[int]]]:
    runs = (run.select(["t", "label"]) for run in runs_of(table, through))
    return [(tau, part["label"].to_pylist()) for tau, part in split_snapshots(runs, through)]


def test_events_are_ordered_by_time_then_topic_then_partition_then_arrival() -> None:
    table = rows(
        (0, 5, "b", 0), (0, 5, "a", 10), (0, 5, "a", 2), (0, 4, "z", 0), (0, 5, "a", 2), (0, 5, "b", 0)
    )
    assert labels(table, 0) == [(0, [3, 2, 4, 1, 0, 5])]


def test_only_closed_snapshots_are_split_off_and_a_late_event_is_ordered_by_its_own_time() -> None:
    table = rows((3, 35, "a", 0), (1, 12, "a", 0), (4, 41, "a", 0), (3, 2, "a", 0), (1, 11, "a", 0))
    assert labels(table, 3) == [(1, [4, 1]), (3, [3, 0])]
    assert labels(table, 0) == []


def test_chunks_with_different_dictionaries_of_topics_are_ordered_by_topic() -> None:
    one, other = rows((0, 1, "b", 0), (0, 1, "a", 1)), rows((0, 1, "c", 0), (0, 1, "a", 0), (0, 1, "b", 0))
    assert labels(pa.concat_tables([one, other]), 0) == [(0, [1, 1, 0, 2, 0])]


def test_what_is_later_than_a_snapshot_stays_in_order_of_arrival() -> None:
    tau = np.array([3, 1, 4, 3])
    run = Run.of(("a", 0), tau, pa.table({"label": range(4)}))
    assert run.after(None) is run.after(0) is run
    assert run.after(4) is None
    later = run.after(1)
    assert later is not None
    assert (later.tau.tolist(), later.events["label"].to_pylist()) == ([3, 4, 3], [0, 2, 3])
    assert (later.min_tau, later.max_tau) == (3, 4)
