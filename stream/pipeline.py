"""The stream job on one page: topic partitions → polls → decoded micro-batches → the log → the lanes.

Every element is one poll of one topic partition, from the source to the log: offsets, events and refused messages
are committed together. The sink keeps event time itself, so nothing depends on a runner's windows or timers.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import apache_beam as beam
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions

from freshet_graph.stream.kafka.reader import PartitionReader, Start
from freshet_graph.stream.microbatch import MicroBatch, RawBatch

T = TypeVar("T")

_objects: dict[str, object] = {}


@contextmanager
def holding(name: str, thing: object) -> Iterator[None]:
    """Make an object available under a name inside the block.

    Raises:
        ValueError: The name is taken.
    """
    if name in _objects:
        raise ValueError(f"{name} is held already")
    _objects[name] = thing
    try:
        yield
    finally:
        del _objects[name]


def held_object(name: str, kind: type[T]) -> T | None:
    """The object of a kind that this process holds under a name; None if there is none."""
    thing = _objects.get(name)
    return thing if isinstance(thing, kind) else None


class Stages(Protocol):
    """The work of the pipeline's stages, in the process that hosts them."""

    def decode(self, raw: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll, a bounded part of it at a time."""
        ...

    def write(self, batch: MicroBatch) -> list[int]:
        """Append to the log; returns the snapshots τ that were sealed."""
        ...

    def follow(self, lane: str) -> None:
        """Report a sealed snapshot to a lane."""
        ...


class Where(Protocol):
    """How a function finds the stages of its process; pickled with the function."""

    def acquire(self) -> Stages:
        """The stages, made if there are none; every call needs one ``release``."""
        ...

    def release(self) -> None:
        """Give them back."""
        ...


class StageFn(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    """Holds the process's stages from set-up to tear-down."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._stages: Stages | None = None

    def setup(self) -> None:
        """Get the stages."""
        self._stages = self._where.acquire()

    def teardown(self) -> None:
        """Give them back."""
        if self._stages is not None:
            self._stages = None
            self._where.release()

    def stages(self) -> Stages:
        """The process's stages. Not a property, because Beam reads all attributes of a function before it is set up."""
        assert self._stages is not None
        return self._stages


class DecodeFn(StageFn):
    """Polls to micro-batches."""

    def process(self, element: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll."""
        return self.stages().decode(element)


class AppendFn(StageFn):
    """Appends micro-batches to the log; emits every sealed τ for each lane."""

    def __init__(self, where: Where, lanes: tuple[str, ...]) -> None:
        super().__init__(where)
        self._lanes = lanes

    def process(self, element: MicroBatch) -> Iterator[tuple[str, int]]:
        """Append one micro-batch."""
        for tau in self.stages().write(element):
            for lane in self._lanes:
                yield lane, tau


class WakeFn(StageFn):
    """Wakes a lane, which follows the log on a thread of its own, for each sealed snapshot."""

    def process(self, element: tuple[str, int]) -> Iterator[None]:
        """Wake the lane."""
        lane, _ = element
        self.stages().follow(lane)
        return iter(())


UNENDING = (1 << 63) - 1
"""Stop of a restriction without an end."""

BUNDLE_S = 1.5
"""How long one round over all topic partitions lasts; the runner's memory grows with every bundle."""


class PartitionTracker(RestrictionTracker):  # type: ignore[misc]  # Beam has no types
    """Claims whole polls of one topic partition.

    A claim names the offset after the poll. None ends the restriction at the last claim. Only checkpoints (fraction 0)
    split it: a poll is never shared.
    """

    def __init__(self, restriction: OffsetRange) -> None:
        self._range = restriction
        self._next = restriction.start

    def current_restriction(self) -> OffsetRange:
        """The offsets of this process() call, usually without a known end."""
        return self._range

    def try_claim(self, position: int | None) -> bool:
        """Take responsibility for all offsets before ``position`` that are not claimed yet."""
        if position is None:
            self._range = OffsetRange(self._range.start, self._next)
            return False
        if position < self._next:
            raise ValueError(f"offset {position} is before {self._next}, which is claimed")
        if position > self._range.stop:
            return False
        self._next = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[OffsetRange, OffsetRange] | None:
        """Cut after the last claim; None for any other split."""
        if fraction_of_remainder != 0 or self._next >= self._range.stop:
            return None
        rest = OffsetRange(self._next, self._range.stop)
        self._range = OffsetRange(self._range.start, self._next)
        return self._range, rest

    def check_done(self) -> bool:
        """Raise unless everything was claimed, deferred or ended."""
        if self._next < self._range.stop:
            raise ValueError(f"offsets from {self._next} to {self._range.stop} were neither claimed nor left")
        return True

    def current_progress(self) -> RestrictionProgress:
        """Offsets claimed; the number that remains is unknown here."""
        return RestrictionProgress(completed=float(self._next - self._range.start), remaining=1.0)

    def is_bounded(self) -> bool:
        """Topics don't end."""
        return False


class _FromStart(beam.transforms.core.RestrictionProvider):  # type: ignore[misc]  # Beam has no types
    def initial_restriction(self, element: Start) -> OffsetRange:
        return OffsetRange(element.offset, UNENDING)

    def create_tracker(self, restriction: OffsetRange) -> PartitionTracker:
        return PartitionTracker(restriction)

    def restriction_size(self, element: Start, restriction: OffsetRange) -> float:
        return 1.0


FROM_START = beam.DoFn.RestrictionParam(_FromStart())
"""A topic partition from its first offset."""


class ReadingStages(Stages, Protocol):
    """Stages of a process that reads all topic partitions itself."""

    reader: PartitionReader


class ReadFromKafka(StageFn):
    """Reads the topic partition that an element names until the reader of this process is stopped."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: Start, tracker: Any = FROM_START) -> Iterator[RawBatch]:
        """Polls of one topic partition for its share of a bundle, empty ones included."""
        reader = cast(ReadingStages, self.stages()).reader
        turn_ends = time.monotonic() + BUNDLE_S / reader.num_partitions
        while not reader.stop.is_set():
            batch = reader.take(element.topic, element.partition)
            if not tracker.try_claim(batch.end_offset):
                return
            yield batch
            if time.monotonic() >= turn_ends or reader.has_waiting:
                tracker.defer_remainder()
                return
        tracker.try_claim(None)


@dataclass(frozen=True, slots=True)
class InProcess:
    """Stages that this process holds under a name."""

    name: str

    def acquire(self) -> Stages:
        """See ``Where.acquire``.

        Raises:
            LookupError: The pipeline runs in another process than the job.
        """
        stages = held_object(self.name, object)
        if stages is None:
            raise LookupError(f"this process holds no {self.name}. Run the pipeline in the job's process")
        return cast(Stages, stages)

    def release(self) -> None:
        """See ``Where.release``; the job releases the name."""


def build(pipeline: beam.Pipeline, starts: list[Start], where: InProcess, lanes: tuple[str, ...]) -> None:
    """Build the pipeline for one process.

    Args:
        pipeline: Gets the transforms.
        starts: The topic partitions and their start offsets, from the last commit.
        where: Finds the stages and their reader.
        lanes: Names of the lanes that follow the log.
    """
    _ = (
        pipeline
        | "TopicPartitions" >> beam.Create(starts, reshuffle=False)
        | "ReadFromKafka" >> beam.ParDo(ReadFromKafka(where))
        | "Decode" >> beam.ParDo(DecodeFn(where))
        | "SnapshotSink" >> beam.ParDo(AppendFn(where, lanes))
        | "LaneSink" >> beam.ParDo(WakeFn(where))
    )


def run_locally(starts: list[Start], where: InProcess, lanes: tuple[str, ...]) -> None:
    """Run the pipeline in this process until its reader is stopped."""
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # a worker of a cluster needs none

    # Not DirectRunner, which would try to download another runner first.
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    # Only pipelines of several languages need it, and Beam would leave it behind after a kill.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    build(pipeline, starts, where, lanes)
    pipeline.run().wait_until_finish()
