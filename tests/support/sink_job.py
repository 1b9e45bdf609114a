"""A sink over a log in a folder, fed message by message, and what it tells its observer."""

from collections import Counter
from pathlib import Path
from typing import Any

from log_events import SECOND, Clock, event, poll, stream_config

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.microbatch import Quiet
from freshet_graph.stream.observer import SinkObserver
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter

A, B = ("a", 0), ("a", 1)


class Counting(SinkObserver):
    def __init__(self) -> None:
        self.counts: Counter[tuple[Any, ...]] = Counter()
        self.commits: list[CommitRecord] = []
        self.open_bytes = 0
        self.phases: set[str] = set()
        self.ids_missed = 0

    def accepted(self, topic: str, op: Op, count: int) -> None:
        self.counts[topic, op.name] += count

    def refused(self, topic: str, reason: str, count: int, example: str) -> None:
        self.counts[topic, reason] += count

    def late(self, topic: str, policy: str, count: int) -> None:
        self.counts[topic, policy] += count

    def tombstones(self, topic: str, count: int) -> None:
        self.counts[topic, "tombstones"] += count

    def remembered(self, ids: int, missed: int) -> None:
        self.ids_missed += missed

    def watermark(self, topic: str, partition: int, t_us: int) -> None:
        self.counts[topic, partition, "watermark"] = t_us

    def pending(self, batches: int, open_bytes: int) -> None:
        self.open_bytes = open_bytes

    def commit_phase(self, phase: str, seconds: float) -> None:
        self.phases.add(phase)

    def committed(self, record: CommitRecord) -> None:
        self.commits.append(record)


class Job:
    """A sink over a log in a folder; ``restart`` is a crash."""

    def __init__(self, store: Path, **snapshots: Any) -> None:
        self.config = stream_config(str(store), **snapshots)
        self.clock = Clock()
        self.start()

    def start(self) -> None:
        self.observer = Counting()
        self.writer = LogWriter.open(self.config.store, log_header(self.config))
        self.sink = SnapshotSink(self.writer, self.config, clock=self.clock, observer=self.observer)

    def restart(self) -> None:
        self.writer.close()
        self.start()

    def offer(self, key: tuple[str, int], *seconds: float, first: int = 0, unread: bool = True) -> None:
        """One message an event, at these seconds; its src is its offset."""
        messages = [(first + i, [event(first + i, key[1], round(s * SECOND))]) for i, s in enumerate(seconds)]
        end = first + len(seconds)
        self.sink.offer(poll(*key, messages, first=first, end=end, high_watermark=end + unread))

    def idle(self, key: tuple[str, int], at: int, *, since_s: float = 0.0, silent_s: float = 0.0) -> None:
        """Nothing to read, since so long and as of so long ago."""
        self.sink.offer(poll(*key, [], first=at, end=at, quiet=Quiet(since_s, silent_s)))

    def sealed(self) -> dict[int, list[int]]:
        """External src ids by snapshot."""
        log = LogReader(self.config.store)
        return {s.tau: log.events(s.tau)["src"].to_pylist() for s in log.snapshots}
