"""Labels among events in any order: no event sees a label that came with it or later, and no sealed snapshot gets one."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from log_events import SECOND, Clock, event, label_poll, poll, stream_config

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.log import verify_log

MEMORY = Path("/dev/shm")
KEYS = [("a", 0), ("a", 1)]
LABELS = ("labels", 0)

Step = tuple[Any, ...]

TIMES = st.integers(-2 * SECOND, 12 * SECOND)
STEPS = st.one_of(
    st.tuples(st.just("events"), st.sampled_from(KEYS), st.lists(TIMES, min_size=1, max_size=4)),
    st.tuples(st.just("labels"), st.lists(st.integers(-30 * SECOND, 40 * SECOND), min_size=1, max_size=3)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 3.0])),
    st.sampled_from([("flush",), ("seal_all",), ("restart",)]),
)


class Job:
    """A sink, and what was offered to it: restarts read again what no commit has."""

    def __init__(self, store: str) -> None:
        self.config = stream_config(store, commit_every_s=2.0, lateness_s=1.0)
        self.config.kafka.topics.append(Topic(name=LABELS[0], kind="labels"))
        self.clock = Clock()
        self.offered: dict[tuple[str, int], list[Any]] = {key: [] for key in [*KEYS, LABELS]}
        self.open()

    def open(self) -> None:
        self.writer = LogWriter.open(self.config.store, log_header(self.config))
        self.sink = SnapshotSink(self.writer, self.config, clock=self.clock)
        self.sink.assign(self.offered)
        for key in self.offered:
            self.offer(key)

    def close(self) -> None:
        self.sink.close()
        self.writer.close()

    def offer(self, key: tuple[str, int]) -> None:
        first, times = self.sink.next_offset(key) or 0, self.offered[key]
        if first == len(times):
            return
        if key == LABELS:
            labels = [(offset, f"e{offset}", t) for offset, t in enumerate(times)]
            self.sink.offer(label_poll(*key, labels, first=first, end=len(times)))
            return
        messages = [(offset, [event(1, 2, times[offset])]) for offset in range(first, len(times))]
        self.sink.offer(poll(*key, messages, first=first, end=len(times)))

    def take(self, step: Step) -> None:
        kind, *rest = step
        if kind in ("events", "labels"):
            key, times = rest if kind == "events" else (LABELS, rest[0])
            self.offered[key] += times
            self.offer(key)
        elif kind == "advance":
            self.clock.now += rest[0]
            self.sink.advance()
        elif kind == "restart":
            self.close()
            self.open()
        else:
            getattr(self.sink, kind)()


@given(st.lists(STEPS, min_size=4, max_size=25))
@settings(max_examples=60)
def test_a_label_is_visible_after_all_that_came_before_it_and_in_no_sealed_snapshot(
    steps: list[Step],
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        job = Job(folder)
        for step in steps:
            job.take(step)
        while job.sink.seal_all() is not None:
            pass
        job.close()
        log = LogReader(folder)
        if log.last is None:
            return
        assert verify_log(folder).problems == []
        commits = [read_record(log.root / commit_name(n), CommitRecord) for n in range(log.last.n + 1)]
        arrival = [np.empty(0, np.int32), *(log.arrivals(s.tau) for s in log.snapshots)]
        times = [np.empty(0, np.int64), *(log.events(s.tau)["t"].to_numpy() for s in log.snapshots)]
        commit_of, t_of = np.concatenate(arrival), np.concatenate(times)
        labels = log.labels().to_pylist()
        assert [label["t"] for label in labels] == job.offered[LABELS], "each once, in order"
        for label in labels:
            record = commits[label["commit"]]
            came_before = t_of[commit_of <= record.n].max(initial=label["t"])
            through = record.sealed_through
            start = label["t"] if through is None else (through + 1) * SECOND
            assert label["visible_us"] == max(label["t"], came_before, start)
            before = commits[record.n - 1].sealed_through if record.n else None
            assert before is None or label["visible_us"] // SECOND > before
        after = log.last.n // 2
        assert log.labels(after).to_pylist() == [label for label in labels if label["commit"] > after]
