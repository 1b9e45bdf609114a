"""Events with an event_id: whatever polls, commits and restarts, each is in the log, the rejects or the duplicates."""

import copy
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_events import SECOND, Clock, event, poll, stream_config

from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.snapshots.event_ids import EventIds
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.log import verify_log

KEYS = [("a", 0), ("a", 1), ("b", 0)]
WINDOW_S = 5


@dataclass
class Oracle:
    """semantics.md, "Duplicates", on plain lists."""

    window: int
    accepted: list[tuple[str | None, int]] = field(default_factory=list)
    duplicates: int = 0

    def is_duplicate(self, event_id: str | None, t: int) -> bool:
        """Same id as an accepted event, both within the window before the largest time there is."""
        oldest = max([t, *(time for _, time in self.accepted)]) - self.window
        return (
            event_id is not None
            and t >= oldest
            and any(known == event_id and time >= oldest for known, time in self.accepted)
        )


def messages(random: Random) -> list[tuple[int, list[dict[str, Any]]]]:
    """Event times that go back and forth within some windows, few event ids, some without."""
    out = []
    offset, now = 0, 50 * SECOND
    for _ in range(random.randrange(1, 30)):
        rows = []
        for _ in range(random.choice([1, 1, 3])):
            now += random.choice([0, 0, 1, SECOND // 2, SECOND, SECOND, 4 * SECOND, -SECOND, -4 * SECOND])
            event_id = random.choice([None, "", "a", "b", "c", "d" * 40])
            rows.append(event(1, 2, max(now, 0), event_id=event_id))
        out.append((offset, rows))
        offset += random.choice([1, 1, 3])
    return out


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from(["next-snapshot", "dead-letter"]),
    st.lists(
        st.one_of(
            st.tuples(st.just("poll"), st.sampled_from(KEYS), st.integers(1, 9), st.sampled_from([0, 0, 2])),
            st.tuples(st.sampled_from(["crash", "flush", "advance"])),
        ),
        min_size=5,
        max_size=30,
    ),
)
def test_every_event_is_in_exactly_one_of_log_rejects_and_duplicates(seed, policy, steps):
    random = Random(seed)
    topics = {key: messages(random) for key in KEYS}
    with tempfile.TemporaryDirectory() as store:
        config = stream_config(store, late=policy, idle_timeout_s=1e9).model_copy(
            update={"dedup_window_s": float(WINDOW_S)}
        )
        clock = Clock()
        oracle = Oracle(WINDOW_S * SECOND)
        durable = copy.deepcopy(oracle)
        writer = LogWriter.open(store, log_header(config))
        sink = SnapshotSink(writer, config, clock=clock)
        sink.assign(KEYS)

        def offer(key: tuple[str, int], count: int, back: int) -> None:
            start = sink.next_offset(key) or 0
            first = max(0, next((i for i, (at, _) in enumerate(topics[key]) if at >= start), 10**6) - back)
            chosen = topics[key][first : first + back + count]
            if not chosen:
                return
            sealed = writer.sealed_through
            for at, rows in chosen:
                for row in rows if at >= start else []:
                    late = sealed is not None and row["t"] // SECOND <= sealed
                    if oracle.is_duplicate(row["event_id"], row["t"]):
                        oracle.duplicates += 1
                    elif not (late and policy == "dead-letter"):
                        oracle.accepted.append((row["event_id"], row["t"]))
            sink.offer(poll(*key, chosen, first=chosen[0][0], end=chosen[-1][0] + 1))

        for what, *more in steps:
            if what == "poll":
                offer(*more)
            elif what == "crash":
                writer.close()
                oracle = copy.deepcopy(durable)
                writer = LogWriter.open(store, log_header(config))
                sink = SnapshotSink(writer, config, clock=clock)
                sink.assign(KEYS)
            else:
                clock.now += 11
                if (sink.flush() if what == "flush" else sink.advance()) is not None:
                    durable = copy.deepcopy(oracle)
        for key in KEYS:
            offer(key, 99, 0)
        sink.seal_all()
        writer.close()

        log = LogReader(store)
        stored = [row for snapshot in log.snapshots for row in log.events(snapshot.tau).to_pylist()]
        assert Counter((row["event_id"], row["t"]) for row in stored) == Counter(oracle.accepted)
        assert log.last is not None
        assert log.last.duplicates == oracle.duplicates
        rejects = log.last.late if policy == "dead-letter" else 0
        everything = sum(len(rows) for topic in topics.values() for _, rows in topic)
        assert len(stored) + rejects + log.last.duplicates == everything
        assert verify_log(store).problems == []


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([1, 3, 50]))
def test_the_table_grows_and_forgets_as_a_list_would(seed, step):
    random = np.random.default_rng(seed)
    ids, oracle = EventIds(window_us=400, most=10**6), Oracle(400)
    for _ in range(3):
        rows = 150
        times = np.cumsum(random.integers(-step, 2 * step, rows)) + 1000
        names = [None if i % 7 == 0 else f"{i % 60}" for i in random.integers(0, 10**6, rows).tolist()]
        refused = random.random(rows) < 0.1
        expected = []
        for name, t, no in zip(names, times.tolist(), refused.tolist(), strict=True):
            expected.append(oracle.is_duplicate(name, t))
            if not expected[-1] and not no:
                oracle.accepted.append((name, t))
        chunks = pa.chunked_array([pa.array(names[:40], pa.string()), pa.array(names[40:], pa.string())])
        assert ids.duplicates(chunks, times, refused).tolist() == expected


