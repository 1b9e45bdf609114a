"""The stream job on one page: topic partitions → polls → decoded micro-batches → the log → the lanes.

Every element is one poll of one topic partition, from the source to the log: offsets, events and refused messages
are committed together. Event time is the sink's own business, so nothing depends on a runner's windows or timers.
"""

import shutil
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from stream.held import held
from stream.kafka.reader import Start
from stream.kafka.source import ReadFromKafka
from stream.stages import AppendFn, DecodeFn, Stages, WakeFn


@dataclass(frozen=True, slots=True)
class HeldStages:
    """Stages and reader that this process holds under names.

    Attributes:
        stages: Name of the ``Stages``.
        reader: Name of the ``PartitionReader``.
    """

    stages: str
    reader: str

    def acquire(self) -> Stages:
        """See ``Where.acquire``."""
        return held(self.stages, object)  # type: ignore[return-value]  # a protocol

    def release(self) -> None:
        """The job gives them back."""


def build(pipeline: beam.Pipeline, starts: list[Start], names: HeldStages, lanes: tuple[str, ...]) -> None:
    """The pipeline in one process.

    Args:
        pipeline: Where to put it.
        starts: The topic partitions and their start offsets, from the last commit.
        names: What the process that runs the functions holds.
        lanes: Names of the lanes that follow the log.
    """
    _ = (
        pipeline
        | "TopicPartitions" >> beam.Create(starts, reshuffle=False)
        | "ReadFromKafka" >> beam.ParDo(ReadFromKafka(names.reader))
        | "Decode" >> beam.ParDo(DecodeFn(names))
        | "SnapshotSink" >> beam.ParDo(AppendFn(names, lanes))
        | "LaneSink" >> beam.ParDo(WakeFn(names))
    )


def run_locally(starts: list[Start], names: HeldStages, lanes: tuple[str, ...]) -> None:
    """Run the pipeline in this process until its reader is told to stop.

    FnApiRunner by name: DirectRunner would try to download another runner first.
    """
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    # For pipelines of several languages: Beam would remove it at the end, and not after a kill.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    build(pipeline, starts, names, lanes)
    pipeline.run().wait_until_finish()
