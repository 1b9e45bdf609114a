"""Micro-batches between processes: a version, small fields as JSON, batches as Arrow streams.

Bytes: version u8 · length of the JSON u32 · JSON · length of the events u64 · events (an Arrow IPC stream) · rejects
(the same). All numbers little-endian.
"""

import json
import struct

import apache_beam as beam
import pyarrow as pa

from stream.microbatch import MicroBatch, Quiet

VERSION = 1

_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<Q")
_PLAIN = (
    "topic", "partition", "first_offset", "end_offset", "high_watermark", "tombstones", "wall_time_us", "skipped",
)  # fmt: skip


class MicroBatchCoder(beam.coders.Coder):  # type: ignore[misc]  # Beam has no types
    """Bytes of a MicroBatch; all workers of a job must be of one release."""

    def encode(self, value: MicroBatch) -> bytes:
        """See ``Coder.encode``."""
        small = {name: getattr(value, name) for name in _PLAIN} | {"quiet": value.quiet}
        head = json.dumps(small).encode()
        events = _stream(value.events)
        return b"".join(
            (_HEAD.pack(VERSION, len(head)), head, _LENGTH.pack(len(events)), events, _stream(value.rejects))
        )

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
        (events,) = _LENGTH.unpack_from(encoded, place)
        place += _LENGTH.size
        whole = pa.py_buffer(encoded)
        quiet = small.pop("quiet")
        return MicroBatch(
            **small,
            quiet=None if quiet is None else Quiet(*quiet),
            events=_batch(whole.slice(place, events)),
            rejects=_batch(whole.slice(place + events)),
        )

    def is_deterministic(self) -> bool:
        """See ``Coder.is_deterministic``."""
        return False

    def to_type_hint(self) -> type[MicroBatch]:
        """See ``Coder.to_type_hint``."""
        return MicroBatch


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _batch(buffer: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_next_batch()


beam.coders.registry.register_coder(MicroBatch, MicroBatchCoder)
