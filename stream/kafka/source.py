"""ReadFromKafka: a splittable DoFn with one restriction per topic partition, whose elements are its polls."""

import time
from collections.abc import Iterator
from typing import Any, Protocol, cast

import apache_beam as beam
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange

from stream.kafka.reader import PartitionReader, Start
from stream.microbatch import RawBatch
from stream.stages import StageFn, Stages

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
    """Reads the topic partition that an element names until the reader of this process is told to stop."""

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
