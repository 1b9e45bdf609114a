"""The pipeline on a cluster: read and decode by topic partition, one writer per log, one process per lane.

A stage finds its objects in the process that runs it (``worker.py``), opened from the plan that it carries. Runners
send elements of one key to one place, in order, so the log has one writer. Stages behind keys declare a state that is
never read, because runners place stateful stages by key as elements come. A GroupByKey would wait for windows, and a
Reshuffle would spread what belongs together.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

import stream.cluster.coder  # noqa: F401  registers how micro-batches cross processes
from stream.cluster.plan import Plan
from stream.cluster.worker import Worker, acquire, release
from stream.kafka.reader import Start
from stream.kafka.source import FROM_START
from stream.microbatch import MicroBatch, RawBatch
from stream.stages import AppendFn, DecodeFn, StageFn, WakeFn

TURN_S = 0.5
"""How long a topic partition is read before others in the same place have their turn."""

_PLACED_BY_KEY = beam.DoFn.StateParam(ReadModifyWriteStateSpec("unused", VarIntCoder()))


@dataclass(frozen=True, slots=True)
class InWorker:
    """The stages are the process's worker, opened from the plan."""

    plan: Plan

    def acquire(self) -> Worker:
        """See ``Where.acquire``."""
        return acquire(self.plan)

    def release(self) -> None:
        """See ``Where.release``."""
        release(self.plan)


class ReadPartition(StageFn):
    """Reads the topic partition of an element until its job may no longer read for the store."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: Start, tracker: Any = FROM_START) -> Iterator[RawBatch]:
        """Polls of one topic partition for a turn, empty ones included."""
        worker = self.stages()
        assert isinstance(worker, Worker)
        claimed = tracker.current_restriction().start
        turn_ends_s = time.monotonic() + TURN_S
        with worker.readers.lent(element, claimed) as reader:
            while worker.current:
                batch = reader.take()
                reader.claimed = claimed = max(claimed, batch.end_offset)  # may be claimed and read again
                if not tracker.try_claim(claimed):
                    return
                yield batch
                if time.monotonic() >= turn_ends_s or batch.first_offset == batch.end_offset:
                    tracker.defer_remainder()
                    return
        tracker.try_claim(None)


class KeyedAppendFn(AppendFn):
    """``AppendFn`` placed by key."""

    def process(  # type: ignore[override]  # the state is for the runner
        self, element: tuple[str, MicroBatch], unused: Any = _PLACED_BY_KEY
    ) -> Iterator[tuple[str, int]]:
        """Append one micro-batch."""
        return super().process(element[1])


class KeyedWakeFn(WakeFn):
    """``WakeFn`` placed by key."""

    def process(self, element: tuple[str, int], unused: Any = _PLACED_BY_KEY) -> Iterator[None]:
        """Wake the lane."""
        return super().process(element)


def build(pipeline: beam.Pipeline, plan: Plan) -> None:
    """Build the pipeline of ``stream.pipeline`` with its stages in worker processes."""
    config = plan.config()
    lanes, where = tuple(lane.name for lane in config.lanes), InWorker(plan)
    read = (
        pipeline
        | "TopicPartitions" >> beam.Create(plan.starts)
        | "ReadFromKafka" >> beam.ParDo(ReadPartition(where))
        | "Decode" >> beam.ParDo(DecodeFn(where)).with_output_types(MicroBatch)
        | "OneWriter" >> beam.WithKeys(config.graph).with_output_types(tuple[str, MicroBatch])
    )
    sealed = read | "SnapshotSink" >> beam.ParDo(KeyedAppendFn(where, lanes)).with_output_types(
        tuple[str, int]
    )
    _ = sealed | "LaneSink" >> beam.ParDo(KeyedWakeFn(where))
