"""This host's clock against what others know of the present."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from decoding import poll

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.job.decoding import Decoding
from freshet_graph.stream.kafka.broker_clock import Between
from freshet_graph.stream.kafka.present import ASK_S, Present
from freshet_graph.stream.microbatch import Quiet, RawBatch
from freshet_graph.stream.service.failure import Failure

NOW_S, IN_2001, IN_2050 = 1_800_000_000, 1_000_000_000, 2_530_000_000
LIVE = b'{"src":1,"dst":2,"t":%d}' % NOW_S


class Host:
    """A host whose clocks stand where a test says, and its witnesses."""

    def __init__(self, wall_s: float, **config: Any) -> None:
        self.wall_s, self.elapsed_s = float(wall_s), 5.0
        self.brokers_s: float | None = None
        self.committed_s: float | None = None
        self.asked = 0
        kafka = {"bootstrap": "unused:9092", "topics": [{"name": "edges"}]}
        self.config = StreamConfig(
            graph="g", store="unused", kafka=kafka, snapshots={"interval_s": 60}, **config
        )
        self.present = Present(
            self.config, wall_us=lambda: round(self.wall_s * US_PER_S), elapsed_s=lambda: self.elapsed_s
        )
        self.present.ask_too(self._brokers, self._last)
        self.shown: list[float] = []
        self.waits = 0

    def _brokers(self) -> Between | None:
        self.asked += 1
        if self.brokers_s is None:
            return None
        told_us = round(self.brokers_s * US_PER_S)
        return Between(told_us, told_us + 50_000)

    def _last(self) -> Any:
        return self.committed_s and SimpleNamespace(wall_time_us=round(self.committed_s * US_PER_S))

    def passes(self, seconds: float) -> None:
        self.wall_s, self.elapsed_s = self.wall_s + seconds, self.elapsed_s + seconds
        if self.brokers_s is not None:
            self.brokers_s += seconds


def raw(*values: bytes, stamped_s: float = 0) -> RawBatch:
    return replace(poll(list(values)), stamped_us=round(stamped_s * US_PER_S))


@pytest.mark.parametrize("by_s", [-86_400, -301, 301, 86_400 * 9_000])
def test_the_brokers_clock_decides(by_s: float) -> None:
    host = Host(NOW_S + by_s)
    host.brokers_s = NOW_S
    reason = host.present.check(raw(LIVE))
    assert reason is not None and reason == host.present.reason
    assert ("ahead of" if by_s > 0 else "behind") + " the brokers' clock (2027-01-15T08:00:00Z)" in reason
    assert "time_skew_s (300 s). Nothing is read until the clock is right" in reason
    assert host.present.error_s == pytest.approx(by_s, abs=1)


@pytest.mark.parametrize("by_s", [-299, 0, 299])
def test_within_the_skew_a_clock_is_believed_and_the_newest_time_counts(by_s: float) -> None:
    host = Host(NOW_S + by_s)
    host.brokers_s = NOW_S
    assert host.present.check(raw(LIVE)) is None
    assert host.present.now_us() == (NOW_S + max(by_s, 0)) * US_PER_S
    assert host.present.error_s == 0


def test_a_record_that_a_broker_gave_its_time_can_say_that_a_clock_is_behind() -> None:
    host = Host(NOW_S - 400)
    assert host.present.check(raw(LIVE, stamped_s=NOW_S - 200)) is None
    assert host.present.now_us() == (NOW_S - 200) * US_PER_S
    assert "behind a record that a broker gave its time" in (
        host.present.check(raw(LIVE, stamped_s=NOW_S)) or ""
    )
    host.passes(200)  # the others' clocks go on, too
    assert host.present.check(raw(LIVE)) is not None
    host.wall_s = NOW_S + 200
    assert host.present.check(raw(LIVE)) is None


def test_the_last_commit_can_say_that_a_clock_is_behind() -> None:
    host = Host(NOW_S)
    host.committed_s = NOW_S + 301
    assert "behind the log's last commit (2027-01-15T08:05:01Z)" in (host.present.check(raw()) or "")


def test_a_clock_of_2001_is_found_out_without_any_witness() -> None:
    assert "2001-09-09T01:46:40Z" in (Host(IN_2001).present.check(raw(LIVE)) or "")


def test_where_the_brokers_tell_their_time_a_commit_of_the_future_is_a_mistake_of_who_made_it() -> None:
    host = Host(NOW_S)
    host.committed_s, host.brokers_s = IN_2050, NOW_S
    assert host.present.check(raw(LIVE, stamped_s=IN_2050)) is None
    assert host.present.now_us() == pytest.approx(NOW_S * US_PER_S, abs=US_PER_S)


def test_a_clock_that_is_ahead_is_measured_by_the_brokers_alone() -> None:
    host = Host(NOW_S + 400)
    host.committed_s, host.brokers_s = NOW_S + 200, NOW_S
    assert "400 s ahead of the brokers' clock" in (host.present.check(raw(LIVE)) or "")


def test_what_was_told_is_asked_again_before_a_clock_is_called_wrong() -> None:
    host = Host(NOW_S)
    host.brokers_s = NOW_S
    assert host.present.check(raw(LIVE)) is None
    host.wall_s = host.brokers_s = NOW_S + 36_000  # the machine was suspended
    assert host.present.check(raw()) is None
    assert host.asked == 2


def test_the_brokers_time_goes_on_between_questions() -> None:
    host = Host(NOW_S)
    host.brokers_s = NOW_S
    assert host.present.check(raw(LIVE)) is None
    host.passes(ASK_S - 1)
    host.wall_s -= 310
    assert host.present.check(raw(LIVE)) is not None


def test_brokers_are_asked_at_the_begin_and_then_once_a_minute_while_messages_come() -> None:
    host = Host(NOW_S)
    host.brokers_s = NOW_S
    for _ in range(3):
        assert host.present.check(raw(LIVE)) is None
    assert host.asked == 1
    host.passes(ASK_S)
    assert host.present.check(raw()) is None
    assert host.asked == 1
    assert host.present.check(raw(LIVE)) is None
    assert host.asked == 2


def test_an_upper_bound_of_the_configuration_needs_no_clock() -> None:
    host = Host(IN_2001, time_bounds=(0, NOW_S + 1))
    host.brokers_s = NOW_S
    assert host.present.check(raw(LIVE)) is None
    assert host.asked == 0


def never(_: float) -> bool:
    """The job is not told to stop."""
    return False


def decoding(host: Host, mended_after: int | None, *, at_s: float = NOW_S) -> Decoding:
    """Whose clock is put right after so many waits; None: the job is told to stop then."""

    def wait(seconds: float) -> bool:
        host.passes(seconds)
        host.waits += 1
        if host.waits == 3:
            host.wall_s = at_s if mended_after else host.wall_s
            return not mended_after
        return False

    return Decoding(host.config, host.present, wait, host.shown.append)


@pytest.mark.parametrize("wall_s", [IN_2001, IN_2050])
def test_a_poll_waits_for_the_clock_and_then_nothing_of_it_is_refused(wall_s: float) -> None:
    host = Host(wall_s)
    host.brokers_s = NOW_S
    whole = replace(raw(LIVE, LIVE), skipped=7, quiet=Quiet(60, 0))  # in hand, it holds event time back
    batches = list(decoding(host, 3, at_s=NOW_S + 3).batches(whole))
    assert [(b.first_offset, b.end_offset, len(b.events), len(b.rejects), b.skipped) for b in batches] == [
        *[(100, 100, 0, 0, 0)] * 3,
        (100, 104, 2, 0, 7),
    ]
    assert [batch.quiet for batch in batches] == [None, None, None, Quiet(60, 0)]
    assert [error == 0 for error in host.shown] == [False, False, False, True]
    assert batches[0].events.schema == batches[3].events.schema


def test_a_job_that_is_told_to_stop_takes_nothing_of_the_poll_in() -> None:
    host = Host(IN_2001)
    host.brokers_s = NOW_S
    batches = list(decoding(host, None).batches(raw(LIVE)))
    assert {(b.end_offset, len(b.events), len(b.rejects)) for b in batches} == {(100, 0, 0)}


def test_a_job_that_ends_by_itself_does_not_wait() -> None:
    host = Host(IN_2001)
    with pytest.raises(Failure, match="this host's clock says 2001-"):
        list(Decoding(host.config, host.present, never, host.shown.append, gives_up=True).batches(raw(LIVE)))
    assert host.shown[0] < 0


def test_events_of_the_future_are_refused_by_the_newest_time_that_is_known() -> None:
    host = Host(NOW_S - 200)
    host.brokers_s = NOW_S
    late, early = (b'{"src":1,"dst":2,"t":%d}' % (NOW_S + more) for more in (299, 302))
    (batch,) = Decoding(host.config, host.present, never, host.shown.append).batches(raw(late, early))
    assert (len(batch.events), batch.rejects["reason"].to_pylist()) == (1, ["time_out_of_bounds"])
    assert isinstance(batch.events, pa.RecordBatch)
