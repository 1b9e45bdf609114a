"""The stream job on one page: topic partitions → polls → decoded micro-batches → the log → the lanes.

Every element is one poll of one topic partition, from the source to the log: offsets, events and refused messages
are committed together. Event time is the sink's own business, so nothing depends on a runner's windows or timers.
"""

import shutil
from collections.abc import Iterable, Iterator
from typing import Protocol

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from stream.held import held
from stream.kafka.reader import Start
from stream.kafka.source import ReadFromKafka
from stream.microbatch import MicroBatch, RawBatch


class Stages(Protocol):
    """What the pipeline's stages do in the process that holds them."""

    def decode(self, raw: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll, a bounded part of it at a time."""
        ...

    def write(self, batch: MicroBatch) -> list[int]:
        """Append to the log; returns the snapshots τ that this sealed."""
        ...

    def follow(self, tau: int) -> None:
        """Let the lanes know of a sealed snapshot."""
        ...


class HeldStages:
    """Names the stages and the reader of a process, so that functions find them there.

    Attributes:
        stages: Name under which the process holds ``Stages``.
        reader: Name under which it holds the ``PartitionReader``.
    """

    def __init__(self, stages: str, reader: str) -> None:
        self.stages = stages
        self.reader = reader


class _Stage(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    def __init__(self, name: str) -> None:
        self._name = name

    def setup(self) -> None:
        self._stages: Stages = held(self._name, object)  # type: ignore[assignment]  # a protocol


class DecodeFn(_Stage):
    """Polls to micro-batches."""

    def process(self, element: RawBatch) -> Iterable[MicroBatch]:
        """Validate one poll."""
        return self._stages.decode(element)


class AppendFn(_Stage):
    """Micro-batches to the log; emits every τ that a commit sealed."""

    def process(self, element: MicroBatch) -> Iterable[int]:
        """Append one micro-batch."""
        return self._stages.write(element)


class WakeFn(_Stage):
    """Sealed snapshots to the lanes, which follow the log on threads of their own."""

    def process(self, element: int) -> Iterator[None]:
        """Wake the lanes."""
        self._stages.follow(element)
        return iter(())


def build(pipeline: beam.Pipeline, starts: list[Start], names: HeldStages) -> None:
    """The pipeline, the same on every runner.

    Args:
        pipeline: Where to put it.
        starts: The topic partitions and their start offsets, from the last commit.
        names: What the process that runs the functions holds.
    """
    _ = (
        pipeline
        | "TopicPartitions" >> beam.Create(starts, reshuffle=False)
        | "ReadFromKafka" >> beam.ParDo(ReadFromKafka(names.reader))
        | "Decode" >> beam.ParDo(DecodeFn(names.stages))
        | "SnapshotSink" >> beam.ParDo(AppendFn(names.stages))
        | "LaneSink" >> beam.ParDo(WakeFn(names.stages))
    )


def run_locally(starts: list[Start], names: HeldStages) -> None:
    """Run the pipeline in this process until its reader is told to stop.

    FnApiRunner by name: DirectRunner would try to download another runner first.
    """
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    # For pipelines of several languages: Beam would remove it at the end, and not after a kill.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    build(pipeline, starts, names)
    pipeline.run().wait_until_finish()
