"""``verify`` names messages that an older release took in twice, and finds nothing where all was taken in once."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from log_events import SECOND, Message, event, poll
from sink_job import A, B, Job

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.store import verify


class OldJob(Job):
    """A job of a release that gave a batch back though its commit was made."""

    def __init__(self, store: Path, patch: pytest.MonkeyPatch, **snapshots: Any) -> None:
        patch.setattr(LogWriter, "_require_following", lambda *_: None)
        super().__init__(store, commit_every_s=1e9, **snapshots)

    def commit_twice(self, *more: Any) -> None:
        """Commit what is pending, and again with what came since."""
        pending, before = self.sink.pending, self.sink._open
        given_back = replace(pending, events=list(pending.events))
        self.sink.flush()
        self.sink.pending, self.sink._open = given_back, before
        for messages in more:
            self.take(*messages)
        self.sink.flush()

    def take(self, key: tuple[str, int], messages: list[Message], end: int) -> None:
        first = self.sink.next_offset(key) or 0
        self.sink.offer(poll(*key, messages, first=first, end=end, high_watermark=end + 1))


def one(offset: int, second: float, *, rows: int = 1) -> Message:
    return offset, [event(offset, row, round(second * SECOND)) for row in range(rows)]


def problems(store: Path) -> list[str]:
    return [problem.removeprefix(f"{store}/") for problem in verify(store).problems]


TWICE = "the log has them twice. Read the topics into a new store"


def test_a_commit_that_took_in_what_the_one_before_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = OldJob(tmp_path, monkeypatch)
    job.take(A, [one(0, 0.1, rows=2), (1, None), one(2, 0.3)], 3)
    job.commit_twice()
    told = f"log/commits/{1:016d}.json took events in (accepted 3, refused 1), though its offsets are those of commit 0: {TWICE}"
    assert told in problems(tmp_path)
    job.take(A, [one(3, 5.0)], 4)
    job.sink.seal_all()
    job.writer.close()
    assert [s.num_events for s in job.writer.snapshots] == [6, 1]
    assert told in problems(tmp_path), "also once they are sealed"
    assert len([problem for problem in problems(tmp_path) if "took events in" in problem]) == 1


@pytest.mark.parametrize("first", [1, 3])
def test_open_events_of_an_offset_that_an_earlier_commit_had_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    job = OldJob(tmp_path, monkeypatch)
    job.take(A, [one(k, 0.1) for k in range(first)], first)
    job.take(B, [one(0, 0.2, rows=3)], 1)
    job.commit_twice((A, [one(first, 0.2)], first + 1))
    assert problems(tmp_path) == [
        f"log/tail/1.arrow has offset 0 of a[0] after offset {first - 1}: {TWICE}",
        f"log/tail/1.arrow has offset 0 of a[1] after offset 0: {TWICE}",
    ]
    job.writer.close()


def test_open_events_of_two_commits_that_lie_in_one_file_by_now_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = OldJob(tmp_path, monkeypatch)
    job.take(A, [one(0, 0.1), one(1, 0.1)], 2)
    job.commit_twice((A, [one(2, 0.2)], 3))
    for offset in range(3, 9):
        job.take(A, [one(offset, 0.3)], offset + 1)
        job.sink.flush()
    job.writer.close()
    (tail,) = (tmp_path / "log" / "tail").iterdir()
    assert problems(tmp_path) == [f"log/tail/{tail.name} has offset 0 of a[0] after offset 1: {TWICE}"]


def test_refused_messages_of_an_offset_that_an_earlier_commit_had_are_named_for_as_long_as_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = OldJob(tmp_path, monkeypatch)
    job.take(A, [one(0, 0.1), (1, None)], 2)
    job.commit_twice((A, [one(2, 0.2), (3, None)], 4))
    job.take(A, [one(4, 1.5)], 5)
    job.sink.seal_all()
    told = f"log/rejects/1.arrow has offset 1 of a[0], though an earlier commit had reached offset 2: {TWICE}"
    assert problems(tmp_path) == [told]
    job.take(A, [one(5, 2.5)], 6)
    job.sink.seal_all()
    job.writer.close()
    compact(tmp_path, Keep(snapshots=1), always=True)
    assert problems(tmp_path) == [told], "the dead letters are not published yet"


def test_a_commit_that_lost_open_events_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.1, 0.2)
    job.sink.flush()
    job.writer._tail = []
    job.writer.commit(refused={"not_json": 0})
    job.writer.close()
    assert (
        f"log/commits/{1:016d}.json has 2 events fewer than commit 0. Read the topics into a new store"
        in problems(tmp_path)
    )


def test_commits_that_compaction_folded_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = OldJob(tmp_path, monkeypatch, lateness_s=100.0)
    job.take(A, [one(0, 0.1), (1, None), one(2, 1.1)], 3)
    job.sink.flush()
    job.sink.seal_before(SECOND)
    job.sink.seal_all()
    job.writer.close()
    compact(tmp_path, always=True)
    assert [path.stem[-1] for path in sorted((tmp_path / "log/commits").iterdir())] == ["0", "2"]
    assert problems(tmp_path) == []


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_found_where_each_message_was_taken_in_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    dead = {"late": "dead-letter"} if seed % 2 else {}
    job = Job(tmp_path, commit_every_s=1.0, lateness_s=1.0, idle_seal_s=30.0, **dead)
    job.config = job.config.model_copy(update={"dedup_window_s": 60.0 if seed % 3 else None})
    job.restart()
    ends = {A: 0, B: 7}
    job.sink.begin(B, 7)
    now = 0.0
    for _ in range(60):
        key = random.choice([A, B])
        first = ends[key]
        messages: list[Message] = []
        for _ in range(random.choice([0, 1, 1, 3])):
            ends[key] += random.choice([0, 0, 1, 4])  # transactions, compaction of the topic
            now += random.random()
            rows = [
                event(random.randrange(9), 1, round((now - random.choice([0, 0, 5])) * SECOND) + 10 * SECOND,
                      event_id=random.choice([None, str(random.randrange(30))]))
                for _ in range(random.choice([1, 1, 4]))
            ]  # fmt: skip
            messages.append((ends[key], None if random.random() < 0.2 else rows))
            ends[key] += 1
        ends[key] += random.choice([0, 0, 2])
        job.sink.offer(
            poll(*key, messages, first=first, end=ends[key], high_watermark=ends[key] + random.choice([0, 1]))
        )
        job.clock.now += random.choice([0.1, 2.0, 40.0])
        job.sink.advance()
        done = random.random()
        if done < 0.1:
            ends = {k: job.writer.positions[k].next if k in job.writer.positions else ends[k] for k in ends}
            job.restart()
        elif done < 0.2:
            job.sink.seal_all()
        elif done < 0.3 and job.writer.snapshots:
            job.writer.mark_published(job.writer.last.n)
            compact(tmp_path, Keep(snapshots=random.choice([3, 50])), always=True)
        assert verify(tmp_path).problems == []
    assert len(job.writer.snapshots) > 5 and job.writer.last.refused["not_json"] > 3
    job.writer.close()
