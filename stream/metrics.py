"""The stream's Prometheus series, named in docs/metrics.md: counts of what is durable, gauges of where the stream is."""

import shutil
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import US_PER_S, Op, Reason
from freshet_graph.schemas.quality import FIGURES
from freshet_graph.schemas.store import CommitRecord, LaneManifest, SealedSnapshot
from freshet_graph.schemas.version import version
from freshet_graph.stream.observer import SinkObserver
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.snapshots.event_time import Held, OpenEventTime
from freshet_graph.stream.store.lane.index import LaneTotals, manifest_rows
from freshet_graph.stream.store.log.refusals import Refused
from freshet_graph.stream.store.places.place import place_of

COMMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

Metric = TypeVar("Metric", bound=MetricWrapperBase)


@dataclass(slots=True)
class Totals:
    """Counts of what this process made durable."""

    snapshots: int = 0
    events: int = 0
    labels: int = 0
    refused: int = 0
    late: int = 0
    duplicates: int = 0
    in_history: int = 0
    gap_offsets: int = 0
    refused_by_reason: dict[str, Refused] = field(default_factory=dict)


class StreamMetrics(SinkObserver):
    """All series of the stream, the store and its lanes.

    Attributes:
        registry: Content of the endpoint.
        totals: The same counts as plain numbers, over all topics.
    """

    def __init__(self, config: StreamConfig) -> None:
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self._graph = config.graph
        self._duplicates_before: int | None = None
        self._lane_bytes: dict[str, tuple[int, int]] = {}

        counter, gauge = partial(self._make, Counter), partial(self._make, Gauge)
        timed = partial(self._make, Histogram, buckets=COMMIT_BUCKETS)

        self._events = counter("stream_events", "Events in the log", "topic", "op")
        self._labels = counter("stream_labels", "Labels in the log", "topic")
        self._refused = counter("stream_refused", "Refused messages", "topic", "reason")
        self._late = counter("stream_late", "Late events", "topic", "policy")
        self._duplicates = counter("stream_duplicates", "Events dropped by event_id")
        self._in_history = counter("stream_in_history", "Events skipped that the history has", "topic")
        self._event_ids = gauge("stream_event_ids", "Event ids remembered")
        self._ids_missed = counter("stream_event_ids_missed", "Event ids not remembered for lack of room")
        self._converted = counter(
            "stream_converted_ids",
            "Events with an id that is a number although ids are text, or the reverse",
            "topic",
        )
        self._tombstones = counter("stream_tombstones", "Null messages skipped", "topic")
        self._gaps = counter("stream_gap_offsets", "Unread offsets that retention deleted", "topic")
        self._lag = gauge("stream_consumer_lag_messages", "Offsets not read yet", "topic", "partition")
        self._watermark = gauge(
            "stream_watermark_timestamp_seconds", "Event time complete up to here", "topic", "partition"
        )
        self._last_commit = gauge("stream_last_commit_timestamp_seconds", "Wall time of the last commit")
        self._last_sealed = gauge(
            "stream_last_sealed_timestamp_seconds", "Wall time of the last sealed snapshot"
        )
        self._open_until = gauge(
            "stream_open_until_timestamp_seconds", "Event time at which the oldest open snapshot ends"
        )
        self._held_since = gauge(
            "stream_held_since_timestamp_seconds",
            "Wall time since which the partition alone keeps a snapshot from being sealed",
            "topic",
            "partition",
        )
        self._topic_held = gauge(
            "stream_topic_held",
            "1 while all messages of the topic are refused and kept",
            "topic",
            "reason",
            "key",
        )
        self._holder: Held | None = None
        self._held_at_s = 0.0
        self._unread: Mapping[tuple[str, int], int] = {}
        self._ready = gauge("stream_ready", "1 while /readyz says ready")
        for name, text, seconds in (
            ("snapshot_interval", "Length of a snapshot", config.snapshots.interval_s),
            ("commit_every", "Open events are durable after so long", config.snapshots.commit_every_s),
        ):
            gauge(f"stream_{name}_seconds", text).labels(self._graph).set(seconds)
        self._phases = timed("stream_commit_seconds", "Seconds of a commit's phases", "phase")
        self._queue = gauge("stream_queue_batches", "Micro-batches waiting at a stage", "stage")
        self._open = gauge("stream_open_snapshot_bytes", "Bytes of events that are still open")
        self._restarts = counter("stream_restarts", "Renewals and retries in this process", "cause")
        self._clock_error = gauge(
            "stream_clock_error_seconds",
            "Seconds that this host's clock is ahead (negative: behind), 0 if right",
        )
        self.clock_error(0.0)
        self._standby = gauge("stream_standby", "1 while another process writes the store")
        self.standing_by(False)
        self._published = counter("stream_published", "Messages of exports in topics", "topic")
        self._publish_lag = gauge("stream_publish_lag_exports", "Exports not yet in a topic", "topic")

        self._store_bytes = gauge("store_bytes", "Bytes of the snapshots' files", "kind")
        free = gauge("store_free_bytes", "Free bytes where the store lies").labels(self._graph)
        free.set_function(lambda: _free_bytes(config.store))

        self._lane_lag = gauge("lane_lag_snapshots", "Sealed snapshots the lane lacks", "lane")
        self._saving = gauge("lane_saving_ratio", "Bytes saved against storing every snapshot whole", "lane")
        self._update = timed("lane_update_seconds", "Seconds of the partitioner per snapshot", "lane")
        made: dict[str, Gauge] = {}
        self._figures: list[tuple[str, Gauge, tuple[str, ...]]] = []  # labels are those after the lane's
        for figure, shown in FIGURES.items():
            if shown.gauge is not None:
                name, text, kind = shown.gauge
                labels = () if kind is None else ("kind",)
                if name not in made:
                    made[name] = gauge(name, text, "lane", *labels)
                self._figures.append((figure, made[name], () if kind is None else (kind,)))

        gauge("build_info", "Always 1", "version").labels(self._graph, version()).set(1)
        gauge("config_info", "Always 1", "hash").labels(self._graph, config.digest()).set(1)
        # Counters begin at zero: rate() and increase() do not see the first value of a series.
        for cause in ("cycle", "partitions", "disk", "lane", "compaction"):
            self._restarts.labels(self._graph, cause)
        self._late_policy = config.snapshots.late
        self.read(config.kafka.topics_among(()))

    # Called by the sink (SinkObserver).

    def accepted(self, topic: str, op: Op, count: int) -> None:
        """Events of one kind are in the log."""
        self._events.labels(self._graph, topic, op.name.lower()).inc(count)
        self.totals.events += count

    def labels(self, topic: str, count: int) -> None:
        """Labels of a label topic are in the log."""
        self._labels.labels(self._graph, topic).inc(count)
        self.totals.labels += count

    def refused(self, topic: str, reason: str, count: int, example: str) -> None:
        """Messages, or rows of one, are in the rejects."""
        self._refused.labels(self._graph, topic, reason).inc(count)
        self.totals.refused += count
        by_reason = self.totals.refused_by_reason.setdefault(reason, Refused())
        by_reason.count += count
        by_reason.example = example

    def late(self, topic: str, policy: str, count: int) -> None:
        """Late events are in the log or the rejects."""
        self._late.labels(self._graph, topic, policy).inc(count)
        self.totals.late += count

    def in_history(self, topic: str, count: int) -> None:
        """Events were skipped because the log has them from its history."""
        self._in_history.labels(self._graph, topic).inc(count)
        self.totals.in_history += count

    def converted(self, topic: str, count: int) -> None:
        """Events were read with an id that is a number although ids are text, or the reverse."""
        self._converted.labels(self._graph, topic).inc(count)

    def tombstones(self, topic: str, count: int) -> None:
        """Null messages were skipped."""
        self._tombstones.labels(self._graph, topic).inc(count)

    def watermark(self, topic: str, partition: int, t_us: int) -> None:
        """Event time up to which a topic partition is complete."""
        self._watermark.labels(self._graph, topic, str(partition)).set(t_us / US_PER_S)

    def open_event_time(self, now: OpenEventTime) -> None:
        """Which snapshot is open, and what keeps it from being sealed."""
        if now.until_us is None:
            self._open_until.clear()
        else:
            self._open_until.labels(self._graph).set(now.until_us / US_PER_S)
        before, holder = self._holder, now.holder
        self._holder, self._held_at_s = holder, time.time()
        if before is not None and (holder is None or holder.key != before.key):
            self._held_since.clear()
        if holder is not None:
            self._held_since.labels(self._graph, holder.topic, str(holder.partition)).set(
                self._held_at_s - holder.age_s
            )

    def holder(self) -> Held | None:
        """The topic partition that holds event time back, as of now; None if there is none."""
        holder, told_s = self._holder, self._held_at_s
        return holder and replace(holder, age_s=holder.age_s + time.time() - told_s)

    def pending(self, batches: int, open_bytes: int) -> None:
        """Batches not yet committed and bytes of open events."""
        self._queue.labels(self._graph, "sink").set(batches)
        self._open.labels(self._graph).set(open_bytes)

    def remembered(self, ids: int, missed: int) -> None:
        """Event ids remembered against duplicates."""
        self._event_ids.labels(self._graph).set(ids)
        if missed:
            self._ids_missed.labels(self._graph).inc(missed)

    def commit_phase(self, phase: str, seconds: float) -> None:
        """Seconds of a phase of a commit; a long commit doesn't hang while its phases pass."""
        beat()
        self._phases.labels(self._graph, phase).observe(seconds)

    def committed(self, record: CommitRecord) -> None:
        """A commit is durable."""
        wall_s = record.wall_time_us / US_PER_S
        self._last_commit.labels(self._graph).set(wall_s)
        if record.sealed:
            self._last_sealed.labels(self._graph).set(wall_s)
            self.totals.snapshots += len(record.sealed)
            for lane in self._lane_bytes:  # a lane that hangs reports no lag itself
                self._lane_lag.labels(self._graph, lane).inc(len(record.sealed))
            self._store_bytes.labels(self._graph, "log").inc(_snapshot_bytes(record.sealed))
        new = record.duplicates - (self._duplicates_before or 0)
        self._duplicates_before = record.duplicates
        if new:
            self._duplicates.labels(self._graph).inc(new)
            self.totals.duplicates += new

    # Called by the job.

    def opened_log(self, last: CommitRecord | None, stored_bytes: int) -> None:
        """The log was opened: gauges and differences of totals begin there."""
        self._duplicates_before = last.duplicates if last else 0
        self._store_bytes.labels(self._graph, "log").set(stored_bytes)
        opened_s = time.time()
        self._last_sealed.labels(self._graph).set(opened_s)
        self._last_commit.labels(self._graph).set(last.wall_time_us / US_PER_S if last else opened_s)

    def skipped(self, topic: str, offsets: int) -> None:
        """A gap was skipped."""
        self._gaps.labels(self._graph, topic).inc(offsets)
        self.totals.gap_offsets += offsets

    def read(self, topics: Iterable[str]) -> None:
        """Topics are read, perhaps from now on: their counters begin at zero."""
        for topic in topics:
            self._gaps.labels(self._graph, topic)
            self._refused.labels(self._graph, topic, str(Reason.DECODER_ERROR))
            self._late.labels(self._graph, topic, self._late_policy)
            for op in Op:
                self._events.labels(self._graph, topic, op.name.lower())

    def lag(self, lag: Mapping[tuple[str, int], int]) -> None:
        """Offsets not read yet, by topic partition. Series of partitions that are not among them end."""
        for topic, partition in self._unread.keys() - lag.keys():
            for gauge in (self._lag, self._watermark):
                with suppress(KeyError):
                    gauge.remove(self._graph, topic, str(partition))
        self._unread = dict(lag)
        for (topic, partition), messages in lag.items():
            self._lag.labels(self._graph, topic, str(partition)).set(messages)

    def unread(self, topic: str, partition: int) -> int:
        """Unread offsets of a topic partition, as last reported."""
        return self._unread.get((topic, partition), 0)

    def unread_of(self, topics: Container[str]) -> int:
        """Unread offsets of some topics, as last reported."""
        return sum(messages for (topic, _), messages in self._unread.items() if topic in topics)

    def ready_while(self, ready: Callable[[], bool]) -> None:
        """Set the function that tells at every scrape whether the stream is ready."""
        self._ready.labels(self._graph).set_function(ready)

    def standing_by(self, waits: bool) -> None:
        """The job waits for another process to leave the store, or no longer does."""
        self._standby.labels(self._graph).set(waits)

    def clock_error(self, seconds: float) -> None:
        """Seconds by which this host's clock is known to be ahead, or behind (negative); 0: right as far as known."""
        self._clock_error.labels(self._graph).set(seconds)

    def published(self, topic: str, messages: int) -> None:
        """Messages of an export are in a topic."""
        self._published.labels(self._graph, topic).inc(messages)

    def publish_lag(self, topic: str, exports: int) -> None:
        """Exports not yet in a topic."""
        self._publish_lag.labels(self._graph, topic).set(exports)

    def topic_held(self, topic: str, reason: str, key: str) -> None:
        """A topic is held, from now on."""
        self._topic_held.labels(self._graph, topic, reason, key).set(1)

    def restarted(self, cause: str) -> None:
        """The pipeline was renewed (cycle, partitions), or a commit (disk), lane or compaction was tried again."""
        self._restarts.labels(self._graph, cause).inc()

    def lane_lag(self, lane: str, snapshots: int) -> None:
        """Sealed snapshots that a lane lacks."""
        self._lane_lag.labels(self._graph, lane).set(snapshots)

    def opened_lane(self, lane: str, last: LaneManifest | None, totals: LaneTotals) -> None:
        """A lane was opened."""
        self._lane_bytes[lane] = (0, 0)
        self._count_lane(lane, totals)
        if last is not None:
            self._show_lane(last)

    def lane_committed(self, manifest: LaneManifest) -> None:
        """A lane has one more snapshot."""
        self._count_lane(manifest.lane, LaneTotals().plus(manifest_rows([manifest])))
        self._show_lane(manifest)
        self._update.labels(self._graph, manifest.lane).observe(manifest.quality.seconds)

    def _count_lane(self, lane: str, more: LaneTotals) -> None:
        stored, full = self._lane_bytes.get(lane, (0, 0))
        stored, full = stored + more.bytes, full + more.full_bytes
        self._lane_bytes[lane] = (stored, full)
        if full:
            self._saving.labels(self._graph, lane).set(1 - stored / full)
        self._store_bytes.labels(self._graph, "lane").inc(more.disk_bytes)

    def _show_lane(self, manifest: LaneManifest) -> None:
        for figure, gauge, labels in self._figures:
            value = getattr(manifest.quality, figure)
            if value is not None:
                gauge.labels(self._graph, manifest.lane, *labels).set(value)

    def _make(self, kind: type[Metric], name: str, text: str, *labels: str, **options: Any) -> Metric:
        return kind(f"freshet_{name}", text, ["graph", *labels], registry=self.registry, **options)


def _free_bytes(store: str) -> int:
    """Free bytes where the store lies, or will lie, or its cache: a scrape may come before the store is made."""
    folder = place_of(store).disk().absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _snapshot_bytes(snapshots: Iterable[SealedSnapshot]) -> int:
    return sum(file.bytes for snapshot in snapshots for file in snapshot.files)
