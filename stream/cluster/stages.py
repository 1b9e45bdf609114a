"""The pipeline's stages on a cluster: read and decode where a topic partition is, one writer a log, one process a lane.

A stage finds what it works with in the process that runs it (``worker.py``), opened from the plan that it carries.
Runners send what has one key to one place, in order: that is what makes the log's writer the only one. The stages
behind keys have a state that nobody reads: runners place stateful stages by key as elements come, whereas a
GroupByKey waits for windows and a Reshuffle spreads what belongs together.
"""

import time
from collections.abc import Iterable, Iterator
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

TURN_S = 0.5
"""How long a topic partition is read before others that share its place have their turn."""

_PLACED_BY_KEY = beam.DoFn.StateParam(ReadModifyWriteStateSpec("unused", VarIntCoder()))


class _Stage(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    """Has the process's worker from set-up to tear-down."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._worker: Worker | None = None

    def setup(self) -> None:
        self._worker = acquire(self._plan)

    def teardown(self) -> None:
        if self._worker is not None:
            self._worker = None
            release(self._plan)

    def worker(self) -> Worker:
        """The process's worker; no property, for Beam looks at all attributes of a function that is not set up."""
        assert self._worker is not None
        return self._worker


class ReadPartition(_Stage):
    """Reads the topic partition that an element names until its job is no longer the one that reads for the store."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: Start, tracker: Any = FROM_START) -> Iterator[RawBatch]:
        """Polls of one topic partition for a turn, empty ones included."""
        worker = self.worker()
        claimed = tracker.current_restriction().start
        turn_ends_s = time.monotonic() + TURN_S
        with worker.readers.lent(element, claimed) as reader:
            while worker.current:
                batch = reader.take()
                reader.claimed = claimed = max(
                    claimed, batch.end_offset
                )  # what is read again is claimed already
                if not tracker.try_claim(claimed):
                    return
                yield batch
                if time.monotonic() >= turn_ends_s or batch.first_offset == batch.end_offset:
                    tracker.defer_remainder()
                    return
        tracker.try_claim(None)


class KeyedDecodeFn(_Stage):
    """Polls to micro-batches, keyed by graph."""

    def __init__(self, plan: Plan, graph: str) -> None:
        super().__init__(plan)
        self._graph = graph

    def process(self, element: RawBatch) -> Iterable[tuple[str, MicroBatch]]:
        """Validate one poll."""
        for batch in self.worker().decode(element):
            yield self._graph, batch


class KeyedAppendFn(_Stage):
    """Micro-batches to the log; emits every τ that a commit sealed, for each lane."""

    def __init__(self, plan: Plan, lanes: tuple[str, ...]) -> None:
        super().__init__(plan)
        self._lanes = lanes

    def process(
        self, element: tuple[str, MicroBatch], unused: Any = _PLACED_BY_KEY
    ) -> Iterator[tuple[str, int]]:
        """Append one micro-batch."""
        _, batch = element
        for tau in self.worker().write(batch):
            for lane in self._lanes:
                yield lane, tau


class KeyedWakeFn(_Stage):
    """Sealed snapshots to a lane, which follows the log on a thread of its own."""

    def process(self, element: tuple[str, int], unused: Any = _PLACED_BY_KEY) -> Iterator[None]:
        """Wake the lane."""
        lane, _ = element
        self.worker().follow(lane)
        return iter(())


def build(pipeline: beam.Pipeline, plan: Plan) -> None:
    """The pipeline of ``stream.pipeline``, with its stages in processes of their own."""
    config = plan.config()
    lanes = tuple(lane.name for lane in config.lanes)
    read = (
        pipeline
        | "TopicPartitions" >> beam.Create(plan.starts)
        | "ReadFromKafka" >> beam.ParDo(ReadPartition(plan))
        | "Decode" >> beam.ParDo(KeyedDecodeFn(plan, config.graph)).with_output_types(tuple[str, MicroBatch])
    )
    sealed = read | "SnapshotSink" >> beam.ParDo(KeyedAppendFn(plan, lanes)).with_output_types(
        tuple[str, int]
    )
    _ = sealed | "LaneSink" >> beam.ParDo(KeyedWakeFn(plan))
