"""The pipeline on a cluster: read and decode by topic partition, one writer per log, one process per lane.

A stage finds its objects in the process that runs it (``worker.py``), opened from the plan that it carries. Runners
send elements of one key to one place, in order, so the log has one writer. Stages behind keys declare a state that is
never read, because runners place stateful stages by key as elements come. A GroupByKey would wait for windows, and a
Reshuffle would spread what belongs together.
"""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from freshet_graph.stream.cluster.plan import ClusterPlan
from freshet_graph.stream.cluster.worker import Worker, acquire, release
from freshet_graph.stream.decode.encode import ipc_stream
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.microbatch import MicroBatch, Quiet, RawBatch
from freshet_graph.stream.pipeline import FROM_START, AppendFn, DecodeFn, StageFn, WakeFn

VERSION = 2

_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<Q")
_PLAIN = (
    "topic", "partition", "first_offset", "end_offset", "high_watermark", "tombstones", "converted", "wall_time_us", "skipped",
)  # fmt: skip


class MicroBatchCoder(beam.coders.Coder):  # type: ignore[misc]  # Beam has no types
    """Bytes of a MicroBatch; all workers of a job must be of one release."""

    def encode(self, value: MicroBatch) -> bytes:
        """See ``Coder.encode``."""
        small = {name: getattr(value, name) for name in _PLAIN} | {"quiet": value.quiet}
        head = json.dumps(small).encode()
        parts = [value.events, value.rejects, *([] if value.labels is None else [value.labels])]
        streams = [ipc_stream(part) for part in parts]
        sized = [piece for stream in streams for piece in (_LENGTH.pack(len(stream)), stream)]
        return b"".join((_HEAD.pack(VERSION, len(head)), head, *sized))

    def decode(self, encoded: bytes) -> MicroBatch:
        """See ``Coder.decode``; the columns lie in the bytes.

        Raises:
            ValueError: Written by another release.
        """
        version, length = _HEAD.unpack_from(encoded)
        if version != VERSION:
            raise ValueError(
                f"a micro-batch of format {version} came to a worker that knows format {VERSION}. "
                "Run one release of freshet on all workers"
            )
        place = _HEAD.size + length
        small = json.loads(encoded[_HEAD.size : place])
        whole, parts = pa.py_buffer(encoded), []
        while place < len(encoded):
            (size,) = _LENGTH.unpack_from(encoded, place)
            place += _LENGTH.size
            parts.append(_batch(whole.slice(place, size)))
            place += size
        quiet = small.pop("quiet")
        quiet = None if quiet is None else Quiet(*quiet)
        return MicroBatch(
            **small, quiet=quiet, **dict(zip(("events", "rejects", "labels"), parts, strict=False))
        )

    def is_deterministic(self) -> bool:
        """See ``Coder.is_deterministic``."""
        return False

    def to_type_hint(self) -> type[MicroBatch]:
        """See ``Coder.to_type_hint``."""
        return MicroBatch


def _batch(buffer: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_next_batch()


beam.coders.registry.register_coder(MicroBatch, MicroBatchCoder)


TURN_S = 0.5
"""How long a topic partition is read before others in the same place have their turn."""

_PLACED_BY_KEY = beam.DoFn.StateParam(ReadModifyWriteStateSpec("unused", VarIntCoder()))


@dataclass(frozen=True, slots=True)
class InWorker:
    """The stages are the process's worker, opened from the plan."""

    plan: ClusterPlan

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


def build(pipeline: beam.Pipeline, plan: ClusterPlan) -> None:
    """Build the pipeline of ``freshet_graph.stream.pipeline`` with its stages in worker processes."""
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
