"""Events in order of arrival: the same while they are open, after they are sealed, and from any reader."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compacted import seal
from log_events import SECOND, event, poll
from sink_job import A, B, Job

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log import arrivals as module
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify


def offered(job: Job, key: tuple[str, int], first: int, rows: list[dict[str, Any]]) -> None:
    messages = [(first + place, [row]) for place, row in enumerate(rows)]
    end = first + len(rows)
    job.sink.offer(poll(*key, messages, first=first, end=end, high_watermark=end + 1))


def written(store: Path, seed: int, look: Callable[[], object] = lambda: None, commits: int = 12) -> Job:
    """Commits of two topic partitions, out of order over several snapshots, late events and a crash among them."""
    random, job = Random(seed), Job(store, lateness_s=[0.0, 2.0, 5.0][seed % 3])
    ends, now = {A: 0, B: 0}, 0.0
    for number in range(commits):
        for key in (A, B):
            rows = []
            for _ in range(random.randrange(1, 5)):
                now += random.random()
                t = round(max(now - random.choice([0, 0, 0.5, 3.5]), 0) * SECOND)
                at = len(rows) + ends[key]
                rows.append(event(random.randrange(6), random.randrange(6), t, event_id=f"{key[1]}/{at}"))
            offered(job, key, ends[key], rows)
            ends[key] += len(rows)
        job.sink.flush()
        if number == commits // 2:
            job.restart()
        look()
    return job


def listed(arrivals: Arrivals, **until: Any) -> list[tuple[int, list[str]]]:
    return [(one.commit, one.events["event_id"].to_pylist()) for one in arrivals.new(**until)]


@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_the_same_for_open_and_for_sealed_events(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: list[tuple[int, list[str]]] = []
    followers: list[Arrivals] = []

    def look() -> None:
        if not followers:
            followers.append(Arrivals(LogReader(tmp_path)))
        live.extend(listed(followers[0]))

    job = written(tmp_path, seed, look)
    log = LogReader(tmp_path)
    assert len(log.snapshots) > 3 and len(log.open_events()), "some are sealed, others open"
    assert listed(Arrivals(log)) == live
    job.sink.seal_all()
    assert not len(LogReader(tmp_path).open_events())
    assert listed(Arrivals(LogReader(tmp_path))) == live
    monkeypatch.setattr(module, "EVENTS_AT_ONCE", 1)
    assert listed(Arrivals(LogReader(tmp_path))) == live, "read piece by piece"
    in_two = Arrivals(LogReader(tmp_path))
    half = live[len(live) // 2][0]
    assert listed(in_two, until=half) + listed(in_two) == live
    assert [ids for _, some in live for ids in some] != sorted(ids for _, some in live for ids in some)
    assert verify(tmp_path).problems == []


def test_the_events_after_a_snapshot_or_a_commit_alone(tmp_path: Path) -> None:
    job = written(tmp_path, 1)
    job.sink.seal_all()
    log = LogReader(tmp_path)
    every = listed(Arrivals(log))
    sealed_before = {
        key for snapshot in log.snapshots[:3] for key in log.events(snapshot.tau)["event_id"].to_pylist()
    }
    later = [(n, [key for key in ids if key not in sealed_before]) for n, ids in every]
    assert listed(Arrivals(log, after=2)) == [(n, ids) for n, ids in later if ids]
    assert listed(Arrivals(log, done=4)) == [(n, ids) for n, ids in every if n > 4]
    behind = Arrivals(log, done=int(log.arrivals(log.snapshots[2].tau).max()) - 1)
    assert not behind.covers(2)
    listed(behind)
    assert behind.covers(2)


def test_a_snapshot_that_was_sealed_since_the_last_look_is_not_covered(tmp_path: Path) -> None:
    """A trainer may have a checkpoint of it already: its memory has events that were not given."""
    seal(tmp_path, 0, 2)
    follower = Arrivals(LogReader(tmp_path))
    listed(follower)
    seal(tmp_path, 2, 4)
    assert follower.covers(1)
    assert not follower.covers(3)
    listed(follower)
    assert follower.covers(3)


def test_a_reader_that_is_refreshed_between_two_commits_leaves_none_out(tmp_path: Path) -> None:
    seal(tmp_path, 0, 2)
    log = LogReader(tmp_path)
    follower, given = Arrivals(log), []
    for number, arrived in enumerate(follower.new()):
        given += arrived.events["t"].to_pylist()
        if number == 0:
            seal(tmp_path, 2, 4)
            log.refresh()
    given += [t for arrived in follower.new() for t in arrived.events["t"].to_pylist()]
    every = Arrivals(LogReader(tmp_path)).new()
    assert given == [t for arrived in every for t in arrived.events["t"].to_pylist()]


def test_snapshots_that_retention_dropped_before_they_were_looked_through_are_passed_and_counted(
    tmp_path: Path,
) -> None:
    seal(tmp_path, 0, 4)
    follower = Arrivals(LogReader(tmp_path))
    assert [one.commit for one in follower.new()] == [0, 1, 2, 3]
    seal(tmp_path, 4, 12)
    compact(tmp_path, Keep(snapshots=3), always=True)
    assert ([one.commit for one in follower.new()], follower.dropped) == ([9, 10, 11], 5)
    assert Arrivals(LogReader(tmp_path), after=6).dropped == 2, "they are not in a checkpoint's memory"
    assert Arrivals(LogReader(tmp_path)).dropped == 0, "it begins with what is kept"
