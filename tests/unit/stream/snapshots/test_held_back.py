"""Which topic partition holds event time back, and since when: none that is merely quiet, or on its way."""

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.readiness import readiness
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.snapshots.event_time import EventClock, Held, HoldingWatch, OpenEventTime

SECOND = 1_000_000
INTERVAL = 10 * SECOND
A, B, C = ("edges", 0), ("edges", 1), ("edges", 2)
IDLE_S = 30.0


class Partitions:
    """An event clock with its watch; ``hear`` is a poll of a partition."""

    def __init__(self, *keys: tuple[str, int]) -> None:
        self.clock = EventClock(out_of_orderness_us=0, idle_timeout_s=IDLE_S)
        self.clock.assign(keys)
        self.watch = HoldingWatch(INTERVAL, IDLE_S)

    def hear(
        self, key: tuple[str, int], now_s: float, t_s: float | None = None, *, quiet: bool = False
    ) -> None:
        t_us = None if t_s is None else round(t_s * SECOND)
        since = (0.0, 0.0) if quiet else None
        self.clock.hear(key, max_t_us=t_us, messages=t_s is not None, quiet=since, now_s=now_s)

    def look(self, now_s: float, min_tau: int | None = 0) -> OpenEventTime:
        return self.watch.look(self.clock, min_tau, now_s)


def test_a_partition_that_stands_still_is_told_with_its_age_and_how_far_it_is_behind() -> None:
    here = Partitions(A, B)
    here.hear(A, 0.0, 3)
    here.hear(B, 0.0, 2)
    assert here.look(0.0) == OpenEventTime(INTERVAL, None), "nobody is beyond the snapshot's end"
    here.hear(A, 100.0, 50)
    assert here.look(100.0).holder is None, "for twice the idle timeout it may be nothing"
    assert here.look(159.0).holder is None
    assert here.look(160.0).holder == Held(*B, 60.0, 48.0)
    here.hear(A, 200.0, 90)
    assert here.look(200.0).holder == Held(*B, 100.0, 88.0)


def test_its_age_begins_anew_when_it_moves_and_ends_when_the_snapshot_can_be_sealed() -> None:
    here = Partitions(A, B)
    here.hear(A, 0.0, 50)
    here.hear(B, 0.0, 2)
    here.look(0.0)
    here.hear(B, 100.0, 3)
    assert here.look(100.0).holder is None
    assert here.look(160.0).holder == Held(*B, 60.0, 47.0)
    here.hear(B, 170.0, 10)
    assert here.look(170.0) == here.look(240.0) == OpenEventTime(INTERVAL, None)
    assert here.look(171.0, min_tau=None) == OpenEventTime(None, None)
    assert here.look(172.0).holder is None


def test_one_that_was_never_heard_of_holds_and_goes_before_one_that_is_behind() -> None:
    here = Partitions(A, B, C)
    here.hear(A, 0.0, 50)
    here.hear(B, 0.0, 2)
    here.look(0.0)
    assert here.look(60.0).holder == Held(*C, 60.0, None)


def test_an_idle_partition_is_not_taken_for_the_one_that_holds() -> None:
    here = Partitions(A, B, C)
    here.hear(C, 0.0, 5)
    here.hear(B, 0.0, 2)
    for now_s in range(0, 200, 5):
        here.hear(A, now_s, 50 + now_s)
        here.hear(B, now_s, quiet=True)
        held = here.look(now_s).holder
    assert held is not None
    assert held.key == C


def test_a_quiet_partition_is_never_told_it_becomes_idle_first() -> None:
    here = Partitions(A, B)
    here.hear(B, 0.0, 2)
    for now_s in range(0, 300, 5):
        here.hear(A, now_s, 50 + now_s)
        here.hear(B, now_s, quiet=True)
        assert here.look(now_s).holder is None


def test_one_whose_messages_keep_coming_without_its_time_moving_is_told_with_another_remedy(
    monkeypatch, clean_environment
) -> None:  # type: ignore[no-untyped-def]
    here = Partitions(A, B)
    for now_s in range(0, 130, 5):
        here.hear(A, now_s, 50 + now_s)
        here.hear(B, now_s, 2, quiet=True)
        held = here.look(now_s)
    assert held.holder is not None
    config = StreamConfig(
        graph="g",
        store="/",
        kafka={"bootstrap": "b:1", "topics": [{"name": "edges"}]},
        snapshots={"interval_s": 110, "idle_timeout_s": IDLE_S},
    )
    metrics = StreamMetrics(config)
    not_ready = readiness(config, metrics, lambda: None)
    now_s = 1_000.0
    monkeypatch.setattr("freshet_graph.stream.metrics.time.time", lambda: now_s)
    assert not_ready() is None
    metrics.open_event_time(OpenEventTime(INTERVAL, Held(*B, 100.0, 9.0)))
    assert not_ready() is None, "less than an interval"
    metrics.open_event_time(held)
    told = not_ready()
    assert told is not None
    assert "topic edges partition 1 has held event time back for 2 min" in told
    assert "Check its producer" in told
    assert "snapshots.idle_timeout_s (30 s)" in told
    now_s += 600  # the loop stands still: the age goes on
    assert "12 min" in (not_ready() or "")
    metrics.lag({("edges", 1): 7})
    assert "its 7 unread messages do not arrive" in (not_ready() or "")
    metrics.open_event_time(OpenEventTime(INTERVAL, None))
    assert not_ready() is None
    assert metrics.registry.get_sample_value("freshet_stream_ready", {"graph": "g"}) == 1


def test_looking_does_not_move_event_time() -> None:
    here = Partitions(A)
    here.hear(A, 0.0, 50)
    here.look(0.0)
    here.clock.assign([A, B])
    here.hear(B, 0.0, 2)
    assert here.clock.watermark_us() == 2 * SECOND