def test_memory_stays_bounded_while_ids_never_end():
    ids = EventIds(window_us=1000, most=10**6)
    none = np.zeros(5000, bool)
    for start in range(0, 200_000, 5000):
        names = pa.chunked_array([pa.array([str(i) for i in range(start, start + 5000)])])
        assert not ids.duplicates(names, np.arange(start, start + 5000), none).any()
        assert ids.duplicates(names, np.arange(start, start + 5000), none).sum() == 1001
    assert ids.size < 8 * 1000


def test_ids_beyond_the_limit_are_counted_and_room_comes_back_with_time():
    ids = EventIds(window_us=1000, most=100)
    no = np.zeros(150, bool)
    names = pa.chunked_array([pa.array([str(i) for i in range(150)])])
    assert not ids.duplicates(names, np.zeros(150, np.int64), no).any()
    assert (ids.size, ids.missed) == (100, 50)
    assert ids.duplicates(names, np.zeros(150, np.int64), no).sum() == 100
    later = np.full(150, 5000)
    ids.duplicates(names, later, no)
    ids.missed = 0
    assert ids.duplicates(names, later, no).sum() == pytest.approx(100)


def test_an_id_at_the_windows_edge_stays_when_the_table_is_made_anew():
    window = 1000
    ids, half = EventIds(window_us=window, most=10**6), 512
    names = pa.chunked_array([pa.array([str(i) for i in range(half + 1)])])
    times = np.full(half + 1, window)  # the first id is seen at the edge, the last one has no room left
    times[0] = 0
    assert not ids.duplicates(names, times, np.zeros(half + 1, bool)).any()
    assert ids.nbytes > EventIds(window, 1).nbytes, "it was not made anew"
    assert ids.size == half + 1
    again = np.zeros(1, bool)
    assert ids.duplicates(names.slice(0, 1), np.array([window]), again).all()
    assert not ids.duplicates(names.slice(0, 1), np.array([window + 1]), again).any()


@pytest.mark.parametrize("compacted", [False, True])
def test_an_id_at_the_windows_edge_is_read_from_the_log_again(tmp_path, compacted):
    config = stream_config(str(tmp_path), late="next-snapshot", idle_timeout_s=1e9).model_copy(
        update={"dedup_window_s": float(WINDOW_S)}
    )
    edge, now = 50 * SECOND, (50 + WINDOW_S) * SECOND

    def offered(begin: int, *events: dict[str, Any]) -> int:
        """Duplicates so far, after a run of the job."""
        with LogWriter.open(tmp_path, log_header(config)) as writer:
            sink = SnapshotSink(writer, config, clock=Clock())
            sink.assign(KEYS[:1])
            end = begin + len(events)
            sink.offer(
                poll(*KEYS[0], [(begin + i, [row]) for i, row in enumerate(events)], first=begin, end=end)
            )
            sink.seal_all()
            assert writer.last is not None
            return writer.last.duplicates

    assert offered(0, *(event(1, 2, t, event_id=str(t)) for t in (0, edge, now))) == 0
    if compacted:
        assert compact(tmp_path, Keep(snapshots=1, events_s=float(WINDOW_S)), always=True).dropped == 1
    assert offered(3, event(1, 2, now, event_id=str(edge))) == 1
    assert offered(4, event(1, 2, now + 1, event_id=str(edge))) == 1
