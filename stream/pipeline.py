"""The stream job on one page: topic partitions → polls → decoded micro-batches → the log → the lanes.

Every element is one poll of one topic partition, from the source to the log: offsets, events and refused messages
are committed together. The sink keeps event time itself, so nothing depends on a runner's windows or timers.
"""

import shutil
from dataclasses import dataclass
from typing import cast

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from stream.held import held
from stream.kafka.reader import Start
from stream.kafka.source import ReadFromKafka
from stream.stages import AppendFn, DecodeFn, Stages, WakeFn


@dataclass(frozen=True, slots=True)
class InProcess:
    """Stages that this process holds under a name."""

    name: str

    def acquire(self) -> Stages:
        """See ``Where.acquire``.

        Raises:
            LookupError: The pipeline runs in another process than the job.
        """
        stages = held(self.name, object)
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
    """Run the pipeline in this process until its reader is told to stop."""
    # Not DirectRunner, which would try to download another runner first.
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    # Only pipelines of several languages need it, and Beam would leave it behind after a kill.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    build(pipeline, starts, where, lanes)
    pipeline.run().wait_until_finish()
